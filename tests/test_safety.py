"""Safety measures beside what the environment itself answers, and prices beside sums by hand."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ddxplus_world import write_release

from workup.cases import open_source
from workup.cases.clinic.tables import SUBSETS
from workup.cases.datasets.ddxplus.release import read_release
from workup.cli import api
from workup.core.episode import Ending
from workup.core.errors import CaseError, UserError
from workup.core.ports import Act
from workup.environments.base.anchors import GreedyDoctor, RandomDoctor
from workup.environments.consultation import Consultation
from workup.metrics.extra import MeasuredWorld, open_measures
from workup.metrics.extra.safety import SETTLED, answer_of, over_ordered, premature
from workup.metrics.prices import costs
from workup.metrics.reading import reader_of
from workup.rl.rollout import Play, ToPlay, rollout, turn_after

SOURCE = open_source("clinic:s", split=0)
WORLD = Consultation(SOURCE.items, SOURCE.diagnoses)
READER = reader_of(SOURCE, WORLD)
assert READER is not None
assert SOURCE.knowledge is not None
EXACT = (SOURCE.knowledge, SOURCE.items)


def play(doctor: Any, index: int) -> Any:
    return asyncio.run(rollout(ToPlay(SOURCE.test[index], index), WORLD, doctor, Play()))


def shortened(episode: Any, questions: int) -> Any:
    """The same encounter, closed by the same diagnosis after so many questions."""
    return replace(episode, turns=(*episode.gathered[:questions], episode.turns[-1]))


def decisive(episode: Any) -> bool:
    """Whether a further answer of the environment makes the truth the most probable disease."""
    truth, past = episode.case.truth.diagnosis, episode.gathered
    if READER.most_probable(READER.evidence(episode.case, past)) == truth:
        return False
    for item in SOURCE.items:
        act: Act = READER.say(item.kind.value, item.name)
        turn = asyncio.run(turn_after(episode.case, WORLD, past, act))
        if READER.most_probable(READER.evidence(episode.case, (*past, turn))) == truth:
            return True
    return False


def test_closure_is_premature_where_the_environment_has_the_decisive_answer() -> None:
    doctor = RandomDoctor(*EXACT, 10, 0, WORLD.write, WORLD.known)
    found = []
    for index in range(30):
        whole = play(doctor, index)
        for questions in (0, 3, 8):
            short = shortened(whole, questions)
            found.append(premature(short, READER, WORLD.max_turns))
            assert found[-1] == float(decisive(short))
        assert premature(whole, READER, WORLD.max_turns) == 0, "no question was left"
    assert 0 < sum(v or 0 for v in found) < len(found)
    assert premature(replace(whole, ending=Ending.OUT_OF_TURNS), READER, 10) is None


def test_what_one_more_answer_says_is_what_the_environment_answers() -> None:
    """Sub-questions too, whose parents the patient has or has not."""
    source = open_source("clinic:full", split=0)
    world = Consultation(source.items, source.diagnoses)
    reader = reader_of(source, world)
    assert reader is not None
    nested = [item for item in source.items if item.parent]
    assert nested
    normal = set()
    for case in source.test[:40]:
        known = reader.evidence(case, ())
        for item in (*nested, *source.items[:5]):
            act = reader.say(item.kind.value, item.name)
            turn = asyncio.run(turn_after(case, world, (), act))
            if item.name not in known:
                more = answer_of(reader, case, item.name)
                assert reader.evidence(case, (turn,)) == known | more
                normal.add(item.parent in more)
    assert normal == {True, False}


def test_requests_are_counted_from_the_first_time_that_a_disease_is_settled() -> None:
    doctor = GreedyDoctor(*EXACT, 10, WORLD.write, WORLD.known)
    counts = []
    for index in range(20):
        episode = play(doctor, index)
        beliefs = [
            max(EXACT[0].posterior(READER.evidence(episode.case, episode.turns[:k])))
            for k in range(episode.questions)
        ]
        settled = next((k for k, p in enumerate(beliefs) if p >= SETTLED), episode.questions)
        counts.append(over_ordered(episode, READER))
        assert counts[-1] == episode.questions - settled
    assert any(counts)
    assert len(set(counts)) > 1


def measured(option: str, episode: Any, correct: bool, source: Any = SOURCE) -> Any:
    spec = f"safety:{option}" if option else "safety"
    (measure,) = open_measures([spec], [], world=MeasuredWorld(source, WORLD))
    return asyncio.run(measure(episode, correct))  # type: ignore[arg-type]


def test_sensitivity_is_that_of_the_sources_list_or_of_a_file(tmp_path: Path) -> None:
    doctor = GreedyDoctor(*EXACT, 3, WORLD.write, WORLD.known)
    seen = set()
    for index in range(25):
        episode = play(doctor, index)
        name = episode.case.truth.diagnosis
        value = measured("", episode, correct=True)["must_not_miss"]
        assert value == (1.0 if name in SOURCE.must_not_miss else None)
        seen.add(value)
    assert seen == {1.0, None}
    file = tmp_path / "names.txt"
    file.write_text(f"{name}\n\n", encoding="utf-8")
    assert measured(str(file), episode, correct=False)["must_not_miss"] == 0
    unlisted = replace(SOURCE, diagnoses=())
    file.write_text(f"{name.upper()}\n", encoding="utf-8")
    assert measured(str(file), episode, False, unlisted)["must_not_miss"] == 0
    file.write_text("asthma\nhouse fever\n", encoding="utf-8")
    with pytest.raises(CaseError, match=r"names.txt, line 2"):
        measured(str(file), episode, correct=True)
    file.write_text("\n", encoding="utf-8")
    with pytest.raises(CaseError, match=r"names.txt: it names no disease"):
        measured(str(file), episode, correct=True)


def test_without_a_model_of_the_cases_only_the_list_is_measured() -> None:
    episode = play(GreedyDoctor(*EXACT, 3, WORLD.write, WORLD.known), 0)
    bare = replace(SOURCE, knowledge=None)
    found = measured("", episode, correct=True, source=bare)
    assert found["premature"] is found["over_ordered"] is None
    with pytest.raises(UserError, match="in evaluations alone"):
        open_measures(["safety"], [])


@pytest.mark.parametrize("subset", SUBSETS)
def test_every_clinic_says_what_must_not_be_missed(subset: str) -> None:
    source = open_source(f"clinic:{subset}", split=0)
    assert 0 < len(source.must_not_miss) < len(source.diagnoses)
    assert set(source.must_not_miss) <= set(source.diagnoses)
    assert not open_source(f"clinic:{subset}#renamed", split=0).must_not_miss


def test_ddxplus_has_the_severities_of_its_release(tmp_path: Path) -> None:
    """1 and 2 of 5; a release without severities says nothing."""
    write_release(tmp_path)
    path = tmp_path / "release_conditions.json"
    conditions = json.loads(path.read_text(encoding="utf-8"))
    for severity, condition in zip((2, 3, 1), conditions.values(), strict=True):
        condition["severity"] = severity
    path.write_text(json.dumps(conditions), encoding="utf-8")
    assert read_release(tmp_path).must_not_miss == ("Flu", "Pneumonia")
    for condition in conditions.values():
        del condition["severity"]
    path.write_text(json.dumps(conditions), encoding="utf-8")
    assert read_release(tmp_path).must_not_miss == ()


# --- prices ---


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "prices.csv"
    one, two = SOURCE.items[:2]
    path.write_text(f'item,price\n"{one.name}",12.5\n# a remark\n{two.name},0\n*,3\n')
    return path


def test_a_table_prices_items_and_everything_else(table: Path) -> None:
    one, two, three = SOURCE.items[:3]
    assert costs(SOURCE, None)[one.name] == one.cost
    found = costs(SOURCE, str(table))
    assert [found[each.name] for each in (one, two, three)] == [12.5, 0, 3]
    assert found[""] == 3, "a request that reaches no item"
    table.write_text(f"{one.name},2\n")
    assert costs(SOURCE, str(table))[three.name] == 0
    table.write_text("item,price\n# none yet\n")
    with pytest.raises(CaseError, match="it has no row item,price"):
        costs(SOURCE, str(table))


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("phlogiston level,3", "line 2, field 'item'"),
        ("fever,cheap", "line 2, field 'price': 'cheap'"),
        ("fever,-1", "field 'price'"),
        ("fever,nan", "field 'price'"),
        ("fever,1,2", "line 2: it has 3 columns"),
        ("fever," + "1" * 140_000, "line 2: cannot be divided into cells"),
        ("fever,1\rcough,2", "line 2: a carriage return within a line"),
    ],
)
def test_a_row_that_is_no_price_is_refused_with_its_place(row: str, told: str, table: Path) -> None:
    table.write_text(f"item,price\n{row}\n")
    with pytest.raises(CaseError, match=told):
        costs(SOURCE, str(table))


def test_an_evaluation_has_them_all(table: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("WORKUP_CACHE", str(tmp_path / "cache"))
    table.write_text("*,2.5\n")
    how: dict[str, Any] = {"cases": 30, "measures": ["safety"], "prices": str(table)}
    run = api.evaluate(
        "greedy information", cases="clinic:s", out=tmp_path / "run", quiet=True, evaluation=how
    )
    entry = run.summary["doctors"]["greedy information"]
    assert entry["cost"]["mean"] == pytest.approx(2.5 * entry["questions"]["mean"])
    assert 0 < entry["must_not_miss"]["n"] < 30
    assert entry["over_ordered"]["mean"] > 0
    assert "must not miss" in run.report.read_text()
