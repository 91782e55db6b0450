"""Patients with a dose of trouble: they withhold, forget, contradict themselves and fabricate.

`workup.core.channel` says how likely each is. What happens is drawn by the seed, the case and the
item alone, so that every doctor meets the same patient. What happens at a small dose also happens
at a larger one. There it may not show: a denial that is contradicted is the truth. The case stays
as it is: what was said is compared with it to tell what became of the truth (`became`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count, islice
from typing import NamedTuple

from pydantic import Field

from workup.core.case import Case, Fact, Kind, Source
from workup.core.channel import Channel, Dose
from workup.core.draws import uniform
from workup.core.episode import Observation, Turn
from workup.environments.base.encounter import EncounterSettings
from workup.environments.base.lexical import chinese

UNSURE = "I am not sure."
UNSURE_CHINESE = "我不确定。"
DENIED = "No, nothing of the kind."
"""How something is denied that has no normal answer of its own."""

NOTHING = "no finding"
APART = "; "  # between the names of what one free answer tells
POOL = 500  # training cases that fabricated answers are taken from
ASKED = frozenset(kind.value for kind in Kind)
WITHHELD = "withheld"
FORGOTTEN = "forgotten"
CONTRADICTED = "contradicted"
FABRICATED = "fabricated"


class TroubleSettings(EncounterSettings):
    """What can be set where a patient is asked."""

    dose: float = Field(
        0, ge=0, le=1, description="dose of trouble: each of the four rates that is not set"
    )
    withholding: float | None = Field(
        None, ge=0, le=1, description="rate at which a finding that is present is denied"
    )
    forgetting: float | None = Field(
        None, ge=0, le=1, description="rate at which the patient is not sure"
    )
    contradicting: float | None = Field(
        None, ge=0, le=1, description="rate at which it answers otherwise when asked again"
    )
    fabricating: float | None = Field(
        None, ge=0, le=1, description="rate at which a finding that is absent is affirmed"
    )
    troubled: tuple[Kind, ...] = Field(
        (Kind.HISTORY,), description="kinds of items that the dose holds for: ask, examine, …"
    )
    trouble_seed: int = Field(0, ge=0, description="draws what becomes of each case's answers")

    @property
    def rates(self) -> Dose:
        given = (getattr(self, name) for name in Dose.__slots__)
        return Dose(*(self.dose if rate is None else rate for rate in given))


class Said(NamedTuple):
    """What a patient says of `topic`: the facts affirmed, none where it denies.

    `facts` is None where it is not sure. `true`: this reply and all before it on the topic are the
    truth.
    """

    topic: str
    facts: tuple[Fact, ...] | None
    true: bool


@dataclass(frozen=True)
class Trouble:
    """What becomes of a patient's answers.

    `items` are those that the dose holds for; of what a case's free facts tell, those of `kinds`.
    `pool` are the cases whose facts a patient may invent: for an absent item, those that another
    patient has of it.
    """

    dose: Dose
    items: Collection[str]
    kinds: Collection[Kind]
    pool: Sequence[Case] = ()
    seed: int = 0
    listed: Collection[str] = ()

    @classmethod
    def of(cls, source: Source, settings: TroubleSettings) -> Trouble | None:
        """The trouble that patients of `source` make; None with a dose of 0."""
        if settings.rates == Dose():
            return None
        return cls(
            settings.rates,
            frozenset(item.name for item in source.items if item.kind in settings.troubled),
            frozenset(settings.troubled),
            source.train or source.test,
            settings.trouble_seed,
            frozenset(item.name for item in source.items),
        )

    @cached_property
    def channel(self) -> Channel:
        """The probabilities that it draws by."""
        answers = {
            item: tuple(
                tuple(fact.id for fact in facts) for facts in self._inventions.get(item, ())
            )
            for item in self.items
        }
        return Channel(self.dose, answers)

    @cached_property
    def _inventions(self) -> Mapping[str, Sequence[tuple[Fact, ...]]]:
        """Every different answer of each item in the pool."""
        found: dict[str, dict[tuple[str, ...], tuple[Fact, ...]]] = {}
        step = max(1, len(self.pool) // POOL)
        for case in (self.pool[place] for place in range(0, len(self.pool), step)[:POOL]):
            by_item: dict[str, list[Fact]] = {}
            for fact in case.all_facts:
                by_item.setdefault(fact.item, []).append(fact)
            for item in by_item.keys() & self.items:
                facts = tuple(sorted(by_item[item], key=lambda fact: fact.id))
                found.setdefault(item, {}).setdefault(tuple(f.id for f in facts), facts)
        return {item: [answers[ids] for ids in sorted(answers)] for item, answers in found.items()}

    def hear(self, case: Case, past: Sequence[Turn], seen: Observation) -> Said | None:
        """What the patient says in place of `seen`, the true answer after the turns `past`.

        None where the dose does not hold: for items of other kinds, for what the case states
        openly, and for what was not understood.
        """
        facts = [fact for fact in case.truth.facts if fact.id in seen.evidence]
        topic = seen.item or APART.join(dict.fromkeys(fact.item or fact.id for fact in facts))
        if topic in self.items:
            facts = [fact for fact in case.truth.facts if fact.item == topic]
        elif topic in self.listed or not facts or any(f.kind not in self.kinds for f in facts):
            return None
        given = {id for fact in case.given for id in (fact.id, fact.item)}
        if not seen.understood or not given.isdisjoint((topic, *seen.evidence)):
            return None
        before = sum(turn.observation.item == topic for turn in past)
        told = list(islice(self._statements(case, topic, tuple(facts)), before + 1))
        return Said(topic, told[-1], all(each == tuple(facts) for each in told))

    def _statements(
        self, case: Case, topic: str, facts: tuple[Fact, ...]
    ) -> Iterator[tuple[Fact, ...] | None]:
        """What the patient says of the topic when asked for the first time, the second, …"""

        def happens(rate: float, *what: object) -> bool:
            return self._uniform(case, topic, *what) < rate

        dose, invented = self.dose, self._inventions.get(topic, ())
        affirmed = facts
        if not facts and invented:
            place = int(self._uniform(case, topic, "invented") * len(invented))
            own = {fact.id for fact in case.all_facts}
            affirmed = tuple(
                replace(fact, id=f"invented:{fact.id}") if fact.id in own else fact
                for fact in invented[place]
            )
        lies = happens(dose.withholding if facts else dose.fabricating, "lies")
        held = affirmed if bool(facts) != lies else ()
        now = None if happens(dose.forgetting, "forgets") else held
        for number in count(1):
            yield now
            if happens(dose.contradicting, "again", number):
                now = held if now is None else () if now else affirmed

    def _uniform(self, case: Case, topic: str, *what: object) -> float:
        """A number in [0, 1) that the seed, the case, the topic and `what` fix."""
        return uniform("trouble", self.seed, case.id, topic, *what)


def unsure(text: str) -> str:
    """How a patient says that it is not sure, in the language of `text`."""
    return UNSURE_CHINESE if chinese(text) else UNSURE


def became(case: Case, past: Sequence[Turn], turn: Turn) -> str:
    """What became of the truth in the answer of `turn`, after the turns `past`.

    "" where the answer is true and agrees with the last one on its topic, and where nothing was
    asked.
    """
    topic = turn.observation.item
    if not topic or turn.action.kind not in ASKED:
        return ""
    said = _statement(case, turn)
    earlier = [t for t in past if t.observation.item == topic and t.action.kind in ASKED]
    if earlier and _statement(case, earlier[-1]) != said:
        return CONTRADICTED
    if said is None:
        return FORGOTTEN
    own = {fact.id for fact in truth_of(case, topic)}
    if not said <= own:
        return FABRICATED
    return WITHHELD if own and not said else ""


def doubt(case: Case, past: Sequence[Turn], turn: Turn) -> str:
    """What became of the truth, and the truth: "withheld; true: …"; "" where the answer is true."""
    if not (mark := became(case, past, turn)):
        return ""
    topic = turn.observation.item
    true = " ".join(fact.text for fact in truth_of(case, topic)) or NOTHING
    return f"{mark}; true: {true}"


def truth_of(case: Case, topic: str) -> list[Fact]:
    """The facts of the case that an answer on `topic` would tell if it were true."""
    facts = case.all_facts
    named = [fact for fact in facts if fact.item == topic]
    return named or [f for f in facts if (f.item or f.id) in topic.split(APART)]


def _statement(case: Case, turn: Turn) -> frozenset[str] | None:
    """The ids that the answer affirms of its item; None where the patient is not sure."""
    if not turn.observation.understood:
        return None
    own = {fact.id for fact in truth_of(case, turn.observation.item)}
    others = {fact.id for fact in case.all_facts} - own
    return frozenset(turn.observation.evidence) - others
