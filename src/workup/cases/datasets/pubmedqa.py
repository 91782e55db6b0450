"""PubMedQA (Jin et al., 2019): questions of studies, answered yes, no or maybe from the abstract.

`ori_pqal.json` is one object whose members are named by PubMed id; `test_ground_truth.json` beside
it names the test half. JSON lines with a `pmid` are read as well. The presentation is the abstract
without its conclusion, which is a reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel, Field

from workup.cases.files import checked, existing, read_object
from workup.cases.pieces import Piece
from workup.cases.questions import (
    CaseRow,
    Dropped,
    File,
    QuestionSet,
    Rows,
    Spec,
    choice,
    row_of,
)
from workup.cases.rows import RowErrors
from workup.core.case import Case
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


Truths = tuple[dict[str, object], Path]  # the published test half, and the file it stands in


def _prepare(
    request: Spec, files: Sequence[File], errors: RowErrors
) -> tuple[Truths, Sequence[str]]:
    path = existing(request.place)
    beside = (path if path.is_dir() else path.parent) / _TRUTH
    return (read_object(beside) if beside.is_file() else {}, beside), ()


def _read(truths: Truths, piece: Piece, file: File) -> Rows:
    (truth, where), path, line = truths, file.path, piece.line
    row = checked(_PubmedqaRow, row_of(piece, file), file=path, line=line, within=piece.key)
    pmid = piece.key or str(row.pmid or "")
    if not pmid:
        raise CaseError("there is no PubMed id.", file=path, line=line, field="pmid")
    if row.decision and truth.get(pmid, row.decision) != row.decision:
        problem = f"'{row.decision}' here, '{truth[pmid]}' in {where}."
        raise CaseError(problem, file=path, line=line, field=pmid)
    part = ("test" if pmid in truth else "train") if truth else ""
    return [_case(pmid, row, part)]


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


open = QuestionSet(
    "pubmedqa",
    [*_SPLITS, "*.jsonl"],
    _read,
    ["PubMedQA, MIT licence (its authors' repository)."],
    whole="ori_pqal.json",
    prepare=_prepare,
)
