"""RJUA-QA: Chinese urology consultations with a list of diagnoses.

One JSON object per line (RJUA_train.json, …). The diagnoses are what is asked for; the published
reply and advice are references. A diagnosis that the patient names is masked in the presentation
and counted. The guideline texts (`context`) are not used.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pydantic import BaseModel

from workup.cases.pieces import Piece
from workup.cases.questions import (
    CaseRow,
    Dropped,
    File,
    QuestionSet,
    Rows,
    open_answer,
    parsed,
    parted,
)
from workup.core.case import Case
from workup.core.leaks import WITHHELD

EXAMPLE = "rjua:RJUA_train.json"
FILES = ("RJUA_*.json",)
FIELDS = ("question disease advice",)

_BETWEEN = frozenset("、，,;；\n")  # what stands between diagnoses
_LEVELS = {"（": 1, "(": 1, "）": -1, ")": -1}
_SIGN = re.compile(r"([（()）、，,;；\n])")
_BRACKETS = re.compile(r"[（(][^（()）]*[）)]")


class _RjuaRow(BaseModel):
    id: str | int
    question: str
    disease: str
    answer: str = ""
    advice: str = ""


def _read(piece: Piece, file: File) -> Rows:
    row = parsed(_RjuaRow, piece, file)
    names = diagnoses_of(row.disease)
    if not names or not row.question.strip():
        return [Dropped("it has no question or no disease")]
    said, asks = parted(row.question)
    presentation, asks_plainly = _withheld(said, names), _withheld(asks, names)
    replies = tuple(filter(None, [row.answer.strip(), row.advice.strip()]))
    truth = open_answer(names, references=replies)
    case = Case(str(row.id), presentation, truth, asks_plainly)
    return [CaseRow(case, masked=(presentation, asks_plainly) != (said, asks))]


def diagnoses_of(text: str) -> list[str]:
    """The diagnoses of a text; what stands between them does not divide inside brackets."""
    names, depth = [""], 0
    for part in _SIGN.split(text):
        depth = max(0, depth + _LEVELS.get(part, 0))
        if depth == 0 and part in _BETWEEN:
            names.append("")
        else:
            names[-1] += part
    return [name.strip() for name in names if name.strip()]


def _withheld(text: str, names: Sequence[str]) -> str:
    """`text` without the names, whole or without their brackets, wherever they stand.

    Chinese has no blanks between words.
    """
    spelled = {
        spelling
        for name in names
        for spelling in (name, _BRACKETS.sub("", name))
        if len(spelling) > 1
    }
    pattern = "|".join(
        re.escape(spelling) for spelling in sorted(spelled, key=lambda name: (-len(name), name))
    )
    return re.sub(pattern, WITHHELD, text, flags=re.IGNORECASE) if pattern else text


open = QuestionSet("rjua", ["RJUA_*.json", "*.jsonl"], _read, ["RJUA-QA, CC BY 4.0."])
