"""What the cases of a run lack for its encounter is counted and kept in the run."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Call

import workup
from workup.cases import jsonl, open_source
from workup.core.case import Case, Fact, Item, Truth
from workup.environments import load
from workup.loops.evaluation.remarks import remarks

SILENT = "cases have no hidden finding"


def own_file(folder: Path, silent: int, others: int) -> str:
    """A file of one's own: `silent` cases without a hidden finding, and others with one."""
    hidden = (Fact("f", "fever", "I have a fever.", weight=1),)
    cases = [
        Case(f"{n}", f"Patient {n}.", Truth("Flu", facts=hidden if n >= silent else ()))
        for n in range(silent + others)
    ]
    items = [Item("fever", "Do you have a fever?", "No fever.")]
    jsonl.write(cases, folder / "mine.jsonl", items=items, diagnoses=["Flu"])
    return f"jsonl:{folder / 'mine.jsonl'}"


@pytest.mark.parametrize(
    ("name", "asks"), [("consultation", True), ("questioning", True), ("evidence", False)]
)
def test_cases_with_nothing_to_ask_for_are_told_where_one_asks(
    tmp_path: Path, name: str, asks: bool
) -> None:
    source = open_source(own_file(tmp_path, 7, 23))
    module = load(name)
    world = module.open(source, module.Settings())
    told = remarks(source, world, source.test, source.train)
    assert told == (
        [f"7 of 30 {SILENT}: in this encounter there is nothing to ask for in them."]
        if asks
        else []
    )
    full = open_source(own_file(tmp_path, 0, 5))
    assert not remarks(full, module.open(full, module.Settings()), full.test)


@pytest.mark.long
def test_a_run_keeps_the_remark(tmp_path: Path, call: Call) -> None:
    spec = own_file(tmp_path, 2, 28)
    out = tmp_path / "run"
    small = ("steps=1", "sft.steps=1", "batch=1", "group=2", "max_tokens=8")
    status, shown, told = call("train", "craft", "--cases", spec, *small, "--out", out)
    assert status == 0, told
    note = f"2 of 30 {SILENT}"
    assert note in " ".join(shown.split())
    run = workup.open_run(out)
    assert any(each.startswith(note) for each in run.config["notes"])
    assert any(each.startswith(note) for each in run.summary["notes"])
    assert note in run.report.read_text()
