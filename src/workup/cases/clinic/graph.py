"""The clinic's knowledge as a graph of triples (head, relation, tail), with a writer and a parser.

Triples come from the patients' tables and from `treatments.csv`: what a disease typically shows,
which test a finding calls for, the disease's family, its treatments. In a clinic with links a
picture shows the findings, and the disease has that picture. The parser reads exactly the
sentences that the writer makes, wherever they stand in a text, and merges the synonyms of an
entity. It is the exact counterpart of MR-9's extractor.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import NamedTuple

import numpy as np

from workup.cases.clinic.patients import clinic
from workup.cases.clinic.renamed import picture
from workup.cases.clinic.tables import ClinicFinding, Disease, clinic_tables, parts, rows
from workup.core.case import Kind
from workup.core.text import normalise

TYPICAL = 0.3
"""The least P(finding | disease) of a finding in a disease's picture; LIFT has to hold too."""

LIFT = 2.0
"""Such a finding is at least this many times as probable as where the tables say nothing."""

ENTITY_LIMIT = 100
"""Longest entity in characters that the parser takes; no name in our tables is half as long."""

# relation → its sentences. Each begins with one entity and ends with the other, so that a parser
# needs only the words between them. Verbs stay the same for a plural subject.
WORDINGS: Mapping[str, tuple[str, ...]] = {
    "has symptom": (
        "{head} often presents with {tail}",
        "{head} typically causes {tail}",
        "{tail} can be a symptom of {head}",
    ),
    "has in history": (
        "{head} is made likelier by {tail}",
        "{tail}, if reported, should suggest {head}",
    ),
    "has sign": (
        "{head} is accompanied on examination by {tail}",
        "{tail} can be a sign of {head}",
    ),
    "shown by": ("{head} can be shown by {tail}", "{tail} can support the diagnosis of {head}"),
    "investigated by": (
        "{head} should be investigated by {tail}",
        "{tail} should be ordered for {head}",
    ),
    "belongs to": ("{head} belongs to the family {tail}", "{head} is listed in the chapter {tail}"),
    "treated with": ("{head} is treated with {tail}", "{tail} can cure or relieve {head}"),
    "has picture": ("{head} has the picture {tail}", "{tail} is the picture of {head}"),
}

_CLAUSE = re.compile(r"\.(?=\s|$)|[\n;!?]|<[^<>\s]{1,64}>")


class Triple(NamedTuple):
    """One statement; entities by their canonical names."""

    head: str
    relation: str
    tail: str


# the words between the entities → the relation, and whether the tail comes first
_CONNECTIVES = {
    wording.replace("{head}", "").replace("{tail}", ""): (relation, wording.startswith("{tail}"))
    for relation, each in WORDINGS.items()
    for wording in each
}
_CONNECTIVE = re.compile("|".join(map(re.escape, _CONNECTIVES)))


@cache
def _frequencies(subset: str) -> Mapping[tuple[str, str], float]:
    """(disease, finding) → P(finding | disease), over variants, both sexes and parent findings."""
    world = clinic(subset)
    of = np.array(
        [
            [profile.disease == place for profile in world.profiles]
            for place in range(len(world.tables.diseases))
        ]
    )
    chances = (of * world.prior) @ world.chance / (of @ world.prior)[:, None]
    names = [disease.name for disease in world.tables.diseases]
    return {
        (name, f.name): float(p)
        for name, row in zip(names, chances, strict=True)
        for f, p in zip(world.tables.findings, row, strict=True)
    }


def frequency(subset: str, disease: Disease, finding: ClinicFinding) -> float:
    """P(finding | disease) among all patients with the disease, as the clinic's tables have it."""
    return _frequencies(subset)[disease.name, finding.name]


@cache
def background(subset: str, finding: ClinicFinding) -> float:
    """P(finding | disease) where the tables say nothing of it, nor of its parent."""
    parents = (each for each in clinic(subset).tables.findings if each.name == finding.parent)
    return finding.background * next((parent.background for parent in parents), 1.0)


def lift(subset: str, disease: Disease, finding: ClinicFinding) -> float:
    """How many times as probable the finding is in the disease as where the tables say nothing."""
    return frequency(subset, disease, finding) / background(subset, finding)


def possible(disease: Disease, finding: ClinicFinding) -> bool:
    """Whether every patient with the disease is of a sex that can have the finding."""
    return disease.female == {"female": 1.0, "male": 0.0}.get(finding.sex, disease.female)


@cache
def typical(subset: str, disease: Disease) -> tuple[ClinicFinding, ...]:
    """The findings of the disease's picture, in the order of the table."""
    return tuple(
        finding
        for finding in clinic(subset).tables.findings
        if possible(disease, finding)
        and frequency(subset, disease, finding) >= TYPICAL
        and lift(subset, disease, finding) >= LIFT
    )


def relation(finding: ClinicFinding) -> str:
    """How a disease is tied to one of its findings."""
    if finding.kind is Kind.HISTORY:
        return "has symptom" if finding.complaint else "has in history"
    return "has sign" if finding.kind is Kind.EXAMINATION else "shown by"


@cache
def treatments() -> Mapping[str, tuple[str, ...]]:
    """Code of a disease → its treatments, of `treatments.csv`."""
    codes = {disease.name: disease.code for disease in clinic_tables().diseases}
    return {codes[row["disease"]]: parts(row["treatments"]) for row in rows("treatments.csv")}


def link(disease: str) -> Triple:
    """What ties the mark of a disease to that of its picture, in a clinic with links."""
    return Triple(disease, "has picture", picture(disease))


