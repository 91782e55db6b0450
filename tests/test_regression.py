"""The regression of success on what was found.

It is compared with known coefficients, and with a sandwich worked out by hand with numpy.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path

import example_run
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from rich.console import Console

from workup.core.extras import install
from workup.report import compare, regression
from workup.report.regression import Effect, JudgedEpisode, fit, regress, rows, separable
from workup.runs import Outcome, Run

Floats = NDArray[np.float64]
TRUTH = {"critical": 3.0, "noise": -2.0, "coverage": 1.0}
MODELS = {"a": -0.5, "b": 0.4, "c": 1.2}


def drawn(cases: int, seed: int, spread: float = 0.0) -> list[JudgedEpisode]:
    """Every model plays every case once.

    A case may be harder than another by `spread` (standard deviation, log odds).
    """
    rng = np.random.default_rng(seed)
    found = []
    for number in range(cases):
        hardness = spread * rng.normal()
        for model, level in MODELS.items():
            shares = rng.uniform(size=3)
            odds = level + hardness + float(np.dot(list(TRUTH.values()), shares))
            right = bool(rng.uniform() < 1 / (1 + np.exp(-odds)))
            critical, noise, coverage = map(float, shares)
            found.append(JudgedEpisode(model, f"case {number}", right, (critical, noise, coverage)))
    return found


def by_hand(observations: Sequence[JudgedEpisode]) -> tuple[Floats, Floats]:
    """Newton's method, and the sandwich with its correction.

    The sandwich is bread · Σ over cases (score · scoreᵀ) · bread.
    """
    models = list(dict.fromkeys(each.model for each in observations))
    x = np.array(
        [[*each.shares, *(float(each.model == model) for model in models)] for each in observations]
    )
    y = np.array([float(each.right) for each in observations])
    b = np.zeros(x.shape[1])
    for _ in range(50):
        p = 1 / (1 + np.exp(-x @ b))
        b += np.linalg.solve((x.T * (p * (1 - p))) @ x, x.T @ (y - p))
    p = 1 / (1 + np.exp(-x @ b))
    bread = np.linalg.inv((x.T * (p * (1 - p))) @ x)
    cases = sorted({each.case for each in observations})
    of_case = np.array([cases.index(each.case) for each in observations])
    scores = np.array(
        [(x[of_case == case] * (y - p)[of_case == case, None]).sum(0) for case in range(len(cases))]
    )
    n, k, g = len(y), x.shape[1], len(cases)
    covariance = bread @ (scores.T @ scores) @ bread * (g / (g - 1)) * ((n - 1) / (n - k))
    return b[:3], np.sqrt(np.diag(covariance))[:3]


@pytest.mark.parametrize(("seed", "spread"), [(0, 0.0), (1, 1.5), (2, 1.5)])
def test_it_is_maximum_likelihood_with_the_sandwich_by_case(seed: int, spread: float) -> None:
    observations = drawn(60, seed, spread)
    coefficients, errors = by_hand(observations)
    found = fit(observations)
    assert [each.share for each in found] == list(TRUTH)
    np.testing.assert_allclose([each.coefficient for each in found], coefficients, rtol=1e-5)
    np.testing.assert_allclose([each.error for each in found], errors, rtol=1e-5)
    z = np.array([each.coefficient / each.error for each in found])
    simulated = np.abs(np.random.default_rng(0).normal(size=400_000))
    chances = [float((simulated > abs(each)).mean()) for each in z]
    np.testing.assert_allclose([each.p for each in found], chances, atol=0.005)


def test_it_finds_the_coefficients_that_the_episodes_were_drawn_with() -> None:
    for effect in fit(drawn(4_000, 5)):
        assert abs(effect.coefficient - TRUTH[effect.share]) < 4 * effect.error
        assert effect.error < 0.2


def test_episodes_of_one_case_that_go_alike_count_as_one() -> None:
    """Ten copies of every episode within its case tell nothing new.

    Coefficients and errors stay, but for the correction.
    """
    once = drawn(80, 3)
    n, k = len(once), 3 + len(MODELS)
    correction = ((10 * n - 1) / (10 * n - k)) / ((n - 1) / (n - k))
    for one, ten in zip(fit(once), fit(once * 10), strict=True):
        assert ten.coefficient == pytest.approx(one.coefficient, rel=1e-5)
        assert ten.error == pytest.approx(one.error * correction**0.5, rel=1e-5)


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=3, max_size=9))
@settings(deadline=None)
def test_what_one_number_parts_is_seen(points: list[tuple[int, bool]]) -> None:
    wrong, right = ([x for x, is_right in points if is_right is side] for side in (False, True))
    if wrong and right and len({x for x, _ in points}) > 1:
        design = np.array([[1.0, x] for x, _ in points])
        parted = max(wrong) <= min(right) or max(right) <= min(wrong)
        assert separable(design, np.array([float(is_right) for _, is_right in points])) is parted


# ---- what cannot be fitted, and what is left out


def outcomes(observations: Sequence[JudgedEpisode]) -> dict[str, list[Outcome]]:
    found: dict[str, list[Outcome]] = {}
    for each in observations:
        measures = dict(zip(TRUTH, each.shares, strict=True))
        one = Outcome(each.case, "gout", "", 0, "diagnosed", each.right, 3, None, {}, measures)
        found.setdefault(each.model, []).append(one)
    return found


def figures(effects: Sequence[Effect]) -> list[float]:
    return [number for each in effects for number in (each.coefficient, each.error, each.p)]


def test_episodes_without_a_share_or_a_verdict_are_left_out_and_told() -> None:
    whole = drawn(70, 0)
    played = outcomes(whole)
    played["a"] += [
        played["a"][0]._replace(measures={"critical": None, "noise": None, "coverage": 0.0}),
        played["a"][0]._replace(correct=None),
        played["a"][0]._replace(ending="failed"),
    ]
    found = regress(played)
    assert figures(found.effects) == pytest.approx(figures(fit(whole)))
    assert (found.rests_on, found.problem) == ("210 episodes of 70 cases by 3 models", "")
    assert found.notes == (
        "2 episodes that failed or were not judged left out",
        "1 episode without critical share and noise share left out",
    )


def test_a_model_that_is_always_right_changes_nothing_and_is_told() -> None:
    whole = drawn(70, 0)
    sure = [JudgedEpisode("sure", each.case, True, each.shares) for each in whole[:40]]
    found = regress(outcomes([*whole, *sure]))
    assert figures(found.effects) == pytest.approx(figures(fit(whole)))
    assert found.models == 3
    assert found.notes == ("sure is left out: its 40 episodes are all right",)


@pytest.mark.parametrize(("right", "verdict"), [(True, "all right"), (False, "all wrong")])
def test_a_model_with_few_complete_episodes_is_not_called_always_right(
    right: bool, verdict: str
) -> None:
    """Six of its thirty episodes found something, and these went alike; 24 found nothing."""
    played = outcomes(drawn(70, 0))
    shares = dict.fromkeys(TRUTH, 0.5)
    blind = {"critical": None, "noise": None, "coverage": 0.0}
    one = played["a"][0]
    played["odd"] = [
        *(one._replace(case_id=f"p{k}", correct=right, measures=shares) for k in range(6)),
        *(one._replace(case_id=f"q{k}", correct=not right, measures=blind) for k in range(24)),
    ]
    played["lost"] = [one._replace(measures=blind)] * 2
    notes = regress(played).notes
    assert (
        f"odd is left out: of its 30 episodes 6 have all three shares, and these are {verdict}"
        in notes
    )
    assert "lost is left out: none of its 2 episodes has all three shares" in notes
    assert "always" not in str(notes)


def test_few_cases_are_told() -> None:
    (note,) = regress(outcomes(drawn(45, 0))).notes
    assert note == "with fewer than 50 cases the standard errors tend to be too small"


def changed(
    observations: Sequence[JudgedEpisode], place: int, values: Sequence[float]
) -> list[JudgedEpisode]:
    found = []
    for each, new in zip(observations, values, strict=True):
        shares = list(each.shares)
        shares[place] = new
        found.append(replace(each, shares=(shares[0], shares[1], shares[2])))
    return found


WHOLE = drawn(60, 0)


@pytest.mark.parametrize(
    ("observations", "problem"),
    [
        ([], "no episode has all three shares"),
        (
            [each for each in WHOLE if each.right],
            "every model is right in all of its episodes that have all three shares, or in none",
        ),
        (drawn(6, 1), r"\d cases are too few for 6 coefficients with errors clustered by case"),
        (
            changed(WHOLE, 0, [0.5] * len(WHOLE)),
            "singular: critical share is the same in all episodes of a model$",
        ),
        (
            changed(WHOLE, 1, [1 - each.shares[0] for each in WHOLE]),
            (
                "singular: noise share is the same in all episodes of a model, or follows from "
                "critical"
            ),
        ),
        (
            changed(WHOLE, 2, [float(each.right) for each in WHOLE]),
            "the shares part right from wrong episodes",
        ),
    ],
)
def test_what_cannot_be_fitted_is_told(observations: list[JudgedEpisode], problem: str) -> None:
    found = regress(outcomes(observations))
    assert re.search(problem, found.problem), found.problem
    assert found.effects == ()
    assert [row[1:3] for row in rows(found)] == [("–", "–")] * 3


# ---- beside the paper's, in compare


def shown(runs: Sequence[Run], path: Path) -> tuple[str, str]:
    console = Console(file=StringIO(), width=80)
    compare(runs, path, console, apart=True)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue(), path.read_text()


@pytest.mark.long
def test_compare_shows_it_beside_the_papers(tmp_path: Path) -> None:
    runs = [
        example_run.make(tmp_path / name, cases=60, steps=6, seed=k)
        for k, name in enumerate(("one", "two"))
    ]
    found = regress({run.name: run.outcomes("trained") for run in runs})
    assert len(found.effects) == 3
    terminal, page = shown(runs, tmp_path / "c.html")
    for text in (terminal, page):
        assert found.rests_on in " ".join(text.split())
        for row in rows(found):
            assert all(cell.replace("<", "&lt;") in text or cell in text for cell in row), row
        assert "9.155 (2.077)" in text
    assert "N&nbsp;=&nbsp;324" in page


def test_compare_says_in_a_line_why_there_is_none(tmp_path: Path) -> None:
    runs = [
        Run.create(tmp_path / name, {"method": "craft", "cases": "clinic:s", "seed": 0}, {})
        for name in "ab"
    ]
    for run in runs:
        run.write(
            replace(example_run.record(index, "trained", 0, 0), correct=index > 1)
            for index in range(4)
        )
    terminal, page = shown(runs, tmp_path / "c.html")
    said = " ".join(terminal.split())
    assert (
        "what success goes with (logistic regression): none, 4 cases are too few for 5 coefficients"
        in said
    )
    assert "No regression: " in page
    assert "Traceback" not in said


@pytest.mark.long
def test_statsmodels_loads_only_for_a_fit() -> None:
    code = "import sys, workup.cli.app, workup.report; sys.exit('statsmodels' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_papers_figures_are_as_printed() -> None:
    assert list(regression.PAPER) == list(regression.SHARES) == list(TRUTH)
    assert [*regression.PAPER.values()] == [
        ("9.155 (2.077)", "< 0.001"),
        ("−1.706 (1.058)", "0.107"),
        ("1.479 (0.838)", "0.077"),
    ]


def test_without_the_library_the_page_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything else of a comparison needs no statsmodels."""
    played = outcomes(drawn(45, 0))
    assert regress(played).effects
    for name in [name for name in sys.modules if name.partition(".")[0] == "statsmodels"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "statsmodels", None)
    found = regress(played)
    assert found.effects == ()
    assert found.problem.startswith("statsmodels is not installed; type: ")
    assert install("regression") in found.problem
