"""DDXPlus: rows, counted tables and simulated patients.

They are compared with hand-written cases, brute force, and the tables that patients are made from.
"""

from __future__ import annotations

import ast
import csv
import json
import random
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Call
from ddxplus_world import EVIDENCES, FIELDS, REAL, conditions, patient, write_csv, write_release
from hypothesis import given, settings
from hypothesis import strategies as st

from workup.cases import open_source
from workup.cases.balance import balanced, uniform
from workup.cases.datasets.ddxplus import case_of, names, wording
from workup.cases.datasets.ddxplus.names import everyday
from workup.cases.datasets.ddxplus.patients import Rows
from workup.cases.datasets.ddxplus.rates import Tally
from workup.cases.datasets.ddxplus.release import AGE_GROUPS, Release, age_group, read_release
from workup.cases.datasets.ddxplus.simulator import LISTED, UNLISTED, DdxplusSimulator
from workup.cases.knowledge import grade
from workup.core.case import Case, Source
from workup.core.errors import CaseError, UserError
from workup.core.leaks import WITHHELD
from workup.environments.base.lexical import stems
from workup.environments.base.matcher import Matcher
from workup.environments.consultation import Consultation

real = pytest.mark.skipif(not REAL.is_dir(), reason="the released files are not here")

ANSWERS = [
    "E_1",
    "E_2",
    "E_3_@_V_1",
    "E_3_@_V_2",
    "E_3_@_V_3",
    "E_4_@_0",
    "E_4_@_5",
    "E_5_@_V_4",
    "E_5_@_V_5",
    "E_6_@_V_8",
]
codes = st.lists(st.sampled_from([*ANSWERS, "E_7", "E_8", "E_9"]), unique=True)
rows = st.builds(
    lambda name, more, age, sex: patient(
        name, ["E_1", *(c for c in more if c != "E_1")], "E_1", age, sex
    ),
    st.sampled_from(list(conditions())),
    codes,
    st.integers(0, 109),
    st.sampled_from("FM"),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_release(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    folder = tmp_path_factory.mktemp("release")
    write_release(folder)
    return read_release(folder)


@pytest.fixture(scope="module")
def released() -> Source:
    return opened(REAL)


def many(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Random rows whose findings depend on the condition."""
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        name = rng.choice(list(conditions()))
        likely = set(conditions()[name]["symptoms"]) | set(conditions()[name]["antecedents"])
        chosen = [
            c
            for c in [*ANSWERS[1:], "E_7", "E_8", "E_9"]
            if rng.random() < (0.6 if c.split("_@_")[0] in likely else 0.1)
        ]
        made.append(patient(name, ["E_1", *chosen], "E_1", rng.randrange(100), rng.choice("FM")))
    return made


def opened(rest: object, split: int = 0, *, strict: bool = False) -> Source:
    return open_source(f"ddxplus:{rest}", split=split, strict=strict)


def case(release: Release, row: dict[str, Any]) -> Case:
    tally = Tally(release)
    patient = Rows(Path("p.csv"), release, ()).patient(json.dumps(row))
    return case_of(patient, "x", release, tally.rates().criticality())


# words --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "positive", "negative"),
    [
        ("Do you have a cough?", "I have a cough.", "I do not have a cough."),
        (
            "Do you have any lesions on your skin?",
            "I have lesions on my skin.",
            "I do not have any lesions on my skin.",
        ),
        ("Have you ever had a stroke?", "I have had a stroke.", "I have never had a stroke."),
        ("Are you as tall as you were?", "I am as tall as I was.", "I am not as tall as I was."),
        (
            "Do you choke while you’re asleep?",
            "I choke while I'm asleep.",
            "I do not choke while I'm asleep.",
        ),
        ("Is your skin pale?", "Is your skin pale? Yes.", "Is your skin pale? No."),
        (
            "Do you cough or are you hoarse?",
            "Do you cough or are you hoarse? Yes.",
            "Do you cough or are you hoarse? No.",
        ),
        (
            "Do you currently, or did you ever, faint?",
            *(f"Do you currently, or did you ever, faint? {a}." for a in ("Yes", "No")),
        ),
    ],
)
def test_a_question_becomes_an_answer(question: str, positive: str, negative: str) -> None:
    assert (wording.yes(question), wording.no(question)) == (positive, negative)


def test_values_are_named_in_words() -> None:
    assert wording.value("Where is the pain?", "chest(R)") == "Where is the pain? Chest (right)."
    assert wording.value("Have you traveled?", "Europe") == "I have traveled: Europe."
    assert wording.value("Characterize your pain:", "sharp") == "Characterize your pain: sharp."
    assert wording.nothing("Have you traveled?", "N") == "I have not traveled."
    assert wording.nothing("What color is the rash?", "NA") == "What color is the rash? None."


# the release --------------------------------------------------------------------------------------


def test_items_keep_the_questions_apart_and_know_their_parents(release: Release) -> None:
    called = [item.name for item in release.items]
    assert len(set(called)) == len(called) == len(EVIDENCES)
    assert {"Do you smoke? (E_7)", "Do you smoke? (E_8)"} <= set(called)
    parents = {code: evidence.item.parent for code, evidence in release.evidences.items()}
    assert parents["E_3"] == parents["E_4"] == "Do you have pain somewhere?"
    assert {parents[code] for code in ("E_1", "E_2", "E_5", "E_6", "E_7", "E_8", "E_9")} == {None}


def test_conditions_have_names_codes_and_aliases(release: Release) -> None:
    assert release.diagnoses == ("Flu", "Croup", "Pneumonia")
    assert release.conditions[2].codes == ("J17", "J18")
    assert release.conditions[2].aliases == ("Pneumonie",)
    assert release.names["Pneumonie"] == release.names["Pneumonia"] == 2


def test_scales_have_four_buckets(release: Release) -> None:
    answers = release.evidences["E_4"].answers
    found = [answers[str(value)] for value in range(11)]
    names = ["none" if fact is None else fact.id.rpartition("_@_")[2] for fact in found]
    assert names == ["none"] + ["low"] * 3 + ["moderate"] * 3 + ["high"] * 4
    assert release.evidences["E_4"].item.normal == "How intense is the pain? None (0 of 10)."


@given(st.integers(0, 130))
def test_age_groups(age: int) -> None:
    bounds = [(0, 0), (1, 4), (5, 14), (15, 29), (30, 44), (45, 59), (60, 74), (75, 130)]
    assert bounds[age_group(age)][0] <= age <= bounds[age_group(age)][1]
    assert [first for first, _ in AGE_GROUPS] == [low for low, _ in bounds]


@pytest.mark.parametrize(
    ("file", "change", "complaint"),
    [
        ("release_evidences.json", lambda d: d["E_1"].pop("question_en"), "E_1.question_en"),
        (
            "release_evidences.json",
            lambda d: d["E_3"].update({"default_value": "V_9"}),
            "no possible value",
        ),
        ("release_evidences.json", lambda d: d["E_1"].update(data_type="X"), "E_1.data_type"),
        (
            "release_evidences.json",
            lambda d: d["E_2"].update(code_question="E_1"),
            "sub-question of a sub-question",
        ),
        ("release_conditions.json", lambda d: d["Flu"]["symptoms"].update(E_77={}), "E_77"),
        (
            "release_conditions.json",
            lambda d: d["Flu"].update({"cond-name-eng": "Croup"}),
            "two conditions",
        ),
        ("release_conditions.json", lambda d: d.update(Flu=[]), "field 'Flu'"),
    ],
)
def test_a_broken_release_says_where(folder: Path, file: str, change: Any, complaint: str) -> None:
    data = json.loads((folder / file).read_text())
    change(data)
    (folder / file).write_text(json.dumps(data))
    with pytest.raises(CaseError, match=complaint) as caught:
        read_release(folder)
    assert caught.value.file == str(folder / file)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, '{"a": 1' + "0" * 10_000 + "}"])
def test_a_release_that_is_no_object(folder: Path, text: str) -> None:
    (folder / "release_evidences.json").write_text(text)
    with pytest.raises(CaseError):
        read_release(folder)


def test_a_missing_release_is_named(tmp_path: Path) -> None:
    write_csv(tmp_path / "p.csv", [patient()])
    with pytest.raises(CaseError, match=r"release_evidences\.json: not found"):
        opened(str(tmp_path / "p.csv"), 0)


# everyday questions -------------------------------------------------------------------------------

MEANT = {
    "fievre": "Do you have a fever?|Have you had a temperature?",
    "douleurxx": "Are you in any pain?",
    "douleurxx_endroitducorps": "Do you have a headache?|Any belly pain?|Where does it hurt?",
    "douleurxx_irrad": "Does the pain go anywhere else?|Does the pain spread to your arm?",
    "douleurxx_carac": "What does the pain feel like?|Is the pain sharp or dull?",
    "douleurxx_soudain": "Did the pain come on suddenly?",
    "douleurxx_intens": "How bad is the pain on a scale from 0 to 10?",
    "lesions_peau": "Do you have a rash?",
    "lesions_peau_endroitducorps": "Where is the rash?",
    "lesions_peau_prurit": "Is the rash itchy?",
    "oedeme": "Do you have any swelling?",
    "oedeme_endroitducorps": "Where is the swelling?|Are your ankles swollen?",
    "ballon_abdo": "Do you have swelling in your belly?",
    "pdc": "Have you fainted?",
    "faible": "Do you feel like passing out?",
    "palpit": "Do you have palpitations?",
    "pls_irreg": "Is your heartbeat irregular?",
    "vo_sg": "Have you vomited blood?",
    "vo_violent": "Have you been vomiting?",
    "melena": "Any black or tarry stools?",
    "rectorragie": "Have you seen any blood in your stool?",
    "selles_pale": "Are your stools pale?",
    "diarrhee": "Do you have diarrhea?",
    "toux": "Have you been coughing?",
    "expecto": "Do you have a cough that produces sputum?|Is your cough productive?|Any phlegm?",
    "toux_Aboy": "Is it a barking cough?",
    "crach_sg": "Have you coughed up any blood?",
    "dyspn": "Are you short of breath?",
    "dysp_effort": "Do you get short of breath when you climb stairs?",
    "dyspn_noct": "Do you wake up at night gasping for air?",
    "ww_dd": "Are you short of breath when you lie flat?",
    "ww_valsalva": "Does coughing make the pain worse?",
    "angor_repos": "Do you have chest pain at rest?",
    "i10": "Do you have high blood pressure?|Do you take medication for high blood pressure?",
    "hta": "Are you consulting because you have high blood pressure?",
    "i25.1": "Have you ever had a heart attack?",
    "f17.210": "Do you smoke?",
    "smokingpast": "Did you use to smoke?",
    "z77.22": "Does anyone smoke in your home?",
    "f10.129": "How much alcohol do you drink?",
    "HIV": "Do you have HIV?",
    "preg1": "Could you be pregnant?",
    "e10_e11": "Are you diabetic?",
    "j45": "Do you have a history of asthma?",
    "fam_j45": "Does asthma run in your family?",
    "momasthma": "Does your mother have asthma?",
    "hosptisasm": "Have you been hospitalized for asthma?",
    "histfammigraine": "Do you get migraines?|Does anyone in your family have migraines?",
    "atcd_anem": "Have you ever been anemic?",
    "atcd_fam_anem": "Does your mother have anemia?",
    "z82.49": "Has your father had a heart attack?",
    "atcdpsyfam": "Is there any mental illness in your family?",
    "contact": "Has anyone around you been sick?",
    "trav1": "Have you travelled abroad recently?",
    "surg1": "Have you had any recent surgery?",
    "i80": "Have you ever had a blood clot in your leg?",
    "drogues_IV": "Do you use IV drugs?",
    "cafe": "Do you drink coffee?",
    "tagri": "Do you work on a farm?",
    "menarche_hat": "How old were you when you got your first period?",
    "k21": "Do you have acid reflux?",
    "crohn_cu": "Have you ever been diagnosed with ulcerative colitis?",
    "sahs": "Do you have sleep apnea?",
    "j44_j42": "Do you have COPD?",
}
SEVERAL = {
    "Any fatigue?": "fatig_mod fatig_ext rds_deg",
    "Have you lost your appetite?": "perte_appet boire_ped rds_anorexie",
    "Do you feel dizzy?": "faible etourdissement",
    "Do you have any heart problems?": "i25.1 i50 malf_cardiaque ap_valve",
    "Do you have kidney disease?": "irc synd_nephro",
    "Do you use recreational drugs?": "drogues_IV drogues_stimul",
    "Have you ever smoked?": "f17.210 smokingpast",
    "Nausea or vomiting?": "nausee vo_violent",
}
UNKNOWN = """What is your blood type?|Do you have a dog?|What medications do you take?
When did the pain start?|How long have you had the pain?|Have you taken anything for the pain?
What makes the pain better?|Does it burn when you urinate?|Do you have blood in your urine?
Have you ever had surgery?|Have you ever been pregnant?|Is your wife pregnant?
Does your father have high blood pressure?|Does anyone in your family have diabetes?
Do you have a family history of stroke?|Did your mother have breast cancer?
Do you have low blood pressure?|Do you have pulmonary hypertension?|Do you have hearing aids?
Are you allergic to penicillin?|Do you have hay fever?|Did you have a fever last year?
Have you had similar symptoms before?|When was the first day of your last period?
When did your last period start?|Do you take any mineral supplements?|Have you had colon polyps?
Have you been on a farm recently?|Are you constipated?|Did you swallow anything?
Are your symptoms getting worse?|Is your eye irritated?|Do you have a cold sore?
Do you use marijuana?|Do you take any vitamins?|Have you been bitten by a tick?"""
NEVER = (
    ("Do you have high blood pressure?", "hta"),
    ("Do you have a cough that produces sputum?", "toux"),
    ("Is your cough productive?", "toux"),
    ("Does your brother smoke?", "f17.210"),
    ("Does your mother have asthma?", "j45"),
    ("Do you have a family history of heart disease?", "i25.1"),
    ("Is your cough getting worse?", "ww_valsalva"),
    ("Do you have chest pain or shortness of breath?", "ww_respi"),
    ("Do you have diarrhea after eating?", "ww_bouffe"),
    ("Are your stools pale?", "pale"),
    ("Does coughing make the pain worse?", "toux"),
    ("Are you consulting because you have high blood pressure?", "i10"),
)


class _Asked(dict[str, set[str]]):
    """Question → the codes of the evidences that it is understood as, in the released files."""

    def __init__(self) -> None:
        evidences = read_release(REAL).evidences
        self._codes = {evidence.item.name: code for code, evidence in evidences.items()}
        self._matcher = Matcher([evidence.item for evidence in evidences.values()])

    def __missing__(self, question: str) -> set[str]:
        return {self._codes[item.name] for item in self._matcher.match(question).items}


@pytest.fixture(scope="module")
def asked() -> _Asked:
    return _Asked()


@real
@pytest.mark.parametrize(
    ("question", "code"),
    [(question, code) for code, own in MEANT.items() for question in own.split("|")],
)
def test_everyday_questions_reach_their_evidence(asked: _Asked, question: str, code: str) -> None:
    assert asked[question] == {code}


@real
@pytest.mark.parametrize(("question", "codes"), SEVERAL.items())
def test_what_several_evidences_are_about_is_asked_back(
    asked: _Asked, question: str, codes: str
) -> None:
    assert asked[question] == set(codes.split())


@real
@pytest.mark.parametrize("question", UNKNOWN.replace("\n", "|").split("|"))
def test_what_no_evidence_is_about_is_not_understood(asked: _Asked, question: str) -> None:
    assert not asked[question]


@real
@pytest.mark.parametrize(("question", "code"), NEVER)
def test_a_question_is_not_answered_by_another_evidence(
    asked: _Asked, question: str, code: str
) -> None:
    assert code not in asked[question]


@real
def test_names_are_shared_only_where_all_are_meant(asked: _Asked) -> None:
    owners: dict[frozenset[str], set[str]] = {}
    for code, evidence in read_release(REAL).evidences.items():
        for name in evidence.item.synonyms:
            assert code in asked[name], name
            owners.setdefault(stems(name), set()).add(code)
    shared = {" ".join(sorted(own)) for own in owners.values() if len(own) > 1}
    assert shared == {
        "allergie_sev z84.89",
        "anxiete_s f41.9",
        "ap_hypert4 patho_endo",
        "ap_valve i25.1 i50 malf_cardiaque",
        "boire_ped perte_appet rds_anorexie",
        "drogues_IV drogues_stimul",
        "etourdissement faible",
        "f17.210 smokingpast",
        "faiblesse faciale paralysie_visage",
        "faiblesse_msmi rds_paralys_gen",
        "fatig_ext fatig_mod rds_deg",
        "irc synd_nephro",
        "perte_poids rds_anorexie",
        "rhino_clair rhino_pur",
        "rural suburb urban1",
    }


@real
def test_every_question_of_the_table_is_a_released_one() -> None:
    file = Path(names.__file__).with_name("names.csv")
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line[0] != "#"]
    written = [row["question"] for row in csv.DictReader(lines)]
    items = read_release(REAL).items
    plain = {item.question for item in items}.union(*(item.synonyms for item in items))
    assert len(written) == len(set(written))
    assert not set(written) - plain


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Do you itch (a lot) or are you sore?", ("Do you itch or are you sore?", "Do you itch?")),
        ("Are you taking ((XYZ) pills?", ("Are you taking pills?",)),
        ("Is it sore, or are you hot?", ("Is it sore?",)),
        ("Are you calm or has your mood changed?", ("Are you calm?",)),
        # half a question is none
        ("Are you currently taking or have you recently taken pills?", ()),
        ("Are you currently being treated or have you been treated for it?", ()),
        ("Did you previously, or do you now, shake?", ()),
        ("Do you shake?", ()),
    ],
)
def test_shorter_forms_of_a_question(question: str, expected: tuple[str, ...]) -> None:
    assert everyday(question) == expected


def test_names_do_not_depend_on_the_style_of_the_codes() -> None:
    question = "Have you ever had deep vein thrombosis (DVT)?"
    assert "clot in the leg" in everyday(question)
    assert everyday("have you ever had deep vein thrombosis?") == everyday(question)[1:]
    assert "swollen ankle" in everyday("Where is the swelling located?")
    assert not any("{" in name for name in everyday("Where is the swelling located?"))


# rows ---------------------------------------------------------------------------------------------


def test_one_row_by_hand(release: Release) -> None:
    row = patient(
        "Grippe",
        ["E_1", "E_2", "E_3_@_V_2", "E_3_@_V_3", "E_4_@_8", "E_5_@_V_4", "E_6_@_V_7"],
        "E_2",
        4,
        "M",
    )
    row["DIFFERENTIAL_DIAGNOSIS"] = "[['Pneumonie', 0.5], ['Flu', 0.5]]"
    made = case(release, row)
    assert made.presentation == "A boy aged 1 to 4 reports: I have pain somewhere."
    assert [(fact.item, fact.id) for fact in made.given] == [
        ("age", "age_@_1"),
        ("sex", "sex_@_M"),
        ("Do you have pain somewhere?", "E_2"),
    ]
    assert [(fact.id, fact.text) for fact in made.truth.facts] == [
        ("E_1", "I have a fever."),
        ("E_3_@_V_2", "Where is the pain? Forehead."),
        ("E_3_@_V_3", "Where is the pain? Chest (right)."),
        ("E_4_@_high", "How intense is the pain? High (7 to 10 of 10)."),
    ]
    assert made.truth.diagnosis == "Flu"
    assert made.truth.differentials == ("Pneumonia", "Flu")
    assert made.truth.codes == ("J11.1",)
    assert made.category == "respiratory"


def test_a_complaint_that_is_a_sub_question_gives_its_parent_too(release: Release) -> None:
    made = case(release, patient("Flu", ["E_1", "E_2", "E_3_@_V_2"], "E_3_@_V_2"))
    assert {fact.id for fact in made.given} == {"age_@_45", "sex_@_F", "E_2", "E_3_@_V_2"}
    assert {fact.id for fact in made.truth.facts} == {"E_1"}


def test_a_sub_finding_without_its_parent_is_left_out_and_counted(folder: Path) -> None:
    write_csv(folder / "p.csv", [*many(50), patient("Flu", ["E_1", "E_3_@_V_2", "E_4_@_9"])])
    source = opened(folder)
    last = next(c for side in (source.train, source.test) for c in side if c.id == "p.csv#51")
    assert last.truth.facts == ()
    assert any("sub-findings left out" in note for note in source.notes)


@settings(max_examples=60, deadline=None)
@given(rows)
def test_hidden_facts_are_the_positive_evidences_but_the_complaint(
    release: Release, row: dict[str, Any]
) -> None:
    made = case(release, row)
    stated = ast.literal_eval(row["EVIDENCES"])
    normal = {"E_3_@_V_1", "E_4_@_0", "E_5_@_V_4", "E_1"}
    orphans = {"E_3_@_V_2", "E_3_@_V_3", "E_4_@_5"} if "E_2" not in stated else set()
    expected = [
        code.replace("@_5", "@_moderate") for code in stated if code not in normal | orphans
    ]
    assert [fact.id for fact in made.truth.facts] == expected
    phrases = set(release.phrases)
    assert {fact.text for fact in made.truth.facts} <= phrases
    person, _, complaint = made.presentation.partition(": ")
    assert {person + ":", complaint} <= phrases


@settings(max_examples=25, deadline=None)
@given(st.lists(rows, min_size=1, max_size=6))
def test_csv_and_both_json_layouts_read_alike(release: Release, data: list[dict[str, Any]]) -> None:
    as_csv, as_text = Rows(Path("p"), release, tuple(FIELDS)), Rows(Path("p"), release, ())
    for row in data:
        cells = [str(row[name]) for name in FIELDS]
        line = ",".join('"' + cell.replace('"', '""') + '"' for cell in cells)
        lists = {
            name: ast.literal_eval(row[name]) for name in ("EVIDENCES", "DIFFERENTIAL_DIAGNOSIS")
        }
        expected = as_csv.patient(line)
        assert as_text.patient(json.dumps(row)) == expected
        assert as_text.patient(json.dumps(row | lists)) == expected


@pytest.mark.parametrize(
    ("change", "field", "problem"),
    [
        ({"AGE": "x"}, "AGE", "whole years"),
        ({"AGE": -1}, "AGE", "whole years"),
        ({"AGE": "²"}, "AGE", "whole years"),
        ({"AGE": "131"}, "AGE", "whole years"),
        ({"SEX": "W"}, "SEX", "F or M"),
        ({"PATHOLOGY": "Flue"}, "PATHOLOGY", "Did you mean 'Flu'"),
        ({"EVIDENCES": "['E_1', 'E_99']"}, "EVIDENCES", "no evidence 'E_99'"),
        ({"EVIDENCES": "['E_3']"}, "EVIDENCES", "needs a value"),
        ({"EVIDENCES": "['E_3_@_V_77']"}, "EVIDENCES", "no value of 'E_3' 'V_77'"),
        ({"EVIDENCES": "[1]"}, "EVIDENCES", "no evidence '1'"),
        ({"EVIDENCES": "{}"}, "EVIDENCES", "must be a list"),
        ({"EVIDENCES": "__import__('os').getcwd()"}, "EVIDENCES", "not a list of Python literals"),
        ({"EVIDENCES": "[" * 5_000}, "EVIDENCES", "not a list of Python literals"),
        ({"EVIDENCES": "'" + "x" * 120_000 + "'"}, "EVIDENCES", "longer than 100,000"),
        ({"DIFFERENTIAL_DIAGNOSIS": "['Flu']"}, "DIFFERENTIAL_DIAGNOSIS", "pairs"),
        (
            {"DIFFERENTIAL_DIAGNOSIS": "[['Plague', 1]]"},
            "DIFFERENTIAL_DIAGNOSIS",
            "no condition 'Plague'",
        ),
        ({"INITIAL_EVIDENCE": "E_98"}, "INITIAL_EVIDENCE", "no evidence 'E_98'"),
    ],
)
def test_a_malformed_row_names_file_line_and_field(
    folder: Path, change: dict[str, Any], field: str, problem: str
) -> None:
    path = write_csv(folder / "p.csv", [patient(), patient() | change])
    with pytest.raises(CaseError, match=r"p\.csv, line 3, field") as caught:
        opened(path, strict=True)
    assert (caught.value.line, caught.value.field) == (3, field)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "empty"),
        ("\n\n", "empty"),
        ("AGE,SEX\n1,F\n", "header lacks DIFFERENTIAL_DIAGNOSIS, PATHOLOGY"),
        (",".join(FIELDS) + "\n1,2\n", "2 cells under 6"),
        (",".join(FIELDS) + '\n1,"two\nlines",F,Flu,[],E_1\n', "may not span lines"),
        ('{"AGE": 1}\n', "missing"),
        ('{"AGE": \n', "not JSON"),
        ("PK\x03\x04", "zip archive"),
    ],
)
def test_a_file_that_holds_no_patients_says_so(folder: Path, text: str, problem: str) -> None:
    (folder / "p.csv").write_text(text)
    with pytest.raises(CaseError, match=problem):
        opened(folder)


def test_too_few_patients_and_no_patients(folder: Path) -> None:
    with pytest.raises(UserError, match="no patients in"):
        opened(folder)
    write_csv(folder / "p.csv", [patient()])
    with pytest.raises(UserError, match="too few"):
        opened(folder)


# the split ----------------------------------------------------------------------------------------


def ids(source: Source) -> tuple[list[str], list[str]]:
    return [c.id for c in source.train], [c.id for c in source.test]


def findings(cases: Any) -> set[frozenset[str]]:
    return {
        frozenset(f.id for f in (*c.given, *c.truth.facts) if f.item not in {"age", "sex"})
        for c in cases
    }


def test_no_set_of_findings_stands_on_both_sides(folder: Path) -> None:
    write_csv(folder / "a.csv", many(300, 1))
    with (folder / "b.jsonl").open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in many(300, 2))
    source = opened(folder, 3)
    train, test = findings(source.train), findings(source.test)
    assert train
    assert test
    assert not train & test
    assert len(source.train) + len(source.test) == 600
    assert ids(source) == ids(opened(folder, 3))
    assert ids(source) != ids(opened(folder, 4))


def test_a_case_keeps_its_side_when_the_file_grows(folder: Path) -> None:
    rows = many(200)
    write_csv(folder / "p.csv", rows[:120])
    before = ids(opened(folder))
    write_csv(folder / "p.csv", rows)
    after = ids(opened(folder))
    assert [id for id in after[0] if int(id.split("#")[1]) <= 120] == before[0]
    assert [id for id in after[1] if int(id.split("#")[1]) <= 120] == before[1]


def test_cases_are_read_again_from_their_place_in_the_file(folder: Path) -> None:
    rows = many(80)
    write_csv(folder / "a.csv", rows[:30])
    write_csv(folder / "b.csv", rows[30:])
    (folder / "b.csv").write_bytes(b"\xef\xbb\xbf" + (folder / "b.csv").read_bytes())
    source = opened(folder)
    for c in (*source.train, *source.test):
        name, _, number = c.id.partition("#")
        row = rows[int(number) - 1 + (30 if name == "b.csv" else 0)]
        assert c.truth.diagnosis == row["PATHOLOGY"]
        assert sum(f.id == "E_9" for f in c.truth.facts) == row["EVIDENCES"].count("'E_9'")


@pytest.mark.long
def test_memory_per_patient_is_a_few_bytes(folder: Path) -> None:
    write_csv(folder / "p.csv", many(500))
    opened(folder)  # imports and caches
    peaks = []
    for count in (500, 2_500):
        write_csv(folder / "p.csv", many(500) * (count // 500))
        tracemalloc.start()
        source = opened(folder)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(source.train) + len(source.test) == count
    assert (peaks[1] - peaks[0]) / 2_000 < 64


# counted tables -----------------------------------------------------------------------------------


def test_rates_are_the_shrunken_frequencies_of_the_training_split(
    folder: Path, release: Release
) -> None:
    write_csv(folder / "p.csv", many(200))
    source = opened(folder)
    knowledge = source.knowledge
    assert knowledge is not None
    fever = "Do you smoke? (E_7)"
    by = {
        name: [c for c in source.train if c.truth.diagnosis == name] for name in release.diagnoses
    }
    positive = {
        name: sum(any(f.id == "E_7" for f in c.truth.facts) for c in cases)
        for name, cases in by.items()
    }
    pooled = (sum(positive.values()) + 1) / (len(source.train) + 2)
    chance = np.array([(positive[name] + pooled) / (len(cases) + 1) for name, cases in by.items()])
    prior = np.array([len(cases) + 1 for cases in by.values()], dtype=float)
    expected = prior * chance / (prior @ chance)
    assert np.allclose(knowledge.posterior({fever: ("E_7",)}), expected)
    assert np.allclose(knowledge.posterior({}), prior / prior.sum())


def test_sub_findings_are_counted_among_patients_with_the_finding_above(
    folder: Path, release: Release
) -> None:
    write_csv(folder / "p.csv", many(200))
    source = opened(folder)
    knowledge = source.knowledge
    assert knowledge is not None
    pain, intense = (release.evidences[code].item.name for code in ("E_2", "E_4"))
    hurt, moderate, everybody = np.zeros(3), np.zeros(3), np.zeros(3)
    for c in source.train:
        place, found = release.diagnoses.index(c.truth.diagnosis), {f.id for f in c.truth.facts}
        everybody[place] += 1
        hurt[place] += "E_2" in found
        moderate[place] += "E_4_@_moderate" in found
    in_pain = (hurt + (hurt.sum() + 1) / (everybody.sum() + 2)) / (everybody + 1)
    then_moderate = (moderate + (moderate.sum() + 1) / (hurt.sum() + 4)) / (hurt + 1)
    expected = (everybody + 1) * in_pain * then_moderate
    told = knowledge.posterior({pain: ("E_2",), intense: ("E_4_@_moderate",)})
    assert np.allclose(told, expected / expected.sum())


def test_criticality_by_hand(folder: Path, release: Release) -> None:
    """LR = P(f | d*) / Σ_{d ≠ d*} P(f | d) P(d | o_0) / Σ ….

    Sub-findings are judged among patients with the finding above them.
    """
    write_csv(folder / "p.csv", many(300))
    source = opened(folder)
    tally = Tally(release)
    reader = Rows(Path("p"), release, tuple(FIELDS))
    lines = (folder / "p.csv").read_text().splitlines()[1:]
    kept = {int(c.id.split("#")[1]) for c in source.train}
    for number in sorted(kept):
        tally.add(reader.patient(lines[number - 1]))
    rates = tally.rates()
    seen: set[int] = set()
    for c in source.test[:40]:
        age, sex = (c.given[0].id, c.given[1].id)
        columns = (
            [f"age_@_{first}" for first, _ in AGE_GROUPS].index(age),
            ["sex_@_F", "sex_@_M"].index(sex),
        )
        weights = (
            rates.prior * rates.age[:, columns[0]] * rates.sex[:, columns[1]] * column(rates, "E_1")
        )
        for fact in c.truth.facts:
            above = weights * (column(rates, "E_2") if fact.id[:3] in {"E_3", "E_4"} else 1)
            mine = release.diagnoses.index(c.truth.diagnosis)
            others = np.arange(3) != mine
            p = column(rates, fact.id)
            ratio = p[mine] / (above[others] @ p[others] / above[others].sum())
            assert fact.weight == grade(ratio), fact
            seen.add(grade(ratio))
    assert len(seen) > 1


def column(rates: Any, fact_id: str) -> Any:
    for evidence in rates.release.evidences.values():
        for place, fact in enumerate(evidence.facts):
            if fact.id == fact_id:
                return rates.facts[evidence.item.name][:, place]
    raise AssertionError(fact_id)


# simulated patients -------------------------------------------------------------------------------


def test_simulated_patients_follow_their_tables(release: Release) -> None:
    simulator = DdxplusSimulator(release, 5)
    patients = [simulator.patient(i) for i in range(4_000)]
    for place, name in enumerate(release.diagnoses):
        mine = [p for p in patients if p.condition == place]
        assert abs(len(mine) - 4_000 / 3) < 4 * (4_000 * 2 / 9) ** 0.5
        lists = conditions()[name]
        for code in ("E_1", "E_2", "E_7", "E_8", "E_9"):
            free = [p for p in mine if p.initial != code]
            expected = LISTED if code in lists["symptoms"] | lists["antecedents"] else UNLISTED
            share = (
                sum(any(f.id == code for f in p.facts) for p in free) / len(free)
                if free
                else expected
            )
            assert (
                abs(share - expected) < 5 * (expected * (1 - expected) / max(len(free), 1)) ** 0.5
            )
    scales = Counter(f.id for p in patients for f in p.facts if f.id.startswith("E_4"))
    pains = sum(any(f.id == "E_2" for f in p.facts) for p in patients)
    for bucket, values in (("low", 3), ("moderate", 3), ("high", 4)):
        assert abs(scales[f"E_4_@_{bucket}"] / pains - values / 11) < 0.06


def test_simulated_patients_are_sound_and_repeatable(release: Release) -> None:
    simulator, again, other = (DdxplusSimulator(release, seed) for seed in (1, 1, 2))
    for i in range(300):
        p = simulator.patient(i)
        assert p == again.patient(i)
        assert p.initial in {f.id for f in p.facts}
        assert p.initial in release.conditions[p.condition].symptoms
        if any(f.id.startswith(("E_3", "E_4")) for f in p.facts):
            assert any(f.id == "E_2" for f in p.facts)
        assert sum(f.id.startswith("E_4") for f in p.facts) <= 1
    assert any(simulator.patient(i) != other.patient(i) for i in range(5))


def test_the_simulated_view_tests_on_released_patients(folder: Path) -> None:
    write_csv(folder / "p.csv", many(150))
    source = opened(f"{folder}#simulated")
    assert len(source.train) == 1_000_000
    assert source.train[999_999] == source.train[-1]
    assert max(Counter(c.truth.diagnosis for c in source.test).values()) == 20
    assert all(c.id.startswith("p.csv#") for c in source.test)
    assert [c.id for c in source.test] == [c.id for c in opened(f"{folder}#simulated").test]
    assert source.knowledge is not None
    assert np.allclose(source.knowledge.posterior({}), 1 / 3)


def test_a_view_that_does_not_exist(folder: Path) -> None:
    with pytest.raises(UserError, match="Did you mean 'simulated'"):
        opened(f"{folder}#simulate")


# balancing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_balanced_draws_classes_in_proportion(folder: Path, power: float) -> None:
    skewed = [row for row in many(400) if row["PATHOLOGY"] != "Croup" or row["AGE"] < 15]
    write_csv(folder / "p.csv", skewed)
    train = opened(folder).train
    counts = Counter(c.truth.diagnosis for c in train)
    drawn = balanced(train, power=power, seed=1)
    shares = Counter(drawn[i].truth.diagnosis for i in range(len(train)))
    total = sum(n ** (1 - power) for n in counts.values())
    assert len(drawn) == len(train)
    assert [c.id for c in drawn[:20]] == [c.id for c in balanced(train, power=power, seed=1)[:20]]
    for name, n in counts.items():
        expected = n ** (1 - power) / total
        assert (
            abs(shares[name] / len(train) - expected)
            < 4 * (expected * (1 - expected) / len(train)) ** 0.5
        )


def test_balancing_needs_labels_and_a_sensible_power(folder: Path) -> None:
    write_csv(folder / "p.csv", many(50))
    with pytest.raises(UserError, match="does not say which diagnosis"):
        balanced(opened(f"{folder}#simulated").train)
    with pytest.raises(UserError, match="between 0"):
        balanced(opened(folder).train, power=2)


# drawing uniformly --------------------------------------------------------------------------------


def shares(counts: dict[str, int], size: int) -> list[int]:
    """How many cases each class gives, sorted.

    One at a time comes from whichever class has given least and still has some.
    """
    given = dict.fromkeys(counts, 0)
    for _ in range(size):
        least = min(
            (name for name in counts if given[name] < counts[name]), key=lambda name: given[name]
        )
        given[least] += 1
    return sorted(given.values())


@pytest.mark.parametrize("size", [1, 2, 10, 31, 100, 10_000])
def test_a_uniform_sample_takes_equally_many_of_every_diagnosis_that_has_them(
    folder: Path, size: int
) -> None:
    skewed = [row for row in many(400) if row["PATHOLOGY"] != "Croup" or row["AGE"] < 8]
    write_csv(folder / "p.csv", skewed)
    train = opened(folder).train
    counts = Counter(c.truth.diagnosis for c in train)
    size = min(size, len(train))
    places = uniform(train, size, seed=3)
    assert places == sorted(set(places))
    drawn = Counter(train[place].truth.diagnosis for place in places)
    assert sorted(drawn.get(name, 0) for name in counts) == shares(counts, size)
    assert places == uniform(train, size, seed=3)
    read = [*train]  # without labels
    seen = Counter(read[place].truth.diagnosis for place in uniform(read, size, seed=3))
    assert sorted(seen.values()) == sorted(drawn.values())


def test_a_uniform_sample_depends_on_the_seed_and_draws_every_case_of_a_class_alike(
    folder: Path,
) -> None:
    write_csv(folder / "p.csv", many(150))
    train = opened(folder).train
    hits = Counter(place for seed in range(600) for place in uniform(train, 9, seed=seed))
    classes = Counter(c.truth.diagnosis for c in train)
    for place, case in enumerate(train):
        expected = 600 * 3 / classes[case.truth.diagnosis]
        assert abs(hits[place] - expected) < 5 * expected**0.5


def test_what_cannot_be_drawn_uniformly(folder: Path) -> None:
    write_csv(folder / "p.csv", many(50))
    with pytest.raises(UserError, match="cannot be drawn from"):
        uniform(opened(folder).train, 51)
    with pytest.raises(UserError, match="too many to look"):
        uniform(opened(f"{folder}#simulated").train, 10)


def test_the_papers_samples_by_command(tmp_path: Path, call: Call) -> None:
    folder = tmp_path / "release"
    folder.mkdir()
    write_release(folder)
    write_csv(folder / "p.csv", many(300))
    spec = f"ddxplus:{folder}"
    assert call("cases", spec, "--sample", 30, "--of", "train", "--export", "train.jsonl")[:2] == (
        0,
        "train.jsonl\n",
    )
    assert call("cases", spec, "--sample", 12, "--export", "validation.jsonl")[0] == 0
    source = opened(folder)
    written = {
        name: list(open_source(f"jsonl:{name}.jsonl#all").test) for name in ("train", "validation")
    }
    for name, side, size in (("train", source.train, 30), ("validation", source.test, 12)):
        assert [c.id for c in written[name]] == [side[place].id for place in uniform(side, size)]
        assert set(Counter(c.truth.diagnosis for c in written[name]).values()) == {size // 3}
    assert not findings(written["train"]) & findings(written["validation"])
    again = Path("train.jsonl").read_bytes()
    call("cases", spec, "--sample", 30, "--of", "train", "--seed", 1, "--export", "other.jsonl")
    assert Path("other.jsonl").read_bytes() != again
    call("cases", spec, "--sample", 30, "--of", "train", "--export", "train.jsonl")
    assert Path("train.jsonl").read_bytes() == again
    for words, said in (
        (("--sample", 5), "as in --export"),
        (("--sample", 500, "--export", "x.jsonl"), "cannot be drawn"),
        (("--sample", 5, "--of", "tests", "--export", "x.jsonl"), "Did you mean 'test'"),
    ):
        status, _, error = call("cases", spec, *words)
        assert status == 2
        assert said in error
        assert not Path("x.jsonl").exists()


# the released files -------------------------------------------------------------------------------


@real
def test_every_released_patient_is_read(released: Source) -> None:
    assert len(released.train) + len(released.test) == 98 + 6_734
    assert len(released.diagnoses) == 49
    assert len(released.items) == 223
    assert sum(item.parent is not None for item in released.items) == 14
    assert len(released.phrases) == len(set(released.phrases)) < 2_000
    assert "GERD" in released.diagnoses


@real
def test_released_cases_speak_in_phrases_and_tell_no_diagnosis(released: Source) -> None:
    phrases, names = set(released.phrases), set(released.diagnoses)
    environment = Consultation(released.items, released.diagnoses)
    for c in released.test[::5]:
        person, _, complaint = c.presentation.partition(": ")
        assert {person + ":", complaint, *(f.text for f in c.truth.facts)} <= phrases
        assert set(c.truth.differentials) <= names
        assert all(code == code.upper() for code in c.truth.codes)
        (record,) = environment.record(c).messages
        assert WITHHELD not in record.content


@real
def test_released_rows_by_an_independent_reading(released: Source) -> None:
    """Positive root findings of every fourth test case against the csv module and the raw codes."""
    evidences = json.loads((REAL / "release_evidences.json").read_text(encoding="utf-8"))
    tables = {}
    for name in ("patients_49.csv", "release_validate_patients.csv"):
        with (REAL / name).open(encoding="utf-8", newline="") as file:
            tables[name] = list(csv.DictReader(file))
    for c in released.test[::4]:
        name, _, number = c.id.partition("#")
        row = tables[name][int(number) - 1]
        positive = {
            code
            for code in ast.literal_eval(row["EVIDENCES"])
            if evidences[code.split("_@_")[0]]["data_type"] == "B"
        }
        hidden = {f.id for f in c.truth.facts if "_@_" not in f.id}
        assert hidden == positive - {row["INITIAL_EVIDENCE"]}


@real
def test_full_information_settles_released_patients_from_the_conditions_alone() -> None:
    """The transfer ceiling: naive Bayes with the simulator's tables."""
    source = opened(f"{REAL}#simulated")
    knowledge = source.knowledge
    assert knowledge is not None
    right = []
    for c in source.test[::3]:
        found: dict[str, tuple[str, ...]] = {item.name: () for item in source.items}
        for fact in (*c.given, *c.truth.facts):
            found[fact.item] = (*found.get(fact.item, ()), fact.id)
        right.append(
            source.diagnoses[int(np.argmax(knowledge.posterior(found)))] == c.truth.diagnosis
        )
    assert np.mean(right) > 0.95
