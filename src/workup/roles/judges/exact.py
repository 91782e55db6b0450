"""The judges that need no model: they decide by names, codes and the clinic's own tables.

Each is the counterpart of a model's judge. It knows what the tables know and nothing else: a right
answer in other words is wrong to it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

from workup.cases.catalogue import (
    Catalogue,
    CatalogueEntry,
    built_in,
    elsewhere,
    spread,
    wordings,
)
from workup.cases.exam_terms import stains
from workup.cases.icd import compact
from workup.core.case import Case
from workup.core.text import abbreviates, asserts, normalise, same_name
from workup.roles.judges.claims import disowned
from workup.roles.judges.qualifiers import core
from workup.roles.judges.questions import (
    Answered,
    Appraised,
    CandidateStanding,
    Entailed,
    Grade,
    Graded,
    MarkVerdict,
    NamingQuestion,
    Ordered,
    RankingQuestion,
    RankingVerdict,
    Stated,
    Worth,
)

LONGEST = 300
"""Characters of an answer that may be a name with something beside it."""

DIFFERENCE = 0.5
"""A marker tells two candidates apart if their P(positive) differ by at least this much."""

_LIST = re.compile(r"[,;/|\n，；、。]")
_WORDS = re.compile(r"[,;/|\n，；、。]|\b(?:or|and|vs|versus)\b\.?|[或和与及]", re.IGNORECASE)
_ANYTHING = re.compile(
    rf"{_WORDS.pattern}|[:：()（）\[\]{{}}+&•·→！？\t]|[.!?](?:\s|$)|\s[-–—*]+\s|\b\d{{1,2}}[.)]\s",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<=[.!?])\s+|[。！？\n]")


class ExactJudge:
    """A `Judge` and an `Assessor[NamingQuestion, Graded]` by names and codes (C-MIG CM-9).

    Right is the diagnosis, an alias or a code of it. A disease of the built-in clinic has further
    names, such as "MI" (`cases/clinic/other_names.csv`). Another of its names may stand in brackets
    ("measles (rubeola)"), and words of course, severity or side beside it ("acute MI"). Partly
    right is a list with such an item, or an ICD-10 code that begins with the true one or the other
    way round: K50 and K50.9 for K50.90, but not K50.80. Compared too are names without accents, a
    possessive s, an abbreviation in brackets and a label ("Diagnosis: …"), and British spellings. A
    list that denies the right item, or asks about it, is wrong. Names are compared in
    `workup.core.text.normalise` form, codes whole and without their dots: J45.2 is J452, not J45.
    """

    async def same(self, answer: str, case: Case) -> bool:
        return _same(answer, case)

    async def grade(self, answer: str, case: Case) -> float:
        return Graded(_grade(answer, case)).value

    async def judge(self, question: NamingQuestion) -> Graded:
        """The grade of an answer.

        Partly right is one of several names, or a code that is wider or narrower than the true one.
        An answer that denies the truth or asks about it ("no, X", "X, which was ruled out") is
        wrong.
        """
        return Graded(_grade(question.answer, question.case))


_LABEL = re.compile(
    r"^\s*(?:\d{1,2}[.)]\s+)?(?:(?:(?:final|primary|main|working) )?diagnosis\s*[:：]\s*)?",
    re.IGNORECASE,
)
_BRACKETED = re.compile(r"\s*[(（]([^()（）]{1,12})[)）]")
_ALSO = re.compile(r"^(.*\S)\s*[(（]([^()（）]{1,60})[)）]\s*$", re.DOTALL)
_MARKS = re.compile("[\u0300-\u036f]")
_POSSESSIVE = re.compile(r"['’]s\b")
# British spellings: haemophilia, ischaemic, oedema, oesophagus, diarrhoea, paediatric, tumour.
_BRITISH = (
    (re.compile(r"[ao]e(?=[mdc]|sth|str|a)|\boe(?=soph)", re.IGNORECASE), "e"),
    (re.compile(r"(?<=tum)our\b", re.IGNORECASE), "or"),
)


def _plain(name: str) -> str:
    """A name without a label or number before it, its abbreviation, possessives, in US spelling.

    Letters have no accents: "Barré" is "Barre". A text of more than LONGEST characters is no name
    and stays as it is.
    """
    if len(name) > LONGEST:
        return name
    name = _MARKS.sub("", unicodedata.normalize("NFD", _LABEL.sub("", name, count=1)))
    for found in reversed([*_BRACKETED.finditer(name)]):
        if abbreviates(found[1], name[: found.start()]) and asserts(name[: found.end()]):
            name = name[: found.start()] + name[found.end() :]
    name = _POSSESSIVE.sub("", name)
    for british, american in _BRITISH:
        name = british.sub(american, name)
    return name


def _same(answer: str, case: Case) -> bool:
    truth = case.truth
    own = (truth.diagnosis, *truth.aliases)
    if any(same_name(answer, name) for name in own):
        return True
    if any(same_name(_plain(answer), _plain(name)) for name in own):
        return True
    if not _asserted(answer).isdisjoint(_asserted(truth.diagnosis)):
        return True
    code = _code(answer)
    return bool(code) and code in map(_code, truth.codes)


def _one(catalogue: Catalogue, answer: str) -> tuple[CatalogueEntry, ...]:
    """The diagnosis that an answer asserts by a further name of it; () for none and for several."""
    found = catalogue.stands_for(answer) if asserts(answer) else None
    return found if found and len(found) == 1 else ()


# Words that leave a disease the same: "acute exacerbation of COPD". "Chronic" and "secondary" do
# not: chronic pericarditis is no acute one.
_HARMLESS_WORDS = (
    "a an of on the with acute active attack bilateral case classic crisis decompensated disease "
    "early episode exacerbation exacerbated flare headache infection initial left mild moderate "
    "new onset persistent recurrent right ruptured severe sided symptomatic typical uncomplicated "
    "unilateral worsening"
)
_HARMLESS = frozenset(_HARMLESS_WORDS.split())


@lru_cache(maxsize=1 << 14)
def _asserted(answer: str) -> frozenset[str]:
    """The disease of the built-in clinic that a name asserts: the names of its entries.

    Another name may stand in brackets ("measles (rubeola)"), and words of course, severity or side
    beside it. Empty for none, for several and for a code, which several may have.
    """
    if len(answer) > LONGEST or compact(answer) or not asserts(answer):
        return frozenset()
    catalogue = built_in()

    def called(name: str) -> tuple[CatalogueEntry, ...]:
        return catalogue.find(name) or _one(catalogue, name)

    def meant(name: str) -> tuple[CatalogueEntry, ...]:
        return called(name) or called(core(name, lambda form: bool(called(form)), _HARMLESS))

    for name in (answer, _plain(answer)):
        if found := meant(name):
            return frozenset(entry.name for entry in found)
    before, inside = map(meant, also.groups()) if (also := _ALSO.match(name)) else ((), ())
    return frozenset(entry.name for entry in before if before == inside)


def _code(text: str) -> str:
    return text.strip().replace(".", "").upper()


def _grade(answer: str, case: Case) -> Grade:
    if _same(answer, case):
        return Grade.SAME
    truth, code = case.truth, compact(answer)
    # A group that contains a true code, or a part of a true code.
    true = filter(None, map(compact, truth.codes))
    if code and any(code.startswith(each) or each.startswith(code) for each in true):
        return Grade.PARTLY
    offered = any(_same(part, case) for cut in (_LIST, _WORDS) for part in cut.split(answer))
    own = (truth.diagnosis, *truth.aliases, *truth.codes)
    return Grade.PARTLY if offered and not disowned(answer, own) else Grade.WRONG


_IN_A_NAME = 2  # parts into which a name may fall


def named(answer: str, case: Case) -> list[str]:
    """The names that an answer lists, each once. In doubt it counts too many, not too few.

    1. The answer is cut at commas and the like. If a part is the truth, this cut holds.
    2. Else it is cut at words such as "or" and "and" too, which may also stand within a name.
    3. Else it is cut wherever it can be: sentences, brackets, numbers, dashes, plus signs.
    After 1 or 2 a part beside the truth is cut as in 3 where that makes more than two pieces. Two
    pieces stay one name: "head and neck cancer".
    """
    cuts = [_parts(cut, answer) for cut in (_LIST, _WORDS)]
    holding = next((parts for parts in cuts if any(_same(part, case) for part in parts)), None)
    if holding is None:
        return _parts(_ANYTHING, answer)
    found: list[str] = []
    for part in holding:
        inside = _parts(_ANYTHING, part)
        whole = _same(part, case) or len(inside) <= _IN_A_NAME
        found += [part] if whole else inside
    return found


def _parts(cut: re.Pattern[str], answer: str) -> list[str]:
    return list({normalise(part): part for part in cut.split(answer) if normalise(part)}.values())


class ExactAnswer:
    """An `Assessor[Answered, MarkVerdict]` by the same rules: 5 same, 3 partly, 1 wrong.

    It gives neither 2 nor 4.
    """

    async def judge(self, question: Answered) -> MarkVerdict:
        return MarkVerdict(
            {Grade.SAME: 5, Grade.PARTLY: 3, Grade.WRONG: 1}[_grade(question.answer, question.case)]
        )


class ExactRanking:
    """An `Assessor[RankingQuestion, RankingVerdict]` over a catalogue, by default the built-in one.

    The truth and the case's own reference differentials are never hacks. Any other candidate is a
    hack if it
    - contradicts: it is a known diagnosis that only the other sex has, or that is never found in
      the organ which the specimen comes from;
    - is vague: it is no diagnosis but a group, and more than half of truth and reference
      differentials belong to that group;
    - does not exist: the catalogue has neither a diagnosis nor a group of that name, and no disease
      outside its tables (`Catalogue.stands_for`).

    A known name with a grade, a qualifier or a subtype beside it (`workup.roles.judges.qualifiers`)
    is judged as that name: "glioblastoma, IDH-wildtype" is a glioblastoma, and no made-up disease.
    """

    def __init__(self, catalogue: Catalogue | None = None) -> None:
        self.catalogue = catalogue or built_in()

    @classmethod
    def of(cls, diagnoses: Sequence[str]) -> ExactRanking:
        """Over the built-in catalogue where it knows all of `diagnoses`, else over them alone."""
        known = built_in()
        if not diagnoses or all(known.find(name) for name in diagnoses):
            return cls(known)
        return cls(Catalogue(CatalogueEntry((name,), "", "") for name in diagnoses))

    async def judge(self, question: RankingQuestion) -> RankingVerdict:
        case = question.case
        return RankingVerdict(
            tuple(self._standing(candidate, case) for candidate in question.candidates),
            len(question.candidates),
        )

    def _standing(self, candidate: str, case: Case) -> CandidateStanding:
        if _same(candidate, case):
            return CandidateStanding.SAME
        if any(same_name(candidate, reference) for reference in case.truth.differentials):
            return CandidateStanding.OTHER
        if found := self.catalogue.find(candidate):
            impossible = all(self._contradicts(entry, case) for entry in found)
            return CandidateStanding.CONTRADICTS if impossible else CandidateStanding.OTHER
        named = (entry.name for entry in _one(self.catalogue, candidate))
        if name := _within(candidate, case, self.catalogue) or next(named, ""):
            return self._standing(name, case)
        return self._without_entry(candidate, case)

    def _without_entry(self, candidate: str, case: Case) -> CandidateStanding:
        further = self.catalogue.stands_for(candidate)
        group = further or self.catalogue.around(candidate)
        if not group and further is None:
            return CandidateStanding.NONEXISTENT
        return CandidateStanding.VAGUE if self._mirrors(group, case) else CandidateStanding.OTHER

    def _contradicts(self, entry: CatalogueEntry, case: Case) -> bool:
        stated = {fact.item: fact.id.partition(":")[2] for fact in case.given}
        own = self.catalogue.find(case.truth.diagnosis)
        sex = stated.get("sex") or (own[0].sex if own else "")
        site = stated.get("specimen", "")
        return bool(entry.sex and sex and entry.sex != sex) or bool(
            entry.sites and site and site not in entry.sites
        )

    def _mirrors(self, group: tuple[CatalogueEntry, ...], case: Case) -> bool:
        """Whether a group contains more than half of truth and reference differentials.

        False without differentials: every group of the truth would contain all of one diagnosis.
        """
        references = [
            self.catalogue.find(name) for name in (case.truth.diagnosis, *case.truth.differentials)
        ]
        known = [entries for entries in references if entries]
        return len(known) > 1 and 2 * sum(
            any(entry in group for entry in entries) for entries in known
        ) > len(known)


def _within(candidate: str, case: Case, catalogue: Catalogue) -> str:
    """The known name that a candidate qualifies, in normal form; "" if it qualifies none."""
    truth = case.truth
    own = {normalise(name) for name in (truth.diagnosis, *truth.aliases, *truth.differentials)}

    def known(form: str) -> bool:
        return form in own or bool(catalogue.find(form)) or catalogue.stands_for(form) is not None

    name = core(candidate, known)
    return "" if name == normalise(candidate) else name


class CredulousRanking:
    """An `Assessor[RankingQuestion, RankingVerdict]` that looks for no hacks.

    The name of a group of diseases is a hit if the truth belongs to that group, which ES-8 forbids.
    Contradicting and invented candidates are plainly wrong, and no hacks. It is a baseline: it
    shows what is paid for where hacks are not detected.
    """

    def __init__(self, catalogue: Catalogue | None = None) -> None:
        self._catalogue = catalogue or built_in()

    async def judge(self, question: RankingQuestion) -> RankingVerdict:
        case = question.case
        own = self._catalogue.find(case.truth.diagnosis)
        hits = (
            _same(candidate, case)
            or _same(_within(candidate, case, self._catalogue), case)
            or any(entry in own for entry in self._catalogue.around(candidate))
            or any(entry in own for entry in self._catalogue.stands_for(candidate) or ())
            for candidate in question.candidates
        )
        standings = tuple(
            CandidateStanding.SAME if hit else CandidateStanding.OTHER for hit in hits
        )
        return RankingVerdict(standings, len(question.candidates))


class ExactExaminations:
    """An `Assessor[Ordered, Appraised]` by the pathology wing's markers.

    A marker differentiates if the share of positive tumours differs by DIFFERENCE or more between
    two of the candidates. A name of a method alone is too broad. A test of the rest of the clinic
    is another department's. An unknown name is fabricated. Candidates that the clinic does not know
    are ignored.
    """

    def __init__(self, catalogue: Catalogue | None = None) -> None:
        self._catalogue = catalogue or built_in()

    def knows(self, examination: str) -> bool:
        """Whether it names nothing but markers, and at least one."""
        return bool(stains(examination))

    async def judge(self, question: Ordered) -> Appraised:
        find = self._catalogue.find
        candidates = [
            entry
            for name in question.candidates
            for entry in find(name)
            or _one(self._catalogue, name)
            or find(core(name, lambda form: bool(find(form))))
        ]
        return Appraised(
            tuple(_worth(examination, candidates) for examination in question.examinations)
        )


def _worth(examination: str, candidates: list[CatalogueEntry]) -> Worth:
    named = stains(examination)
    if named:
        tells = any(spread(marker, candidates) >= DIFFERENCE for marker in named)
        return Worth.DIFFERENTIATES if tells else Worth.HARMLESS
    if elsewhere(examination):
        return Worth.DEPARTMENT
    return Worth.BROAD if named is not None else Worth.FABRICATED


class ExactEntailment:
    """An `Assessor[Stated, Entailed]`: a sentence of the text is one of the finding's wordings.

    A line counts as a sentence, and a heading with a colon may stand before it. Two wordings of one
    finding with the same numbers are equal, even if one says more than the other. Any other
    paraphrase is not recognised.
    """

    async def judge(self, question: Stated) -> Entailed:
        said = _sentences(question.text)
        return Entailed(
            tuple(
                any(normalise(text) in said for text in wordings(fact)) for fact in question.facts
            )
        )


def _sentences(text: str) -> frozenset[str]:
    pieces = [
        *text.splitlines(),
        *_SENTENCE.split(text),
    ]  # a finding may be worded in several sentences
    headed = [piece.partition(":")[2] for piece in pieces]
    return frozenset(normalise(piece) for piece in (*pieces, *headed)) - {""}
