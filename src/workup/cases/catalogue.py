"""What is known without a model: diseases, examinations and how often these are positive.

The catalogue is made from the tables of the built-in clinic and its pathology wing: a disease that
is in no table does not exist here.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property

from workup.cases.clinic.pathology import Marker, markers, rates, tumours
from workup.cases.clinic.patients import evidence_id
from workup.cases.clinic.tables import ClinicFinding, clinic_tables, parts, rows
from workup.cases.icd import compact
from workup.core.case import Case, Fact
from workup.core.text import normalise

_FILLING = "a an and any at by for form from in kind of on or some the to type with without"
_DISEASE = "condition disease diseases disorder illness process pathology syndrome"
_TUMOUR = "cancer lesion malignancy malignant mass neoplasm neoplastic tumor tumors tumour tumours"
_ELSEWHERE = (
    "biochemistry blood ct electrocardiogram endoscopy mri pet radiograph scan serum ultrasound "
    "urine xray"
)
_FILLERS = frozenset(_FILLING.split())
_ANY_DISEASE = frozenset(_DISEASE.split())
_ANY_TUMOUR = frozenset(_TUMOUR.split())
_OTHER_DEPARTMENTS = frozenset(_ELSEWHERE.split())
_POSSESSIVE = re.compile(r"['’ʼ`´]s\b", re.IGNORECASE)
_STEM = 5  # letters from which a word may be the end of another: carcinoma, adenocarcinoma
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True)
class CatalogueEntry:
    """A diagnosis: all its names (its own first), its ICD-10-CM code and family.

    `sex` is the only sex that can have it, "" if both can. `organ` is where it arises, `sites` are
    where it is ever found; both are empty where the tables do not say. `shares` are P(positive) of
    examinations by their names, in their order; empty where the tables do not say.
    """

    names: tuple[str, ...]
    code: str
    family: str
    sex: str = ""
    organ: str = ""
    sites: frozenset[str] = frozenset()
    shares: Mapping[str, float] = field(default_factory=dict, compare=False)

    @property
    def name(self) -> str:
        return self.names[0]

    @cached_property
    def _vocabularies(self) -> tuple[frozenset[str], ...]:
        """For each name the words that may describe this diagnosis or a group it belongs to."""
        generic = _ANY_DISEASE | (_ANY_TUMOUR if self.code[:1] in ("C", "D") else frozenset())
        about = generic | _words(f"{self.family} {self.organ}")
        return tuple(_words(name) | about for name in self.names)

    def described_by(self, words: frozenset[str]) -> bool:
        """Whether all of `words` may describe this diagnosis or a group around it.

        False without words.
        """

        def inside(word: str, known: frozenset[str]) -> bool:
            ends = len(word) >= _STEM and any(each.endswith(word) for each in known)
            return word in known or ends

        return bool(words) and any(
            all(inside(word, known) for word in words) for known in self._vocabularies
        )


class Catalogue:
    """Diagnoses that can be looked up by name and code.

    `examinations` are the stains and molecular tests that entries have shares of, `findings` what
    is asked, examined or measured elsewhere in the hospital. `others` are further names of diseases
    with the names of the entries that they stand for, which may be several (a group) or none (a
    disease without an entry).
    """

    def __init__(
        self,
        entries: Iterable[CatalogueEntry],
        examinations: Sequence[Marker] = (),
        findings: Sequence[ClinicFinding] = (),
        others: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.entries = tuple(entries)
        self.examinations, self.findings = tuple(examinations), tuple(findings)
        self._shares = {entry.name: entry.shares for entry in self.entries if entry.shares}
        self._found: defaultdict[str, list[CatalogueEntry]] = defaultdict(list)
        for entry in self.entries:
            names = {form for name in entry.names for form in _forms(name)}
            for key in {*names, compact(entry.code)}:
                self._found[key].append(entry)
        meant = {
            name: tuple(entry for entry in self.entries if entry.name in of)
            for name, of in (others or {}).items()
        }
        self._others = {form: meant[name] for name in meant for form in _forms(name)}

    def find(self, term: str) -> tuple[CatalogueEntry, ...]:
        """The diagnoses that `term` names, by name, synonym or whole code.

        A code may mean several. "Ewing's sarcoma" is "Ewing sarcoma".
        """
        keys = filter(None, (*_forms(term), compact(term)))
        return tuple(dict.fromkeys(entry for key in keys for entry in self._found.get(key, ())))

    def stands_for(self, term: str) -> tuple[CatalogueEntry, ...] | None:
        """The diagnoses that a further name stands for; None for what is no further name.

        "GBM" stands for glioblastoma, "NSCLC" for several, and "oligodendroglioma" for none: that
        is a disease which has no entry.
        """
        return next((self._others[form] for form in _forms(term) if form in self._others), None)

    def shares(self, diagnosis: str) -> Mapping[str, float]:
        """P(examination positive | diagnosis) by name; empty where it is not known."""
        return self._shares.get(diagnosis, {})

    def around(self, term: str) -> tuple[CatalogueEntry, ...]:
        """The diagnoses that `term` names, or whose group it names.

        A group is named by its words or by the beginning of a code.
        """
        words, code = _words(term), compact(term)
        return tuple(
            entry
            for entry in self.entries
            if entry.described_by(words) or (code and compact(entry.code).startswith(code))
        )


def _forms(name: str) -> tuple[str, str]:
    """The normal form of a name, and that without a possessive s."""
    return normalise(name), normalise(_POSSESSIVE.sub("", name))


def _words(text: str) -> frozenset[str]:
    return frozenset(normalise(text).split()) - _FILLERS


@cache
def built_in() -> Catalogue:
    """What the tables of the whole clinic and of the pathology wing hold."""
    names = [marker.name for marker in markers()]
    diseases = (
        CatalogueEntry(
            (d.name, *d.synonyms), d.code, d.family, {0.0: "male", 1.0: "female"}.get(d.female, "")
        )
        for d in clinic_tables().diseases
    )
    of_pathology = (
        CatalogueEntry(
            (t.name, *t.synonyms),
            t.code,
            t.family,
            t.sex,
            t.organ,
            frozenset(t.shares["specimen"]),
            dict(zip(names, map(float, row), strict=True)),
        )
        for t, row in zip(tumours(), rates(), strict=True)
    )
    others = {
        name: parts(row["of"]) for row in rows("other_names.csv") for name in parts(row["names"])
    }
    return Catalogue((*diseases, *of_pathology), markers(), clinic_tables().findings, others)


def rated(cases: Iterable[Case]) -> bool:
    """Whether shares of positive examinations are known of the diagnoses of all `cases`."""
    return all(built_in().shares(case.truth.diagnosis) for case in cases)


def spread(examination: Marker, diagnoses: Sequence[CatalogueEntry]) -> float:
    """The largest difference in P(marker positive) between two of `diagnoses`, in [0, 1].

    0 if it is known of fewer than two.
    """
    found = [entry.shares[examination.name] for entry in diagnoses if entry.shares]
    return max(found) - min(found) if found else 0.0


def elsewhere(term: str) -> bool:
    """Whether an ordered item belongs to the rest of the clinic, not to the pathologist.

    It is then something asked, examined or measured there.
    """
    form = normalise(term)
    return form in _elsewhere() or not _OTHER_DEPARTMENTS.isdisjoint(form.split())


@cache
def _elsewhere() -> frozenset[str]:
    return frozenset(normalise(finding.name) for finding in clinic_tables().findings)


@cache
def _wordings() -> Mapping[str, tuple[str, ...]]:
    """Fact id → every sentence that words the finding."""
    findings = {
        evidence_id(finding.name, "yes"): finding.present for finding in clinic_tables().findings
    }
    stains = {
        facts[0].id: tuple(fact.text for fact in facts)
        for facts in (marker.positives for marker in markers())
    }
    return {**findings, **stains}


def wordings(fact: Fact) -> tuple[str, ...]:
    """The fact's own text, and the tables' other sentences for the same finding and numbers."""
    numbers = _NUMBER.findall(fact.text)
    others = (text for text in _wordings().get(fact.id, ()) if _NUMBER.findall(text) == numbers)
    return tuple(dict.fromkeys((fact.text, *others)))
