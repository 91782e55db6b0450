"""Clinical data sets: AgentClinic, phenopackets, MIMIC-CDM, MIMIC-IV.

Files of the same layouts, written here in our own words.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import stat
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from clinical_layouts import (
    DISEASES,
    HISTORY,
    STAYS,
    SUMMARY,
    admission,
    cdm,
    iv,
    packet,
    picture,
    referring,
    station,
    stored,
    table,
    value,
    written,
)
from hpo_world import patient, patients
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from workup.cases import open_source
from workup.cases.datasets import mimiccdm
from workup.cases.findings import kind_of, parted, sentences
from workup.cases.look import show
from workup.cases.publications import excluded, publications, unpublished
from workup.cases.rows import RowErrors
from workup.cases.tables import rows
from workup.core.case import Case, Fact, Kind, Source
from workup.core.episode import Action
from workup.core.errors import CaseError, UserError
from workup.core.leaks import WITHHELD, Mask, other_names
from workup.environments.consultation import Consultation

DATA = Path(__file__).parents[2] / "shared" / "data"
STATIONS, PACKETS = DATA / "agentclinic_medqa.jsonl", DATA / "phenopackets_dev.jsonl"
LIRICAL = DATA / "lirical" / "phenopackets"
PLAIN = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=60)


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("WORKUP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def cases(source: Source) -> list[Case]:
    return [*source.train, *source.test]


def facts(case: Case) -> tuple[Fact, ...]:
    return (*case.given, *case.truth.facts)


def texts(case: Case) -> list[str]:
    return [
        case.presentation,
        case.question,
        case.truth.record,
        *(part for f in facts(case) for part in (f.item, f.text)),
    ]


def shown(source: Source) -> str:
    console = Console(file=io.StringIO(), width=200)
    show(source, console, n=1)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def ask(case: Case, request: str) -> str:
    return Consultation(()).reply(case, Action("ask", (request,))).messages[0].content


def check_source(source: Source) -> None:
    """What holds for every source.

    Ids are distinct, nothing hidden is given, a case comes twice the same, with a presentation.
    """
    found = cases(source)
    assert len({case.id for case in found}) == len(found) > 0
    for case in found:
        ids = [fact.id for fact in facts(case)]
        assert len(set(ids)) == len(ids)
        assert case.presentation.strip()
        assert case.truth.facts
        assert all(fact.text.strip() and fact.weight is None for fact in facts(case))
    assert source.train[:3] == open_source(source.name).train[:3]


# words --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("He coughs. She sneezes!", ["He coughs.", "She sneezes!"]),
        ("Seen by Dr. Low at St. Ann's. Well.", ["Seen by Dr. Low at St. Ann's.", "Well."]),
        ("C. difficile was found. Stool watery.", ["C. difficile was found.", "Stool watery."]),
        ("pH 7.4 vs. 7.3 before. 2 cm mass", ["pH 7.4 vs. 7.3 before.", "2 cm mass"]),
        ("The pain came\non at night.\n\nNo fever.", ["The pain came on at night.", "No fever."]),
        (
            "Pulse 90. Two things: fever. 2. Cough.",
            ["Pulse 90.", "Two things: fever.", "2. Cough."],
        ),
        ("1. Fever\n2. Cough\n- Rash", ["Fever", "Cough", "Rash"]),
        ("Lungs clear\nAbd: soft, not\ntender", ["Lungs clear", "Abd: soft, not tender"]),
        (" \n--\n. ", []),
        ("-2.8 at the hip\n+ 1 cm\n-.5 now", ["-2.8 at the hip", "1 cm -.5 now"]),
        ("Neck: +JVD\n-fever\n•cough\n* rash", ["Neck: +JVD", "-fever", "cough", "rash"]),
        ("ROS:\n+ cough\n- fever\n(-) rash", ["ROS:", "+ cough", "- fever", "(-) rash"]),
        ("- fever\n- cough", ["fever", "cough"]),
    ],
)
def test_sentences(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


@given(PLAIN)
def test_sentences_lose_no_word(text: str) -> None:
    kept = "".join(sentences(text))
    letters = [c for c in re.sub(r"(?m)^\s*(?:\d{1,2}[.)]\s|[-*•#+]+)+", "", text) if c.isalpha()]
    assert [c for c in kept if c.isalpha()] == letters


def test_long_texts_are_read_in_linear_time() -> None:
    start = time.process_time()
    for piece in (".", ". A", "\n", "\n+", "A", "Acute ", "- ", "(", "0", "7 "):
        hostile = piece * (60_000 // len(piece))
        sentences(hostile)
        Mask(["Acute kidney failure", hostile[:200]])(hostile)
        kind_of(hostile, Kind.HISTORY)
    assert time.process_time() - start < 10  # 1 s here; minutes where a rule goes back and forth


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("Chest X-ray", Kind.IMAGING),
        ("Transthoracic echocardiogram", Kind.IMAGING),
        ("Skin biopsy", Kind.PROCEDURE),
        ("Bone marrow aspirate", Kind.PROCEDURE),
        ("Diagnostic colonoscopy", Kind.PROCEDURE),
        ("Vital signs, temperature", Kind.EXAMINATION),
        ("Serum lipase", Kind.LABORATORY),
        ("Recurrent aspiration pneumonia", Kind.HISTORY),
        ("doctor", Kind.HISTORY),  # no "CT"
        ("microscopy", Kind.HISTORY),  # no endoscopy
    ],
)
def test_kinds(words: str, kind: Kind) -> None:
    assert kind_of(words, Kind.HISTORY) is kind


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("Gout", "Gouty? No: gout.", f"Gouty? No: {WITHHELD}."),
        ("Hirschsprung disease", "as in Hirschsprung’s disease", f"as in {WITHHELD}"),
        ("Crohn's disease", "CROHN DISEASE, crohn-disease", f"{WITHHELD}, {WITHHELD}"),
        ("Acute appendicitis", "perforated appendicitis", f"perforated {WITHHELD}"),
        ("Noonan syndrome 2", "a Noonan syndrome", f"a {WITHHELD}"),
        ("Dystonia 22", "dystonia", "dystonia"),  # one word: a finding
        ("Multiple sclerosis (MS)", "MS after 5 ms", f"{WITHHELD} after 5 ms"),
        (
            "Chronic lymphocytic leukemia",
            "fits CLL, he will call",
            f"fits {WITHHELD}, he will call",
        ),
        (
            "Neonatal respiratory distress syndrome",
            "respiratory distress syndrome (RDS)",
            f"{WITHHELD} ({WITHHELD})",
        ),
        ("Tumor (of the lung)", "a tumor, tumors", f"a {WITHHELD}, {WITHHELD}"),
        ("a+b (c", "a+b (c", WITHHELD),
    ],
)
def test_names_are_withheld(name: str, text: str, expected: str) -> None:
    mask = Mask([name])
    assert mask(text) == expected
    assert mask.found == expected.count(WITHHELD)


def test_a_finding_that_names_the_family_stays() -> None:
    assert Mask(["Optic atrophy 12"], family=False)("Optic atrophy") == "Optic atrophy"
    assert Mask(["Optic atrophy 12"], family=False)("optic atrophy 12") == WITHHELD


@given(
    st.lists(st.text(st.sampled_from("abcXYZ 12()-'"), min_size=1, max_size=12), max_size=3), PLAIN
)
def test_no_name_is_left_and_nothing_else_goes(names: list[str], text: str) -> None:
    mask = Mask(names)
    masked = mask(text)
    assert masked.count(WITHHELD) - text.count(WITHHELD) == mask.found
    assert (masked == text) == (mask.found == 0)
    words = [name.strip() for name in names if re.fullmatch(r"[A-Za-z]{4,}", name.strip())]
    assert not any(
        re.search(rf"(?<!\w){word}(?!\w)", masked.replace(WITHHELD, ""), re.I) for word in words
    )


def test_other_names() -> None:
    assert other_names("Progressive encephalopathy (PML)") == ("Progressive encephalopathy", "PML")
    assert other_names("Depletion syndrome 13 (muscular type)") == ("Depletion syndrome 13",)
    assert other_names("Gout") == ()


def test_what_is_stated_is_given() -> None:
    told = [
        Fact("1", "", "Has a cough."),
        Fact("2", "", "Has a dry cough."),
        Fact("3", "", "Fever present."),
    ]
    shown, hidden = parted(told, "A man with fevers and coughing.")
    assert ([f.id for f in shown], [f.id for f in hidden]) == (["1", "3"], ["2"])
    unread = [Fact("4", "", "患者发热三天。"), Fact("5", "", "He has had it.")]
    assert parted(unread, "患者咳嗽。 A man.") == ((), tuple(unread))


# AgentClinic --------------------------------------------------------------------------------------


def only(path: str) -> Case:
    [case] = open_source(f"agentclinic:{path}#all").test
    return case


def test_a_station_by_hand(tmp_path: Path) -> None:
    case = only(written(tmp_path / "agentclinic_medqa.jsonl", station()))
    assert case.id == "medqa:0"
    assert case.presentation == "Patient: 50-year-old man. Chief complaint: Toe pain."
    assert case.question == "Find out why the toe hurts and swells."
    assert [fact.text for fact in case.given] == ["Swelling."]
    assert [(fact.kind.value, fact.item, fact.text) for fact in case.truth.facts] == [
        ("ask", "Other symptoms", "No fever."),
        ("ask", "History of present illness", "The toe hurts since last night."),
        ("ask", "History of present illness", f"He ate lobster; his brother has {WITHHELD}."),
        ("ask", "Past medical history", "Past medical history: High blood pressure."),
        ("ask", "Current medications", "Current medications: Thiazide."),
        ("ask", "Current medications", "Current medications: Aspirin."),
        ("ask", "Social history, alcohol use", "Social history, alcohol use: Beer daily."),
        ("ask", "Review of systems", "Denies chills."),
        (
            "examine",
            "Physical examination, vital signs, heart rate",
            "Vital signs, heart rate: 80 bpm.",
        ),
        ("examine", "Physical examination, vital signs, afebrile", "Vital signs, afebrile: Yes."),
        (
            "examine",
            "Physical examination, foot examination, inspection",
            "Foot examination, inspection: Red and swollen.",
        ),
        (
            "examine",
            "Physical examination, foot examination, inspection",
            "Foot examination, inspection: Warm.",
        ),
        ("test", "Blood tests, uric acid", "Blood tests, uric acid: 9 mg/dL."),
        ("procedure", "Joint aspiration", f"Joint aspiration: Needles, as in {WITHHELD}."),
        ("image", "X-ray foot", "X-ray foot: Soft tissue swelling."),
    ]
    assert case.truth.diagnosis == "Gout"
    assert ask(case, "uric acid") == "Blood tests, uric acid: 9 mg/dL."


def test_values_keep_their_signs_and_a_lone_sign_is_a_result(tmp_path: Path) -> None:
    results = {
        "Base_Excess": -5,
        "T-score": "-2.8",
        "Reflex": "+1",
        "Culture": "+++",
        "Nitrite": "-",
        "Taken": "1. Apr",
        "Blank": " ",
        "None": None,
        "Smear": "- Blasts.\n- No rods.",
    }
    case = only(written(tmp_path / "a.jsonl", station(Test_Results=results)))
    assert [fact.text for fact in case.truth.facts if fact.kind is Kind.LABORATORY] == [
        "Base excess: -5.",
        "T-score: -2.8.",
        "Reflex: +1.",
        "Culture: +++.",
        "Nitrite: -.",
        "Taken: 1. Apr.",
        "Smear: Blasts.",
        "Smear: No rods.",
    ]


@pytest.mark.parametrize("demographics", [None, " ", {}, ["", None]])
def test_a_patient_of_whom_nothing_is_said_is_counted(tmp_path: Path, demographics: object) -> None:
    row = station()
    row["OSCE_Examination"]["Patient_Actor"]["Demographics"] = demographics
    path = written(tmp_path / "a.jsonl", station(), row)
    source = open_source(f"agentclinic:{path}#all")
    assert source.test[1].presentation == "Chief complaint: Toe pain."
    assert any(note.startswith("1 stations do not say who") for note in source.notes)


def test_a_key_that_stands_twice_in_a_station_is_told(tmp_path: Path) -> None:
    path = Path(written(tmp_path / "a.jsonl", station(), station()))
    text = path.read_text(encoding="utf-8")
    path.write_text(text[::-1].replace('"CRP"'[::-1], '"Uric_Acid"'[::-1], 1)[::-1])
    source = open_source(f"agentclinic:{path}#all")
    assert len(source.test) == 1
    assert "line 2, field 'Uric_Acid': stands twice" in source.notes[-1]


def test_what_became_of_the_rows_is_told(tmp_path: Path) -> None:
    bare = station(Physical_Examination_Findings={}, Test_Results={})
    bare["OSCE_Examination"]["Patient_Actor"] = {
        "Demographics": "x",
        "Symptoms": {"Primary_Symptom": "y"},
    }
    source = open_source(
        "agentclinic:" + written(tmp_path / "a.jsonl", station(), bare, station(), picture())
    )
    assert len(cases(source)) == 3
    notes = "\n".join(source.notes)
    assert f"3 of 3 cases name their diagnosis in the record: 5 places read '{WITHHELD}'" in notes
    assert "1 rows without findings skipped" in notes
    assert "4 findings left out" in notes
    assert "1 questions came with a picture" in notes
    assert not source.restricted


def test_stations_made_from_mimic_are_restricted(tmp_path: Path) -> None:
    source = open_source(
        "agentclinic:" + written(tmp_path / "agentclinic_mimiciv.jsonl", station()) + "#all"
    )
    assert source.restricted
    assert "Restricted:" in shown(source)


def test_a_picture_question_by_hand(tmp_path: Path) -> None:
    case = only(written(tmp_path / "agentclinic_nejm.jsonl", picture()))
    assert case.presentation == "A girl of 9 has a rash."
    assert case.question == "What is the diagnosis?"
    assert case.options == ("Eczema", "Scabies")
    assert [(f.kind.value, f.text) for f in case.truth.facts] == [
        ("ask", "It itches at night."),
        ("procedure", "A skin biopsy shows mites."),
    ]
    assert (
        case.truth.record
        == f"You are a girl of 9 and scratch; nobody said {WITHHELD}.\nBiopsy: mites."
    )


def test_several_right_diagnoses_are_names_of_one(tmp_path: Path) -> None:
    row = station(Correct_Diagnosis=["Gout", "Podagra (PG)"], Test_Results="Crystals: podagra")
    case = only(written(tmp_path / "a.jsonl", row))
    assert (case.truth.diagnosis, case.truth.aliases) == ("Gout", ("Podagra (PG)",))
    assert case.truth.facts[-1].text == f"Test results: Crystals: {WITHHELD}."


@pytest.mark.parametrize(
    ("row", "field", "problem"),
    [
        (station(Correct_Diagnosis=None), "OSCE_Examination.Correct_Diagnosis.0", "valid string"),
        (station(Objective_for_Doctor=3), "OSCE_Examination.Objective_for_Doctor", "valid string"),
        (station(Patient_Actor="x"), "OSCE_Examination.Patient_Actor", "valid dictionary"),
        (picture(answers=[]), None, "exactly one"),
        ({"id": 1}, None, "neither"),
        ([], None, "JSON object"),
    ],
)
def test_a_malformed_station_names_line_and_field(
    tmp_path: Path, row: Any, field: str | None, problem: str
) -> None:
    with pytest.raises(CaseError, match=problem) as caught:
        open_source("agentclinic:" + written(tmp_path / "a.jsonl", station(), row), strict=True)
    assert (caught.value.line, caught.value.field) == (2, field)


def test_a_station_without_symptoms_leaves_the_others_and_their_numbers(tmp_path: Path) -> None:
    bare = station()
    bare["OSCE_Examination"]["Patient_Actor"]["Symptoms"] = {}
    rows = [
        station(),
        bare,
        picture(question="?!"),
        picture(answers=[{"text": " ", "correct": True}]),
        station(),
    ]
    source = open_source("agentclinic:" + written(tmp_path / "agentclinic_a.jsonl", *rows) + "#all")
    assert [case.id for case in source.test] == ["a:0", "a:4"]
    assert source.notes[-1].startswith(
        "3 of 5 rows left out: line 2, field 'OSCE_Examination.Patient_Actor.Symptoms."
    )


def test_folders_and_files_without_findings(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a folder"):
        open_source(f"agentclinic:{tmp_path}")
    (tmp_path / "a.jsonl").touch()
    with pytest.raises(UserError, match="no case with findings"):
        open_source(f"agentclinic:{tmp_path / 'a.jsonl'}")


@pytest.mark.skipif(not STATIONS.is_file(), reason="the released file is not here")
def test_the_released_stations() -> None:
    source = open_source(f"agentclinic:{STATIONS}")
    check_source(source)
    raw = [
        json.loads(line)["OSCE_Examination"]
        for line in STATIONS.read_text(encoding="utf-8").splitlines()
    ]
    found = {int(case.id.split(":")[1]): case for case in cases(source)}
    assert sorted(found) == list(range(len(raw))) == list(range(107))
    leaking = 0
    for number, row in enumerate(raw):
        case, name = found[number], str(row["Correct_Diagnosis"])
        assert case.truth.diagnosis == name
        told = json.dumps(
            {k: v for k, v in row.items() if k != "Correct_Diagnosis"}, ensure_ascii=False
        )
        leaking += any(WITHHELD in text for text in texts(case))
        bare = re.sub(r"\s*\(.*?\)", "", name)
        # an independent reading: the plain string is in the row, and nowhere in the case
        assert (bare.lower() in told.lower()) <= any(WITHHELD in text for text in texts(case))
        assert not any(bare.lower() in text.lower() for text in texts(case))
    assert f"{leaking} of 107 cases" in source.notes[0]
    assert leaking == 19
    kinds = Counter(fact.kind for case in found.values() for fact in case.truth.facts)
    assert set(kinds) == set(Kind)
    assert shown(source).count("hidden:") == 1


# phenopackets -------------------------------------------------------------------------------------


def test_a_packet_by_hand(tmp_path: Path) -> None:
    [case] = open_source(f"phenopackets:{stored(tmp_path / 's', packet())}#all").test
    [opening], [hidden] = case.given, case.truth.facts
    assert {opening.id, hidden.id} == {"HP:1", "HP:3"}
    assert {f.id: (f.item, f.text, f.kind) for f in facts(case)} == {
        "HP:1": ("Stiff skin", "Stiff skin.", Kind.EXAMINATION),
        "HP:3": ("Elevated serum ferritin", "Elevated serum ferritin.", Kind.LABORATORY),
    }
    assert case.presentation == f"Female patient, aged 2 years 5 months. {opening.text}"
    assert (case.truth.diagnosis, case.truth.codes) == ("Stiff man syndrome 1", ("OMIM:184900",))
    assert case.truth.record.splitlines()[-1] == "Looked for and not found: Cataract."


def test_older_packets_name_their_disease_elsewhere(tmp_path: Path) -> None:
    disease = {"term": {"id": "MONDO:1", "label": "Marfan syndrome"}}
    old = packet(
        interpretations=[],
        diseases=[disease | {"excluded": True}, {"term": {"id": "MONDO:2", "label": "Gout"}}],
    )
    old["subject"] = {"sex": "UNKNOWN_SEX", "ageAtCollection": {"age": "P40Y"}}
    old["phenotypicFeatures"][1] = {"type": {"id": "HP:2", "label": "Cataract"}, "negated": True}
    [case] = open_source(f"phenopackets:{stored(tmp_path / 's', old)}#all").test
    assert case.truth.codes == ("MONDO:2",)
    assert "HP:2" not in {fact.id for fact in facts(case)}
    assert case.presentation.startswith("Patient")


@pytest.mark.parametrize(
    ("subject", "words"),
    [
        ({}, "Patient."),
        ({"sex": "MALE"}, "Male patient."),
        (
            {
                "timeAtLastEncounter": {
                    "ontologyClass": {"id": "HP:0003623", "label": "Neonatal onset"}
                }
            },
            "Patient (neonatal onset).",
        ),
        ({"timeAtLastEncounter": {"age": {"iso8601duration": "P1Y"}}}, "Patient, aged 1 year."),
        ({"ageAtCollection": "P3W2D"}, "Patient, aged 3 weeks 2 days."),
        ({"ageAtCollection": "forty"}, "Patient."),
        ({"ageAtCollection": {"age": "P2.5Y"}, "sex": "male"}, "Male patient, aged 2.5 years."),
        ({"ageAtCollection": 40}, "Patient."),
        ({"timeAtLastEncounter": {"timestamp": "2020-01-01T00:00:00Z"}}, "Patient."),
        (
            {"timeAtLastEncounter": {"gestationalAge": {"weeks": 30, "days": 1}}},
            "Patient, aged 30 weeks 1 day of gestation.",
        ),
        (
            {"ageRangeAtCollection": {"start": {"age": "P3Y"}, "end": {"age": "P5Y"}}},
            "Patient, aged 3 years to 5 years.",
        ),
        (
            {
                "timeAtLastEncounter": {
                    "ageRange": {
                        "start": {"iso8601duration": "P1M"},
                        "end": {"iso8601duration": "P2M"},
                    }
                }
            },
            "Patient, aged 1 month to 2 months.",
        ),
    ],
)
def test_who_the_patient_is(tmp_path: Path, subject: dict[str, Any], words: str) -> None:
    source = open_source(f"phenopackets:{stored(tmp_path / 's', packet(subject=subject))}#all")
    assert source.test[0].presentation.startswith(f"{words} ")
    unread = words == "Patient." and bool(subject)
    assert any("1 ages left out" in note for note in source.notes) == unread


def test_a_sex_that_is_none_is_told(tmp_path: Path) -> None:
    rows = [packet("a"), packet("b", subject={"sex": "m"}), packet("c", subject={"sex": "Female"})]
    source = open_source("phenopackets:" + written(tmp_path / "p.jsonl", *rows) + "#all")
    assert [case.id for case in source.test] == ["a", "c"]
    assert source.test[1].presentation.startswith("Female patient")
    assert "line 2, field 'subject.sex': input should be '', 'FEMALE', 'MALE'" in source.notes[-1]


def test_a_term_that_is_present_and_excluded_is_present(tmp_path: Path) -> None:
    term = {"type": {"id": "HP:1", "label": "Stiff skin"}}
    features = [*packet()["phenotypicFeatures"], term | {"excluded": True}]
    row = packet(phenotypicFeatures=features)
    source = open_source("phenopackets:" + written(tmp_path / "p.jsonl", row) + "#all")
    [case] = source.test
    assert {fact.id for fact in facts(case)} == {"HP:1", "HP:3"}
    assert "not found: Stiff skin" not in case.truth.record
    assert excluded(case) == ("HP:2",)
    assert "1 terms are present and excluded in one packet: read as present." in source.notes
    assert any("the 1 terms excluded" in note for note in source.notes)


def test_an_unsolved_interpretation_names_no_diagnosis(tmp_path: Path) -> None:
    wrong = {"disease": {"id": "OMIM:2", "label": "Wrong disease"}}
    row = packet()
    row["interpretations"].insert(0, {"progressStatus": "UNSOLVED", "diagnosis": wrong})
    [case] = open_source("phenopackets:" + written(tmp_path / "p.jsonl", row) + "#all").test
    assert case.truth.codes == ("OMIM:184900",)


def test_what_no_case_can_be_made_of_is_counted(tmp_path: Path) -> None:
    one = packet("b", phenotypicFeatures=[{"type": {"id": "HP:1", "label": "Stiff skin"}}])
    none = packet("c", interpretations=[{"progressStatus": "UNSOLVED"}])
    source = open_source(f"phenopackets:{stored(tmp_path / 's', packet(), one, none)}#all")
    assert [case.id for case in source.test] == ["p1"]
    assert source.notes[:2] == (
        "1 packets without a diagnosis skipped.",
        "1 packets with fewer than 2 findings skipped.",
    )
    with pytest.raises(UserError, match="no phenopacket with a diagnosis"):
        open_source(f"phenopackets:{stored(tmp_path / 't', one, none)}")


def test_a_publication_is_on_one_side(tmp_path: Path) -> None:
    many = [
        packet(f"p{i}", metaData={"externalReferences": [{"id": f"PMID:{i // 3}"}]})
        for i in range(150)
    ]
    source = open_source(f"phenopackets:{stored(tmp_path / 's', *many)}")
    train, test = ({int(case.id[1:]) // 3 for case in side} for side in (source.train, source.test))
    assert not train & test
    assert len(source.train) + len(source.test) == 150
    assert test


@pytest.mark.parametrize(
    ("change", "known"),
    [
        ({"metaData": {"externalReferences": [{"id": "PMID:7"}]}}, {"PMID:7"}),
        ({"metaData": {"externalReferences": [{"id": "pmid: 7"}, {"id": "DOI:8"}]}}, {"PMID:7"}),
        (
            {
                "metaData": {
                    "externalReferences": [
                        {"id": "x", "reference": "https://pubmed.ncbi.nlm.nih.gov/7/"}
                    ]
                }
            },
            {"PMID:7"},
        ),
        ({"id": "PMID:7-Smith-2018-GENE-proband"}, {"PMID:7"}),
        ({"id": "PMID_0007_100"}, {"PMID:7"}),
        ({"phenotypicFeatures": referring("PMID:7", "PMID:9", "PMID:7")}, {"PMID:7", "PMID:9"}),
        (
            {"id": "PMID:1-x", "phenotypicFeatures": referring("PMID:7", "PMID:7")},
            {"PMID:1", "PMID:7"},
        ),
        ({"id": "case of PMID:7", "phenotypicFeatures": referring("OMIM:7", "")}, set()),
        ({"id": "PMIDs"}, set()),
    ],
)
def test_where_a_packet_names_its_publications(
    tmp_path: Path, change: dict[str, Any], known: set[str]
) -> None:
    one = packet(**{"metaData": {}} | change)
    spec = "phenopackets:" + written(tmp_path / "p.jsonl", one) + "#all"
    source = open_source(spec)
    assert publications(source.test[0]) == known
    untold = any("1 of 1 patients name no publication" in note for note in source.notes)
    assert untold == (not known)


def test_a_short_form_names_its_publications_by_number_and_by_its_id(tmp_path: Path) -> None:
    rows = [
        patient("a", ("OMIM:1", "D"), "HP:1", "HP:2", pmid="27672653"),
        patient("PMID_15266616_100", ("OMIM:1", "D"), "HP:1", "HP:2"),
        patient("b", ("OMIM:1", "D"), "HP:1", "HP:2"),
    ]
    source = open_source(patients(tmp_path / "p.jsonl", *rows))
    found = {case.id: publications(case) for case in source.test}
    assert found == {"a": {"PMID:27672653"}, "PMID_15266616_100": {"PMID:15266616"}, "b": set()}
    assert unpublished(source.test) == 1


def test_patients_that_share_one_of_several_publications_are_on_one_side(tmp_path: Path) -> None:
    rows = [
        packet(f"p{n}", metaData={}, phenotypicFeatures=referring(f"PMID:{n}", f"PMID:{n + 1}"))
        for n in range(60)
    ]
    source = open_source("phenopackets:" + written(tmp_path / "p.jsonl", *rows))
    assert not source.train or not source.test


@pytest.mark.skipif(not LIRICAL.is_dir(), reason="the published patients are not here")
def test_published_packets_whose_publication_stands_in_the_id() -> None:
    source = open_source(f"phenopackets:{LIRICAL}")
    assert not unpublished([*source.train, *source.test])
    train, test = (
        {own for case in side for own in publications(case)} for side in (source.train, source.test)
    )
    assert train
    assert test
    assert not train & test


def test_short_and_official_forms_agree(tmp_path: Path) -> None:
    short = {
        "id": "p1",
        "sex": "FEMALE",
        "age": "P2Y5M",
        "present": [["HP:1", "Stiff skin"], ["HP:3", "Elevated serum ferritin"]],
        "absent": [["HP:2", "Cataract"]],
        "diagnosis": ["OMIM:184900", "Stiff man syndrome 1"],
        "pmid": ["PMID:7"],
    }
    [one] = open_source(f"phenopackets:{stored(tmp_path / 's', packet())}#all").test
    [other] = open_source("phenopackets:" + written(tmp_path / "short.jsonl", short) + "#all").test
    [line] = open_source("phenopackets:" + written(tmp_path / "long.jsonl", packet()) + "#all").test
    assert one == other == line


@pytest.mark.parametrize(
    ("change", "field", "problem"),
    [
        (
            {"phenotypicFeatures": [{"type": {"id": "HP:1"}}]},
            "phenotypicFeatures.0.type.label",
            "required",
        ),
        ({"interpretations": {}}, "interpretations", "valid list"),
        ({"id": " "}, "id", "is blank"),
    ],
)
def test_a_malformed_packet_names_the_field(
    tmp_path: Path, change: dict[str, Any], field: str, problem: str
) -> None:
    path = written(tmp_path / "p.jsonl", packet("first"), packet(**change))
    with pytest.raises(CaseError, match=problem) as caught:
        open_source(f"phenopackets:{path}", strict=True)
    assert (caught.value.line, caught.value.field) == (2, field)


def test_files_that_share_a_name_are_told_apart(tmp_path: Path) -> None:
    folder = stored(tmp_path / "s", packet("a"), packet("b"), packet("c"), packet("d"))
    (tmp_path / "s" / "G0" / "phenopackets" / "d.json").rename(
        tmp_path / "s" / "G0" / "phenopackets" / "b.json"
    )
    source = open_source(f"phenopackets:{folder}#all")
    assert sorted(case.id for case in source.test) == [
        "G0/phenopackets/b",
        "G1/phenopackets/b",
        "a",
        "c",
    ]
    assert [case.id for case in source.test[::-1]] == [case.id for case in source.test][::-1]


def test_packets_twice_or_nowhere(tmp_path: Path) -> None:
    with pytest.raises(CaseError, match="line 2, field 'id': stands in an earlier row too"):
        open_source(
            "phenopackets:" + written(tmp_path / "p.jsonl", packet(), packet()), strict=True
        )
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"no \.json file"):
        open_source(f"phenopackets:{tmp_path / 'empty'}")


@pytest.mark.long
@pytest.mark.skipif(not PACKETS.is_file(), reason="the converted file is not here")
def test_the_converted_packets() -> None:
    source = open_source(f"phenopackets:{PACKETS}")
    raw = {
        row["id"]: row for row in map(json.loads, PACKETS.read_text(encoding="utf-8").splitlines())
    }
    rich = {id for id, row in raw.items() if len(row["present"]) > 1}
    assert len(source.train) + len(source.test) == len(rich)
    families: tuple[set[str], set[str]] = (set(), set())
    for side, part in enumerate((source.train, source.test)):
        for case in part[side::7]:
            row = raw[case.id]
            families[side].add(row["pmid"][0])
            assert [*case.truth.codes, case.truth.diagnosis] == row["diagnosis"]
            assert {fact.id for fact in facts(case)} == {term for term, _ in row["present"]}
            assert len(case.given) == 1
            assert case.truth.record.count("Looked for and not found") == len(row["absent"])
    assert not families[0] & families[1]
    assert f"{len(raw) - len(rich):,} packets with fewer than 2 findings" in source.notes[0]


# tables -------------------------------------------------------------------------------------------


def taken(path: Path, *columns: str) -> list[list[str]]:
    """Raises the first row's error."""
    return [
        row.values for _, row in RowErrors(strict=True).read(rows(path, columns), lambda row: row)
    ]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(PLAIN, PLAIN, PLAIN), max_size=8), st.booleans())
