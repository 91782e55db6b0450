"""CMB-Clin (Wang et al., 2023): 74 Chinese patient records with open questions about each: `CMB-Clin-qa.json`.

Every question is a case of its own; those about one patient stay on the same side of a split.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import AliasChoices, BaseModel, Field

from workup.case import Case, Source
from workup.cases.files import checked
from workup.cases.pieces import Piece, pieces
from workup.cases.questions import Dropped, File, Row, asked, files_of, open_answer, question_source, row_of

_CASE = "案例分析"  # the title is the chapter, this, and the disease


class _Pair(BaseModel):
    question: str
    answer: str = Field(validation_alias=AliasChoices("answer", "solution"))


class _Row(BaseModel):
    id: int | str
    title: str
    description: str
    pairs: list[_Pair] = Field(alias="QA_pairs")


def open(rest: str, seed: int) -> Source:
    """Opens `FOLDER` or `FILE`, with `#VIEW`. Raises UserError and CaseError (file, line, field)."""
    request = asked("cmb_clin", rest, seed)
    files = files_of(request.place, ["CMB-Clin-qa.json", "CMB-test-qa.json"], {"qa": ""})
    notes = ("The truth is a text of several sentences: for judges and overlap measures, not for equality.", "CMB, Apache-2.0.")
    return question_source(request, files, pieces, _read, notes)


def _read(piece: Piece, file: File) -> Sequence[Row | Dropped]:
    row = checked(_Row, row_of(piece, file), file=file.path, line=piece.line)
    return [_case(row, number, pair) for number, pair in enumerate(row.pairs, start=1)]


def _case(row: _Row, number: int, pair: _Pair) -> Row | Dropped:
    if not (row.description.strip() and pair.question.strip() and pair.answer.strip()):
        return Dropped("it has no description, question or solution")
    truth = open_answer([pair.answer.strip()])
    category = row.title.partition(_CASE)[0].strip()
    case = Case(f"{row.id}-{number}", row.description.strip(), truth, pair.question.strip(), category=category)
    return Row(case, group=str(row.id))
