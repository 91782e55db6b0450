"""The known name within a longer one: "Glioblastoma (WHO grade 4)" is glioblastoma.

What stands beside the name has to qualify it: a grade, a stage, a side, a course, an abbreviation
of the name, a molecular state, a histological pattern, a place. Anything else leaves the term
unknown, so that a name that is made up around a known one stays made up.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Container
from functools import cache
from pathlib import Path

from workup.cases.catalogue import built_in
from workup.core.text import abbreviates, asserts, normalise

LONGEST = 30
"""Words of a term that are looked at; a longer term names nothing."""

# A symbol of a gene or an antigen in the name of a marker: EGFR, CD20, IDH1.
_SYMBOL = re.compile(r"\b(?=\w*[A-Z0-9]\w*[A-Z0-9])[A-Z]\w+\b")
# A number, a Roman numeral, "3a", "IE", "pT2", "N0", "4+3".
_NUMBER = re.compile(
    r"[<>]?[acpy]{0,2}[tnmg]?\d{1,3}[a-d]?(?:[+.]\d{1,2})?|[ivx]{1,4}[a-es]?|[a-d]"
)
# An altered protein: V600E, L858R, G12D.
_ALTERED = re.compile(r"[a-z]\d{2,4}[a-z]")
_POLARITY = frozenset(("negative", "positive", "status"))
_MARKED_WORDS = (
    "atrx codeleted estrogen h3 h3k27m hormone idh idh1 idh2 mgmt mutation node receptor tert "
    "triple"
)
# Genes and receptors that "negative" and "positive" can refer to, as in "triple negative"; the
# markers' own symbols (`_symbols`) are further ones.
_MARKED = frozenset(_MARKED_WORDS.split())
_BRACKETED = re.compile(r"[(\[（]([^()\[\]（）]{1,20})[)\]）]")


def core(term: str, known: Callable[[str], bool], harmless: Container[str] | None = None) -> str:
    """The longest known name in `term`, in normal form, if all the rest qualifies it; else "".

    `known` says whether a normal form is a name. With `harmless` no other words qualify. A term
    that denies, doubts or offers several names has none (`workup.core.text.asserts`). The name
    stands in one piece.

    >>> core("Glioblastoma (WHO grade 4)", lambda form: form == "glioblastoma")
    'glioblastoma'
    >>> core("zorgoid glioblastoma", lambda form: form == "glioblastoma")
    ''
    """
    if not asserts(term):
        return ""
    short = {normalise(inside) for inside in _BRACKETED.findall(term)}
    words = normalise(term).split()
    if len(words) > LONGEST:
        return ""
    for length in range(len(words), 0, -1):
        for start in range(len(words) - length + 1):
            name = " ".join(words[start : start + length])
            if known(name):
                rest = [*words[:start], *words[start + length :]]
                if harmless is not None:
                    return name if all(word in harmless for word in rest) else ""
                return name if _qualifies(rest, name, short) else ""
    return ""


def _qualifies(rest: list[str], name: str, bracketed: set[str]) -> bool:
    """Whether every word of `rest` is a qualifier: listed, a number, an altered protein such as
    V600E, the name's own abbreviation in brackets, or an organ where the disease occurs.

    "Negative" and "positive" qualify a marker: "glioblastoma negative" names no glioblastoma. Of a
    metastasis any organ may be named.
    """
    if not _POLARITY.isdisjoint(rest) and (_symbols() | _MARKED).isdisjoint(rest):
        return False
    spread = any(word.startswith("metasta") for word in rest)
    organs = _organs("") if spread else _organs(name)
    return all(
        word in _words()
        or word in _symbols()
        or word in organs
        or _NUMBER.fullmatch(word) is not None
        or _ALTERED.fullmatch(word) is not None
        or (word in bracketed and abbreviates(word, name))
        for word in rest
    )


@cache
def _words() -> frozenset[str]:
    """The words of `qualifiers.csv`."""
    lines = (Path(__file__).parent / "qualifiers.csv").read_text(encoding="utf-8").splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    return frozenset(word for row in rows for word in row["words"].split())


@cache
def _symbols() -> frozenset[str]:
    """The symbols of the wing's markers, in normal form."""
    known = built_in().examinations
    stained = (name for each in known for name in (each.name, *each.synonyms))
    symbols = (normalise(symbol) for name in stained for symbol in _SYMBOL.findall(name))
    return frozenset(word for symbol in symbols for word in symbol.split())


@cache
def _organs(name: str) -> frozenset[str]:
    """The words of the organs and sites of the diseases with this name; without one, of all."""
    entries = built_in().find(name) if name else built_in().entries
    places = (place for entry in entries for place in (entry.organ, *entry.sites))
    return frozenset(word for place in places for word in normalise(place).split())
