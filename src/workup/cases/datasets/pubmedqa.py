"""PubMedQA (Jin et al., 2019): questions of studies, answered yes, no or maybe from the abstract.

`ori_pqal.json` is one object whose members are named by PubMed id; `test_ground_truth.json` beside
it names the test half. JSON lines with a `pmid` are read as well. The presentation is the abstract
without its conclusion, which is a reference.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel, Field

from workup.cases.files import Split, checked, existing, read_object
from workup.cases.pieces import Piece, pieces
from workup.cases.questions import (
    CaseRow,
    Dropped,
    File,
    Rows,
    asked,
    choice,
    files_of,
    question_source,
    row_of,
)
from workup.cases.rows import RowErrors
from workup.core.case import Case, Source
from workup.core.errors import CaseError

EXAMPLE = "pubmedqa:data/ori_pqal.json"
FILES = ("ori_pqal.json",)
FIELDS = ("QUESTION CONTEXTS final_decision",)

_TRUTH = "test_ground_truth.json"
_SPLITS = ("train_set.json", "dev_set.json", "test_set.json")  # what the authors' script writes
_DECISIONS = ("yes", "no", "maybe")
_LETTERS = dict(zip(_DECISIONS, "ABC", strict=True))


class _PubmedqaRow(BaseModel):
    question: str = Field(alias="QUESTION")
    contexts: list[str] = Field(alias="CONTEXTS")
    labels: list[str] = Field(alias="LABELS", default=[])
    decision: str | None = Field(alias="final_decision", default=None)
    conclusion: str | None = Field(alias="LONG_ANSWER", default=None)
    pmid: str | int | None = None


def open(rest: str, split: Split, errors: RowErrors) -> Source:
    """Opens `FOLDER` or `FILE`, with `#VIEW`.

    Raises UserError and CaseError (file, line, field).
    """
    request = asked("pubmedqa", rest, split)
    whole = (existing(request.place) / "ori_pqal.json").is_file()
    files = files_of(request.place, ["ori_pqal.json"] if whole else [*_SPLITS, "*.jsonl"])
    truth, where = _truth(request.place)

    def read(piece: Piece, file: File) -> Rows:
        row = checked(
            _PubmedqaRow, row_of(piece, file), file=file.path, line=piece.line, within=piece.key
        )
        pmid = piece.key or str(row.pmid or "")
        if not pmid:
            raise CaseError("there is no PubMed id.", file=file.path, line=piece.line, field="pmid")
        if truth and pmid in truth and row.decision and truth[pmid] != row.decision:
            raise CaseError(
                f"'{row.decision}' here, '{truth[pmid]}' in {where}.",
                file=file.path,
                line=piece.line,
                field=pmid,
            )
        part = ("test" if pmid in truth else "train") if truth else ""
        return [_case(pmid, row, part)]

    return question_source(
        request, errors, files, pieces, read, ["PubMedQA, MIT licence (its authors' repository)."]
    )


def _truth(place: str) -> tuple[dict[str, object], Path]:
    """The published test half, empty where the file is not there."""
    path = existing(place)
    beside = (path if path.is_dir() else path.parent) / _TRUTH
    return (read_object(beside) if beside.is_file() else {}), beside


def _case(pmid: str, row: _PubmedqaRow, part: str) -> CaseRow | Dropped:
    if row.decision is None:
        return Dropped("it has no final decision", meant=True)
    if not any(context.strip() for context in row.contexts) or not row.question.strip():
        return Dropped("it has no context or no question")
    options = {letter: decision for decision, letter in _LETTERS.items()}
    made = choice(options, _LETTERS.get(row.decision, "?"))
    if isinstance(made, Dropped):
        return Dropped("its final decision is not yes, no or maybe")
    shown, truth = made
    labels = row.labels if len(row.labels) == len(row.contexts) else [""] * len(row.contexts)
    presentation = "\n".join(
        f"{label}: {text}" if label else text
        for label, text in zip(labels, row.contexts, strict=True)
    )
    truth = replace(truth, references=tuple(filter(None, [row.conclusion])))
    return CaseRow(Case(pmid, presentation, truth, row.question.strip(), shown), part=part)
