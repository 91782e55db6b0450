"""NEJMQA (Katz et al., 2024): Israeli board examinations in five specialties.

CSV with a header or JSON lines. A file holds one specialty and is named after it
(general_surgery.csv, …). `question` carries the options after the stem, lettered A to D; they are
taken apart here. `answer` is a letter, or several.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from pydantic import BaseModel

from workup.cases.files import checked
from workup.cases.pieces import Piece, csv_cells, csv_pieces, pieces
from workup.cases.questions import (
    CaseRow,
    Dropped,
    File,
    QuestionSet,
    Rows,
    content_id,
    question,
    row_of,
)
from workup.core.errors import CaseError

EXAMPLE = "nejmqa:general_surgery.csv"
FILES = ("general_surgery.*", "internal_medicine.*", "pediatrics.*", "psychiatry.*")

_MARK = re.compile(r"(?:^|(?<=\s))([A-H])[.)][ \t]*")
_OPTIONS = 4  # of a question
_LINE_MARK = re.compile(r"^[ \t]*+([A-H])[.)][ \t]*", re.MULTILINE)


class _NejmqaRow(BaseModel):
    question: str
    answer: str


Header = Callable[[Path], list[str]]


def _read(header: Header, piece: Piece, file: File) -> Rows:
    csv = file.path.suffix == ".csv"
    values = _from_csv(piece, file, header) if csv else row_of(piece, file)
    return [_case(checked(_NejmqaRow, values, file=file.path, line=piece.line), file)]


def _pieces(path: Path) -> Iterator[Piece | CaseError]:
    if path.suffix != ".csv":
        return pieces(path)
    rows = csv_pieces(path)
    next(rows, None)  # the header
    return rows


def _header(path: Path) -> list[str]:
    first = next(csv_pieces(path), None)
    if not isinstance(first, Piece):
        raise first or CaseError("is empty; a header was expected.", file=path)
    names = csv_cells(first.text)
    if missing := {"question", "answer"} - set(names):
        problem = f"the header names no column '{min(missing)}', only {', '.join(names)[:80]}."
        raise CaseError(problem, file=path, line=first.line)
    return names


def _from_csv(piece: Piece, file: File, header: Header) -> dict[str, str]:
    names, cells = header(file.path), csv_cells(piece.text)
    if len(cells) != len(names):
        raise CaseError(
            f"the header has {len(names)} columns, this row {len(cells)}.",
            file=file.path,
            line=piece.line,
        )
    return dict(zip(names, cells, strict=True))


def _case(row: _NejmqaRow, file: File) -> CaseRow | Dropped:
    stem, options = lettered(row.question)
    if not options:
        return Dropped("its options cannot be told from the question")
    specialty = file.path.stem
    return question(
        f"{specialty}-{content_id(row.question)}", stem, options, row.answer, category=specialty
    )


def lettered(text: str) -> tuple[str, dict[str, str]]:
    """The stem, and the options by letter; none where they cannot be told apart.

    Options are a run A, B, C, … of marks ("A." or "A)") at the beginnings of lines, or of words
    where that run is longer and lines do not begin all four. Of several runs the longest counts, of
    equal ones the last. They cannot be told apart where words allow another run.
    """
    listed = _longest(list(_LINE_MARK.finditer(text)))
    words = list(_MARK.finditer(text))
    run = listed if len(listed) >= _OPTIONS else max(listed, _longest(words), key=len)
    if not run or (run is not listed and _doubtful(words, run)):
        return text, {}
    ends = [*(mark.start() for mark in run[1:]), len(text)]
    options = {mark[1]: text[mark.end() : end].strip() for mark, end in zip(run, ends, strict=True)}
    return text[: run[0].start()].strip(), options


def _doubtful(marks: Sequence[re.Match[str]], run: Sequence[re.Match[str]]) -> bool:
    """Whether other marks behind the first of a run make such a run too, or go on with it."""
    ways = Counter(A=1)  # letter → the runs from A to it
    for mark in marks:
        if mark.start() > run[0].start():
            ways[mark[1]] += ways[chr(ord(mark[1]) - 1)]
    last = run[-1][1]
    return ways[last] > 1 or ways[chr(ord(last) + 1)] > 0


def _longest(marks: Sequence[re.Match[str]]) -> list[re.Match[str]]:
    runs = [_run(marks, at) for at, mark in enumerate(marks) if mark[1] == "A"]
    run = max(reversed(runs), key=len, default=[])
    return run if len(run) > 1 else []


def _run(marks: Sequence[re.Match[str]], at: int) -> list[re.Match[str]]:
    """The marks that follow on one another, from the A at a place to before the next one."""
    run = [marks[at]]
    for place in range(at + 1, len(marks)):
        if marks[place][1] == "A":
            break
        if ord(marks[place][1]) == ord(run[-1][1]) + 1:
            run.append(marks[place])
    return run


open = QuestionSet(
    "nejmqa",
    ["*.csv", "*.jsonl", "*.json"],
    _read,
    ["NEJMQA: see its data card for the terms of use."],
    pieces=_pieces,
    prepare=lambda request, files, errors: (lru_cache(_header), ()),
)
