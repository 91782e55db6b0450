// Keys, and the renewal of a running run's page. Everything works without it.
"use strict";

const EVERY = 3000; // milliseconds between two looks at a running run

function rows() {
  return [...document.querySelectorAll("a.row")];
}

function step(by) {
  const all = rows();
  const link = document.querySelector(by > 0 ? 'a[rel="next"]' : 'a[rel="prev"]');
  if (all.length) {
    const at = all.indexOf(document.activeElement);
    const to = at < 0 ? (by > 0 ? 0 : all.length - 1) : at + by;
    if (to >= 0 && to < all.length) all[to].focus();
  } else if (link) link.click();
}

function follow(selector) {
  const link = document.querySelector(selector);
  if (link) link.click();
}

const KEYS = {
  j: () => step(1),
  k: () => step(-1),
  n: () => follow('a[rel="next"]'),
  p: () => follow('a[rel="prev"]'),
  u: () => follow('a[rel="up"]'),
  t: () => follow('[data-key="t"]'),
  c: () => follow('[data-key="c"]'),
  "/": () => {
    const field = document.querySelector("[data-search]");
    if (field) field.focus();
    else follow("a.button");
  },
  "?": () => {
    const keys = document.getElementById("keys");
    keys.open = !keys.open;
    keys.querySelector("summary").focus();
  },
};

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, select, textarea");
  if (typing && event.key === "Escape") event.target.blur();
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(KEYS, event.key)) return;
  event.preventDefault();
  KEYS[event.key]();
});

async function renew() {
  const main = document.querySelector("main[data-live]");
  if (!main) return;
  const busy = main.contains(document.activeElement) || !document.getSelection().isCollapsed;
  if (!busy && document.visibilityState === "visible") {
    try {
      const answer = await fetch(location.href, { credentials: "same-origin" });
      if (answer.ok) {
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        const open = [...main.querySelectorAll("details[open][id]")].map((each) => each.id);
        const ticked = [...main.querySelectorAll("input:checked")].map((each) => each.value);
        const fresh = page.querySelector("main");
        main.replaceWith(fresh);
        for (const id of open) document.getElementById(id)?.setAttribute("open", "");
        for (const each of fresh.querySelectorAll("input[type=checkbox]")) each.checked ||= ticked.includes(each.value);
      }
    } catch {
      return; // the server has ended
    }
  }
  setTimeout(renew, EVERY);
}

if (document.querySelector("main[data-live]")) setTimeout(renew, EVERY);
