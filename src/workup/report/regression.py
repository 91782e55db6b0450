"""A logistic regression of success over episodes, beside the paper's (CRAFT, Sec. 4.3, Table 2).

log odds(right) = intercept + β₁·critical + β₂·noise + β₃·coverage + one indicator for every model
but the first. Several models play the same cases, so the standard errors are clustered by case. The
fit is statsmodels'.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workup.core.errors import UserError
from workup.core.extras import wanted
from workup.core.text import several
from workup.report.tables import chance
from workup.runs import Outcome
from workup.runs.estimates import value
from workup.runs.words import DASH, decimal

Floats = NDArray[np.float64]

SHARES = {"critical": "critical share", "noise": "noise share", "coverage": "coverage"}
PAPER = {
    "critical": ("9.155 (2.077)", "< 0.001"),
    "noise": ("−1.706 (1.058)", "0.107"),
    "coverage": ("1.479 (0.838)", "0.077"),
}
"""CRAFT's Table 2 as printed: coefficient (standard error) and p, N = 324."""

FEW = 50
"""Below this many cases clustered standard errors tend to be too small.

Cameron & Miller 2015, Sec. VI."""


@dataclass(frozen=True, slots=True)
class JudgedEpisode:
    """One judged episode: its model, case and verdict, and its shares in [0, 1] as in `SHARES`."""

    model: str
    case: str
    right: bool
    shares: tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Effect:
    """One share's coefficient: the change of the log odds of success from share 0 to share 1.

    `p` is two-sided, of Wald's z test.
    """

    share: str
    coefficient: float
    error: float
    p: float


@dataclass(frozen=True, slots=True)
class Regression:
    """The effects in the order of `SHARES`, and their data.

    Without effects, `problem` says why there are none. `notes` say what was left out, and what
    limits the figures.
    """

    effects: tuple[Effect, ...]
    episodes: int
    cases: int
    models: int
    problem: str = ""
    notes: tuple[str, ...] = ()

    @property
    def rests_on(self) -> str:
        """ "412 episodes of 120 cases by 4 models" """
        parts = ((self.episodes, "episode"), (self.cases, "case"), (self.models, "model"))
        return "{} of {} by {}".format(*(several(*part) for part in parts))


class _Unfit(Exception):
    """There is no such regression; the message says why."""


def regress(played: Mapping[str, Sequence[Outcome]]) -> Regression:
    """The regression over all judged episodes of `played` in which every share is defined.

    `played` is model → its outcomes. A model that is right in every one of these episodes, or in
    none, has no finite indicator. It is left out, and a note says so; the shares' coefficients do
    not change. An episode that found nothing lacks a share, so such a model may well be wrong in
    most of what it played.
    """
    everything = [
        _observation(model, each) for model, outcomes in played.items() for each in outcomes
    ]
    complete = [each for each in everything if isinstance(each, JudgedEpisode)]
    reasons = Counter(each for each in everything if isinstance(each, str))
    notes = [
        f"{several(count, 'episode')} {reason} left out"
        for reason, count in sorted(reasons.items())
    ]
    verdicts = {model: [each.right for each in complete if each.model == model] for model in played}
    constant = [model for model, found in verdicts.items() if len(set(found)) < 2]
    if complete:
        notes += [_constant(model, verdicts[model], len(played[model])) for model in constant]
    used = [each for each in complete if each.model not in constant]
    cases, models = {each.case for each in used}, {each.model for each in used}
    size = (len(used), len(cases), len(models))
    try:
        if not complete:
            raise _Unfit("no episode has all three shares")
        if not used:
            raise _Unfit(
                "every model is right in all of its episodes that have all three shares, or in none"
            )
        effects = fit(used)
    except _Unfit as problem:
        return Regression((), *size, problem=str(problem), notes=tuple(notes))
    few = f"with fewer than {FEW} cases the standard errors tend to be too small"
    return Regression(effects, *size, notes=(*notes, few) if len(cases) < FEW else tuple(notes))


