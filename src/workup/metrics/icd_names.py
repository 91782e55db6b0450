"""The names of ICD-10's codes, and the codes with the names most similar to a given one.

A name is compared by its words (`words`), in any order. `IcdNames.exact` finds the code with this
name. `IcdNames.near` finds the codes whose names share the rarest words. The names come from the
release (descriptions, inclusion terms, notes, blocks) and from a table of everyday names
(`everyday_names.csv`).

A release often says more than a doctor does: "Malaria" is "Unspecified malaria" there, "aortic
stenosis" is "Nonrheumatic aortic (valve) stenosis". So each name is entered in shorter forms as
well, ranked by how much was left out (`FormRank`). What a name says to be absent ("without
rupture") is never entered.
"""

from __future__ import annotations

import csv
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, cached_property, lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rapidfuzz import fuzz, process

from workup.core.text import normalise
from workup.metrics.icd_distance import IcdTree

_MOST_WORDS = 16  # different words of a name that the index is asked for
_REFINED = 40  # best names of the index that are compared letter by letter
_MISSPELT = 85  # similarity in percent from which an unknown word is taken for a known one
_SHORT = 4  # letters of a word that is never taken for another
_WORDS = 0.6  # share of the words in the likeness; the rest is the letters'
_PART = 0.95  # what the likeness to one part of "A / B" counts
_SIDE = 0.9  # what the likeness to A or to B counts in "A due to B"
_CLOSE = 0.02  # difference in likeness below which the wider code is taken
_BY_SITE = (
    0.97  # what the likeness to "lung cancer" counts in "squamous cell carcinoma of the lung"
)
_SPECIAL = 0.95  # what the likeness to a name of a special chapter counts

SPECIAL = frozenset("OPQRSTVWXYZ")
"""Chapters for special circumstances, such as pregnancy, newborns, injuries or contacts.

A name without such a word means the code of an ordinary chapter, if both have one."""

# ICD-10's own conventions: brackets hold synonyms, parentheses hold optional words.
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_PARENTHESES = re.compile(r"\(([^()]*)\)")
_ABBREVIATION = re.compile(r"[(\[]([A-Z][A-Za-z0-9]{1,6})[)\]]")
# Absent: "without rupture", "not elsewhere classified"; up to a comma, a bracket, or "with"
_ABSENT = re.compile(
    r"\bwithout foreign body\b"  # "of the hip" may follow
    r"|\b(?:without|not|no|nor|never)\b(?:(?!\bwith\b)[^,;:()\[\]])*",
    re.IGNORECASE,
)
# "Pneumonia, unspecified organism" is pneumonia
_UNSPECIFIED = re.compile(
    r",\s*(?:[a-z]+ )?(?:un|not )specified\b.*|\s+NOS\b.*|^unspecified ", re.IGNORECASE
)
# Words that a doctor leaves out: nontraumatic, nonrheumatic
_DEFAULT = re.compile(r"\bnon[a-z]{5,}\b|\bacquired\b|\bsingle episode\b", re.IGNORECASE)
_OTHER = re.compile(
    r"\b(?:other(?: and unspecified| specified)?|unspecified|specified|certain)\b", re.IGNORECASE
)
_CIRCUMSTANCE = re.compile(
    r"\b(?:with|due to|in|from|caused by|following|complicating|associated with|secondary to)\b.*",
    re.IGNORECASE,
)
_DUE = re.compile(r"\b(?:due to|caused by|secondary to)\b", re.IGNORECASE)
_POSSESSIVE = re.compile(r"['’]s\b", re.IGNORECASE)
_JOINED = re.compile(r"((?:[\w'’-]+, )*[\w'’-]+),? and ([\w'’-]+)", re.IGNORECASE)
_HEDGE = re.compile(r"^\s*(?:possible|probable|suspected|likely|presumed)\s+", re.IGNORECASE)
_ALTERNATIVES = re.compile(r"\s/\s|;\s")
# Spelling, on both sides alike: anaemia and anemia, tumour and tumor, diseases and disease.
_SPELLING = (
    (re.compile(r"[ao]e"), "e"),
    (re.compile(r"(?<=\w\w)our$"), "or"),
    (re.compile(r"(?<=\w{2}[^sui])s$"), ""),
)
# What a growth looks like under the microscope; ICD-10 codes it by where it grows.
_HISTOLOGIES = (
    "squamous basal small large clear spindle oat cell papillary ductal lobular transitional "
    "urothelial mucinous serous endometrioid follicular medullary anaplastic invasive "
    "infiltrating metastatic"
)
_HISTOLOGY = frozenset(_HISTOLOGIES.split())
_CANCER = frozenset({"malignant", "neoplasm"})
_FILLERS = "a an and as at by due for from in nos of on or the to unspecified with"
_EMPTY = frozenset(_FILLERS.split())
# "Hepatitis A", "vitamin A deficiency", "hepatitis a": a letter, and no article.
_LETTER_A = re.compile(r"\bA\b|\ba(?=\s*$)")
# What turns a word into its opposite; a short word begins so by chance.
_PREFIX = re.compile(r"^(?:un|non|in|im|hypo|hyper|a(?=\w{6}))(?=\w{4})")
_ROMAN = {"i": "1", "ii": "2", "iii": "3", "iv": "4", "v": "5"}


