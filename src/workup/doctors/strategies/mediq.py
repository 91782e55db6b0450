"""MEDIQ: in each turn an abstention module decides whether the evidence is enough to answer.

Module and doctor are the same model; the module's calls are outside the encounter. It rates its
confidence on a scale of five steps. Below the threshold the doctor is told to ask, else to answer.
Nothing is remembered between turns: a rating depends on the transcript alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from workup.core.case import Case
from workup.core.episode import Message, Turn
from workup.core.ports import Act, Doctor, Environment, Model, Sampling
from workup.core.shapes import ClosedModel
from workup.doctors.strategies import Driven, Strategy
from workup.doctors.strategies.framing import Framable, framed
from workup.doctors.strategies.prompting import ANSWER, ASK, encounter, inquire, nudged

VERSION = "mediq/1"
TASK = (
    "You look over a doctor's shoulder. Decide how well the case's question can be answered with "
    "what is known at this point of the encounter; neither ask nor answer anything yourself. "
    "First name in one or two sentences what speaks for the best answer and what is missing. Then "
    "rate:\n"
    "1: a guess; several answers are about as likely.\n"
    "2: a leaning; the best answer could easily fall.\n"
    "3: the best answer is ahead, but something that is not known could change it.\n"
    "4: nearly settled; only an unlikely finding would change the answer.\n"
    "5: settled; nothing that could still be asked would change it.\n"
    'Answer with one JSON object: {"reason": …, "confidence": 1 to 5}.'
)


class Settings(Framable):
    """When to stop asking."""

    threshold: int = Field(4, ge=1, le=5, description="answers from this confidence on (1 to 5)")


class Confidence(ClosedModel):
    reason: str
    confidence: int = Field(ge=1, le=5)


def opened(policy: Driven, environment: Environment, settings: Settings) -> Doctor:
    """The policy behind the abstention module. Raises UserError if it is no chat model."""
    doctor = framed(policy, environment, settings).doctor
    return Abstaining(doctor, policy.chat("mediq"), environment.max_turns, settings.threshold)


@dataclass(frozen=True)
class Abstaining:
    """`doctor`, told in each turn whether to ask or to answer; in the last turn, to answer."""

    doctor: Doctor
    model: Model
    max_turns: int
    threshold: int

    async def act(
        self, case: Case, opening: Sequence[Message], past: Sequence[Turn], sampling: Sampling
    ) -> Act:
        sure = (
            len(past) >= self.max_turns - 1
            or await self.confidence(opening, past) >= self.threshold
        )
        return await self.doctor.act(
            case, *nudged(opening, past, (ANSWER if sure else ASK).spoken(opening)), sampling
        )

    async def confidence(self, opening: Sequence[Message], past: Sequence[Turn]) -> int:
        """The rating, 1 to 5. Raises RolloutError if the model gives no usable one."""
        return (
            await inquire(self.model, TASK, VERSION, encounter(opening, past), Confidence)
        ).confidence


strategies = {
    "mediq": Strategy(
        summary="a separate call rates how sure it is; asks until it is sure enough",
        paper="MEDIQ, Li et al. 2024 (abstention on a rating scale); ProMed, section 4.1",
        settings=Settings,
        open=opened,
    ),
}
