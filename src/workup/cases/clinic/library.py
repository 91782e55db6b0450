"""A library of documents about the clinic's diseases, generated from the patients' tables.

There are ten documents per disease over the six levels of evidence of MR-6. Figures are the tables'
own, rounded to whole per cent. Other numbers (studies, patients, outcomes of a trial) are drawn at
random and are in no table. Some documents mislead: they describe the disease's nearest look-alike
under the disease's name. `Document.misleading` says so, the text does not. Nothing here is a
citation: no study, guideline or patient exists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np

from workup.cases.clinic.graph import (
    WORDINGS,
    Triple,
    background,
    frequency,
    link,
    possible,
    reference,
    relation,
    statements,
    treatments,
    typical,
    verbalise,
)
from workup.cases.clinic.patients import clinic
from workup.cases.clinic.renamed import diseases, in_marks, picture, pictures, said, unmarked
from workup.cases.clinic.tables import (
    DECADES,
    LINKED,
    PAPERS,
    RENAMED,
    STATEMENTS,
    ClinicFinding,
    Disease,
)
from workup.cases.clinic.tables import place as place_of
from workup.cases.knowledge import Array
from workup.core.case import Case, Document, Kind, OwnNames, Source
from workup.core.errors import UserError
from workup.core.lazy import Lazy

LEVELS = (1, 2, 3, 3, 4, 4, 5, 5, 6, 6)
"""The evidence levels of a disease's documents, in order.

1 systematic review, 2 randomised trial, 3 cohort study, 4 case-control study, 5 case report,
6 textbook chapter or expert opinion."""

MISLEADING: Mapping[int, float] = {1: 0.0, 2: 0.05, 3: 0.1, 4: 0.15, 5: 0.3, 6: 0.2}
"""Level → the share of its documents that mislead: the weaker the evidence, the more of them."""

CONTRAST = 0.2
"""The least difference of a misleading finding's probability between the two diseases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClinicDocument(Document):
    """One document of a clinic; `disease` and `misleading` are for measurement, never for prompts.

    It is named after `disease`.
    """

    disease: str
    misleading: bool


@dataclass(frozen=True)
class _Draft:
    """The plan of a document: it is named after `disease` and describes `described`.

    That is the look-alike if it misleads. `other` is the disease it is compared with, whose figures
    are those of `contrast`.
    """

    subset: str
    disease: Disease
    described: Disease
    other: Disease
    contrast: Disease
    findings: tuple[ClinicFinding, ...]
    rng: np.random.Generator

    def one_of(self, *options: str) -> str:
        return options[self.rng.integers(len(options))]

    def number(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high))


def _percent(subset: str, disease: Disease, finding: ClinicFinding) -> int:
    return round(100 * frequency(subset, disease, finding))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _figure(draft: _Draft, finding: ClinicFinding, who: str) -> str:
    """'Fever occurred in 72 % of patients.'"""
    name, share = finding.name, f"{_percent(draft.subset, draft.described, finding)} % of {who}"
    if relation(finding) == "shown by":
        return draft.one_of(
            f"{_capital(name)} gave an abnormal result in {share}.",
            f"The result of {name} was abnormal in {share}.",
            f"In {share}, the result of {name} was abnormal.",
        )
    return draft.one_of(
        f"{_capital(name)} occurred in {share}.",
        f"We recorded {name} in {share}.",
        f"In {share} there was {name}.",
    )


def _comparison(draft: _Draft, finding: ClinicFinding) -> str:
    cases, controls = (
        _percent(draft.subset, disease, finding) for disease in (draft.described, draft.contrast)
    )
    what = (
        f"An abnormal result of {finding.name}"
        if relation(finding) == "shown by"
        else _capital(finding.name)
    )
    return draft.one_of(
        f"{what} occurred in {cases} % of cases and in {controls} % of controls.",
        f"{what} occurred in {cases} % of cases, against {controls} % of controls.",
    )


