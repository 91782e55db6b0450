"""A partly right answer in training (MR-3): every judge's grade, and what the reward pays."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from workup import environments, methods
from workup.cases import open_source
from workup.cases.clinic.renamed import called
from workup.core.case import Case, Truth
from workup.core.episode import Completion, Ending, Episode, Turn
from workup.core.errors import RolloutError
from workup.core.ports import Instruments
from workup.core.stages import GrpoStage
from workup.environments.base.queries import listed_in
from workup.environments.reasoning import Settings
from workup.methods.base.encoders import trigrams
from workup.methods.base.outcome import Partly, accuracy, graded
from workup.methods.medr3 import Settings as MedR3Settings
from workup.methods.medr3.progressive import Reads, progressive
from workup.roles.judges.diagnosis import DiagnosisPanel
from workup.roles.judges.exact import ExactJudge
from workup.roles.judges.options import OptionJudge
from workup.roles.judges.questions import Grade, Graded, NamingQuestion
from workup.roles.judges.verdicts import Verdicts

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

    async def judge(self, question: NamingQuestion) -> Graded:
        self.times += 1
        return Graded(self.said)

    async def same(self, answer: str, case: Case) -> bool:
        return (await self.judge(NamingQuestion(answer, case))).grade is Grade.SAME

    async def grade(self, answer: str, case: Case) -> float:
        return (await self.judge(NamingQuestion(answer, case))).value


@given(st.text(max_size=30) | st.sampled_from([NAME, f"{NAME} or {OTHER}", f"{OTHER}, {NAME}"]))
def test_right_is_the_grade_one_to_every_judge(answer: str) -> None:
    for judge in (ExactJudge(), OptionJudge(ExactJudge())):
        for case in (CASE, QUIZ):
            grade = run(judge.grade(answer, case))
            assert grade in (0, 0.5, 1)
            assert (grade == 1) is run(judge.same(answer, case))


@pytest.mark.parametrize(
    ("truth", "answer", "right"),
    [
        ("community-acquired pneumonia", "Community-Acquired Pneumonia (CAP)", True),
        ("Wilson disease", "Wilson's disease", True),
        ("hemophilia", "haemophilia", True),
        ("ischemic stroke", "Ischaemic stroke", True),
        ("brain tumor", "brain tumour", True),
        ("asthma", "1. asthma", True),
        ("asthma", "Diagnosis: asthma", True),
        ("asthma", "Diagnosis: no asthma", False),
        ("asthma", "asthma (viral)", False),
        ("pneumonia", "aspiration pneumonia", False),
        *(("asthma", f"{sign} asthma", False) for sign in "🚫×−☒"),
        *(("asthma", f"asthma {said}", False) for said in ("(-)", "×", "= no", "(0 %)", "؟")),
        *(
            ("asthma", said, False)
            for said in ("absence of asthma", "resolved asthma", "asthma, no")
        ),
    ],
)
def test_a_name_is_the_same_in_other_spelling_and_not_where_it_is_denied(
    truth: str, answer: str, right: bool
) -> None:
    case = Case("c", "A patient.", Truth(truth))
    assert asyncio.run(ExactJudge().same(answer, case)) is right


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


@pytest.mark.parametrize("partly", [0.5, 0.0, 0.25])
def test_a_partly_right_answer_is_paid_as_set(partly: float) -> None:
    reward, _ = progressive(WORLD, ("answer",), Reads(trigrams, partly=Partly(partly)))
    answers = (NAME, f"{OTHER} or {NAME}", OTHER)
    batch = (tuple(map(answered, answers)),)
    (scores,) = run(reward(batch, Instruments(ExactJudge())))
    assert [score.parts["answer"] for score in scores] == [1, partly, 0]
    assert [run(accuracy(each, ExactJudge())) for each in batch[0]] == [1, 0, 0]


def test_the_methods_pay_half_as_printed_and_what_one_sets() -> None:
    method = methods.load("medr3")
    assert MedR3Settings().partly == 0.5
    for chosen, worth in ((MedR3Settings(recipe="3"), 0.5), (MedR3Settings(partly=0.0), 0.0)):
        stage = method.stages(chosen, WORLD)[-1]
        assert isinstance(stage, GrpoStage)
        batch = ((answered(f"{OTHER} or {NAME}"),),)
        score = run(stage.reward(batch, Instruments(ExactJudge())))[0][0]
        assert score.parts == {"format": 1, "answer": worth}
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
        async def judge(self, question: NamingQuestion) -> Graded:
            raise RolloutError("no verdict")

    reward, _ = progressive(WORLD, ("answer",), Reads(trigrams))
    with pytest.raises(RolloutError, match="no verdict"):
        run(reward(((answered(NAME),),), Instruments(Silent(Grade.SAME))))


# --- what a policy can write to be paid without knowing ---


def paid(answer: str, case: Case = CASE, partly: Partly | None = None) -> float:
    """The pay for an answer by the exact judges."""
    rule = partly or Partly(diagnoses=tuple(CLINIC.diagnoses))
    return run(graded(replace(answered(answer), case=case), OptionJudge(ExactJudge()), rule))


ALL = CLINIC.diagnoses
NOT_PAID = [
    # all names, in whatever is put between them
    *(sign.join(ALL) for sign in (", ", "; ", " or ", " and ", "/", "\n", " | ", ". ", " + ", " ")),
    *(sign.join((NAME, *ALL)) for sign in (", ", " or ")),
    f"{NAME}, {' and '.join(ALL)}",
    f"{NAME}, {' '.join(ALL)}",
    f"{NAME} or {' + '.join(ALL)}",
    f"{NAME}, {'. '.join(ALL)}",
    # three of them
    f"{NAME}, {', '.join(name for name in ALL if name != NAME)[:2]}, {OTHER}",
    f"{OTHER}, {NAME}, {next(name for name in ALL if name not in (NAME, OTHER))}",
    # denials, before and behind
    *(f"{no}, {NAME}" for no in ("no", "not", "never", "none", "No", "wrong", "false", "不是")),
    *(f"{no} {OTHER}, {NAME}" for no in ("not", "neither", "ruled out:", "I exclude")),
    *(f"{no} {OTHER}, {NAME}" for no in ("anything but", "without", "rather than", "no")),
    *(f"{NAME}, {no}" for no in ("no", "not", "which was ruled out", "ruled out", "excluded")),
    *(f"{NAME}, {no}" for no in ("unlikely", "which it is not", "definitely not it", "but not it")),
    *(f"{NAME}; {no}" for no in ("no", "it was excluded", "rejected", "已排除")),
    f"{NAME} or not",
    f"{NAME} or nothing",
    f"!{OTHER}, {NAME}",
    f"{OTHER}, {NAME}, both ruled out",
    f"no: {OTHER} / {NAME}",
    # doubts and questions, the question that was asked among them
    f"possibly {OTHER}, {NAME}",
    f"{OTHER}, {NAME}, perhaps",
    f"{OTHER}, {NAME}?",
    f"{NAME}, {OTHER}?",
    f"Is it {OTHER}, {NAME}",
    f"Which is it, {NAME}",
    f"The question is, {NAME}",
    f"whether {OTHER}, {NAME}",
    f"r/o {OTHER}, {NAME}",
]


@pytest.mark.parametrize("answer", NOT_PAID)
def test_who_names_many_denies_doubts_or_asks_is_not_paid(answer: str) -> None:
    assert paid(answer) == 0


@pytest.mark.parametrize(
    "answer",
    [f"{OTHER}, {NAME}", f"{NAME} or {OTHER}", f"either {OTHER} or {NAME}"],
)
def test_two_names_that_are_meant_pay_half(answer: str) -> None:
    assert paid(answer) == 0.5
    assert paid(answer, partly=Partly(0.25)) == 0.25
    assert paid(answer, partly=Partly(0.6)) == 0, "two names would pay more than one"


def test_a_truth_whose_own_name_doubts() -> None:
    case = replace(CASE, truth=Truth("Possible NSTEMI"))
    assert paid("Possible NSTEMI, gout", case) == 0.5
    assert paid("Possible NSTEMI, possibly gout", case) == 0


def test_a_listed_name_within_a_longer_one_is_not_named() -> None:
    names = ("pneumonia", "viral pneumonia", "流感", "肺炎")
    for text, found in (
        ("viral pneumonia", ["viral pneumonia"]),
        ("viral pneumonia, pneumonia", ["viral pneumonia", "pneumonia"]),
        ("viral <i>pneumonia</i> flu", ["viral pneumonia"]),
        ("pneumonias", []),
        ("患流感和肺炎", ["流感", "肺炎"]),
    ):
        assert listed_in(text, names, CASE) == found


def test_names_that_hold_and_are_one_name() -> None:
    """A comma tells them apart; what cuts at "and" as well would count four."""
    case = replace(CASE, truth=Truth("Aortic aneurysm and dissection"))
    assert paid(f"Aortic aneurysm and dissection, {OTHER}", case) == 0.5
    assert paid("Gout, Head and neck cancer", replace(CASE, truth=Truth("Gout"))) == 0.5


def test_a_denied_answer_is_wrong_to_the_exact_judge_itself() -> None:
    for answer in (f"no, {NAME}", f"{NAME}, which was ruled out", f"Is it {OTHER}, {NAME}?"):
        assert run(ExactJudge().grade(answer, CASE)) == 0
    for answer in (f"{OTHER}, {NAME}", ", ".join(ALL)):
        assert run(ExactJudge().grade(answer, CASE)) == 0.5


def test_printed_pays_whatever_the_judge_calls_partly_right() -> None:
    printed, strict = Partly(marking="printed"), Partly()
    for answer in (", ".join(ALL), f"possibly {OTHER}, {NAME}", f"no, {NAME}"):
        for rule, expected in ((printed, 0.5), (strict, 0)):
            judge = Saying(Grade.PARTLY)
            assert run(graded(answered(answer), judge, rule)) == expected
    method = methods.load("medr3")
    for marking, expected in (("printed", 0.5), ("strict", 0.0)):
        stage = method.stages(MedR3Settings(recipe="3", marking=marking), WORLD)[-1]
        assert isinstance(stage, GrpoStage)
        batch = ((answered(", ".join(ALL)),),)
        score = run(stage.reward(batch, Instruments(ExactJudge())))[0][0]
        assert score.parts["answer"] == expected


def test_listed_names_are_counted_whatever_stands_between_them() -> None:
    """A model may call a row of names without any separator partly right."""
    judge, row = Saying(Grade.PARTLY), " ".join(ALL[:4])
    assert run(graded(answered(row), judge, Partly(diagnoses=tuple(ALL)))) == 0
    assert run(graded(answered(f"{ALL[0]} {ALL[1]}"), judge, Partly(diagnoses=tuple(ALL)))) == 0.5


@pytest.mark.parametrize(
    ("letters", "expected"), [("AB", 0.5), ("B", 0.5), ("ABC", 0), ("ABCD", 0)]
)
def test_all_options_are_no_answer(letters: str, expected: float) -> None:
    case = replace(QUIZ, presentation=CASE.presentation)
    assert paid(letters, case) == expected
    three = replace(case, truth=Truth("x", extra={"right": ["Flu", "Gout", "Lyme"]}))
    assert paid("ABD", three) == 0.5, "as many as are right together"


weights = st.lists(st.floats(0.01, 1), min_size=len(ALL), max_size=len(ALL))


@settings(max_examples=50)
@given(
    weights,
    st.lists(st.sampled_from(ALL), min_size=1, max_size=len(ALL)),
    st.lists(st.sampled_from([", ", " or ", "; ", " and ", ". ", " + ", " "]), min_size=24),
    st.sampled_from([0.5, 0.34, 0.25, 1.0]),
)
def test_no_answer_is_paid_more_in_the_mean_than_the_likeliest_name(
    weights: list[float], names: list[str], signs: list[str], pay: float
) -> None:
    """Any text of names, over any posterior; truth by truth, by the exact judge."""
    text = "".join(f"{name}{sign}" for name, sign in zip(names, signs, strict=False)).strip(" ,;.+")
    rule = Partly(pay, diagnoses=tuple(ALL))
    expected = sum(
        weight * paid(text, replace(CASE, truth=Truth(truth)), rule)
        for truth, weight in zip(ALL, weights, strict=True)
    )
    assert expected <= max(weights) * (1 + 1e-9)


def test_in_a_renamed_clinic_the_cases_own_names_are_counted() -> None:
    source = open_source("clinic:s#renamed")
    case = source.train[0]
    rule = Partly(diagnoses=tuple(source.diagnoses), library=source.library)
    truth = case.truth.diagnosis
    others = [name for name in called(case).values() if name != truth]
    judge = Saying(Grade.PARTLY)
    for answer, worth in (
        (f"{truth} {others[0]}", 0.5),
        (f"{truth} {others[0]} {others[1]}", 0),
        (" ".join(called(case).values()), 0),
    ):
        assert run(graded(replace(answered(answer), case=case), judge, rule)) == worth
