"""Stations of an exam elsewhere: the same cases, replies and verdicts as in our own evaluation."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from workup.cli import api
from workup.core.errors import UserError
from workup.interop.adapters.bench import Bench, told
from workup.loops.evaluation.suites import stations
from workup.runs import Run

NAMES = [each.name for each in stations.exam("quick")[0].benchmarks]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our own evaluation of each station by its best anchor."""
    folder = tmp_path_factory.mktemp("stations")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKUP_CACHE", str(folder / "cache"))
        suite, _ = stations.exam("quick")
        for each in suite.benchmarks:
            values: dict[str, Any] = {**each.settings, "evaluation": {"cases": 3}}
            doctor = "full information"
            api.evaluate(
                doctor, cases=each.cases, out=folder / each.name, quiet=True, **values
            ).close()
    return folder


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_a_station_elsewhere_scores_as_ours(
    name: str, played: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every anchor's texts are said to the bench: its verdicts and measures are the run's."""
    monkeypatch.setenv("WORKUP_CACHE", str(tmp_path))
    made = Bench.of_station(name, size="quick", evaluation={"cases": 3, "measures": []})
    with Run.open(played / name) as run:
        for doctor in run.doctors():
            records = {record.episode.case.id: record for record in run.evaluated(doctor)}
            assert [case.id for case in made.cases] == sorted(records, key=list(records).index)
            for place, case in enumerate(made.cases):
                record, encounter = records[case.id], made.open(place)
                assert encounter.opening == record.episode.opening
                for turn in record.episode.turns:
                    asyncio.run(encounter.say(turn.completion.text))
                outcome = told(asyncio.run(made.judge(encounter.episode)))
                assert outcome["correct"] == record.correct
                assert outcome["reward"] == float(bool(record.correct))
                ours = {name: v for name, v in record.measures.items() if v is not None}
                assert {name: ours.get(name) for name in outcome["measures"]} == outcome["measures"]


def test_a_station_that_cannot_be_played_says_what_it_needs() -> None:
    with pytest.raises(UserError, match=r"no station 'clinc s'\. Did you mean 'clinic s'"):
        Bench.of_station("clinc s")
    with pytest.raises(UserError, match="MediQ: it needs files"):
        Bench.of_station("MediQ")
    with pytest.raises(UserError, match=r"manner: it needs a model, roles\.patient"):
        Bench.of_station("manner")
    with pytest.raises(UserError, match=r"no side 'trian'\. Did you mean 'train'"):
        Bench.of_station("clinic s", side="trian")


def test_a_station_has_cases_to_train_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WORKUP_CACHE", str(tmp_path))
    made = Bench.of_station("clinic s", size="quick", side="train")
    assert all(":train:" in case.id for case in made.cases)