def test_tables_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, lines: Any, zipped: bool
) -> None:
    path = tmp_path_factory.mktemp("t") / "t.csv"
    table(path, "a,b,c", lines, zipped=zipped)
    found = taken(path.with_name("t.csv.gz") if zipped else path, "c", "a")
    assert found == [
        [c, a] for a, b, c in csv.reader(io.StringIO(written_csv(lines), newline="")) if a or b or c
    ]


def written_csv(lines: Iterable[Sequence[object]]) -> str:
    out = io.StringIO(newline="")
    csv.writer(out).writerows(lines)
    return out.getvalue()


@pytest.mark.parametrize(
    ("content", "line", "problem"),
    [
        (b"", None, "a header was expected"),
        (b"a,b\n1,2\n3\n", 3, "1 cells under 2"),
        (b"x,b\n1,2\n", 1, "no such column"),
        (b'a,b\n1,"2" 3\n', 2, "not CSV"),
        (b"a,b\n1,\xff\n", 2, "not UTF-8"),
        (b'a,b\n1,"2\n3\n', 2, "not CSV"),
        (b"a,b\n" + b"1" * 1_100_000 + b",2\n", 2, "longer than"),
    ],
)
def test_a_malformed_table_names_its_line(
    tmp_path: Path, content: bytes, line: int | None, problem: str
) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(CaseError, match=problem) as caught:
        taken(tmp_path / "t.csv", "a", "b")
    assert line is None or caught.value.line == line


