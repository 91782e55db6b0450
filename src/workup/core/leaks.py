"""Diagnoses that a record names before anybody has made them: found by name, replaced, counted."""

from __future__ import annotations

import re
from collections.abc import Iterable
from unicodedata import normalize

from workup.core.text import settled

WITHHELD = "[name withheld]"
_PARENTHESIS = re.compile(r"\s?\(([^()]{1,60})\)")
_ABBREVIATION = re.compile(r"(?=\w*[A-Z]\w*[A-Z])[\w-]{2,10}")
_SUBTYPE = re.compile(r"(?:,? type)? (?:\d{1,3}|[IVX]{1,4})[A-Za-z]?$")
_DEGREE = re.compile(r"^(?:(?:acute|subacute|chronic|active|recurrent) )+(?=\S)", re.I)
_AGE = re.compile(r"^(?:neonatal|congenital|infantile|juvenile|adult) (?=\S+ \S)", re.I)
# names shorter than this, and initials up to this, are matched in their exact case: "MS" is a
# disease, "ms" a unit
_SHORT, _INITIALS = 4, 5
_HYPHENS = "\u2010\u2011\u2012\u2013-"
_JOINT = re.compile(rf"[\s{_HYPHENS}]+")
_POSSESSIVE = re.compile(r"['’]s$")


def other_names(diagnosis: str) -> tuple[str, ...]:
    """The diagnosis's other names: the name without its parenthesis, and an abbreviation in it."""
    bare = _PARENTHESIS.sub("", diagnosis).strip()
    short = [
        inside for inside in _PARENTHESIS.findall(diagnosis) if _ABBREVIATION.fullmatch(inside)
    ]
    return tuple(name for name in dict.fromkeys((bare, *short)) if name and name != diagnosis)


def without_subtype(diagnosis: str) -> str:
    """The name without its parenthesis and without a number at its end: what subtypes share.

    >>> without_subtype("Cardiomyopathy, dilated, 1A")
    'Cardiomyopathy, dilated'
    """
    bare = _PARENTHESIS.sub("", diagnosis).strip()
    return _SUBTYPE.sub("", bare).rstrip(", ") or bare


class Mask:
    """Withholds names wherever they stand as whole words, and counts in `found` how often they did.

    A name is matched in any letter case (only in its own, if it has up to three letters, or is up
    to five capitals), in the singular or plural, with blank or hyphen; with or without the
    parenthesis in it, a leading degree ("acute") or age ("neonatal"), a trailing subtype ("type
    2"); and by its initials, from three words on. Paraphrases ("dislocation of the hip") are not
    recognised. With `family` false a trailing subtype has to be there: "optic atrophy" is a finding
    of "Optic atrophy 12".
    """

    def __init__(self, names: Iterable[str], *, family: bool = True) -> None:
        whole = (normalize("NFC", settled(name)) for name in names)
        known = {spelling for name in whole for spelling in spellings(name, family)}
        spelled = {each for name in known for each in (name, _initials(name)) if each}
        ordered = sorted(spelled, key=lambda name: (-len(name), name))
        self._pattern = re.compile(
            rf"(?<!\w)(?:{'|'.join(map(_loose, ordered))})(?!\w)" if ordered else r"(?!)"
        )
        self.found = 0

    def __call__(self, text: str) -> str:
        hidden, count = self._pattern.subn(WITHHELD, normalize("NFC", settled(text)))
        self.found += count
        return hidden if count else text


def spellings(name: str, family: bool = True) -> set[str]:
    """The name with and without its parenthesis, a leading degree or age, a trailing subtype.

    With `family` false the subtype stays.
    """
    names = {name.strip(), *other_names(name)}
    for shorten in (_DEGREE, _AGE):
        names |= {shorten.sub("", known) for known in names}
    if family:
        names |= {shorter for known in names if " " in (shorter := _SUBTYPE.sub("", known))}
    return {known for known in names if any(map(str.isalnum, known))}


def _initials(name: str) -> str:
    """CLL for "Chronic lymphocytic leukemia"; "" unless the name has three to five plain words."""
    words = [word for word in _JOINT.split(name) if word]
    return (
        "".join(word[0] for word in words).upper()
        if 3 <= len(words) <= _INITIALS and "".join(words).isalpha()
        else ""
    )


def _loose(name: str) -> str:
    words = [_POSSESSIVE.sub("", word) for word in _JOINT.split(name) if word]
    if len(name) < _SHORT or (name.isupper() and len(name) <= _INITIALS):
        return rf"[\s{_HYPHENS}]".join(map(re.escape, words))
    # A line may be folded and indented between two words.
    joined = rf"[\s{_HYPHENS}]{{1,9}}".join(map(_either_number, words))
    return f"(?i:{joined})"


def _either_number(word: str) -> str:
    """A pattern for the word in the singular and the plural, and for its genitive."""
    plural = len(word) > _SHORT and word.endswith("s") and not word.endswith(("ss", "us", "is"))
    stem = f"{re.escape(word[:-1])}s?" if plural else re.escape(word)
    return f"{stem}(?:['’]?s|es)?"
