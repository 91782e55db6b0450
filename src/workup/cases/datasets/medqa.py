"""MedQA (Jin et al., 2020): licensing examinations of the USA, Mainland China and Taiwan.

One JSON object per line: `medqa:questions/US`, `medqa:questions/US/4_options`,
`medqa:questions/Mainland`, or one of their files.
"""

from __future__ import annotations

from pydantic import BaseModel, model_validator

from workup.cases.files import Split, checked
from workup.cases.pieces import Piece, pieces
from workup.cases.questions import (
    File,
    Rows,
    asked,
    content_id,
    files_of,
    question,
    question_source,
    row_of,
)
from workup.cases.rows import RowErrors
from workup.core.case import Source

EXAMPLE = "medqa:questions/US/4_options"
FIELDS = ("options answer_idx meta_info",)


class _Row(BaseModel):
    question: str
    options: dict[str, str]
    answer: str
    answer_idx: str
    meta_info: str = ""

    @model_validator(mode="after")
    def _answered(self) -> _Row:
        if self.options.get(self.answer_idx.strip(), "").strip() != self.answer.strip():
            raise ValueError("'answer' is not the option that 'answer_idx' names")
        return self


def open(rest: str, split: Split, errors: RowErrors) -> Source:
    """Opens `FOLDER` or `FILE`, with `#VIEW`.

    Raises UserError and CaseError (file, line, field).
    """
    request = asked("medqa", rest, split)
    files = files_of(request.place, ["*.jsonl"])
    return question_source(
        request, errors, files, pieces, _read, ["MedQA, MIT licence (its authors' repository)."]
    )


def _read(piece: Piece, file: File) -> Rows:
    row = checked(_Row, row_of(piece, file), file=file.path, line=piece.line)
    id = content_id(row.question, *row.options.values(), row.answer)
    return [question(id, row.question, row.options, row.answer_idx, category=row.meta_info.strip())]
