"""What the report's tables show, worked out from the run folder alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workup.core.crossed import Crossed, decide
from workup.core.episode import Ending
from workup.core.statistics import Estimate, interval
from workup.core.text import several
from workup.metrics.known import metric, shown
from workup.metrics.metric import BY, Where
from workup.report.sheets import Sheet
from workup.runs import Outcome, Run
from workup.runs.estimates import Seeds, common, covers_seeds, estimate, paired_means, pooled
from workup.runs.summary import describe, lead
from workup.runs.words import (
    DASH,
    STAGES,
    TRAINED,
    UNTRAINED,
    WARM_START,
    cell,
    finer,
    in_order,
    is_estimate,
    number,
    plus_minus,
)

HIGHER, LOWER, CONSTANT, UNDECIDED = "higher", "lower", "constant", "undecided"
VERDICTS = {
    HIGHER: "the interval lies above 0",
    LOWER: "it lies below 0",
    UNDECIDED: "it holds 0",
    CONSTANT: "all have the same difference, so that there is no interval",
}
Entries = Mapping[str, Mapping[str, Any]]  # doctor → its entry as in summary.json


@dataclass(frozen=True)
class Ends:
    """The two policies compared: before training (None if it was not evaluated) and after.

    `anchors` bound them, from the lowest to the highest.
    """

    before: str | None
    after: str | None
    anchors: tuple[str, ...] = ()

    @classmethod
    def of(cls, doctors: Iterable[str], anchors: tuple[str, ...]) -> Ends:
        """What the doctors' names say was compared.

        With "trained": it, against "warm start" or "untrained". Without it, the last stage of the
        training, or of an evaluation the policy, which stands before its hybrid pipelines.
        """
        others = [doctor for doctor in doctors if doctor not in anchors]
        training = not set(STAGES).isdisjoint(others)
        last = next(iter(others[::-1] if training else others), None)
        after = TRAINED if TRAINED in others else last
        return cls(
            next(
                (name for name in (WARM_START, UNTRAINED) if name in others and name != after),
                None,
            ),
            after,
            anchors,
        )

    @property
    def names(self) -> list[str]:
        return [name for name in (self.before, self.after) if name is not None]


@dataclass(frozen=True)
class Cell:
    """A figure, with the number of its values if some were undefined, and its interval as a bar.

    The bar runs from 0 to the column's largest value, in percent; None means no bar.
    """

    text: str
    note: str = ""
    bar: tuple[float, float, float] | None = None  # low, mean, high


@dataclass(frozen=True)
class DoctorRow:
    name: str
    role: str  # "anchor", "before", "after" or ""
    size: str
    cells: list[Cell]


def entries_of(run: Run) -> Entries:
    """Every evaluated doctor's entry, from the lowest anchor to the highest."""
    return {doctor: describe(run, doctor) for doctor in in_order(run.doctors(), run.anchors)}


def metrics_of(entries: Entries) -> list[str]:
    """All that tables show of these doctors, each judge's own figures behind their mean."""
    return shown(_measured(entries), Where.PAGES)


def paired_of(entries: Entries) -> list[str]:
    """The metrics whose paired differences are shown; none of one judge's own figures."""
    return [name for name in shown(_measured(entries), Where.PAIRED) if BY not in name]


def _measured(entries: Entries) -> list[str]:
    return [name for entry in entries.values() for name in entry if level(entry, name) is not None]


def level(entry: Mapping[str, Any], metric: str) -> Estimate | None:
    """One metric of one doctor; None where it was not measured."""
    found = entry.get(metric)
    return Estimate.from_json(found) if found is not None and is_estimate(found) else None


def levels_of(entries: Entries) -> dict[str, dict[str, Estimate]]:
    """doctor → metric → estimate, for figures; without metrics of questions that nobody asked."""
    found = {
        doctor: {metric: level(entry, metric) for metric in metrics_of(entries)}
        for doctor, entry in entries.items()
    }
    return {
        doctor: {
            m: value
            for m, value in metrics.items()
            if value is not None and cell(doctor, entries[doctor], m) != DASH
        }
        for doctor, metrics in found.items()
    }


def headline(entries: Entries, ends: Ends) -> tuple[list[str], list[DoctorRow]]:
    """(metrics shown, one row per doctor); a metric that nobody has is not shown."""
    levels = levels_of(entries)
    columns = [
        metric
        for metric in metrics_of(entries)
        if any(metric in metrics for metrics in levels.values())
    ]
    tops = {
        metric: top(metric, [metrics[metric] for metrics in levels.values() if metric in metrics])
        for metric in columns
    }
    rows = []
    for doctor, entry in entries.items():
        cells = []
        for name in columns:
            found = levels[doctor].get(name)
            note = f"of {found.n:,}" if found is not None and found.missing else ""
            cells.append(Cell(cell(doctor, entry, name), note, bar(found, tops[name])))
        rows.append(DoctorRow(doctor, _role(doctor, ends), _counted(entry), cells))
    return columns, rows