def _figures(draft: _Draft, who: str) -> str:
    return " ".join(_figure(draft, finding, who) for finding in draft.findings)


def _statement(draft: _Draft, tie: str, tail: str) -> str:
    wording = draft.number(0, len(WORDINGS[tie]))
    return verbalise(Triple(draft.disease.name, tie, tail), wording)


def _statements(draft: _Draft, count: int) -> str:
    return " ".join(
        _statement(draft, relation(finding), finding.name) for finding in draft.findings[:count]
    )


def _treatment(draft: _Draft) -> str:
    return draft.one_of(*treatments()[draft.described.code])


def _treated(draft: _Draft) -> str:
    return _statement(draft, "treated with", _treatment(draft))


def _review(draft: _Draft) -> tuple[str, str]:
    name, studies, patients = draft.disease.name, draft.number(9, 60), 10 * draft.number(120, 900)
    opening = draft.one_of(
        (
            f"We searched four databases for studies of {name} and pooled {studies} of them, "
            f"with {patients} patients in all."
        ),
        (
            f"This review covers {studies} studies of {name} with {patients} patients, chosen by "
            "two readers independently."
        ),
    )
    closing = draft.one_of(
        (
            "The studies agreed well with each other, and the certainty of the evidence was "
            "judged to be high."
        ),
        (
            "Heterogeneity was low, and leaving out any single study did not change the pooled "
            "figures."
        ),
    )
    rival = f"The condition most often taken for it was {draft.other.name}."
    body = [
        opening,
        _figures(draft, "all patients"),
        rival,
        _statements(draft, 2),
        _treated(draft),
        closing,
    ]
    return f"Systematic review and meta-analysis of {name}", " ".join(body)


def _trial(draft: _Draft) -> tuple[str, str]:
    name, treatment, patients = draft.disease.name, _treatment(draft), 2 * draft.number(40, 400)
    opening = draft.one_of(
        (
            f"In this trial, {patients} patients with {name} were randomly assigned to "
            f"{treatment} or to usual care."
        ),
        (
            f"We assigned {patients} patients with {name} by lot to receive {treatment} or usual "
            "care alone."
        ),
    )
    worse = draft.number(25, 55)
    outcome = (
        f"After {draft.number(2, 27)} weeks, {worse + draft.number(8, 30)} of every hundred "
        f"patients given {treatment} had recovered, against {worse} of every hundred given usual "
        "care."
    )
    closing = draft.one_of(
        (
            "Neither patients nor assessors knew the assignment, and few patients were lost to "
            "follow-up."
        ),
        "Serious adverse events were rare and equally frequent in both groups.",
    )
    tied = _statement(draft, "treated with", treatment)
    body = [
        opening,
        "At entry, the groups were alike.",
        _figures(draft, "participants"),
        outcome,
        tied,
    ]
    return f"Randomized controlled trial of {treatment} in {name}", " ".join(
        [*body, _statements(draft, 1), closing]
    )


def _cohort(draft: _Draft) -> tuple[str, str]:
    name, patients, months = draft.disease.name, draft.number(80, 900), draft.number(6, 60)
    opening = draft.one_of(
        f"We followed {patients} consecutive patients with {name} for {months} months.",
        (
            f"This prospective cohort comprises {patients} patients with {name}, seen over "
            f"{months} months in two hospitals."
        ),
    )
    closing = draft.one_of(
        (
            f"In {draft.number(5, 30)} patients the first impression had been "
            f"{draft.other.name}, and it was revised later."
        ),
        f"At first contact, {draft.other.name} was the diagnosis most often made in error.",
    )
    body = [
        opening,
        "Findings were recorded on a fixed form at the first visit.",
        _figures(draft, "the cohort"),
    ]
    return f"Cohort study of patients with {name}", " ".join(
        [*body, _statements(draft, 2), _treated(draft), closing]
    )


