"""One doctor gathers, another concludes: hybrid pipelines and oracle context (CRAFT 4.1, CR-11).

The one who concludes reads the encounter in its environment's words, and its answer is parsed by
the same environment's grammar.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from workup.core.case import Case
from workup.core.episode import (
    DIAGNOSE,
    Action,
    Completion,
    Ending,
    Episode,
    Message,
    Observation,
    Turn,
)
from workup.core.ports import Doctor, Environment, Sampling
from workup.environments.consultation import Consultation

WHOLE_RECORD = Action("ask", ("whole record",))


class Diagnoser(Protocol):
    """Names a diagnosis from an episode's transcript, or "" if it names none."""

    async def diagnose(self, episode: Episode) -> str: ...


@dataclass(frozen=True)
class TranscriptDiagnoser:
    """Shows the transcript as messages, asks `doctor` to conclude, and takes its one answer.

    `environment` is the one in which the episode was played.
    """

    doctor: Doctor
    environment: Environment
    sampling: Sampling = field(default_factory=Sampling)

    async def diagnose(self, episode: Episode) -> str:
        said = await self.conclude(episode)
        action = self.environment.read(said.text)
        return action.content[0] if action.kind == DIAGNOSE and not said.truncated else ""

    async def conclude(self, episode: Episode, more: str = "") -> Completion:
        """What `doctor` says when it is asked to conclude; `more` is a further line of that."""
        # As messages, not as past turns: the gathering model's token ids mean nothing to another
        # model.
        shown = _transcript(episode, self.environment.conclude(episode.case))
        if more:
            *before, last = shown
            shown = [*before, replace(last, content=f"{last.content}\n{more}")]
        act = await self.doctor.act(episode.case, shown, (), self.sampling)
        return act.completion


async def conclude(episode: Episode, diagnoser: Diagnoser, environment: Environment) -> Episode:
    """`episode`, played in `environment`, with the diagnoser's diagnosis in place of its own.

    If the diagnoser names none, the episode is OUT_OF_TURNS.
    """
    gathered = replace(episode, turns=episode.gathered, ending=Ending.OUT_OF_TURNS)
    name = await diagnoser.diagnose(gathered)
    if not name:
        return gathered
    text = environment.write(DIAGNOSE, name)
    action = Action(DIAGNOSE, (name,), parts=environment.read(text).parts)
    last = Turn((), Completion(text), action, Observation(done=True))
    return replace(gathered, turns=(*gathered.turns, last), ending=Ending.DIAGNOSED)


def whole_record(case: Case, environment: Environment, record: Consultation) -> Episode:
    """An episode that ends, undiagnosed, after one turn that revealed every fact.

    It is the oracle context for `conclude`. `record` gives the wording of the facts.
    """
    (request,) = WHOLE_RECORD.content
    said = Completion(environment.write(WHOLE_RECORD.kind, request))
    turn = Turn((), said, WHOLE_RECORD, record.record(case))
    return Episode(case, environment.open(case), (turn,), Ending.OUT_OF_TURNS)


def _transcript(episode: Episode, closing: str) -> Sequence[Message]:
    """The messages of the encounter; `closing` is added unless they end with it."""
    messages = list(episode.opening)
    for turn in episode.gathered:
        messages += [Message("assistant", turn.completion.text), *turn.observation.messages]
    last = messages.pop()
    said = last.content if last.content.endswith(closing) else f"{last.content}\n{closing}"
    return [*messages, replace(last, content=said)]