def _counted(entry: Mapping[str, Any]) -> str:
    seeds = len(entry.get("seeds", ()))
    size = f"{several(entry['episodes'], 'episode')}, {several(entry['cases'], 'case')}"
    return f"{seeds} seeds, {size}" if seeds > 1 else size


def _role(doctor: str, ends: Ends) -> str:
    if doctor in ends.anchors:
        return "anchor"
    return "after" if doctor == ends.after else "before" if doctor == ends.before else ""


def top(name: str, found: Sequence[Estimate]) -> float:
    """Where a column's bars end: 1 for a share, else its largest value."""
    if metric(name).share:
        return 1.0
    return max(1e-9, *(each.mean if math.isnan(each.high) else each.high for each in found))


def bar(value: Estimate | None, top: float) -> tuple[float, float, float] | None:
    """The interval and the mean in percent of `top`; None where there is no interval."""
    if value is None or math.isnan(value.low) or value.low < 0:
        return None
    low, mean, high = (
        round(100 * min(edge / top, 1.0), 1) for edge in (value.low, value.mean, value.high)
    )
    return low, mean, high


@dataclass(frozen=True)
class Change:
    """How a metric moved from before to after, paired over the cases that both have a value for.

    `before` and `after` are means over these cases, so that `by` is their difference. `verdict` is
    as `verdict` gives it, `detectable` the true difference that would be found with a power of .8.
    `lead` is the figure itself (`summary.lead`), `seeds` the difference of each seed; empty where
    one run stands on each side.
    """

    metric: str
    before: str
    after: str
    by: str
    interval: str
    cases: int
    verdict: str
    detectable: str
    lead: Mapping[str, Any]
    seeds: str = ""


def changes(run: Run, ends: Ends, metrics: Sequence[str]) -> list[Change]:
    """The paired change of every metric through training; empty without a before and an after."""
    if ends.before is None or ends.after is None:
        return []
    after, before = ({"": run.outcomes(doctor)} for doctor in (ends.after, ends.before))
    return gaps(after, before, metrics, run.seed)


def gaps(ours: Seeds, theirs: Seeds, metrics: Iterable[str], seed: int) -> list[Change]:
    """Ours − theirs for every metric over their common cases; at least two of them are needed.

    Where both have a seed, those that one of them lacks are left out.
    """
    mine, other = of_both(ours, theirs)
    found = [(metric, lead(mine, other, metric, seed)) for metric in metrics]
    return [_change(metric, gap, mine, other) for metric, gap in found if gap["n"] > 1]


def of_both(ours: Seeds, theirs: Seeds) -> tuple[Seeds, Seeds]:
    """Both sides' outcomes of the cases that both met, in the seeds that both have if any."""
    shared = common(ours, theirs)
    ids = [{o.case_id for outcomes in side.values() for o in outcomes} for side in (ours, theirs)]
    mine, other = (
        {key: [o for o in side[key] if o.case_id in ids[0] & ids[1]] for key in shared or side}
        for side in (ours, theirs)
    )
    return mine, other


def _change(metric: str, gap: Mapping[str, Any], ours: Seeds, theirs: Seeds) -> Change:
    after, before = (number(metric, mean) for mean in paired_means(ours, theirs, metric))
    found = gap_of(gap)
    more = finer(metric, found.half)
    each = " ".join(
        DASH if value is None else signed(metric, value) for value in gap["by_seed"].values()
    )
    return Change(
        metric,
        before,
        after,
        signed(metric, found.mean, more),
        span(metric, found),
        found.n,
        verdict(found),
        number(metric, gap["detectable"], more),
        gap,
        each,
    )


def gap_of(gap: Mapping[str, Any]) -> Estimate:
    """A figure of `summary.lead`, as it was made: over patients and seeds, or by case."""
    return (Crossed if "components" in gap else Estimate).from_json(gap)


def span(metric: str, found: Estimate) -> str:
    """ "+.01 to +.15"; a dash without an interval."""
    if math.isnan(found.low):
        return DASH
    more = finer(metric, found.half)
    return f"{signed(metric, found.low, more)} to {signed(metric, found.high, more)}"


def verdict(found: Estimate) -> str:
    """What an interval says of a difference, as in `VERDICTS`; a dash where one value has none.

    One that is not decided says how many more seeds would make a true difference of this size
    detectable, if the interval covers seeds.
    """
    if found.n < 2:
        return DASH
    if math.isnan(found.low):
        return CONSTANT
    if found.clear:
        return HIGHER if found.low > 0 else LOWER
    return str(decide(found, 0.0)) if isinstance(found, Crossed) else UNDECIDED


def covering(changes: Iterable[Change]) -> str:
    """What the intervals of these differences speak of."""
    if any(covers_seeds(gap_of(change.lead)) for change in changes):
        return "intervals cover other patients and other seeds"
    return "intervals are by patient: other seeds are not covered"


def explained(changes: Sequence[Change]) -> str:
    """What the verdicts on these differences mean: those that are among them."""
    used = {change.verdict.partition(",")[0] for change in changes}
    return "; ".join(f"{word}: {sense}" for word, sense in VERDICTS.items() if word in used)