def test_a_broken_archive(tmp_path: Path) -> None:
    whole = gzip.compress(b"a\n" + b"1\n" * 9_000)
    for broken in (whole[: len(whole) // 2], b"a\n1\n", whole[:-8] + b"12345678"):
        (tmp_path / "t.csv.gz").write_bytes(broken)
        with pytest.raises(CaseError, match="not a whole gzip file"):
            taken(tmp_path / "t.csv.gz", "a")


def test_an_archive_that_is_cut_is_refused_and_not_kept(tmp_path: Path, cache: Path) -> None:
    """What was read of it before the cut makes no index."""
    iv(tmp_path / "iv")
    path = tmp_path / "iv" / "hosp" / "labevents.csv.gz"
    head, first, *_ = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    lines = [first.replace(b"1", str(n).encode(), 1) for n in range(5_000)]
    whole = gzip.compress(head + b"".join(lines))
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CaseError, match="not a whole gzip file; download it again"):
        list(rows(path, ["hadm_id"]))
    for _ in range(2):
        with pytest.raises(CaseError, match="not a whole gzip file; download it again"):
            open_source(f"mimiciv:{tmp_path / 'iv'}#outcome")
    assert not list(cache.rglob("*.sqlite"))


# MIMIC-CDM ----------------------------------------------------------------------------------------


def test_a_history_keeps_what_its_headings_deny() -> None:
    text = (
        "HPI: A man comes with belly pain.\nDenies: fever, chills. He smokes.\n"
        "Family History:\n- diabetes\n- asthma\nNegative for:\n- rash\n\nROS:"
    )
    assert list(mimiccdm._history(text)) == [
        ("History of present illness", "A man comes with belly pain."),
        ("Denies", "Denies: fever, chills."),
        ("History of present illness", "He smokes."),
        ("Family History", "Family History: diabetes"),
        ("Family History", "Family History: asthma"),
        ("Negative for", "Negative for: rash"),
    ]
    assert list(mimiccdm._history("HPI:")) == [], "a heading alone is no history"


def test_an_admission_of_cdm_by_hand(tmp_path: Path) -> None:
    source = open_source(f"mimiccdm:{cdm(tmp_path / 'c')}#all")
    check_source(source)
    case = source.test[3]
    assert (case.id, case.truth.diagnosis, case.truth.codes) == ("2003", "Pancreatitis", ("K85",))
    assert case.presentation == "A ___ year old man comes with belly pain since yesterday."
    assert [(f.kind.value, f.item, f.text) for f in case.truth.facts] == [
        ("ask", "History of present illness", f"He had {WITHHELD} before."),
        ("ask", "Past Medical History", "Past Medical History: Gallstones."),
        ("ask", "Past Medical History", "Past Medical History: Hypertension."),
        ("ask", "Social History", "Social History: Drinks."),
        ("examine", "Physical examination, VS", "VS: 37.5, 90."),
        ("examine", "Physical examination, Abd", "Abd: Soft."),
        ("examine", "Physical examination, Abd", f"Tender on the right, as in {WITHHELD}."),
        ("test", "Lipase (blood)", "Lipase (blood): 900 IU/L (reference 0 to 60.0)."),
        ("test", "Lactate", "Lactate: 5."),
        ("test", "Blood culture", "Blood culture: NO GROWTH."),
        ("image", "CT Abdomen", "CT Abdomen: Fat stranding."),
        ("image", "CT Abdomen", f"CT Abdomen: Consistent with acute {WITHHELD}."),
    ]
    assert source.restricted
    assert source.diagnoses == ("Appendicitis", "Cholecystitis", "Diverticulitis", "Pancreatitis")
    assert "removal" not in json.dumps([texts(c) for c in cases(source)]).lower()


def test_no_text_of_cdm_names_a_disease(tmp_path: Path) -> None:
    source = open_source(f"mimiccdm:{cdm(tmp_path / 'c')}")
    assert not [
        t
        for case in cases(source)
        for t in texts(case)
        if any(name in t.lower() for name in DISEASES)
    ]
    assert (
        "8 of 8 admissions name one of the four diseases in history, examination or "
        f"reports: 24 places read '{WITHHELD}'"
    ) in (source.notes[1])
    assert "Restricted:" in shown(source)


def test_some_diseases_only(tmp_path: Path) -> None:
    cdm(tmp_path / "c", 40)
    spec = f"mimiccdm:{tmp_path / 'c'}#cholecystitis,diverticulitis,pancreatitis"
    source = open_source(spec)
    assert Counter(case.category for case in cases(source)) == dict.fromkeys(DISEASES[1:], 10)
    assert source.diagnoses == ("Cholecystitis", "Diverticulitis", "Pancreatitis")
    labels = getattr(source.train, "labels")  # noqa: B009
    assert [source.diagnoses[label] for label in labels] == [
        case.truth.diagnosis for case in source.train
    ]
    assert len(open_source(f"{spec},all").test) == 30
    with pytest.raises(UserError, match="Did you mean 'pancreatitis'"):
        open_source(f"mimiccdm:{tmp_path / 'c'}#pancreatits")


def test_a_patient_of_cdm_is_on_one_side(tmp_path: Path) -> None:
    source = open_source(f"mimiccdm:{cdm(tmp_path / 'c', 80)}")
    train, test = (
        {(int(case.id) - 2_000) // 2 for case in side} for side in (source.train, source.test)
    )
    assert not train & test
    assert len(train) + len(test) == 40
    assert test


def test_rows_that_no_case_comes_from_are_counted(tmp_path: Path) -> None:
    folder = cdm(
        tmp_path / "c",
        4,
        history_of_present_illness=[
            *((2_000 + i, HISTORY) for i in range(3)),
            (2_003, " "),
            (77, HISTORY),
        ],
        laboratory_tests=[(2_000, 503, "1", "", ""), (99, 501, "1", "", "")],
        radiology_reports=[(2_000, "unknown", "CT", "Chest", "", "Clear.")],
    )
    notes = "\n".join(open_source(f"mimiccdm:{folder}#all").notes)
    for told in (
        "1 admissions skipped: pathology_ids.json",
        "1 admissions skipped: no history",
        "1 rows of other admissions",
        "1 results skipped: lab_test_mapping.csv does not name",
        "3 admissions have no report that names their patient",
    ):
        assert told in notes


def test_what_the_release_lacks_is_named(tmp_path: Path) -> None:
    for name in ("microbiology.csv", "pathology_ids.json", "history_of_present_illness.csv"):
        (cdm(tmp_path / "c") / name).unlink()
        with pytest.raises(UserError, match=f"lacks {name} .*, a file of MIMIC-IV-Ext"):
            open_source(f"mimiccdm:{tmp_path / 'c'}")
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "appendicitis_hadm_info_first_diag.pkl").write_bytes(
        b"cos\nsystem\n(S'touch pwned'\ntR."
    )
    with pytest.raises(UserError, match="pickles, which are never opened"):
        open_source(f"mimiccdm:{tmp_path / 'p'}")
    with pytest.raises(UserError, match="is a file"):
        open_source(f"mimiccdm:{tmp_path / 'c' / 'physical_examination.csv'}")


@pytest.mark.parametrize(
    ("change", "file", "line", "field"),
    [
        ({"physical_examination": [("x", "soft")]}, "physical_examination.csv", 2, "hadm_id"),
        (
            {"history_of_present_illness": [(2_000, HISTORY), (2_000, HISTORY)]},
            "history_of_present_illness.csv",
            None,
            "hadm_id",
        ),
        ({"laboratory_tests": [("9" * 30, 501, "", "", "")]}, "laboratory_tests.csv", 2, "hadm_id"),
        ({"groups": {"appendicitis": ["x"]}}, "pathology_ids.json", None, "appendicitis"),
        (
            {"groups": {"appendicitis": [1], "pancreatitis": [1]}},
            "pathology_ids.json",
            None,
            "pancreatitis",
        ),
        ({"groups": {"gout": [1]}}, "pathology_ids.json", None, "gout"),
    ],
)
def test_a_malformed_file_of_cdm(
    tmp_path: Path, change: dict[str, Any], file: str, line: int | None, field: str
) -> None:
    with pytest.raises(CaseError) as caught:
        open_source(f"mimiccdm:{cdm(tmp_path / 'c', **change)}", strict=True)
    assert (Path(caught.value.file).name, caught.value.field) == (file, field)
    assert line is None or caught.value.line == line
    assert not list((tmp_path / "cache" / "tables").iterdir())  # nothing half done is left


def test_the_index_is_private_and_made_once(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = cdm(tmp_path / "c")
    first = open_source(f"mimiccdm:{folder}")
    [index] = (cache / "tables").iterdir()
    assert stat.S_IMODE(index.stat().st_mode) == 0o600
    assert stat.S_IMODE(index.parent.stat().st_mode) == 0o700
    made = index.stat().st_mtime_ns
    assert cases(open_source(f"mimiccdm:{folder}#appendicitis"))[0] in cases(first)
    assert index.stat().st_mtime_ns == made
    cdm(folder, 12)
    assert len(cases(open_source(f"mimiccdm:{folder}"))) == 12
    assert list((cache / "tables").iterdir()) == [index]
    index.write_bytes(b"damaged")
    assert len(cases(open_source(f"mimiccdm:{folder}"))) == 12
    (tmp_path / "file").touch()
    monkeypatch.setenv("WORKUP_CACHE", str(tmp_path / "file" / "in"))
    with pytest.raises(UserError, match="set WORKUP_CACHE"):
        open_source(f"mimiccdm:{folder}")


# MIMIC-IV -----------------------------------------------------------------------------------------


def by_id(source: Source) -> dict[str, Case]:
    return {case.id: case for case in cases(source)}


def test_an_outcome_by_hand(tmp_path: Path) -> None:
    source = open_source(f"mimiciv:{iv(tmp_path / 'm')}#outcome")
    check_source(source)
    found = by_id(source)
    assert {id: case.truth.diagnosis for id, case in found.items()} == {
        "103": "Dies in hospital",
        "201": "Survives to discharge",
        "302": "Survives to discharge",
    }
    case = found["103"]
    assert case.options == source.diagnoses == ("Dies in hospital", "Survives to discharge")
    lines = case.presentation.splitlines()
    assert lines[0] == "A woman aged 61. Admission: EW EMER. Earlier admissions: 2."
    assert lines[2:4] == [
        "Chief complaint: Short of breath",
        "History of present illness: The patient could not climb stairs for a week.",
    ]
    labs = {f.text for f in facts(case) if f.kind is Kind.LABORATORY}
    assert labs == {
        "Creatinine (blood): 1.0 mg/dL (reference 0.5 to 1.1).",
        "Sodium (blood): 1.2 mg/dL (reference 0.5 to 1.1).",
    }
    assert lines[1] in labs
    assert [f.text for f in case.truth.facts if f.item.startswith("Earlier")] == [
        "Earlier admission 1, 151 days before: Heart failure.",
        "Earlier admission 1, 151 days before: High blood pressure.",
    ]
    assert found["201"].presentation.startswith("A man over 89.")


def test_nothing_that_is_written_later_tells_the_outcome(tmp_path: Path) -> None:
    source = open_source(f"mimiciv:{iv(tmp_path / 'm')}#outcome")
    told = "\n".join(text for case in cases(source) for text in texts(case)).lower()
    assert not re.search(r"expired|pronounced|third day|lungs: dry|9\.0", told)
    assert "her father died young" in told
    assert "lungs: wet" in told
    assert "2 sentences of summaries left out: they tell a death" in "\n".join(source.notes)


@pytest.mark.parametrize(
    ("task", "limit"), [("readmission", 30.0), ("readmission-any", float("inf"))]
)
def test_readmissions_by_hand(tmp_path: Path, task: str, limit: float) -> None:
    source = open_source(f"mimiciv:{iv(tmp_path / 'm')}#{task}")
    found = by_id(source)
    expected = {
        id: again
        for id, again in expected_readmissions(STAYS, limit).items()
        if id in {"101", "201", "302"}
    }
    assert {
        id: case.truth.diagnosis == source.diagnoses[0] for id, case in found.items()
    } == expected
    assert expected["101"]
    case = found["101"]
    assert "Length of stay: 4 days." in case.presentation
    told = "\n".join(f.text for f in facts(case))
    assert "She almost expired at home." in told  # nothing is left out here
    assert "She was pronounced dead on the third day." in told
    assert "Diagnosis of this admission: Heart failure." in told
    notes = "\n".join(source.notes)
    for line in (
        "1 admissions left out: the patient died",
        "1 admissions left out: the next one begins",
        "2 admissions left out: neither",
    ):
        assert line in notes
    assert "1 laboratory values belong to no admission" in notes
    assert "1 summaries belong to no admission" in notes


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 6), st.integers(0, 300), st.integers(0, 20), st.booleans()),
        min_size=1,
        max_size=12,
    )
)
def test_readmissions_of_random_patients(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[int, int, int, bool]]
) -> None:
    folder = tmp_path_factory.mktemp("m")
    day = date(2150, 1, 1)
    stays = [
        admission(
            subject,
            500 + i,
            str(day + timedelta(start)),
            str(day + timedelta(start + length)),
            int(died),
        )
        for i, (subject, start, length, died) in enumerate(drawn)
    ]
    notes = [("n", stay[0], stay[1], "DS", 1, "", "", SUMMARY) for stay in stays]
    patients = [(subject, "F", 50, 2150, "", "") for subject in range(1, 7)]
    iv(
        folder,
        zipped=False,
        hosp__admissions=stays,
        hosp__patients=patients,
        note__discharge=notes,
        hosp__labevents=[],
    )
    expected = expected_readmissions(stays)
    if not expected:
        with pytest.raises(UserError, match="no admission"):
            open_source(f"mimiciv:{folder}#readmission")
        return
    source = open_source(f"mimiciv:{folder}#readmission")
    assert {
        case.id: case.truth.diagnosis.startswith("Readmitted") for case in cases(source)
    } == expected
    assert f"{sum(expected.values())} of {len(expected)}" in source.notes[1]


