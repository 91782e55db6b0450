"""Anchors, the teacher and hybrid pipelines, in a world small enough to know every answer."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from handmade import CASES, DISEASES, ITEMS, KNOWLEDGE, POSITIVE, SOURCE, Script, case, fact, play

from workup.cases import open_source
from workup.core.case import Source
from workup.core.episode import Action, Ending, Episode
from workup.core.errors import UserError
from workup.core.leaks import WITHHELD
from workup.core.ports import Teaching
from workup.doctors.hybrid import TranscriptDiagnoser, conclude, whole_record
from workup.environments.base.anchors import (
    BayesDiagnoser,
    FullInformationDoctor,
    GreedyDoctor,
    RandomDoctor,
)
from workup.environments.base.recorded import CONCLUDE
from workup.environments.base.teacher import drawn_items
from workup.environments.consultation import Consultation

WORLD = Consultation(ITEMS, DISEASES, max_turns=5)
BAYES = BayesDiagnoser(KNOWLEDGE, ITEMS)


def asked(episode: Episode) -> list[str]:
    return [turn.observation.item for turn in episode.turns if turn.observation.item]


def by_enumeration(positive: set[str], negative: set[str]) -> str:
    """The most probable disease, multiplied out by hand.

    Items are independent here apart from sputum below cough.
    """
    weights = []
    for disease, prior in enumerate((0.5, 0.3, 0.2)):
        weight = prior
        for name in positive:
            weight *= POSITIVE[name][disease]
        for name in negative:
            barred = name == "sputum" and "cough" in negative
            weight *= 1.0 if barred else 1 - POSITIVE[name][disease]
        weights.append(weight)
    return DISEASES[int(np.argmax(weights))]


@pytest.mark.parametrize(
    "doctor", [RandomDoctor(KNOWLEDGE, ITEMS, 5), GreedyDoctor(KNOWLEDGE, ITEMS, 5)]
)
@pytest.mark.parametrize("patient", CASES)
def test_askers_use_every_turn_for_something_new_and_diagnose_in_the_last(
    doctor: RandomDoctor, patient: object
) -> None:
    episode = play(doctor, WORLD, patient)  # type: ignore[arg-type]
    assert episode.ending is Ending.DIAGNOSED
    assert len(episode.turns) == 5
    assert len(set(asked(episode))) == 4
    assert not {fact.item for fact in episode.case.given} & set(asked(episode))
    known = {fact.item for fact in episode.case.given} | set(episode.discovered)
    assert episode.answer == (by_enumeration(known, set(asked(episode)) - known),)


def test_askers_stop_when_nothing_is_left_to_ask() -> None:
    roomy = Consultation(ITEMS, DISEASES, max_turns=20)
    for doctor in (RandomDoctor(KNOWLEDGE, ITEMS, 20), GreedyDoctor(KNOWLEDGE, ITEMS, 20)):
        assert set(asked(play(doctor, roomy, CASES[0]))) == {item.name for item in ITEMS}


def covered(text: str, phrases: Sequence[str]) -> bool:
    """Whether `text` is nothing but phrases, by cutting off the longest one at the front."""
    while text:
        longest = max(
            (phrase for phrase in phrases if text.startswith(phrase)), key=len, default=""
        )
        if not longest:
            return False
        text = text[len(longest) :].lstrip()
    return True


def test_in_the_clinic_anchors_stand_in_order_and_every_word_is_a_phrase() -> None:
    clinic = open_source("clinic:s")
    world = Consultation(clinic.items, clinic.diagnoses)
    patients = [clinic.test[index] for index in range(150)]
    doctors = (
        RandomDoctor(clinic.knowledge, clinic.items),
        GreedyDoctor(clinic.knowledge, clinic.items),
        FullInformationDoctor(clinic.knowledge, clinic.items),
    )
    right = [
        sum(play(d, world, patient).answer == (patient.truth.diagnosis,) for patient in patients)
        for d in doctors
    ]
    assert right[0] + 15 < right[1] <= right[2] + 3
    for patient in patients[:20]:
        answers = [world.reply(patient, Action("ask", (item.name,))) for item in clinic.items]
        said = {message.content for reply in answers for message in reply.messages} | {
            world.open(patient)[1].content
        }
        assert all(covered(text, clinic.phrases) for text in said)
        assert WITHHELD not in " ".join(said)


def test_the_random_doctor_is_random_by_key_and_by_nothing_else() -> None:
    doctor = RandomDoctor(KNOWLEDGE, ITEMS, 5, seed=3)
    assert asked(play(doctor, WORLD, CASES[0], 7)) == asked(
        play(RandomDoctor(KNOWLEDGE, ITEMS, 5, seed=3), WORLD, CASES[0], 7)
    )
    first = Counter(asked(play(doctor, WORLD, CASES[0], key))[0] for key in range(350))
    assert set(first) == {item.name for item in ITEMS}
    assert max(first.values()) < 80  # 50 expected of each


def test_the_greedy_doctor_asks_what_tells_most() -> None:
    def gain(name: str) -> float:
        prior = np.array([0.5, 0.3, 0.2])
        entropy = lambda p: -(p * np.log(p)).sum()  # noqa: E731
        total = entropy(prior)
        for likelihood in (np.array(POSITIVE[name]), 1 - np.array(POSITIVE[name])):
            joint = prior * likelihood
            total -= joint.sum() * entropy(joint / joint.sum())
        return float(total)

    roots = [item.name for item in ITEMS if item.parent is None]
    assert asked(play(GreedyDoctor(KNOWLEDGE, ITEMS, 5), WORLD, CASES[0]))[0] == max(
        roots, key=gain
    )


@pytest.mark.parametrize(
    "positive", itertools.combinations(["fever", "cough", "crackles", "lipase", "chest film"], 2)
)
def test_full_information_reads_everything_including_what_is_normal(
    positive: tuple[str, ...],
) -> None:
    patient = case(9, "Flu", fact(positive[0]), given=(fact(positive[1]),))
    episode = play(FullInformationDoctor(KNOWLEDGE, ITEMS), WORLD, patient)
    assert (episode.questions, episode.answer) == (
        0,
        (by_enumeration(set(positive), {item.name for item in ITEMS} - set(positive)),),
    )


def test_evidence_holds_what_answers_told_and_what_they_implied() -> None:
    doctor = Script("<ask>sputum</ask>", "<ask>fever</ask>", "<ask>moon phase</ask>", "hm")
    hot, coughing = (case(9, "Flu", fact(name)) for name in ("fever", "cough"))
    assert BAYES.evidence(hot, play(doctor, WORLD, hot).turns) == {
        "fever": ("fever",),
        "sputum": (),
        "cough": (),
    }
    assert BAYES.evidence(coughing, play(doctor, WORLD, coughing).turns) == {
        "fever": (),
        "sputum": (),
    }
    assert BAYES.evidence(CASES[1], ()) == {"cough": ("cough",)}


def test_conclude_replaces_the_diagnosis_and_keeps_the_evidence() -> None:
    gathered = play(
        Script("<image>chest film</image>", "<diagnose>Flu</diagnose>"), WORLD, CASES[1]
    )
    concluded = asyncio.run(conclude(gathered, BAYES, WORLD))
    assert (concluded.answer, concluded.ending) == (("Pneumonia",), Ending.DIAGNOSED)
    assert concluded.turns[:-1] == gathered.turns[:-1]
    lost = play(Script("<test>lipase</test>"), WORLD, CASES[2])
    assert lost.ending is Ending.OUT_OF_TURNS
    assert asyncio.run(conclude(lost, BAYES, WORLD)).answer == ("Pancreatitis",)


def test_another_doctor_reads_the_transcript_as_messages() -> None:
    shown = []

    class Reader(Script):
        async def act(self, case, opening, past, sampling):  # type: ignore[no-untyped-def]
            shown.append((opening, past))
            return await super().act(case, opening, past, sampling)

    gathered = play(
        Script("<image>chest film</image>", "<diagnose>Flu</diagnose>"), WORLD, CASES[1]
    )
    reader = TranscriptDiagnoser(Reader("<diagnose>Pneumonia</diagnose>"), WORLD)
    right = asyncio.run(conclude(gathered, reader, WORLD))
    assert right.answer == ("Pneumonia",)
    ((messages, past),) = shown
    assert past == ()
    assert [message.role for message in messages] == ["system", "user", "assistant", "user"]
    assert messages[-1].content == f"Yes: chest film.\n{CONCLUDE}"
    asking = TranscriptDiagnoser(Script("<ask>fever</ask>"), WORLD)
    mute = asyncio.run(conclude(gathered, asking, WORLD))
    assert (mute.ending, mute.answer) == (Ending.OUT_OF_TURNS, ())


def test_the_whole_record_shows_every_fact() -> None:
    oracle = whole_record(CASES[1], WORLD, WORLD)
    assert oracle.discovered == {"cough", "sputum", "crackles", "chest film"}
    assert asyncio.run(conclude(oracle, BAYES, WORLD)).answer == ("Pneumonia",)


def test_demonstrations_are_true_dialogues() -> None:
    made = [Teaching().demonstrate(SOURCE, WORLD, 5, index) for index in range(200)]
    assert made == [Teaching().demonstrate(SOURCE, WORLD, 5, index) for index in range(200)]
    assert 60 < sum(bool(demonstration.branches) for demonstration in made) < 140
    patients = {WORLD.open(patient): patient for patient in CASES}
    for demonstration in made:
        patient = patients[demonstration.opening]
        diagnosis = f"<diagnose>{patient.truth.diagnosis}</diagnose>"
        *exchanges, last = demonstration.exchanges
        assert last == (diagnosis, ())
        for said, answer in exchanges:
            action = WORLD.read(said)
            assert action.errors == 0
            assert answer == WORLD.reply(patient, action).messages
            assert action.content[0] not in {fact.item for fact in patient.given}
        assert len({said for said, _ in exchanges}) == len(exchanges) <= 4
        if demonstration.branches:
            begun = "<diagnose>"
            assert len(exchanges) == 4
            assert demonstration.branches == tuple(
                (before, begun, diagnosis.removeprefix(begun)) for before in range(4)
            )


def test_focus_draws_from_what_the_patient_has() -> None:
    def share(focus: float) -> float:
        teaching = Teaching(textbook_share=1, focus=focus, popularity=0)
        only = Source("one", CASES[:1], (), ITEMS, DISEASES)
        first = [
            teaching.demonstrate(only, WORLD, 0, index).exchanges[0][1][0].content
            for index in range(300)
        ]
        return sum(answer.startswith("Yes") for answer in first) / 300

    assert share(1.0) == 1.0
    assert abs(share(0.0) - 3 / 7) < 0.1
    assert abs(share(0.5) - (0.5 + 0.5 * 3 / 7)) < 0.1


def test_popular_items_are_asked_first_and_each_opening_has_its_own() -> None:
    """The oracle: the shares of a first draw in proportion to (1 + rank)^−popularity."""
    counts: dict[str, Counter[str]] = {}
    for opened in ("cold", "rash"):
        rng = np.random.default_rng(3)
        counts[opened] = Counter(
            drawn_items(CASES[0], SOURCE, {opened}, 1, 0.0, rng, 2.0)[0].name for _ in range(4_000)
        )
    weights = (1.0 + np.arange(len(ITEMS))) ** -2.0
    expected = 4_000 * weights / weights.sum()
    for found in counts.values():
        seen = np.array(sorted((found[item.name] for item in ITEMS), reverse=True))
        assert np.abs(seen - expected).max() < 4 * np.sqrt(expected.max())
    favourites = [found.most_common(1)[0][0] for found in counts.values()]
    assert favourites[0] != favourites[1]


def test_no_demonstrations_without_items() -> None:
    with pytest.raises(UserError, match=r"'notes'.*leave out the warm start"):
        Teaching().demonstrate(Source("notes", CASES, ()), WORLD, 0, 0)
