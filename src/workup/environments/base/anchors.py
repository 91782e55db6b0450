"""Anchors: doctors that know the generative model of the cases, as bounds for learning curves.

What an environment's own grammar needs stands in `searchers` and `ranked_doctor`. All anchors name
the most probable diagnosis of the exact posterior; they differ in what they ask. They see what any
doctor sees (`case.given`, and the ids that answers revealed), except `FullInformationDoctor`, which
reads the record. Where names are drawn for every case, they know of a name only what the passages
that they have read say about it (`Knowledge.read`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import numpy as np

from workup.core.case import Case, Evidence, Item, Knowledge, Source, evidence_of
from workup.core.channel import Channel, Statement, heard, settled
from workup.core.draws import seed_key
from workup.core.episode import DIAGNOSE, Completion, Episode, Message, Turn
from workup.core.ports import Act, Environment, Sampling
from workup.core.text import tagged

Known = Callable[[Case], Evidence]
Write = Callable[[str, str], str]  # kind of action, content → its text in the environment's grammar


def _given(case: Case) -> Evidence:
    return evidence_of(case.given)


def told(case: Case, past: Sequence[Turn], opening: Evidence) -> dict[str, tuple[str, ...]]:
    """What the `opening` told and the turns revealed: item → ids of findings."""
    seen = {fact_id for turn in past for fact_id in turn.observation.evidence}
    revealed = (fact for fact in case.all_facts if fact.id in seen)
    known = dict(opening)
    for name, ids in evidence_of(revealed).items():
        known[name] = tuple(dict.fromkeys((*known.get(name, ()), *ids)))
    own = {fact.id for fact in case.all_facts}
    for turn in past:
        item = turn.observation.item  # none where documents were read
        invented = tuple(id for id in turn.observation.evidence if id not in own)
        if item and invented:
            known[item] = invented
    return known


def unsure_of(past: Sequence[Turn]) -> set[str]:
    """The items that the patient said it was not sure of."""
    seen = (turn.observation for turn in past)
    return {each.item for each in seen if each.item and not each.understood}


def headings(past: Sequence[Turn]) -> Iterator[str]:
    """The headings of all passages that were read."""
    return (each.heading for turn in past for each in turn.observation.passages or ())


class BayesDiagnoser:
    """Asks nothing and names the most probable diagnosis given what was seen.

    It is a `Doctor` and a `Diagnoser` (CR-11). `known` is what the opening tells of a case. With a
    `channel` it knows how answers deviate from the truth, and weighs each statement by that.
    Without one it believes what it hears: of two answers to one question the affirmation.
    """

    def __init__(
        self,
        knowledge: Knowledge,
        items: Sequence[Item],
        write: Write = tagged,
        known: Known = _given,
        channel: Channel | None = None,
    ) -> None:
        self.knowledge = knowledge if channel is None else knowledge.through(channel)
        self.write, self.known, self.channel = write, known, channel
        self.items = {item.name: item for item in items}

    async def act(
        self, case: Case, opening: Sequence[Message], past: Sequence[Turn], sampling: Sampling
    ) -> Act:
        return self.say(DIAGNOSE, self.most_probable(self.evidence(case, past)))

    async def diagnose(self, episode: Episode) -> str:
        return self.most_probable(self.evidence(episode.case, episode.turns))

    def evidence(self, case: Case, past: Sequence[Turn]) -> Evidence:
        """What `past` and the presentation revealed: item → ids, `()` for a normal answer.

        An item that was answered with its parent's normal answer says that the parent is normal.
        """
        opening = self.known(case)
        said = self._said(case, past, opening) if self.channel else {}
        known = told(case, past, opening) | said
        for seen in (turn.observation for turn in past):
            item = self.items.get(seen.item) if seen.understood else None
            if item is not None and not seen.evidence:
                known.setdefault(item.name, ())
                parent = self.items.get(item.parent or "")
                if parent is not None and seen.messages[0].content == parent.normal != item.normal:
                    known.setdefault(parent.name, ())
        return known | self.knowledge.read(case, headings(past))

    def _said(self, case: Case, past: Sequence[Turn], opening: Evidence) -> Evidence:
        """What was said of each item of the channel.

        Left out are the items that the opening or the case's `given` tell.
        """
        certain = {*opening, *evidence_of(case.given)}
        own = {fact.id: fact.item for fact in case.truth.facts}
        said: dict[str, list[Statement]] = {}
        for seen in (turn.observation for turn in past):
            item = seen.item
            if self.channel and item in self.channel.answers and item not in certain:
                affirmed = tuple(id for id in seen.evidence if own.get(id, item) == item)
                said.setdefault(item, []).append(affirmed if seen.understood else None)
        return {item: heard(statements) for item, statements in said.items()}

    def say(self, kind: str, content: str) -> Act:
        return Act((), Completion(self.write(kind, content)))

    def most_probable(self, evidence: Evidence) -> str:
        return self.knowledge.diagnoses[int(np.argmax(self.knowledge.posterior(evidence)))]


def exact_reader(source: Source, environment: Environment) -> BayesDiagnoser | None:
    """Who reads encounters with cases of `source` in `environment` by the source's own model.

    It knows how the answers deviate from the truth, if they do.

    None where the source has no model of its cases.
    """
    if source.knowledge is None:
        return None
    about = environment.about
    return BayesDiagnoser(
        source.knowledge, source.items, environment.write, about.known, about.channel
    )


class FullInformationDoctor(BayesDiagnoser):
    """The upper bound: diagnoses at once from the whole record.

    It reads the record from `case.truth`, which no other doctor may.
    """

    def evidence(self, case: Case, past: Sequence[Turn]) -> Evidence:
        normal: Evidence = dict.fromkeys(self.items, ())
        return normal | evidence_of(case.all_facts) | self.knowledge.read(case)


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
        known: Known = _given,
        channel: Channel | None = None,
    ) -> None:
        super().__init__(knowledge, items, write, known, channel)
        self.max_turns, self.seed = max_turns, seed

    async def act(
        self, case: Case, opening: Sequence[Message], past: Sequence[Turn], sampling: Sampling
    ) -> Act:
        evidence = self.evidence(case, past)
        asked = {*evidence, *unsure_of(past)}
        unasked = [name for name in self.items if name not in asked]
        if len(past) >= self.max_turns - 1 or not unasked:
            return self.say(DIAGNOSE, self.most_probable(evidence))
        item = self.items[
            unasked[seed_key(self.seed, case.id, sampling.key, len(past)) % len(unasked)]
        ]
        return self.say(item.kind.value, item.name)


class GreedyDoctor(BayesDiagnoser):
    """Asks the item of largest expected information gain, `max_turns` − 1 times, then diagnoses.

    With a channel it asks again where that tells most; without one, of nothing a second time.
    """

    def __init__(
        self,
        knowledge: Knowledge,
        items: Sequence[Item],
        max_turns: int = 10,
        write: Write = tagged,
        known: Known = _given,
        channel: Channel | None = None,
    ) -> None:
        super().__init__(knowledge, items, write, known, channel)
        self.max_turns = max_turns
        # The choice depends on the evidence alone, so encounters share their first questions. It is
        # sorted, so that rounding does not depend on its order.
        self._choose = lru_cache(maxsize=1 << 15)(self._best)

    async def act(
        self, case: Case, opening: Sequence[Message], past: Sequence[Turn], sampling: Sampling
    ) -> Act:
        evidence = self.evidence(case, past)
        asked = frozenset() if self.channel else frozenset(unsure_of(past))
        choice = (
            self._choose(tuple(sorted(evidence.items())), asked)
            if len(past) < self.max_turns - 1
            else None
        )
        if choice is None:
            return self.say(DIAGNOSE, self.most_probable(evidence))
        return self.say(self.items[choice].kind.value, choice)

    def _best(
        self, evidence: tuple[tuple[str, tuple[str, ...]], ...], asked: frozenset[str]
    ) -> str | None:
        known = dict(evidence)
        left = [name for name in self.items if not settled(name, known) and name not in asked]
        return left[int(np.argmax(self.knowledge.gains(known, left)))] if left else None
