"""Figures of a whole run, which a claim compares where no single patient has a value.

A claim names one of them as `of_run`, or `area`, the mean over the training curve, which
`decided` computes. Each run has one number, so that the interval is over seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from workup.metrics.known import metric
from workup.metrics.metric import ANY, COUNT, SHARE
from workup.report import dynamics, regression
from workup.report.curves import Curve
from workup.runs import Outcome
from workup.runs.words import number

# A rise of .001 a step is written as .1 in 100 steps, a deviation of .06 as 6 hundredths.
PER = 100
EDGE = 0.02


@dataclass(frozen=True)
class RunFigure:
    """`title` says what is compared, with {} for the measure.

    `of` takes the reinforcement steps of a run, the outcomes of its trained policy's evaluation,
    and the measure's name. It returns NaN, or the reason, where the figure is undefined. Only
    `measures` have it; empty means all. `range` is (lowest, highest) of what a claim can be about:
    a curve rises less than another one only if that one rises.
    """

    title: str
    of: Callable[[Curve, Sequence[Outcome], str], float | str]
    measures: Sequence[str] = ()
    range: tuple[float, float] = ANY


def slope(curve: Curve, _: Sequence[Outcome], name: str) -> float:
    """By how much the measure rises in 100 steps, by least squares (C-MIG, Table 8)."""
    return PER * _trend(curve, name).slope


def fit(curve: Curve, _: Sequence[Outcome], name: str) -> float:
    """R² ∈ [0, 1]: the share of the measure's variance that its line explains (C-MIG, Table 11)."""
    return _trend(curve, name).r2


def late_deviation(curve: Curve, _: Sequence[Outcome], name: str) -> float | str:
    """The standard deviation over the last 30 % of the logged steps, × 100 (C-MIG, Table 9).

    A share that ends within EDGE of 0 or 1 has none: it cannot vary there. Example: a policy that
    has given up searching is right in .00, which is steady and says nothing of its training.
    """
    trend = _trend(curve, name)
    if metric(name).share and (trend.late_mean < EDGE or trend.late_mean > 1 - EDGE):
        return f"{name} ends at {number(name, trend.late_mean)}, where it cannot vary"
    return PER * trend.std


def correlation(curve: Curve, _: Sequence[Outcome], name: str) -> float:
    """Pearson's r of accuracy and the measure over the steps (C-MIG, Table 2).

    Both are smoothed by a moving average over a tenth of the steps.
    """
    accuracy, other = (dynamics.values(curve, each) for each in ("accuracy", name))
    return dynamics.together("accuracy", name, accuracy, other, curve.wide).smoothed


def lead(_: Curve, outcomes: Sequence[Outcome], name: str) -> float | str:
    """The measure's coefficient less the greatest size of another's (CRAFT, Table 2).

    The coefficients are those of `regression.regress` over the trained policy's evaluation: log
    odds of a right diagnosis, for a share of 1 instead of 0. Example: 2 for the measure, −5 and 1
    for others: the lead is −3.
    """
    fitted = regression.regress({"policy": outcomes})
    if not fitted.effects:
        return fitted.problem
    found = {each.share: each.coefficient for each in fitted.effects}
    return found.pop(name) - max(map(abs, found.values()))


def _trend(curve: Curve, name: str) -> dynamics.Trend:
    return dynamics.trend(name, dynamics.values(curve, name))


FIGURES: Mapping[str, RunFigure] = {
    "slope": RunFigure("rise of {} in 100 steps", slope, range=COUNT),
    "fit": RunFigure("R² of the trend of {}", fit, range=SHARE),
    "late deviation": RunFigure("deviation of {} in the last steps, in hundredths", late_deviation),
    "correlation": RunFigure(
        "correlation of accuracy and {} over training", correlation, range=(-1, 1)
    ),
    "lead": RunFigure(
        "coefficient of {} less the greatest size of another", lead, [*regression.SHARES]
    ),
}


def figure(name: str, curve: Curve, outcomes: Sequence[Outcome], measure: str) -> float | str:
    """The figure of `FIGURES` of this name, or why the run has none."""
    found = FIGURES[name].of(curve, outcomes, measure)
    if isinstance(found, float) and math.isnan(found):
        return f"{measure} has no {name}: too few steps logged it, or figures never changed"
    return found
