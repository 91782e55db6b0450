"""Which questions can stand without options, are about a patient, and ask for a diagnosis.

These are MR-10 (Med-R³), PM-12 (ProMed) and CM-18 (C-MIG). One call decides everything, and the
settings say what counts, so a second file with other settings is made from the cache.
"""

from __future__ import annotations

from pydantic import Field

from workup.core.case import Case
from workup.core.shapes import ClosedModel
from workup.models.structured import ask
from workup.prepare.prompts import joined, request
from workup.prepare.steps import Aids, Drop, Kept, Outcome, PrepareStep, StepSettings

VERSION = "suitability/1"
TASK = """\
You sort examination questions. Imagine the options struck out and only the text left. Decide, \
each for itself:
- reason: first, in one or two sentences, what speaks for and against the question.
- valid: true if the text is still a complete question that an expert could answer without having \
seen any options.
- unique: true if it then has one best answer, the reference answer, and no other answer is as \
good. False where the answer is a range, a vague amount, or one of several that would do.
- unambiguous: true if question and answer leave no doubt about what is meant.
- negated: true if it asks for an exception: what is wrong, not true, least likely, not indicated, \
"all except".
- patient: true if it is about one particular patient whose findings it tells, false if it asks \
for general knowledge.
- diagnosis: true if the reference answer is the disease or condition that the patient has, false \
if it is a drug, a test, a mechanism, a next step or anything else."""


class SuitabilitySettings(StepSettings):
    """What a question must be to be kept."""

    open_ended: bool = Field(
        True, description="valid without options, one unambiguous answer, no negation (MR-10)"
    )
    patient: bool = Field(False, description="about one particular patient (PM-12)")
    diagnosis: bool = Field(False, description="the answer is the patient's diagnosis (CM-18)")


class Verdict(ClosedModel):
    """The answer's shape."""

    reason: str = Field(min_length=1)
    valid: bool
    unique: bool
    unambiguous: bool
    negated: bool
    patient: bool
    diagnosis: bool


async def apply(case: Case, aids: Aids) -> Outcome:
    stated = joined([case.truth.record or case.presentation, case.question])
    options = "\n".join(case.options)
    sections = [
        ("question", stated),
        ("options that are struck out", options),
        ("reference answer", case.truth.diagnosis),
    ]
    asked = request("suitability", VERSION, TASK, sections, aids.settings.max_tokens)
    verdict = await ask(aids.model, asked, Verdict)
    reason = objection(verdict, aids.settings)
    return Kept(case, verdict.reason) if reason is None else Drop(reason, verdict.reason)


def objection(verdict: Verdict, settings: SuitabilitySettings) -> str | None:
    """The first reason to drop the question, None if there is none."""
    objections = (
        (settings.open_ended and not verdict.valid, "no question without its options"),
        (settings.open_ended and verdict.negated, "asks for an exception"),
        (settings.open_ended and not verdict.unique, "more than one answer would do"),
        (settings.open_ended and not verdict.unambiguous, "ambiguous"),
        (settings.patient and not verdict.patient, "not about a patient"),
        (settings.diagnosis and not verdict.diagnosis, "does not ask for a diagnosis"),
    )
    return next((reason for holds, reason in objections if holds), None)


step = PrepareStep(
    "drop questions that need their options, or ask for exceptions (MR-10)",
    VERSION,
    apply,
    SuitabilitySettings,
)
