"""CMB-Exam (Wang et al., 2023): Chinese examinations in medicine, often with several right options.

`cmb:CMB-Exam` reads CMB-train, CMB-val and CMB-test below it. The answers of the test questions are
published apart, as `CMB-test-choice-answer.json`; it is looked for beside the questions and in the
folders above them. Where several options may be right, the question says so, as in the authors'
prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

from pydantic import BaseModel

from workup.cases.files import Split
from workup.cases.pieces import Piece, pieces
from workup.cases.questions import (
    CaseRow,
    Dropped,
    File,
    Rows,
    asked,
    content_id,
    files_of,
    parsed,
    question,
    question_source,
)
from workup.cases.rows import RowErrors
from workup.core.case import Source

EXAMPLE = "cmb:CMB-Exam"
FILES = ("CMB-*/CMB-*-merge.json", "CMB-*-merge.json")
FIELDS = ("question option exam_subject",)

_ANSWERS = "CMB-test-choice-answer.json"
_ABOVE = 3  # folders in which the answers are looked for
_SEVERAL = "多项选择题"  # the official type of a question with several right options


class _CmbRow(BaseModel):
    question: str
    option: dict[str, str | None]
    question_type: str = ""
    exam_subject: str = ""
    answer: str | None = None
    explanation: str | None = None
    id: int | str | None = None


class _AnswerRow(BaseModel):
    id: int | str
    answer: str


def open(rest: str, split: Split, errors: RowErrors) -> Source:
    """Opens `FOLDER` or `FILE`, with `#VIEW`.

    Raises UserError and CaseError (file, line, field).
    """
    request = asked("cmb", rest, split)
    names = (
        "CMB-train-merge.json",
        "CMB-val-merge.json",
        "CMB-test-choice-question-merge.json",
        "*.jsonl",
    )
    files = files_of(request.place, [f"{folder}{name}" for name in names for folder in ("", "*/")])
    answers = lru_cache(partial(_answers, errors=errors))

    def read(piece: Piece, file: File) -> Rows:
        row = parsed(_CmbRow, piece, file)
        return [_case(row, file, answers)]

    return question_source(
        request, errors, files, pieces, read, ["CMB, Apache-2.0 (its authors' repository)."]
    )


def _answers(folder: Path, errors: RowErrors) -> dict[str, str]:
    """The published answers by the question's id, from the nearest folder that has them."""
    for above in (folder, *folder.parents[:_ABOVE]):
        path = above / _ANSWERS
        if path.is_file():
            read = partial(_answer, path=path)
            return {str(row.id): row.answer for _, row in errors.read(pieces(path), read)}
    return {}


def _answer(piece: Piece, path: Path) -> _AnswerRow:
    return parsed(_AnswerRow, piece, File(path))


def _case(row: _CmbRow, file: File, answers: Callable[[Path], dict[str, str]]) -> CaseRow | Dropped:
    answer = row.answer
    if answer is None:
        answer = answers(file.path.resolve().parent).get(str(row.id))
    if answer is None:
        return Dropped(
            f"its answer stands in {_ANSWERS}, which is not there or does not have it", meant=True
        )
    options = {letter: text or "" for letter, text in row.option.items()}
    id = content_id(row.question, *options.values()) if row.id is None else str(row.id)
    named = "-".join(filter(None, [file.part, id]))
    explained = [(row.explanation or "").strip()]
    made = question(
        named,
        row.question,
        options,
        answer,
        category=row.exam_subject.strip(),
        references=explained,
    )
    if isinstance(made, Dropped) or row.question_type != _SEVERAL:
        return made
    asks = f"{made.case.question}（{_SEVERAL}）"
    return replace(made, case=replace(made.case, question=asks))
