"""What runs say of a claim: checks before training, figures, verdicts, the page."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from workup.core.crossed import Components, by_seed, crossed_difference, decide
from workup.core.errors import UserError
from workup.core.statistics import Estimate
from workup.report import regression
from workup.report.curves import Curve
from workup.report.sheets import Sheet
from workup.runs import Outcome
from workup.runs.rising import Learning
from workup.studies.claims import Claim, Headroom, checks
from workup.studies.claims.decided import (
    CANNOT,
    MOST,
    ClaimFinding,
    ClaimVerdict,
    Ended,
    finding,
    judged,
)
from workup.studies.claims.figures import figure
from workup.studies.claims.page import (
    ClaimVerdicts,
    forest,
    row,
    side_text,
    towards,
    two_groups,
)

PATIENTS = [f"p{k}" for k in range(200)]


def claim(**changes: Any) -> Claim:
    usual = {"id": "one", "place": "Table 1", "says": "A is better", "setup": "s"}
    return Claim.model_validate({**usual, "better": "a", "than": "b", "margin": 0.05, **changes})


def ended(arm: str, seed: int, level: float, curve: Sequence[float | None] = ()) -> Ended:
    """A run whose policy is right with chance `level`; half of the patients have a cold."""
    draws = np.random.default_rng([ord(arm), seed]).random(len(PATIENTS))
    right: list[float | None] = [float(draw < level) for draw in draws]
    reader: list[float | None] = [float(draw < level + 0.1) for draw in draws]
    doctors: Mapping[str, Any] = {
        "trained": {
            **dict.fromkeys(("questions", "critical", "recall", "repeats"), (right, PATIENTS)),
            "accuracy": (right, PATIENTS),
            "exact_reader": (reader, PATIENTS),
        },
        "nobody": {"accuracy": ([], [])},  # how `ended` notes a doctor who was not evaluated
    }
    diseases = {case: "cold" if k % 2 else "flu" for k, case in enumerate(PATIENTS)}
    steps = Curve(arm, [{"accuracy": height, "reward": height} for height in curve])
    return Ended(arm, seed, doctors, diseases, steps, None, 60.0)


def runs(ours: float, theirs: float, seeds: int = 4) -> list[Ended]:
    sides = (("a", ours), ("b", theirs))
    return [ended(arm, seed, level) for arm, level in sides for seed in range(seeds)]


def test_the_figure_is_the_crossed_difference_of_the_two_sides() -> None:
    every = runs(0.8, 0.6)
    found = finding(claim(), every)
    sides = [
        {str(run.seed): run.outcomes["trained"]["accuracy"] for run in every if run.arm == arm}
        for arm in "ab"
    ]
    expected = crossed_difference(*sides, bounds=(0, 1))
    assert found.difference == expected
    assert found.verdict == "held"
    assert found.ours is not None
    assert found.theirs is not None
    assert found.ours - found.theirs == pytest.approx(expected.mean)
    assert found.each is not None
    assert np.mean([*found.each.values()]) == pytest.approx(expected.mean)


@pytest.mark.parametrize(
    ("ours", "theirs", "lower", "verdict"),
    [
        (0.8, 0.6, False, "held"),
        (0.8, 0.6, True, "refuted"),
        (0.6, 0.8, False, "refuted"),
        (0.6, 0.8, True, "held"),
        (0.7, 0.7, False, "undecided"),
    ],
)
def test_the_direction_decides(ours: float, theirs: float, lower: bool, verdict: str) -> None:
    found = finding(claim(lower=lower, margin=0.01), runs(ours, theirs))
    assert found.verdict.startswith(verdict)


def test_a_difference_far_below_the_papers_is_called_so() -> None:
    every = runs(0.7, 0.7)
    assert finding(claim(margin=0.01), every).verdict.startswith("undecided")
    told = finding(claim(margin=0.01, reported=0.3), every)
    assert told.verdict == "smaller than in the paper"
    assert finding(claim(margin=0.01, reported=0.3), runs(0.9, 0.6)).verdict == "held"
    lower = finding(claim(margin=0.01, reported=0.3, lower=True), every)
    assert lower.verdict == "smaller than in the paper"


def test_sides_without_room_for_a_difference_are_not_called_alike() -> None:
    high = finding(claim(reported=0.8), runs(0.7, 0.7))
    assert high.verdict == "could not show it"
    assert re.fullmatch(
        r"accuracy is at most \.\d\d here, so the paper's difference of \.80 cannot occur",
        high.reason,
    )
    nobody = finding(claim(), runs(0.0, 0.0))
    assert (nobody.verdict, nobody.reason) == (
        "could not show it",
        "accuracy is at most .00 on both sides",
    )
    lessened = finding(claim(lower=True), runs(0.0, 0.0))
    assert (lessened.verdict, lessened.reason) == (
        "could not show it",
        "accuracy is .00 with b; less can be found only where that is above .05",
    )
    best = finding(claim(), runs(0.99, 1.0))
    assert (best.verdict, best.reason) == (
        "could not show it",
        "accuracy is 1.00 with b; more can be found only where that is below .95",
    )
    assert finding(claim(), runs(0.6, 1.0)).verdict == "refuted", "a direction needs no room"


def test_a_curve_that_falls_has_no_rise_to_lessen() -> None:
    every = [
        replace(run, figures={("slope", "accuracy"): -1.2 + 0.001 * run.seed})
        for run in runs(0.5, 0.5)
    ]
    less = finding(claim(of_run="slope", lower=True), every)
    assert (less.verdict, less.reason) == (
        "could not show it",
        "rise of accuracy in 100 steps is −1.20 with b; less can be found only where that is "
        "above 0.05",
    )
    assert finding(claim(of_run="slope"), every).verdict == "equal within the margin"


def test_a_claims_margin_is_less_than_what_the_paper_reports() -> None:
    named = claim().model_dump(mode="json", exclude={"margin"})
    margins = {None: 0.02, 0.5: 0.02, 0.012: 0.006}
    for reported, margin in margins.items():
        assert Claim.model_validate({**named, "reported": reported}).margin == margin
    assert Claim.model_validate({**named, "reported": 0.012, "of_run": "area"}).margin == 0.02
    with pytest.raises(ValueError, match=r"one: margin 0\.05 is not below reported 0\.05"):
        claim(reported=0.05).check()


def test_seeds_in_two_groups_are_told() -> None:
    every = runs(0.8, 0.8, 3)
    every[0] = ended("a", 0, 0.1)  # one run of a has collapsed
    found = finding(claim(), every)
    assert found.detectable is None, "no two shares differ by so much"
    told = two_groups(row(found))
    assert re.match(r"one: its seeds stand in two groups \(1 at −\.\d\d, 2 at .* to .*\)\. ", told)
    assert two_groups(row(finding(claim(), runs(0.8, 0.6, 3)))) == ""
    assert two_groups(row(finding(claim(measure="questions"), every))) == "", "no share"


@pytest.mark.parametrize(
    ("risen", "verdict"), [(0.0, "could not show it"), (0.3, "equal within the margin")]
)
def test_curves_that_have_not_moved_are_not_called_equal(risen: float, verdict: str) -> None:
    every = [
        ended(arm, seed, 0.5, [0.4 + risen * step / 39 for step in range(40)])
        for arm in "ab"
        for seed in range(4)
    ]
    found = finding(claim(of_run="area", margin=0.05), every)
    assert found.verdict == verdict
    assert found.difference is not None
    assert ("has moved by the margin" in found.reason) == (risen == 0)
    assert (f"one: {found.reason}" in verdicts(found).notes()) == (risen == 0)


def test_flat_curves_with_noise_have_not_moved() -> None:
    """Drawn: 400 updates of 64 episodes; in one run of six the ends differ by the margin."""
    rng = np.random.default_rng(3)
    flat = rng.binomial(64, 0.5, (40, 16, 400)) / 64
    each = np.abs(flat[..., -40:].mean(-1) - flat[..., :40].mean(-1)) > 0.02
    assert each.any(1).mean() > 0.9, "some run of nearly every pair of arms"
    found = [
        finding(
            claim(of_run="area", margin=0.02),
            [ended("ab"[k % 2], k // 2, 0.5, [*map(float, each)]) for k, each in enumerate(drawn)],
        )
        for drawn in flat
    ]
    told = [each.verdict for each in found]
    assert told.count("equal within the margin") <= 1
    assert told.count("could not show it") >= 35


def test_two_seeds_give_no_verdict_and_no_chance() -> None:
    few = finding(claim(id="two"), runs(0.9, 0.2, seeds=2))
    enough = finding(claim(), runs(0.9, 0.2))
    assert few.verdict == "undecided, 2 of at least 3 seeds"
    assert few.need is not None, "it orders the next seeds"
    page = verdicts(few, enough)
    rows = page.as_json()["claims"]
    assert [row["adjusted_p"] is None for row in rows] == [True, False]
    assert [row["detectable"] is None for row in rows] == [True, False]
    assert enough.difference is not None
    assert rows[1]["adjusted_p"] == pytest.approx(enough.difference.p), "nothing to adjust for"
    assert page.notes()[0].startswith("Claims with a figure of at least 3 seeds: 1. ")
    assert verdicts(few).notes() == []


def test_a_seed_without_a_value_of_both_is_in_no_figure() -> None:
    every = runs(0.8, 0.6)
    run = every[3]
    empty = {"accuracy": ([None] * len(PATIENTS), PATIENTS)}
    outcomes = {**run.outcomes, "trained": {**run.outcomes["trained"], **empty}}
    rising = Learning("grpo", 1, 400, Estimate(0.2, 0.1, 0.3, 9), None)
    every[3] = replace(run, outcomes=outcomes, learning=rising)
    found, without = finding(claim(), every), finding(claim(), [*every[:3], *every[4:7]])
    assert found.each == without.each
    assert (found.ours, found.theirs) == (without.ours, without.theirs)
    assert found.rising == without.rising == {"a": (0, 0), "b": (0, 0)}


def test_only_runs_that_can_tell_count_as_rising() -> None:
    up, level = (Learning("s", 1, 99, Estimate(0.2, low, 0.3, 9), None) for low in (0.1, -0.1))
    told = [up, level, Learning("s", 1, 3, None, None), None]
    every = [
        replace(run, learning=told[run.seed] if run.arm == "a" else None) for run in runs(0.8, 0.6)
    ]
    found = finding(claim(), every)
    assert found.rising == {"a": (1, 2), "b": (0, 0)}
    page = ClaimVerdicts("Toy", "tiny", [found], {"s": every}, {"s": "x"}, {"s": {}})
    assert "1 of 2" in page.tables()[0].rows[0]
    arms = page.as_json()["setups"]["s"]["arms"]
    assert (arms["a"]["rising"], arms["b"]["rising"]) == (1, None)
    untold = finding(claim(better="b", than=0.5), every)
    assert "still rising" in page.tables()[0].headings
    assert "still rising" not in verdicts(untold).tables()[0].headings, "a column of dashes"


def test_a_claim_of_two_differences_has_brackets() -> None:
    double = claim(better="crit-m - base-m", than="crit - base")
    assert side_text(double) == "accuracy: (`crit-m` − `base-m`) − (`crit` − `base`)"
    assert side_text(claim(than=0.5)) == "accuracy: `a` − 0.5"


def test_claims_of_ours_are_counted_beside_the_papers() -> None:
    one, other = finding(claim(), runs(0.9, 0.2)), finding(claim(id="two"), runs(0.2, 0.9))
    mine = [replace(each, claim=claim(id="mine", ours=True)) for each in (one, other, other)]
    page = verdicts(one, *mine)
    assert page.counts == {"held": 1}
    assert page.facts == {"held": "1 and 1 of ours", "refuted": "2 of ours"}


def test_the_page_of_claims_tells_set_ups_keys_and_commands(tmp_path: Path) -> None:
    every = runs(0.9, 0.2)
    found = finding(claim(reported=0.1), every)
    about, typed = {"two-lists": "About `a` & b"}, {"two-lists": {"a": "workup train a --out x"}}
    page = ClaimVerdicts("Toy", "tiny", [found], {"two-lists": every}, about, typed)
    text = page.write(tmp_path, "claims", "What holds?").read_text()
    assert "<h2>Set-up: two lists</h2>" in text
    assert "<p>About <code>a</code> &amp; b</p>" in text
    assert "<code>workup train a --out x</code>" in text
    assert "accuracy: <code>a</code> − <code>b</code>" in text
    assert all(f"</b>{key}</span>" in text for key in ("held", "in the paper", "the margin"))
    unreported = forest([finding(claim(), every)])
    assert "in the paper" not in unreported


def test_an_arms_figures_say_how_it_learned() -> None:
    """Two seeds whose training episodes get better, one of which got further than the other."""
    rates = {0: [0.1, 0.3, 0.5, 0.6, 0.7, 0.8], 1: [0.3, 0.3, 0.5, 0.6, 0.9]}
    every = [
        replace(
            run, curve=Curve(run.arm, [{"reward": 1.0, "accuracy": a} for a in rates[run.seed]])
        )
        for run in runs(0.8, 0.6)
        if run.seed in rates
    ]
    page = ClaimVerdicts("Toy", "tiny", [], {"s": every}, {"s": "x"}, {"s": {}})
    entry, other = page.as_json()["setups"]["s"]["arms"].values()
    assert entry["updates"] == 5
    assert entry["learned"] == pytest.approx([0.2, 0.3, 0.5, 0.6, 0.8]) == other["learned"]


def test_a_disease_keeps_its_patients_and_an_unknown_one_is_named() -> None:
    found = finding(claim(where="flu"), runs(0.8, 0.6))
    assert found.difference is not None
    assert found.difference.patients == len(PATIENTS) // 2
    unknown = finding(claim(where="flue"), runs(0.8, 0.6))
    assert unknown.verdict == "not run"
    assert "flu" in unknown.reason


def test_a_side_can_have_another_measure_or_be_a_number() -> None:
    reader = finding(claim(measure="exact_reader", than="a", than_measure="accuracy"), runs(0.6, 0))
    assert reader.difference is not None
    assert reader.difference.mean == pytest.approx(0.1, abs=0.03)
    number = finding(claim(than=0.5), runs(0.8, 0))
    assert (number.verdict, number.theirs) == ("held", 0.5)


def test_two_gains_are_compared_and_their_patients_may_differ() -> None:
    """a − b among the flus above a − b elsewhere, by hand for one seed and by their spread."""
    every = [*runs(0.8, 0.6), *(ended("c", seed, 0.5) for seed in range(4))]
    same = finding(claim(better="a - b", than="c - b"), every)
    plain = finding(claim(better="a", than="c"), every)
    assert same.difference is not None
    assert plain.difference is not None
    assert same.difference.mean == pytest.approx(plain.difference.mean)
    assert same.difference.se == pytest.approx(plain.difference.se)

    other = [f"q{k}" for k in range(50)]
    for run in every:
        level = {"a": 0.9, "b": 0.5, "c": 0.5}[run.arm]
        draws = np.random.default_rng([ord(run.arm), run.seed, 1]).random(len(other))
        right: list[float | None] = [float(draw < level) for draw in draws]
        run.outcomes["hard"] = {"accuracy": (right, other)}  # type: ignore[index]
    found = finding(claim(better="a @ hard - b @ hard", than="a - b", margin=0.01), every)
    assert found.difference is not None
    means = {
        (run.arm, place, run.seed): np.mean(run.outcomes[place]["accuracy"][0])  # type: ignore[arg-type]
        for run in every
        for place in ("trained", "hard")
    }
    gains = [
        (means["a", "hard", s] - means["b", "hard", s])
        - (means["a", "trained", s] - means["b", "trained", s])
        for s in range(4)
    ]
    assert found.difference.mean == pytest.approx(np.mean(gains))
    assert found.each == pytest.approx(dict(enumerate(gains)))
    assert found.difference.patients == len(other) + len(PATIENTS)


def test_curves_are_compared_by_the_updates_that_both_made() -> None:
    ours = [ended("a", seed, 0.5, [0.1 * seed, 0.5, None, 0.9]) for seed in range(4)]
    theirs = [ended("b", seed, 0.5, [0.1 * seed, 0.3]) for seed in range(4)]
    found = finding(claim(measure="reward", of_run="area"), [*ours, *theirs])
    assert found.difference is not None
    assert found.difference.mean == pytest.approx(0.1)
    assert found.difference.patients == 0


def test_seeds_that_one_side_lacks_count_for_neither() -> None:
    every = [*runs(0.8, 0.6), ended("a", 9, 0.1)]
    assert finding(claim(), every) == finding(claim(), runs(0.8, 0.6))
    curves = [ended(arm, seed, 0.5, [0.1, 0.2]) for arm in "ab" for seed in range(4)]
    found = finding(claim(of_run="area"), [*curves, ended("a", 9, 0.5, [0.9, 0.9])])
    assert found.difference is not None
    assert found.difference.seeds == 4


def test_a_figure_of_the_whole_run_is_compared_by_seed() -> None:
    key = ("slope", "reward")
    heights: dict[str, list[float | str]] = {
        "a": [1.0, 2.5, "no step logged it", 4.0],
        "b": [0.5, 1.0, 3.0, 1.0],
    }
    every = [
        replace(ended(arm, seed, 0.5), figures={key: figure})
        for arm, figures in heights.items()
        for seed, figure in enumerate(figures)
    ]
    of_run: dict[str, Any] = {"measure": "reward", "of_run": "slope", "reported": 0.3}
    found = finding(claim(**of_run), every)
    assert found.difference == by_seed([0.5, 1.5, None, 3.0])
    assert found.each == {0: 0.5, 1: 1.5, 3: 3.0}
    assert towards(claim(**of_run, lower=True)) == -0.3
    above = finding(claim(**of_run, than=1.0), every)
    assert above.difference == by_seed([0.0, 1.5, None, 3.0])
    untold = finding(claim(**of_run, than="a"), every[2:3])
    assert (untold.verdict, untold.reason) == ("could not show it", "a: no step logged it")
    page = verdicts(found)
    assert page.as_json()["claims"][0]["compared"] == "rise of reward in 100 steps: a − b"
    assert "+1.67" in str(page.tables()[0].rows)


@given(
    st.lists(st.integers(-50, 50), min_size=8, max_size=60).filter(lambda drawn: len({*drawn}) > 1)
)
def test_figures_of_a_run_are_numpys(drawn: list[int]) -> None:
    heights, late = np.array(drawn) / 10, math.ceil(0.3 * len(drawn))
    lines = [{"accuracy": k % 3, "parts": {"p": height}} for k, height in enumerate(heights)]
    curve, steps = Curve("a", lines), np.arange(len(drawn))
    slope = np.polyfit(steps, heights, 1)[0]
    assert figure("slope", curve, [], "part p") == pytest.approx(100 * slope, abs=1e-9)
    r = np.corrcoef(steps, heights)[0, 1]
    assert figure("fit", curve, [], "part p") == pytest.approx(r**2, abs=1e-9)
    deviation = 100 * np.std(heights[-late:], ddof=1)
    assert figure("late deviation", curve, [], "part p") == pytest.approx(deviation, abs=1e-9)
    if curve.wide == 1:  # nothing is smoothed
        both = np.corrcoef([k % 3 for k in steps], heights)[0, 1]
        assert figure("correlation", curve, [], "part p") == pytest.approx(both, abs=1e-9)
    assert "has no slope" in str(figure("slope", curve, [], "part q"))


@pytest.mark.parametrize(("level", "told"), [(0.0, ".00"), (0.01, ".01"), (0.998, "1.00")])
def test_a_share_at_its_end_is_steady_for_another_reason(level: float, told: str) -> None:
    noisy = [{"accuracy": level + sign * 1e-3} for sign in (1, -1)] * 10
    reason = f"accuracy ends at {told}, where it cannot vary"
    assert figure("late deviation", Curve("a", noisy), [], "accuracy") == reason
    away = [{"accuracy": 0.03 + sign * 1e-3} for sign in (1, -1)] * 10
    assert isinstance(figure("late deviation", Curve("a", away), [], "accuracy"), float)
    paid = [{"accuracy": 0, "reward": level + sign} for sign in (1e-3, -1e-3)] * 10
    assert isinstance(figure("late deviation", Curve("a", paid), [], "reward"), float)
    untold = figure("late deviation", Curve("a", [{"reward": 1}]), [], "accuracy")
    assert "too few steps logged it" in str(untold)


def test_the_lead_of_a_share_is_that_of_the_regression() -> None:
    rng = np.random.default_rng(1)
    shares = rng.random((400, 3))
    chances = 1 / (1 + np.exp(-(3 * shares[:, 0] - 2 * shares[:, 1] + shares[:, 2] - 1)))
    played = [
        Outcome(f"c{k}", "gout", "", 0, "diagnosed", bool(right), 3, None, {}, each)
        for k, (right, row) in enumerate(zip(rng.random(400) < chances, shares, strict=True))
        if (each := dict(zip(("critical", "noise", "coverage"), map(float, row), strict=True)))
    ]
    critical, noise, coverage = (
        each.coefficient for each in regression.regress({"x": played}).effects
    )
    assert critical > abs(noise) > coverage > 0
    steps = Curve("a", [])
    assert figure("lead", steps, played, "critical") == pytest.approx(critical - abs(noise))
    assert figure("lead", steps, played, "noise") == pytest.approx(noise - critical)
    assert "all three shares" in str(figure("lead", steps, [], "critical"))


def test_ours_are_counted_apart_and_a_curve_has_no_figure_of_the_papers() -> None:
    every = runs(0.8, 0.6)
    mine = finding(claim(id="two", ours=True), every)
    found = verdicts(finding(claim(reported=0.1), every), mine)
    assert found.counts == {"held": 1}
    row = found.as_json()["claims"][1]
    assert (row["place"], row["verdict"]) == ("ours, beside Table 1", "held")
    assert towards(claim(reported=0.1, lower=True)) == -0.1
    assert towards(claim(reported=0.1, of_run="area")) is None
    assert claim(reported=0.1, of_run="area").target == 0.05
    assert claim(reported=0.2).target == 0.2


def test_a_claim_that_needs_more_seeds_than_anybody_trains_could_not_be_shown() -> None:
    """Both have to be out of reach: what was found, and what the paper reports."""
    wide = by_seed([0.3, -0.25, 0.02, -0.05])
    verdict, reason = judged(claim(reported=0.11), wide, 0.6, 0.5)
    told, needed = decide(wide, 0.05, 1, 0.11), wide.seeds_for(0.11)
    assert told.more is not None
    assert needed is not None
    assert min(4 + told.more, needed) > MOST
    assert verdict == CANNOT
    assert reason == (
        f"seeds differ so much that the paper's difference of .11 takes about {needed} of them to "
        "be found"
    )
    assert "the margin of .05 takes about" in judged(claim(), wide, 0.6, 0.5).reason
    large = claim(reported=0.2)
    assert judged(large, wide, 0.6, 0.5).verdict == "undecided, about 7 more seeds"
    near = replace(wide, mean=0.2, low=-0.1, high=0.5)
    assert judged(claim(), near, 0.6, 0.5).verdict.startswith("undecided, about")
    played = replace(wide, n=400, patients=400, components=Components(0.0, 0.0, 400 * wide.spread))
    assert " more patients" in judged(claim(reported=0.11), played, 0.6, 0.5).verdict


@pytest.mark.parametrize(
    "changes",
    [
        {"than": 0.5},
        {"better": "a - b", "than": "b"},
        {"where": "flu"},
        {"than_measure": "questions"},
        {"better": "a @ warm start"},
    ],
)
def test_a_curve_is_an_arms_own(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="compares an arm"):
        claim(of_run="area", **changes).check()


def test_a_misspelt_measure_is_told_with_the_near_one() -> None:
    every = [
        replace(run, outcomes={"trained": {"questionz": ([None] * len(PATIENTS), PATIENTS)}})
        for run in runs(0.8, 0.6)
    ]
    found = finding(claim(measure="questionz"), every)
    assert (found.verdict, found.difference) == ("not run", None)
    assert "no measure 'questionz'. Did you mean 'questions'?" in found.reason


def test_what_has_no_run_says_so() -> None:
    assert finding(claim(), []).reason == "no run of both sides has ended"
    apart = finding(claim(), [ended("a", 0, 0.5), ended("a", 1, 0.5), ended("b", 2, 0.5)])
    assert apart.reason == "the two sides have no seed in common (0, 1; 2)"
    assert (
        finding(claim(), runs(0.8, 0.6), ClaimVerdict("could not show it", "no room")).reason
        == "no room"
    )
    assert finding(claim(cannot="none at hand"), []).reason == "none at hand"
    nobody = finding(claim(better="a @ nobody"), [ended("a", 0, 0.5), ended("b", 0, 0.5)])
    assert nobody.verdict == "not run"


GROUPS = st.lists(st.lists(st.floats(-2, 2), min_size=1, max_size=5), min_size=1, max_size=5)


@given(GROUPS)
def test_variance_within_groups_is_that_of_every_pair(groups: list[list[float]]) -> None:
    """Σ (x − x̄)² of n values is the sum over pairs of (x_i − x_j)² divided by n."""
    pairs = sum(
        (one - other) ** 2 / len(group)
        for group in groups
        for k, one in enumerate(group)
        for other in group[k + 1 :]
    )
    assert checks.within(groups) == pytest.approx(pairs, abs=1e-9)


def test_a_part_that_is_not_paid_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def paid(part: list[list[float]], whole: list[list[float]]) -> str:
        monkeypatch.setattr(checks, "payments", lambda name, run: (part, whole))
        return checks.unpaid("φ", None)  # type: ignore[arg-type]

    assert "pays 0.005 an episode" in paid([[0.01, 0.0]], [[1.0, 0.0]])
    assert "has 1% of the variance" in paid([[0.1, 0.0]], [[1.0, 0.0]])
    assert "has 0% of the variance" in paid([[0.5, 0.5]], [[1.0, 0.0]])
    assert paid([[0.5, 0.0]], [[1.0, 0.0]]) == ""


def test_a_set_up_needs_room_between_its_anchors() -> None:
    headroom = Headroom(measure="accuracy", high="greedy", low="random", least=0.1)

    def summary(high: float, low: float) -> dict[str, Any]:
        levels = {"greedy": high, "random": low}
        return {"doctors": {name: {"accuracy": {"mean": mean}} for name, mean in levels.items()}}

    assert checks.lacks_room(headroom, summary(0.9, 0.7)) == ""
    assert "only .05 above" in checks.lacks_room(headroom, summary(0.75, 0.7))
    for strange in (0.9, "high", None):
        entries = {"greedy": {"accuracy": strange}, "random": {}}
        with pytest.raises(UserError, match="no accuracy of 'greedy'; there are greedy, random"):
            checks.lacks_room(headroom, {"doctors": entries})
    with pytest.raises(UserError, match="no accuracy of 'greedy'; there are random"):
        checks.lacks_room(headroom, {"doctors": {"random": {"accuracy": {"mean": 1.0}}}})


def verdicts(*findings: ClaimFinding) -> ClaimVerdicts:
    every = runs(0.8, 0.6)
    about, typed = {"s": "A set-up"}, {"s": {"a": "workup train a", "b": "workup train b"}}
    return ClaimVerdicts("Toy", "tiny", findings, {"s": every}, about, typed)


@pytest.mark.drawn
def test_the_page_has_every_claim_and_its_picture(tmp_path: Path) -> None:
    every = runs(0.8, 0.6)
    found = verdicts(
        finding(claim(reported=0.1), every),
        finding(claim(id="two", lower=True), every),
        finding(claim(id="three", cannot="none at hand"), []),
    )
    page = found.write(tmp_path, "claims", "Which?").read_text(encoding="utf-8")
    for text in ("held", "refuted", "none at hand", "A set-up", "workup train b", "<svg"):
        assert text in page
    assert found.counts == {"held": 1, "refuted": 1, "could not show it": 1}
    kept = found.as_json()
    assert [each["id"] for each in kept["claims"]] == ["one", "two", "three"]
    assert kept["setups"]["s"]["arms"]["a"]["seeds"] == [0, 1, 2, 3]
    assert "p17" not in (tmp_path / "claims.json").read_text()


def test_a_table_of_words_alone_is_printed() -> None:
    printed = Console(file=io.StringIO(), width=60)
    Sheet(("claim", "why"), [("one", "none at hand")], words=2).show(printed)
    assert isinstance(printed.file, io.StringIO)
    assert "none at hand" in printed.file.getvalue()


def test_a_name_in_a_table_cannot_steer_the_terminal() -> None:
    evil, printed = "\x1b[31m\x9b2J\u202eevil", Console(file=io.StringIO(), width=90)
    Sheet((evil, evil), [(evil, evil)], title=evil, caption=evil).show(printed)
    assert isinstance(printed.file, io.StringIO)
    shown = printed.file.getvalue()
    assert shown.count("evil") == 6
    assert not set(shown) & set("\x1b\x9b\u202e")


def test_a_figure_of_the_run_has_its_own_measures() -> None:
    assert claim(of_run="lead", measure="noise", than=0).written_as == "lead"
    with pytest.raises(ValueError, match="no share 'questions'"):
        claim(of_run="lead", measure="questions", than=0).check()
