"""Grades, qualifiers and subtypes of a known name: the name itself, and no made-up disease."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workup.cases.catalogue import Catalogue, CatalogueEntry, built_in
from workup.cases.clinic.tables import parts, rows
from workup.core.case import Case, Fact, Truth
from workup.core.text import normalise
from workup.roles.judges.exact import (
    CredulousRanking,
    ExactExaminations,
    ExactJudge,
    ExactRanking,
)
from workup.roles.judges.qualifiers import core
from workup.roles.judges.questions import CandidateStanding, Ordered, RankingQuestion, Worth
from workup.studies.base.probes import MADE_UP

BRAIN = Case(
    "b",
    "A mass of the brain.",
    Truth(
        "glioblastoma",
        aliases=("GBM", "glioblastoma multiforme"),
        differentials=("meningioma", "neuroblastoma"),
    ),
    given=(Fact("sex:male", "sex", "A man."), Fact("specimen:brain", "specimen", "Brain.")),
)
ENTRIES = built_in().entries


def standing(candidate: str, case: Case = BRAIN) -> CandidateStanding:
    (found,) = asyncio.run(ExactRanking().judge(RankingQuestion((candidate,), case))).standings
    return found


@pytest.mark.parametrize(
    "candidate",
    [
        "Glioblastoma (WHO grade 4)",
        "glioblastoma, IDH-wildtype",
        "Glioblastoma (GBM)",
        "GBM, CNS WHO grade IV",
        "giant cell glioblastoma",
        "recurrent glioblastoma of the left temporal lobe",
        "glioblastoma multiforme, MGMT promoter methylated, EGFR-amplified",
        "Glioblastoma, NOS",
    ],
)
def test_a_grade_or_a_subtype_of_the_truth_is_the_truth(candidate: str) -> None:
    assert standing(candidate) is CandidateStanding.SAME
    placed = asyncio.run(CredulousRanking().judge(RankingQuestion((candidate,), BRAIN)))
    assert placed.position == 1


@pytest.mark.parametrize(
    ("candidate", "expected"),
    [
        ("meningioma, WHO grade 1", CandidateStanding.OTHER),  # a reference differential
        ("melanoma, BRAF V600E-mutant", CandidateStanding.OTHER),
        (
            "seminoma, pT1 N0",
            CandidateStanding.CONTRADICTS,
        ),  # of an organ that this specimen is not of
        ("high-grade serous carcinoma of the ovary, stage IIIC", CandidateStanding.CONTRADICTS),
    ],
)
def test_of_another_name_it_is_that_name(candidate: str, expected: CandidateStanding) -> None:
    bare = candidate.partition(",")[0]
    assert standing(candidate) is standing(bare) is expected


@pytest.mark.parametrize(
    "candidate",
    [
        *MADE_UP,
        "zorgoid glioblastoma",
        "glioblastoma-like lesion",
        "pseudoglioblastoma",
        "glioblastoma negative",
        "negative glioblastoma",
        "glioblastoma of the lung",
        "glioblastoma in situ",
        "non-glioblastoma",
        "no glioblastoma",
        "glioblastoma unlikely",
        "possible glioblastoma",
        "glioblastoma or meningioma",
        "glioblastoma meningioma",
        "glioblastoma (BMG)",  # no abbreviation of it
        "the glioblastoma that I believe in",
        "glioblastoma " + "left " * 40,
    ],
)
def test_what_says_something_else_stays_unknown(candidate: str) -> None:
    assert standing(candidate) is CandidateStanding.NONEXISTENT


def test_no_name_of_the_clinic_qualifies_another_disease() -> None:
    """Each of 115 diseases is known by its own names, whole; so a part must not decide."""
    for entry in ENTRIES:
        for name in entry.names:
            others = {other.name for other in ENTRIES if not {*other.names} & {*entry.names}}

            def of_another(form: str, others: set[str] = others) -> bool:
                return any(found.name in others for found in built_in().find(form))

            assert core(name, of_another) == "", name


@given(st.data())
def test_the_longest_name_is_found_whatever_qualifies_it(data: st.DataObject) -> None:
    """The oracle is the name that was put in."""
    entry = data.draw(st.sampled_from(ENTRIES))
    name = data.draw(st.sampled_from(entry.names))
    before = data.draw(st.lists(st.sampled_from(["recurrent", "severe", "left"]), max_size=2))
    after = data.draw(st.lists(st.sampled_from(["grade 2", "stage IIIB", "NOS"]), max_size=2))
    term = ", ".join([" ".join([*before, name]), *after])
    catalogue = built_in()
    found = core(term, lambda form: bool(catalogue.find(form)))
    assert entry in catalogue.find(found)


@given(st.text(max_size=200))
def test_any_text_is_read(text: str) -> None:
    assert core(text, lambda form: False) == ""
    core(text, lambda form: True)


def test_the_own_list_of_a_source_is_read_alike() -> None:
    catalogue = Catalogue(
        [CatalogueEntry(("Bronchitis",), "", ""), CatalogueEntry(("Asthma",), "", "")]
    )
    case = Case("c", "", Truth("Asthma"))
    (found,) = asyncio.run(
        ExactRanking(catalogue).judge(RankingQuestion(("Acute severe asthma",), case))
    ).standings
    assert found is CandidateStanding.SAME


LUNG = Case(
    "l",
    "A nodule.",
    Truth(
        "lung adenocarcinoma",
        differentials=("squamous cell carcinoma of the lung", "colorectal adenocarcinoma"),
    ),
    given=(Fact("specimen:lung", "specimen", "Lung."),),
)


@pytest.mark.parametrize(
    ("candidate", "expected"),
    [
        ("LUAD", CandidateStanding.SAME),
        ("LUAD, stage IIIA", CandidateStanding.SAME),
        ("LUSC", CandidateStanding.OTHER),  # a reference differential
        ("not LUAD", CandidateStanding.NONEXISTENT),
        ("NSCLC", CandidateStanding.VAGUE),  # two of the three: truth and reference differentials
        ("RCC", CandidateStanding.OTHER),  # a group without any of them
        ("HGSC", CandidateStanding.CONTRADICTS),  # of an organ that this specimen is not of
        ("large cell carcinoma of the lung", CandidateStanding.OTHER),  # real, and in no table
        ("MALT lymphoma, stage IE", CandidateStanding.OTHER),
        ("zorgoid MALT lymphoma", CandidateStanding.NONEXISTENT),
    ],
)
def test_an_abbreviation_and_a_disease_without_a_table_are_not_made_up(
    candidate: str, expected: CandidateStanding
) -> None:
    assert standing(candidate, LUNG) is expected


def test_a_further_name_is_the_diagnosis_to_the_exact_judge_too() -> None:
    """The clinic's own synonyms of heart failure have neither of the first two."""
    case = Case("h", "A man.", Truth("heart failure", codes=("I50.9",)))
    for answer, right in (
        ("CHF", True),
        ("Congestive heart failure", True),
        ("not CHF", False),
        ("CHF?", False),
        ("CHF or COPD", False),
        ("MI", False),
        ("cardiomyopathy", False),
    ):
        assert asyncio.run(ExactJudge().same(answer, case)) is right, answer
    other = Case("o", "A man.", Truth("GERD"))  # of another source, which calls it so
    assert asyncio.run(ExactJudge().same("Gastroesophageal reflux disease", other))
    assert not asyncio.run(ExactJudge().same("reflux nephropathy", other))


