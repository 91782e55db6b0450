"""summary.json: the headline metrics of every evaluated doctor, with 95 % intervals by case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from workup.episode import Ending
from workup.runs.folder import Outcome, Run
from workup.runs.words import NOT_SHARES, plus_minus
from workup.statistics import LEVEL, SHARE, Bounds, Estimate, interval, macro, paired

HEADLINE = ("accuracy", "macro_accuracy", "questions", "critical", "noise", "coverage")
# means over classes of each class's mean → (what is averaged, whose classes)
MACROS = {"macro_accuracy": ("accuracy", "diagnosis"), "macro_action": ("action", "category")}


def value(outcome: Outcome, metric: str) -> float | None:
    """One episode's value of a metric; None where it is undefined or was not measured, and for a
    failed episode.

    "accuracy" is the verdict, "return" the score, and every other metric a measure.
    """
    if outcome.ending == Ending.FAILED:
        return None
    metric, _ = MACROS.get(metric, (metric, ""))
    if metric == "accuracy":
        return None if outcome.correct is None else float(outcome.correct)
    if metric == "return":
        return outcome.total
    return outcome.measures.get(metric, float(outcome.questions) if metric == "questions" else None)


def estimate(outcomes: Sequence[Outcome], metric: str, seed: int = 0) -> Estimate:
    """A metric over episodes, with its interval by case."""
    values, cases = _columns(outcomes, metric)
    if metric in MACROS:
        return macro(values, cases, _classes(outcomes, metric), bounds=SHARE, seed=seed)
    return interval(values, cases, bounds=_bounds(metric), seed=seed)


def difference(
    ours: Sequence[Outcome], theirs: Sequence[Outcome], metric: str, seed: int = 0
) -> Estimate:
    """Ours − theirs over the cases that both saw, with its interval by case."""
    (values, cases), (others, other_cases) = (_columns(side, metric) for side in (ours, theirs))
    classes: dict[Hashable, Hashable] | None = None
    if metric in MACROS:
        classes = dict(zip(cases, _classes(ours, metric), strict=True))
    bounds = _bounds(metric)
    return paired(values, cases, others, other_cases, classes=classes, bounds=bounds, seed=seed)


def _bounds(metric: str) -> Bounds | None:
    return None if metric in NOT_SHARES else SHARE


def _classes(outcomes: Sequence[Outcome], metric: str) -> list[str]:
    return [getattr(outcome, MACROS[metric][1]) for outcome in outcomes]


def _columns(outcomes: Sequence[Outcome], metric: str) -> tuple[list[float | None], list[str]]:
    return [value(outcome, metric) for outcome in outcomes], [
        outcome.case_id for outcome in outcomes
    ]


def metrics_of(outcomes: Sequence[Outcome]) -> list[str]:
    """The headline metrics, then whatever else was measured, then the return if episodes were
    scored.
    """
    told = {
        *HEADLINE,
        *(ending.name.lower() for ending in Ending),
    }  # endings are counted in their own entry
    extra = dict.fromkeys(
        name for outcome in outcomes for name in outcome.measures if name not in told
    )
    macros = [name for name, (metric, _) in MACROS.items() if metric in extra]
    scored = any(outcome.total is not None for outcome in outcomes)
    return [*HEADLINE, *extra, *macros, *(["return"] if scored else [])]


def summarise(
    run: Run, *, steps: int, seconds: float, calls: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Compute summary.json from the run's episodes, write it, and return it.

    `steps` and `seconds` are the whole run's, over all stages; `calls` what models in supporting
    roles were asked and cost. The run's notes, such as a warning that the policy judges itself, are
    taken over from its configuration.
    """
    head = {
        "name": run.name,
        **{key: run.config.get(key) for key in ("method", "cases", "policy", "seed")},
    }
    size: dict[str, Any] = {"steps": steps, "seconds": round(seconds, 3), "level": LEVEL}
    size |= {"calls": [dict(row) for row in calls]} if calls else {}
    size |= {"notes": list(run.config["notes"])} if run.config.get("notes") else {}
    summary = {
        **head,
        **size,
        "doctors": {doctor: describe(run, doctor) for doctor in run.doctors()},
    }
    run.write_summary(summary)
    return summary


def describe(run: Run, doctor: str) -> dict[str, Any]:
    """One doctor's entry in summary.json: cases, episodes, endings, and every metric as mean, low,
    high, n, missing.
    """
    outcomes, seed = run.outcomes(doctor), seed_of(run)
    endings = Counter(outcome.ending for outcome in outcomes)
    return {
        "cases": len({outcome.case_id for outcome in outcomes}),
        "episodes": len(outcomes),
        "endings": dict(endings.most_common()),
        **over_repeats(outcomes),
        **{metric: estimate(outcomes, metric, seed).as_json() for metric in metrics_of(outcomes)},
    }


def over_repeats(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Accuracy of each repeat (the k-th episode of every case), their mean and sample SD (CR-11);
    nothing for a single one.
    """
    samples = sorted({outcome.sample for outcome in outcomes})
    if len(samples) < 2:
        return {}
    each = [
        mean(v for o in outcomes if o.sample == k and (v := value(o, "accuracy")) is not None)
        for k in samples
    ]
    return {"repeats_accuracy": {"each": each, "mean": mean(each), "sd": stdev(each)}}


def repeats(summary: Mapping[str, Any]) -> list[str]:
    """For a reader: every doctor's accuracy over its repeats."""
    told = [
        (label, doctor["repeats_accuracy"])
        for label, doctor in summary["doctors"].items()
        if "repeats_accuracy" in doctor
    ]
    return [
        f"{label}: accuracy {r['mean']:.3f} ± {r['sd']:.3f} (SD over {len(r['each'])} repeats)"
        for label, r in told
    ]


def seed_of(run: Run) -> int:
    """The seed of the run's resampling."""
    return int(run.config.get("seed") or 0)


def contrast(run: Run, doctor: str, other: str) -> Table:
    """`doctor` beside `other`, with paired differences: a table for a terminal or a notebook."""
    ours, theirs = run.outcomes(doctor), run.outcomes(other)
    table = Table(box=SIMPLE_HEAD)
    for heading in ("", other, doctor, "difference"):
        table.add_column(Text(heading), justify="right" if heading else "left", no_wrap=True)
    for metric in metrics_of(ours):
        sides = [
            plus_minus(metric, estimate(side, metric, seed_of(run))) for side in (theirs, ours)
        ]
        table.add_row(
            metric, *sides, plus_minus(metric, difference(ours, theirs, metric, seed_of(run)))
        )
    return table
