"""Equality of names and codes: the judge that needs no model (C-MIG CM-9)."""

from __future__ import annotations

from workup.case import Case
from workup.text import same_name


class ExactJudge:
    """A `Judge`: the answer is the diagnosis, one of its aliases, or one of its ICD codes; near misses are wrong.

    Names are compared in `workup.text.normalise` form. Codes are compared whole, without their dots: J45.2 is J452, not J45.
    """

    async def same(self, answer: str, case: Case) -> bool:
        truth = case.truth
        if any(same_name(answer, name) for name in (truth.diagnosis, *truth.aliases)):
            return True
        code = _code(answer)
        return bool(code) and code in map(_code, truth.codes)


def _code(text: str) -> str:
    return text.strip().replace(".", "").upper()
