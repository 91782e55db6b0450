"""A server with scripted doctors, for trials of `workup exam`: each is a model of that name.

python bench/scripted_doctors.py [PORT] [SECONDS]    PORT 8000, an answer after .1 s unless named

- memoriser: knows the diseases of the built-in clinic by name, and reads nothing that it could look
  up; it asks what tells most
- reader: at a library it knows no name; it searches for the patient's findings, and takes the
  disease whose document lists most of them. Elsewhere it is the memoriser
- guesser: names the first disease that it knows

They read chat messages alone, as any model does.
"""

from __future__ import annotations

import json
import re
import sys
import time
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from workup.cases import open_source
from workup.cases.clinic.patients import clinic
from workup.core.case import Evidence

# What stands before a disease in a title: "Cohort study of patients with asthma".
BEFORE_NAME = re.compile(r".*: |.* patients with |.*-analysis of |.* trial of .* in |.*study of ")
PASSAGE = re.compile(r"\[\d+\] ([^\n]+)\n(?:Findings: )?([^\n<]*)")
WAIT = 0.1  # seconds that an answer takes
OPTION = re.compile(r"^([A-Z])\. (.+)$", re.MULTILINE)


class Knowing:
    """What is known of one clinic: which sentence tells which finding."""

    def __init__(self, subset: str) -> None:
        self.source = open_source(f"clinic:{subset}", split=0)
        findings = clinic(subset).tables.findings
        self.told = {text: each.name for each in findings for text in each.present}
        self.normal = {text: each.name for each in findings for text in each.absent}

    def evidence(self, said: str, *, whole: bool) -> Evidence:
        """The findings in a text, in a fixed order; of a `whole` record those not in it are normal.

        The order decides which queries are made of them.
        """
        present = dict.fromkeys(name for text, name in self.told.items() if text in said)
        absent = dict.fromkeys(name for text, name in self.normal.items() if text in said)
        silent = [item.name for item in self.source.items] if whole else absent
        normal = [name for name in silent if name not in present]
        return {**dict.fromkeys(normal, ()), **{name: (f"{name}:yes",) for name in present}}

    def best(self, evidence: Evidence) -> str:
        assert self.source.knowledge is not None
        found = self.source.knowledge.posterior(evidence)
        return self.source.diagnoses[int(np.argmax(found))]

    def asks(self, evidence: Evidence) -> Any:
        """The item that would tell most."""
        assert self.source.knowledge is not None
        few = {item.name for item in open_source("clinic:s", split=0).items}
        open_ = [item for item in self.source.items if item.name not in evidence]
        left = [item for item in open_ if item.name in few] or open_
        gains = self.source.knowledge.gains(evidence, [item.name for item in left])
        return left[int(np.argmax(gains))]


@cache
def knowing(subset: str) -> Knowing:
    return Knowing(subset)


def answer(model: str, messages: list[dict[str, str]]) -> str:
    """What the doctor of this name says next."""
    rules, said = messages[0]["content"], "\n".join(m["content"] for m in messages[1:])
    turns = sum(m["role"] == "assistant" for m in messages)
    if "DiffList" in rules:
        last = r"\boxed{diffuse large B-cell lymphoma}"
        lists = r"\DiffList{diffuse large B-cell lymphoma}\ExamList{CD20, CD3}"
        return f"<answer>{lists if turns < 2 else last}</answer>"
    known = knowing("s" if model == "guesser" else "m")
    if "library" in rules and model == "reader":
        return read(known, said, turns)
    if "library" in rules:
        return f"<diagnosis>{named(model, known, said, whole=True)}</diagnosis>"
    return asked(model, known, rules, said, turns)


def asked(model: str, known: Knowing, rules: str, said: str, turns: int) -> str:
    """A question or a diagnosis, where a patient or a record answers."""
    options = {name: letter for letter, name in OPTION.findall(said)}
    sure = "<confidence>90</confidence>" if "<confidence>" in said else ""
    free = "question: " in rules
    over = turns >= 8 or "at most 0 questions" in rules or bool(sure)
    if not over and model != "guesser":
        item = known.asks(known.evidence(said, whole=False))
        tag = item.kind.value
        return f"question: {item.question}" if free else f"<{tag}>{item.name}</{tag}>"
    name = named(model, known, said, whole=bool(options))
    if free:
        return f"answer: [answer: {options.get(name, name)}]{sure}"
    return f"{sure}<diagnose>{name}</diagnose>"


def named(model: str, known: Knowing, said: str, *, whole: bool) -> str:
    if model == "guesser":
        return known.source.diagnoses[0]
    return known.best(known.evidence(said, whole=whole))


def read(known: Knowing, said: str, turns: int) -> str:
    """Searches twice, then takes the document that lists most of what the patient has."""
    has = [
        name
        for name, ids in known.evidence(said.partition("<evidence>")[0], whole=False).items()
        if ids
    ]
    if turns < 3:
        queries = (
            [", ".join(has[k::3]) for k in range(3)]
            if turns == 0
            else (
                [", ".join(has)]
                if turns == 1
                else [title for title, _ in best_first(said, has)[:3]]
            )
        )
        return f"<search>{'; '.join(filter(None, queries)) or 'fever'}</search>"
    ranked = best_first(said, has)
    title = ranked[0][0] if ranked else "unknown"
    # Where a document says whose picture a name is, that one is the disease.
    owner = re.search(rf"\[\d+\] (\w+)\n[^\n]*\b{re.escape(title)}\b", said)
    return f"<diagnosis>{owner[1] if owner else title}</diagnosis>"


def best_first(said: str, has: list[str]) -> list[tuple[str, float]]:
    """The diseases whose passages were read, the one first whose passages tell most of `has`."""
    found: dict[str, float] = {}
    for title, told in PASSAGE.findall(said):
        # of a case-control study's two diseases the first is its subject
        name = BEFORE_NAME.sub("", title, count=1).partition(" and ")[0]
        fits = sum(f" {each}" in f" {told}".lower() for each in map(str.lower, has))
        found[name] = (
            found.get(name, 0.0) + fits - len(told.split(", ")) / 100
        )  # of equals the shorter
    return sorted(found.items(), key=lambda each: -each[1])


class Scripted(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        began = time.monotonic()
        text = answer(asked["model"], asked["messages"])
        time.sleep(max(0.0, WAIT - (time.monotonic() - began)))
        read_tokens = sum(len(m["content"]) for m in asked["messages"]) // 4
        usage = {"prompt_tokens": read_tokens, "completion_tokens": len(text) // 4 + 1}
        usage["total_tokens"] = sum(usage.values())
        choice = {"index": 0, "finish_reason": "stop"}
        choice["message"] = {"role": "assistant", "content": text}
        made = {"id": "1", "object": "chat.completion", "created": 0, "model": asked["model"]}
        body = json.dumps({**made, "choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing is logged."""


if __name__ == "__main__":
    PORT = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
    WAIT = float(sys.argv[2]) if len(sys.argv) > 2 else WAIT
    ThreadingHTTPServer(("127.0.0.1", PORT), Scripted).serve_forever()
