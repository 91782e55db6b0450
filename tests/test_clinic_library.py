"""The knowledge graph, its sentences and their parser; the library of documents.

Both are made from the same tables.
"""

from __future__ import annotations

import csv
import re
import time
from collections import Counter
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import triang

from workup.cases.clinic import graph
from workup.cases.clinic.graph import (
    WORDINGS,
    Triple,
    canonical,
    read_triples,
    statements,
    triples,
    verbalise,
)
from workup.cases.clinic.library import (
    LEVELS,
    MISLEADING,
    Document,
    library,
    look_alike,
)
from workup.cases.clinic.patients import clinic
from workup.cases.clinic.tables import DECADES, SUBSETS, clinic_tables
from workup.core.case import Kind
from workup.core.errors import UserError
from workup.core.text import normalise

FOLDER = Path(graph.__file__).parent
EVERY = triples("full")
LIBRARIES = {subset: list(library(subset)) for subset in SUBSETS}
FULL = LIBRARIES["full"]
DISEASES = {disease.name: disease for disease in clinic_tables().diseases}
ENTITIES = {end for triple in EVERY for end in (triple.head, triple.tail)}
WORDS = st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=8)


def rows(name: str) -> list[dict[str, str]]:
    with (FOLDER / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def by_hand() -> dict[tuple[str, str], float]:
    """P(finding | disease) straight from the CSV files, for findings of either sex."""
    findings = {row["name"]: row for row in rows("findings.csv")}
    given = {
        (row["disease"], row["variant"], row["finding"]): float(row["probability"])
        for row in rows("likelihoods.csv")
    }

    def chance(disease: str, variant: str, finding: str) -> float:
        own = given.get((disease, "", finding), float(findings[finding]["background"]))
        own = given.get((disease, variant, finding), own)
        parent = findings[finding]["parent"]
        return own * chance(disease, variant, parent) if parent else own

    table = {}
    for row in rows("diseases.csv"):
        variants = [part.split("=") for part in row["variants"].split("|") if part] or [["", "1"]]
        for finding in findings:
            table[row["name"], finding] = sum(
                float(weight) * chance(row["name"], name, finding) for name, weight in variants
            )
    return table


TABLE = by_hand()
FINDINGS = {finding.name: finding for finding in clinic_tables().findings}
FOLDED = {name.casefold(): name for name in FINDINGS}
NAMED = re.compile(
    rf"(?<![\w-])(?:{'|'.join(map(re.escape, sorted(FOLDED, key=len, reverse=True)))})(?![\w-])"
)
GAPS = st.sampled_from([" ", "\n", " Hm. ", "</think> "])


def percents(disease: str, finding: str) -> set[int]:
    """The whole per cents that a document may give.

    They are the table's, scaled by the share of the patients who can have the finding.
    """
    female = DISEASES[disease].female
    share = {"female": female, "male": 1 - female}.get(FINDINGS[finding].sex, 1.0)
    low, peak, high = DISEASES[disease].ages
    width, first, end = high + 1 - low, *FINDINGS[finding].ages
    age = triang((peak + 0.5 - low) / width, low, width)
    share *= (1.0 if end == len(DECADES) else age.cdf(10 * end)) - age.cdf(10 * first)
    exact = 100 * share * TABLE[disease, finding]
    return {int(np.floor(exact + 0.5 - 1e-6)), int(np.ceil(exact - 0.5 + 1e-6))}


def figures(document: Document) -> list[tuple[str, str, int]]:
    """(disease, finding, per cent) of every figure in a text, by a reading of its own."""
    found = []
    for sentence in re.split(r"(?<=\.) ", document.text):
        numbers = [int(number) for number in re.findall(r"(\d+) %", sentence)]
        if not numbers:
            continue
        name = max(NAMED.findall(sentence.casefold()), key=len)
        other = look_alike(document.id.split("-")[0], DISEASES[document.disease]).name
        found += [
            (disease, FOLDED[name], number)
            for disease, number in zip((document.disease, other), numbers, strict=False)
        ]
    return found


# The graph


def test_there_is_a_treatment_for_every_disease_and_for_nothing_else():
    table = [row["disease"] for row in rows("treatments.csv")]
    assert sorted(table) == sorted(DISEASES)
    assert all(all(each) for each in graph.treatments().values())


@pytest.mark.parametrize("subset", SUBSETS)
def test_a_graph_knows_its_clinic_and_nothing_more(subset: str):
    tables = clinic_tables().subset(subset)
    names = {finding.name for finding in tables.findings} | {
        disease.name for disease in tables.diseases
    }
    found = triples(subset)
    assert len(set(found)) == len(found)
    for triple in found:
        assert triple.head in names
        assert triple.tail in names or triple.relation in ("belongs to", "treated with")
    for disease in tables.diseases:
        own = Counter(triple.relation for triple in found if triple.head == disease.name)
        assert own["belongs to"] == 1
        assert own["treated with"] == len(graph.treatments()[disease.code])
        assert sum(own.values()) - own["belongs to"] - own["treated with"] >= 2


def test_a_disease_is_tied_to_what_its_tables_make_typical():
    tied = {
        (triple.head, triple.tail)
        for triple in EVERY
        if triple.relation.startswith(("has", "shown"))
    }
    for (disease, finding), chance in TABLE.items():
        parent, sex = FINDINGS[finding].parent, FINDINGS[finding].sex
        background = FINDINGS[finding].background * (FINDINGS[parent].background if parent else 1)
        if (
            sex
            or abs(chance - graph.TYPICAL) < 1e-9
            or abs(chance / background - graph.LIFT) < 1e-9
        ):
            continue
        assert ((disease, finding) in tied) == (
            chance > graph.TYPICAL and chance / background > graph.LIFT
        )


def test_relations_follow_the_kind_of_finding():
    for triple in EVERY:
        if triple.relation == "investigated by":
            assert FINDINGS[triple.head].kind in (Kind.HISTORY, Kind.EXAMINATION)
            assert FINDINGS[triple.tail].kind in (Kind.LABORATORY, Kind.IMAGING, Kind.PROCEDURE)
        elif triple.relation == "has sign":
            assert FINDINGS[triple.tail].kind is Kind.EXAMINATION
        elif triple.relation in ("has symptom", "has in history"):
            assert FINDINGS[triple.tail].kind is Kind.HISTORY
    assert {triple.relation for triple in EVERY} == {*WORDINGS} - {"has picture"}


def test_sentences_of_two_relations_cannot_be_confused():
    between = [re.sub(r"\{head\}|\{tail\}", "", w) for each in WORDINGS.values() for w in each]
    assert len(set(between)) == len(between)
    assert not any(one in other for one, other in combinations(between, 2) if one != other)
    assert not any(words in f" {entity} " for words in between for entity in ENTITIES)
    for wording in (wording for each in WORDINGS.values() for wording in each):
        assert re.fullmatch(r"\{head\}.+\{tail\}|\{tail\}.+\{head\}", wording)


def test_every_triple_comes_back_from_each_of_its_sentences():
    for triple in EVERY:
        for wording in range(len(WORDINGS[triple.relation])):
            assert read_triples(verbalise(triple, wording)) == (triple,)


def test_sentences_are_all_wordings_of_all_triples():
    said = statements("s")
    assert (
        len(said)
        == sum(len(WORDINGS[triple.relation]) for triple in triples("s"))
        == len(set(said))
    )
    assert set(read_triples("; ".join(said))) == set(triples("s"))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(EVERY), st.integers(0, 9), GAPS), max_size=12))
