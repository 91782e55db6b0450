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

from workup.cases.pieces import pieces
from workup.cases.questions import (
    CaseRow,
    Dropped,
    File,
    QuestionSet,
    content_id,
    parsed,
    question,
)
from workup.cases.rows import RowErrors

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


Answers = Callable[[Path], dict[str, str]]  # folder → answers by the question's id


def _answers(folder: Path, errors: RowErrors) -> dict[str, str]:
    """The published answers by the question's id, from the nearest folder that has them."""
    for above in (folder, *folder.parents[:_ABOVE]):
        path = above / _ANSWERS
        if path.is_file():
            read = partial(parsed, _AnswerRow, file=File(path))
            return {str(row.id): row.answer for _, row in errors.read(pieces(path), read)}
    return {}


def _case(row: _CmbRow, file: File, answers: Answers) -> CaseRow | Dropped:
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


open = QuestionSet(
    "cmb",
    [
        f"{folder}{name}"
        for name in (
            "CMB-train-merge.json",
            "CMB-val-merge.json",
            "CMB-test-choice-question-merge.json",
            "*.jsonl",
        )
        for folder in ("", "*/")
    ],
    lambda answers, piece, file: [_case(parsed(_CmbRow, piece, file), file, answers)],
    ["CMB, Apache-2.0 (its authors' repository)."],
    prepare=lambda request, files, errors: (lru_cache(partial(_answers, errors=errors)), ()),
)