@pytest.mark.parametrize(
    ("diagnosis", "answer"),
    [
        ("myocardial infarction", "Acute myocardial infarction (heart attack)"),
        ("chronic obstructive pulmonary disease", "Acute exacerbation of COPD"),
        (
            "chronic obstructive pulmonary disease",
            "Chronic obstructive pulmonary disease (COPD), severe exacerbation",
        ),
        ("asthma", "Asthma, acute severe attack"),
        ("gout", "Gout flare"),
        ("heart failure", "Acute decompensated heart failure (CHF)"),
        ("influenza", "Influenza (flu)"),
        ("Guillain-Barré syndrome", "Guillain Barre syndrome"),
        ("Guillain-Barré syndrome", "Guillain-Barré syndrome (GBS)"),
        ("deep vein thrombosis", "Left leg vein thrombosis"),
        ("acute prostatitis", "Acute bacterial prostatitis"),
        ("kidney stone", "Final diagnosis: kidney stones"),
        ("diffuse large B-cell lymphoma", "Recurrent DLBCL"),
    ],
)
def test_who_names_a_disease_of_the_clinic_as_people_do_is_right(
    diagnosis: str, answer: str
) -> None:
    case = Case("w", "A man.", Truth(diagnosis))
    assert asyncio.run(ExactJudge().same(answer, case))