def test_triples_come_back_from_a_text_in_order(said: list[tuple[Triple, int, str]]):
    text = "".join(
        verbalise(triple, number % len(WORDINGS[triple.relation])) + gap
        for triple, number, gap in said
    )
    assert read_triples(f"<think>{text}") == tuple(dict.fromkeys(triple for triple, _, _ in said))


@settings(max_examples=60, deadline=None)
@given(WORDS, WORDS, st.sampled_from(list(WORDINGS)), st.integers(0, 9))
def test_unknown_entities_come_back_in_normal_form(
    head: str, tail: str, relation: str, number: int
):
    triple = Triple(f"x{head} q", relation, f"x{tail} q")
    assert read_triples(verbalise(triple, number % len(WORDINGS[relation]))) == (triple,)


def test_synonyms_of_a_disease_are_one_entity():
    assert read_triples("Flu typically causes Fever.") == (
        Triple("influenza", "has symptom", "fever"),
    )
    assert read_triples(
        "Flu typically causes fever. Influenza often presents with fever."
    ) == read_triples("Grippe often presents with fever")
    assert canonical("Kissing  disease") == "infectious mononucleosis"
    assert canonical("The Fooitis!") == "fooitis"


def test_names_of_entities_do_not_collide():
    tables = clinic_tables()
    named = [
        (name, disease.name)
        for disease in tables.diseases
        for name in (disease.name, *disease.synonyms)
    ]
    named += [(finding.name, finding.name) for finding in tables.findings]
    named += sorted({(t, t) for each in graph.treatments().values() for t in each})
    named += sorted({(disease.family, disease.family) for disease in tables.diseases})
    owners: dict[str, str] = {}
    for name, owner in named:
        assert owners.setdefault(normalise(name), owner) == owner
        assert canonical(name) == owner
        assert len(name) < graph.ENTITY_LIMIT / 2


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Influenza.",
        "Fever occurred in 72 % of patients.",
        "typically causes fever.",
        "Influenza typically causes .",
        "Influenza typically causes fever, which can be a sign of gout.",
        f"{'x ' * 60}typically causes fever.",
        "... typically causes !!!",
    ],
)
def test_what_states_no_triple_yields_none(text: str):
    assert read_triples(text) == ()


