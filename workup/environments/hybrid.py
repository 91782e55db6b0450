"""One gathers, another concludes: hybrid pipelines and oracle context (CRAFT 4.1, CR-11)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from workup.case import Case
from workup.environments.consultation import CONCLUDE, DIAGNOSE, Consultation
from workup.episode import Action, Completion, Ending, Episode, Message, Observation, Turn
from workup.ports import Doctor, Sampling
from workup.text import tagged


class Diagnoser(Protocol):
    """Names a diagnosis from what an episode's transcript shows, or "" if it names none."""

    async def diagnose(self, episode: Episode) -> str: ...


@dataclass(frozen=True)
class TranscriptDiagnoser:
    """Shows the transcript as messages, asks `doctor` to conclude, and takes its one answer."""

    doctor: Doctor
    environment: Consultation
    sampling: Sampling = field(default_factory=Sampling)

    async def diagnose(self, episode: Episode) -> str:
        # As messages, not as past turns: the token ids of whoever gathered mean nothing to another model.
        act = await self.doctor.act(episode.case, _transcript(episode), (), self.sampling)
        action = self.environment.read(act.completion.text)
        return action.content[0] if action.kind == DIAGNOSE and not act.completion.truncated else ""


async def conclude(episode: Episode, diagnoser: Diagnoser) -> Episode:
    """`episode` with its diagnosis, if it had one, replaced by the diagnoser's; without one it is OUT_OF_TURNS."""
    gathered = replace(episode, turns=_gathered(episode), ending=Ending.OUT_OF_TURNS)
    name = await diagnoser.diagnose(gathered)
    if not name:
        return gathered
    last = Turn((), Completion(tagged(DIAGNOSE, name)), Action(DIAGNOSE, (name,)), Observation(done=True))
    return replace(gathered, turns=(*gathered.turns, last), ending=Ending.DIAGNOSED)


def whole_record(case: Case, environment: Consultation) -> Episode:
    """An episode that ends, undiagnosed, after one turn that revealed every fact: the oracle context for `conclude`."""
    request = Action("ask", ("whole record",))
    turn = Turn((), Completion(tagged(request.kind, *request.content)), request, environment.record(case))
    return Episode(case, environment.open(case), (turn,), Ending.OUT_OF_TURNS)


def _gathered(episode: Episode) -> tuple[Turn, ...]:
    return tuple(turn for turn in episode.turns if turn.action.kind != DIAGNOSE)


def _transcript(episode: Episode) -> Sequence[Message]:
    messages = list(episode.opening)
    for turn in _gathered(episode):
        messages += [Message("assistant", turn.completion.text), *turn.observation.messages]
    last = messages.pop()
    return [*messages, replace(last, content=f"{last.content}\n{CONCLUDE}")]
