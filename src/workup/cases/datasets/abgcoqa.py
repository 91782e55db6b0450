"""Abg-CoQA (Guo et al., 2021): questions about a passage, some of which need a question back.

`coqa_abg_train.json`, … hold an object with a list `data`; JSON lines of the same rows are read as
well. `category` says whether the question is ambiguous, for accuracy by class; the questions back
and their answers are in `Truth.extra`. An ambiguous question wants a question back, the others an
answer: the measure `actions` tells which came.
"""

from __future__ import annotations

from functools import partial
from typing import Literal, TypedDict

from pydantic import BaseModel, Field, field_validator

from workup.cases.pieces import Piece, pieces
from workup.cases.questions import CaseRow, Dropped, File, QuestionSet, Rows, parsed
from workup.core.case import Case, Truth

EXAMPLE = "abgcoqa:abg-coqa/coqa_abg_test.json"
FILES = ("coqa_abg_*.json",)
FIELDS = ("target_turn history_turns ambiguity",)

_ANSWERS = ("org_ans", "org_ans_2", "org_ans_3")


class Clarification(TypedDict):
    """A question back; for each reply of the person who asked, the answers that are then right."""

    question: str
    replies: list[str]
    answers: list[list[str]]


class Ambiguity(TypedDict):
    """`Truth.extra`: whether the question is ambiguous, and the questions back written for it."""

    ambiguous: bool
    clarifications: list[Clarification]


class _Turn(BaseModel):
    question: str
    answer: str


class _Clarification(BaseModel):
    question: str
    answers: list[dict[str, str]]

    def plain(self) -> Clarification:
        answers = [
            list(dict.fromkeys(reply[name] for name in _ANSWERS if reply.get(name)))
            for reply in self.answers
        ]
        replies = [reply.get("clr_ans", "") for reply in self.answers]
        return Clarification(question=self.question, replies=replies, answers=answers)


class _AbgcoqaRow(BaseModel):
    id: str
    story: str
    target: _Turn = Field(alias="target_turn")
    history: list[_Turn] = Field(alias="history_turns")
    ambiguity: Literal["ambiguous", "non_ambiguous"]
    first: _Clarification | None = Field(alias="clarification_turn", default=None)
    second: _Clarification | None = Field(alias="clarification_turn_2", default=None)

    @field_validator("first", "second", mode="before")
    @classmethod
    def _absent(cls, value: object) -> object:
        return value or None


def _read(piece: Piece, file: File) -> Rows:
    row = parsed(_AbgcoqaRow, piece, file)
    if not row.target.question.strip() or not row.target.answer.strip():
        return [Dropped("it has no question or no answer")]
    turns = "\n".join(
        f"Q: {turn.question.strip()}\nA: {turn.answer.strip()}" for turn in row.history
    )
    presentation = "\n\n".join(filter(None, [row.story.strip(), turns]))
    if not presentation:
        return [Dropped("it has no passage")]
    written = [turn.plain() for turn in (row.first, row.second) if turn is not None]
    extra = Ambiguity(ambiguous=row.ambiguity == "ambiguous", clarifications=written)
    truth = Truth(row.target.answer.strip(), extra=extra)
    case = Case(row.id, presentation, truth, row.target.question.strip(), category=row.ambiguity)
    return [CaseRow(case, group=row.id.partition("|")[0])]


open = QuestionSet(
    "abgcoqa",
    ["coqa_abg_*.json", "*.jsonl"],
    _read,
    [
        "The passages are no medicine: this set tests when to ask back.",
        "Abg-CoQA, MIT licence; its passages keep the terms of CoQA's sources.",
    ],
    pieces=partial(pieces, under="data"),
)
