"""From the name of a disease to its ICD-10 code, by cascade (C-MIG CM-16).

A code written in the text; the name in the dictionary (names known from the cases, then the release's own); the nearest name
by an inverted index over the release's names, refined by edit distance; a language model, where one is given. What none of
them maps has no code. How often each step is right is measured in docs/metrics.md.
"""

from __future__ import annotations

import asyncio
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from rapidfuzz import fuzz, process

from workup.case import Case
from workup.judges.assessor import Rubric, consult
from workup.models.fence import clean, numbered
from workup.ports import Model
from workup.signals.icd_distance import Tree
from workup.text import normalise

LONGEST = 200  # characters of a name that are looked at
NEAR = 0.7
"""How alike the index's name must be, within [0, 1]: below it hardly more than half of the categories found are right."""

_MOST_WORDS = 16  # different words of a name that the index is asked for
_REFINED = 30  # of the index's best names are compared letter by letter
_MISSPELT = 85  # similarity in percent from which an unknown word of more than 4 letters is taken for a known one
_OFFERED = 10  # codes that a model is offered; it may give another
_COMMON = 1 << 16  # names that are remembered

# Within a text: a code with its point ("J45.9"), behind "ICD-10", in brackets, or at the very beginning before a dash or colon.
# "Parvovirus B19" is none of these.
_CODE = r"[A-Z][0-9][0-9A-Z](?:\.?[0-9A-Z]{1,4})?"
_WITHIN = re.compile(
    r"(?<![\w.-])([A-Z][0-9][0-9A-Z]\.[0-9A-Z]{1,4})(?!\w)"
    rf"|\bICD(?:-?10)?(?:-?CM)?(?: codes?)?[ :=]{{1,3}}({_CODE})(?!\w)"
    rf"|[(\[] ?({_CODE}) ?[)\]]"
    rf"|^ ?({_CODE})(?= ?[:–—-] )"
)
# ICD-10's own conventions: brackets hold synonyms, parentheses what may as well be missing.
_SYNONYM = re.compile(r"\[([^\[\]]*)\]")
_OPTIONAL = re.compile(r"\(([^()]*)\)")
_UNSPECIFIED = re.compile(r",\s+unspecified\b.*")  # "Pneumonia, unspecified organism" is pneumonia
# Spelling: anaemia and anemia, tumour and tumor, chronic pulmonary diseases and disease, on both sides alike.
_SPELLING = ((re.compile(r"[ao]e"), "e"), (re.compile(r"(?<=\w\w)our$"), "or"), (re.compile(r"(?<=\w{2}[^sui])s$"), ""))
_EMPTY = frozenset({"a", "an", "and", "by", "due", "for", "in", "nos", "of", "or", "the", "to", "unspecified"})
_ROMAN = {"i": "1", "ii": "2", "iii": "3", "iv": "4", "v": "5"}
# ICD-10's word for what others call otherwise. Few and general: what is left, a model knows better.
_ITS_WORD = {
    "cancer": ("malignant", "neoplasm"),
    "carcinoma": ("malignant", "neoplasm"),
    "tumor": ("neoplasm",),
    "cardiac": ("heart",),
    "hepatic": ("liver",),
    "pulmonary": ("lung",),
    "renal": ("kidney",),
    "gastric": ("stomach",),
    "disorder": ("disease",),
    "syndrome": ("disease",),
}


class Stage(StrEnum):
    """Which step of the cascade found the code."""

    CODE = "code"
    DICTIONARY = "dictionary"
    INDEX = "index"
    MODEL = "model"
    UNMAPPED = "unmapped"


@dataclass(frozen=True, slots=True)
class Coded:
    """A name's code ("" where there is none), the step that found it, and how alike the names are, within [0, 1]."""

    code: str
    stage: Stage
    likeness: float = 1.0


UNMAPPED = Coded("", Stage.UNMAPPED, 0.0)


