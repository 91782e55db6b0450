"""The exact reader and the stopped doctors: against every world that fits what was said."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from handmade import CASES, DISEASES, ITEMS, KNOWLEDGE, POSITIVE, SOURCE, Script, case, fact, play
from hypothesis import given
from hypothesis import strategies as st

from workup.cases import jsonl, open_source
from workup.cli import api
from workup.core.case import Case
from workup.core.episode import Action, Ending, Episode
from workup.environments import load
from workup.environments.base.anchors import GreedyDoctor, RandomDoctor
from workup.environments.consultation import Consultation
from workup.loops.evaluation.stopped import curves
from workup.metrics.measures import measure
from workup.metrics.reading import read_right, read_right_after, reader_of
from workup.runs import Record, Run

WORLD = Consultation(ITEMS, DISEASES, max_turns=6)
READER = reader_of(SOURCE, WORLD)
PRIOR = (0.5, 0.3, 0.2)
ASKING = {
    "random doctor": RandomDoctor(KNOWLEDGE, ITEMS, 6),
    "greedy information": GreedyDoctor(KNOWLEDGE, ITEMS, 6),
}


def worlds() -> Iterator[tuple[Case, list[float]]]:
    """Every patient that can be, with the probability to be so under each of the diseases."""
    for present in itertools.product((False, True), repeat=len(ITEMS)):
        has = {item.name: there for item, there in zip(ITEMS, present, strict=True)}
        chances = list(PRIOR)
        for item, disease in itertools.product(ITEMS, range(len(DISEASES))):
            p = POSITIVE[item.name][disease]
            if item.parent and not has[item.parent]:
                p = 0.0
            chances[disease] *= p if has[item.name] else 1 - p
        patient = case(0, "", *(fact(name) for name, there in has.items() if there))
        if any(chances):
            yield patient, chances


EVERY = list(worlds())


def by_force(patient: Case, questions: list[str]) -> str:
    """The most probable disease among the patients who would have answered all this alike."""
    weights = np.zeros(len(DISEASES))
    for other, chances in EVERY:
        has = {fact.item for fact in other.truth.facts}
        if {fact.item for fact in patient.given} <= has and all(
            WORLD.reply(patient, Action("ask", (name,))).messages
            == WORLD.reply(other, Action("ask", (name,))).messages
            for name in questions
        ):
            weights += chances
    return DISEASES[int(np.argmax(weights))]


def questions(episode: Episode) -> list[str]:
    return [turn.observation.item for turn in episode.turns if turn.observation.item]


NAMES = [item.name for item in ITEMS]


@given(
    st.sampled_from(CASES),
    st.lists(st.sampled_from([*NAMES, "moon phase"]), max_size=5),
    st.sampled_from([*DISEASES, "Lycanthropy", ""]),
)
def test_the_reader_is_right_where_enumeration_is(
    patient: Case, asked: list[str], answer: str
) -> None:
    """Whatever is asked, twice or in vain, and whatever the doctor answers, or nothing at all."""
    said = [f"<ask>{name}</ask>" for name in asked]
    said += [f"<diagnose>{answer}</diagnose>"] if answer else ["hm"] * 6
    episode = play(Script(*said), WORLD, patient)
    assert READER
    truth, found = patient.truth.diagnosis, questions(episode)
    assert read_right(episode, READER) == (by_force(patient, found) == truth)
    taken = measure(episode, False, WORLD, reader=READER)
    assert taken["exact_reader"] == read_right(episode, READER)
    assert "exact_reader" not in measure(episode, False, WORLD), "training does without"
    after = read_right_after(episode, READER)
    assert after[0] == (by_force(patient, []) == truth)
    assert (len(after), after[-1]) == (episode.questions + 1, read_right(episode, READER))


def test_it_takes_findings_and_not_the_doctors_word() -> None:
    patient = CASES[2]  # pancreatitis, which is the least probable at first
    assert READER
    seen = play(Script("<ask>lipase</ask>", "<diagnose>Flu</diagnose>"), WORLD, patient)
    guessed = play(Script("<diagnose>Pancreatitis</diagnose>"), WORLD, patient)
    assert (read_right(seen, READER), read_right(guessed, READER)) == (True, False)
    assert read_right_after(seen, READER) == [False, True]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Two episodes of each patient by both doctors, and one that failed."""
    made = Run.create(tmp_path / "run", {"cases": "handmade", "seed": 0}, {})
    for label, doctor in ASKING.items():
        played = [
            Record(label, play(doctor, WORLD, patient, key), sample=key, correct=True)
            for patient in CASES
            for key in range(2)
        ]
        failed = Episode(CASES[0], (), (), Ending.FAILED, "unplugged")
        made.write([*played, Record(label, failed, sample=2)])
    return made