class FormRank(IntEnum):
    """How a form was made, the most reliable first; `exact` reads the first four, `near` all.

    - STATED: a name as it stands, or an abbreviation that only one category has in brackets.
    - UNSPECIFIED: "Malaria" of "Unspecified malaria".
    - DEFAULT: "Aortic stenosis" of "Nonrheumatic aortic stenosis", "GERD" of "GERD without
      esophagitis".
    - NOTED: what a note elsewhere calls the code, as in "stroke (I63.-)".
    - OTHER: "Headache syndromes" of "Other headache syndromes"; a block's name, of its first
      category.
    - PART: "Syringomyelia" of "Syringomyelia and syringobulbia", "Shock" of "Shock due to
      anesthesia".
    """

    STATED = 0
    UNSPECIFIED = 1
    DEFAULT = 2
    NOTED = 3
    OTHER = 4
    PART = 5


_COUNTS = np.array([1.0, 0.99, 0.97, 0.96, 0.95, 0.92])
"""The factor of the likeness to a form, by rank."""


@dataclass(frozen=True, slots=True)
class Near:
    """A code with a similar name, and the likeness within [0, 1]."""

    code: str
    likeness: float


def words(name: str) -> tuple[str, ...]:
    """The distinct words of a name, each in one spelling and form, without empty words.

    "type II" is read as "type 2". `icd_words.csv` says which words mean the same.

    >>> words("Rupture of the aorta") == words("rupture, aortic")
    True
    """
    found: list[str] = []
    before = ""
    for word in normalise(_LETTER_A.sub("lettera", _POSSESSIVE.sub("", name))).split():
        word = _spelt(word)
        before, word = word, _ROMAN.get(word, word) if before in ("type", "stage") else word
        found += _means().get(word, () if word in _EMPTY else (word,))
    return tuple(dict.fromkeys(found))


def key(name: str) -> str:
    """The words of a name in alphabetical order: the same for every order of the words."""
    return " ".join(sorted(words(name)))


@lru_cache(maxsize=1 << 15)
def _spelt(word: str) -> str:
    word = "".join(
        sign for sign in unicodedata.normalize("NFD", word) if not unicodedata.combining(sign)
    )
    for pattern, plain in _SPELLING:
        word = pattern.sub(plain, word)
    return word


@cache
def _means() -> dict[str, tuple[str, ...]]:
    """Word → the words that stand for it."""
    return {
        _spelt(word): tuple(map(_spelt, meaning.split()))
        for word, meaning in _table("icd_words.csv")
    }


def _table(file: str) -> list[tuple[str, str]]:
    """The rows of one of the two tables beside this module, without comments and heading."""
    lines = (Path(__file__).parent / file).read_text(encoding="utf-8").splitlines()
    rows = csv.reader(line for line in lines if not line.startswith("#"))
    next(rows)
    return [(one, other) for one, other in rows]


def readings(name: str) -> Iterator[str]:
    """How a name can be read: whole, without its brackets, and each bracket's content alone.

    A bracket's content may be an abbreviation, as in "name (abbreviation)". Each reading is without
    what the name says to be absent, and without a hedge at its beginning.
    """
    name = _HEDGE.sub("", name)
    plain = _bare(name)
    inside = (*_PARENTHESES.findall(name), *_BRACKETS.findall(name))
    yield from dict.fromkeys(_ABSENT.sub(" ", text) for text in (name, plain, *inside))


def _bare(name: str) -> str:
    return _BRACKETS.sub(" ", _PARENTHESES.sub(" ", name))


# --- the forms in which the release's names are entered ---


def _spoken(name: str) -> Iterator[str]:
    """A name of ICD-10 without its synonyms, and each synonym.

    Both with and without optional words.
    """
    for text in (_BRACKETS.sub(" ", name), *_BRACKETS.findall(name)):
        yield from dict.fromkeys((_PARENTHESES.sub(r" \1 ", text), _PARENTHESES.sub(" ", text)))


