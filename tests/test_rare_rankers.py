"""Exact rankers of rare diseases against sums written out, and the study that compares them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import Call
from hpo_world import ROWS, patient, patients, release
from hpo_world import TERMS as TERMS_FILE
from hypothesis import given, settings
from hypothesis import strategies as st

from workup.cases import open_source
from workup.cases.publications import excluded
from workup.core.errors import UserError
from workup.core.leaks import without_subtype
from workup.retrieval.hpo import RATIO, WORDS
from workup.retrieval.hpo.phenotypes import (
    LikelihoodRatio,
    PatientFindings,
    Profiles,
    Similarity,
    pooled,
)
from workup.retrieval.hpo.release import Annotation, HpoRelease
from workup.studies.rare import (
    ALL,
    NOTHING,
    OWN,
    RANKERS,
    STATES,
    TESTED,
    UNKNOWN,
    UNNAMED,
    UNTOLD,
    TruthRank,
    ranked,
)

SKIN, RED, BLUE, FIT, FOCAL = (f"HP:00000{number}" for number in (10, 11, 12, 20, 21))
ABOVE = {SKIN: [SKIN], RED: [RED, SKIN], BLUE: [BLUE, SKIN], FIT: [FIT], FOCAL: [FOCAL, FIT]}
PMIDS = ("PMID:10", "PMID:11", "PMID:20", "PMID:30", "PMID:40", "PMID:41")
TERMS = st.lists(st.sampled_from([*ABOVE]), unique=True, max_size=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return release(tmp_path_factory.mktemp("hpo") / "release")


@pytest.fixture(scope="module")
def opened(folder: Path) -> HpoRelease:
    return HpoRelease.open(str(folder))


def without(folder: Path, own: frozenset[str]) -> dict[str, dict[str, float]]:
    """disease → term → share, of the rows that do not rest on `own` alone, by hand."""
    told = {"3/4": (3 + 0.5) / 5, "HP:0040282": 0.545, "0/4": 0, "": 0.5, "45%": 0.45, "1/1": 0.75}
    resolved = {"HP:0000911": RED, "HP:0000800": FOCAL}
    found: dict[str, dict[str, float]] = {f"OMIM:{number}": {} for number in (1, 2, 3, 4)}
    for disease, _, qualifier, term, reference, frequency, aspect in ROWS:
        if disease not in found or aspect != "P" or {*reference.split(";")} <= own:
            continue
        for above in ABOVE.get(resolved.get(term, term), []):
            share = 0 if qualifier else told[frequency]
            if share:
                found[disease][above] = max(found[disease].get(above, 0), share)
    return found


@settings(deadline=None)
@given(TERMS, TERMS, st.sets(st.sampled_from(PMIDS)))
def test_the_likelihood_ratio_is_its_formula(
    folder: Path, opened: HpoRelease, present: list[str], absent: list[str], own: set[str]
) -> None:
    ε, κ, λ, δ = 0.1, 0.5, 3.0, 0.02
    known = without(folder, frozenset(own))
    base = {t: (κ + sum(each.get(t, 0) for each in known.values())) / 5 for t in ABOVE}

    def ratio(disease: str, term: str) -> float:
        return (1 - ε) * max(known[disease].get(a, 0) / base[a] for a in ABOVE[term]) + ε

    asked = {above for term in present for above in ABOVE[term]}

    def coverage(disease: str) -> float:
        worth = {a: (-math.log(base[a])) ** 1.5 for a in asked}
        return sum(worth[a] for a in asked if a in known[disease]) / sum(worth.values())

    expected = [
        sum(math.log(ratio(disease, term)) for term in present)
        + (λ * math.log(coverage(disease) + δ) if present else 0)
        + sum(
            math.log((1 - min(ratio(disease, term) * base[term], 1 - ε)) / (1 - base[term]))
            for term in absent
        )
        if known[disease]
        else -math.inf
        for disease in known
    ]
    profiles = Profiles(opened)
    findings = PatientFindings((*present, "HP:0000801", "HP:7"), tuple(absent), frozenset(own))
    assert profiles.diseases == tuple(known)
    assert LikelihoodRatio(profiles, ε, κ, λ, δ).scores(findings) == pytest.approx(expected)
    anew = PatientFindings(tuple(present), tuple(absent))
    again = LikelihoodRatio(Profiles(opened, frozenset(own)), ε, κ, λ, δ).scores(anew)
    assert again == pytest.approx(expected)


def test_rows_have_their_columns_in_order(opened: HpoRelease) -> None:
    """Else a sum's last bit, and by it who is first of two equals, follows the seed of hashes."""
    profiles = Profiles(opened)
    for made in (profiles.shares, profiles.stated(profiles.diseases)):
        rows = np.split(made.indices, made.indptr[1:-1])
        assert max(map(len, rows)) > 2
        assert all((np.diff(row) > 0).all() for row in rows)


