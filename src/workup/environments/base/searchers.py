"""Anchors that search: they learn from passages what names mean that are drawn for every case."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Protocol

import numpy as np

from workup.core.case import Case, Evidence, Knowledge, Source
from workup.core.channel import Channel
from workup.core.draws import seed_key
from workup.core.episode import DIAGNOSE, Action, Completion, Message, Observation, Turn
from workup.core.ports import Act, Sampling
from workup.environments.base.anchors import BayesDiagnoser, headings
from workup.environments.base.queries import (
    known_findings,
    least_searches,
    links_in,
    own_names,
    random_queries,
)
from workup.environments.base.searching import SEARCH, SEPARATOR, SearchGrammar

_EQUAL = 1e-9  # probabilities this near are equal
_TRIALS = 4096  # answers that are kept: before its next search it tries the same queries again


class Searchable(Protocol):
    """What a searcher needs of an environment with a library; `ports` says what each member is."""

    grammar: SearchGrammar

    @property
    def max_turns(self) -> int: ...

    def read(self, text: str) -> Action: ...

    def write(self, kind: str, content: str) -> str: ...

    async def answer(self, case: Case, past: Sequence[Turn], action: Action) -> Observation: ...

    @property
    def asks(self) -> bool: ...

    def known(self, case: Case) -> Evidence: ...

    @property
    def channel(self) -> Channel | None: ...

    @property
    def queried(self) -> int:
        """Most findings in a demonstrated query; 0: all of them."""
        ...


class _Searcher(BayesDiagnoser):
    def __init__(self, source: Source, knowledge: Knowledge, world: Searchable) -> None:
        super().__init__(knowledge, source.items, world.write, world.known, world.channel)
        self.source, self.world = source, world

    def links_read(self, case: Case, past: Sequence[Turn]) -> list[str]:
        """The links in what was found: to search for one leads to the other document."""
        found = [each for turn in past for each in turn.observation.passages or ()]
        return links_in(found, self.source, case)


class RandomSearcher(_Searcher):
    """Draws queries as demonstrations do, `max_turns` − 1 times, then diagnoses.

    Of the names that it read it searches for links alone, never for a disease.
    Where findings can be asked for, each of these actions is by even chance a question for one that
    is not known yet, as long as `least_searches` still fit in. The draws depend only on `seed`, the
    case, the sampling key and the turn.
    """

    def __init__(
        self, source: Source, knowledge: Knowledge, world: Searchable, seed: int = 0
    ) -> None:
        super().__init__(source, knowledge, world)
        self.seed = seed

    async def act(
        self, case: Case, opening: Sequence[Message], past: Sequence[Turn], sampling: Sampling
    ) -> Act:
        evidence, left = self.evidence(case, past), self.world.max_turns - 1 - len(past)
        if left <= 0:
            return self.say(DIAGNOSE, self.most_probable(evidence))
        rng = np.random.default_rng(seed_key(self.seed, case.id, sampling.key, len(past)))
        lacking = least_searches(self.source) - sum(turn.action.kind == SEARCH for turn in past)
        unasked = [item for item in self.source.items if item.name not in evidence]
        if self.world.asks and unasked and left > lacking and rng.random() < 0.5:
            item = unasked[int(rng.integers(len(unasked)))]
            return self.say(item.kind.value, item.name)
        findings = known_findings(self.source, case, self.world.grammar, past)
        named = self.links_read(case, past)
        subqueries, most = self.world.grammar.subqueries, self.world.queried
        queries = random_queries(self.source, findings, named, rng, subqueries, most)
        return self.say(SEARCH, SEPARATOR.join(queries))


class IdealSearcher(_Searcher):
    """Searches while that makes its best diagnosis more probable, then diagnoses; never asks.

    It chooses one search at a time, of one query each, so that it is no bound for who writes
    several sub-queries. Before each search it tries queries of all known findings, of one and of
    two of them, and takes the one after which the largest posterior probability is highest. A trial
    is exact, since a library always answers alike. It diagnoses after `max_turns` − 1 searches, or
    when no query raises that probability.

    Where links lead from document to document it also tries those that it has read. While another
    search is left it makes a + b larger. a is the probability of the best diagnosis that it can
    name, b that of the best one if each disease whose findings it read had a known name.
    """

    def __init__(self, source: Source, knowledge: Knowledge, world: Searchable) -> None:
        super().__init__(source, knowledge, world)
        self._answers: dict[tuple[str, str], Turn] = {}

    async def act(
        self, case: Case, opening: Sequence[Message], past: Sequence[Turn], sampling: Sampling
    ) -> Act:
        left = self.world.max_turns - 1 - len(past)
        best, chosen = self._worth(case, past, left - 1), ""
        # With all names known nothing is more probable: there it need not look further.
        most = self._sure(self.evidence(case, past) | self.knowledge.read(case))
        if left > 1 and own_names(self.source, case).links:
            most *= 2  # `_worth` is then the sum of two probabilities
        for query in self._queries(case, past) if left > 0 else ():
            if best >= most - _EQUAL:
                break
            tried = await self._tried(case, past, query)
            if (worth := self._worth(case, tried, left - 1)) > best + _EQUAL:
                best, chosen = worth, query
        if chosen:
            return self.say(SEARCH, chosen)
        return self.say(DIAGNOSE, self.most_probable(self.evidence(case, past)))

    def _queries(self, case: Case, past: Sequence[Turn]) -> Iterator[str]:
        findings = known_findings(self.source, case, self.world.grammar, past)
        yield ", ".join(findings)
        yield from findings
        yield from map(", ".join, combinations(findings, 2))
        yield from self.links_read(case, past)

    async def _tried(self, case: Case, past: Sequence[Turn], query: str) -> Sequence[Turn]:
        if (turn := self._answers.get((case.id, query))) is None:
            text = self.world.write(SEARCH, query)
            action = self.world.read(text)
            turn = Turn((), Completion(text), action, await self.world.answer(case, (), action))
            if len(self._answers) >= _TRIALS:
                self._answers.clear()
            self._answers[case.id, query] = turn
        return (*past, turn)

    def _worth(self, case: Case, past: Sequence[Turn], left: int) -> float:
        """How sure it would be after `past`, with `left` searches after it."""
        evidence = self.evidence(case, past)
        sure = self._sure(evidence)
        names = own_names(self.source, case)
        if left > 0 and names.links:
            read = (*headings(past), *names.diagnoses)
            sure += self._sure(evidence | self.knowledge.read(case, read))
        return sure

    def _sure(self, evidence: Evidence) -> float:
        return max(self.knowledge.posterior(evidence))


class AskingSearcher(IdealSearcher):
    """Asks in the first half of its `max_turns` − 1 actions, then searches as `IdealSearcher` does.

    It leaves room for `least_searches`. It asks for what would tell most if it knew what all names
    mean. Both halves are chosen one action at a time, so that it is a strong doctor and no bound.
    """

    async def act(
        self, case: Case, opening: Sequence[Message], past: Sequence[Turn], sampling: Sampling
    ) -> Act:
        evidence = self.evidence(case, past) | self.knowledge.read(case)
        unasked = [name for name in self.items if name not in evidence]
        actions = self.world.max_turns - 1
        if len(past) >= min(actions // 2, actions - least_searches(self.source)) or not unasked:
            return await super().act(case, opening, past, sampling)
        gains = self.knowledge.gains(evidence, unasked)
        item = self.items[unasked[int(np.argmax(gains))]]
        return self.say(item.kind.value, item.name)