def fit(observations: Sequence[JudgedEpisode]) -> tuple[Effect, ...]:
    """Maximum likelihood, and the covariance clustered by case.

    The correction is statsmodels': G/(G − 1) · (N − 1)/(N − k), with G cases, N episodes, k
    coefficients. Raises _Unfit if the coefficients are not determined or not finite.
    """
    names, design = _design(observations)
    right = np.array([each.right for each in observations], dtype=float)
    numbers = {
        case: number
        for number, case in enumerate(dict.fromkeys(each.case for each in observations))
    }
    if len(numbers) <= len(names):
        raise _Unfit(
            f"{len(numbers)} cases are too few for {len(names)} coefficients with errors "
            "clustered by case"
        )
    _check_rank(names, design)
    if separable(design, right):
        raise _Unfit(
            "the shares part right from wrong episodes: no finite coefficients are the likeliest"
        )
    logit = _statsmodels()
    groups = np.array([numbers[each.case] for each in observations])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the next lines report what it would warn of
        found = logit(right, design).fit(disp=0, cov_type="cluster", cov_kwds={"groups": groups})
    if not (found.mle_retvals["converged"] and np.isfinite(found.bse).all()):
        raise _Unfit("the likelihood has no maximum that could be found")
    table = {
        name: column
        for name, *column in zip(names, found.params, found.bse, found.pvalues, strict=True)
    }
    return tuple(Effect(share, *map(float, table[share])) for share in SHARES)


def _statsmodels() -> Any:
    """Its class of logistic regressions, which takes a second to load."""
    try:
        return wanted("statsmodels.discrete.discrete_model").Logit
    except UserError as missing:
        raise _Unfit(str(missing)) from missing


def separable(design: Floats, right: Floats) -> bool:
    """Whether a line separates right from wrong; points may be on the line.

    Then the likelihood has no finite maximum. `design` is (episodes, coefficients) of full rank,
    `right` 0 or 1. A linear programme decides (Konis 2007, "Linear programming algorithms for
    detecting separated data in binary logistic regression models"). If nothing is separated, only
    coefficients of 0 keep every episode on its side; else the largest go to their bound of 1.
    """
    from scipy.optimize import linprog

    sided = design * (2 * right - 1)[:, None]
    found = linprog(-sided.sum(0), A_ub=-sided, b_ub=np.zeros(len(sided)), bounds=(-1, 1))
    return bool(np.abs(found.x).max() > 0.5)


def rows(found: Regression) -> list[tuple[str, str, str, str, str]]:
    """For a table: share, coefficient (standard error), p, and the paper's two."""
    ours = {
        each.share: (f"{decimal(each.coefficient, 3)} ({each.error:.3f})", chance(each.p))
        for each in found.effects
    }
    return [(name, *ours.get(share, (DASH, DASH)), *PAPER[share]) for share, name in SHARES.items()]


def _observation(model: str, outcome: Outcome) -> JudgedEpisode | str:
    """The episode, or why it cannot be used."""
    verdict = value(outcome, "accuracy")
    if verdict is None:
        return "that failed or were not judged"
    critical, noise, coverage = (value(outcome, share) for share in SHARES)
    if critical is None or noise is None or coverage is None:
        lacking = [name for share, name in SHARES.items() if value(outcome, share) is None]
        return f"without {' and '.join(lacking)}"
    return JudgedEpisode(model, outcome.case_id, bool(verdict), (critical, noise, coverage))


def _constant(model: str, right: Sequence[bool], played: int) -> str:
    """Why a model is left out that is always right, or never, where its episodes are complete."""
    if not right:
        return f"{model} is left out: none of its {played:,} episodes has all three shares"
    verdict = f"all {'right' if right[0] else 'wrong'}"
    if len(right) == played:
        return f"{model} is left out: its {played:,} episodes are {verdict}"
    return (
        f"{model} is left out: of its {played:,} episodes {len(right):,} have all three shares, "
        f"and these are {verdict}"
    )


def _design(observations: Sequence[JudgedEpisode]) -> tuple[list[str], Floats]:
    """Names and columns: the intercept, the models' indicators, the shares."""
    models = list(dict.fromkeys(each.model for each in observations))
    indicators = [[float(each.model == model) for model in models[1:]] for each in observations]
    rows = [(1.0, *own, *each.shares) for own, each in zip(indicators, observations, strict=True)]
    return ["", *(f"model {model}" for model in models[1:]), *SHARES], np.array(rows)


def _check_rank(names: Sequence[str], design: Floats) -> None:
    """Every share has to bring something that the models and the shares before it do not."""
    for column in range(len(names) - len(SHARES), len(names)):
        if np.linalg.matrix_rank(design[:, : column + 1]) <= column:
            share = SHARES[names[column]]
            earlier = [SHARES[name] for name in SHARES if name in names[:column]]
            others = f", or follows from {' and '.join(earlier)}" if earlier else ""
            raise _Unfit(
                f"the design is singular: {share} is the same in all episodes of a model{others}"
            )
