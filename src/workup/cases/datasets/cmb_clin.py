"""CMB-Clin (Wang et al., 2023): 74 Chinese patient records with open questions about each.

The file is `CMB-Clin-qa.json`. Every question is a case of its own; those about one patient stay on
the same side of a split. The questions come as pairs (`QA_pairs`, a list of objects or an object of
lists), or a record is one question with its answers and no pairs. The title names the disease and
is never shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import AliasChoices, BaseModel, Field, field_validator

from workup.cases.files import checked
from workup.cases.pieces import Piece
from workup.cases.questions import (
    CaseRow,
    Dropped,
    File,
    QuestionSet,
    Rows,
    content_id,
    open_answer,
    parsed,
    parted,
)
from workup.cases.rows import Filled
from workup.core.case import Case
from workup.core.errors import CaseError

EXAMPLE = "cmb_clin:CMB-Clin-qa.json"
FILES = ("CMB-Clin-qa.json",)
FIELDS = ("description QA_pairs",)

_CASE = "案例分析"  # the title is the chapter, this, and the disease


class _Pair(BaseModel):
    """A question, and its answer as a text or as a list of texts, each of which is right."""

    question: Filled
    answers: list[Filled] = Field(
        validation_alias=AliasChoices("answer", "solution", "answers"), min_length=1
    )

    @field_validator("answers", mode="before")
    @classmethod
    def _several(cls, value: object) -> object:
        return value if isinstance(value, list) else [value]


class _CmbClinRow(BaseModel):
    """The patient; `pairs` is None where the record itself is one question."""

    id: int | str | None = None
    title: str = ""
    description: str = ""
    pairs: list[Any] | dict[str, list[Any]] | None = Field(alias="QA_pairs", default=None)


def _read(piece: Piece, file: File) -> Rows:
    row = parsed(_CmbClinRow, piece, file)
    if row.pairs is None:
        return [_case(row, 0, parsed(_Pair, piece, file))]
    found = _listed(row.pairs, piece, file)
    return [_pair(row, number, pair, piece, file) for number, pair in enumerate(found)] or [
        Dropped("it has no question")
    ]


def _listed(pairs: list[Any] | dict[str, list[Any]], piece: Piece, file: File) -> Sequence[Any]:
    """The pairs one by one. Raises CaseError where lists are of different lengths."""
    if isinstance(pairs, list):
        return pairs
    if len({len(column) for column in pairs.values()}) > 1:
        raise CaseError(
            "its lists are of different lengths.", file=file.path, line=piece.line, field="QA_pairs"
        )
    return [dict(zip(pairs, values, strict=True)) for values in zip(*pairs.values(), strict=True)]


def _pair(
    row: _CmbClinRow, place: int, pair: object, piece: Piece, file: File
) -> CaseRow | Dropped | CaseError:
    """A pair as a case; a bad pair does not affect the others."""
    try:
        found = checked(_Pair, pair, file=file.path, line=piece.line, within=f"QA_pairs.{place}")
    except CaseError as error:
        return error
    return _case(row, place + 1, found)


def _case(row: _CmbClinRow, number: int, pair: _Pair) -> CaseRow | Dropped:
    """A question about a patient; `number` is 0 for a record that is one question.

    Where no description comes with that, its text before the question is one. The first answer is
    the truth, the others are further names of it.
    """
    presentation, asks = row.description.strip(), pair.question.strip()
    if number and not presentation:
        return Dropped("it has no description")
    if not presentation:
        presentation, asks = parted(asks)
    first, *others = (answer.strip() for answer in pair.answers)
    patient = content_id(presentation) if row.id is None else str(row.id).strip()
    category = row.title.partition(_CASE)[0].strip()
    truth = open_answer([first], aliases=tuple(others))
    own = str(number) if number else content_id(asks) if row.id is None else ""
    id = "-".join(filter(None, [patient, own])) if patient else ""
    return CaseRow(Case(id, presentation, truth, asks, category=category), group=patient)


open = QuestionSet(
    "cmb_clin",
    ["CMB-Clin-qa.json", "CMB-test-qa.json"],
    _read,
    [
        (
            "The truth is a text of several sentences: for judges and overlap measures, not for "
            "equality."
        ),
        "CMB, Apache-2.0.",
    ],
    roles={"qa": ""},
)