@settings(deadline=None)
@given(TERMS, st.sets(st.sampled_from(PMIDS)))
def test_similarity_is_its_formula(
    folder: Path, opened: HpoRelease, present: list[str], own: set[str]
) -> None:
    known = without(folder, frozenset(own))
    counts = {term: sum(term in each for each in known.values()) for term in ABOVE}
    worth = {term: -math.log(max(count, 1) / 4) for term, count in counts.items()}
    asked = {above for term in present for above in ABOVE[term]}
    expected = []
    for each in known.values():
        both = sum(worth[t] for t in asked & {*each})
        either = sum(worth[t] for t in asked | {*each})
        expected.append((both / either if either else 0.0) if each else -math.inf)
    found = Similarity(Profiles(opened)).scores(PatientFindings(tuple(present), own=frozenset(own)))
    assert found == pytest.approx(expected)


def test_information_is_what_pyhpo_has(tmp_path: Path) -> None:
    pyhpo = pytest.importorskip("pyhpo")
    rows = [row for row in ROWS if row[5] != "0/4" and row[3] != "HP:0000801"]
    terms = TERMS_FILE.replace(' {source="x"}', "")  # which pyhpo does not read
    present = {"HP:0000911": RED, "HP:0000800": FOCAL}
    rows = [(*row[:3], present.get(row[3], row[3]), *row[4:]) for row in rows]
    rows.append(("DECIPHER:1", "x", "", RED, "x", "", "P"))
    folder = release(tmp_path / "r", rows, terms=terms)
    (folder / "genes_to_phenotype.txt").write_text(f"1\tG\t{RED}\tRed spot\n")
    theirs = pyhpo.ontology.OntologyClass()(str(folder))
    ours = Profiles(HpoRelease.open(str(folder)))
    counts = np.diff(ours.shares.tocsc().indptr)
    for term, count in zip(ours.terms, counts, strict=True):
        found = theirs[int(term.removeprefix("HP:"))].information_content["omim"]
        assert found == pytest.approx(-math.log(count / 4) if count else 0)


@pytest.mark.parametrize(
    ("rows", "share"),
    [
        ([(0.75, 4)], 0.7),
        ([(0.75, 4), (0.0, 4), (0.9, 0)], (3 + 0.5) / 9),
        ([(0.0, 4)], 0.0),
        ([(0.2, 0), (None, 0), (0.6, 0)], 0.6),
        ([(None, 0)], 0.5),
    ],
)
def test_rows_about_one_term_are_pooled(
    rows: Sequence[tuple[float | None, int]], share: float
) -> None:
    made = [Annotation(RED, "P", each, n, "", ()) for each, n in rows]
    assert pooled(made) == pytest.approx(share)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("Cardiomyopathy, dilated, 1A", "Cardiomyopathy, dilated"),
        ("Optic atrophy 12", "Optic atrophy"),
        ("Depletion syndrome 13 (some type)", "Depletion syndrome"),
        ("Keratoderma, punctate type IA", "Keratoderma, punctate"),
        ("Blue disease", "Blue disease"),
    ],
)
def test_a_series_is_what_subtypes_share(name: str, family: str) -> None:
    assert without_subtype(name) == family


