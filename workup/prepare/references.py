"""Reference reasoning (Med-R³ MR-12): a strong model's thought before a fully right answer.

It is kept if it is sound.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from pydantic import BaseModel, ConfigDict, Field

from workup.case import Case
from workup.judges.assessor import Rubric, consult
from workup.models.fence import clean
from workup.ports import Model
from workup.prepare import draws
from workup.prepare.prompts import LONGEST, stem
from workup.prepare.steps import Aids, Drop, GradedSettings, Kept, Outcome, Step

RUBRIC = Rubric(
    "reasoning/1",
    "You mark the reasoning behind an answer to a medical question. The answer was found to be "
    "right; what counts is the way to it. Mark from 1 to 5:\n"
    "5: sound: every step is correct, specific to this case and follows from what comes before; "
    "nothing essential is missing.\n"
    "4: sound but for a superfluous or loosely founded step.\n"
    "3: plausible, with a gap or an error that does not reach the conclusion.\n"
    "2: the conclusion does not follow from the reasoning.\n"
    "1: no reasoning, wrong throughout, garbled, or about something else.\n"
    'Answer with one JSON object: {"reason": one short sentence, "mark": a whole number from 1 to '
    "5}.",
    max_tokens=600,
)


class Sound(BaseModel):
    """The answer's shape."""

    model_config = ConfigDict(extra="forbid")

    reason: str
    mark: int = Field(ge=1, le=5)


class ReferenceSettings(GradedSettings):
    """How many references are wanted, and how many answers may be drawn for them."""

    keep: int = Field(5, ge=1, description="references wanted for each question")
    least: int = Field(1, ge=1, description="a question with fewer is dropped")
    n: int = Field(16, ge=1, description="answers drawn at most")


async def apply(case: Case, aids: Aids) -> Outcome:
    """Draws as many at once as are still wanted.

    They are checked in the order of the draws, so that the result depends on nothing else.
    """
    settings: ReferenceSettings = aids.settings
    found: list[str] = []
    drawn = 0
    while drawn < settings.n and len(found) < settings.keep:
        batch = range(drawn, min(drawn + settings.keep - len(found), settings.n))
        texts = await asyncio.gather(*(_reference(case, aids, sample) for sample in batch))
        found += [text for text in texts if text is not None and text not in found]
        drawn = batch.stop
    detail = f"{len(found)} of {drawn} draws are sound and fully right"
    if len(found) < settings.least:
        return Drop("too few sound references", detail)
    return Kept(replace(case, truth=replace(case.truth, references=tuple(found))), detail)


async def _reference(case: Case, aids: Aids, sample: int) -> str | None:
    """The draw if it is whole, well formed, fully right and sound; else None.

    Each condition is checked only if the one before holds.
    """
    text = await draws.draw(case, aids, sample)
    if text is None or draws.answer_of(text) is None:
        return None
    if await draws.mark(case, text, aids.judge) < 5:
        return None
    return text if await _soundness(case, text, aids.judge) == 5 else None


async def _soundness(case: Case, text: str, judge: Model) -> int:
    sections = [
        ("question", clean(stem(case), LONGEST)),
        ("reference answer", clean(case.truth.diagnosis, LONGEST)),
        ("reasoning to mark", clean(text, LONGEST)),
    ]
    return (await consult(judge, RUBRIC, sections, Sound, lambda answer: None)).mark


step = Step(
    "reasoning that led a strong model to the right answer (MR-12)",
    f"{RUBRIC.version}, {draws.VERSION}",
    apply,
    ReferenceSettings,
)
