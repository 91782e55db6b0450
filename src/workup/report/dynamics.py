"""A training run in figures: trends, late-stage volatility, correlations (C-MIG CM-17).

These are the paper's Tables 2 and 8 to 11. All of it comes from metrics.jsonl: one value per step
of the stages that a reward drove.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from workup.core.statistics import ROUNDING
from workup.metrics.known import metric
from workup.report.curves import HEIGHT, NOISE, Curve
from workup.report.plotting import COLOURS, Drawing, Floats, figure, panel, smooth, thin, tidy
from workup.report.sheets import Sheet
from workup.runs.words import DASH

LATE = 0.3
"""The late stage: the last 30 % of the steps, rounded up."""

PAIRS = ("doc_hit", "coverage", "recall")
"""What accuracy is correlated with, where it was logged: how much of what was needed was found."""

ROWS = ("accuracy", "doc_hit", "coverage", "reward", "entropy", "grad_norm", "length")
PART = "part "
PLOTTED = ("entropy", "grad_norm", "length", "doc_hit")


@dataclass(frozen=True, slots=True)
class Trend:
    """One metric over training: its mean, the least-squares line over the steps, its late stage.

    `slope` is per step; `r2` is the share of the variance that the line explains, within [0, 1].
    `std` is the sample standard deviation of the late stage (its volatility); `cv` is its
    population standard deviation over its absolute mean. A value is NaN if too few steps, a
    constant or a mean of 0 leave it undefined.
    """

    name: str
    steps: int
    mean: float
    slope: float
    r2: float
    late_mean: float
    std: float
    population_std: float
    cv: float


@dataclass(frozen=True, slots=True)
class Correlation:
    """Pearson's r of two metrics over the steps that have both, as logged and smoothed.

    The smoothing is over `window` steps.
    """

    one: str
    other: str
    steps: int
    r: float
    smoothed: float
    window: int


def trend(name: str, values: Sequence[float | None]) -> Trend:
    """The trend of a metric; `values` has one entry per step, None where nothing was logged."""
    steps, known = _known(values)
    slope, r2 = line(steps, known)
    last = late(known)
    return Trend(
        name,
        len(known),
        _mean(known),
        slope,
        r2,
        _mean(last),
        float(last.std(ddof=1)) if len(last) > 1 else math.nan,
        float(last.std()) if len(last) else math.nan,
        float(last.std() / abs(last.mean())) if len(last) and last.mean() else math.nan,
    )


def together(
    one: str,
    other: str,
    values: Sequence[float | None],
    others: Sequence[float | None],
    window: int,
) -> Correlation:
    """The correlation of two metrics; smoothing removes the noise of single batches from both."""
    pairs = [(a, b) for a, b in zip(values, others, strict=True) if a is not None and b is not None]
    a, b = np.array(pairs, dtype=float).reshape(-1, 2).T
    smoothed = (
        pearson(*(smooth(column.tolist(), window) for column in (a, b))) if pairs else math.nan
    )
    return Correlation(one, other, len(pairs), pearson(a, b), smoothed, window)


def pearson(x: Floats, y: Floats) -> float:
    """r ∈ [−1, 1]; NaN for fewer than two steps or a constant."""
    if len(x) < 2 or constant(x) or constant(y):
        return math.nan
    from scipy.stats import pearsonr  # takes half a second to load

    return float(pearsonr(x, y).statistic)


def constant(values: Floats) -> bool:
    """Whether the values are equal but for their rounding."""
    return float(np.ptp(values)) <= ROUNDING * float(np.abs(values).max())


def line(x: Floats, y: Floats) -> tuple[float, float]:
    """(slope, R²) of the least-squares line; NaN below two steps; R² is NaN for a constant too."""
    if len(x) < 2:
        return math.nan, math.nan
    if constant(y):
        return 0.0, math.nan
    from scipy.stats import linregress

    found = linregress(x, y)
    return float(found.slope), float(found.rvalue) ** 2


def late(values: Floats) -> Floats:
    """The last 30 % of the values, rounded up."""
    return values[len(values) - math.ceil(LATE * len(values)) :]


def trends(curve: Curve) -> list[Trend]:
    """Every metric of `ROWS` that was logged, and every part of the reward.

    Metrics that were always 0 are left out.
    """
    found = {name: values(curve, name) for name in ROWS} | dict(parts(curve))
    return [trend(name, column) for name, column in found.items() if any(column)]


def correlations(curve: Curve) -> list[Correlation]:
    """Accuracy with each of `PAIRS` that was logged."""
    accuracy = values(curve, "accuracy")
    pairs = [(name, values(curve, name)) for name in PAIRS]
    found = [together("accuracy", name, accuracy, column, curve.wide) for name, column in pairs]
    return [pair for pair in found if pair.steps > 1]


def values(curve: Curve, name: str) -> list[float | None]:
    """One value per step; "length" is the doctor's tokens per episode.

    "part NAME" is a part of the reward, as `parts` has it; None where no step has it.
    """
    if name.startswith(PART):
        return dict(parts(curve)).get(name) or [None] * len(curve.lines)
    if name != "length":
        return curve.values(name)
    pairs = zip(curve.values("tokens"), curve.values("episodes"), strict=True)
    return [
        tokens / episodes if tokens is not None and episodes else None for tokens, episodes in pairs
    ]


def parts(curve: Curve) -> Iterator[tuple[str, list[float | None]]]:
    """The parts of the reward, by "part NAME"; 0 in a step whose episodes all lack it."""
    logged: list[Mapping[str, Any]] = [step.get("parts") or {} for step in curve.lines]
    for name in dict.fromkeys(name for step in logged for name in step):
        yield f"{PART}{name}", [float(step.get(name, 0.0)) for step in logged]


def table(curve: Curve) -> Sheet:
    """Every trend of a run, a row each."""
    return Sheet(
        ["per step", "mean", "slope", "R²", "late mean", "late σ", "late CV"],
        [[metric(found.name).title, *cells(found)] for found in trends(curve)],
    )


def cells(found: Trend) -> list[str]:
    """For a table: mean, slope per 100 steps, R², and the late stage's mean, deviation and CV.

    The standard deviation is the sample's; that of the gradient norm is the population's, as in the
    paper's figures.
    """
    std = found.population_std if found.name == "grad_norm" else found.std
    return [
        plain(value)
        for value in (found.mean, 100 * found.slope, found.r2, found.late_mean, std, found.cv)
    ]


COMPARED = (
    "r",
    "r smoothed",
    "entropy slope",
    "entropy R²",
    "σ accuracy",
    "σ Doc_Hit",
    "norm CV",
    "tokens",
)


def compared(curve: Curve) -> list[str]:
    """One run's row beside others', by `COMPARED`.

    r is that of accuracy with the first of `PAIRS` that was logged.
    """
    by_name = {found.name: found for found in trends(curve)}
    pair = next(iter(correlations(curve)), None)
    entropy, norm, length = (by_name.get(name) for name in ("entropy", "grad_norm", "length"))
    figures = [
        (pair.r, pair.smoothed) if pair else (math.nan, math.nan),
        (100 * entropy.slope, entropy.r2) if entropy else (math.nan, math.nan),
        [by_name[name].std if name in by_name else math.nan for name in ("accuracy", "doc_hit")],
        [norm.cv if norm else math.nan, length.late_mean if length else math.nan],
    ]
    return [plain(value) for values in figures for value in values]


def plain(value: float) -> str:
    """Three significant digits; a dash for what is undefined, 0 for what is left of rounding."""
    if math.isnan(value):
        return DASH
    return "0" if abs(value) < NOISE else f"{value:.3g}".replace("-", "−")


@figure
def drawn(curve: Curve) -> Drawing | None:
    """Entropy, gradient norm, response length and Doc_Hit over training.

    Each is smoothed, with the line of its trend; the late stage is shaded.
    """
    panels = []
    for name in PLOTTED:
        column = values(curve, name)
        if sum(value is not None for value in column) > 1:
            ax = panel(metric(name).title[:1].upper() + metric(name).title[1:], HEIGHT)
            _draw(ax, column, curve.window)
            tidy(ax)
            ax.set_xlabel("step")
            panels.append(ax)
    return Drawing("Training dynamics", panels) if panels else None


def _draw(ax: Axes, column: Sequence[float | None], window: int) -> None:
    index = thin(len(column))
    ax.plot(index + 1, smooth(column, window)[index], color=COLOURS["after"], linewidth=1.6)
    steps, known = _known(column)
    slope, _ = line(steps, known)
    ends = steps[[0, -1]]
    ax.plot(
        ends,
        known.mean() + slope * (ends - steps.mean()),
        color=COLOURS["muted"],
        linestyle=(0, (4, 2)),
        linewidth=1,
    )
    ax.axvspan(late(steps)[0], steps[-1], color=COLOURS["grid"], alpha=0.35, linewidth=0)


def _known(column: Sequence[float | None]) -> tuple[Floats, Floats]:
    """(steps counted from 1, values) of the steps that have one."""
    pairs = [(step, value) for step, value in enumerate(column, start=1) if value is not None]
    steps, known = np.array(pairs, dtype=float).reshape(-1, 2).T
    return steps, known


def _mean(column: Floats) -> float:
    return float(column.mean()) if len(column) else math.nan