def expected_readmissions(stays: Sequence[tuple[Any, ...]], limit: float = 30) -> dict[str, bool]:
    """By sorting each patient's admissions.

    Deaths and stays that the next one overlaps are left out.
    """
    answers = {}
    for stay in stays:
        later = sorted(
            (other[2], other[1], other)
            for other in stays
            if other[0] == stay[0] and (other[2], other[1]) > (stay[2], stay[1])
        )
        following = later[0][2] if later else None
        if stay[-1] or (following is not None and following[2] < stay[3]):
            continue
        answers[str(stay[1])] = following is not None and days(stay[3], following[2]) <= limit
    return answers


def days(start: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds() / 86_400


def test_half_of_the_values_and_the_beginning_are_shown(tmp_path: Path) -> None:
    values = [value(201, item, "2160-03-01 13:00:00") for item in range(1, 41)]
    note = "Chief Complaint:\nCough\n\nHistory of Present Illness:\n" + " ".join(
        f"Sentence number {i} is told here." for i in range(60)
    )
    tests = [(item, f"Test {item}", "Blood", "") for item in range(1, 41)]
    folder = iv(
        tmp_path / "m",
        hosp__labevents=values,
        hosp__d_labitems=tests,
        note__discharge=[("n", 2, 201, "DS", 1, "", "", note)],
    )
    spec = f"mimiciv:{folder}#outcome"
    case, other = (by_id(open_source(spec, split=split))["201"] for split in (0, 1))
    shown_values = [f for f in case.given if f.kind is Kind.LABORATORY]
    assert len(shown_values) == 20
    assert len([f for f in case.truth.facts if f.kind is Kind.LABORATORY]) == 20
    assert shown_values != [f for f in other.given if f.kind is Kind.LABORATORY]
    told = [f.text for f in case.given if f.kind is Kind.HISTORY]
    assert 400 < sum(len(text) + 1 for text in told) <= 500
    assert all(text in case.presentation for f in case.given for text in [f.text])
    assert not any(f.text in case.presentation for f in case.truth.facts)
    assert len(facts(case)) == 40 + 61


def test_without_summaries(tmp_path: Path) -> None:
    source = open_source(f"mimiciv:{iv(tmp_path / 'm', noted=False, zipped=False)}#outcome")
    assert set(by_id(source)) == {"103", "201", "302"}
    assert "no folder note/" in "\n".join(source.notes)
    assert source.restricted
    assert "Restricted:" in shown(source)


def test_patients_of_mimic_are_on_one_side(tmp_path: Path) -> None:
    stays = [
        admission(i // 3, 1_000 + i, f"2150-0{i % 3 + 1}-01", f"2150-0{i % 3 + 1}-03")
        for i in range(240)
    ]
    patients = [(i, "M", 40, 2150, "", "") for i in range(80)]
    notes = [("n", 1, stay[1], "DS", 1, "", "", SUMMARY) for stay in stays]
    folder = iv(
        tmp_path / "m", hosp__admissions=stays, hosp__patients=patients, note__discharge=notes
    )
    source = open_source(f"mimiciv:{folder}#readmission")
    train, test = (
        {(int(case.id) - 1_000) // 3 for case in side} for side in (source.train, source.test)
    )
    assert train | test == set(range(80))
    assert not train & test
    assert test
    labels = getattr(source.train, "labels")  # noqa: B009
    assert [source.diagnoses[label] for label in labels] == [
        case.truth.diagnosis for case in source.train
    ]
    assert len(open_source(f"mimiciv:{folder}#readmission,all").test) == 240


@pytest.mark.parametrize("spec", ["{}", "{}#all", "{}#outcome,readmission"])
def test_one_task_has_to_be_named(tmp_path: Path, spec: str) -> None:
    with pytest.raises(UserError, match="one task of outcome, readmission, readmission-any"):
        open_source("mimiciv:" + spec.format(iv(tmp_path / "m")))


def test_what_mimic_lacks_is_named(tmp_path: Path) -> None:
    for name, release in (
        ("hosp/labevents.csv", "MIMIC-IV"),
        ("note/discharge.csv", "MIMIC-IV-Note"),
    ):
        folder = iv(tmp_path / name.replace("/", ""))
        (folder / f"{name}.gz").unlink()
        with pytest.raises(
            UserError, match=rf"lacks {name} \(or {name}\.gz\), a file of {release}\."
        ):
            open_source(f"mimiciv:{folder}#outcome")
    with pytest.raises(UserError, match="Did you mean 'outcome'"):
        open_source(f"mimiciv:{tmp_path}#outcom")


@pytest.mark.parametrize(
    ("change", "file", "field"),
    [
        ({"hosp__patients": [(1, "X", 60, 2150, "", "")]}, "patients.csv.gz", "gender"),
        ({"hosp__patients": [(1, "F", "", 2150, "", "")]}, "patients.csv.gz", "anchor_age"),
        ({"hosp__patients": [(1, "F", 60, 2150, "", "")] * 2}, "patients.csv.gz", "subject_id"),
        ({"hosp__patients": []}, "admissions.csv.gz", "subject_id"),
        (
            {"hosp__admissions": [admission(1, 5, "2150-02-30", "2150-03-01")]},
            "admissions.csv.gz",
            "admittime",
        ),
        (
            {"hosp__admissions": [admission(1, 5, "2150-02-01", "soon")]},
            "admissions.csv.gz",
            "dischtime",
        ),
        (
            {"hosp__admissions": [admission(1, 5, "2150-02-01", "2150-03-01", 2)]},
            "admissions.csv.gz",
            "hospital_expire_flag",
        ),
        ({"hosp__admissions": [STAYS[0], STAYS[0]]}, "admissions.csv.gz", "hadm_id"),
        ({"hosp__labevents": [value(101, 7, "yesterday")]}, "labevents.csv.gz", "charttime"),
        (
            {"hosp__labevents": [value("1e3", 7, "2150-06-01 13:00:00")]},
            "labevents.csv.gz",
            "hadm_id",
        ),
        (
            {"hosp__diagnoses_icd": [(1, 101, "first", "I10", 10)]},
            "diagnoses_icd.csv.gz",
            "seq_num",
        ),
    ],
)
def test_a_malformed_file_of_mimic(
    tmp_path: Path, change: dict[str, Any], file: str, field: str
) -> None:
    with pytest.raises(CaseError) as caught:
        open_source(f"mimiciv:{iv(tmp_path / 'm', **change)}#outcome", strict=True)
    assert (Path(caught.value.file).name, caught.value.field) == (file, field)
    assert "1e3" not in str(caught.value)


MEASURE = """
import resource, sys
from workup.cases import open_source
source = open_source(sys.argv[1])
sum(len(source.train[i].truth.facts) for i in range(20))
print(len(source.train) + len(source.test), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // \
1024)
"""


def measured(spec: str) -> tuple[int, int]:
    """Cases, and the most memory (MB) that a process of their own needed to open and read them."""
    words = subprocess.run(
        [sys.executable, "-c", MEASURE, spec], capture_output=True, text=True, check=True
    ).stdout.split()
    return int(words[0]), int(words[1])


def many(folder: Path, count: int) -> Path:
    stays = [admission(i, i, "2150-01-01", "2150-01-03") for i in range(1, count + 1)]
    patients = [(i, "M", 40, 2150, "", "") for i in range(1, count + 1)]

    def values() -> Iterator[Sequence[object]]:
        for i in range(1, count + 1):
            yield from (value(i, item, "2150-01-01 13:00:00", "x" * 100) for item in range(20))

    notes = (("n", 1, i, "DS", 1, "", "", SUMMARY + "word " * 1_000) for i in range(1, count + 1))
    return iv(
        folder,
        hosp__admissions=stays,
        hosp__patients=patients,
        hosp__labevents=values(),
        note__discharge=notes,
    )


@pytest.mark.long
def test_memory_does_not_grow_with_the_files(tmp_path: Path) -> None:
    few, little = measured(f"mimiciv:{many(tmp_path / 'few', 50)}#outcome")
    lots, much = measured(f"mimiciv:{many(tmp_path / 'lots', 2_000)}#outcome")
    assert (few, lots) == (50, 2_000)
    assert much - little < 10  # MB; the texts alone are 15


def test_phenobrain_keeps_a_disease_on_one_side_whatever_code_is_first(tmp_path: Path) -> None:
    """Each disease has three codes; its four patients name two of them, in any order."""
    pairs = [(0, 1), (1, 2), (2, 0), (1, 0)]
    diseases = [[[f"OMIM:{n}{a}", f"OMIM:{n}{b}"] for a, b in pairs] for n in range(100, 140)]
    patients = [[["HP:1", "HP:2"], codes] for disease in diseases for codes in disease]
    (tmp_path / "phenobrain.json").write_text(json.dumps(patients))
    source = open_source(f"phenobrain:{tmp_path / 'phenobrain.json'}")
    trained, tested = (
        Counter(case.truth.diagnosis[:-1] for case in side) for side in (source.train, source.test)
    )
    assert trained
    assert tested
    assert set((trained + tested).values()) == {4}
    assert not set(trained) & set(tested)


def test_terms_of_phenobrain_lose_blanks(tmp_path: Path) -> None:
    patients = [
        [["HP:1 ", "HP:1", "HP:2", ""], [" ", "OMIM:1 "]],
        [["HP:1", " "], ["OMIM:1"]],
        [["HP:1", "HP:2"], [""]],
    ]
    (tmp_path / "phenobrain.json").write_text(json.dumps(patients))
    source = open_source(f"phenobrain:{tmp_path / 'phenobrain.json'}#all")
    [case] = source.test
    assert ({fact.id for fact in facts(case)}, case.truth.codes) == ({"HP:1", "HP:2"}, ("OMIM:1",))
    assert source.notes[:3] == (
        "2 patients with fewer than 2 findings skipped.",
        "4 terms or codes left out: they are blank.",
        "2 terms or codes had blanks at their ends, which are dropped.",
    )
