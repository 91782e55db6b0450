"""Does an order name a disease? Asked before anybody writes a result for it (RAGES, ES-9).

The rule must not depend on the patient: if only orders that name the truth were refused, the
refusal itself would give the truth away. So all diseases of the source are treated alike.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache
from itertools import chain

from workup.cases.catalogue import built_in
from workup.cases.icd import compact
from workup.core.case import Case, Source
from workup.core.leaks import spellings
from workup.core.text import normalise
from workup.environments.base.lexical import HAN, chinese

LOOKED_AT = 5_000
"""Cases of a closed list that are read for its diseases' other names, unless all are found."""

_JOINED = 7  # letters from which a name is found inside a word, and with any signs between
_CODE = re.compile(r"(?ai)(?<![\w.])[a-z]\d[\dab]\.\w{1,4}(?!\w)")
_HYPHEN = re.compile(r"(?<=[^\W\d_])[-‐‑‒–](?=[^\W\d_])")
_HAN = re.compile(f"[{HAN}]+")
_FILLERS = "a an and at by due for from in of on or the to type with without"
_FILLING = frozenset(_FILLERS.split())
# One spelling for both sides of the ocean, and one form for the forms of a word. What is not a word
# afterwards does no harm: names and orders are treated alike.
_SPELLING = ((re.compile(r"ae|oe"), "e"), (re.compile(r"our(?=s?\b)"), "or"))
_ENDINGS = (
    (re.compile(r"(?<=\w{3}om)a(?:s|ta|tous)\b"), "a"),
    (re.compile(r"(?<=\w{3}emi)(?:as|c)\b"), "a"),
    (re.compile(r"(?<=\w{3}mia)s\b"), ""),
    (re.compile(r"(?<=\w{3})(?:otic|oses)\b"), "osis"),
    (re.compile(r"(?<=\w{3})itic\b"), "itis"),
    (re.compile(r"(?<=\w{2})ies\b"), "y"),
    (re.compile(r"(?<=\w{2})(?<!s)s+\b"), ""),
    (re.compile(r"\bcancer\b"), "carcinoma"),
    (re.compile(r"\bneoplasm\b"), "tumor"),
)
# Ordinary words, and abbreviations of examinations, that are some disease's name as well. Alone
# they say nothing of a disease.
_NOT_ALONE = (
    "abg afp alk alp alt ana anca ast bnp bun ca cbc cea ck consumption crp csf ct ecg eeg ekg emg "
    "er esr ggt hcg her2 hiv inr ldh mri pcr pet psa pt pth ptt ra rf t3 t4 tsh us wbc"
)
_ORDINARY = frozenset(_NOT_ALONE.split())


class DiseaseNames:
    """Finds any of `names` and `codes` in a text.

    Found are names in any letter case, with other words around them and in another order, in the
    singular or plural and other common forms of a word, in British or American spelling, with or
    without a leading degree or a subtype; longer names also inside a word and with any blanks or
    signs between their letters; codes with or without their point, and with their point all codes
    of ICD-10. Paraphrases are not found. The time is linear in the length of the text.
    """

    def __init__(self, names: Iterable[str], codes: Iterable[str] = ()) -> None:
        self._words = {form for code in codes for form in (code.lower(), compact(code).lower())}
        self._several: defaultdict[str, list[frozenset[str]]] = defaultdict(list)
        self._joined: set[str] = set()
        self._han: list[str] = []
        for name in names:
            for spelling in spellings(name):
                self._add(spelling)
        self._lengths = sorted({len(name) for name in self._joined})
        self.within = lru_cache(maxsize=1 << 14)(self._within)

    def _add(self, name: str) -> None:
        if chinese(name):
            self._han.append(_letters(name))
            return
        words = _words(name)
        if words <= _ORDINARY:
            return
        if len(words) == 1:
            self._words |= words
        else:
            # Under its longest word, which few other names have.
            self._several[max(words, key=lambda word: (len(word), word))].append(words)
        if len(letters := _letters(name)) >= _JOINED:
            self._joined.add(letters)

    def _within(self, text: str) -> bool:
        words, letters = _words(text) | _words(_HYPHEN.sub("", text)), _letters(text)
        return (
            _CODE.search(text) is not None
            or not words.isdisjoint(self._words)
            or any(name <= words for word in words for name in self._several.get(word, ()))
            or any(name in letters for name in self._han)
            or any(
                letters[start : start + length] in self._joined
                for length in self._lengths
                for start in range(len(letters) - length + 1)
            )
        )


class SourceDiseases:
    """The diseases that an order for a case of `source` may name; `more` are further names.

    They are those of the clinic's tables, of the source's closed list, and `more`; without a closed
    list, those of all cases of the source, which are read once, when the first order is asked
    about.
    """

    def __init__(self, source: Source, more: Iterable[str] = ()) -> None:
        self._source, self._more = source, tuple(more)

    @cached_property
    def _all(self) -> DiseaseNames:
        known = built_in().entries
        of_cases = [case.truth for case in _told_apart(self._source)]
        names = (
            *(name for entry in known for name in entry.names),
            *self._source.diagnoses,
            *self._more,
            *(name for truth in of_cases for name in (truth.diagnosis, *truth.aliases)),
        )
        codes = (*(entry.code for entry in known), *(c for truth in of_cases for c in truth.codes))
        return DiseaseNames(dict.fromkeys(names), dict.fromkeys(codes))

    def within(self, case: Case, text: str) -> bool:
        """Whether `text` names a disease. The case's own is one even if the source lacks it."""
        own = _of_case((case.truth.diagnosis, *case.truth.aliases), case.truth.codes)
        return self._all.within(text) or own.within(text)


@lru_cache(maxsize=1 << 10)
def _of_case(names: tuple[str, ...], codes: tuple[str, ...]) -> DiseaseNames:
    return DiseaseNames(names, codes)


def _told_apart(source: Source) -> Iterator[Case]:
    """Cases that hold all names of the source's diseases, as far as the clinic does not know them.

    Without a closed list they are all cases.
    """
    catalogue = built_in()
    missing = {name for name in source.diagnoses if not catalogue.find(name)}
    if source.diagnoses and not missing:
        return
    for number, case in enumerate(chain(source.train, source.test)):
        if source.diagnoses and (number >= LOOKED_AT or not missing):
            return
        yield case
        missing.discard(case.truth.diagnosis)


def _words(text: str) -> frozenset[str]:
    """The content words of a text, each in one form."""
    plain = _HAN.sub(" ", normalise(text))
    return frozenset(_respelled(plain, (*_SPELLING, *_ENDINGS)).split()) - _FILLING


def _respelled(text: str, rules: Iterable[tuple[re.Pattern[str], str]]) -> str:
    for pattern, form in rules:
        text = pattern.sub(form, text)
    return text


def _letters(text: str) -> str:
    """Letters and digits alone, in lower case and one spelling."""
    return "".join(filter(str.isalnum, _respelled(normalise(text), _SPELLING)))
