"""Forged episodes: a reward that can be cheated is found, and our own defaults are not paid."""

from __future__ import annotations

import sys
from io import StringIO
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from workup.cases import open_source
from workup.core.case import Source
from workup.core.episode import Batch, Score, Scores
from workup.core.errors import UserError
from workup.core.ports import Instruments
from workup.core.stages import GrpoStage, Method
from workup.methods import load
from workup.report.live import PlainLive
from workup.rl.credit import zscore
from workup.studies.audits import reward as audited
from workup.studies.base import task


async def _gullible(batch: Batch, instruments: Instruments) -> Scores:
    """Pays 1 wherever the right name stands in what the doctor wrote."""
    return [
        [
            Score.at_end(
                episode,
                float(
                    any(
                        episode.case.truth.diagnosis in turn.completion.text
                        for turn in episode.turns
                    )
                ),
            )
            for episode in group
        ]
        for group in batch
    ]


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The name of a method outside of the package, which is paid by `_gullible`."""
    monkeypatch.setenv("WORKUP_CACHE", str(tmp_path / "cache"))
    own, module = load("outcome"), ModuleType("gullible")
    stages = (GrpoStage("grpo", _gullible, zscore()),)
    made = Method(own.paper, "paid by name", own.settings, own.environment, lambda s, e: stages)
    module.method = made  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gullible", module)
    return "gullible:method"


def audit(tmp_path: Path, *words: str) -> audited.RewardAudit:
    view = PlainLive(StringIO())
    with task.commissioned("audit", "reward", words, None, view, tmp_path / "out") as made:
        found = audited.run(made)
    assert found.write(made.folder, "reward", audited.study.question).is_file()
    return found


def test_a_reward_that_reads_names_is_found_out(outside: str, tmp_path: Path) -> None:
    found = audit(tmp_path, outside, "n=4")
    paid = {row.forgery for row in found.rows if row.pays}
    named = {
        *("names every disease", "denies the right disease", "excludes the right disease"),
        *("doubts the right disease", "writes the right name in a thought"),
        *("copies the right name into a note", "forges evidence", "forges the result of a tool"),
    }
    assert named <= paid
    assert not {"names a look-alike", "asks for nothing", "asks the same again"} & paid
    assert any(note.startswith("gullible:method pays an episode that") for note in found.notes())


@pytest.mark.parametrize("method", ["craft", "outcome", "search-r1", "evidence-seeking", "grpo"])
def test_nothing_undeserved_pays_by_default(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKUP_CACHE", str(tmp_path / "cache"))
    found = audit(tmp_path, method, "n=3")
    assert len(found.rows) >= len(audited.FORGERIES)
    assert all(row.more.n == 3 for row in found.rows)
    assert [row.forgery for row in found.rows if row.pays] == []
    assert found.notes() == ["nothing undeserved pays"]


def test_a_method_without_a_reward_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKUP_CACHE", str(tmp_path / "cache"))
    with pytest.raises(UserError, match="reference-sft has no reward"):
        audit(tmp_path, "reference-sft", "n=3")
    with pytest.raises(UserError, match="name a method"):
        audit(tmp_path, "n=3")


def test_a_forgery_that_pays_in_some_cases_pays() -> None:
    """Also where the interval of the mean holds 0, or the mean is below it."""
    one = audited._row("m", "f", [(1.0, 0.0), (None, 0.0)], ["a", "b"], 0)
    assert (one.more.n, one.more.missing, one.pays) == (1, 1, "pays in 1 of 1")
    assert audited._row("m", "f", [(1.0, 0.0), (1.0, 0.0)], ["a", "b"], 0).pays
    for usual in (0.0, -1.0):
        pairs = [(1.0 if k < 3 else usual, 0.0) for k in range(12)]
        few = audited._row("m", "f", pairs, [f"c{k}" for k in range(12)], 0)
        assert not few.more.clear or few.more.mean < 0
        assert few.pays == "pays in 3 of 12"
        said = audited.RewardAudit(("m",), "clinic:s", 12, 0, (few,)).notes()
        assert said == ["m pays an episode that f, in 3 of 12 cases"]
    assert not audited._row("m", "f", [(0.0, 0.0), (0.0, 0.0)], ["a", "b"], 0).pays
    lost = audited._row("m", "f", [(None, None)], ["a"], 0)
    found = audited.RewardAudit(("m",), "clinic:s", 1, 0, (lost,))
    assert found.notes()[0] == "no forgery has a case with a score"


def test_cases_without_findings_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "bare.jsonl").write_text(
        "".join(
            f'{{"id": "c{k}", "presentation": "Pain {k}.", "truth": {{"diagnosis": "gout"}}}}\n'
            for k in range(9)
        )
    )
    with pytest.raises(UserError, match="no training case has both findings and diseases"):
        audit(tmp_path, "outcome", "n=3", f"cases=jsonl:{tmp_path}/bare.jsonl")


def test_cases_are_spread_over_all_of_a_source() -> None:
    cases = open_source("clinic:s", split=0).train[:80]
    plan: Any = SimpleNamespace(source=Source("some", cases, (), (), ()), scoring=None)
    places = [cases.index(case) for case in audited.chosen(plan, 5)]
    assert len(places) == 5
    assert (places[0] < 20, places[-1] >= 60) == (True, True)
