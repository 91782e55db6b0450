"""summary.json: the headline metrics of every evaluated doctor, with 95 % intervals by case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from workup.runs.estimates import estimate, metrics_of, over_repeats
from workup.runs.folder import Run
from workup.statistics import LEVEL


def summarise(
    run: Run,
    *,
    steps: int,
    seconds: float,
    calls: Sequence[Mapping[str, Any]] = (),
    speed: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Computes summary.json from the run's episodes, writes it, and returns it.

    `steps` and `seconds` are the whole run's, over all stages; `calls` what models in supporting
    roles were asked and cost; `speed` how many episodes a second each doctor played. The run's
    notes, such as a warning that the policy judges itself, are taken over from its configuration.
    """
    head = {
        "name": run.name,
        **{key: run.config.get(key) for key in ("method", "cases", "policy", "seed")},
    }
    size: dict[str, Any] = {"steps": steps, "seconds": round(seconds, 3), "level": LEVEL}
    size |= {"calls": [dict(row) for row in calls]} if calls else {}
    size |= {"episodes_per_second": dict(speed)} if speed else {}
    size |= {"notes": list(run.config["notes"])} if run.config.get("notes") else {}
    summary = {
        **head,
        **size,
        "anchors": list(run.anchors),
        "doctors": {doctor: describe(run, doctor) for doctor in run.doctors()},
    }
    run.write_summary(summary)
    return summary


def describe(run: Run, doctor: str) -> dict[str, Any]:
    """One doctor's entry in summary.json: cases, episodes, endings, and every metric's estimate.

    An estimate is mean, low, high, n and missing.
    """
    outcomes, seed = run.outcomes(doctor), run.seed
    endings = Counter(outcome.ending for outcome in outcomes)
    return {
        "cases": len({outcome.case_id for outcome in outcomes}),
        "episodes": len(outcomes),
        "endings": dict(endings.most_common()),
        **over_repeats(outcomes),
        **{metric: estimate(outcomes, metric, seed).as_json() for metric in metrics_of(outcomes)},
    }


def repeats(summary: Mapping[str, Any]) -> list[str]:
    """Lines for a reader: every doctor's accuracy over its repeats."""
    correlations = [
        (label, doctor["repeats_accuracy"])
        for label, doctor in summary["doctors"].items()
        if "repeats_accuracy" in doctor
    ]
    return [
        f"{label}: accuracy {r['mean']:.3f} ± {r['sd']:.3f} (SD over {len(r['each'])} repeats)"
        for label, r in correlations
    ]