def gap_text(metric: str, found: Estimate | None, *, starred: bool = False) -> str:
    """A difference as text: "+.07 ±.05", "+.07 [−.02, +.15]", or "+.07" without an interval.

    A narrow interval has more digits, as in "+.006 ±.003". If `starred`, " *" stands behind an
    interval that leaves out 0.
    """
    if found is None or math.isnan(found.mean):
        return DASH
    more = finer(metric, found.half)
    mean = signed(metric, found.mean, more)
    if math.isnan(found.low):
        return mean
    star = " *" if starred and found.clear else ""
    if found.symmetric:
        return f"{mean} ±{number(metric, found.half, more)}{star}"
    return f"{mean} [{signed(metric, found.low, more)}, {signed(metric, found.high, more)}]{star}"


def chance(p: float) -> str:
    """A p value to three digits."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def signed(metric: str, value: float, more: int = 0) -> str:
    """ "+.31", "−.09"; what is rounded to nothing has no sign. `more` digits than usual."""
    text = number(metric, value, more)
    return f"+{text}" if value > 0 and text.strip("0.") else text


def reward_parts(run: Run, ends: Ends) -> Sheet | None:
    """The mean of every part over all scored episodes, and of the return, before and after.

    An episode that lacks a part counts 0. None where nobody's episodes were scored.
    """
    sides = [
        [outcome for outcome in run.outcomes(name) if outcome.total is not None]
        for name in ends.names
    ]
    if not sides or not all(sides):
        return None
    names = list(
        dict.fromkeys(name for side in sides for outcome in side for name in outcome.parts)
    )
    rows: list[list[str]] = []
    for name in names:
        means = (
            interval(
                [outcome.parts.get(name, 0.0) for outcome in side],
                [outcome.case_id for outcome in side],
                seed=run.seed,
            )
            for side in sides
        )
        rows.append([name, *(plus_minus("return", mean) for mean in means)])
    whole = [plus_minus("return", estimate(side, "return", run.seed)) for side in sides]
    return Sheet(
        ["mean per evaluated episode", *ends.names],
        [*rows, ["return", *whole]],
        styles={len(rows): "bold"},
    )


COUNTS = {
    "calls": "calls",
    "hits": "from cache",
    "prompt_tokens": "tokens read",
    "completion_tokens": "tokens written",
}


def calls(rows: Sequence[Mapping[str, Any]]) -> Sheet | None:
    """The calls of models in supporting roles and their cost; None where nothing was asked.

    `rows` are those of `calls` in summary.json. If there are several, the last row is their sum.
    """
    if not rows:
        return None
    sums = {name: sum(row[name] for row in rows) for name in (*COUNTS, "cost")}
    every = [*rows, {"role": "all", "model": "", **sums}] if len(rows) > 1 else rows
    return Sheet(
        ["role", "model", *COUNTS.values(), "cost"],
        [
            [row["role"], row["model"], *(f"{row[k]:,}" for k in COUNTS), f"{row['cost']:.4f}"]
            for row in every
        ],
        words=2,
        styles={len(rows): "bold"},
    )


@dataclass(frozen=True)
class Shares:
    """How one doctor's episodes ended: (ending, count, percent), in the order of `Ending`."""

    doctor: str
    parts: list[tuple[str, int, float]]

    @property
    def text(self) -> str:
        return " · ".join(
            f"{count:,} {ending} ({percent:g} %)" for ending, count, percent in self.parts
        )


def endings(entries: Entries) -> list[Shares]:
    found = []
    for doctor, entry in entries.items():
        counts = entry["endings"]
        total = sum(counts.values())
        parts = [
            (ending.value, counts[ending], round(100 * counts[ending] / total, 1))
            for ending in Ending
            if ending in counts
        ]
        found.append(Shares(doctor, parts))
    return found


@dataclass(frozen=True)
class Categories:
    """Accuracy by group of cases.

    `kind` is "category", or "diagnosis" if the cases name no category. `groups` has the number of
    cases of each group, the largest first; `accuracies` of each label one estimate per group.
    """

    kind: str
    groups: Mapping[str, int]
    accuracies: Mapping[str, list[Estimate]]


def by_category(sides: Mapping[str, Seeds], seed: int) -> Categories:
    """Accuracy by group of cases, from the outcomes of each label, by seed."""
    everyone = [each for side in sides.values() for outcomes in side.values() for each in outcomes]
    kind = "category" if any(outcome.category for outcome in everyone) else "diagnosis"
    cases = {(getattr(outcome, kind), outcome.case_id) for outcome in everyone}
    counts = Counter(group for group, _ in sorted(cases))
    groups = dict(counts.most_common())
    return Categories(
        kind,
        groups,
        {label: _accuracies(side, kind, list(groups), seed) for label, side in sides.items()},
    )


def _accuracies(side: Seeds, kind: str, groups: Sequence[str], seed: int) -> list[Estimate]:
    split: dict[str, dict[str, list[Outcome]]] = {
        group: {key: [] for key in side} for group in groups
    }
    for key, outcomes in side.items():
        for outcome in outcomes:
            split[getattr(outcome, kind)][key].append(outcome)
    return [pooled(split[group], "accuracy", seed) for group in groups]
