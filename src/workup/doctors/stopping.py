"""Conformal stopping: a doctor that stops by a rule and names the most probable disease.

The set of diseases that it leaves open is measured beside it.

`workup.metrics.conformal` says what is promised and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from workup.core.case import Case
from workup.core.episode import DIAGNOSE, Completion, Episode, Message, Turn
from workup.core.ports import Act, Doctor, Environment, Sampling
from workup.core.statistics import Floats
from workup.doctors.beliefs import Belief, Probabilities, place
from workup.metrics import conformal
from workup.metrics.conformal import IN_SET, SET_SIZE
from workup.metrics.extra import Values

SCORE = "stopping_score"  # the key of R among the values of a calibration episode


class StoppingRule(NamedTuple):
    """Stop when at most `most` diseases are in the set of `threshold`."""

    threshold: float
    most: int = 1


def ahead_of_each(found: Probabilities | None, size: int) -> Floats:
    """a_t of `workup.metrics.conformal`; a doctor that said nothing readable rules nothing out."""
    return np.zeros(size) if found is None else conformal.ahead(found)


async def along(belief: Belief, episode: Episode) -> list[Floats]:
    """a_t after 0, 1, … and all questions of an episode. Raises RolloutError as the belief does."""
    past = episode.gathered
    found = await belief.after(episode.case, [past[:t] for t in range(len(past) + 1)])
    return [ahead_of_each(each, len(belief.names)) for each in found]


@dataclass(frozen=True)
class StoppingDoctor:
    """Plays as `doctor` until the rule stops it; then it names the most probable disease.

    Until then it says word for word what `doctor` says, so that its episodes are beginnings of
    that one's. On the last turn, too, the rule comes first.
    """

    doctor: Doctor
    belief: Belief
    rule: StoppingRule
    environment: Environment

    async def act(
        self, case: Case, opening: Sequence[Message], past: Sequence[Turn], sampling: Sampling
    ) -> Act:
        (found,) = await self.belief.after(case, [past])
        if found is not None and conformal.stops(conformal.ahead(found), *self.rule):
            surest = self.belief.names[int(np.argmax(found))]
            return Act((), Completion(self.environment.write(DIAGNOSE, surest)))
        return await self.doctor.act(case, opening, past, sampling)


@dataclass(frozen=True)
class NamedSet:
    """The measures of an episode played with the rule: `in_set` ∈ {0, 1} and `set_size`."""

    belief: Belief
    rule: StoppingRule

    async def __call__(self, episode: Episode, correct: bool) -> Values:
        """Raises RolloutError where the belief gives up."""
        (found,) = await self.belief.after(episode.case, [episode.gathered])
        inside = ahead_of_each(found, len(self.belief.names)) <= self.rule.threshold
        truth = place(self.belief, episode.case)
        return {
            IN_SET.name: float(truth is not None and bool(inside[truth])),
            SET_SIZE.name: float(inside.sum()),
        }


@dataclass(frozen=True)
class EncounterScore:
    """R of a calibration episode, played by the doctor without a rule."""

    belief: Belief
    most: int

    async def __call__(self, episode: Episode, correct: bool) -> Values:
        """Raises RolloutError where the belief gives up."""
        encounter, truth = await along(self.belief, episode), place(self.belief, episode.case)
        return {SCORE: conformal.score(encounter, truth, self.most)}
