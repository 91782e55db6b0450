"""Demonstrations for a policy that has never ranked candidates: the grammar, and what is probable.

The lists are those of the exact posterior, cut after a random length between two bounds. Half of
the examinations are drawn at random. So how long a list should be, and what is worth ordering, is
left to reinforcement. A share of the lists can begin with a name for nearly everything, so that a
policy knows how to write what the hack penalty is for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from workup.core.case import Case, Evidence, Knowledge, Source, evidence_of
from workup.core.episode import Completion, Message, Turn
from workup.core.errors import UserError
from workup.core.ports import Act, Demonstration, Doctor, Environment, Sampling
from workup.environments.base.teacher import drawn_case, exchanges, imitation, played

MOST_CANDIDATES = 10  # candidates of a list (A.7)
MOST_EXAMINATIONS = 6  # examinations of one order
LEAST = 1e-3
"""The posterior probability below which a candidate is not listed: it would be padding."""


class Lists(Protocol):
    """What a demonstration needs of an environment with ranked lists; see also `ports`."""

    @property
    def max_turns(self) -> int: ...

    def write(self, kind: str, content: str) -> str: ...

    def known(self, case: Case) -> Evidence: ...

    def write_lists(
        self, candidates: Sequence[str], examinations: Sequence[str] | None = None
    ) -> str: ...

    def offered(self, turn: int) -> Sequence[str]: ...

    def examined(self, turn: Turn) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True)
class RankedTeaching:
    """Demonstrations of whole encounters with the lists of `world`.

    `focus` is the share of the examinations that are the most informative ones; the others are
    drawn from all that can be ordered. `vague` is the share of the lists that `group` stands in
    front of. Both shares are within [0, 1]. `lengths` are the least and the most candidates that a
    list is meant to have; each length between them is equally likely. A `doctor` plays instead,
    with lists and orders of its own.
    """

    world: Lists
    focus: float = 0.5
    vague: float = 0.0
    group: str = ""
    lengths: tuple[int, ...] = (1, MOST_CANDIDATES)
    doctor: Doctor | None = None

    def demonstrate(
        self, source: Source, environment: Environment, seed: int, index: int
    ) -> Demonstration:
        """The index-th demonstration: k ~ U{1 … max_turns − 1} orders, then the diagnosis.

        The same (source, environment, seed, index) makes the same one. Raises UserError for a
        source without a model of its cases.
        """
        if source.knowledge is None:
            raise UserError(
                f"no demonstrations can be made from '{source.name}': ranked lists are taught by "
                "the model of the cases, which it does not have; leave out the warm start and "
                "begin with a policy that can converse"
            )
        case, rng = drawn_case(source, seed, index)
        if self.doctor is not None:
            return imitation(case, environment, self.doctor, seed, index)
        most = environment.max_turns - 1
        orders = int(rng.integers(1, most + 1)) if most else 0
        teacher = _RankedTeacher(self, source.knowledge, orders, rng)
        return Demonstration(environment.open(case), exchanges(played(case, environment, teacher)))


def ranked(
    knowledge: Knowledge, evidence: Evidence, most: int = MOST_CANDIDATES, least: int = 1
) -> list[str]:
    """The `most` most probable diagnoses given the evidence, best first.

    The first is always kept. The next ones up to `least` are kept unless they are impossible, those
    behind them if they are at least as probable as LEAST.
    """
    posterior = np.asarray(knowledge.posterior(evidence))
    places = np.argsort(-posterior, kind="stable")[:most]
    kept = [
        place
        for rank, place in enumerate(places)
        if not rank or posterior[place] >= (LEAST if rank >= least else np.nextafter(0, 1))
    ]
    return [knowledge.diagnoses[place] for place in kept]


def informative(
    knowledge: Knowledge, evidence: Evidence, offered: Sequence[str], most: int
) -> list[str]:
    """The `most` of `offered` with the largest expected information gain, each by itself."""
    left = [name for name in offered if name not in evidence]
    if not left:
        return []
    gains = np.asarray(knowledge.gains(evidence, left))
    return [left[place] for place in np.argsort(-gains, kind="stable")[:most]]


def learned(world: Lists, case: Case, past: Sequence[Turn]) -> Evidence:
    """What presentation and results say; an examined item without a fact is normal."""
    evidence = world.known(case)
    for turn in past:
        seen = set(turn.observation.evidence)
        found = evidence_of(fact for fact in case.all_facts if fact.id in seen)
        normal: Mapping[str, tuple[str, ...]] = dict.fromkeys(world.examined(turn), ())
        evidence = {**normal, **evidence, **found}
    return evidence


@dataclass(frozen=True, slots=True)
class _RankedTeacher:
    """A `Doctor` that ranks and orders so many times, then names the truth."""

    teaching: RankedTeaching
    knowledge: Knowledge
    orders: int
    rng: np.random.Generator

    async def act(
        self, case: Case, opening: Sequence[Message], past: Sequence[Turn], sampling: Sampling
    ) -> Act:
        world = self.teaching.world
        evidence = learned(world, case, past)
        candidates = self._listed(evidence)
        if len(past) < self.orders:
            examinations = self._examinations(world.offered(len(past)), evidence)
            said = world.write_lists(self._blurred(candidates), examinations)
        else:  # the truth first, so that its probability is learned
            truth = case.truth.diagnosis
            others = [name for name in candidates if name != truth]
            said = world.write_lists(self._blurred([truth, *others]))
        return Act((), Completion(said))

    def _listed(self, evidence: Evidence) -> list[str]:
        least, most = self.teaching.lengths
        length = int(self.rng.integers(least, most + 1))
        return ranked(self.knowledge, evidence, length, least)

    def _blurred(self, candidates: list[str]) -> list[str]:
        """The list, or the list with the group's name in front."""
        # Nothing is drawn where nothing is blurred: demonstrations stay what they were.
        if not self.teaching.vague or self.rng.random() >= self.teaching.vague:
            return candidates
        return [self.teaching.group, *candidates]

    def _examinations(self, offered: Sequence[str], evidence: Evidence) -> list[str]:
        left = [name for name in offered if name not in evidence]
        count = int(self.rng.integers(1, MOST_EXAMINATIONS + 1))
        best = informative(self.knowledge, evidence, left, count)
        telling = self.rng.random(len(best)) < self.teaching.focus
        drawn = self.rng.permutation(len(left))[: len(best)]
        chosen = [
            name if told else left[place]
            for name, told, place in zip(best, telling, drawn, strict=True)
        ]
        return list(dict.fromkeys(chosen))
