"""The pathology wing: sound tables, cases that follow them, and no hint at the diagnosis."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from workup.cases.clinic import pathology, tables
from workup.cases.clinic.pathology import (
    groups,
    markers,
    open_pathology,
    rates,
    tumours,
)
from workup.core.case import Case, Kind, evidence_of
from workup.core.text import normalise

SOURCE = open_pathology()
SEED = 3
ICD = re.compile(r"[A-TV-Z][0-9][0-9A-Z](\.[0-9A-Z]{1,4})?")
IHC = Path(__file__).resolve().parents[2] / "shared" / "data" / "ihc_tables.json"
FEMALE, MALE = {"ovary", "uterus", "cervix"}, {"prostate", "testis"}


def likelihoods(case: Case) -> np.ndarray:
    """P(what the presentation states | tumour), straight from the tables."""
    values = {fact.item: fact.id.split(":", 1)[1] for fact in case.given}
    return np.array(
        [np.prod([max(t.shares[g].get(v, 0), 1e-6) for g, v in values.items()]) for t in tumours()]
    )


def by_hand(case: Case) -> np.ndarray:
    joint = likelihoods(case) * np.array([tumour.prevalence for tumour in tumours()])
    return joint / joint.sum()


def test_the_wing_is_large_enough():
    assert len(tumours()) >= 24
    assert sum(not marker.molecular for marker in markers()) >= 40
    assert sum(marker.molecular for marker in markers()) >= 5
    assert len({tumour.family for tumour in tumours()}) >= 8
    assert {"", "male", "female"} == {tumour.sex for tumour in tumours()}


def test_names_and_synonyms_are_unambiguous():
    for table in (tumours(), markers()):
        names = [normalise(name) for row in table for name in (row.name, *row.synonyms)]
        assert len(set(names)) == len(names)
        assert all(names)
        assert not any(set(row.name) & set(",;|()<>") for row in table)


def test_codes_have_the_form_of_icd_10_cm():
    assert all(ICD.fullmatch(tumour.code) for tumour in tumours())


def test_the_rates_are_probabilities_of_known_tumours_and_markers():
    rows = tables.rows("marker_rates.csv")
    assert [row["tumour"] for row in rows] == [tumour.name for tumour in tumours()]
    assert list(rows[0])[1:] == [marker.name for marker in markers()]
    assert rates().shape == (len(tumours()), len(markers()))
    assert ((rates() > 0) & (rates() < 1)).all()


def test_every_marker_tells_some_tumours_apart():
    assert (rates().max(0) / rates().min(0) > 5).all()


def test_shares_sum_to_one_over_known_values():
    used = {group: set() for group in groups()}
    for tumour in tumours():
        for group, shares in tumour.shares.items():
            assert sum(shares.values()) == pytest.approx(1)
            assert set(shares) <= set(groups()[group])
            used[group] |= {value for value, share in shares.items() if share > 0}
    assert used == {group: set(values) for group, values in groups().items()}


def test_sex_and_organ_limits_hold():
    for tumour in tumours():
        assert tumour.organ in groups()["specimen"]
        assert tumour.organ not in FEMALE | MALE or tumour.sex == (
            "female" if tumour.organ in FEMALE else "male"
        )
        assert tumour.sex == "female" or not FEMALE & set(tumour.shares["specimen"])
        assert tumour.sex == "male" or not MALE & set(tumour.shares["specimen"])


@pytest.mark.parametrize(
    ("marker", "yes", "no"),
    [
        ("CD20", "diffuse large B-cell lymphoma", "melanoma"),
        ("SOX10", "melanoma", "diffuse large B-cell lymphoma"),
        ("pan-cytokeratin", "lung adenocarcinoma", "diffuse large B-cell lymphoma"),
        ("CK20", "Merkel cell carcinoma", "small cell lung carcinoma"),
        ("TTF-1", "small cell lung carcinoma", "Merkel cell carcinoma"),
        ("cyclin D1", "mantle cell lymphoma", "small lymphocytic lymphoma"),
        ("CD23", "small lymphocytic lymphoma", "mantle cell lymphoma"),
        (
            "E-cadherin",
            "invasive ductal carcinoma of the breast",
            "invasive lobular carcinoma of the breast",
        ),
        ("NKX3.1", "prostatic adenocarcinoma", "urothelial carcinoma"),
        ("EWSR1 rearrangement", "Ewing sarcoma", "neuroblastoma"),
    ],
)
def test_textbook_pairs_come_apart(marker: str, yes: str, no: str):
    names = [tumour.name for tumour in tumours()]
    column = rates()[:, [each.name for each in markers()].index(marker)]
    assert column[names.index(yes)] > 0.75
    assert column[names.index(no)] < 0.15


@pytest.mark.skipif(
    not IHC.exists(),
    reason="needs the immunohistochemistry tables, which are not part of the project",
)
def test_rates_agree_with_an_independent_table():
    sources = {entry["name"]: entry["markers"] for entry in json.loads(IHC.read_text())["bayesDB"]}
    same = {
        "Adenocarcinoma Polmonare": "lung adenocarcinoma",
        "Carcinoma Squamoso (SCC)": "squamous cell carcinoma of the lung",
        "Carcinoma Mammario (NST)": "invasive ductal carcinoma of the breast",
        "Adenocarcinoma Colorettale": "colorectal adenocarcinoma",
        "HCC": "hepatocellular carcinoma",
    }
    keys = {
        re.sub(r"[^A-Z0-9]", "", marker.name.upper()): place
        for place, marker in enumerate(markers())
    }
    rows = {tumour.name: row for tumour, row in zip(tumours(), rates(), strict=True)}
    pairs = [
        (rows[ours][keys[key]], value["s"])
        for theirs, ours in same.items()
        for key, value in sources[theirs].items()
        if key in keys
    ]
    assert len(pairs) >= 20
    assert np.mean([abs(one - other) for one, other in pairs]) < 0.1


@pytest.mark.long
def test_tumours_come_as_often_as_their_prevalence_says():
    cases = [SOURCE.train[i] for i in range(2000)]
    counts = Counter(case.truth.diagnosis for case in cases)
    weights = np.array([tumour.prevalence for tumour in tumours()])
    observed = [counts[tumour.name] for tumour in tumours()]
    assert stats.chisquare(observed, weights / weights.sum() * len(cases)).pvalue > 1e-3


@pytest.mark.parametrize("place", [0, 20, len(tumours()) - 1])
def test_markers_are_positive_as_often_as_the_table_says(place: int):
    draws, tests = 800, len(markers())
    rng = np.random.default_rng(SEED)
    found = Counter(fact.item for _ in range(draws) for fact in pathology._results(place, rng))
    values = [
        stats.binomtest(found[m.name], draws, rate).pvalue
        for m, rate in zip(markers(), rates()[place], strict=True)
    ]
    assert min(values) > 1e-3 / tests


def test_presentations_state_what_the_tumour_shares_say():
    tumour, rng, draws = tumours()[0], np.random.default_rng(SEED), 1500
    drawn = [pathology._values(tumour, rng) for _ in range(draws)]
    for group, shares in tumour.shares.items():
        for value in groups()[group]:
            count = sum(values[group] == value for values in drawn)
            share = shares.get(value, 0)
            assert count == 0 if share == 0 else stats.binomtest(count, draws, share).pvalue > 1e-5


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 999_999))
def test_the_posterior_and_the_differentials_are_bayes_rule(index: int):
    case = SOURCE.train[index]
    expected = by_hand(case)
    assert SOURCE.knowledge.posterior(evidence_of(case.given)) == pytest.approx(expected, abs=1e-4)
    others = [name for name in SOURCE.diagnoses if name != case.truth.diagnosis]
    chance = dict(zip(SOURCE.diagnoses, expected, strict=True))
    listed = [chance[name] for name in case.truth.differentials]
    assert len(set(case.truth.differentials)) == pathology.DIFFERENTIALS
    assert set(case.truth.differentials) <= set(others)
    assert all(one >= other - 1e-4 for one, other in pairwise(listed))
    assert (
        max(chance[name] for name in others if name not in case.truth.differentials)
        <= listed[-1] + 1e-4
    )


def test_criticality_is_the_likelihood_ratio_in_steps():
    close = 0
    for index in range(30):
        case = SOURCE.test[index]
        weights = by_hand(case)
        mine = SOURCE.diagnoses.index(case.truth.diagnosis)
        weights[mine] = 0
        mixture = weights @ rates() / weights.sum()
        for fact in case.truth.facts:
            column = [marker.name for marker in markers()].index(fact.item)
            ratio = rates()[mine, column] / mixture[column]
            if min(abs(ratio / step - 1) for step in (2, 5, 10)) < 1e-3:
                close += 1
                continue
            assert fact.weight == sum(ratio >= step for step in (2, 5, 10))
    assert close < 20


def test_full_information_identifies_the_tumour_and_the_presentation_alone_does_not():
    cases = [SOURCE.test[i] for i in range(300)]
    first = full = 0
    for case in cases:
        evidence = evidence_of(case.given)
        first += (
            SOURCE.diagnoses[int(np.argmax(SOURCE.knowledge.posterior(evidence)))]
            == case.truth.diagnosis
        )
        evidence |= {marker.name: () for marker in markers()} | evidence_of(case.truth.facts)
        full += (
            SOURCE.diagnoses[int(np.argmax(SOURCE.knowledge.posterior(evidence)))]
            == case.truth.diagnosis
        )
    assert full / len(cases) > 0.95
    assert 0.4 < first / len(cases) < 0.8


def test_a_case_depends_on_seed_split_and_index_alone():
    again = open_pathology()
    assert [again.train[i] for i in (5, 0, 999_999)] == [SOURCE.train[i] for i in (5, 0, 999_999)]
    assert again.phrases == SOURCE.phrases
    bodies = {
        case.presentation
        for case in (SOURCE.train[7], SOURCE.test[7], SOURCE.train[8], open_pathology(1).train[7])
    }
    assert len(bodies) == 4
    assert SOURCE.train[-1].id == "clinic:pathology:0:train:999999"


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 999_999))
def test_no_name_of_any_tumour_reaches_the_doctor(index: int):
    case = SOURCE.train[index]
    words = f" {normalise(case.presentation + ' ' + case.truth.record)} "
    for tumour in tumours():
        for name in (tumour.name, *tumour.synonyms):
            assert f" {normalise(name)} " not in words


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 999_999))
def test_every_text_is_made_of_phrases(index: int):
    case = SOURCE.train[index]
    phrases = set(SOURCE.phrases)
    assert {fact.text for fact in case.truth.facts} <= phrases
    assert {item.name for item in SOURCE.items} | {item.normal for item in SOURCE.items} | set(
        SOURCE.diagnoses
    ) <= phrases
    pattern = re.compile("|".join(map(re.escape, sorted(phrases, key=len, reverse=True))))
    assert not pattern.sub("", case.presentation).strip()
    assert set(case.truth.record.splitlines()[2:]) <= phrases


def test_phrases_are_few_and_distinct():
    assert len(set(SOURCE.phrases)) == len(SOURCE.phrases) < 2000


def test_facts_are_positive_markers_and_what_is_given_is_apart():
    case = SOURCE.test[0]
    items = {item.name: item for item in SOURCE.items}
    assert all(fact.kind == items[fact.item].kind == Kind.LABORATORY for fact in case.truth.facts)
    lines = case.truth.record.splitlines()[2:]
    assert len(lines) == len(items)
    found = {fact.item: fact.text for fact in case.truth.facts}
    assert lines == [found.get(name, item.normal) for name, item in items.items()]
    assert not {fact.item for fact in case.given} & set(items)
    assert all(fact.text in case.presentation for fact in case.given)
    assert [fact.item for fact in case.given] == list(groups())
    ids = [fact.id for fact in (*case.given, *case.truth.facts)]
    assert len(set(ids)) == len(ids)
