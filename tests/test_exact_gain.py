"""Ideal credit: each question's exact gain, against Bayes' rule by enumeration; who can have it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import pytest
import yaml
from command_line import SMALL, Call, steps_of
from handmade import CASES, DISEASES, ITEMS, POSITIVE, SOURCE, Script, play
from hypothesis import given
from hypothesis import strategies as st

from workup import methods
from workup.core.case import Case
from workup.core.episode import DIAGNOSE, Score
from workup.core.errors import UserError
from workup.core.ports import Environment, Instruments, alone
from workup.core.stages import GrpoStage, Stage
from workup.environments.base.anchors import BayesDiagnoser, exact_reader
from workup.environments.consultation import Consultation
from workup.methods.base.exact_gain import LEAST, exact_gain, paid_by_gain, potential, r
from workup.roles.judges.exact import ExactJudge
from workup.runs.settings import Settings, build, read, world

WORLD = Consultation(ITEMS, DISEASES, max_turns=5)
QUESTIONS = world({"name": "questioning", "max_turns": 5}, {}).open(SOURCE)
NAMES = tuple(item.name for item in ITEMS)
PRIOR = (0.5, 0.3, 0.2)


def chance(d: int, answers: Mapping[str, bool]) -> float:
    """P(d, the answers to all items): sputum needs a cough, all else is independent given d."""
    p = PRIOR[d]
    for name, positive in answers.items():
        if name == "sputum" and not answers["cough"]:
            p *= not positive
        else:
            p *= POSITIVE[name][d] if positive else 1 - POSITIVE[name][d]
    return p


def posterior(told: Mapping[str, bool], truth: str) -> float:
    """P(truth | told), summed over every answer that `told` leaves open."""
    joint = [0.0] * len(DISEASES)
    for values in product((True, False), repeat=len(NAMES)):
        answers = dict(zip(NAMES, values, strict=True))
        if all(answers[name] == positive for name, positive in told.items()):
            for d in range(len(DISEASES)):
                joint[d] += chance(d, answers)
    return joint[DISEASES.index(truth)] / sum(joint)


def told_by(case: Case, asked: Sequence[str], *, record: bool = True) -> list[dict[str, bool]]:
    """What is known before the first and after each question: item → whether it is positive.

    A `record` answers for the cough where sputum is asked for; a patient says "no" to the sputum.
    """
    has = {fact.item for fact in (*case.given, *case.truth.facts)}
    told = {fact.item: True for fact in case.given}
    known = [dict(told)]
    for name in asked:
        if record and name == "sputum" and not {"sputum", "cough"} & has:
            told["cough"] = False
        told[name] = name in has
        known.append(dict(told))
    return known


def scores(environment: Environment, case: Case, *scripts: Sequence[str]) -> list[Score]:
    reader = exact_reader(SOURCE, environment)
    assert reader is not None
    reward = exact_gain(potential(reader))
    episodes = tuple(play(Script(*lines), environment, case) for lines in scripts)
    ((*marks,),) = asyncio.run(reward((episodes,), Instruments(ExactJudge())))
    return list(marks)


@given(
    st.sampled_from(CASES),
    st.lists(st.sampled_from(NAMES), max_size=4),
    st.sampled_from(DISEASES),
    st.sampled_from([WORLD, QUESTIONS]),
)
def test_each_question_is_paid_what_its_answer_told(
    case: Case, asked: list[str], named: str, environment: Environment
) -> None:
    kinds = {item.name: item.kind.value for item in ITEMS}
    lines = [environment.write(kinds[name], name) for name in asked]
    (score,) = scores(environment, case, [*lines, environment.write(DIAGNOSE, named)])
    truth = case.truth.diagnosis
    Φ = [
        math.log(posterior(told, truth))
        for told in told_by(case, asked, record=environment is WORLD)
    ]
    acc = float(named == truth)
    expected = [after - before for before, after in pairwise(Φ)]
    assert score.turns == pytest.approx((*expected, acc))
    assert score.total == pytest.approx(Φ[-1] - Φ[0] + acc)  # the sum telescopes
    assert sum(score.parts.values()) == pytest.approx(score.total)


def test_what_tells_nothing_is_paid_nothing() -> None:
    again = "<ask>fever</ask>"
    lines = [again, again, "nonsense", "<ask>moon phase</ask>", "<diagnose>Flu</diagnose>"]
    (score,) = scores(WORLD, CASES[0], lines)
    assert score.turns[1:] == (0, 0, 0, 1)
    assert score.turns[0] == pytest.approx(
        math.log(posterior({"fever": True}, "Flu") / posterior({}, "Flu"))
    )


def test_without_a_diagnosis_the_last_turn_pays_the_penalty() -> None:
    asked = ["fever", "cough", "hobby", "lipase", "crackles"]
    kinds = {item.name: item.kind.value for item in ITEMS}
    lines = [WORLD.write(kinds[name], name) for name in asked]
    (score,) = scores(WORLD, CASES[0], lines)
    Φ = [math.log(posterior(told, "Flu")) for told in told_by(CASES[0], asked)]
    assert score.turns[-1] == pytest.approx(Φ[-1] - Φ[-2] - 0.2)
    assert score.parts["malformed"] == -0.2


def test_the_equation_by_hand() -> None:
    assert r([math.log(0.1), math.log(0.4), math.log(0.2), math.log(0.2)], 1.0) == pytest.approx(
        (math.log(4), -math.log(2), 1.0)
    )


def test_an_answer_costs_no_more_than_the_least_probability_allows() -> None:
    class Sure:
        """A model that rules the truth out after any answer."""

        diagnoses = DISEASES

        def posterior(self, evidence: Mapping[str, tuple[str, ...]]) -> Sequence[float]:
            return (0.0, 1.0, 0.0) if evidence else (0.5, 0.3, 0.2)

        def gains(self, evidence: object, items: Sequence[str]) -> Sequence[float]:
            return [0.0] * len(items)

        def read(self, case: object, headings: object = None) -> dict[str, tuple[str, ...]]:
            return {}

    reward = exact_gain(potential(BayesDiagnoser(Sure(), ITEMS)))
    episode = play(Script("<ask>fever</ask>", "<diagnose>Flu</diagnose>"), WORLD, CASES[0])
    ((score,),) = asyncio.run(reward(((episode,),), Instruments(ExactJudge())))
    assert score.turns == pytest.approx((math.log(LEAST / 0.5), 1.0))


# --- in a method's place ---


def stages(name: str, environment: Environment) -> Sequence[Stage]:
    method = methods.load(name)
    return method.stages(build(method.settings, {}), environment)


@pytest.mark.parametrize("name", ["craft", "outcome", "promed", "grpo"])
def test_only_the_reinforcement_of_a_method_is_paid_otherwise(name: str) -> None:
    environment = world({}, methods.load(name).environment).open(SOURCE)
    own = stages(name, environment)
    paid = paid_by_gain(own, SOURCE, environment)
    assert [stage.name for stage in paid] == [stage.name for stage in own]
    for before, after in zip(own, paid, strict=True):
        if isinstance(after, GrpoStage):
            assert (after.scorers, after.models, after.settle) == ((), (), None)
            after.fits(CASES[0])
            with pytest.raises(UserError, match=r"case 'case-1': the model .* know 'Gout'"):
                after.fits(replace(CASES[0], truth=replace(CASES[0].truth, diagnosis="Gout")))
        else:
            assert after is before


def test_asking_on_is_worth_what_it_brings_to_others() -> None:
    """Of two episodes with equal first questions the one that asks on and learns is preferred.

    The first question told nothing: it is not paid for the luck of the second.
    """
    (*_, stage) = paid_by_gain(stages("outcome", WORLD), SOURCE, WORLD)
    assert isinstance(stage, GrpoStage)
    short = ["<ask>hobby</ask>", "<diagnose>Pneumonia</diagnose>"]
    long = ["<ask>hobby</ask>", "<image>chest film</image>", "<diagnose>Pneumonia</diagnose>"]
    batch = (tuple(play(Script(*lines), WORLD, CASES[1]) for lines in (short, long)),)
    marks = asyncio.run(stage.reward(batch, Instruments(ExactJudge())))
    ((stopped, asked),) = stage.credit(batch, marks, alone)
    assert asked[0] == stopped[0] == pytest.approx(0)
    assert asked[1] > 0 > stopped[1]


def test_the_word_stands_beside_the_methods_own_settings() -> None:
    for words in (["reward=exact-gain", "reward.focus=0.2"], ["reward.name=exact-gain"]):
        settings = Settings(method="craft", **read(words))
        assert settings.exact_gain
    assert Settings(method="craft", reward="exact-gain").own_reward == {}
    usual = Settings(method="craft", **read(["reward.focus=0.2"]))
    assert (usual.exact_gain, usual.own_reward) == (False, {"focus": 0.2})
    paper = Settings(method="craft", preset="paper", reward="exact-gain")
    assert (paper.exact_gain, paper.own_reward["normalise"]) == (True, "group_std")


REFUSED = {
    "a typo": (("craft", "reward=exactgain"), "Did you mean 'exact-gain'?"),
    "nothing is reinforced": (("sft-gt", "reward=exact-gain"), "for a method that reinforces"),
    "nothing can be asked for": (("cmig", "reward=exact-gain"), "nothing can be asked for"),
    "lists": (
        ("evidence-seeking", "--cases", "clinic:pathology", "reward=exact-gain"),
        "nothing can be asked for",
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_where_it_cannot_be_had_nothing_is_written(why: str, call: Call, tmp_path: Path) -> None:
    words, told = REFUSED[why]
    cases = () if "--cases" in words else ("--cases", "clinic:xs")
    status, _, said = call("train", *words, *cases, "--out", "run")
    assert (status, said.count("\n")) == (2, 1)
    assert told in said
    assert not (tmp_path / "run").exists()


def test_cases_without_a_model_are_refused() -> None:
    with pytest.raises(UserError, match=r"needs a model of the cases, which handmade does not"):
        paid_by_gain(stages("outcome", WORLD), replace(SOURCE, knowledge=None), WORLD)


@pytest.mark.long
def test_searches_are_paid_where_names_have_to_be_looked_up(call: Call, tmp_path: Path) -> None:
    words = ("train", "search-r1", "--cases", "clinic:xs#renamed,linked", *SMALL)
    small = ("steps=1", "sft.steps=2", "evaluation.cases=2", "environment.max_turns=4")
    status, _, said = call(*words, *small, "--out", "run", "reward=exact-gain")
    assert status == 0, said
    (line,) = steps_of(tmp_path / "run", "grpo")
    assert set(line["parts"]) == {"gain", "acc", "malformed"}


@pytest.mark.long
def test_a_run_is_paid_so_and_says_so(call: Call, tmp_path: Path) -> None:
    words = ("train", "craft", "--cases", "clinic:xs", *SMALL, "steps=2", "sft.steps=5")
    status, _, said = call(*words, "--out", "run", "evaluation.cases=2", "reward=exact-gain")
    assert status == 0, said
    kept = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert kept["reward"]["name"] == "exact-gain"
    assert any(note.startswith("reward=exact-gain: ") for note in kept["notes"])
    for line in steps_of(tmp_path / "run", "grpo"):
        assert sum(line["parts"].values()) == pytest.approx(line["reward"])
