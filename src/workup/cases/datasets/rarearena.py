"""RareArena (Chen et al., 2026): case reports of rare diseases, two tasks.

The tasks are screening (RDS) and, with test results, confirmation (RDC). `rarearena:FOLDER` reads
RDS.json and RDC.json to train on and RDS_benchmark.jsonl and RDC_benchmark.jsonl to test on. All
are JSON lines. A patient of both tasks stays on one side of a split. Diagnoses that a report still
names are masked and counted. In RDC the test results follow the report. The Orphanet name is an
alias.
"""

from __future__ import annotations

import re

from pydantic import BaseModel, Field

from workup.cases.pieces import Piece
from workup.cases.questions import Answer, CaseRow, Dropped, File, QuestionSet, Rows, parsed
from workup.core.case import Case, Truth
from workup.core.leaks import Mask
from workup.core.text import same_name

EXAMPLE = "rarearena:RareArena"
FILES = ("RD[SC].json", "RD[SC]_benchmark.jsonl")
FIELDS = ("case_report Orpha_name",)

_ROLES = {
    "benchmark": "test",
    "rds": "train",
    "rdc": "train",
}  # the last word of a name that is here counts


class _RarearenaRow(BaseModel):
    id: str = Field(alias="_id")
    case_report: str
    diagnosis: str
    orpha_name: str | None = Field(alias="Orpha_name", default=None)
    orpha_id: str | int | None = Field(alias="Orpha_id", default=None)
    test_results: str | None = None


def _read(piece: Piece, file: File) -> Rows:
    row = parsed(_RarearenaRow, piece, file)
    if not row.case_report.strip() or not row.diagnosis.strip():
        return [Dropped("it has no report or no diagnosis")]
    task = "RDS" if row.test_results is None else "RDC"
    report = "\n".join(filter(None, [row.case_report.strip(), (row.test_results or "").strip()]))
    truth = _truth(row)
    mask = Mask((truth.diagnosis, *truth.aliases), family=False)
    presentation = mask(report)
    case = Case(f"{task}-{row.id}", presentation, truth, category=task)
    return [CaseRow(case, group=row.id, masked=mask.found > 0)]


def _truth(row: _RarearenaRow) -> Truth:
    name, orphanet = row.diagnosis.strip(), (row.orpha_name or "").strip()
    code = re.sub(r"\D", "", str(row.orpha_id or ""))
    return Truth(
        name,
        codes=(f"ORPHA:{code}",) if code else (),
        aliases=(orphanet,) if orphanet and not same_name(orphanet, name) else (),
        extra=Answer(right=[name], letters=[], alphabet=[]),
    )


open = QuestionSet(
    "rarearena",
    ["RD[SC].json", "RD[SC]_benchmark.jsonl"],
    _read,
    ["RareArena, CC BY-NC-SA 4.0: not for commercial use."],
    roles=_ROLES,
)