class Coder:
    """Codes of names, each name worked out once: in about a millisecond, the first of a process in some seconds.

    `known` are names with their codes that go before the release's own; with a `model`, it is asked about what nothing maps.
    """

    def __init__(self, tree: Tree, known: Mapping[str, str] | None = None, model: Model | None = None) -> None:
        self.tree, self._model = tree, model
        self._names = _names(tree)
        self._known = {normalise(name): code for name, code in (known or {}).items()}
        self._found: dict[str, Coded] = {}
        self._told: dict[str, Coded] = {}
        self._asked: dict[str, asyncio.Task[Coded]] = {}  # what a model is being asked

    def look_up(self, name: str) -> Coded:
        """The cascade without the model. Linear in the length of the name, of which the first 200 characters count."""
        name = name[:LONGEST]
        if name not in self._found:
            if len(self._found) >= _COMMON:
                self._found.clear()
            self._found[name] = self._look_up(name)
        return self._found[name]

    def _look_up(self, name: str) -> Coded:
        if code := written(name, self.tree):
            return Coded(code, Stage.CODE)
        if code := self.tree.nearest(self._known.get(normalise(name), "")):
            return Coded(code, Stage.DICTIONARY)
        if code := self._names.exact(name):
            return Coded(code, Stage.DICTIONARY)
        found = next(iter(self._names.near(name)), UNMAPPED)
        return found if found.likeness >= NEAR else UNMAPPED

    async def code(self, name: str) -> Coded:
        """The whole cascade; a model is asked once about each name. Raises RolloutError when it gives no usable answer."""
        found = self.look_up(name)
        if found.code or self._model is None or not normalise(name):
            return found
        name = name[:LONGEST]
        if name not in self._told:
            if name not in self._asked:
                self._asked[name] = asyncio.ensure_future(self._ask(self._model, name))
                self._asked[name].add_done_callback(lambda _: self._asked.pop(name, None))
            # Shielded: whoever gives up waiting must not take the code away from the others.
            self._told[name] = await asyncio.shield(self._asked[name])
        return self._told[name]

    async def _ask(self, model: Model, name: str) -> Coded:
        offered = [f"{near.code}: {self.tree.name(near.code)}" for near in self._names.near(name)[:_OFFERED]]
        sections = [("name", clean(name, LONGEST))]
        sections += [("codes of similar names", numbered(offered, LONGEST))] if offered else []
        answer = await consult(model, RUBRIC, sections, _Answer, self._check)
        return Coded(self.tree.find(answer.code), Stage.MODEL) if answer.code else UNMAPPED

    def _check(self, answer: _Answer) -> str | None:
        if not answer.code or self.tree.find(answer.code):
            return None
        return f"the code {answer.code[:20]!r} does not exist; give an existing one, or an empty text"


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")

    code: str


CODER = "coder"
"""The role of a language model that codes what no dictionary knows."""

RUBRIC = Rubric(
    "icd-code/1",
    "You give the ICD-10 code of a disease.\n"
    "The name may be in any language, abbreviated or misspelt. Choose the code that stands for exactly this disease; if the "
    "name says less than any code does, choose the category of three characters. Codes of similarly written names may be "
    "listed: they are suggestions by spelling alone and often all wrong.\n"
    "If the name is no disease, injury, symptom or reason for an encounter, the code is an empty text.\n"
    'Answer with one JSON object: {"code": "…"}.',
    max_tokens=100,
    role=CODER,
)


def written(text: str, tree: Tree) -> str:
    """The first existing code that `text` states, or the narrowest existing group around it; "" for a text without one."""
    stated = (next(filter(None, found.groups())) for found in _WITHIN.finditer(text))
    return next(filter(None, map(tree.nearest, (text, *stated))), "")


def names_of(cases: Iterable[Case]) -> dict[str, str]:
    """What the cases themselves call their diagnoses → the first of their codes."""
    known: dict[str, str] = {}
    for case in cases:
        for name in (case.truth.diagnosis, *case.truth.aliases):
            if case.truth.codes:
                known.setdefault(name, case.truth.codes[0])
    return known


def words(name: str) -> tuple[str, ...]:
    """The words of a name in one spelling, ICD-10's own word for common ones, "type II" as "type 2"."""
    found: list[str] = []
    before = ""
    for word in normalise(name).split():
        word = _spelt(word)
        before, word = word, _ROMAN.get(word, word) if before in ("type", "stage") else word
        found += _ITS_WORD.get(word, () if word in _EMPTY else (word,))
    return tuple(found)


