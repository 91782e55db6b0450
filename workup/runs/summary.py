"""summary.json: the headline metrics of every evaluated doctor, with 95 % intervals by case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from workup.runs.folder import Outcome, Run
from workup.statistics import Estimate, interval, macro, paired

HEADLINE = ("accuracy", "macro_accuracy", "questions", "critical", "noise", "coverage")


def value(outcome: Outcome, metric: str) -> float | None:
    """One episode's value of a metric; None where it is undefined or was not measured.

    "accuracy" is the verdict, "questions" and "return" the episode's own (unless a measure of that name says otherwise),
    and every other metric a measure.
    """
    if metric in outcome.measures:
        return outcome.measures[metric]
    if metric in ("accuracy", "macro_accuracy"):
        return None if outcome.correct is None else float(outcome.correct)
    if metric == "questions":
        return float(outcome.questions)
    return outcome.total if metric == "return" else None


def estimate(outcomes: Sequence[Outcome], metric: str, seed: int = 0) -> Estimate:
    """A metric over episodes, bootstrapped by case."""
    values, cases = [value(outcome, metric) for outcome in outcomes], [outcome.case_id for outcome in outcomes]
    if metric == "macro_accuracy":
        return macro(values, cases, [outcome.diagnosis for outcome in outcomes], seed=seed)
    return interval(values, cases, seed=seed)


def difference(ours: Sequence[Outcome], theirs: Sequence[Outcome], metric: str, seed: int = 0) -> Estimate:
    """Ours − theirs over the cases that both saw, bootstrapped by case."""
    pairs = [([value(outcome, metric) for outcome in side], [outcome.case_id for outcome in side]) for side in (ours, theirs)]
    return paired(*pairs[0], *pairs[1], seed=seed)


def metrics_of(outcomes: Sequence[Outcome]) -> list[str]:
    """The headline metrics, then whatever else was measured, then the return if episodes were scored."""
    extra = dict.fromkeys(name for outcome in outcomes for name in outcome.measures if name not in HEADLINE)
    scored = any(outcome.total is not None for outcome in outcomes)
    return [*HEADLINE, *extra, *(["return"] if scored else [])]


def summarise(run: Run, *, steps: int, seconds: float) -> dict[str, Any]:
    """Compute summary.json from the run's episodes, write it, and return it.

    `steps` and `seconds` are the whole run's, over all stages.
    """
    seed = int(run.config.get("seed", 0))
    head = {"name": run.name, **{key: run.config.get(key) for key in ("method", "cases", "policy", "seed")}}
    doctors = {doctor: _doctor(run.outcomes(doctor), seed) for doctor in run.doctors()}
    summary = {**head, "steps": steps, "seconds": round(seconds, 3), "level": 0.95, "doctors": doctors}
    run.write_summary(summary)
    return summary


def _doctor(outcomes: Sequence[Outcome], seed: int) -> dict[str, Any]:
    endings = Counter(outcome.ending for outcome in outcomes)
    return {
        "cases": len({outcome.case_id for outcome in outcomes}),
        "episodes": len(outcomes),
        "endings": dict(endings.most_common()),
        **{metric: estimate(outcomes, metric, seed).as_json() for metric in metrics_of(outcomes)},
    }
