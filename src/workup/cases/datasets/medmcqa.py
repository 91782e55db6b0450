"""MedMCQA (Pal et al., 2022): Indian entrance examinations with four options each.

One JSON object per line; `cop` is the right option. It counts from 1 in the authors' files and from
0 in files derived from the Hugging Face copy. The files themselves tell which: a 4 occurs only in
the first, a 0 only in the second. If neither occurs, `#one-based` or `#zero-based` must say it.
Then the explanations have a say: many begin with the right letter, and a file that they contradict
is refused. Test answers are not published, so the dev part is tested on.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import partial

from pydantic import BaseModel

from workup.cases.pieces import pieces
from workup.cases.questions import (
    CaseRow,
    Dropped,
    File,
    QuestionSet,
    Spec,
    parsed,
    question,
)
from workup.cases.rows import RowErrors
from workup.core.errors import UserError

EXAMPLE = "medmcqa:medmcqa/dev.json"
FIELDS = ("opa opb opc opd",)

_BASES = {"zero-based": 0, "one-based": 1}
_LETTERS = "ABCD"
# an explanation that begins with the answer's letter: "Ans. (b) …", "Answer- C. …"
_NAMED = re.compile(
    r"\s*(?:the\s+)?(?:correct\s+)?ans(?:wer)?[\s:.=\-]{0,8}(?:is)?[\s:.=\-'\"(`‘]{0,8}([a-d])\b",
    re.IGNORECASE,
)


class _MedmcqaRow(BaseModel):
    id: str
    question: str
    opa: str
    opb: str
    opc: str
    opd: str
    cop: int | None = None
    exp: str | None = None
    subject_name: str | None = None


def _case(row: _MedmcqaRow, base: int) -> CaseRow | Dropped:
    if row.cop is None or row.cop < 0:
        return Dropped("its answer is not published", meant=True)
    options = dict(zip(_LETTERS, (row.opa, row.opb, row.opc, row.opd), strict=True))
    at = row.cop - base
    right = _LETTERS[at] if 0 <= at < len(_LETTERS) else "?"
    category = (row.subject_name or "").strip()
    return question(
        row.id,
        row.question,
        options,
        right,
        category=category,
        references=[(row.exp or "").strip()],
    )


def _base(request: Spec, files: Sequence[File], errors: RowErrors) -> tuple[int, Sequence[str]]:
    """From which number `cop` counts, and how that is known.

    Raises UserError where the files do not tell or contradict.
    """
    values: Counter[int] = Counter()
    # cop minus the place of the letter that the explanation begins with
    named: Counter[int] = Counter()
    for file in files:
        # Unreadable rows are reported where cases are made.
        read = partial(parsed, _MedmcqaRow, file=file)
        for _, row in RowErrors().read(pieces(file.path), read):
            if row.cop is None or row.cop < 0:
                continue
            values[row.cop] += 1
            if found := _NAMED.match(row.exp or ""):
                named[row.cop - _LETTERS.index(found[1].upper())] += 1
    base = _decided(request, values)
    if named[1 - base] > named[base]:
        raise UserError(
            f"{request.place}: {named[1 - base]:,} explanations name another option than 'cop' "
            f"counted from {base}, and {named[base]:,} the same; the files are not what they "
            "seem."
        )
    agree = (
        f"; {named[base]:,} of {named.total():,} explanations that begin with a letter agree"
        if named
        else ""
    )
    return base, [f"'cop' counts from {base}{agree}."]


def _decided(request: Spec, values: Counter[int]) -> int:
    if not values:
        return 1
    possible = {
        base for base in (0, 1) if all(base <= value < base + len(_LETTERS) for value in values)
    }
    said = {_BASES[setting] for setting in request.settings} or possible
    if len(said) == 1 and said <= possible:
        return said.pop()
    found = f"'cop' takes the values {', '.join(map(str, sorted(values)))}"
    if not possible:
        raise UserError(f"{request.place}: {found}, which count neither from 0 nor from 1.")
    if not said & possible or len(request.settings) > 1:
        raise UserError(
            f"{request.place}: {found}, which do not count as "
            f"'#{','.join(sorted(request.settings))}' says."
        )
    raise UserError(
        f"{request.place}: {found}, which may count from 0 or from 1; say it, as in "
        f"'medmcqa:{request.place}#one-based' (the authors' files) or '#zero-based' (derived "
        "from the Hugging Face copy)."
    )


open = QuestionSet(
    "medmcqa",
    ["train.json", "dev.json", "test.json", "*.jsonl"],
    lambda base, piece, file: [_case(parsed(_MedmcqaRow, piece, file), base)],
    ["MedMCQA, Apache-2.0 (its authors' repository)."],
    settings=list(_BASES),
    prepare=_base,
)
