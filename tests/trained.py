"""Runs of a few steps in this process, and what their weights came to.

As a program it trains the methods that it is told, and prints a line for each.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import workup
from workup import methods
from workup.cases import open_source
from workup.cases.jsonl import write
from workup.core.case import Case
from workup.environments.base.lists import lists, written
from workup.prepare.verified_answers import KEPT

# What makes a method's own stages short, where it has such a setting.
SHORT = {"cases": 12, "width": 3, "iterations": 2, "depth": 2, "encoder": "trigrams"}
# After this warm start most episodes search or ask something.
SMALL: dict[str, Any] = {
    "tiny": {"width": 32},
    "sft": {"steps": 30, "batch": 8, "lr": 0.01},
    "steps": 1,
    "batch": 4,
    "group": 3,
    "max_tokens": 24,
    "evaluation": {"cases": 1, "anchors": False, "untrained": False},
}


def trained(name: str, out: Path) -> str:
    """A digest of the weights of a short run of this method, whose folder is `out`."""
    method = methods.load(name)
    own: dict[str, Any] = {
        key: few for key, few in SHORT.items() if key in method.settings.model_fields
    }
    if "iterations" in own:  # a short search seldom finds a right answer
        own["cases"] = 24
    # A method that learns from all training cases, once each, learns from a few of them.
    epochs = 1 if "cases" in own or name == "verified-sft" else 1e-5
    tuning = {"batch": 4, "epochs": epochs}
    settings = SMALL
    if name == "dpo":  # pairs need a policy that is right now and then
        settings = SMALL | {"sft": SMALL["sft"] | {"steps": 60}}
    source = cases(name, out.parent)
    settings = settings | {"cases": source, "reward": own, "tuning": tuning}
    run = workup.train(name, out=out, quiet=True, **settings)
    return hashlib.sha256((run.path / "policy" / "model.safetensors").read_bytes()).hexdigest()


def cases(name: str, folder: Path) -> str:
    """Cases that the method can learn from; a file in `folder` where none are built in."""
    if name == "verified-sft":
        source = open_source("clinic:pathology")
        path = folder / "verified.jsonl"
        every = [verified(source.train[index]) for index in range(16)]
        write(every, path, items=source.items, diagnoses=source.diagnoses)
        return f"jsonl:{path}"
    evidence = methods.load(name).environment["name"] == "evidence"
    return "clinic:pathology" if evidence else "clinic:xs"


def verified(case: Case) -> Case:
    """The case with a list of its diagnosis alone as its verified answer."""
    turn = {"answer": written(lists((case.truth.diagnosis,), ())), "reply": []}
    return replace(case, truth=replace(case.truth, extra={KEPT: [turn]}))


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for name in sys.argv[2:]:
        print(name, trained(name, folder / name))
