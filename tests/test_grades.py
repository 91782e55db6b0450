"""A partly right answer in training (MR-3): every judge's grade, and what the reward pays."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from workup import environments, methods
from workup.case import Case, Truth
from workup.cases import open_source
from workup.environments.reasoning import Settings
from workup.episode import Completion, Ending, Episode, Turn
from workup.errors import RolloutError
from workup.judges.diagnosis import DiagnosisPanel
from workup.judges.exact import ExactJudge
from workup.judges.options import OptionJudge
from workup.judges.questions import Grade, Graded, Named
from workup.judges.verdicts import Verdicts
from workup.methods.medr3 import Settings as MedR3Settings
from workup.ports import Instruments
from workup.rewards.outcome import accuracy
from workup.rewards.progressive import Reads, progressive
from workup.rewards.searching import trigrams
from workup.stages import GrpoStage

T = TypeVar("T")
CLINIC = open_source("clinic:xs")
CASE: Case = CLINIC.train[0]
NAME, OTHER = CASE.truth.diagnosis, next(d for d in CLINIC.diagnoses if d != CASE.truth.diagnosis)
WORLD = environments.load("reasoning").open(CLINIC, Settings())
QUIZ = Case(
    "q",
    "Which?",
    Truth("Gout; Lyme", extra={"right": ["Gout", "Lyme"]}),
    options=("Flu", "Gout", "Lyme", "Sepsis"),
)


def run(awaited: Awaitable[T]) -> T:
    return asyncio.run(awaited)  # type: ignore[arg-type]


def answered(answer: str) -> Episode:
    text = f"<think>So.</think><answer>{answer}</answer>"
    action = WORLD.read(text)
    turn = Turn((), Completion(text), action, run(WORLD.answer(CASE, (), action)))
    return Episode(CASE, WORLD.open(CASE), (turn,), Ending.DIAGNOSED)


@dataclass
class Saying:
    """A judge that always gives one grade, and counts."""

    said: Grade
    times: int = 0

    async def judge(self, question: Named) -> Graded:
        self.times += 1
        return Graded(self.said)

    async def same(self, answer: str, case: Case) -> bool:
        return (await self.judge(Named(answer, case))).grade is Grade.SAME

    async def grade(self, answer: str, case: Case) -> float:
        return (await self.judge(Named(answer, case))).value


@given(st.text(max_size=30) | st.sampled_from([NAME, f"{NAME} or {OTHER}", f"{OTHER}, {NAME}"]))
def test_right_is_the_grade_one_to_every_judge(answer: str) -> None:
    for judge in (ExactJudge(), OptionJudge(ExactJudge())):
        for case in (CASE, QUIZ):
            grade = run(judge.grade(answer, case))
            assert grade in (0, 0.5, 1)
            assert (grade == 1) is run(judge.same(answer, case))


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_panels_grade_is_what_a_majority_reaches(size: int) -> None:
    """All grades of up to four judges, against counting."""
    for said in itertools.product(Grade, repeat=size):
        panel = DiagnosisPanel({str(n): Saying(grade) for n, grade in enumerate(said)})
        same = sum(grade is Grade.SAME for grade in said)
        partly = sum(grade is not Grade.WRONG for grade in said)
        expected = 1 if 2 * same > size else 0.5 if 2 * partly > size else 0
        assert run(panel.grade("x", CASE)) == expected
        assert run(panel.same("x", CASE)) is (expected == 1)


def test_options_that_overlap_the_right_ones_are_partly_right() -> None:
    """All sets of options: the oracle is the sets' own relation."""
    judge = OptionJudge(ExactJudge())
    for count in range(1, 5):
        for letters in itertools.combinations("ABCD", count):
            named = set(letters)
            expected = 1 if named == {"B", "C"} else 0.5 if named & {"B", "C"} else 0
            assert run(judge.grade(", ".join(letters), QUIZ)) == expected
    assert run(judge.grade("Tea", QUIZ)) == 0


@pytest.mark.parametrize("partly", [0.5, 0.0, 1.0, 0.25])
def test_a_partly_right_answer_is_paid_as_set(partly: float) -> None:
    reward, _ = progressive(WORLD, ("answer",), Reads(trigrams, partly=partly))
    answers = (NAME, f"{OTHER} or {NAME}", OTHER)
    batch = (tuple(map(answered, answers)),)
    (scores,) = run(reward(batch, Instruments(ExactJudge())))
    assert [score.parts["answer"] for score in scores] == [1, partly, 0]
    assert [run(accuracy(each, ExactJudge())) for each in batch[0]] == [1, 0, 0]


def test_the_methods_pay_half_as_printed_and_what_one_sets() -> None:
    method = methods.load("medr3")
    assert MedR3Settings().partly == 0.5
    for settings, paid in ((MedR3Settings(recipe="3"), 0.5), (MedR3Settings(partly=0.0), 0.0)):
        stage = method.stages(settings, WORLD)[-1]
        assert isinstance(stage, GrpoStage)
        batch = ((answered(f"{OTHER} or {NAME}"),),)
        score = run(stage.reward(batch, Instruments(ExactJudge())))[0][0]
        assert score.parts == {"format": 1, "answer": paid}
    with pytest.raises(ValidationError):
        MedR3Settings(partly=1.5)


def test_nobody_is_paid_for_an_answer_that_was_not_given() -> None:
    reward, _ = progressive(WORLD, ("answer",), Reads(trigrams))
    judge = Saying(Grade.SAME)
    unsaid = replace(answered(NAME), ending=Ending.OUT_OF_TURNS)
    assert run(reward(((unsaid,),), Instruments(judge)))[0][0].total == 0
    assert judge.times == 0


def test_verdict_and_grade_are_one_judgement() -> None:
    judge = Saying(Grade.PARTLY)
    verdicts = Verdicts(judge)

    played = answered(OTHER)

    async def both() -> tuple[Any, ...]:
        episode, verdict = await verdicts.settle(played)
        return verdict, await verdicts.grade(OTHER, episode.case), await verdicts.same(OTHER, CASE)

    assert run(both()) == (False, 0.5, False)
    assert judge.times == 1


def test_a_judge_that_gives_up_has_no_grade() -> None:
    class Silent(Saying):
        async def judge(self, question: Named) -> Graded:
            raise RolloutError("no verdict")

    reward, _ = progressive(WORLD, ("answer",), Reads(trigrams))
    with pytest.raises(RolloutError, match="no verdict"):
        run(reward(((answered(NAME),),), Instruments(Silent(Grade.SAME))))