@pytest.mark.long
@pytest.mark.parametrize(
    "unit",
    [
        "a",
        " ",
        ". ",
        "<",
        "<a",
        "; ",
        " can be a s",
        " typically causes ",
        "x typically causes ",
        "flu typically causes fever. ",
        "\n",
        "é",
        "..",
        "Flu typically causes x",
    ],
)
def test_reading_takes_linear_time_on_a_megabyte(unit: str):
    read_triples("flu typically causes fever")  # tables are read once, and not timed
    text = (unit * (1_000_000 // len(unit) + 1))[:1_000_000]
    start = time.process_time()
    read_triples(text)
    assert time.process_time() - start < 5


# The library


@pytest.mark.parametrize("subset", SUBSETS)
def test_every_disease_has_documents_on_all_six_levels(subset: str):
    diseases = [disease.name for disease in clinic_tables().subset(subset).diseases]
    documents = LIBRARIES[subset]
    assert len(documents) == len(library(subset)) == len(diseases) * len(LEVELS)
    assert [document.disease for document in documents] == [
        name for name in diseases for _ in LEVELS
    ]
    assert set(LEVELS) == set(range(1, 7))
    assert len(LEVELS) >= 8
    assert [document.level for document in documents] == list(LEVELS) * len(diseases)


def test_texts_are_short_readable_and_distinct():
    for document in FULL:
        assert 60 <= len(document.text.split()) <= 200
        assert document.disease.casefold() in document.title.casefold()
        assert normalise(document.disease) in normalise(document.text)
        assert not re.search(
            r"[{}|<>]|  |\bNone\b|\ba [aeio]\w|\b[Aa] (8|11\b|18\b)", document.text
        )
        assert all(
            sentence[0].isupper() or sentence[0].isdigit() for sentence in document.text.split(". ")
        )
    assert (
        len({document.text for document in FULL})
        == len({document.id for document in FULL})
        == len(FULL)
    )


def test_figures_agree_with_the_tables_unless_the_document_misleads():
    checked = 0
    for subset in SUBSETS:
        for document in LIBRARIES[subset]:
            if not document.misleading:
                for disease, finding, percent in figures(document):
                    assert percent in percents(disease, finding), document.text
                    checked += 1
    assert checked > 2000


def test_an_honest_document_states_only_what_the_graph_holds():
    for subset in SUBSETS:
        known = set(triples(subset))
        for document in LIBRARIES[subset]:
            stated = set(read_triples(document.text))
            assert len(stated) >= 2
            assert document.misleading or stated <= known


def test_a_misleading_document_is_wrong_in_figures_or_statements():
    known = set(triples("full"))
    misleading = [document for document in FULL if document.misleading]
    assert len(misleading) > 50
    for document in misleading:
        wrong = [
            f
            for f in figures(document)
            if f[0] == document.disease and f[2] not in percents(f[0], f[1])
        ]
        assert wrong or not set(read_triples(document.text)) <= known


def test_weaker_evidence_misleads_more_often():
    shares = {
        level: np.mean(
            [d.misleading for seed in range(3) for d in library("full", seed) if d.level == level]
        )
        for level in MISLEADING
    }
    assert shares[1] == 0
    assert shares[2] < shares[4] < shares[5]
    for level, share in shares.items():
        assert share == pytest.approx(MISLEADING[level], abs=0.08)


def test_no_text_says_that_it_misleads():
    assert not any(
        re.search(r"mislead|false|untrue", document.text + document.title, re.IGNORECASE)
        for document in FULL
    )


@pytest.mark.parametrize("subset", SUBSETS)
def test_a_look_alike_is_another_disease_of_the_clinic_that_the_same_patient_could_have(
    subset: str,
):
    diseases = clinic_tables().subset(subset).diseases
    for disease in diseases:
        other = look_alike(subset, disease)
        assert other in diseases
        assert other != disease
        assert {other.female, disease.female} != {0.0, 1.0}


def test_look_alike_names_are_look_alikes():
    pairs = {
        "allergic rhinitis": "allergic sinusitis",
        "Crohn's disease": "ulcerative colitis",
        "migraine": "cluster headache",
    }
    assert {name: look_alike("full", DISEASES[name]).name for name in pairs} == pairs


def test_a_document_depends_on_clinic_seed_and_index_alone():
    assert list(library("s")) == LIBRARIES["s"]
    assert library("s")[-1] == LIBRARIES["s"][-1]
    assert library("s")[3:40:7] == LIBRARIES["s"][3:40:7]
    assert {document.text for document in library("s", 1)}.isdisjoint(
        document.text for document in LIBRARIES["s"]
    )
    with pytest.raises(IndexError):
        library("s")[len(LIBRARIES["s"])]


def test_an_unknown_clinic_is_named_in_the_error():
    for ask in (library, triples):
        with pytest.raises(UserError, match="'full'"):
            ask("ful")


def test_patients_show_what_the_library_says():
    world = clinic("xs")
    rng = np.random.default_rng(0)
    findings = world.tables.findings
    place = next(i for i, finding in enumerate(findings) if finding.name == "serum lipase")
    disease = next(
        i for i, each in enumerate(world.tables.diseases) if each.name == "acute pancreatitis"
    )
    drawn = [world.draw(rng) for _ in range(20000)]
    mine = [
        present[place]
        for profile, _, complaint, present in drawn
        if world.profiles[profile].disease == disease and complaint != place
    ]
    figure = graph.frequency("xs", world.tables.diseases[disease], findings[place])
    assert np.mean(mine) == pytest.approx(
        figure, abs=0.12
    )  # who comes because of pain has lipase a little less often
