"""Which of the listed options an answer chooses, by letter, text or both; exact (PM-16)."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from string import ascii_uppercase

from workup.core.case import Case
from workup.core.ports import Judge
from workup.core.text import asserts, normalise

_LONGEST = 4_000  # characters of an answer that are looked at
_LETTERED = re.compile(
    r"^[(（\[［【]?\s*([A-Za-zＡ-Ｚ])\s*[)）\]］】]?\s*(?:(?:[.:：．、,，)）]|\s[-–—]\s)\s*(.*))?$",
    re.DOTALL,
)
_AROUND, _BEHIND = "*_` \t\n", ".。;；*_` \t\n"  # of a name: emphasis, and the end of a sentence
_PREFIX = re.compile(
    r"^[\s*_]*(?:(?:the\s+)?(?:(?:correct|right|best|final)\s+)?(?:answer|option|choice)s?(?:\s+(?:is|are))?"
    r"|答案(?:是|为)?|选项|选)[\s*_:：]*(?=[(（\[［【A-Za-zＡ-Ｚ])",
    re.IGNORECASE,
)
# The letter behind the text: "Ceftriaxone (C)".
_TRAILED = re.compile(r"^(.*\S)\s*[(（\[［【]\s*([A-Za-zＡ-Ｚ])\s*[)）\]］】]$", re.DOTALL)
_CUTS = tuple(map(re.compile, (r"[;；\n]", r"、", r"[,，/+&]", r"[,，/+&;；、]|\band\b|[和与及]")))
_LETTER = r"[(（\[［【]?[A-Za-zＡ-Ｚ][)）\]］】.]?"
_LETTERS = re.compile(rf"{_LETTER}(?:\s+{_LETTER})+")  # "A C": blanks part letters alone
_BLANKS = re.compile(r"\s+")


# a text as it stands, or its normal form and whether it asserts: "B12?" is not the option "B12"
Key = str | tuple[str, bool]


def chosen(answer: str, options: Sequence[str]) -> tuple[str, ...]:
    """The texts of the chosen options, in the order of `options`.

    Empty if any part of the answer names no option. An option is named by its text (as it stands,
    or else as `workup.core.text.same_name` compares, where that tells the options apart), by its
    letter, or by both where they agree: "C", "(c)", "**C**", "Answer: C", "C. Ceftriaxone",
    "Ceftriaxone (C)". A set is a list of
    such names ("A, C", "B和D"), or capital letters without anything between ("BD"). Naming an
    option twice is naming it: "AA" and "A, A" are "A". Linear in the answer.
    """
    shared = Counter({_exact(option): _key(option) for option in options}.values())
    texts: dict[Key, int] = {}
    for place, option in enumerate(options):
        texts.setdefault(_exact(option), place)
        if shared[_key(option)] == 1:  # else "ccDee" would be "CCDEE"
            texts.setdefault(_key(option), place)
    places = _places(answer[:_LONGEST], texts, len(options))
    return tuple(options[place] for place in sorted(places))


def _exact(text: str) -> str:
    return unicodedata.normalize("NFKC", text).strip()


def _key(text: str) -> tuple[str, bool]:
    return normalise(text), asserts(text)


def _named(text: str, texts: Mapping[Key, int]) -> int | None:
    """The place of the option that has this text; None where no option has."""
    return texts.get(_exact(text), texts.get(_key(text)))


def _places(answer: str, texts: Mapping[Key, int], count: int) -> frozenset[int]:
    whole = _one(answer, texts, count)
    if whole is not None:
        return frozenset({whole})
    plain = _PREFIX.sub("", answer).strip(_AROUND).rstrip(_BEHIND)
    if plain.isascii() and plain.isalpha() and plain.isupper():
        letters = frozenset(map(ascii_uppercase.index, plain))
        return letters if max(letters) < count else frozenset()
    for cut in (*_CUTS, _BLANKS) if _LETTERS.fullmatch(plain) else _CUTS:
        parts = [part.strip() for part in cut.split(plain) if part.strip()]
        names = dict.fromkeys(parts)
        found = (
            [_one(name, texts, count) for name in names]
            if len(parts) > 1 and len(names) <= count
            else []
        )
        if found and None not in found:
            return frozenset(place for place in found if place is not None)
    return frozenset()


def _one(name: str, texts: Mapping[Key, int], count: int) -> int | None:
    """The place of the option that `name` names; None if letter and text name different ones."""
    by_text = _named(name, texts)
    plain = _PREFIX.sub("", name).strip(_AROUND).rstrip(_BEHIND)
    lettered = _LETTERED.match(plain)
    if lettered is None:
        trailed = None if by_text is not None else _TRAILED.match(plain)
        if trailed is None:
            return by_text
        told = _named(trailed[1], texts)
        return told if told == ascii_uppercase.find(normalise(trailed[2]).upper()) else None
    place = ascii_uppercase.find(normalise(lettered[1]).upper())
    if normalise(lettered[2] or ""):
        # First by the text after the letter: normalising would drop "A." as an article.
        told = _named(lettered[2], texts)
        return by_text if told is None else place if told == place else None
    return place if 0 <= place < count else by_text


def right(case: Case) -> tuple[str, ...]:
    """The options that are right together, in the order of the options.

    Empty if the truth is none of them. A truth that stands there word for word is that option, also
    where it looks like a letter: of the options O, A, B and AB the truth "A" is no option "O".
    """
    if not case.options:
        return ()
    extra = case.truth.extra
    if isinstance(extra, dict) and "right" in extra:  # a question set's `Answer`
        return tuple(option for option in case.options if option in extra["right"])
    own = _exact(case.truth.diagnosis)
    literal = tuple(option for option in case.options if _exact(option) == own)
    return literal or chosen(case.truth.diagnosis, case.options)


class OptionJudge:
    """A `Judge` of questions with options: right is exactly the true set.

    Partly right is another choice that shares an option with it. Options with one text are one
    option. `judge` decides a case without options, and a case whose truth is none of its options.
    """

    def __init__(self, judge: Judge) -> None:
        self._judge = judge

    async def same(self, answer: str, case: Case) -> bool:
        if not (true := {*right(case)}):
            return await self._judge.same(answer, case)
        return {*chosen(answer, case.options)} == true

    async def grade(self, answer: str, case: Case) -> float:
        if not (true := {*right(case)}):
            return await self._judge.grade(answer, case)
        found = {*chosen(answer, case.options)}
        return 1.0 if found == true else 0.5 * bool(found & true)