def test_curves_are_the_doctors_stopped_after_each_question(run: Run) -> None:
    found = curves(run, SOURCE, WORLD)
    assert list(found) == list(ASKING)
    for label, doctor in ASKING.items():
        played = [play(doctor, WORLD, patient, key) for patient in CASES for key in range(2)]
        for asked, stop in enumerate(found[label]):
            right = [
                by_force(each.case, questions(each)[:asked]) == each.case.truth.diagnosis
                for each in played
            ]
            assert stop["accuracy"]["mean"] == pytest.approx(np.mean(right))
            assert (stop["questions"], stop["accuracy"]["n"]) == (asked, 8)
            assert 0 <= stop["accuracy"]["low"] <= stop["accuracy"]["high"] <= 1
        assert len(found[label]) == 6
    assert found["random doctor"][0] == found["greedy information"][0], "nothing is asked yet"


def test_a_doctor_whose_episodes_all_failed_has_no_curve(tmp_path: Path) -> None:
    made = Run.create(tmp_path / "run", {"cases": "handmade", "seed": 0}, {})
    label, doctor = next(iter(ASKING.items()))
    made.write([Record(label, Episode(CASES[0], (), (), Ending.FAILED, "unplugged"))])
    assert curves(made, SOURCE, WORLD) == {}
    made.write([Record(label, play(doctor, WORLD, CASES[1]))])
    assert list(curves(made, SOURCE, WORLD)) == [label]


def test_who_has_nothing_left_to_ask_counts_as_it_ended(tmp_path: Path) -> None:
    roomy, made = Consultation(ITEMS, DISEASES, max_turns=20), Run.create(tmp_path / "run", {}, {})
    doctor = GreedyDoctor(KNOWLEDGE, ITEMS, 20)
    made.write([Record("greedy information", play(doctor, roomy, each)) for each in CASES])
    (curve,) = curves(made, SOURCE, roomy).values()
    most = len(ITEMS)  # one patient of four has told one finding at the outset
    assert [stop["questions"] for stop in curve] == [*range(most), most - 0.25]


def test_every_doctor_of_an_evaluation_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who reasons exactly loses nothing in reading, and a hybrid concludes as the reader does."""
    monkeypatch.setenv("WORKUP_CACHE", str(tmp_path / "cache"))
    run = api.evaluate(
        "random doctor",
        cases="clinic:s",
        out=tmp_path / "run",
        conclude="bayes",
        evaluation={"cases": 30},
        environment={"max_turns": 6},
    )
    doctors, stopped = run.summary["doctors"], run.summary["stopped"]
    for label in ("random doctor", "random doctor, bayes concludes", "greedy information"):
        assert doctors[label]["exact_reader"] == doctors[label]["accuracy"]
    assert (
        doctors["greedy information"]["accuracy"]["mean"]
        > doctors["random doctor"]["accuracy"]["mean"]
    )
    assert set(stopped) == set(ASKING)
    for label, curve in stopped.items():
        assert len(curve) == 6
        assert curve[-1]["accuracy"] == doctors[label]["exact_reader"]
    source = open_source("clinic:s")
    assert source.knowledge
    at_once = [
        source.diagnoses[
            int(np.argmax(source.knowledge.posterior({f.item: (f.id,) for f in p.given})))
        ]
        == p.truth.diagnosis
        for p in (record.episode.case for record in run.evaluated("random doctor"))
    ]
    assert stopped["random doctor"][0]["accuracy"]["mean"] == pytest.approx(np.mean(at_once))
    assert "exact reader" in " ".join(capsys.readouterr().out.split())


def test_where_nothing_is_asked_or_known_nobody_reads(tmp_path: Path) -> None:
    clinic = open_source("clinic:xs")
    jsonl.write(list(clinic.test[:10]), tmp_path / "own.jsonl", items=clinic.items)
    own = open_source(f"jsonl:{tmp_path / 'own.jsonl'}#all")
    pathology = open_source("clinic:pathology")
    for name, source, read in (
        ("consultation", clinic, True),
        ("questioning", clinic, True),
        ("inquiry", clinic, True),
        ("library", clinic, False),
        ("evidence", pathology, False),
        ("consultation", own, False),
    ):
        module = load(name)
        world = module.open(source, module.Settings())
        assert (reader_of(source, world) is not None) == read, name
