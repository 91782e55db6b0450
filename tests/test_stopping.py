"""Stopping with a guarantee: every rule and score beside one written out by its definition."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import fault, serving
from studying import typed

from workup.cases import open_source
from workup.cli import api
from workup.core.episode import Ending
from workup.core.errors import RolloutError, UserError
from workup.doctors.beliefs import ExactBelief
from workup.doctors.stopping import NamedSet, StoppingDoctor, StoppingRule, along
from workup.environments.base.anchors import GreedyDoctor
from workup.environments.consultation import Consultation
from workup.loops.evaluation.stopping import PHASE, told
from workup.metrics import conformal
from workup.rl.rollout import Play, ToPlay, rollout
from workup.runs import Run
from workup.studies.stopping import PlayedEncounter, Settings, budgets, stopped

SOURCE = open_source("clinic:xs", split=0)
WORLD = Consultation(SOURCE.items, SOURCE.diagnoses, max_turns=8)
SHARES = st.integers(0, 16).map(lambda parts: parts / 16)  # their sums are exact
CUTS = st.lists(SHARES, min_size=3, max_size=3).map(lambda cuts: [0, *sorted(cuts), 1])
ROW = CUTS.map(lambda cuts: [b - a for a, b in pairwise(cuts)]).flatmap(st.permutations)
ROWS = st.lists(ROW, min_size=1, max_size=6)


def brute(p: Any, λ: float) -> set[int]:
    """C(λ) by its definition."""
    return {d for d in range(len(p)) if min(1.0, sum(e for e in p if e > p[d])) <= λ}


def named(encounter: Any, λ: float, most: int) -> tuple[int, set[int]]:
    """(τ, C_τ) by their definition."""
    for t, p in enumerate(encounter):
        found = brute(p, λ)
        if len(found) <= most or t == len(encounter) - 1:
            return t, found
    raise AssertionError


@settings(max_examples=400)
@given(ROWS, st.integers(0, 3), st.integers(1, 3))
def test_the_score_is_the_least_threshold_from_which_on_the_truth_is_named(
    encounter: list[list[float]], truth: int, most: int
) -> None:
    spread = [conformal.ahead(p) for p in encounter]
    found = conformal.score(spread, truth, most)
    places = sorted({0.0, 1.0, *(float(a) for row in spread for a in row)})
    between = [(a + b) / 2 for a, b in pairwise(places)]
    for λ in (*places, *between):
        if λ >= found:
            assert truth in named(encounter, λ, most)[1]
    below = [λ for λ in between if λ < found]
    assert found == 0 or truth not in named(encounter, max(below), most)[1]


@given(st.lists(SHARES, min_size=1, max_size=6), st.floats(0, 1), st.integers(1, 3))
def test_the_set_and_the_rule_are_those_of_the_definition(
    p: list[float], λ: float, most: int
) -> None:
    a = conformal.ahead(p)
    assert set(np.flatnonzero(a <= λ).tolist()) == brute(p, λ)
    assert conformal.stops(a, λ, most) == (len(brute(p, λ)) <= most)
    assert int(np.argmax(p)) in brute(p, 0.0), "the most probable one is always named"


def test_the_threshold_is_an_order_statistic_and_needs_enough_cases() -> None:
    scores = np.random.default_rng(0).random(99)
    assert conformal.threshold(scores, 0.1) == sorted(scores)[90 - 1]
    assert conformal.threshold(scores[:9], 0.1) == max(scores[:9])
    with pytest.raises(UserError, match="at least 9"):
        conformal.threshold(scores[:8], 0.1)


@pytest.mark.parametrize("alpha", [0.1, 0.3])
def test_the_promise_is_kept_by_a_doctor_that_is_wrong_about_its_probabilities(
    alpha: float,
) -> None:
    """Far too sure, with a different number of questions in each encounter."""
    rng = np.random.default_rng(1)

    def encounter() -> tuple[list[Any], int]:
        truth, belief, found = int(rng.integers(6)), np.zeros(6), []
        for _ in range(1 + int(rng.integers(5))):
            belief = belief + rng.normal(size=6)
            belief[truth] += 0.5
            p = np.exp(3 * belief)
            found.append(conformal.ahead(p / p.sum()))
        return found, truth

    covered = []
    for _ in range(150):
        made = [encounter() for _ in range(60)]
        λ = conformal.threshold([conformal.score(a, y, 1) for a, y in made[:40]], alpha)
        for a, y in made[40:]:
            t = next((t for t, row in enumerate(a) if conformal.stops(row, λ, 1)), len(a) - 1)
            covered.append(a[t][y] <= λ)
    sd = math.sqrt(alpha * (1 - alpha) * (1 / 40 + 1 / 20) / 150)
    assert np.mean(covered) > 1 - alpha - 3 * sd
    assert np.mean(covered) < 1 - alpha + 1 / 41 + 0.04, "and not by naming everything"


# --- a doctor that stops ---


def greedy() -> GreedyDoctor:
    assert SOURCE.knowledge is not None
    return GreedyDoctor(SOURCE.knowledge, SOURCE.items, 8, WORLD.write, WORLD.known)


def play(doctor: Any, index: int) -> Any:
    return asyncio.run(rollout(ToPlay(SOURCE.test[index], index), WORLD, doctor, Play()))


@pytest.mark.parametrize("λ", [0.3, 0.7, 0.95])
def test_who_stops_plays_the_beginning_of_the_same_encounter(λ: float) -> None:
    doctor, rule = greedy(), StoppingRule(λ)
    belief = ExactBelief(doctor)
    early = 0
    for index in range(25):
        whole = play(doctor, index)
        short = play(StoppingDoctor(doctor, belief, rule, WORLD), index)
        assert short.gathered == whole.gathered[: short.questions]
        assert short.ending is Ending.DIAGNOSED
        spread = asyncio.run(along(belief, whole))
        truth = SOURCE.diagnoses.index(whole.case.truth.diagnosis)
        made = PlayedEncounter.of(whole.case.id, spread, truth, 1)
        inside, size, single, asked, right = made.at(λ)
        assert asked == short.questions
        measured = asyncio.run(NamedSet(belief, rule)(short, True))  # type: ignore[arg-type]
        assert measured == {"in_set": inside, "set_size": size}
        assert single == (size == 1)
        if asked < whole.questions:
            assert short.answer == (short.case.truth.diagnosis,) or not right
            early += 1
    assert early


def test_a_fixed_number_of_questions_counts_an_encounter_as_it_ended() -> None:
    one = PlayedEncounter.of("a", [np.array([0, 0.6]), np.array([0.7, 0])], 1, 1)
    two = PlayedEncounter.of("b", [np.array([0, 0.6])], 0, 1)
    first, second = budgets("p", [one, two], 0)
    assert (first.questions, first.accuracy.mean) == (0, 0.5)
    assert (second.questions, second.accuracy.mean) == (0.5, 1.0)


# --- in an evaluation ---


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("stopping")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKUP_CACHE", str(folder / "cache"))
        return api.evaluate(
            "greedy information",
            cases="clinic:xs",
            out=folder / "run",
            quiet=True,
            evaluation={"cases": 150},
            stopping={"alpha": 0.2, "calibration": 100},
        )


@pytest.mark.long
def test_the_row_has_coverage_and_no_case_is_used_twice(run: Run) -> None:
    summary = run.summary
    row = summary["doctors"]["greedy information, stopping"]
    plain = summary["doctors"]["greedy information"]
    assert row["in_set"]["mean"] > 0.7
    assert row["questions"]["mean"] < plain["questions"]["mean"]
    assert "in_set" not in plain
    held = {each.case_id for each in run.outcomes("greedy information", PHASE)}
    tested = {each.case_id for each in run.outcomes("greedy information")}
    assert (len(held), len(tested)) == (100, 150)
    assert not held & tested
    rule = summary["stopping"]
    scores = [o.measures["stopping_score"] for o in run.outcomes("greedy information", PHASE)]
    assert rule["threshold"] == conformal.threshold([s for s in scores if s is not None], 0.2)
    assert rule["calibrated_on"] == 100
    assert "truth in the set" in run.report.read_text()


@pytest.mark.long
def test_an_interrupted_one_goes_on_with_the_same_rule(run: Run, tmp_path: Path) -> None:
    """The same settings give the same rule, and a resumed run plays nothing anew."""
    before = [each.measures for each in run.outcomes("greedy information, stopping")]
    again = api.resume(run.path)
    assert again.summary["stopping"] == run.summary["stopping"]
    assert [e.measures for e in again.outcomes("greedy information, stopping")] == before


@pytest.mark.long
def test_a_row_that_has_begun_keeps_its_rule(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of twelve failed calibration episodes none is played again: the threshold would move."""
    monkeypatch.setenv("WORKUP_CACHE", str(tmp_path / "cache"))
    copy = tmp_path / "copy"
    shutil.copytree(run.path, copy)
    with Run.open(copy) as damaged:
        played = list(damaged.episodes(phase=PHASE))
        scored = sorted(played, key=lambda each: each.measures["stopping_score"] or 0)
        lost = [replace(each.episode, ending=Ending.FAILED, reason="x") for each in scored[-12:]]
        damaged.write(
            [
                replace(each, episode=episode, correct=None, measures={})
                for each, episode in zip(scored[-12:], lost, strict=True)
            ]
        )
        (copy / "summary.json").unlink()
    rules = []
    for _ in range(2):
        rules.append(api.resume(copy).summary["stopping"])
    assert rules[0] == rules[1]
    assert (rules[0]["calibrated_on"], rules[0]["failed"]) == (88, 12)
    assert rules[0]["threshold"] < run.summary["stopping"]["threshold"]


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"alpha": 0.01, "calibration": 20}, "too few for alpha=0.01: it takes at least 99"),
        ({"alpha": 0.1, "calibration": 10**6}, "leaves none of"),
    ],
)
def test_what_promises_nothing_is_refused(how: dict[str, Any], told: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {"evaluation": {"cases": 5, "anchors": False}, "quiet": True}
    with pytest.raises(UserError, match=told):
        api.evaluate("random doctor", cases="clinic:xs", out=tmp_path / "x", stopping=how, **given)


# --- the study ---


def test_the_study_shows_coverage_and_cost_over_alpha(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = "n=120 calibration=80 alphas=0.05,0.3 divisions=20"
    found = typed(f"study stopping 'greedy information' --cases clinic:xs {words} --out it")
    assert found.exit_code == 0, found.output
    (page,) = Path("it").glob("*.html")
    numbers = json.loads((page.with_suffix(".json")).read_text())
    careful, bold = numbers["stopped"]
    assert (careful["alpha"], bold["alpha"]) == (0.05, 0.3)
    for row in (careful, bold):
        assert abs(row["coverage"]["mean"] - (1 - row["alpha"])) < 0.06
    assert careful["questions"]["mean"] > bold["questions"]["mean"]
    assert numbers["calibration"] == 80
    assert numbers["tested"] == 120
    assert "Over all cases, without any division" in page.read_text()
    assert numbers["fixed"][-1]["budget"] == 9
    few = "study stopping 'random doctor' --cases clinic:xs calibration=9 alphas=0.1"
    for words, said in {
        "calibration=5": "at least 9",
        "conclude=bayes": "conclude adds a row to an evaluation, and a study has none",
        "evaluation.samples=2": "one encounter of each case is divided",
    }.items():
        assert said in str(typed(f"{few} {words}").exception)


def test_few_cases_calibrate_on_as_many_as_were_asked_for() -> None:
    """A source may have fewer cases than n and calibration; what is calibrated on stays."""
    spread = [np.array([0.0, 0.7])]
    encounters = [PlayedEncounter.of(f"c{k}", spread, 0, 1) for k in range(20)]
    few = Settings.model_validate(
        {"cases": "", "n": 1000, "calibration": 9, "alphas": "0.1", "divisions": 3}
    )
    (row,) = stopped("p", encounters, few, budgets("p", encounters, 0))
    assert row.coverage.n == 11


def test_who_fails_every_episode_is_told_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with serving(lambda _: fault(400)) as dead:
        lines = f"endpoints:\n  dead: {{base_url: '{dead.url}', model: dead}}\n"
        (tmp_path / "workup.yaml").write_text(lines)
        words = "n=2 calibration=9 alphas=0.1 evaluation.probabilities=stated --out it"
        lost = typed(f"study stopping endpoint:dead --cases clinic:xs {words}")
    assert isinstance(lost.exception, RolloutError), lost.output
    assert "dead: all 11 episodes failed: " in str(lost.exception)


def test_a_rule_that_every_set_fits_stops_at_once() -> None:
    """No more diseases than `most`: no set is too large, whatever the threshold."""
    found = PlayedEncounter.of("a", [np.array([0.0, 0.7]), np.array([0.2, 0.0])], 1, 2)
    assert [found.at(threshold)[3] for threshold in (0.0, 0.5, 1.0, 2.0)] == [0, 0, 0, 0]


def test_who_ranks_nothing_is_not_right() -> None:
    """A belief that cannot be read rules nothing out; it does not name the first disease."""
    for truth in range(3):
        assert PlayedEncounter.of("a", [np.zeros(3)], truth, 1).right == [False]
    assert PlayedEncounter.of("a", [np.zeros(1)], 0, 1).right == [True]


def test_a_truth_that_is_not_listed_is_in_no_set() -> None:
    """Not even in the set of everything, which the threshold of such a truth names."""
    found = PlayedEncounter.of("a", [np.array([0.0, 0.7])], None, 1)
    assert found.score == conformal.UNLISTED
    inside, size, *_ = found.at(conformal.UNLISTED)
    assert (inside, size) == (0.0, 2.0)


def test_a_threshold_that_no_set_reaches_promises_nothing() -> None:
    entry = {"doctor": "d, stopping", "alpha": 0.1, "calibrated_on": 40, "coverage_sd": 0.05}
    assert "probability ≥ 0.9" in told({**entry, "threshold": 0.98})
    said = told({**entry, "threshold": 2.0})
    assert "nothing is promised" in said
    assert "≥" not in said
