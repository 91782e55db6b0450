"""Documents on diseases, in sentences, from the annotations of the HPO and from Orphanet's.

A disease has a document for each set of publications that its annotations rest on, and one for what
rests on other sources too (`workup.retrieval.provenance`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, Field

from workup.cases.files import checked, existing, parse_object, scan
from workup.cases.rows import Filled
from workup.core.case import Document
from workup.core.text import normalise
from workup.retrieval import JOINED
from workup.retrieval.hpo.release import (
    WORDED,
    AnnotatedDisease,
    Annotation,
    HpoRelease,
    publications_alone,
)
from workup.retrieval.provenance import resting

MOST_NAMES = 3
"""Other names of a finding that a sentence tells."""

ORPHANET = (
    "Orphanet, rare diseases and their phenotypes (https://www.orphadata.com), CC BY 4.0; "
    "definitions as Orphanet words them."
)
Frequency = Literal[
    "Obligate (100%)",
    "Very frequent (99-80%)",
    "Frequent (79-30%)",
    "Occasional (29-5%)",
    "Very rare (<4-1%)",
    "Excluded (0%)",
]
"""How Orphanet words a frequency, in the order of WORDED, whose ranges these are."""
_WORDED = dict(zip(get_args(Frequency), WORDED.values(), strict=True))


class OrphanetDisease(BaseModel):
    """One disease of Orphanet, as a line of JSON: `hpo` holds [term, name, frequency]."""

    id: Filled
    label: Filled
    synonyms: list[str] = []
    definition: str | None = ""
    xref: list[tuple[str | None, str | None, str]] = Field(default=[], max_length=1_000)
    hpo: list[tuple[str, str, Frequency]] = Field(default=[], max_length=10_000)

    @property
    def same(self) -> tuple[str, ...]:
        """The ids of OMIM's diseases that are exactly this one."""
        return tuple(
            f"OMIM:{id}" for base, id, how in self.xref if base == "OMIM" and "E" in how.split()
        )


def orphanet_diseases(path: Path) -> Iterator[OrphanetDisease]:
    """The diseases in a file of JSON lines. Raises CaseError (file, line, field)."""
    for line in scan(path):
        row = parse_object(line.text, file=path, line=line.number)
        yield checked(OrphanetDisease, row, file=path, line=line.number)


def open_release(place: str) -> HpoRelease:
    """The release at `place`; what " + FILE" joins to it are Orphanet's diseases as JSON lines.

    Their findings are added to those of the OMIM diseases that they are exactly. Raises UserError
    and CaseError.
    """
    place, *files = place.split(JOINED)
    release = HpoRelease.open(place)
    diseases = dict(release.diseases)
    for orphan in (each for file in files for each in orphanet_diseases(existing(file))):
        found = [
            Annotation(term, "P", share, 0, words, (orphan.id,))
            for id, _, how in orphan.hpo
            for term, (words, share) in [(release.ontology.resolve(id), _WORDED[how])]
            if term
        ]
        for id in orphan.same:
            if id in diseases:
                own = diseases[id]
                diseases[id] = replace(own, annotations=(*own.annotations, *found))
    return replace(release, diseases=diseases, credits=(ORPHANET,) if files else ())


@dataclass(frozen=True)
class Naming:
    """The names of all diseases, each under one disease alone.

    `others` are the further names of each disease, by id. `notes` say which names were left out
    because they are another disease's first name, or a further name of two diseases.
    """

    others: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...]


