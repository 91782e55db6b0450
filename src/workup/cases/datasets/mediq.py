"""mediQ (iMedQA): examination questions cut into atomic facts, one JSON object per line.

`mediq:FILE` splits the file like every source; `mediq:FILE#all` has every row in the test split,
for evaluation alone. A row has `id, question, context, options, answer, answer_idx, facts`. The
first sentence of the context is the presentation, as in mediQ. A fact is given if all its content
words (without fillers such as "patient" or "presents") stand in that sentence, and hidden
otherwise: the rule errs towards hiding, and does not understand negation. The truth is the text of
the right option, which is a diagnosis in some rows and a drug, a test or a mechanism in others.
Rows without facts are counted and left out.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel, Field, model_validator

from workup.cases.files import Split, checked
from workup.cases.findings import parted
from workup.cases.lines import CaseLines
from workup.cases.rows import RowErrors, sound
from workup.core.case import Case, Fact, Source, Truth
from workup.core.errors import UserError

EXAMPLE = "mediq:all_dev_good.jsonl"
FIELDS = ("context facts options answer_idx",)

_NUMBER = re.compile(r"^\s*(?:\d+[.)](?!\d)|[-*•])\s*")


class _MediqRow(BaseModel):
    id: int | str
    question: str
    context: list[str]
    options: dict[str, str]
    answer: str
    answer_idx: str
    facts: list[str] = Field(default_factory=list)
    patient: dict[str, object] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _answered(self) -> _MediqRow:
        if self.options.get(self.answer_idx.strip(), "").strip() != self.answer.strip():
            raise ValueError("'answer' is not the option that 'answer_idx' names")
        return self

    @property
    def name(self) -> str:
        return str(self.id).strip()


def open(rest: str, split: Split, errors: RowErrors) -> Source:
    """Opens `FILE` or `FILE#all`. Raises UserError and CaseError (file, line, field)."""
    file = CaseLines.named("mediq", rest, split, "all_dev_good.jsonl")
    skipped = 0

    def read(row: dict[str, Any], line: int) -> _MediqRow | None:
        found = checked(_MediqRow, row, file=file.path, line=line)
        if not found.facts or not found.context:
            return None
        case = Case(found.name, found.context[0], Truth(found.answer))
        sound(case, file=file.path, line=line)
        errors.once(found.name, file=file.path, line=line)
        return found

    for line, found in file.read(errors, read):
        if found is None:
            skipped += 1
        else:
            file.keep(line, found.name)
    if not len(file):
        raise errors.nothing(UserError(f"{file.path} has no row with facts."))
    train, test = file.cases(lambda row, _: _case(checked(_MediqRow, row, file=file.path)))
    notes = (
        *([f"{skipped} rows without facts or context skipped."] if skipped else []),
        (
            "The truth is the answer to the row's question, which is a diagnosis in some rows "
            "and a drug or a mechanism in others."
        ),
        "mediQ (iMedQA), CC BY 4.0.",
    )
    return Source(f"mediq:{rest}", train, test, notes=notes, undivided=True)


def _case(row: _MediqRow) -> Case:
    """The case of a row; as in mediQ, the first sentence of the context opens the encounter.

    Facts that this sentence states are given, not hidden.
    """
    presentation = row.context[0].strip()
    texts = (_NUMBER.sub("", line).strip() for line in row.facts)
    # each once, without headings ("Physical examination:")
    atomic = dict.fromkeys(text for text in texts if text and not text.endswith(":"))
    facts = [Fact(f"f{number}", "", text) for number, text in enumerate(atomic, start=1)]
    given, hidden = parted(facts, presentation)
    truth = Truth(diagnosis=row.answer.strip(), facts=hidden, record="\n".join(row.context))
    names = row.patient.get("specialties")
    return Case(
        id=row.name,
        presentation=presentation,
        truth=truth,
        question=row.question.strip(),
        options=tuple(option.strip() for option in row.options.values()),
        given=given,
        category=str(names[0]) if isinstance(names, list) and names else "",
    )
