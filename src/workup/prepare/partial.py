"""A partial question (ProMed PM-12): part of the findings is stated, the rest has to be asked for.

The stated part is the chief complaint, or a share of the findings (`start`, `share`), drawn by
`seed` and the case's id. The question stays word for word. Where stem and question are one text,
the model separates them. The whole stem is kept as `truth.record`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from workup.core.case import Case, Fact
from workup.core.text import digest
from workup.models.structured import ask, some_of
from workup.prepare.prompts import joined, numbered, request
from workup.prepare.steps import Aids, Drop, Kept, Outcome, PrepareStep, StepSettings

VERSION = "partial/1"
TASK = """\
You get the text of a medical question about a patient and, numbered, the findings that it \
contains. Separate what is asked from what is told.
- question: the question itself as one sentence, with nothing about the patient in it beyond "this \
patient". Ask what the text asks, no more and no less. If the text ends in a phrase to be \
completed, make a question of it.
- complaint: the numbers of the findings with which this patient would open the consultation: who \
they are (age, sex) and the one complaint that brought them in. Neither history that a doctor \
would have to ask for, nor any examination, test or image."""


class PartialSettings(StepSettings):
    """How much of the case is stated at the start."""

    start: Literal["complaint", "share"] = Field(
        "complaint", description="the chief complaint, or a random share of the findings"
    )
    share: float = Field(
        0.5, gt=0, lt=1, description="of the findings, stated at the start, if start=share"
    )
    seed: int = Field(0, ge=0, description="of the random share")


class CaseOpening(BaseModel):
    """The answer's shape."""

    model_config = ConfigDict(extra="forbid", title="Parts")  # the prompt says it

    question: str = Field(min_length=1)
    complaint: list[int] = Field(min_length=1)


async def apply(case: Case, aids: Aids) -> Outcome:
    facts = case.all_facts
    if len(facts) < 2:
        return Drop("fewer than two findings (the step facts comes first)")
    settings: PartialSettings = aids.settings
    question, stated = case.question, _drawn(case, len(facts), settings)
    if settings.start == "complaint" or not question:
        sections = [
            ("text", joined([case.truth.record or case.presentation, case.question])),
            ("findings", numbered(facts)),
        ]
        asked = request("partial", VERSION, TASK, sections, settings.max_tokens)
        answer = await ask(
            aids.model,
            asked,
            CaseOpening,
            lambda parts: _problem(parts, len(facts)),
            some_of("complaint", len(facts), 1, len(facts) - 1),
        )
        question = question or answer.question.strip()
        stated = (
            {number - 1 for number in answer.complaint} if settings.start == "complaint" else stated
        )
    return Kept(_begun(case, facts, stated, question))


def _problem(parts: CaseOpening, count: int) -> str | None:
    numbers = set(parts.complaint)
    if not numbers <= set(range(1, count + 1)):
        return f"findings are numbered from 1 to {count}"
    return (
        "the complaint holds every finding; leave something to ask for"
        if len(numbers) == count
        else None
    )


def _drawn(case: Case, count: int, settings: PartialSettings) -> set[int]:
    """The indices of a random share, at least one and not all; a function of seed and case id."""
    key = int.from_bytes(digest(case.id))
    size = min(max(round(settings.share * count), 1), count - 1)
    return set(np.random.default_rng([settings.seed, key]).permutation(count)[:size].tolist())


def _begun(case: Case, facts: tuple[Fact, ...], stated: set[int], question: str) -> Case:
    given = tuple(fact for index, fact in enumerate(facts) if index in stated)
    hidden = tuple(fact for index, fact in enumerate(facts) if index not in stated)
    truth = replace(case.truth, facts=hidden, record=case.truth.record or case.presentation)
    return replace(
        case,
        presentation=joined(fact.text for fact in given),
        question=question,
        given=given,
        truth=truth,
    )


step = PrepareStep(
    "state the chief complaint or a share, hide the rest (PM-12)", VERSION, apply, PartialSettings
)
