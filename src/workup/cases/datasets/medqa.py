"""MedQA (Jin et al., 2020): licensing examinations of the USA, Mainland China and Taiwan.

One JSON object per line: `medqa:questions/US`, `medqa:questions/US/4_options`,
`medqa:questions/Mainland`, or one of their files.
"""

from __future__ import annotations

from pydantic import BaseModel, model_validator

from workup.cases.pieces import Piece
from workup.cases.questions import File, QuestionSet, Rows, content_id, parsed, question

EXAMPLE = "medqa:questions/US/4_options"
FIELDS = ("options answer_idx meta_info",)


class _MedqaRow(BaseModel):
    question: str
    options: dict[str, str]
    answer: str
    answer_idx: str
    meta_info: str = ""
    context: object = None
    facts: object = None

    @model_validator(mode="after")
    def _answered(self) -> _MedqaRow:
        if self.context is not None and self.facts is not None:
            raise ValueError("it has the context and facts of mediQ; open the file as mediq:FILE")
        if self.options.get(self.answer_idx.strip(), "").strip() != self.answer.strip():
            raise ValueError("'answer' is not the option that 'answer_idx' names")
        return self


def _read(piece: Piece, file: File) -> Rows:
    row = parsed(_MedqaRow, piece, file)
    id = content_id(row.question, *row.options.values(), row.answer)
    return [question(id, row.question, row.options, row.answer_idx, category=row.meta_info.strip())]


open = QuestionSet("medqa", ["*.jsonl"], _read, ["MedQA, MIT licence (its authors' repository)."])
