"""Anchors that search: exact doctors who learn from passages what a made-up name means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Protocol

import numpy as np

from workup.case import Case, Knowledge, Source
from workup.cases.clinic.renamed import meanings
from workup.environments.base.anchors import BayesDiagnoser
from workup.environments.base.queries import known_findings, random_queries
from workup.environments.base.searching import SEARCH, SEPARATOR, SearchGrammar
from workup.episode import DIAGNOSE, Completion, Message, Turn
from workup.ports import Act, Environment, Sampling
from workup.rl.rollout import seed_key

_EQUAL = 1e-9  # probabilities this near are equal


class Library(Environment, Protocol):
    """What a searcher needs of an environment with a library."""

    grammar: SearchGrammar


class RandomSearcher(BayesDiagnoser):
    """Searches as demonstrations do, `max_turns` − 1 times, then diagnoses.

    The draws depend only on `seed`, the case, the sampling key and the turn.
    """

    def __init__(self, source: Source, knowledge: Knowledge, world: Library, seed: int = 0) -> None:
        super().__init__(knowledge, source.items, world.write, world.known, world.documents)
        self.source, self.world, self.seed = source, world, seed

    async def act(
        self, case: Case, opening: Sequence[Message], past: Sequence[Turn], sampling: Sampling
    ) -> Act:
        if len(past) >= self.world.max_turns - 1:
            return self.say(DIAGNOSE, self.most_probable(self.evidence(case, past)))
        rng = np.random.default_rng(seed_key(self.seed, case.id, sampling.key, len(past)))
        findings = known_findings(self.source, case, self.world.grammar)
        queries = random_queries(self.source, findings, (), rng, self.world.grammar.subqueries)
        return self.say(SEARCH, SEPARATOR.join(queries))


class IdealSearcher(BayesDiagnoser):
    """Searches while that makes its best diagnosis more probable, then diagnoses.

    Before each search it tries queries of all known findings, of one and of two of them, and takes
    the one after which the largest posterior probability is highest. A trial is exact, since a
    library always answers alike. It diagnoses after `max_turns` − 1 searches, or when no query
    raises that probability.
    """

    def __init__(self, source: Source, knowledge: Knowledge, world: Library) -> None:
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
            return self.say(SEARCH, chosen)
        return self.say(DIAGNOSE, self.most_probable(self.evidence(case, past)))

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