def world(tmp_path: Path, folder: Path) -> str:
    return patients(
        tmp_path / "p.jsonl",
        patient("a", ("OMIM:1", "Spotted fever 1"), RED, FOCAL, absent=[BLUE], pmid="PMID:10"),
        patient("b", ("OMIM:4", "Twin syndrome"), RED, SKIN, pmid="PMID:40"),
        patient("c", ("OMIM:2", "Blue disease"), BLUE, FIT, pmid="PMID:20"),
        patient("d", ("OMIM:77", "Nowhere"), BLUE, FIT, pmid="PMID:77"),
        patient("e", ("MONDO:1", "Elsewhere"), BLUE, FIT, pmid="PMID:78"),
        patient("f", ("OMIM:3", "Twin syndrome"), FIT, FOCAL, pmid="PMID:99"),
        patient("g", ("OMIM:3", "Twin syndrome"), FIT, FOCAL, pmid="PMID:98"),
    )


def test_the_study_counts_what_it_cannot_score(tmp_path: Path, folder: Path) -> None:
    source = open_source(world(tmp_path, folder))
    assert {case.id: excluded(case) for case in source.test}["a"] == (BLUE,)
    found = ranked(source, str(folder), 10, 0, lambda: None)
    assert found.left_out == {NOTHING[OWN]: 1, UNKNOWN: 1, UNNAMED: 1}
    ranks = {each.case: each.ranks for each in found.placed}
    assert set(ranks) == {"a", "b", "f", "g"}
    for state in STATES:
        assert {ranker for at, ranker in ranks["a"] if at == state} == {*RANKERS}
    assert ranks["a"][ALL, RATIO] == TruthRank(1, 1)
    assert ranks["f"][ALL, RATIO] == TruthRank(3, 2)  # its twin of the same name is before it
    assert ranks["b"][ALL, WORDS].exact > 0
    tested = {"PMID:10", "PMID:40", "PMID:20", "PMID:30"}
    all_gone = open_source(
        patients(
            tmp_path / "q.jsonl",
            *(
                patient(pmid, ("OMIM:3", "Twin syndrome"), FIT, FOCAL, pmid=pmid)
                for pmid in sorted(tested)
            ),
            patient("a", ("OMIM:1", "Spotted fever 1"), RED, FOCAL, pmid="PMID:10"),
        )
    )
    few = ranked(all_gone, str(folder), 10, 0, lambda: None)
    assert few.left_out == {NOTHING[OWN]: 1, NOTHING[TESTED]: 3}


def test_figures_are_counts_of_ranks(tmp_path: Path, folder: Path) -> None:
    found = ranked(open_source(world(tmp_path, folder)), str(folder), 10, 0, lambda: None)
    for state in STATES:
        for ranker in RANKERS:
            ranks = [each.ranks[state, ranker] for each in found.placed]
            figures = found.figures_of(state, ranker)
            assert figures["top-1"].mean == sum(rank.exact == 1 for rank in ranks) / 4
            assert figures["top-3"].mean == sum(0 < rank.exact <= 3 for rank in ranks) / 4
            reciprocal = [1 / rank.exact if rank.exact else 0 for rank in ranks]
            assert figures["MRR"].mean == pytest.approx(sum(reciprocal) / 4)
            a, b, f, g = (float(0 < rank.exact <= 10) for rank in ranks)
            assert figures["top-10 by disease"].mean == pytest.approx((a + b + (f + g) / 2) / 3)
    assert found.chance["top-1"].mean == 1 / 4
    assert found.chance["MRR"].mean == pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 4) / 4)


