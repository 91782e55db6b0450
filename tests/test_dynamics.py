"""Training dynamics against numpy's own least squares, and on the report of a run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import example_run
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from workup.report import build, dynamics
from workup.report.compare import compare
from workup.report.curves import Curve
from workup.report.dynamics import late, line, pearson, plain, together, trend
from workup.runs import Run

pytestmark = pytest.mark.drawn

numbers = st.floats(-1e3, 1e3).map(lambda value: round(value, 3))
columns = st.lists(numbers, min_size=2, max_size=60).filter(lambda values: np.ptp(values) > 0.01)


@given(st.lists(st.tuples(numbers, numbers), min_size=2, max_size=60))
def test_pearson_is_numpys(pairs: list[tuple[float, float]]) -> None:
    x, y = np.array(pairs).T
    if np.ptp(x) > 0.01 and np.ptp(y) > 0.01:
        assert pearson(x, y) == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-9)
    elif not np.ptp(x) or not np.ptp(y):
        assert math.isnan(pearson(x, y))


@given(columns)
def test_the_trend_is_numpys_least_squares(values: list[float]) -> None:
    found = trend("x", values)
    steps = np.arange(1, len(values) + 1)
    slope, intercept = np.polyfit(steps, values, 1)
    unexplained = np.square(np.array(values) - slope * steps - intercept).sum()
    assert found.slope == pytest.approx(slope, abs=1e-9)
    assert found.r2 == pytest.approx(
        1 - unexplained / np.square(values - np.mean(values)).sum(), abs=1e-9
    )
    last = np.array(values)[-math.ceil(0.3 * len(values)) :]
    assert (found.mean, found.late_mean) == pytest.approx((np.mean(values), np.mean(last)))
    assert found.population_std == pytest.approx(np.std(last))
    if len(last) > 1:
        assert found.std == pytest.approx(np.std(last, ddof=1))
    if last.mean():
        assert found.cv == pytest.approx(np.std(last) / abs(np.mean(last)))


@given(columns, st.data())
def test_steps_that_logged_nothing_are_left_out_and_keep_their_place(
    values: list[float], data: st.DataObject
) -> None:
    holes = data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values)))
    kept = [
        (step, value)
        for step, (value, hole) in enumerate(zip(values, holes, strict=True), start=1)
        if not hole
    ]
    found = trend("x", [None if hole else value for value, hole in zip(values, holes, strict=True)])
    assert found.steps == len(kept)
    if len(kept) > 1 and np.ptp([value for _, value in kept]) > 0.01:
        assert found.slope == pytest.approx(np.polyfit(*zip(*kept, strict=True), 1)[0], abs=1e-9)


@pytest.mark.parametrize(
    ("steps", "size"), [(0, 0), (1, 1), (3, 1), (4, 2), (10, 3), (11, 4), (100, 30), (400, 120)]
)
def test_the_late_stage_is_thirty_per_cent_rounded_up(steps: int, size: int) -> None:
    assert late(np.arange(steps, dtype=float)).tolist() == list(range(steps - size, steps))


def test_what_is_undefined_is_nan() -> None:
    assert all(map(math.isnan, line(np.array([1.0]), np.array([2.0]))))
    slope, r2 = line(np.arange(5.0), np.full(5, 0.1))
    assert slope == 0
    assert math.isnan(r2)
    nothing = trend("x", [None, None])
    assert nothing.steps == 0
    assert all(
        map(
            math.isnan,
            (nothing.mean, nothing.slope, nothing.std, nothing.population_std, nothing.cv),
        )
    )
    assert math.isnan(trend("x", [1.0, -1.0, 1.0, 0.0, 0.0]).cv)
    assert math.isnan(together("a", "b", [None, 1.0], [1.0, None], 3).r)


def test_rounding_is_no_change() -> None:
    steps = np.arange(5.0)
    rounded = np.array([0.3, 0.1 + 0.2, 0.3, 0.1 + 0.2, 0.1 + 0.2])
    assert np.ptp(rounded) > 0
    slope, r2 = line(steps, rounded)
    assert slope == 0
    assert math.isnan(r2)
    assert math.isnan(pearson(steps, rounded))
    assert [plain(value) for value in (1e-18, -1e-17, 1e-9, -0.25)] == ["0", "0", "1e−09", "−0.25"]


def test_smoothing_is_a_moving_mean_of_both() -> None:
    rng = np.random.default_rng(0)
    a, b = (
        np.linspace(0, 1, 50) + rng.normal(0, 1, 50),
        np.linspace(0, 1, 50) + rng.normal(0, 1, 50),
    )
    found = together("accuracy", "doc_hit", a.tolist(), b.tolist(), 5)
    whole = [
        np.array([column[max(0, k - 2) : k + 3].mean() for k in range(50)]) for column in (a, b)
    ]
    assert found.r == pytest.approx(np.corrcoef(a, b)[0, 1])
    assert found.smoothed == pytest.approx(np.corrcoef(*whole)[0, 1])


def lines(steps: int, **more: Any) -> list[dict[str, Any]]:
    rng = np.random.default_rng(1)
    return [
        {
            "stage": "grpo",
            "step": step,
            "reward": float(rng.normal()),
            "accuracy": step / steps,
            "doc_hit": step / steps / 2,
            "entropy": 2 - step / steps,
            "grad_norm": 1 + 0.1 * (step % 2),
            "tokens": 40 * step,
            "episodes": 8,
            "parts": {"doc": 0.01 * step, "none": 0.0},
            **more,
        }
        for step in range(1, steps + 1)
    ]


def test_a_run_is_told_in_the_papers_figures() -> None:
    curve = Curve("run", lines(40))
    found = {row.name: row for row in dynamics.trends(curve)}
    assert list(found) == [
        "accuracy",
        "doc_hit",
        "reward",
        "entropy",
        "grad_norm",
        "length",
        "part doc",
    ]
    assert (found["entropy"].slope, found["entropy"].r2) == pytest.approx((-1 / 40, 1))
    assert found["length"].late_mean == pytest.approx(5 * np.mean(range(29, 41)))
    assert found["part doc"].slope == pytest.approx(0.01)
    (pair,) = dynamics.correlations(curve)
    assert (pair.other, pair.steps) == ("doc_hit", 40)
    assert pair.r == pytest.approx(1)
    norms = [1 + 0.1 * (step % 2) for step in range(29, 41)]
    assert dynamics.cells(found["grad_norm"])[3:] == [
        f"{np.mean(norms):.3g}",
        "0.05",
        f"{np.std(norms) / np.mean(norms):.3g}",
    ]
    row = dict(zip(dynamics.COMPARED, dynamics.compared(curve), strict=True))
    assert (row["r"], row["entropy slope"], row["entropy R²"]) == ("1", "−2.5", "1")
    assert "Training dynamics" in dynamics.drawn(curve)


def test_a_run_that_logged_little_is_told_with_dashes() -> None:
    curve = Curve("run", [{"stage": "grpo", "step": 1, "reward": 1.0}])
    assert dynamics.compared(curve) == ["–"] * len(dynamics.COMPARED)
    assert dynamics.drawn(curve) == ""
    assert [row.name for row in dynamics.trends(curve)] == ["reward"]
    assert dynamics.trends(Curve("run", [])) == []


def test_runs_are_compared_by_their_dynamics(tmp_path: Path) -> None:
    runs = [example_run.make(tmp_path / name, cases=5, steps=30) for name in ("one", "two")]
    console = Console(record=True, width=120)
    compare(runs, tmp_path / "page.html", console)
    assert "last 30 % of the steps" in console.export_text()
    assert "norm CV" in (tmp_path / "page.html").read_text()


def test_the_report_has_the_section(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {"method": "cmig", "cases": "clinic:xs", "seed": 0}, {})
    for step in lines(12):
        run.log(step)
    text = build(run).read_text()
    assert text.index("<h2>Transcripts") < text.index("<h2>Training dynamics")
    section = text[text.index("<h2>Training dynamics") : text.index("<h2>Run facts")]
    assert "<td>Doc_Hit</td>" in section
    assert "Pearson r = <b>1</b> over 12 steps" in section
