"""ICD-10 codes: their plain form, and the chapters as disease families for tables."""

from __future__ import annotations

import re

# a chapter begins at a letter and two digits and ends where the next one begins
_CHAPTERS = (
    ("A00", "infectious"),
    ("C00", "neoplasms"),
    ("D50", "blood and immune"),
    ("E00", "endocrine and metabolic"),
    ("F00", "mental"),
    ("G00", "nervous system"),
    ("H00", "eye"),
    ("H60", "ear"),
    ("I00", "circulatory"),
    ("J00", "respiratory"),
    ("K00", "digestive"),
    ("L00", "skin"),
    ("M00", "musculoskeletal"),
    ("N00", "genitourinary"),
    ("O00", "pregnancy and birth"),
    ("P00", "perinatal"),
    ("Q00", "congenital"),
    ("R00", "symptoms and signs"),
    ("S00", "injury and poisoning"),
    ("U00", "special purposes"),
    ("V00", "external causes"),
    ("Z00", "health status"),
)

_CODE = re.compile(r"[A-Z][0-9][0-9A-Z](?:\.?[0-9A-Z]{1,4})?")


def compact(text: str) -> str:
    """An ICD-10 code in capitals without its dot: "k50.9" is "K509"; "" for other text.

    A code begins with the codes of its groups: K50.90 with K50.9, and that with K50.
    """
    code = text.strip().upper()
    return code.replace(".", "") if _CODE.fullmatch(code) else ""


def chapter(code: str) -> str:
    """The chapter of an upper-case ICD-10 code; "" without a code."""
    return next((name for start, name in reversed(_CHAPTERS) if code and start <= code), "")
