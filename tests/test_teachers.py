"""Imitation of a doctor: what `sft.teacher` replaces, what it keeps, and what is refused."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import SMALL, Call
from handmade import CASES, DISEASES, ITEMS, KNOWLEDGE, POSITIVE, SOURCE

from workup import environments, methods
from workup.cases import open_source
from workup.core.case import Source
from workup.core.draws import seed_key
from workup.core.episode import DIAGNOSE, Turn
from workup.core.errors import UserError
from workup.core.ports import Demonstration, Environment, Teaching
from workup.core.stages import SftStage
from workup.environments.base.teacher import drawn_case
from workup.loops.training.plan import Plan
from workup.loops.training.teachers import teacher
from workup.rl.rollout import Play, ToPlay, rollout
from workup.runs.settings import Settings, build, world

# (cases, environment): every environment that has anchors, some of them in two worlds.
WORLDS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "consultation": ("clinic:xs", {"name": "consultation", "max_turns": 5}),
    "questioning": ("clinic:xs", {"name": "questioning", "max_turns": 5, "share": 0.5}),
    "inquiry": ("clinic:xs", {"name": "inquiry", "max_turns": 5}),
    "inquiry, linked": ("clinic:xs#renamed,linked", {"name": "inquiry", "max_turns": 5}),
    "library": ("clinic:xs", {"name": "library", "max_turns": 4}),
    "library, linked": (
        "clinic:xs#renamed,linked",
        {"name": "library", "max_turns": 4, "refined": "findings"},
    ),
    "reasoning": ("clinic:xs#renamed", {"name": "reasoning", "max_turns": 4}),
    "evidence": ("clinic:pathology", {"name": "evidence", "max_turns": 3}),
}
SEED, SHOWN = 7, 12


@cache
def opened(name: str) -> tuple[Source, Environment]:
    cases, chosen = WORLDS[name]
    source = open_source(cases)
    environment = world(dict(chosen), {}).open(source)
    return environment.about.presented(source, SEED), environment


PLAYED = [
    (name, label)
    for name in WORLDS
    for label in opened(name)[1].about.anchors(opened(name)[0], SEED)
]


def made(name: str, teaching: Teaching) -> list[Demonstration]:
    source, environment = opened(name)
    return [teaching.demonstrate(source, environment, SEED, index) for index in range(SHOWN)]


def turns_of(name: str, label: str, index: int) -> Sequence[Turn]:
    """What the anchor does in the encounter of the index-th demonstration, played apart."""
    source, environment = opened(name)
    doctor = environment.about.anchors(source, SEED)[label]
    case, _ = drawn_case(source, SEED, index)
    to_play = ToPlay(case, seed_key("teacher", SEED, index))
    return asyncio.run(rollout(to_play, environment, doctor, Play())).turns


def test_the_contract_covers_every_environment_of_the_package() -> None:
    assert {chosen["name"] for _, chosen in WORLDS.values()} == set(environments.names())


@pytest.mark.long
@pytest.mark.parametrize(("name", "label"), PLAYED)
def test_a_doctors_encounters_stand_where_those_of_the_method_did(name: str, label: str) -> None:
    source, environment = opened(name)
    own = Teaching(summary_share=0.2)
    usual = made(name, own)
    taught = made(name, replace(own, doctor=teacher(label, environment, source, SEED)))
    # Another doctor, who has played nothing yet, makes the same ones.
    assert taught == made(name, replace(own, doctor=teacher(label, environment, source, SEED)))
    replaced = 0
    for index, (before, shown) in enumerate(zip(usual, taught, strict=True)):
        case, _ = drawn_case(source, SEED, index)
        if before.opening != environment.open(case):
            assert shown == before  # summaries and open books
            continue
        if shown == before:  # a summary without a finding looks as an encounter does
            continue
        replaced += 1
        assert shown.opening == before.opening
        turns = turns_of(name, label, index)
        # A textbook record asks as the doctor does, and teaches the truth after each question.
        textbook = environment.write(DIAGNOSE, case.truth.diagnosis) if before.branches else ""
        taught_after = [(k, begun + rest) for k, begun, rest in shown.branches]
        if environment.about.searches:
            assert taught_after == []
        elif textbook:
            assert taught_after == [(k, textbook) for k in range(len(turns) - 1)]
        said = [environment.read(text) for text, _ in shown.exchanges]
        assert [action.errors for action in said] == [0] * len(said)
        assert [(action.kind, action.content) for action in said] == [
            (turn.action.kind, turn.action.content) for turn in turns
        ]
        assert [messages for _, messages in shown.exchanges] == [
            turn.observation.messages for turn in turns
        ]
        assert said[-1].kind == DIAGNOSE
    assert replaced > SHOWN // 6


def test_the_greedy_teacher_asks_what_brings_most_and_names_what_is_likeliest() -> None:
    """By enumeration: p(d, answers) is the product of the prior and the tables' entries."""

    def posterior(told: Mapping[str, bool]) -> list[float]:
        joint = [0.5, 0.3, 0.2]
        for item, positive in told.items():
            for d in range(3):
                p = POSITIVE[item][d]
                joint[d] *= p if positive else 1 - p
        return [p / sum(joint) for p in joint]

    def gain(told: Mapping[str, bool], item: str) -> float:
        def entropy(p: Sequence[float]) -> float:
            return -sum(each * math.log(each) for each in p if each)

        now = posterior(told)
        after = 0.0
        for positive in (True, False):
            chance = sum(
                now[d] * (POSITIVE[item][d] if positive else 1 - POSITIVE[item][d])
                for d in range(3)
            )
            after += chance * entropy(posterior({**told, item: positive}))
        return entropy(now) - after

    items = tuple(item for item in ITEMS if item.parent is None)
    cases = tuple(case for case in CASES if not case.given)
    source = Source("flat", cases, cases, items, DISEASES, knowledge=KNOWLEDGE)
    environment = world({"name": "consultation", "max_turns": 4}, {}).open(source)
    doctor = teacher("greedy", environment, source, 0)
    for index in range(12):
        shown = Teaching(textbook_share=0, doctor=doctor).demonstrate(source, environment, 0, index)
        told: dict[str, bool] = {}
        *asked, (last, _) = shown.exchanges
        for text, (answer,) in asked:
            item = environment.read(text).content[0]
            left = [each.name for each in items if each.name not in told]
            assert gain(told, item) == pytest.approx(max(gain(told, each) for each in left))
            told[item] = answer.content.startswith("Yes")
        now = posterior(told)
        assert environment.read(last).content == (DISEASES[now.index(max(now))],)