def test_nothing_is_called_without_the_own_paper_where_none_is_known(
    tmp_path: Path, folder: Path
) -> None:
    twin = ("OMIM:3", "Twin syndrome")
    unknown = [patient(f"u{n}", twin, FIT, FOCAL) for n in range(3)]
    known = [patient("k", ("OMIM:1", "Spotted fever 1"), RED, FOCAL, pmid="PMID:10")]
    source = open_source(patients(tmp_path / "p.jsonl", *unknown, *known))
    assert any(note.startswith("3 of 4 patients name no publication") for note in source.notes)
    found = ranked(source, str(folder), 10, 0, lambda: None)
    states = {each.case: {state for state, _ in each.ranks} for each in found.placed}
    assert states == {"k": {*STATES}, **{f"u{n}": {UNTOLD} for n in range(3)}}
    counts = {state: found.figures_of(state, RATIO)["top-1"].n for state in found.states}
    assert counts == {ALL: 1, OWN: 1, TESTED: 1, UNTOLD: 3}
    assert found.notes()[0].startswith("Of 3 patients no publication is known.")
    assert found.as_json()["untold"] == 3
    alone = ranked(
        open_source(patients(tmp_path / "q.jsonl", *unknown)), str(folder), 10, 0, lambda: None
    )
    assert alone.states == [UNTOLD]
    assert [sheet.title for section in alone.sections() for sheet in section.sheets] == [
        "All annotations, patients without a known publication"
    ]


def test_a_disease_without_findings_is_missed_and_every_code_counts(tmp_path: Path) -> None:
    inherited = ("OMIM:5", "Bare disease", "", "HP:0000006", "OMIM:5", "", "I")
    folder = release(tmp_path / "hpo", [*ROWS, inherited])
    rows = [
        patient("bare", ("OMIM:5", "Bare disease"), RED, FOCAL),
        patient("two", ("OMIM:5", "Bare disease"), RED, FOCAL, pmid="PMID:99"),
        patient("one", ("OMIM:5", "Bare disease"), RED, FOCAL, pmid="PMID:99"),
    ]
    source = open_source(patients(tmp_path / "p.jsonl", *rows))
    bare, two, one = source.test
    two = replace(two, truth=replace(two.truth, codes=("OMIM:5", "OMIM:1")))
    uncoded = replace(bare, id="uncoded", truth=replace(bare.truth, codes=("ORPHA:1",)))
    cases = (bare, two, one, uncoded)
    found = ranked(replace(source, test=cases), str(folder), 10, 0, lambda: None)
    ranks = {each.case: each.ranks for each in found.placed}
    assert ranks["bare"][UNTOLD, RATIO] == TruthRank(0, 0)
    assert ranks["two"][OWN, RATIO] == TruthRank(1, 1)
    assert found.left_out == {UNKNOWN: 1, UNNAMED: 1}


def test_ties_are_broken_at_random_by_the_case(tmp_path: Path, folder: Path) -> None:
    twin = ("OMIM:3", "Twin syndrome")
    rows = [patient(f"p{n}", twin, "HP:7", "HP:8", pmid="PMID:99") for n in range(40)]
    source = open_source(patients(tmp_path / "p.jsonl", *rows))
    found = ranked(source, str(folder), 40, 0, lambda: None)
    places = [each.ranks[ALL, RATIO].exact for each in found.placed]
    assert {*places} == {1, 2, 3, 4}  # no finding is known: all diseases are equal
    again = ranked(source, str(folder), 40, 0, lambda: None)
    assert again.placed == found.placed


def test_the_command_writes_numbers_and_a_page(tmp_path: Path, folder: Path, call: Call) -> None:
    words = ("study", "rare", f"cases={world(tmp_path, folder)}", "--out", tmp_path / "s")
    status, shown, _ = call(*words, f"release={folder}")
    assert status == 0
    assert "release 2020-02-21" in " ".join(shown.split())
    numbers = json.loads((tmp_path / "s" / "rare.json").read_text())
    rows = {(row["state"], row["ranker"]): row["measures"] for row in numbers["rows"]}
    assert rows[OWN, RATIO]["top-1"]["n"] == 4
    status, _, told = call(*words, f"release={tmp_path}")
    assert status == 2
    assert "has no hp.obo" in told
    elsewhere = patient("x", ("OMIM:77", "Nowhere"), RED, FIT, pmid="PMID:9")
    none = patients(tmp_path / "n.jsonl", elsewhere)
    with pytest.raises(UserError, match=r"scored \(1: its disease is not"):
        ranked(open_source(none), str(folder), 10, 0, lambda: None)
