// Keys of a review, and care for what is not saved yet. Everything works without it.
"use strict";

const form = document.getElementById("marks");
const questions = form ? [...form.querySelectorAll("fieldset")] : [];
let at = questions.findIndex((each) => !each.querySelector(":checked"));
if (at < 0) at = 0;

function mark(to, visible = true) {
  if (!questions.length) return;
  at = Math.max(0, Math.min(questions.length - 1, to));
  for (const [place, each] of questions.entries()) each.toggleAttribute("data-now", place === at);
  if (visible) questions[at].scrollIntoView({ block: "nearest" });
}

function choose(digit) {
  if (!questions.length) return;
  const boxes = [...questions[at].querySelectorAll("input")];
  const box = digit === 0 ? boxes.at(-1) : boxes.slice(0, -1)[digit - 1];
  if (!box) return;
  box.checked = true;
  mark(at + 1);
}

function press(key) {
  const button = document.querySelector(`[data-key="${key}"]`);
  if (button) button.click();
}

function follow(selector) {
  const link = document.querySelector(selector);
  if (link) link.click();
}

const KEYS = {
  j: () => mark(at + 1),
  k: () => mark(at - 1),
  Enter: () => press("Enter"),
  s: () => press("s"),
  u: () => press("u"),
  h: () => press("h"),
  n: () => form && form.querySelector("textarea").focus(),
  "[": () => follow('a[rel="prev"]'),
  "]": () => follow('a[rel="next"]'),
  "?": () => {
    const keys = document.getElementById("keys");
    keys.open = !keys.open;
    keys.querySelector("summary").focus();
  },
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  const typing = event.target.closest("textarea");
  if (typing) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.key === "Enter" && event.target.closest("a, button, summary")) return;
  const digit = /^[0-9]$/.test(event.key);
  if (!digit && !Object.hasOwn(KEYS, event.key)) return;
  event.preventDefault();
  if (digit) choose(Number(event.key));
  else KEYS[event.key]();
});

for (const [place, each] of questions.entries()) each.addEventListener("change", () => mark(place));

// A form that the server does not answer stays as it is, and says so.
async function send(event) {
  event.preventDefault();
  const told = document.getElementById("unsaved");
  const body = new URLSearchParams(new FormData(form, event.submitter));
  try {
    const answer = await fetch(form.action, { method: "POST", body, credentials: "same-origin" });
    if (answer.redirected) {
      location.assign(answer.url);
      return;
    }
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const why = page.querySelector(".alert, .missing") || page.body;
    told.textContent = why.textContent.trim().slice(0, 500);
    for (const [place, each] of [...page.querySelectorAll("#marks fieldset")].entries())
      questions[place].classList.toggle("lacking", each.classList.contains("lacking"));
    const lacking = questions.findIndex((each) => each.classList.contains("lacking"));
    if (lacking >= 0) mark(lacking);
  } catch {
    told.textContent = "Not saved: the server does not answer. Nothing on this page is lost; try again when it runs.";
  }
  told.hidden = false;
}

if (form) {
  form.addEventListener("submit", send);
  mark(at, false);
}
