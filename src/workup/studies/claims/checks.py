"""Could a set-up show anything? Asked of short trainings of its paid arms, before the long ones.

Headroom: the anchors of its evaluation must differ by what the set-up says at least. Payment: with
p_e the part of episode e's reward that a claim is about, and R_e its whole reward,

    mean |p_e| ≥ .01   and   Σ_g Σ_{e∈g} (p_e − p̄_g)² ≥ .1 · Σ_g Σ_{e∈g} (R_e − R̄_g)²,

where g are the groups of episodes that are compared with each other: those of one case in one
update, of the stages whose reward has the part. A part that is hardly ever paid, or that is the
same for all episodes of a group, teaches nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from workup.core.errors import UserError
from workup.metrics.known import metric
from workup.runs import Run
from workup.runs.words import number
from workup.studies.claims import Headroom, Setup

STEPS = 8
"""Updates of the short training, in each stage."""

PAID = 0.01
"""What an episode gets by the part, at least, in the mean."""

SHARE = 0.1
"""The part's share of the variance within the groups, at least."""


def words(command: Sequence[str]) -> tuple[str, ...]:
    """The command of an arm's short training."""
    return (*command, f"steps={STEPS}")


def problem(setup: Setup, folders: Mapping[str, Path]) -> str:
    """All that speaks against the set-up, which then could not show a claim; "" if nothing does.

    `folders` has the short training of each arm that is tried.
    """
    return "; ".join(_problems(setup, folders))


def _problems(setup: Setup, folders: Mapping[str, Path]) -> Iterator[str]:
    for place, arm in enumerate(setup.tried):
        with Run.open(folders[arm]) as run:
            if setup.headroom and place == 0 and (why := lacks_room(setup.headroom, run.summary)):
                yield why
            if arm in setup.paid and (why := unpaid(setup.paid[arm], run)):
                yield f"{arm}: {why}"


def lacks_room(headroom: Headroom, summary: Any) -> str:
    """Why there is too little between the two anchors; "" if there is enough.

    Raises UserError for an anchor or a measure that the evaluation does not have.
    """
    levels = {}
    for doctor in (headroom.high, headroom.low):
        entry = (summary or {}).get("doctors", {}).get(doctor, {})
        # what is no mapping is no figure: "cases", or where the probabilities come from
        if not isinstance(entry.get(headroom.measure), Mapping):
            known = ", ".join((summary or {}).get("doctors", {}))
            raise UserError(f"headroom: no {headroom.measure} of '{doctor}'; there are {known}")
        levels[doctor] = entry[headroom.measure].get("mean")
        if levels[doctor] is None:
            return f"{metric(headroom.measure).title} of {doctor} is undefined"
    gap = levels[headroom.high] - levels[headroom.low]
    if gap >= headroom.least:
        return ""
    title, digits = metric(headroom.measure).title, headroom.measure
    return (
        f"{title} of {headroom.high} is only {number(digits, gap)} above that of {headroom.low}, "
        f"{number(digits, headroom.least)} are needed"
    )


def unpaid(part: str, run: Run) -> str:
    """Why the part of the reward could teach nothing; "" if it could.

    Raises UserError for a part that the reward does not have.
    """
    paid, whole = payments(part, run)
    if (mean := fmean(abs(each) for group in paid for each in group)) < PAID:
        return f"'{part}' pays {mean:.3f} an episode, {PAID} are needed"
    if (share := within(paid) / max(within(whole), 1e-12)) < SHARE:
        return f"'{part}' has {share:.0%} of the variance within groups, {SHARE:.0%} are needed"
    return ""


def payments(part: str, run: Run) -> tuple[list[list[float]], list[list[float]]]:
    """(p, R) of the training episodes, group by group. Raises UserError for an unknown part."""
    groups: dict[tuple[str, int, str], list[tuple[float, float]]] = defaultdict(list)
    known: dict[str, set[str]] = defaultdict(set)  # part → the stages that have it
    for record in run.episodes(phase="train"):
        if record.score is None:
            continue
        for each in record.score.parts:
            known[each].add(record.stage)
        key = (record.stage, record.step, record.episode.case.id)
        groups[key].append((record.score.parts.get(part, 0.0), sum(record.score.turns)))
    if part not in known:
        raise UserError(f"paid: the reward has no part '{part}'; it has {', '.join(sorted(known))}")
    paid = [group for (stage, *_), group in groups.items() if stage in known[part]]
    pairs = [([p for p, _ in group], [whole for _, whole in group]) for group in paid]
    return [p for p, _ in pairs], [whole for _, whole in pairs]


def within(groups: Sequence[Sequence[float]]) -> float:
    """The sum of squares around each group's own mean."""
    return float(sum(((np.array(group) - np.mean(group)) ** 2).sum() for group in groups))