def test_what_a_reward_needs_of_the_warm_start_stays() -> None:
    """ProMed's prompts for its scorer are summaries: they are taught with every teacher."""
    method = methods.load("promed")
    source = open_source("clinic:xs")
    environment = world({}, method.environment).open(source)
    (stage, *_) = method.stages(build(method.settings, {}), environment)
    assert isinstance(stage, SftStage)
    taught = stage.taught_by(teacher("random", environment, source, 0))
    stays = 0
    for index in range(60):
        usual, shown = (each.demonstrate(source, environment, 0, index) for each in (stage, taught))
        if usual.opening != environment.open(drawn_case(source, 0, index)[0]):
            assert shown == usual
            stays += 1
    assert 5 < stays < 25


def test_the_teacher_plays_its_share_of_the_encounters() -> None:
    source, environment = opened("consultation")
    usual = Teaching(textbook_share=0)
    doctor = teacher("greedy", environment, source, 0)
    whole, some = (replace(usual, doctor=doctor, doctor_share=share) for share in (1.0, 0.25))
    counts = [0, 0]
    for index in range(400):
        own, taught, mixed = (
            each.demonstrate(source, environment, 0, index) for each in (usual, whole, some)
        )
        assert mixed in (own, taught)
        if own != taught:
            counts[mixed == taught] += 1
    assert 0.17 < counts[1] / sum(counts) < 0.33
    stage = SftStage("it", usual.demonstrate).taught_by(doctor, 0.25)
    assert getattr(stage.demonstrate, "__self__", None) == some


