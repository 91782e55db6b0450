"""MMLU's medical subjects (Hendrycks et al., 2021): questions with four options.

The files are `SUBJECT_test.csv` without a header, or JSON lines with `subject`. `mmlu:FOLDER` reads
the files of the six subjects that medical evaluations use, in the folder or in its test/, val/ and
dev/.
"""

from __future__ import annotations

import re

from pydantic import BaseModel, Field, model_validator

from workup.cases.pieces import Piece, csv_cells, csv_pieces, pieces
from workup.cases.questions import (
    LETTERS,
    CaseRow,
    Dropped,
    File,
    QuestionSet,
    Rows,
    content_id,
    parsed,
    question,
)
from workup.core.errors import CaseError

EXAMPLE = "mmlu:data"
FILES = ("*/anatomy_*.csv", "anatomy_*.csv", "*/*medicine_*.csv", "*medicine_*.csv")
FIELDS = ("question choices subject",)

SUBJECTS = (
    "anatomy",
    "clinical_knowledge",
    "college_biology",
    "college_medicine",
    "medical_genetics",
    "professional_medicine",
)
_PART = re.compile(r"_(?:dev|val|test|train)$")
_CELLS = 6  # question, A, B, C, D, answer


class _MmluRow(BaseModel):
    """A JSON line.

    `answer` is a letter, or the place of the right choice, counted from 0 (as in the Hugging Face
    copy).
    """

    question: str
    options: list[str] = Field(alias="choices", default=[])
    answer: str | int
    subject: str = ""
    id: int | str | None = None

    @model_validator(mode="before")
    @classmethod
    def _named(cls, row: dict[str, object]) -> dict[str, object]:
        return {"choices": row["options"], **row} if "options" in row else row

    @property
    def letter(self) -> str:
        return (
            LETTERS[self.answer]
            if isinstance(self.answer, int) and 0 <= self.answer < 26
            else str(self.answer)
        )


def _read(piece: Piece, file: File) -> Rows:
    if file.path.suffix == ".csv":
        return [_from_csv(piece, file)]
    row = parsed(_MmluRow, piece, file)
    options = dict(zip(LETTERS, row.options, strict=False))
    id = content_id(row.question, *row.options) if row.id is None else str(row.id)
    named = "-".join(filter(None, [row.subject, id]))
    return [question(named, row.question, options, row.letter, category=row.subject)]


def _from_csv(piece: Piece, file: File) -> CaseRow | Dropped:
    cells = csv_cells(piece.text)
    if len(cells) != _CELLS:
        problem = f"a row is question, A, B, C, D, answer: {_CELLS} cells, not {len(cells)}."
        raise CaseError(problem, file=file.path, line=piece.line)
    stem, *options, answer = cells
    subject = _PART.sub("", file.path.stem)
    id = f"{subject}-{content_id(stem, *options)}"
    return question(id, stem, dict(zip(LETTERS, options, strict=False)), answer, category=subject)


open = QuestionSet(
    "mmlu",
    [
        f"{folder}{subject}_{part}.csv"
        for subject in SUBJECTS
        for part in ("test", "val", "dev")
        for folder in ("", "*/")
    ],
    _read,
    ["MMLU, MIT licence (its authors' repository)."],
    pieces=lambda path: csv_pieces(path) if path.suffix == ".csv" else pieces(path),
)
