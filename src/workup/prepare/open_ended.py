"""Multiple choice into an open question with the same answer (Med-R³ MR-12).

A rewriting that shows the answer, or an option that the question did not name, is sent back. A
question without options passes unchanged.
"""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field

from workup.core.case import Case
from workup.core.shapes import ClosedModel
from workup.models.structured import ask
from workup.prepare.answers import opened, right
from workup.prepare.prompts import named, request, stem
from workup.prepare.steps import Aids, Drop, Kept, Outcome, PrepareStep

VERSION = "open-ended/1"
TASK = """\
You turn a multiple-choice question into an open one. You get what comes before the question (it \
stays as it is), the question, its options and the right answer.
- question: the same question, put so that it can be answered freely. Change as little as you can: \
words that point to the options ("which of the following", "the most likely option is") give way \
to an open wording, and an unfinished sentence becomes a question. Everything it says about the \
patient stays. The right answer must still be the answer; neither it nor any other option may \
stand in the question, unless the original question named it. Keep the language of the question."""


class Opened(ClosedModel):
    """The answer's shape."""

    question: str = Field(min_length=1)


async def apply(case: Case, aids: Aids) -> Outcome:
    if not case.options:
        return Kept(case, "already open")
    asked_before, question = (
        (case.presentation, case.question) if case.question else ("", case.presentation)
    )
    if not question.strip():
        return Drop("the case has no question")
    sections = [
        ("what comes before", asked_before),
        ("question", question),
        ("options", "\n".join(case.options)),
        ("right answer", "\n".join(right(case))),
    ]
    asked = request("open-ended", VERSION, TASK, sections, aids.settings.max_tokens)
    answer = await ask(aids.model, asked, Opened, lambda answer: revealed(case, answer.question))
    text = answer.question.strip()
    bare = replace(case, options=(), truth=opened(case.truth, right(case)))
    return Kept(replace(bare, question=text) if case.question else replace(bare, presentation=text))


def revealed(case: Case, question: str) -> str | None:
    """What is wrong with an open question: blank, or an answer or an option shows; else None."""
    if not question.strip():
        return "the question is blank"
    before = stem(case)
    shown = [
        name
        for name in (*right(case), *case.options)
        if named([name], question) and not named([name], before)
    ]
    return f"the question still names '{shown[0]}'" if shown else None


step = PrepareStep("multiple choice into an open question, answer kept (MR-12)", VERSION, apply)
