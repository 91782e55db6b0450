"""summary.json: the headline metrics of every evaluated doctor, with 95 % intervals by case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from workup.core.crossed import null
from workup.core.statistics import LEVEL
from workup.metrics.calibration import BRIER, EXACT, SCORED
from workup.runs.estimates import (
    Seeds,
    common,
    difference,
    ece_by_chance,
    estimate,
    metrics_of,
    over_repeats,
    pooled,
    pooled_difference,
)
from workup.runs.folder import Run
from workup.runs.onward import command
from workup.runs.rising import LearningVerdict, learning


def summarise(
    run: Run,
    *,
    steps: int,
    seconds: float,
    calls: Sequence[Mapping[str, Any]] = (),
    speed: Mapping[str, float] | None = None,
    stopped: Mapping[str, Any] | None = None,
    stopping: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Computes summary.json from the run's episodes, writes it, and returns it.

    `steps` and `seconds` are the whole run's, over all stages; an evaluation does not know how long
    it had taken when it was interrupted. `calls` is what models in supporting roles were asked and
    cost; `speed` how many episodes a second each doctor played; `stopped` how accurate anchors are
    after each question (`workup.loops.evaluation.stopped`); `stopping` by which rule a policy
    stopped (`workup.loops.evaluation.stopping`). The run's notes, such as a warning that the policy
    judges itself, are taken over from its configuration.
    """
    head = {
        "name": run.name,
        **{key: run.config.get(key) for key in ("method", "cases", "policy", "seed")},
        **({"encounter": run.encounter} if run.encounter else {}),
    }
    size: dict[str, Any] = {"steps": steps, "seconds": round(seconds, 3), "level": LEVEL}
    size |= {"calls": [dict(row) for row in calls]} if calls else {}
    size |= {"episodes_per_second": dict(speed)} if speed else {}
    size |= {"notes": list(run.config["notes"])} if run.config.get("notes") else {}
    learned = describe_learning(run)
    summary = {
        **head,
        **size,
        **({"learning": learned} if learned else {}),
        "anchors": list(run.anchors),
        "doctors": {doctor: describe(run, doctor) for doctor in run.doctors()},
        **({"stopped": dict(stopped)} if stopped else {}),
        **({"stopping": dict(stopping)} if stopping else {}),
    }
    run.write_summary(summary)
    return summary


def describe_learning(run: Run) -> dict[str, Any] | None:
    """The entry of the training: was it still rising when it ended, as `Learning.as_json`.

    If it was, `go_on` is the command that trains on. A cross-validation's is about the mean of its
    folds, and has each fold's own under `folds`. None without a reinforcement stage.
    """
    found = learning(run.metrics())
    if found is None:
        return None
    entry = found.as_json()
    if found.verdict is LearningVerdict.RISING:
        entry["go_on"] = command(run, found.stage)
    if run.parts:
        entry["folds"] = {}
        for split, folder in run.parts.items():
            with Run.open(run.path / folder) as fold:
                entry["folds"][split] = fold.summary["learning"]
    return entry


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
        **probabilities(run, doctor),
        **ece_by_chance({"": outcomes}, seed),
        **{metric: estimate(outcomes, metric, seed).as_json() for metric in metrics_of(outcomes)},
    }


def probabilities(run: Run, doctor: str) -> dict[str, str]:
    """Where the probabilities of an evaluated doctor come from, as a part of its entry.

    `workup.doctors.beliefs` has the words. Empty where it gave none.
    """
    if not any(BRIER.name in outcome.measures for outcome in run.outcomes(doctor)):
        return {}
    exact = doctor in run.anchors
    return {
        "probabilities": EXACT if exact else run.config["evaluation"]["probabilities"] or SCORED
    }


def describe_seeds(seeds: Seeds, seed: int) -> dict[str, Any]:
    """The entry of runs that differ by their seed alone, in the form of `describe`.

    Every metric's estimate is that of `estimates.pooled`, and `by_seed` has each seed's own mean
    beside it. `seed` is that of the resampling.
    """
    everyone = [outcome for outcomes in seeds.values() for outcome in outcomes]
    endings = Counter(outcome.ending for outcome in everyone)

    def figures(metric: str) -> dict[str, Any]:
        found = pooled(seeds, metric, seed)
        own = {
            key: found if len(seeds) == 1 else estimate(outcomes, metric, seed)
            for key, outcomes in seeds.items()
        }
        return {
            **found.as_json(),
            "by_seed": {key: null(each.mean) for key, each in own.items()},
        }

    return {
        "seeds": list(seeds),
        "cases": len({outcome.case_id for outcome in everyone}),
        "episodes": len(everyone),
        "endings": dict(endings.most_common()),
        **ece_by_chance(seeds, seed),
        **{metric: figures(metric) for metric in metrics_of(everyone)},
    }


def lead(ours: Seeds, theirs: Seeds, metric: str, seed: int) -> dict[str, Any]:
    """Ours − theirs, paired by case: the estimate, and the differences of the seeds both have.

    `detectable` is the true difference that would be found with a power of .8. `by_seed` is empty
    where there is no common seed, and where both sides are one run.
    """
    several = max(len(ours), len(theirs)) > 1
    found = pooled_difference(ours, theirs, metric, seed)
    each = {
        key: null(difference(ours[key], theirs[key], metric, seed).mean)
        for key in (common(ours, theirs) if several else ())
    }
    return {**found.as_json(), "detectable": null(found.detectable()), "by_seed": each}


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
