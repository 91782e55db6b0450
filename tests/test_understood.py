"""Questions as people ask them: what the exact record and the exact patient make of them."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path

import pytest
from handmade import Script, play
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from workup.cases import open_source
from workup.core.case import Case, Fact, Item, Kind, Truth
from workup.core.episode import Action, Observation
from workup.environments.base.lexical import Lexicon, words
from workup.environments.base.patients import UNCLEAR, UNKNOWN, EmbeddedPatient
from workup.environments.base.recorded import UNKNOWN as NOT_ON_RECORD
from workup.environments.consultation import Consultation
from workup.environments.questioning import Questioning
from workup.metrics.facts import not_understood
from workup.metrics.measures import measure
from workup.report.live import print_result
from workup.runs.words import columns

SOURCE = open_source("clinic:s", split=0)
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

LONG = {
    "Can you tell me whether you have had any fever recently?": "fever",
    "Before we go on I would like to know if you have felt any nausea this week.": "nausea",
    "When you eat something heavy, do you get epigastric pain afterwards?": "epigastric pain",
    "Would you say that there is right upper quadrant pain, perhaps after meals?": (
        "right upper quadrant pain"
    ),
    "I am wondering whether you noticed some left lower quadrant pain since Monday.": (
        "left lower quadrant pain"
    ),
    "Did the trouble begin with right lower quadrant pain, and did it wander there?": (
        "right lower quadrant pain"
    ),
    "Has anybody at home told you that your cough is keeping them awake at night?": "cough",
    "Tell me, does your flank pain come and go, or is it constant all day long?": "flank pain",
    "Some people report painful urination with this; has it happened to you as well?": (
        "painful urination"
    ),
    "I want to press below your ribs now to look for a Murphy sign while you breathe in.": (
        "Murphy sign"
    ),
    "Let me listen to your back carefully for lung crackles on both sides.": "lung crackles",
    "We should send blood to the laboratory and have them measure serum lipase today.": (
        "serum lipase"
    ),
    "Could the nurse take blood so that we learn what the white cell count is?": "white cell count",
    "Please look at a sample under the microscope for urine leukocytes this morning.": (
        "urine leukocytes"
    ),
    "I would like radiology to do a gallbladder ultrasound as soon as they can.": (
        "gallbladder ultrasound"
    ),
    "Let us arrange a pancreas CT with contrast for this afternoon.": "pancreas CT",
    "Climbing stairs or walking uphill, do you get shortness of breath then?": (
        "shortness of breath"
    ),
    "Have you at any time felt chest pain while you were resting in bed?": "chest pain",
    "On most mornings of the last month, did you wake up with a headache?": "headache",
    "Is there unusual light sensitivity, so that you want to sit in a dark room?": (
        "light sensitivity"
    ),
    "Since the spring began, have you been troubled by a runny nose every day?": "runny nose",
    "Around cats or in the garden, do you begin sneezing many times in a row?": "sneezing",
    "Would you describe your nights as poor sleep, with long hours awake?": "poor sleep",
    "I will put the stethoscope on your chest wall and check whether there is wheezing.": (
        "wheezing"
    ),
    "To be safe, have the laboratory run serum troponin twice, three hours apart.": (
        "serum troponin"
    ),
    "Because of your long flight, I want the laboratory to determine a D-dimer.": "D-dimer",
    "Please use a dipstick to see if there is urine blood that the eye cannot notice.": (
        "urine blood"
    ),
    "Let us record an electrocardiogram right now while you still have symptoms.": (
        "electrocardiogram"
    ),
    "Send her downstairs for a chest radiograph in two planes before lunch.": "chest radiograph",
    "If the tenderness stays, I would ask the surgeons to get a colon CT tonight.": "colon CT",
}
FOREIGN = (
    "What is your favourite food?",
    "Do you own a car or do you take the bus to work?",
    "Have you ever travelled to the tropics?",
    "Does anyone in your family have diabetes?",
    "How many cigarettes do you smoke in a day?",
    "Can you tell me whether you have noticed any rash on your legs recently?",
    "Have your joints been swollen or stiff in the morning?",
    "Did you lose weight without trying to over the last months?",
    "Are you allergic to penicillin or to any other medicine?",
    "Do your ankles swell in the evening?",
    "Please measure serum sodium and potassium.",
    "Order a lumbar puncture as soon as possible.",
    "Is your vision blurred when you read?",
    "Which vaccinations did you get as a child?",
    "What do you think is wrong with you?",
    "Could you tell me your date of birth and your profession?",
)


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
        "fever and serum ferritin? ankles?",
    ):
        # "serum ferritin" is longer than "fever": the second one is understood.
        assert ask(request, world, source.test[0]).understood == ("ferritin" in request)


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


def test_a_tie_of_free_facts_is_asked_back_without_a_word_on_what_is_recorded() -> None:
    world, facts = Consultation(()), (Fact("1", "fever", "Hot."), Fact("2", "cough", "Coughs."))
    case = Case("x", "A man.", Truth("flu", facts=facts))
    seen = ask("Would you say that you have fever or rather a cough at night?", world, case)
    assert (seen.messages[0].content, seen.evidence) == (NOT_ON_RECORD, ())


NAMES = st.sampled_from([item.name for item in SOURCE.items])
FILLER = st.lists(
    st.sampled_from(["since", "monday", "would", "kitchen", "really", "evening"]), max_size=6
)


@given(NAMES, FILLER, FILLER)
def test_whatever_stands_around_a_name_it_is_named(
    name: str, before: list[str], after: list[str]
) -> None:
    assert ask(" ".join([*before, name, *after])).item == name


@given(
    st.lists(st.text(alphabet="ab ", max_size=5), max_size=6), st.text(alphabet="ab ", max_size=9)
)
def test_named_entries_are_the_longest_whose_words_all_stand_in_the_request(
    entries: list[str], request_: str
) -> None:
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
    assert not_understood(episode) == 2 / 4
    values = measure(episode, False, WORLD)
    assert (values["not_understood"], values["malformed"]) == (2 / 4, 1 / 6)
    assert not_understood(play(Script("<diagnose>flu</diagnose>"), WORLD, case)) is None


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
    assert not_understood(episode) == 1 / 2


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
