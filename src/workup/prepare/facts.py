"""Atomic findings of a record (CRAFT CR-3, φ), each stated in the presentation or hidden.

A finding is single and without interpretation. Where a case has no record, the presentation is
read. Earlier facts are replaced. A finding that names the diagnosis is sent back, unless the
presentation names it; if it comes again, the case fails. A record about nobody is dropped.
"""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field

from workup.core.case import Case, Fact, Kind
from workup.core.shapes import ClosedModel
from workup.models.structured import ask
from workup.prepare.prompts import most_entries, named, request, unsaid
from workup.prepare.steps import Aids, Drop, Kept, Outcome, PrepareStep

VERSION = "facts/1"
TASK = """\
You cut a patient's record into atomic findings. A finding is the smallest thing that can be true \
or false of this patient on its own: one symptom, one item of history, one sign, one value, one \
result of an image or a procedure.
For every finding give:
- text: one complete sentence that says it and nothing else. Keep figures and units. Report what \
was seen, heard or measured; leave out what anybody concluded from it. Where the record states a \
conclusion together with what it rests on, keep the latter.
- item: the two or three words with which a doctor would ask for it, such as "onset of pain", \
"blood pressure", "chest x-ray".
- kind: ask (what the patient can tell), examine (physical examination), test (laboratory), image \
(imaging) or procedure.
- stated: true if the presentation says so already, else false.
Findings that are absent ("no fever") count where the record mentions them. Say nothing twice. \
Leave out what is known only after the diagnosis was made (treatment, course, final diagnosis). No \
finding and no item may name the diagnosis, in whatever wording; it is given to you for this \
purpose alone.
If the record is about no patient at all, the list is empty."""


# What the schema allows, in characters: of the record for one finding, and of its two texts.
_LEAST, _LONGEST_FINDING, _LONGEST_ITEM = 12, 400, 100
_TOKENS = 25  # tokens of the shortest entry


class Finding(ClosedModel):
    text: str = Field(min_length=1)
    item: str
    kind: Kind
    stated: bool


class Findings(ClosedModel):
    """The answer's shape."""

    findings: list[Finding]


async def apply(case: Case, aids: Aids) -> Outcome:
    record = case.truth.record or case.presentation
    if not record.strip():
        return Drop("the case has no record and no presentation")
    sections = [("record", record), ("diagnosis", case.truth.diagnosis)]
    if case.truth.record:
        sections.insert(0, ("presentation", case.presentation))
    asked = request("facts", VERSION, TASK, sections, aids.settings.max_tokens)
    barred = unsaid(case)
    most = most_entries(record, _LEAST, aids.settings.max_tokens, _TOKENS)
    answer = await ask(
        aids.model,
        asked,
        Findings,
        lambda found: _problem(found, barred),
        {"findings": (0, most), "text": (1, _LONGEST_FINDING), "item": (0, _LONGEST_ITEM)},
    )
    if not answer.findings:
        return Drop("the record holds no finding about a patient")
    return Kept(_with(case, answer.findings))


def _problem(answer: Findings, barred: list[str]) -> str | None:
    texts = [finding.text.strip() for finding in answer.findings]
    if len(set(texts)) < len(texts):
        return "a finding stands twice"
    for finding in answer.findings:
        if (name := named(barred, f"{finding.text} | {finding.item}")) is not None:
            return (
                f"the finding '{finding.text[:200]}' names the diagnosis ('{name}'); state what "
                "was observed, or leave it out"
            )
    return None


def _with(case: Case, findings: list[Finding]) -> Case:
    """The case with these findings in place of its own.

    Without a record, the presentation is the record.
    """
    facts = [
        (
            finding.stated or not case.truth.record,
            Fact(f"f{number}", finding.item.strip(), finding.text.strip(), finding.kind),
        )
        for number, finding in enumerate(findings, start=1)
    ]
    given = tuple(fact for stated, fact in facts if stated)
    hidden = tuple(fact for stated, fact in facts if not stated)
    return replace(case, given=given, truth=replace(case.truth, facts=hidden))


step = PrepareStep(
    "a record into atomic findings, stated or hidden (CR-3)", VERSION, apply, keeps_items=False
)