def _case_control(draft: _Draft) -> tuple[str, str]:
    name, rival, cases = draft.disease.name, draft.other.name, draft.number(40, 300)
    opening = draft.one_of(
        (
            f"We compared {cases} patients with {name} (cases) with "
            f"{cases + draft.number(0, 80)} patients with {rival} (controls)."
        ),
        (
            f"Cases were {cases} patients with {name}; controls were as many patients with "
            f"{rival}, matched for age and sex."
        ),
    )
    closing = draft.one_of(
        (
            "Since records were read backwards from the diagnosis, some findings may have been "
            "looked for more often in cases."
        ),
        (
            "The two conditions are often mistaken for each other, and recall may differ between "
            "the groups."
        ),
    )
    compared = " ".join(_comparison(draft, finding) for finding in draft.findings)
    body = [
        opening,
        "Findings were taken from the records of the first visit.",
        compared,
        _statements(draft, 2),
        closing,
    ]
    return f"Case-control study of {name} and {rival}", " ".join(body)


def _patient(draft: _Draft) -> tuple[str, str, int]:
    """'a 54-year-old woman', the pronoun and the age."""
    low, peak, high = draft.disease.ages
    age = min(round(draft.rng.triangular(low, peak, high + 1)), int(high))
    female = draft.rng.random() < draft.disease.female
    noun = ("girl" if female else "boy") if age < 18 else ("woman" if female else "man")
    article = "an" if age in (8, 11, 18) or 80 <= age < 90 else "a"
    return f"{article} {age}-year-old {noun}", "she" if female else "he", age


def _met(finding: ClinicFinding, pronoun: str) -> str:
    if finding.kind is Kind.HISTORY:
        return f"Asked further, {pronoun} also reported {finding.name}."
    if finding.kind is Kind.EXAMINATION:
        return f"Examination revealed {finding.name}."
    return f"The result of {finding.name} was abnormal."


