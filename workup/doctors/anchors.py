"""Anchors: doctors that know the generative model of the cases, as bounds for learning curves.

All of them name the most probable diagnosis of the exact posterior; they differ in what they ask.
They see what any doctor sees (`case.given`, and the ids that answers revealed), except
`FullInformationDoctor`, which reads the record. Of a renamed clinic's names they know what the
titles of the passages that they have read say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import combinations

import numpy as np

from workup.case import Case, Evidence, Item, Knowledge, Source, evidence_of
from workup.cases.clinic.renamed import meanings
from workup.environments.base.queries import known_findings, random_queries
from workup.environments.base.ranked_teacher import (
    MOST_EXAMINATIONS,
    informative,
    learned,
    ranked,
)
from workup.environments.base.searched import Searched
from workup.environments.base.searching import SEARCH, SEPARATOR
from workup.environments.evidence import EvidenceSeeking
from workup.episode import DIAGNOSE, Completion, Episode, Message, Turn
from workup.ports import Act, Sampling
from workup.rl.rollout import seed_key
from workup.text import tagged

Known = Callable[[Case], Evidence]
Read = Callable[[Turn], Sequence[str]]  # a turn → the passages that its search returned
Write = Callable[[str, str], str]  # kind of action, content → its text in the environment's grammar
_EQUAL = 1e-9  # probabilities this near are equal


def _given(case: Case) -> Evidence:
    return evidence_of(case.given)


def _nothing(turn: Turn) -> Sequence[str]:
    return ()


class BayesDiagnoser:
    """Asks nothing and names the most probable diagnosis given what was seen.

    It is a `Doctor` and a `Diagnoser` (CR-11). `known` is what the opening tells of a case, `read`
    what a search returned.
    """

    def __init__(
        self,
        knowledge: Knowledge,
        items: Sequence[Item],
        write: Write = tagged,
        known: Known = _given,
        read: Read = _nothing,
    ) -> None:
        self.knowledge, self.write, self.known, self.read = knowledge, write, known, read
        self.items = {item.name: item for item in items}

    async def act(
        self, case: Case, opening: Sequence[Message], past: Sequence[Turn], sampling: Sampling
    ) -> Act:
        return self._say(DIAGNOSE, self.most_probable(self.evidence(case, past)))

    async def diagnose(self, episode: Episode) -> str:
        return self.most_probable(self.evidence(episode.case, episode.turns))

    def evidence(self, case: Case, past: Sequence[Turn]) -> Evidence:
        """What `past` and the presentation revealed: item → ids, `()` for a normal answer.

        An item that was answered with its parent's normal answer says that the parent is normal.
        """
        seen = {fact_id for turn in past for fact_id in turn.observation.evidence}
        known = dict(self.known(case))
        for name, ids in evidence_of(
            fact for fact in (*case.given, *case.truth.facts) if fact.id in seen
        ).items():
            known[name] = tuple(dict.fromkeys((*known.get(name, ()), *ids)))
        for turn in past:
            item = self.items.get(turn.observation.item)
            if item is not None and not turn.observation.evidence:
                known.setdefault(item.name, ())
                parent = self.items.get(item.parent or "")
                if (
                    parent is not None
                    and turn.observation.messages[0].content == parent.normal != item.normal
                ):
                    known.setdefault(parent.name, ())
        titles = (text.partition("\n")[0] for turn in past for text in self.read(turn))
        return known | meanings(case, titles)

    def _say(self, kind: str, content: str) -> Act:
        return Act((), Completion(self.write(kind, content)))

    def most_probable(self, evidence: Evidence) -> str:
        return self.knowledge.diagnoses[int(np.argmax(self.knowledge.posterior(evidence)))]


class FullInformationDoctor(BayesDiagnoser):
    """The upper bound: diagnoses at once from the whole record.

    It reads the record from `case.truth`, which no other doctor may.
    """

    def evidence(self, case: Case, past: Sequence[Turn]) -> Evidence:
        normal: Evidence = dict.fromkeys(self.items, ())
        return normal | evidence_of((*case.given, *case.truth.facts)) | meanings(case)


class RandomDoctor(BayesDiagnoser):
    """Asks distinct random items, `max_turns` − 1 of them or all there are, then diagnoses.

    The draws depend only on `seed`, the case, the sampling key and the turn.
    """

    def __init__(
        self,
        knowledge: Knowledge,
        items: Sequence[Item],
        max_turns: int = 10,
        seed: int = 0,
        write: Write = tagged,
    ) -> None:
        super().__init__(knowledge, items, write)
        self.max_turns, self.seed = max_turns, seed

    async def act(
        self, case: Case, opening: Sequence[Message], past: Sequence[Turn], sampling: Sampling
    ) -> Act:
        evidence = self.evidence(case, past)
        unasked = [name for name in self.items if name not in evidence]
        if len(past) >= self.max_turns - 1 or not unasked:
            return self._say(DIAGNOSE, self.most_probable(evidence))
        item = self.items[
            unasked[seed_key(self.seed, case.id, sampling.key, len(past)) % len(unasked)]
        ]
        return self._say(item.kind.value, item.name)


class RandomSearcher(BayesDiagnoser):
    """Searches as demonstrations do, `max_turns` − 1 times, then diagnoses.

    The draws depend only on `seed`, the case, the sampling key and the turn.
    """

    def __init__(
        self, source: Source, knowledge: Knowledge, world: Searched, seed: int = 0
    ) -> None:
        super().__init__(knowledge, source.items, world.write, world.known, world.documents)
        self.source, self.world, self.seed = source, world, seed

    async def act(
        self, case: Case, opening: Sequence[Message], past: Sequence[Turn], sampling: Sampling
    ) -> Act:
        if len(past) >= self.world.max_turns - 1:
            return self._say(DIAGNOSE, self.most_probable(self.evidence(case, past)))
        rng = np.random.default_rng(seed_key(self.seed, case.id, sampling.key, len(past)))
        findings = known_findings(self.source, case, self.world.grammar)
        queries = random_queries(self.source, findings, (), rng, self.world.grammar.subqueries)
        return self._say(SEARCH, SEPARATOR.join(queries))


class IdealSearcher(BayesDiagnoser):
    """Makes the search after which the most probable diagnosis is most probable, as often as pays.

    It tries every query of all known findings, of one and of two of them, since a library always
    answers alike, and takes the best. With `max_turns` − 1 searches or when none helps further, it
    diagnoses.
    """

    def __init__(self, source: Source, knowledge: Knowledge, world: Searched) -> None:
        super().__init__(knowledge, source.items, world.write, world.known, world.documents)
        self.source, self.world = source, world

    async def act(
        self, case: Case, opening: Sequence[Message], past: Sequence[Turn], sampling: Sampling
    ) -> Act:
        best, chosen = self._sure(case, past), ""
        most = max(self.knowledge.posterior(self.known(case) | meanings(case)))
        for query in self._queries(case) if len(past) < self.world.max_turns - 1 else ():
            if best >= most - _EQUAL:
                break
            tried = await self._tried(case, past, query)
            if (sure := self._sure(case, tried)) > best + _EQUAL:
                best, chosen = sure, query
        if chosen:
            return self._say(SEARCH, chosen)
        return self._say(DIAGNOSE, self.most_probable(self.evidence(case, past)))

    def _queries(self, case: Case) -> Iterator[str]:
        findings = known_findings(self.source, case, self.world.grammar)
        yield ", ".join(findings)
        yield from findings
        yield from map(", ".join, combinations(findings, 2))

    async def _tried(self, case: Case, past: Sequence[Turn], query: str) -> Sequence[Turn]:
        text = self.world.write(SEARCH, query)
        action = self.world.read(text)
        observation = await self.world.answer(case, (), action)
        return (*past, Turn((), Completion(text), action, observation))

    def _sure(self, case: Case, past: Sequence[Turn]) -> float:
        return max(self.knowledge.posterior(self.evidence(case, past)))


class GreedyDoctor(BayesDiagnoser):
    """Asks the item of largest expected information gain, `max_turns` − 1 times, then diagnoses."""

    def __init__(
        self,
        knowledge: Knowledge,
        items: Sequence[Item],
        max_turns: int = 10,
        write: Write = tagged,
    ) -> None:
        super().__init__(knowledge, items, write)
        self.max_turns = max_turns
        # The choice depends on the evidence alone, so encounters share their first questions.
        self._choose = lru_cache(maxsize=1 << 15)(self._best)

    async def act(
        self, case: Case, opening: Sequence[Message], past: Sequence[Turn], sampling: Sampling
    ) -> Act:
        evidence = self.evidence(case, past)
        choice = (
            self._choose(frozenset(evidence.items())) if len(past) < self.max_turns - 1 else None
        )
        if choice is None:
            return self._say(DIAGNOSE, self.most_probable(evidence))
        return self._say(self.items[choice].kind.value, choice)

    def _best(self, evidence: frozenset[tuple[str, tuple[str, ...]]]) -> str | None:
        known = dict(evidence)
        unasked = [name for name in self.items if name not in known]
        return unasked[int(np.argmax(self.knowledge.gains(known, unasked)))] if unasked else None


class RankedDoctor(BayesDiagnoser):
    """Ranks at most `length` candidates and orders the most informative examinations, then ends.

    It ranks by the exact posterior, and leaves out candidates that are hardly possible: the best
    list of its length. It orders `orders` examinations in every turn but the last.
    """

    def __init__(
        self,
        knowledge: Knowledge,
        items: Sequence[Item],
        world: EvidenceSeeking,
        length: int,
        orders: int = MOST_EXAMINATIONS,
    ) -> None:
        super().__init__(knowledge, items, world.write, world.known)
        self.world, self.length, self.orders = world, length, orders

    async def act(
        self, case: Case, opening: Sequence[Message], past: Sequence[Turn], sampling: Sampling
    ) -> Act:
        evidence = self.evidence(case, past)
        candidates = ranked(self.knowledge, evidence, self.length)
        if len(past) >= self.world.max_turns - 1:
            return Act((), Completion(self.world.write_lists(candidates)))
        offered = self.world.offered(len(past))
        orders = informative(self.knowledge, evidence, offered, self.orders)
        return Act((), Completion(self.world.write_lists(candidates, orders)))

    def evidence(self, case: Case, past: Sequence[Turn]) -> Evidence:
        """What the presentation and all results say; an item without a finding is normal."""
        evidence = self.known(case)
        for turn in past:
            evidence = learned(evidence, case, turn, self.world.examined(turn))
        return evidence