@lru_cache(maxsize=1 << 15)
def _spelt(word: str) -> str:
    word = "".join(sign for sign in unicodedata.normalize("NFD", word) if not unicodedata.combining(sign))
    for pattern, plain in _SPELLING:
        word = pattern.sub(plain, word)
    return word


class Names:
    """Every name of a release: a dictionary, and an inverted index for what is not in it."""

    def __init__(self, tree: Tree) -> None:
        terms = list(tree.terms())
        readings = [(code, reading) for code, name in terms for reading in _readings(name)]
        # Last, since "Abrasion, unspecified hip" is an abrasion only where nothing else is.
        readings += [(code, _UNSPECIFIED.sub("", name)) for code, name in terms if _UNSPECIFIED.search(name)]
        entries = dict.fromkeys((code, form) for code, reading in readings if (form := words(reading)))
        self._codes = [code for code, _ in entries]
        self._spelt = [" ".join(sorted(form)) for _, form in entries]
        self._exact: dict[tuple[str, ...], str] = {}
        holders: dict[str, list[int]] = defaultdict(list)
        for number, (code, form) in enumerate(entries):
            self._exact.setdefault(form, code)
            for word in dict.fromkeys(form):
                holders[word].append(number)
        self._holders = {word: np.array(numbers, dtype=np.int32) for word, numbers in holders.items()}
        self._idf = {word: float(np.log(1 + len(entries) / len(numbers))) for word, numbers in holders.items()}
        self._unknown = float(np.log(1 + len(entries)))
        self._weight = self._sums(list(holders))

    def exact(self, name: str) -> str:
        """The code that has this name, or the name without what it has in brackets or parentheses; "" where none has."""
        return next(filter(None, (self._exact.get(words(reading), "") for reading in _readings(name))), "")

    def near(self, name: str) -> list[Coded]:
        """The codes with the likest names, best first; empty where they share no word.

        Likeness is the mean of the Dice coefficient of the words, weighted by rarity, and of the letters' edit similarity.
        """
        asked = list(dict.fromkeys(words(name)))[:_MOST_WORDS]
        asked = [word if word in self._idf else self._spelling(word) for word in asked]
        shared = [word for word in asked if word in self._idf]
        if not shared:
            return []
        dice = 2 * self._sums(shared) / (self._weight + sum(self._idf.get(word, self._unknown) for word in asked))
        best = np.argpartition(-dice, min(_REFINED, len(dice) - 1))[:_REFINED]
        text = " ".join(sorted(asked))
        likeness = {int(n): (float(dice[n]) + fuzz.ratio(text, self._spelt[n]) / 100) / 2 for n in best if dice[n]}
        found: dict[str, Coded] = {}
        for number in sorted(likeness, key=lambda n: (-likeness[n], n)):
            code = self._codes[number]
            found.setdefault(code, Coded(code, Stage.INDEX, likeness[number]))
        return list(found.values())

    def _sums(self, words: list[str]) -> NDArray[np.float64]:
        """For every name the total rarity of those of `words` that it holds."""
        numbers = np.concatenate([self._holders[word] for word in words])
        weights = np.repeat([self._idf[word] for word in words], [len(self._holders[word]) for word in words])
        sums: NDArray[np.float64] = np.bincount(numbers, weights, minlength=len(self._codes)).astype(np.float64)
        return sums

    def _spelling(self, word: str) -> str:
        """The known word that a misspelt one stands for, or the word itself."""
        if len(word) <= 4:
            return word
        found = process.extractOne(word, self._vocabulary, scorer=fuzz.ratio, score_cutoff=_MISSPELT)
        return found[0] if found else word

    @cached_property
    def _vocabulary(self) -> list[str]:
        return list(self._idf)


@cache
def _names(tree: Tree) -> Names:
    return Names(tree)


def _readings(name: str) -> Iterator[str]:
    """A name of ICD-10 without its synonyms, and each of these, both with and without what may be missing."""
    for text in (_SYNONYM.sub(" ", name), *_SYNONYM.findall(name)):
        yield from dict.fromkeys((_OPTIONAL.sub(r" \1 ", text), _OPTIONAL.sub(" ", text)))