def naming(release: HpoRelease, orphanet: Sequence[OrphanetDisease] = ()) -> Naming:
    """The further names of every disease: the HPO's own, and Orphanet's of the same disease."""
    claimed: dict[str, list[str]] = {
        id: list(each.names[1:]) for id, each in release.diseases.items()
    }
    for orphan in orphanet:
        for id in orphan.same:
            if id in claimed:
                claimed[id] += [orphan.label, *orphan.synonyms]
    first: dict[str, set[str]] = {}
    further: dict[str, set[str]] = {}
    for id, disease in release.diseases.items():
        first.setdefault(normalise(disease.name), set()).add(id)
        for name in claimed[id]:
            further.setdefault(normalise(name), set()).add(id)
    foreign = twice = 0
    others: dict[str, tuple[str, ...]] = {}
    for id, names in claimed.items():
        kept: dict[str, str] = {}
        for name in names:
            form = normalise(name)
            if id in first.get(form, ()) or not form or form in kept:
                continue
            if form in first:
                foreign += 1
            elif len(further[form]) > 1:
                twice += 1
            else:
                kept[form] = name
        others[id] = tuple(kept.values())
    shared = sum(len(ids) for ids in first.values() if len(ids) > 1)
    notes = (
        (foreign, "further names left out: another disease has them as its first name"),
        (twice, "further names left out: two diseases have them"),
        (shared, "diseases share their first name with another; their ids tell them apart"),
    )
    return Naming(others, tuple(f"{count:,} {what}" for count, what in notes if count))


def documents(release: HpoRelease, orphanet: Sequence[OrphanetDisease] = ()) -> Iterator[Document]:
    """All documents, disease by disease; those of Orphanet's own diseases come last."""
    named = naming(release, orphanet)
    for disease in release.diseases.values():
        yield from _disease(release, disease, named.others[disease.id])
    for orphan in orphanet:
        yield _orphan(release, orphan)


def _disease(
    release: HpoRelease, disease: AnnotatedDisease, others: Sequence[str]
) -> Iterator[Document]:
    """A document for each set of publications, in the order in which they come."""
    parts: dict[tuple[str, ...], list[Annotation]] = {}
    for each in disease.annotations:
        parts.setdefault(publications_alone(each.references) or (), []).append(each)
    head = f"Disease {disease.id}, {disease.name}.{_also(others)}"
    for rests, rows in parts.items():
        source = f"Source: {', '.join(rests) if rests else 'OMIM and other catalogues'}."
        text = " ".join([head, source, *_sentences(release, rows)])
        yield Document(resting(disease.id, rests), disease.name, text)


def _sentences(release: HpoRelease, annotations: Sequence[Annotation]) -> Iterator[str]:
    """Inheritance and course, then findings, the most frequent first, then what was not found."""
    terms = release.ontology.terms
    for aspect, lead in (("I", "Inheritance"), ("C", "Course"), ("M", "Notes")):
        if found := [terms[each.term].name for each in annotations if each.aspect == aspect]:
            yield f"{lead}: {', '.join(dict.fromkeys(found)).lower()}."
    findings = sorted(
        (each for each in annotations if each.aspect in "PH"),
        key=lambda each: 0.5 if each.share is None else each.share,
        reverse=True,
    )
    for each in findings:
        finding = _finding(release, each.term)
        if each.share == 0:
            yield f"Not found: {finding}{f' ({each.frequency})' if each.n else ''}."
        else:
            yield f"{finding}: {each.frequency}." if each.frequency else f"{finding}."


def _finding(release: HpoRelease, id: str) -> str:
    term = release.ontology.terms[id]
    others = term.synonyms[:MOST_NAMES]
    return f"{term.name} (also {', '.join(others)})" if others else term.name


def _orphan(release: HpoRelease, orphan: OrphanetDisease) -> Document:
    same = f" In OMIM: {', '.join(orphan.same)}." if orphan.same else ""
    found = [
        f"{_finding(release, id) if id else name}: {_WORDED[how][0]}."
        for term, name, how in orphan.hpo
        for id in [release.ontology.resolve(term)]
    ]
    head = f"Disease {orphan.id}, {orphan.label}.{_also(orphan.synonyms)}{same}"
    text = " ".join([head, "Source: Orphanet.", orphan.definition or "", *found])
    return Document(orphan.id, orphan.label, " ".join(text.split()))


def _also(names: Sequence[str]) -> str:
    return f" Also called: {'; '.join(names)}." if names else ""


def as_line(document: Document) -> dict[str, Any]:
    """The document as a row of JSON lines."""
    return {"id": document.id, "title": document.title, "text": document.text}