def _forms(name: str, *, special: bool) -> Iterator[tuple[FormRank, str]]:
    """Every form in which a name is entered, with its rank.

    `special`: the name belongs to one of the special chapters.
    """
    if "[" in name:
        yield FormRank.OTHER, _ABSENT.sub(" ", name)
    for spoken in _spoken(name):
        present = _ABSENT.sub(" ", spoken)
        if present == spoken:
            yield FormRank.STATED, spoken
        if (short := _UNSPECIFIED.sub("", spoken)) != spoken:
            present = _ABSENT.sub(" ", short)
            yield FormRank.UNSPECIFIED, present
        yield FormRank.DEFAULT, _DEFAULT.sub(" ", present)
        present = _OTHER.sub(" ", present)
        yield FormRank.OTHER, present
        for joined in _JOINED.finditer(present):
            for one in (*joined[1].split(", "), joined[2]):
                yield FormRank.PART, present[: joined.start()] + one + present[joined.end() :]
        if " and " in present:
            yield from ((FormRank.PART, part) for part in present.split(" and "))
        if not special and _CIRCUMSTANCE.search(present):
            yield FormRank.PART, _CIRCUMSTANCE.sub("", present)


def _abbreviations(terms: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """(code, abbreviation) for capitals in brackets that only one category has, as "PTSD"."""
    holders: dict[str, list[str]] = defaultdict(list)
    for code, name in terms:
        for short in _ABBREVIATION.findall(name):
            if 2 * sum(map(str.isupper, short)) > len(short):
                holders[short].append(code)
    yield from (
        (codes[0], short)
        for short, codes in holders.items()
        if len({code[:3] for code in codes}) == 1
    )


Form = tuple[str, ...]


def _entries(
    tree: IcdTree, terms: Sequence[tuple[str, str]], table: Iterable[tuple[str, str]]
) -> dict[tuple[str, Form], FormRank]:
    """(code, words) → rank, the names of `table` first, then by rank.

    Within a rank the special chapters are last. A form of rank PART that several categories share
    is left out.
    """
    ranked: dict[FormRank, list[tuple[str, str]]] = {rank: [] for rank in FormRank}
    for code, name in terms:
        forms = reversed([*_forms(name, special=code[0] in SPECIAL)])
        for text, rank in {
            text: rank for rank, text in forms
        }.items():  # each text once, at its first rank
            ranked[rank].append((code, text))
    ranked[FormRank.STATED] += _abbreviations(terms)
    notes = ((code, _ABSENT.sub(" ", name)) for code, name in tree.notes())
    ranked[FormRank.NOTED] += [(code, text) for code, name in notes for text in _spoken(name)]
    ranked[FormRank.OTHER] += tree.blocks()
    entries = {(code, words(name)): FormRank.STATED for code, name in table}
    for rank, pairs in ranked.items():
        pairs.sort(key=lambda pair: pair[0][0] in SPECIAL)
        read = {text: words(text) for _, text in pairs}
        formed = [(code, read[text]) for code, text in pairs]
        categories: dict[Form, set[str]] = defaultdict(set)
        for code, form in formed:
            categories[form].add(code[:3])
        for code, form in formed:
            if form and (rank is not FormRank.PART or len(categories[form]) == 1):
                entries.setdefault((code, form), rank)
    return {(code, form): rank for (code, form), rank in entries.items() if code}


class IcdNames:
    """Every name of a release: a dictionary, and an inverted index for names that are not in it.

    Without `everyday`, the table of everyday names is left out.
    """

    def __init__(self, tree: IcdTree, *, everyday: bool = True) -> None:
        table = (
            [(tree.nearest(code), name) for name, code in _table("everyday_names.csv")]
            if everyday
            else []
        )
        terms = list(tree.terms())
        entries = _entries(tree, terms, table)
        self._literal = {normalise(name): code for code, name in reversed([*table, *terms])}
        self._codes = [code for code, _ in entries]
        self._keys = [" ".join(sorted(form)) for _, form in entries]
        self._exact: dict[str, str] = {}
        self._joined: dict[str, str] = {}
        holders: dict[str, list[int]] = defaultdict(list)
        for number, ((code, form), rank) in enumerate(entries.items()):
            if rank <= FormRank.NOTED:
                self._exact.setdefault(self._keys[number], code)
                self._joined.setdefault("".join(form), code)
            for word in form:
                holders[word].append(number)
        special = np.array([code[0] in SPECIAL for code in self._codes])
        self._counts = _COUNTS[list(entries.values())] * np.where(special, _SPECIAL, 1.0)
        self._holders = {
            word: np.array(numbers, dtype=np.int32) for word, numbers in holders.items()
        }
        self._idf = {
            word: float(np.log(1 + len(entries) / len(numbers)))
            for word, numbers in holders.items()
        }
        self._unknown = float(np.log(1 + len(entries)))
        self._weight = self._sums(list(holders))
        self._spelling = lru_cache(maxsize=1 << 14)(
            self._nearest
        )  # the readings of a name share their words

    def exact(self, name: str) -> str:
        """The code with this name, else with one of its readings, joined ones too ("gall stone").

        "" if there is none.
        """
        if code := self._literal.get(normalise(name), ""):
            return code
        forms = [form for reading in readings(name) if (form := words(reading))]
        found = (
            self._exact.get(" ".join(sorted(form))) or self._joined.get("".join(form))
            for form in forms
        )
        return next(filter(None, found), "")

    def near(self, name: str) -> list[Near]:
        """The codes with the most similar names, best first; empty if no word is shared.

        Likeness is a mean of two figures: the Dice coefficient of the words, weighted by rarity,
        and the edit similarity of the letters. It is lowered for shortened names of the release,
        for special chapters, and where only a part of the given name is compared ("A" of "A / B" or
        of "A due to B"). Of codes with the same likeness, the wider comes first.
        """
        found: dict[str, float] = {}
        for form, counts in self._views(name).items():
            for code, likeness in self._likeness(form):
                found[code] = max(found.get(code, 0.0), counts * likeness)
        best = max(found.values(), default=0.0)
        close = [code for code, likeness in found.items() if likeness > best - _CLOSE]
        first = min(close, key=lambda code: (len(code), -found[code]), default="")
        ordered = sorted(found, key=lambda code: (code != first, -found[code]))
        return [Near(code, best if code == first else found[code]) for code in ordered]

    def _views(self, name: str) -> dict[Form, float]:
        """The parts of a name that are compared → the factor of each."""
        name = _ABSENT.sub(" ", _HEDGE.sub("", name))
        plain = _bare(name)
        views: dict[Form, float] = {}
        for text, counts in (
            (name, 1.0),
            (plain, 1.0),
            *((part, _PART) for part in _ALTERNATIVES.split(plain)),
            (_CIRCUMSTANCE.sub("", plain), _SIDE),
            (_DUE.split(plain)[-1], _SIDE),
        ):
            form = self._known(words(text))
            views.setdefault(form, counts)
            if (sited := set(form) - _HISTOLOGY) > _CANCER:
                views.setdefault(tuple(word for word in form if word in sited), counts * _BY_SITE)
        return views

    def _known(self, form: Form) -> Form:
        """The first distinct words.

        Known pairs are joined, an unknown word becomes the nearest known.
        """
        left = list(form[:_MOST_WORDS])
        found: dict[str, None] = {}
        while left:
            word = left.pop(0)
            if left and word + left[0] in self._idf:
                word += left.pop(0)
            found |= dict.fromkeys(self._spelling(word))
        return tuple(found)

    def _likeness(self, asked: Form) -> Iterator[tuple[str, float]]:
        shared = [word for word in asked if word in self._idf]
        if not shared:
            return
        asks = sum(self._idf.get(word, self._unknown) for word in asked)
        dice = self._counts * 2 * self._sums(shared) / (self._weight + asks)
        text = " ".join(sorted(asked))
        for number in np.argpartition(-dice, min(_REFINED, len(dice) - 1))[:_REFINED].tolist():
            if dice[number]:
                letters = self._counts[number] * fuzz.ratio(text, self._keys[number]) / 100
                yield self._codes[number], float(_WORDS * dice[number] + (1 - _WORDS) * letters)

    def _sums(self, words: list[str]) -> NDArray[np.float64]:
        """For every name the total rarity of those of `words` that it holds."""
        numbers = np.concatenate([self._holders[word] for word in words])
        weights = np.repeat(
            [self._idf[word] for word in words], [len(self._holders[word]) for word in words]
        )
        sums: NDArray[np.float64] = np.bincount(
            numbers, weights, minlength=len(self._codes)
        ).astype(np.float64)
        return sums

    def _nearest(self, word: str) -> Form:
        """The known words that a misspelt one stands for, or the word itself."""
        if word in self._idf or len(word) <= _SHORT:
            return (word,)
        found = process.extractOne(
            word, self._vocabulary, scorer=fuzz.ratio, score_cutoff=_MISSPELT
        )
        if not found or _PREFIX.sub("", found[0]) == _PREFIX.sub("", word):
            return (word,)  # nothing, or an opposite: "unruptured" is no misspelt "ruptured"
        return _means().get(found[0], (found[0],))

    @cached_property
    def _vocabulary(self) -> list[str]:
        return [*self._idf, *_means()]
