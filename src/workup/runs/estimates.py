"""Metrics over episodes: the mean with its 95 % interval.

Of one run the interval is by case. Of several runs that differ by their seed alone, a figure is the
mean of the seeds' own figures, each over the episodes of its run in which the metric is defined.
So it lies between them, and its interval covers both patients and seeds (`core.crossed`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import chain
from statistics import mean, stdev
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from workup.core.crossed import Crossed, crossed, crossed_difference
from workup.core.episode import Ending
from workup.core.statistics import (
    SHARE,
    Bounds,
    Clustered,
    Estimate,
    case_means,
    interval,
    macro,
    paired,
)
from workup.core.text import unsteering
from workup.metrics.calibration import CONFIDENCE, ECE, SUREST_RIGHT, by_chance, gaps
from workup.metrics.known import ALWAYS, metric
from workup.runs.judged import measured_in
from workup.runs.record import Outcome
from workup.runs.words import plus_minus

Seeds = Mapping[str, Sequence[Outcome]]  # seed → the outcomes of its run
MACRO = "macro_"  # before the name of what is averaged over classes of cases


def ece_by_chance(seeds: Seeds, seed: int) -> dict[str, float]:
    """For the entry of these outcomes: the ECE that chance alone exceeds once in twenty times.

    Empty where no confidence is known.
    """
    parts = []
    for outcomes in seeds.values():
        known = [(value(each, CONFIDENCE.name), each.case_id) for each in outcomes]
        sure = [(confidence, case) for confidence, case in known if confidence is not None]
        parts += [([each for each, _ in sure], [case for _, case in sure])] if sure else []
    return {"ece_by_chance": by_chance(parts, seed)} if parts else {}


def value(outcome: Outcome, name: str) -> float | None:
    """One episode's value of a metric; None if it is undefined or the episode failed.

    "accuracy" is the verdict, "return" the score, and every other metric a measure.
    """
    if outcome.ending == Ending.FAILED:
        return None
    name, _ = _averaged(name)
    if name == "accuracy":
        return None if outcome.correct is None else float(outcome.correct)
    if name == "return":
        return outcome.total
    return outcome.measures.get(name, float(outcome.questions) if name == "questions" else None)


def estimate(outcomes: Sequence[Outcome], metric: str, seed: int = 0) -> Estimate:
    """A metric over episodes, with its interval by case."""
    values, cases = _columns(outcomes, metric)
    if _averaged(metric)[1]:
        classes = [getattr(outcome, _averaged(metric)[1]) for outcome in outcomes]
        return macro(values, cases, classes, bounds=SHARE, seed=seed)
    return interval(values, cases, bounds=bounds(metric), seed=seed)


def pooled(seeds: Seeds, metric: str, seed: int = 0) -> Estimate:
    """The mean of the seeds' figures, with its interval over patients and seeds (`Crossed`).

    Each is the figure of `estimate`. Every seed weighs the same; one without a defined value is
    left out. `n` counts cases, `missing` those without a value in any seed. One seed alone has
    `estimate`, over its episodes and by case.
    """
    if len(seeds) == 1:
        return estimate(next(iter(seeds.values())), metric, seed)
    classes = _class_of(seeds.values(), metric)
    return crossed(_parts(seeds, metric), classes=classes, bounds=bounds(metric))


def difference(
    ours: Sequence[Outcome], theirs: Sequence[Outcome], metric: str, seed: int = 0
) -> Estimate:
    """Ours − theirs over the cases that both saw, with its interval by case."""
    classes = _class_of([ours], metric)
    sides = (_columns(side, metric) for side in (ours, theirs))
    return paired(*sides, classes=classes, bounds=bounds(metric), seed=seed)


def pooled_difference(ours: Seeds, theirs: Seeds, metric: str, seed: int = 0) -> Estimate:
    """Ours − theirs over the cases that both saw, with its interval over patients and seeds.

    It is the mean of the differences of the seeds that both have, each of them paired by case as
    `difference` is. Sides that have no seed in common are paired by case alone. `n` counts cases;
    `missing` those with a value that has no counterpart in any seed. Where one run stands against
    one, as with a single seed that both have, it is their `difference`, with its interval by case.
    """
    shared = common(ours, theirs)
    if len(shared) == 1 or len(ours) == len(theirs) == 1:
        one, other = (
            side[shared[0]] if shared else next(iter(side.values())) for side in (ours, theirs)
        )
        return difference(one, other, metric, seed)
    return crossed_difference(
        *(_parts(side, metric) for side in (ours, theirs)),
        classes=_class_of(chain(ours.values(), theirs.values()), metric),
        bounds=bounds(metric),
    )


def paired_means(ours: Seeds, theirs: Seeds, metric: str) -> tuple[float, float]:
    """The means of both sides that `pooled_difference` is the difference of.

    They are means over the cases for which both sides have a value, seed by seed where they have
    seeds in common. A case weighs the same however many episodes it has. Sides with common seeds
    whose cases are all different stand with all of their own.
    """
    sides = [
        {seed: case_means(*part) for seed, part in _parts(side, metric).items()}
        for side in (ours, theirs)
    ]
    one, other = sides
    shared = common(one, other)
    met = [dict.fromkeys(chain.from_iterable(side.values())) for side in sides]
    known = [case for case in met[0] | met[1] if shared or all(case in each for each in met)]
    kept = {seed: [case for case in one[seed] if case in other[seed]] for seed in shared}
    if not any(kept.values()):
        kept = dict.fromkeys((*one, *other), known)
    parts = [
        {key: ([side[key].get(case) for case in kept[key]], kept[key]) for key in shared or side}
        for side in sides
    ]
    classes = _class_of(chain(ours.values(), theirs.values()), metric)
    mine, their = (crossed(part, classes=classes).mean for part in parts)
    return mine, their


def covers_seeds(found: Estimate) -> bool:
    """Whether its interval speaks of other seeds too, and not of other patients alone."""
    return isinstance(found, Crossed) and found.seeds > 1


def common(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """The seeds that both sides have, in our order."""
    return [seed for seed in ours if seed in theirs]


def _parts(seeds: Seeds, metric: str) -> dict[str, Clustered]:
    return {seed: _columns(outcomes, metric) for seed, outcomes in seeds.items()}


def _class_of(runs: Iterable[Sequence[Outcome]], metric: str) -> dict[Hashable, Hashable] | None:
    """The class of every case; None of a plain mean."""
    classes = _averaged(metric)[1]
    if not classes:
        return None
    return {outcome.case_id: getattr(outcome, classes) for run in runs for outcome in run}


def bounds(name: str) -> Bounds | None:
    """What the intervals of a metric keep within; None for one that is no share."""
    return SHARE if metric(name).share else None


def _averaged(name: str) -> tuple[str, str]:
    """(what is averaged, over which classes of cases); a plain mean has no classes."""
    inner = name.removeprefix(MACRO)
    classes = metric(inner).macro if inner != name else ""
    return (inner, classes) if classes else (name, "")


def _columns(outcomes: Sequence[Outcome], metric: str) -> tuple[list[float | None], list[str]]:
    cases = [outcome.case_id for outcome in outcomes]
    if metric == ECE.name:  # what an episode adds to it depends on the others
        sure, right = (
            [value(outcome, each.name) for outcome in outcomes]
            for each in (CONFIDENCE, SUREST_RIGHT)
        )
        return gaps(sure, right, cases), cases
    return [value(outcome, metric) for outcome in outcomes], cases


def metrics_of(outcomes: Sequence[Outcome]) -> list[str]:
    """The headline metrics, then other measures, then the return if episodes were scored."""
    extra = [name for name in measured_in(outcomes) if name not in ALWAYS]
    extra += [ECE.name] if CONFIDENCE.name in extra else []
    macros = [f"{MACRO}{name}" for name in extra if metric(name).macro]
    scored = any(outcome.total is not None for outcome in outcomes)
    return [*ALWAYS, *extra, *macros, *(["return"] if scored else [])]


def over_repeats(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Accuracy of each repeat (the k-th episode of every case), their mean and sample SD (CR-11).

    Empty for fewer than two repeats that have a verdict.
    """
    verdicts: dict[int, list[float]] = {}
    for outcome in outcomes:
        if (found := value(outcome, "accuracy")) is not None:
            verdicts.setdefault(outcome.sample, []).append(found)
    each = [mean(verdicts[k]) for k in sorted(verdicts)]
    if len(each) < 2:
        return {}
    return {"repeats_accuracy": {"each": each, "mean": mean(each), "sd": stdev(each)}}


def contrast(outcomes: Mapping[str, Sequence[Outcome]], seed: int) -> Table:
    """Two doctors side by side, with the paired differences of the second from the first.

    A table for a terminal or a notebook.
    """
    (other, theirs), (doctor, ours) = outcomes.items()
    table = Table(box=SIMPLE_HEAD)
    for heading in ("", other, doctor, "difference"):
        title = Text(unsteering(heading))
        table.add_column(title, justify="right" if heading else "left", no_wrap=True)
    for name in metrics_of(ours):
        estimates = [estimate(side, name, seed) for side in (theirs, ours)]
        estimates.append(difference(ours, theirs, name, seed))
        table.add_row(name, *(plus_minus(name, each) for each in estimates))
    return table