def _of_disease(subset: str, disease: Disease, *, links: bool) -> Iterator[Triple]:
    head = picture(disease.name) if links else disease.name
    for finding in typical(subset, disease):
        yield Triple(head, relation(finding), finding.name)
    if links:
        yield link(disease.name)
    yield Triple(disease.name, "belongs to", disease.family)
    for treatment in treatments()[disease.code]:
        yield Triple(disease.name, "treated with", treatment)


def _investigations(subset: str) -> Iterator[Triple]:
    """For each finding that needs no test: the best test for the disease that it supports most."""
    tables = clinic(subset).tables
    for finding in tables.findings:
        having = [disease for disease in tables.diseases if finding in typical(subset, disease)]
        if relation(finding) == "shown by" or not having:
            continue
        disease = max(having, key=lambda disease: lift(subset, disease, finding))
        tests = [test for test in typical(subset, disease) if relation(test) == "shown by"]
        if tests:
            yield Triple(
                finding.name,
                "investigated by",
                max(tests, key=lambda test: lift(subset, disease, test)).name,
            )


@cache
def triples(subset: str, *, links: bool = False) -> tuple[Triple, ...]:
    """The knowledge graph of a clinic, disease by disease; with `links`, of a renamed one.

    Raises UserError for a clinic that does not exist.
    """
    diseases = clinic(subset).tables.diseases
    own = (triple for disease in diseases for triple in _of_disease(subset, disease, links=links))
    return (*own, *_investigations(subset))


def reference(
    subset: str, disease: str, findings: Iterable[str], *, links: bool = False
) -> tuple[Triple, ...]:
    """The reasoning that leads from a patient's `findings` to `disease`, as statements.

    These are the statements of the graph about the disease and one of the findings, what each of
    these findings is investigated by, and the disease's family: chains disease → finding → test.
    With links the picture stands between: disease → picture → finding → test.
    """
    graph, given = triples(subset, links=links), set(findings)
    head = picture(disease) if links else disease
    about = [t for t in graph if t.head == head and t.tail in given]
    tested = {t.tail for t in about}
    further = [t for t in graph if t.relation == "investigated by" and t.head in tested]
    tied = [t for t in graph if t.head == disease and t.relation in ("has picture", "belongs to")]
    return (*about, *further, *tied)


def verbalise(triple: Triple, wording: int = 0) -> str:
    """The triple as a sentence, in the given one of its relation's WORDINGS."""
    sentence = WORDINGS[triple.relation][wording].format(head=triple.head, tail=triple.tail)
    return f"{sentence[0].upper()}{sentence[1:]}."


def statement(triple: Triple, wording: int = 0) -> str:
    """The triple's sentence without its full stop, as it stands in a list with semicolons."""
    return verbalise(triple, wording).removesuffix(".")


def stated(text: str) -> tuple[str, ...]:
    """The statements that a text makes, each once, in its own words and without full stops."""
    own: list[str] = []
    lowered = text.lower()
    if len(lowered) != len(text):  # a few letters are two in lower case
        text = lowered
    for triple in read_triples(text):
        # In the text's own letter case: a renamed clinic's names are capitalised there.
        said = ((lowered.find(each.lower()), len(each)) for each in _wordings(triple))
        if first := next((found for found in said if found[0] >= 0), None):
            own.append(text[first[0] : sum(first)])
    return tuple(own)


def _wordings(triple: Triple) -> list[str]:
    return [statement(triple, wording) for wording in range(len(WORDINGS[triple.relation]))]


def statements(subset: str, *, links: bool = False) -> tuple[str, ...]:
    """Every statement for every triple of a clinic: phrases for the tiny policy's vocabulary."""
    return tuple(said for triple in triples(subset, links=links) for said in _wordings(triple))


@cache
def _entities() -> Mapping[str, str]:
    """normal form → canonical name, for all names and synonyms of the full clinic."""
    tables = clinic_tables()
    names = {
        name: disease.name
        for disease in tables.diseases
        for name in (disease.name, *disease.synonyms)
    }
    names |= {finding.name: finding.name for finding in tables.findings}
    names |= {disease.family: disease.family for disease in tables.diseases}
    names |= {treatment: treatment for each in treatments().values() for treatment in each}
    return {normalise(name): canonical for name, canonical in names.items()}


def canonical(name: str) -> str:
    """The table's name for an entity or its synonym; for an unknown one its normal form."""
    form = normalise(name)
    return _entities().get(form, form)


def _read_clause(clause: str) -> Iterator[Triple]:
    found = list(_CONNECTIVE.finditer(clause))
    if len(found) != 1:
        return
    left, right = clause[: found[0].start()].strip(), clause[found[0].end() :].strip()
    if max(len(left), len(right)) > ENTITY_LIMIT:
        return
    relation, reverse = _CONNECTIVES[found[0][0]]
    head, tail = (
        (canonical(right), canonical(left)) if reverse else (canonical(left), canonical(right))
    )
    if head and tail:
        yield Triple(head, relation, tail)


def read_triples(text: str) -> tuple[Triple, ...]:
    """The triples stated in a text, in order, each once. Linear in `len(text)`; never raises.

    A clause (up to a full stop, a semicolon, the end of a line or a tag) states a triple if it
    holds the words of exactly one wording, with an entity before and after; every other clause
    states none.
    """
    triples = (triple for clause in _CLAUSE.split(text) for triple in _read_clause(clause))
    return tuple(dict.fromkeys(triples))