def _case_report(draft: _Draft) -> tuple[str, str]:
    name, (person, pronoun, age) = draft.disease.name, _patient(draft)
    decade = min(age // 10, len(DECADES) - 1)
    findings = [each for each in draft.findings if each.possible_at(decade, decade + 1)]
    history = [finding for finding in findings if finding.kind is Kind.HISTORY]
    opening = draft.one_of(
        (
            f"{_capital(person)} came to the emergency department after "
            f"{draft.number(2, 15)} days of illness."
        ),
        (
            f"We report on {person} who was referred to us after {draft.number(2, 15)} days "
            "of illness."
        ),
    )
    complaint = (
        f"The main complaint was {history[0].name}."
        if history
        else "The complaints were vague at first."
    )
    rest = [_met(finding, pronoun) for finding in findings if finding not in history[:1]]
    turn = draft.one_of(
        f"We first thought of {draft.other.name}, but the further course spoke against it.",
        f"The referring doctor had suspected {draft.other.name}, which could not be upheld.",
    )
    end = draft.one_of(f"The final diagnosis was {name}.", f"We concluded that this was {name}.")
    closing = draft.one_of(
        "A single case proves little, but it may remind others to think of the condition early.",
        "The patient has been well since and gave consent to this report.",
    )
    body = [opening, complaint, *rest, turn, end, _statements(draft, 2), _treated(draft), closing]
    return f"Case report: {_capital(name)}", " ".join(body)


def _chapter(draft: _Draft) -> tuple[str, str]:
    name, synonyms = draft.disease.name, draft.disease.synonyms
    opening = draft.one_of(
        f"{_capital(name)}, also called {synonyms[0]}, is well known to every clinician."
        if synonyms
        else f"{_capital(name)} is well known to every clinician.",
        f"Students should be able to recognize {name} when they meet it.",
    )
    rival = draft.one_of(
        f"The main alternative to keep in mind is {draft.other.name}.",
        f"Beginners often confuse it with {draft.other.name}.",
    )
    closing = draft.one_of(
        "In the author's experience, a careful history is worth more than a long list of tests.",
        "This account rests on common teaching and on the author's own practice.",
    )
    family = _statement(draft, "belongs to", draft.disease.family)
    body = [
        opening,
        family,
        _statements(draft, 3),
        _figures(draft, "patients"),
        rival,
        _treated(draft),
        closing,
    ]
    return f"Textbook chapter: {_capital(name)}", " ".join(body)


_WRITERS: Mapping[int, Callable[[_Draft], tuple[str, str]]] = {
    1: _review,
    2: _trial,
    3: _cohort,
    4: _case_control,
    5: _case_report,
    6: _chapter,
}


@cache
def _pictures(subset: str) -> Array:
    """How far each finding's frequency in a disease exceeds its background, at least 0.

    The shape is diseases × findings; each row is a unit vector.
    """
    tables = clinic(subset).tables
    excess = [
        [max(frequency(subset, d, f) - background(subset, f), 0.0) for f in tables.findings]
        for d in tables.diseases
    ]
    return np.asarray(excess / np.linalg.norm(excess, axis=1, keepdims=True))


@cache
def look_alike(subset: str, disease: Disease) -> Disease:
    """The most similar other disease of the clinic (cosine) that the same patient could have."""
    diseases = clinic(subset).tables.diseases
    similarity: Array = _pictures(subset) @ _pictures(subset)[diseases.index(disease)]
    ranked = [diseases[int(place)] for place in np.argsort(-similarity, kind="stable")]
    return next(
        other
        for other in ranked
        if other != disease and {other.female, disease.female} != {0.0, 1.0}
    )


def _draft(
    subset: str, disease: Disease, level: int, rng: np.random.Generator
) -> tuple[_Draft, bool]:
    rival = look_alike(subset, disease)
    telling = tuple(
        finding
        for finding in typical(subset, rival)
        if possible(disease, finding)
        and abs(frequency(subset, disease, finding) - frequency(subset, rival, finding)) >= CONTRAST
    )
    misleading = bool(rng.random() < MISLEADING[level] and telling)
    described, contrast = (rival, disease) if misleading else (disease, rival)
    pool = telling if misleading else typical(subset, disease)
    chosen = rng.permutation(len(pool))[: rng.integers(3, 6)]
    findings = tuple(pool[place] for place in chosen)
    return _Draft(subset, disease, described, rival, contrast, findings, rng), misleading


def _document(subset: str, seed: int, index: int) -> ClinicDocument:
    place, number = divmod(index, len(LEVELS))
    disease, level = clinic(subset).tables.diseases[place], LEVELS[number]
    draft, misleading = _draft(subset, disease, level, np.random.default_rng([seed, index]))
    title, text = _WRITERS[level](draft)
    id = f"{subset.removesuffix(RENAMED)}-{seed}-{index}"
    return ClinicDocument(id, title, text, level, disease=disease.name, misleading=misleading)


def _entry(subset: str, index: int, *, whole: bool, links: bool = False) -> ClinicDocument:
    """A disease's entry in the handbook: the findings of its picture, the most frequent first.

    They are listed, or with `whole` each is in a sentence of its own, which with `links` is about
    the picture.
    """
    disease = clinic(subset).tables.diseases[index]
    findings = sorted(
        typical(subset, disease), key=lambda finding: -frequency(subset, disease, finding)
    )
    text = f"Findings: {', '.join(finding.name for finding in findings)}."
    if whole:
        head = picture(disease.name) if links else disease.name
        stated = (Triple(head, relation(each), each.name) for each in findings)
        text = " ".join(map(verbalise, stated))
    id = f"{subset.removesuffix(RENAMED)}-handbook-{index}"
    title = _capital(disease.name)
    return ClinicDocument(id, title, text, max(LEVELS), disease=disease.name, misleading=False)


def _linked_entry(subset: str, index: int, *, whole: bool) -> ClinicDocument:
    """Entry `index` of the linked handbook, which has two entries per disease.

    Entry 2k has the findings of disease k's picture, entry 2k + 1 says which disease has it. With
    `whole` both are in sentences.
    """
    number, tie = divmod(index, 2)
    entry = _entry(subset, number, whole=whole, links=True)
    pictured = _capital(picture(entry.disease))
    if tie:
        text = verbalise(link(entry.disease)) if whole else f"Picture: {pictured}."
        return replace(entry, id=f"{entry.id}-link", text=text)
    return replace(entry, id=f"{entry.id}-picture", title=pictured)


def library(place: str, seed: int = 0) -> Sequence[ClinicDocument]:
    """The library of a clinic ("xs", "s", "m", "full", "s#renamed" …).

    Its documents stand disease by disease and are written when they are indexed. A renamed clinic
    has a handbook, one short entry per disease. With the option "statements" its entries are whole
    sentences, with "linked" there are two per disease, with "papers" the ten documents instead.
    Raises UserError for a clinic that does not exist.
    """
    subset, options = place_of(place)
    diseases, whole = len(clinic(subset).tables.diseases), STATEMENTS in options
    if LINKED in options:
        return Lazy(2 * diseases, partial(_linked_entry, subset, whole=whole))
    if subset.endswith(RENAMED) and PAPERS not in options:
        return Lazy(diseases, partial(_entry, subset, whole=whole))
    return Lazy(diseases * len(LEVELS), partial(_document, subset, seed))


CLINIC = "clinic:"


@dataclass(frozen=True, slots=True)
class ClinicLibrary:
    """The `SourceLibrary` of `clinic:PLACE`, as in "s" or "s#renamed,linked"."""

    place: str

    @property
    def name(self) -> str:
        return f"{CLINIC}{self.place}"

    @property
    def hops(self) -> int:
        """0 in a clinic with its own names, 1 with made-up ones, 2 with links."""
        return self._named.endswith(RENAMED) + self._linked

    @property
    def statements(self) -> Sequence[str]:
        return statements(self._named, links=self._linked)

    def documents(self, seed: int = 0) -> Sequence[Document]:
        return library(self.place, seed)

    def need(self, source: Source) -> None:
        """Raises UserError where only one of cases and documents is renamed, or has links."""
        theirs = source.library
        clinic = theirs if isinstance(theirs, ClinicLibrary) else None
        renamed = max(self.hops, clinic.hops if clinic else 0) > 0
        if renamed and (clinic is None or clinic._named != self._named):
            raise UserError(
                f"the names of {source.name} are not those of the library {self.name}: a renamed "
                "clinic and its own library, as in clinic:s#renamed, go together"
            )
        if clinic and self._linked != clinic._linked:
            without = source.name if self._linked else f"the library {self.name}"
            raise UserError(
                f"{without} has no names for pictures: cases and library are both of a clinic with "
                f"links, as in --cases clinic:s#renamed,linked, or neither is"
            )

    def own(self, case: Case) -> OwnNames:
        """With made-up names those of diseases, with links also those of their pictures."""
        return OwnNames(diseases(case), pictures(case))

    def query(self, case: Case, text: str) -> str:
        """`text` with marks in place of the case's made-up names."""
        return in_marks(case, text)

    def tell(self, case: Case, text: str) -> str:
        """`text` with the case's made-up names in place of marks."""
        return said(case, text)

    def fixed(self, text: str) -> Sequence[str]:
        """`text` cut at its marks."""
        return tuple(unmarked([text]))

    def references(self, case: Case) -> tuple[str, ...]:
        """What the graph says of the case's diagnosis and findings, in one text."""
        found = [fact.item for fact in case.all_facts]
        disease = in_marks(case, case.truth.diagnosis)
        steps = reference(self._named, disease, found, links=self._linked)
        return (said(case, " ".join(map(verbalise, steps))),) if steps else ()

    @property
    def _named(self) -> str:
        return place_of(self.place)[0]

    @property
    def _linked(self) -> bool:
        return LINKED in place_of(self.place)[1]
