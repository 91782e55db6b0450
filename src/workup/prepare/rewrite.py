"""Turns a question about a patient's diagnosis into an open one in another language (C-MIG CM-18).

Other questions are dropped. Findings are translated one by one and lose their items. The original
text goes to `truth.record` if that is empty, the original answer becomes an alias.
"""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field

from workup.core.case import Case, Fact
from workup.core.shapes import ClosedModel
from workup.models.structured import ask
from workup.prepare.answers import opened, right
from workup.prepare.open_ended import revealed
from workup.prepare.prompts import (
    ideographic,
    joined,
    most_characters,
    named,
    numbered,
    request,
    stem,
)
from workup.prepare.steps import Aids, Drop, Kept, Outcome, PrepareStep, StepSettings
from workup.roles.judges.assessor import misaligned

VERSION = "rewrite/2"
TASK = """\
You rewrite a medical case as an open question about the diagnosis, in {language}.
- diagnostic: true if the reference answers are diseases or conditions that this patient has. If \
they are anything else (a drug, a test, a mechanism, advice), say false, and leave the other texts \
and lists empty.
- presentation: all that the text tells of the patient, in {language}: translate, leave nothing \
out, add nothing, keep figures and units. Without the question.
- question: one open question for the diagnosis, in {language}, without options.
- answers: each reference answer in {language}, in the same order, by its usual medical name, as \
specific as it is and no more.
- findings: the numbered findings in {language}, one text for each number, each number once; an \
empty list if there are none.
Neither the presentation nor the question nor a finding may name an answer, unless the text or \
the finding itself tells it of the patient."""


class RewriteSettings(StepSettings):
    """The language into which questions are rewritten."""

    language: str = Field("English", min_length=1, description="of the rewritten case")


class Translated(ClosedModel):
    number: int
    text: str = Field(min_length=1)


class Rewritten(ClosedModel):
    """The answer's shape."""

    diagnostic: bool
    presentation: str
    question: str
    answers: list[str]
    findings: list[Translated]


async def apply(case: Case, aids: Aids) -> Outcome:
    settings: RewriteSettings = aids.settings
    facts = case.all_facts
    sections = [
        ("text", case.presentation),
        ("question", case.question),
        ("options", "\n".join(case.options)),
        ("reference answers", "\n".join(right(case))),
        ("findings", numbered(facts)),
    ]
    task = TASK.format(language=settings.language)
    asked = request("rewrite", VERSION, task, sections, settings.max_tokens)
    answers = right(case)
    answer = await ask(
        aids.model,
        asked,
        Rewritten,
        lambda made: _problem(made, case, len(facts), settings.language),
        {
            "answers": (0, len(answers)),
            "answers[]": (0, most_characters(answers)),
            "findings": (0, len(facts)),
            "number": (1, max(1, len(facts))),
            "text": (1, most_characters([fact.text for fact in facts])),
        },
    )
    return (
        Kept(_rewritten(case, answer))
        if answer.diagnostic
        else Drop("does not ask for a diagnosis")
    )


def _problem(made: Rewritten, case: Case, count: int, language: str) -> str | None:
    """What is wrong with a rewritten case, None if nothing is."""
    if not made.diagnostic:
        return None
    if wrong := _incomplete(made, case, count):
        return wrong
    other = next(filter(ideographic, _texts(made)), None) if language == "English" else None
    if other is not None:
        return f"this is not in English: '{other[:60]}'"
    return _revealing(made, case)


def _texts(made: Rewritten) -> tuple[str, ...]:
    return (
        made.presentation,
        made.question,
        *made.answers,
        *(finding.text for finding in made.findings),
    )


def _incomplete(made: Rewritten, case: Case, count: int) -> str | None:
    if not all(text.strip() for text in _texts(made)):
        return "presentation, question, answers and findings must not be empty"
    if len(made.answers) != len(right(case)):
        return f"there are {len(right(case))} reference answers, not {len(made.answers)}"
    return misaligned([finding.number for finding in made.findings], count)


def _revealing(made: Rewritten, case: Case) -> str | None:
    if named(right(case), stem(case)) is None and (
        told := named(made.answers, joined([made.presentation, made.question]))
    ):
        return f"the answer '{told}' stands in the presentation or the question"
    for finding in made.findings:
        before = joined([stem(case), case.all_facts[finding.number - 1].text])
        if named(right(case), before) is None and (told := named(made.answers, finding.text)):
            return f"the answer '{told}' stands in the finding {finding.number}"
    return revealed(case, made.question)


def _rewritten(case: Case, made: Rewritten) -> Case:
    """The case in the new language.

    The old text stays in the record, and the old name of the answer among the aliases.
    """
    texts = {finding.number: finding.text.strip() for finding in made.findings}
    facts = [
        replace(fact, item="", text=texts[n]) for n, fact in enumerate(case.all_facts, start=1)
    ]
    given, hidden = facts[: len(case.given)], facts[len(case.given) :]
    answers = [answer.strip() for answer in made.answers]
    aliases = [
        name
        for name in dict.fromkeys((case.truth.diagnosis, *case.truth.aliases))
        if name != "; ".join(answers)
    ]
    record = case.truth.record or "\n".join(
        filter(None, (case.presentation, case.question, *case.options))
    )
    return replace(
        case,
        presentation=made.presentation.strip(),
        question=made.question.strip(),
        options=(),
        given=tuple[Fact, ...](given),
        truth=replace(
            opened(case.truth, answers), aliases=tuple(aliases), facts=tuple(hidden), record=record
        ),
    )


step = PrepareStep(
    "keep diagnostic questions, as open ones in English (CM-18)",
    VERSION,
    apply,
    RewriteSettings,
    keeps_items=False,
)
