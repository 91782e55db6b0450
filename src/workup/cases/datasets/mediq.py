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
from array import array
from pathlib import Path

from pydantic import BaseModel, Field, model_validator

from workup.cases.files import (
    ALL,
    Line,
    Split,
    checked,
    existing,
    held_out,
    json_lines,
    line_at,
    parse_object,
    view_of,
)
from workup.cases.findings import parted
from workup.cases.rows import RowErrors, sound
from workup.core.case import Case, Fact, Source, Truth
from workup.core.errors import UserError
from workup.core.lazy import Lazy

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
    place, view = view_of(rest, "mediq", [ALL])
    path = existing(place)
    if path.is_dir():
        raise UserError(
            f"{path} is a folder; mediq takes one file, as in 'mediq:{path}/all_dev_good.jsonl'."
        )
    # byte offsets of the training and the test rows
    sides: tuple[array[int], array[int]] = (array("Q"), array("Q"))
    skipped = 0

    def read(line: Line) -> _MediqRow | None:
        row = checked(
            _MediqRow,
            parse_object(line.text, file=path, line=line.number),
            file=path,
            line=line.number,
        )
        if not row.facts or not row.context:
            return None
        case = Case(row.name, row.context[0], Truth(row.answer))
        sound(case, file=path, line=line.number)
        errors.once(row.name, file=path, line=line.number)
        return row

    for line, row in errors.read(json_lines(path), read):
        if row is None:
            skipped += 1
        else:
            sides[view == ALL or held_out(split, row.name)].append(line.offset)
    if not any(map(len, sides)):
        raise errors.nothing(UserError(f"{path} has no row with facts."))
    return _source(f"mediq:{rest}", path, sides, skipped)


def _source(name: str, path: Path, sides: tuple[array[int], array[int]], skipped: int) -> Source:
    train, test = (_rows(path, offsets) for offsets in sides)
    notes = (
        *([f"{skipped} rows without facts or context skipped."] if skipped else []),
        (
            "The truth is the answer to the row's question, which is a diagnosis in some rows "
            "and a drug or a mechanism in others."
        ),
        "mediQ (iMedQA), CC BY 4.0.",
    )
    return Source(name, train, test, notes=notes, undivided=True)


def _rows(path: Path, offsets: array[int]) -> Lazy[Case]:
    def make(i: int) -> Case:
        return _case(
            checked(
                _MediqRow, parse_object(line_at(path, offsets[i]), file=path, line=None), file=path
            )
        )

    return Lazy(len(offsets), make)


def _case(row: _MediqRow) -> Case:
    """The case of a row; as in mediQ, the first sentence of the context opens the encounter.

    Facts that this sentence states are given, not hidden.
    """
    presentation = row.context[0].strip()
    facts = [
        Fact(f"f{number}", "", text) for number, text in enumerate(_atomic(row.facts), start=1)
    ]
    given, hidden = parted(facts, presentation)
    truth = Truth(diagnosis=row.answer.strip(), facts=hidden, record="\n".join(row.context))
    return Case(
        id=row.name,
        presentation=presentation,
        truth=truth,
        question=row.question.strip(),
        options=tuple(option.strip() for option in row.options.values()),
        given=given,
        category=_specialty(row.patient),
    )


def _atomic(lines: list[str]) -> list[str]:
    """The facts without their numbers, each once, without headings ("Physical examination:")."""
    texts = (_NUMBER.sub("", line).strip() for line in lines)
    return list(dict.fromkeys(text for text in texts if text and not text.endswith(":")))


def _specialty(patient: dict[str, object]) -> str:
    names = patient.get("specialties")
    return str(names[0]) if isinstance(names, list) and names else ""
