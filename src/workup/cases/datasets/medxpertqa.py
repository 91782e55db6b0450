"""MedXpertQA (Zuo et al., 2025): expert-level questions with up to ten options.

One JSON object per line: `medxpertqa:Text`, `medxpertqa:Text/test.jsonl`. Questions with an image
are left out and counted.
"""

from __future__ import annotations

from pydantic import BaseModel, field_validator

from workup.cases.pieces import Piece
from workup.cases.questions import Dropped, File, QuestionSet, Rows, parsed, question

EXAMPLE = "medxpertqa:Text"
FIELDS = ("options label medical_task body_system",)

_CHOICES = "Answer Choices:"  # what follows repeats the options


class _MedxpertqaRow(BaseModel):
    """`options` by letter, or as a list of `letter` and `content`.

    `label` is one letter, alone or in a list.
    """

    id: str
    question: str
    options: dict[str, str]
    label: str
    body_system: str = ""
    images: list[str] = []

    @field_validator("options", mode="before")
    @classmethod
    def _by_letter(cls, value: object) -> object:
        if isinstance(value, list) and all(
            isinstance(option, dict) and "letter" in option for option in value
        ):
            return {option["letter"]: option.get("content") for option in value}
        return value

    @field_validator("label", mode="before")
    @classmethod
    def _one(cls, value: object) -> object:
        return "".join(map(str, value)) if isinstance(value, list) else value


def _read(piece: Piece, file: File) -> Rows:
    row = parsed(_MedxpertqaRow, piece, file)
    if row.images:
        return [Dropped("it shows an image", meant=True)]
    stem = row.question.rpartition(_CHOICES)[0] or row.question
    return [question(row.id, stem, row.options, row.label, category=row.body_system.strip())]


open = QuestionSet(
    "medxpertqa",
    ["*.jsonl"],
    _read,
    ["MedXpertQA, MIT licence; its authors ask not to put examples online."],
)
