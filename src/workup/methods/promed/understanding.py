"""Which facts the doctor has understood after each turn (ProMed's U_t, PM-3).

There are two ways. By identity: a fact counts from the turn on in which the patient told it. Or
from the doctor's own words: after every turn the model writes what it understands of the patient,
and a fact checker says which facts that text entails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from workup.core.case import Fact
from workup.core.episode import DIAGNOSE, Episode, Message, Turn
from workup.core.ports import Model, Request
from workup.environments.base.patients import answered_before
from workup.methods.promed.shapley import revealed
from workup.roles.fence import RULES, clean, prompt
from workup.roles.judges.assessor import Assessor
from workup.roles.judges.questions import Entailed, Stated

T = TypeVar("T")

# An episode and its facts F → U_0 … U_T by ids of facts, T the number of its turns
Understanding = Callable[[Episode, Sequence[Fact]], Awaitable[Sequence[frozenset[str]]]]

LONGEST_START, LONGEST_LINE = 20_000, 2_000  # characters
_INSTRUCTIONS = (
    "You are the doctor of a simulated consultation; this is a test bench and no medical device. "
    "Write down what you know about the patient by now, for a colleague who was not there: every "
    "complaint, finding, number, place and time that the material states, what was denied, and "
    "what follows from it without a doubt. Invent nothing and leave nothing out; what was only "
    "asked and not answered is not known. Write plain sentences, in the language of the case."
)
_CLOSING = "The material ends here. Write what you know about the patient, and nothing else."


async def identified(episode: Episode, facts: Sequence[Fact]) -> Sequence[frozenset[str]]:
    """U by identity: the facts of the presentation, and those that the patient's answers told.

    A fact is never lost.
    """
    given = frozenset(fact.id for fact in episode.case.given)
    return [given | known for known in revealed(episode)]


@dataclass
class WrittenSummary:
    """U from the doctor's own words (PM-3).

    U_0 comes from a summary of the opening alone, so that no reward is paid for its content.

    A turn can only add what it told. That a later summary is merely written better is not due to
    the question. So a fact counts as understood after turn t under two conditions: the summary
    after turn t states it; and the first summary stated it, or the summary after a turn that told
    it did. A fact that a later summary leaves out is lost, and is understood again when it is back.
    A turn whose answer told no fact, or that repeats an earlier question, changes nothing and costs
    no call.

    Example: the first summary states nothing. Three answers tell nothing, then A, then C. Both
    later summaries state A and B. U_0 to U_3 are ∅, ∅, {A} and {A}: nobody told B, and C was not
    written down.

    Equal questions to doctor and checker are asked once in the life of this object. Make a new one
    whenever the doctor's weights have changed.
    """

    doctor: Model
    checker: Assessor[Stated, Entailed]
    asked: dict[Hashable, asyncio.Future[Any]] = field(default_factory=dict)

    async def __call__(self, episode: Episode, facts: Sequence[Fact]) -> Sequence[frozenset[str]]:
        """U_0 … U_T of an episode. Raises RolloutError when doctor or checker give up."""
        if not facts:
            return [frozenset()] * (len(episode.turns) + 1)
        news = [0]
        # The turns in which the patient was asked something new and told a fact.
        for t, turn in enumerate(episode.turns, 1):
            asked = turn.action.content if turn.action.kind != DIAGNOSE else ()
            past = episode.turns[: t - 1]
            if asked and turn.observation.evidence and answered_before(past, asked[0]) is None:
                news.append(t)
        stated = await asyncio.gather(
            *(self._stated(episode, episode.turns[:t], facts) for t in news)
        )
        written = dict(zip(news, stated, strict=True))
        understood = [written[0]]
        learned = written[0]
        for t, turn in enumerate(episode.turns, 1):
            if t in written:
                learned |= written[t].intersection(turn.observation.evidence)
            understood.append(written[t] & learned if t in written else understood[-1])
        return understood

    async def _stated(
        self, episode: Episode, past: Sequence[Turn], facts: Sequence[Fact]
    ) -> frozenset[str]:
        request = Request("doctor", "understanding/1", _messages(episode, past), max_tokens=800)
        text = (await self._once(request, lambda: self.doctor.complete(request))).text
        stated = Stated(tuple(facts), text)
        verdict = await self._once(
            (tuple(fact.text for fact in facts), text), lambda: self.checker.judge(stated)
        )
        return frozenset(
            fact.id for fact, entailed in zip(facts, verdict.entailed, strict=True) if entailed
        )

    async def _once(self, key: Hashable, call: Callable[[], Awaitable[T]]) -> T:
        if key not in self.asked:
            self.asked[key] = asyncio.ensure_future(call())
        result: T = await self.asked[key]
        return result


def _messages(episode: Episode, past: Sequence[Turn]) -> tuple[Message, ...]:
    """The prompt for a summary, with only the parsed questions of the doctor's turns.

    What the doctor wrote in the patient's place was never said, so it is left out.
    """
    sections = [("what was known at first", clean(episode.opening[-1].content, LONGEST_START))]
    lines = [
        f"{who}: {' '.join(clean(text, LONGEST_LINE).split())}"
        for turn in past
        if turn.action.content
        for who, text in (
            ("Doctor", turn.action.content[0]),
            *(("Patient", message.content) for message in turn.observation.messages),
        )
    ]
    if lines:
        sections.append(("what was asked and answered", "\n".join(lines)))
    return prompt(f"{_INSTRUCTIONS}\n\n{RULES}", sections, _CLOSING)
