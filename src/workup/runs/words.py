"""How figures are written wherever people read them: on the terminal, in tables, in the report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ByteSize

from workup.core.statistics import Estimate
from workup.metrics.known import ALWAYS, metric, shown
from workup.metrics.metric import Where

UNTRAINED, WARM_START, TRAINED = "untrained", "warm start", "trained"
# What a training evaluates, in the order in which it is listed.
STAGES = (UNTRAINED, WARM_START, "sft", "dpo", TRAINED)
ORACLE = "oracle context"  # how the label of who reads the whole record in one turn ends
DASH = "–"
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def columns(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    """The metrics that a table on the terminal has columns for, in their order.

    `entries` are the doctors' entries as in summary.json.
    """
    found = list(entries)
    names = (*ALWAYS, *(name for entry in found for name in entry if is_estimate(entry[name])))
    return [
        name
        for name in shown(names, Where.TERMINAL)
        if max(means(found, name), default=-math.inf) >= metric(name).least
    ]


def is_estimate(value: object) -> bool:
    """Whether a value of an entry of summary.json is a metric's estimate."""
    return isinstance(value, Mapping) and "n" in value


def means(entries: Iterable[Mapping[str, Any]], metric: str) -> list[float]:
    """Each doctor's mean of a metric, of those for whom it is defined."""
    found = [entry[metric]["mean"] for entry in entries if metric in entry]
    return [mean for mean in found if mean is not None]


def in_order(doctors: Iterable[str], anchors: Sequence[str]) -> list[str]:
    """The lowest anchor, the policies from untrained to trained, the higher anchors.

    `anchors` stand from the lowest to the highest. A stage with a name of its own ("stage 1")
    stands before "trained", where `doctors` has it among the others.
    """
    floor, ceiling = anchors[:1], anchors[1:]
    ranked = (*floor, *STAGES[:-1], "", STAGES[-1], *ceiling)
    place = {name: number for number, name in enumerate(ranked)}
    return sorted(doctors, key=lambda doctor: place.get(doctor, place[""]))


def number(name: str, value: float | None, more: int = 0) -> str:
    """A share as ".66", anything else as "6.9" or "0.58"; a dash for what is undefined.

    It has `more` digits than its measure usually has.
    """
    if value is None:
        return DASH
    digits = metric(name).digits + more
    return share(value, digits) if metric(name).share else decimal(value, digits)


def finer(name: str, half: float) -> int:
    """How many digits more than usual tell an interval with this `half` width; 0, 1 or 2.

    So many that it is at least one and a half of the last digit: ±.004 would be ±.00.
    """
    steps = (half * 10 ** (metric(name).digits + more) for more in range(2))
    return sum(0 < each < 1.5 for each in steps)


def share(value: float, digits: int = 2) -> str:
    """ ".66", "−.09", "1.00" """
    text = decimal(value, digits)
    return text.replace("0.", ".", 1) if text.startswith(("0.", "−0.")) else text


def decimal(value: float, digits: int = 2) -> str:
    """ "0.66", "−6.90"; what is rounded to nothing has no sign. A dash for NaN."""
    if math.isnan(value):
        return DASH
    text = f"{value:.{digits}f}"
    return (text if text.strip("-0.") else text.removeprefix("-")).replace("-", "−")


def powers(text: str) -> str:
    """Python's "5e-05" as "5·10⁻⁵", "1e-06" as "10⁻⁶"; a text without a power as it is."""
    factor, found, power = text.partition("e")
    if not found:
        return text
    raised = f"10{str(int(power)).translate(RAISED)}"
    return raised if factor == "1" else f"{factor}·{raised}"


def plus_minus(metric: str, estimate: Estimate) -> str:
    """An estimate as text: ".66 ±.03", ".00 [.00, .28]" or ".66".

    The second form is for a mean that is not in the middle of its interval, the third for an
    estimate without an interval.
    """
    if math.isnan(estimate.mean):
        return DASH
    mean = number(metric, estimate.mean)
    if math.isnan(estimate.half):
        return mean
    if estimate.symmetric:
        return f"{mean} ±{number(metric, estimate.half)}"
    return f"{mean} [{number(metric, estimate.low)}, {number(metric, estimate.high)}]"


def cell(doctor: str, entry: Mapping[str, object], metric: str) -> str:
    """One doctor's entry in summary.json for one metric, as text; a dash if it has no meaning.

    The full-information doctor reads the whole record, so that what it asked says nothing.
    """
    found = entry.get(metric)
    blind = doctor == "full information" and metric not in ("accuracy", "macro_accuracy")
    if not isinstance(found, Mapping) or blind:
        return DASH
    return plus_minus(metric, Estimate.from_json(found))


def equation(reward: float, parts: Mapping[str, float]) -> str:
    """A reward and its parts as text; parts that are 0 are left out.

    "reward 0.58 = α·CR·acc 0.31 + β·acc 0.33 − λ·t/T 0.06" where the parts add up to the reward;
    else the parts stand beside it.
    """
    head = f"reward {number('reward', reward)}"
    parts = {name: value for name, value in parts.items() if value}
    if not parts:
        return head
    if adds_up(reward, parts):
        terms = [
            f"{'−' if value < 0 else '+'} {name} {abs(value):.2f}" for name, value in parts.items()
        ]
        return f"{head} = {' '.join(terms).removeprefix('+ ')}"
    return f"{head}   " + " · ".join(
        f"{name} {number('reward', value)}" for name, value in parts.items()
    )


def adds_up(reward: float, parts: Mapping[str, float]) -> bool:
    """Whether the parts are the terms of a sum that is the reward (to three decimals)."""
    return abs(sum(parts.values()) - reward) < 1e-3 * max(1.0, abs(reward))


def duration(seconds: float) -> str:
    """ "0:42", "12:07", "3:05:00" """
    whole = max(0, round(seconds))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def size(count: int) -> str:
    """Bytes, as "12 B" and "1.5 GB"."""
    return ByteSize(count).human_readable(decimal=True, separator=" ")