def test_the_first_word_of_a_label_is_enough_where_it_is_clear() -> None:
    source, environment = opened("consultation")
    for name in ("greedy", "greedy information"):
        assert type(teacher(name, environment, source, 0)).__name__ == "GreedyDoctor"
    here = r"\(sft.teacher is one of own, random doctor, greedy information, full information\)"
    with pytest.raises(UserError, match=f"^no teacher 'gredy'. Did you mean 'greedy'\\? {here}$"):
        teacher("gredy", environment, source, 0)
    with pytest.raises(UserError, match=f"^no teacher 'ideal searcher' {here}$"):
        teacher("ideal searcher", environment, source, 0)
    with pytest.raises(UserError, match=r"no teacher 'list'.*list of 1, list of 2"):
        teacher("list", opened("evidence")[1], opened("evidence")[0], 0)
    mute = replace(SOURCE, knowledge=None)
    with pytest.raises(UserError, match=r"^no teacher 'greedy': nobody here knows a model of hand"):
        teacher("greedy", world({"name": "consultation"}, {}).open(mute), mute, 0)


def test_demonstrations_of_ones_own_making_know_no_teacher() -> None:
    def own(source: Source, environment: Environment, seed: int, index: int) -> Demonstration:
        return Demonstration(environment.open(source.train[0]), ())

    source, environment = opened("consultation")
    with pytest.raises(UserError, match=r"'mine' makes its demonstrations in its own way"):
        SftStage("mine", own).taught_by(teacher("greedy", environment, source, 0))


REFUSED = {
    "a typo": (("craft", "sft.teacher=gredy"), "Did you mean 'greedy'?"),
    "another environment's": (("cmig", "sft.teacher=greedy"), "one of own, told information"),
    "no encounter is imitated": (
        ("cmig", "environment.open_books=1", "sft.teacher=told"),
        "sft.teacher=told changes nothing",
    ),
    "a share of nobody": (("craft", "sft.teacher_share=0.5"), "name one, as in sft.teacher=greedy"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_teacher_that_cannot_be_is_refused_before_anything_is_written(
    why: str, call: Call, tmp_path: Path
) -> None:
    words, told = REFUSED[why]
    status, _, said = call("train", *words, "--cases", "clinic:xs", "--out", "run")
    assert (status, said.count("\n")) == (2, 1)
    assert told in said
    assert not (tmp_path / "run").exists()


def test_a_small_share_of_a_teacher_is_heeded() -> None:
    """It may play in none of the first demonstrations, and yet in some of the later ones."""
    sft = {"teacher": "greedy", "teacher_share": 0.001}
    plan = Plan.of(Settings(method="craft", cases="clinic:xs", sft=sft, seed=1), "account")
    assert plan.teacher is not None


def test_who_begins_later_is_told_that_there_is_no_warm_start() -> None:
    begun = {"method": "promed", "begin": "grpo", "warm_start": True, "cases": "clinic:xs"}
    notes = Plan.of(Settings(**begun), "account").notes
    assert "warm_start=true changes nothing: begin=grpo leaves the warm start out" in notes
    notes = Plan.of(Settings(**begun, sft={"lr": 1e-3}), "account").notes
    told = "sft.… and warm_start=true change nothing: begin=grpo leaves the warm start out"
    assert told in notes


@pytest.mark.long
def test_a_run_keeps_whom_it_imitated_and_says_so(call: Call, tmp_path: Path) -> None:
    words = ("train", "outcome", "--cases", "clinic:xs", *SMALL, "steps=0", "sft.steps=2")
    status, _, said = call(*words, "--out", "run", "sft.teacher=greedy", "evaluation.cases=2")
    assert status == 0, said
    kept = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert kept["sft"]["teacher"] == "greedy"
    assert any(note.startswith("sft.teacher=greedy: ") for note in kept["notes"])
    assert Settings(method="outcome").sft.teacher == "own"