@pytest.mark.parametrize(
    ("diagnosis", "answer"),
    [
        ("acute pericarditis", "Chronic pericarditis"),
        ("acute appendicitis", "chronic appendicitis"),
        ("spontaneous pneumothorax", "tension pneumothorax"),
        ("spontaneous pneumothorax", "secondary spontaneous pneumothorax"),
        ("hypothyroidism", "Congenital hypothyroidism"),
        ("gout", "Pseudogout"),
        ("asthma", "Asthma (COPD)"),
        ("asthma", "Asthma and COPD"),
        ("asthma", "Acute asthma?"),
        ("asthma", "not an acute asthma attack"),
        ("myocardial infarction", "Heart failure (MI)"),
        ("myocardial infarction", "Old myocardial infarction"),
        ("ischemic stroke", "Stroke"),  # of two diseases of the clinic
        ("acute otitis media", "Chronic otitis media"),
        ("pulmonary tuberculosis", "Latent tuberculosis"),
        ("measles", "German measles (rubella)"),
        ("influenza", "acute severe"),
    ],
)
def test_another_disease_with_its_name_in_it_is_wrong(diagnosis: str, answer: str) -> None:
    case = Case("w", "A man.", Truth(diagnosis))
    assert not asyncio.run(ExactJudge().same(answer, case))


def test_a_code_that_several_diseases_of_the_clinic_have_names_none_of_them() -> None:
    case = Case("w", "A man.", Truth("lung adenocarcinoma"))  # of a source without codes
    assert len(built_in().find("C34.90")) > 1
    assert not asyncio.run(ExactJudge().same("C34.90", case))


def test_a_long_answer_is_read_in_linear_time() -> None:
    """Every bracket would be compared with all that stands before it."""
    case = Case("w", "A man.", Truth("asthma"))
    for text in ("a (b) " * 200_000, "(" * 500_000, "asthma " * 200_000):
        assert not asyncio.run(ExactJudge().same(text, case))
    assert not asyncio.run(ExactJudge().same(f"asthma{' ' * 300}(x)", case))


def test_no_answer_is_two_diseases_of_the_clinic() -> None:
    """Each name of one disease, with words of course beside it, is right for that one alone."""
    judge = ExactJudge()
    cases = {entry.name: Case("n", "A man.", Truth(entry.name)) for entry in ENTRIES}
    for entry in ENTRIES:
        for name in entry.names:
            meant = {found.name for found in built_in().find(name)}
            for other in ENTRIES[::7]:
                said = asyncio.run(judge.same(f"Severe recurrent {name}", cases[other.name]))
                assert said == (other.name in meant), (name, other.name)


def test_further_names_are_of_one_meaning_and_new() -> None:
    """A name that stands twice would be read as the first; one of the tables' never."""
    catalogue, seen = built_in(), set[str]()
    own = {entry.name for entry in ENTRIES}
    for row in rows("other_names.csv"):
        assert {*parts(row["of"])} <= own, row
        for name in parts(row["names"]):
            assert not catalogue.find(name), name
            assert normalise(name) not in seen, name
            seen.add(normalise(name))
            meant = catalogue.stands_for(name)
            assert meant is not None
            assert {entry.name for entry in meant} == {*parts(row["of"])}
    assert catalogue.stands_for("glioblastoma") is None


def test_candidates_with_a_grade_are_told_apart_by_examinations() -> None:
    asked = Ordered(("GFAP",), ("glioblastoma, WHO grade 4", "melanoma (stage II)"))
    (worth,) = asyncio.run(ExactExaminations().judge(asked)).worths
    assert worth is Worth.DIFFERENTIATES
