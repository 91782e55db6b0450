"""One gathers, another concludes: hybrid pipelines and oracle context (CRAFT 4.1, CR-11).

Whoever concludes is shown the encounter in its own environment's words, and is read by the same
environment's grammar.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from workup.case import Case
from workup.environments.consultation import Consultation
from workup.episode import DIAGNOSE, Action, Completion, Ending, Episode, Message, Observation, Turn
from workup.ports import Doctor, Environment, Sampling

WHOLE_RECORD = Action("ask", ("whole record",))


class Diagnoser(Protocol):
    """Names a diagnosis from what an episode's transcript shows, or "" if it names none."""

    async def diagnose(self, episode: Episode) -> str: ...


@dataclass(frozen=True)
class TranscriptDiagnoser:
    """Shows the transcript as messages, asks `doctor` to conclude, and takes its one answer.

    `environment` is the one that the episode was played in.
    """

    doctor: Doctor
    environment: Environment
    sampling: Sampling = field(default_factory=Sampling)

    async def diagnose(self, episode: Episode) -> str:
        # As messages, not as past turns: the token ids of whoever gathered mean nothing to another
        # model.
        shown = _transcript(episode, self.environment.conclude(episode.case))
        act = await self.doctor.act(episode.case, shown, (), self.sampling)
        action = self.environment.read(act.completion.text)
        return action.content[0] if action.kind == DIAGNOSE and not act.completion.truncated else ""


async def conclude(episode: Episode, diagnoser: Diagnoser, environment: Environment) -> Episode:
    """`episode`, played in `environment`, with the diagnoser's diagnosis in place of its own.

    Where the diagnoser names none the episode is OUT_OF_TURNS.
    """
    gathered = replace(episode, turns=_gathered(episode), ending=Ending.OUT_OF_TURNS)
    name = await diagnoser.diagnose(gathered)
    if not name:
        return gathered
    said, action = Completion(environment.write(DIAGNOSE, name)), Action(DIAGNOSE, (name,))
    last = Turn((), said, action, Observation(done=True))
    return replace(gathered, turns=(*gathered.turns, last), ending=Ending.DIAGNOSED)


def whole_record(case: Case, environment: Environment, record: Consultation) -> Episode:
    """An episode in `environment` that ends, undiagnosed, after one turn that revealed every fact.

    It is the oracle context for `conclude`; `record` says what the facts sound like.
    """
    (request,) = WHOLE_RECORD.content
    said = Completion(environment.write(WHOLE_RECORD.kind, request))
    turn = Turn((), said, WHOLE_RECORD, record.record(case))
    return Episode(case, environment.open(case), (turn,), Ending.OUT_OF_TURNS)


def _gathered(episode: Episode) -> tuple[Turn, ...]:
    return tuple(turn for turn in episode.turns if turn.action.kind != DIAGNOSE)


def _transcript(episode: Episode, closing: str) -> Sequence[Message]:
    """What was said, with `closing` at its end, where the environment has not said it already."""
    messages = list(episode.opening)
    for turn in _gathered(episode):
        messages += [Message("assistant", turn.completion.text), *turn.observation.messages]
    last = messages.pop()
    said = last.content if last.content.endswith(closing) else f"{last.content}\n{closing}"
    return [*messages, replace(last, content=said)]
