"""Any question about a patient's diagnosis as an open one in another language (C-MIG CM-18); other questions are dropped."""

from __future__ import annotations

from dataclasses import replace

from pydantic import BaseModel, ConfigDict, Field

from workup.case import Case, Fact
from workup.judges.assessor import misaligned
from workup.models.structured import ask
from workup.prepare.open_ended import revealed
from workup.prepare.prompts import ideographic, joined, named, numbered, request
from workup.prepare.steps import Aids, Drop, Kept, Outcome, Step, StepSettings

VERSION = "rewrite/1"
TASK = """\
You rewrite a medical case as an open question about the diagnosis, in {language}.
- diagnostic: true if the reference answer is a disease or condition that this patient has. If it is anything else (a drug, a \
test, a mechanism, advice), say false, and leave the other texts empty and the list of findings too.
- presentation: all that the text tells of the patient, in {language}: translate, leave nothing out, add nothing, keep figures \
and units. Without the question.
- question: one open question for the diagnosis, in {language}, without options.
- answer: the reference answer in {language}, by its usual medical name, as specific as it is and no more.
- findings: the numbered findings in {language}, one text for each number, each number once; an empty list if there are none.
Neither the presentation nor the question may name the answer, unless the text itself tells it of the patient."""


class RewriteSettings(StepSettings):
    """Into which language."""

    language: str = Field("English", min_length=1, description="of the rewritten case")


class Translated(BaseModel):
    model_config = ConfigDict(extra="forbid")

    number: int
    text: str = Field(min_length=1)


class Rewritten(BaseModel):
    """The answer's shape."""

    model_config = ConfigDict(extra="forbid")

    diagnostic: bool
    presentation: str
    question: str
    answer: str
    findings: list[Translated]


async def apply(case: Case, aids: Aids) -> Outcome:
    settings: RewriteSettings = aids.settings
    facts = (*case.given, *case.truth.facts)
    sections = [
        ("text", case.presentation),
        ("question", case.question),
        ("options", "\n".join(case.options)),
        ("reference answer", case.truth.diagnosis),
        ("findings", numbered(facts)),
    ]
    task = TASK.format(language=settings.language)
    asked = request("rewrite", VERSION, task, sections, settings.max_tokens)
    answer = await ask(aids.model, asked, Rewritten, lambda made: _problem(made, case, len(facts), settings.language))
    return Kept(_rewritten(case, answer)) if answer.diagnostic else Drop("does not ask for a diagnosis")


def _problem(made: Rewritten, case: Case, count: int, language: str) -> str | None:
    if not made.diagnostic:
        return None
    texts = (made.presentation, made.question, made.answer, *(finding.text for finding in made.findings))
    if not all(text.strip() for text in texts):
        return "presentation, question and answer must not be empty"
    if language == "English" and (other := next(filter(ideographic, texts), None)) is not None:
        return f"this is not in English: '{other[:60]}'"
    if (wrong := misaligned([finding.number for finding in made.findings], count)) is not None:
        return wrong
    told = named([case.truth.diagnosis], joined([case.presentation, case.question]))
    if told is None and named([made.answer], joined([made.presentation, made.question])):
        return f"the answer '{made.answer}' stands in the presentation or the question"
    return revealed(case, made.question)


def _rewritten(case: Case, made: Rewritten) -> Case:
    """The case in the new language; what it was stays in the record, and the old name of the answer among the aliases."""
    texts = {finding.number: finding.text.strip() for finding in made.findings}
    facts = [replace(fact, item="", text=texts[n]) for n, fact in enumerate((*case.given, *case.truth.facts), start=1)]
    given, hidden = facts[: len(case.given)], facts[len(case.given) :]
    truth = case.truth
    aliases = dict.fromkeys((truth.diagnosis, *truth.aliases))
    aliases.pop(made.answer.strip(), None)
    record = truth.record or "\n".join(filter(None, (case.presentation, case.question, *case.options)))
    return replace(
        case,
        presentation=made.presentation.strip(),
        question=made.question.strip(),
        options=(),
        given=tuple[Fact, ...](given),
        truth=replace(truth, diagnosis=made.answer.strip(), aliases=tuple(aliases), facts=tuple(hidden), record=record),
    )


step = Step("keep diagnostic questions, as open ones in English (CM-18)", VERSION, apply, RewriteSettings, keeps_items=False)
