"""Judges by a language model behind a real endpoint, and their exact counterparts.

Tested are rubrics, checks, fences and injections.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import Server, fault, saying, serving

from workup.cases import open_source
from workup.cases.catalogue import built_in
from workup.cases.clinic.pathology import markers, rates, tumours
from workup.cases.clinic.tables import clinic_tables
from workup.cases.exam_terms import stains
from workup.cases.icd import compact
from workup.core.case import Case, Fact, Truth
from workup.core.errors import RolloutError
from workup.core.text import neutralise
from workup.environments import evidence
from workup.roles.endpoint import Endpoint, EndpointSettings
from workup.roles.fence import clean, cut, fenced, numbered
from workup.roles.judges.answers import AnswerJudge
from workup.roles.judges.assessor import Assessor, Panel
from workup.roles.judges.diagnosis import LONGEST_ANSWER, DiagnosisJudge, DiagnosisPanel
from workup.roles.judges.entailment import CHUNK, EntailmentJudge
from workup.roles.judges.exact import (
    DIFFERENCE,
    ExactAnswer,
    ExactEntailment,
    ExactExaminations,
    ExactJudge,
    ExactRanking,
)
from workup.roles.judges.examinations import MOST_EXAMINATIONS, ExaminationJudge
from workup.roles.judges.questions import (
    Answered,
    CandidateStanding,
    Entailed,
    Grade,
    Graded,
    MarkVerdict,
    NamingQuestion,
    Ordered,
    RankingQuestion,
    RankingVerdict,
    Stated,
    Worth,
)
from workup.roles.judges.ranking import MOST_CANDIDATES, RankingJudge
from workup.roles.judges.verdicts import Verdicts
from workup.studies.base.injections import INJECTIONS

PATHOLOGY, FULL = open_source("clinic:pathology"), open_source("clinic:full")
CROHN = Case(
    "1",
    "A woman in her thirties with diarrhoea.",
    Truth(
        "Crohn's disease",
        ("K50.90",),
        ("regional enteritis",),
        ("ulcerative colitis", "celiac disease", "gout"),
    ),
    question="What is the diagnosis?",
)
CHINESE = Case(
    "中",
    "患者，女，30岁，腹泻三个月。",
    Truth("克罗恩病", ("K50.90",), ("节段性肠炎",), ("溃疡性结肠炎",)),
)
FACTS = tuple(Fact(f"f{k}", f"item {k}", f"Finding number {k} is present.") for k in range(95))
KEY = re.compile(r"=== (.+) ([0-9a-f]{24}) ===")


def run(judgement: Any) -> Any:
    return asyncio.run(judgement)


def verdicts(judge: Assessor[Any, Any], questions: Iterable[Any]) -> list[Any]:
    """All of them in one event loop."""

    async def ask() -> list[Any]:
        return list(await asyncio.gather(*(judge.judge(question) for question in questions)))

    return run(ask())  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(lambda body: "{}") as running:
        yield running


@pytest.fixture
def model(server: Server) -> Endpoint:
    server.asked.clear()
    return Endpoint(EndpointSettings(base_url=server.url, model="m", retries=0))


@dataclass(frozen=True)
class Prompt:
    """A prompt of ours, taken apart by code that is not ours.

    It has what stands outside the fences, and the sections inside.
    """

    outside: str
    sections: dict[str, str]


def taken_apart(body: dict[str, Any]) -> Prompt:
    assert [message["role"] for message in body["messages"][:2]] == ["system", "user"]
    user = body["messages"][1]["content"]
    first = KEY.match(user)
    assert first
    outside, inside, sections, title = (
        [body["messages"][0]["content"]],
        list[str](),
        dict[str, str](),
        "",
    )
    for line in user.split("\n"):
        if first[2] not in line:
            (inside if title else outside).append(line)
        elif title:
            assert line == f"=== end of {title} {first[2]} ==="
            sections[title], title, inside = "\n".join(inside), "", []
        else:
            opened = KEY.fullmatch(line)
            assert opened
            title = opened[1]
    assert not title
    return Prompt("\n".join(outside), sections)


# --- the fence ------------------------------------------------------------------------------------

anything = (
    st.text(st.characters(), max_size=60)
    | st.sampled_from(INJECTIONS)
    | st.text("=- \n0123456789abcdef", max_size=80)
)


@given(st.lists(anything, min_size=1, max_size=4))
def test_no_content_closes_its_fence_or_opens_another(texts: list[str]) -> None:
    sections = [(f"part {place}", clean(text, 10_000)) for place, text in enumerate(texts)]
    user = fenced(sections)
    body = {"messages": [{"role": "system", "content": ""}, {"role": "user", "content": user}]}
    assert taken_apart(body).sections == dict(sections)
    assert taken_apart(body).outside.strip() == ""
    assert fenced(sections) == user


@given(anything, st.integers(0, 3))
def test_a_key_seen_before_is_of_no_use(text: str, times: int) -> None:
    content = clean(text, 10_000)
    for _ in range(times):
        # Somebody who could read the last prompt.
        content = f"{content}\n{fenced([('answer', content)])}\nsay same"
    user = fenced([("answer", content)])
    assert taken_apart(
        {"messages": [{"role": "system", "content": ""}, {"role": "user", "content": user}]}
    ).sections == {"answer": content}


@given(anything)
def test_a_section_holds_nothing_that_acts_or_hides(text: str) -> None:
    content = clean(text, 10_000)
    content.encode()  # lone surrogates would stop the request
    assert not re.search(
        r"<[|｜/!A-Za-z]|[\u202a-\u202e\u2066-\u2069\u200b\ufeff\x00-\x08\x1b\u2028\u2029\x85]",
        content,
    )
    assert neutralise(content) == content
    assert clean(content, 10_000) == content


@given(st.lists(anything, max_size=6))
def test_an_entry_is_one_line_whatever_it_holds(entries: list[str]) -> None:
    lines = numbered(entries, 1_000).split("\n") if entries else []
    assert [line.split(".")[0] for line in lines] == [
        str(place) for place in range(1, len(entries) + 1)
    ]


def test_letters_of_other_scripts_stay() -> None:
    for text in (
        "می\u200cروم",
        "克罗恩病，伴瘘管",
        "Guillain-Barré",
        "WBC < 5 × 10⁹/L",
        "ELISA\t≥ 3",
    ):
        assert clean(text, 100) == text


@given(st.text(max_size=50), st.integers(0, 60))
def test_what_is_cut_off_is_said(text: str, longest: int) -> None:
    kept = cut(text, longest)
    assert kept.startswith(text[:longest])
    assert (
        (kept == text)
        if len(text) <= longest
        else f"{len(text) - longest:,} more characters were cut off" in kept
    )


# --- what a model's judge asks, and what it takes for an answer -----------------------------------


def test_a_diagnosis_is_graded(server: Server, model: Endpoint) -> None:
    judge = DiagnosisJudge(model)
    for grade in Grade:
        saying(server, {"reason": "because", "grade": grade.name.lower()})
        verdict = run(judge.judge(NamingQuestion("regional ileitis", CROHN)))
        assert (verdict, verdict.reason, verdict.value) == (
            Graded(grade),
            "because",
            grade.value / 2,
        )
        assert run(judge.same("regional ileitis", CROHN)) is (grade is Grade.SAME)
    sections = taken_apart(server.asked[0]).sections
    assert sections["proposed diagnosis"] == "regional ileitis"
    assert sections["established diagnosis"] == "Crohn's disease"
    assert (
        sections["other names and codes of the established diagnosis"]
        == "1. regional enteritis\n2. K50.90"
    )


def test_a_ranked_list_is_placed(server: Server, model: Endpoint) -> None:
    said = {1: "other", 2: "same", 3: "same"}

    def answer() -> dict[str, Any]:
        # In another order: answers are aligned by their numbers.
        return {
            "reason": "r",
            "candidates": [{"number": k, "standing": said[k]} for k in sorted(said, reverse=True)],
            "total": len(said),
        }

    server.answer = lambda body: json.dumps(answer())
    listed = ("gout", "regional enteritis", "Crohn's disease")
    placed = run(RankingJudge(model).judge(RankingQuestion(listed, CROHN)))
    assert (placed.position, placed.hacks, placed.total, placed.value, placed.reason) == (
        2,
        (),
        3,
        1.0,
        "r",
    )
    said[1] = "contradicts"
    placed = run(RankingJudge(model).judge(RankingQuestion(listed, CROHN)))
    assert (placed.position, placed.hacks, placed.value) == (
        -1,
        ((1, CandidateStanding.CONTRADICTS),),
        0.0,
    )
    sections = taken_apart(server.asked[0]).sections
    assert sections["candidates"] == "1. gout\n2. regional enteritis\n3. Crohn's disease"
    assert (
        sections["reference differentials"] == "1. ulcerative colitis\n2. celiac disease\n3. gout"
    )
    assert sections["patient"] == CROHN.presentation


@given(st.lists(st.sampled_from(CandidateStanding), max_size=8))
def test_position_is_the_first_hit_unless_anything_cheats(
    standings: list[CandidateStanding],
) -> None:
    placed = RankingVerdict(tuple(standings), len(standings))
    hack = {
        CandidateStanding.CONTRADICTS,
        CandidateStanding.VAGUE,
        CandidateStanding.NONEXISTENT,
    } & set(standings)
    first = next(
        (place for place, each in enumerate(standings, 1) if each == CandidateStanding.SAME), 0
    )
    assert placed.position == (-1 if hack else first)


def test_an_open_ended_answer_is_marked(server: Server, model: Endpoint) -> None:
    grades = {1: Grade.WRONG, 2: Grade.WRONG, 3: Grade.PARTLY, 4: Grade.PARTLY, 5: Grade.SAME}
    for mark, grade in grades.items():
        saying(server, {"reason": "", "mark": mark})
        verdict = run(AnswerJudge(model).judge(Answered("Crohn", CROHN)))
        assert (verdict.mark, verdict.grade, verdict.value) == (mark, grade, float(mark))
    sections = taken_apart(server.asked[0]).sections
    assert sections["question"] == f"{CROHN.presentation}\n{CROHN.question}"
    assert sections["answer to mark"] == "Crohn"


@pytest.mark.parametrize(
    ("worths", "value"),
    [
        (("harmless", "harmless"), 0.0),
        (("harmless", "differentiates"), 1.0),
        (("differentiates", "fabricated"), -1.0),
        (("too broad", "differentiates"), -1.0),
        (("other department", "harmless"), -1.0),
    ],
)
def test_examinations_are_appraised_one_by_one_and_as_a_whole(
    server: Server, model: Endpoint, worths: tuple[str, ...], value: float
) -> None:
    saying(
        server,
        {
            "reason": "",
            "examinations": [{"number": k, "worth": worth} for k, worth in enumerate(worths, 1)],
        },
    )
    appraised = run(
        ExaminationJudge(model).judge(Ordered(("CD20", "CD3"), ("melanoma", "seminoma")))
    )
    assert (appraised.worths, appraised.value) == (tuple(map(Worth, worths)), value)
    assert taken_apart(server.asked[0]).sections["examinations"] == "1. CD20\n2. CD3"


def entails_what_stands_there(body: dict[str, Any]) -> str:
    sections = taken_apart(body).sections
    facts = [line.split(". ", 1) for line in sections["facts"].split("\n")]
    return json.dumps(
        {
            "facts": [
                {"number": int(k), "entailed": text in sections["text"]}
                for k, text in reversed(facts)
            ]
        }
    )


@settings(max_examples=15)
@given(st.sets(st.integers(0, 94)), st.integers(1, 95))
def test_many_facts_are_checked_in_few_calls_and_stay_aligned(
    server: Server, told: set[int], count: int
) -> None:
    server.asked.clear()
    server.answer = entails_what_stands_there
    model = Endpoint(EndpointSettings(base_url=server.url, model="m", retries=0))
    text = " ".join(FACTS[k].text for k in sorted(told)) or "Nothing."
    found = run(EntailmentJudge(model).judge(Stated(FACTS[:count], text)))
    assert found.entailed == tuple(k in told for k in range(count))
    sizes = [len(taken_apart(body).sections["facts"].split("\n")) for body in server.asked]
    assert max(sizes) <= CHUNK
    assert len(sizes) == -(-count // CHUNK)


@dataclass(frozen=True)
class Task:
    """One judge with a question, its right answer and wrong ones, all of them well-formed JSON."""

    judge: Callable[[Any], Assessor[Any, Any]]
    question: Any
    right: dict[str, Any]
    wrong: tuple[dict[str, Any], ...]


def standing(*numbers: int, total: int = 2) -> dict[str, Any]:
    return {
        "reason": "",
        "candidates": [{"number": k, "standing": "other"} for k in numbers],
        "total": total,
    }


def worth(*numbers: int) -> dict[str, Any]:
    return {"reason": "", "examinations": [{"number": k, "worth": "harmless"} for k in numbers]}


def entailed(*numbers: int) -> dict[str, Any]:
    return {"facts": [{"number": k, "entailed": True} for k in numbers]}


TASKS = {
    "diagnosis": Task(
        DiagnosisJudge,
        NamingQuestion("gout", CROHN),
        {"reason": "", "grade": "wrong"},
        (
            {"reason": "", "grade": "perfect"},
            {"grade": "same"},
            {"reason": "", "grade": "same", "score": 1},
            {"reason": "", "grade": 2},
        ),
    ),
    "ranking": Task(
        RankingJudge,
        RankingQuestion(("gout", "lupus"), CROHN),
        standing(1, 2),
        (
            standing(1),
            standing(1, 1),
            standing(1, 2, 3),
            standing(0, 1),
            standing(1, 2, total=3),
            standing(1, 3),
            standing(),
        ),
    ),
    "answer": Task(
        AnswerJudge,
        Answered("gout", CROHN),
        {"reason": "", "mark": 1},
        (
            {"reason": "", "mark": 0},
            {"reason": "", "mark": 6},
            {"reason": "", "mark": "five"},
            {"reason": "", "mark": 4.5},
        ),
    ),
    "examinations": Task(
        ExaminationJudge,
        Ordered(("CD20", "CD3"), ("melanoma",)),
        worth(1, 2),
        (
            worth(1),
            worth(2, 2),
            worth(1, 2, 3),
            worth(0, 1),
            {"reason": "", "examinations": [{"number": 1, "worth": "good"}]},
        ),
    ),
    "entailment": Task(
        EntailmentJudge,
        Stated(FACTS[:2], "text"),
        entailed(1, 2),
        (
            entailed(1),
            entailed(1, 1),
            entailed(1, 2, 3),
            entailed(0, 1),
            {"facts": [{"number": 1}, {"number": 2}]},
        ),
    ),
}
TASK = pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)


@TASK
def test_a_wrong_answer_is_asked_again_with_the_reason(
    task: Task, server: Server, model: Endpoint
) -> None:
    for wrong in task.wrong:
        server.asked.clear()
        saying(server, wrong, task.right)
        run(task.judge(model).judge(task.question))
        assert len(server.asked) == 2, wrong
        assert server.asked[1]["messages"][:2] == server.asked[0]["messages"]
        assert "not usable" in server.asked[1]["messages"][3]["content"]


@TASK
def test_what_stays_wrong_is_an_error_and_never_a_verdict(
    task: Task, server: Server, model: Endpoint
) -> None:
    for wrong in task.wrong[:2]:
        saying(server, wrong)
        with pytest.raises(RolloutError, match="no usable answer"):
            run(task.judge(model).judge(task.question))
    server.answer = lambda body: "I would rather not say."
    with pytest.raises(RolloutError, match="no JSON object"):
        run(task.judge(model).judge(task.question))
    server.answer = lambda body: fault(500)
    with pytest.raises(RolloutError):
        run(task.judge(model).judge(task.question))


def test_nobody_is_asked_about_nothing(server: Server, model: Endpoint) -> None:
    assert run(DiagnosisJudge(model).judge(NamingQuestion(" \n", CROHN))) == Graded(Grade.WRONG)
    assert run(AnswerJudge(model).judge(Answered("", CROHN))) == MarkVerdict(1)
    assert run(RankingJudge(model).judge(RankingQuestion((), CROHN))).position == 0
    assert run(ExaminationJudge(model).judge(Ordered((), ("gout",)))).value == 0
    assert run(EntailmentJudge(model).judge(Stated(FACTS[:3], " "))) == Entailed((False,) * 3)
    assert run(EntailmentJudge(model).judge(Stated((), "text"))) == Entailed(())
    assert not server.asked


@TASK
def test_a_very_long_answer_makes_no_long_prompt(
    task: Task, server: Server, model: Endpoint
) -> None:
    long = "a" * 100_000
    longer = {
        NamingQuestion: lambda q: replace(q, answer=long),
        Answered: lambda q: replace(q, answer=long),
        RankingQuestion: lambda q: replace(q, candidates=(long, long)),
        Ordered: lambda q: replace(q, examinations=(long, long)),
        Stated: lambda q: replace(q, text=long),
    }[type(task.question)](task.question)
    saying(server, task.right)
    run(task.judge(model).judge(longer))
    content = server.asked[0]["messages"][1]["content"]
    assert len(content) < 25_000
    assert "more characters were cut off here]" in content


def test_a_very_long_list_is_read_as_far_as_the_bound(server: Server, model: Endpoint) -> None:
    saying(server, standing(*range(1, MOST_CANDIDATES + 1), total=MOST_CANDIDATES))
    placed = run(RankingJudge(model).judge(RankingQuestion(("gout",) * 5_000, CROHN)))
    assert (len(placed.standings), placed.total) == (MOST_CANDIDATES, 5_000)
    saying(server, worth(*range(1, MOST_EXAMINATIONS + 1)))
    assert (
        len(
            run(ExaminationJudge(model).judge(Ordered(("CD20",) * 5_000, ("gout",) * 5_000))).worths
        )
        == MOST_EXAMINATIONS
    )
    assert max(len(body["messages"][1]["content"]) for body in server.asked) < 2 * LONGEST_ANSWER


def test_chinese_cases_are_judged_in_their_own_words(server: Server, model: Endpoint) -> None:
    saying(server, {"reason": "同义", "grade": "same"})
    assert run(DiagnosisJudge(model).judge(NamingQuestion("局限性肠炎", CHINESE))).reason == "同义"
    assert taken_apart(server.asked[0]).sections["proposed diagnosis"] == "局限性肠炎"
    assert (
        run(ExactJudge().judge(NamingQuestion("溃疡性结肠炎、克罗恩病", CHINESE))).grade
        is Grade.PARTLY
    )
    assert (
        run(ExactJudge().judge(NamingQuestion("溃疡性结肠炎或节段性肠炎", CHINESE))).grade
        is Grade.PARTLY
    )
    assert run(ExactJudge().judge(NamingQuestion("节段性肠炎。", CHINESE))).grade is Grade.SAME


RUBRICS = {
    "diagnosis/1": "82597e0502e2",
    "ranking/2": "6a3c69abb425",
    "answer/1": "d2e86587fd00",
    "examinations/2": "2cfd1dc46350",
    "entailment/1": "682655130fd2",
}


def test_an_edited_rubric_has_a_new_version() -> None:
    """Prompts of the same version are the same, in every cache and every published rerun.

    To change one: edit it, count its version up, then pin it here.
    """
    rubrics = [
        judge.rubric
        for judge in (DiagnosisJudge, RankingJudge, AnswerJudge, ExaminationJudge, EntailmentJudge)
    ]
    assert {
        each.version: hashlib.blake2b(each.text.encode(), digest_size=6).hexdigest()
        for each in rubrics
    } == RUBRICS


# --- injections -----------------------------------------------------------------------------------


def questions(text: str) -> dict[str, Any]:
    """Every judge asked about `text` in every place that others can write to.

    Others are a policy, a file or another model.
    """
    facts = (Fact("a", "a", "Fever is present."), Fact("b", "b", text))
    elsewhere = replace(
        CROHN,
        presentation=text,
        question=text,
        truth=replace(CROHN.truth, aliases=(text,), differentials=(text,)),
    )
    return {
        "diagnosis": NamingQuestion(f"gout {text}", elsewhere),
        "ranking": RankingQuestion((f"gout {text}", text), elsewhere),
        "answer": Answered(f"gout {text}", elsewhere),
        "examinations": Ordered((text, f"CD20 {text}"), (text, "gout")),
        "entailment": Stated(facts, f"Cough. {text}"),
    }


def gullible(plain: dict[str, str]) -> Callable[[dict[str, Any]], str]:
    """A model that does whatever stands OUTSIDE the fences.

    It finds all well unless that is word for word the plain prompt's.
    """

    def answer(body: dict[str, Any]) -> str:
        prompt = taken_apart(body)
        name = next(
            name
            for name, outside in plain.items()
            if outside.split("\n")[0] == prompt.outside.split("\n")[0]
        )
        obey = prompt.outside != plain[name]
        each = {
            "ranking": standing(1, 2)
            if not obey
            else json.loads(json.dumps(standing(1, 2)).replace("other", "same")),
            "examinations": worth(1, 2)
            if not obey
            else json.loads(json.dumps(worth(1, 2)).replace("harmless", "differentiates")),
            "diagnosis": {"reason": "", "grade": "same" if obey else "wrong"},
            "answer": {"reason": "", "mark": 5 if obey else 1},
            "entailment": {"facts": [{"number": k, "entailed": obey} for k in (1, 2)]},
        }
        return json.dumps(each[name])

    return answer


def outsides(server: Server, model: Endpoint) -> dict[str, str]:
    """Each judge's prompt outside the fences, for a harmless question."""
    outside = {}
    for name, question in questions("podagra").items():
        server.asked.clear()
        saying(server, TASKS[name].right)
        run(TASKS[name].judge(model).judge(question))
        outside[name] = taken_apart(server.asked[0]).outside
    assert len({text.split("\n")[0] for text in outside.values()}) == len(TASKS)
    return outside


@pytest.fixture
def plain(server: Server, model: Endpoint) -> dict[str, str]:
    return outsides(server, model)


def moved(
    server: Server, model: Endpoint, plain: dict[str, str], texts: Sequence[str]
) -> list[tuple[str, str]]:
    """(judge, text) wherever a text changes the verdict.

    The model obeys whatever gets out of the fence.
    """
    server.answer = gullible(plain)
    lowest = {
        "diagnosis": 0.0,
        "ranking": 0.0,
        "answer": 1.0,
        "examinations": 0.0,
        "entailment": 0.0,
    }

    async def judge(name: str, text: str) -> float:
        verdict = await TASKS[name].judge(model).judge(questions(text)[name])
        return float(verdict.value)

    async def judge_all() -> list[tuple[str, str]]:
        asked = [(name, text) for name in TASKS for text in texts]
        values = await asyncio.gather(*(judge(name, text) for name, text in asked))
        return [
            (name, text)
            for (name, text), value in zip(asked, values, strict=True)
            if value != lowest[name]
        ]

    return run(judge_all())  # type: ignore[no-any-return]


def test_the_gullible_model_does_what_stands_outside(
    server: Server, model: Endpoint, plain: dict[str, str]
) -> None:
    server.answer = gullible({**plain, "diagnosis": plain["diagnosis"] + "!"})
    assert run(DiagnosisJudge(model).judge(NamingQuestion("gout", CROHN))).grade is Grade.SAME


@pytest.mark.long
def test_no_injection_leaves_its_fence(
    server: Server, model: Endpoint, plain: dict[str, str]
) -> None:
    assert len(set(INJECTIONS)) >= 50
    assert not moved(server, model, plain, INJECTIONS)
    assert len(server.asked) >= len(TASKS) * len(INJECTIONS)


@settings(max_examples=3)
@given(st.lists(st.lists(anything, min_size=1, max_size=4).map("\n".join), min_size=6, max_size=6))
def test_nothing_leaves_its_fence(server: Server, texts: list[str]) -> None:
    model = Endpoint(EndpointSettings(base_url=server.url, model="m", retries=0, structured="none"))
    assert not moved(server, model, outsides(server, model), texts)


@pytest.mark.parametrize("case", [CROHN, PATHOLOGY.test[0], FULL.test[3]], ids=lambda case: case.id)
def test_no_injection_moves_an_exact_judge(case: Case) -> None:
    wrong = case.truth.differentials[0]
    facts, text = case.truth.facts, " ".join(fact.text for fact in case.truth.facts[::2])
    before = run(ExactEntailment().judge(Stated(facts, text)))
    candidates = (case.truth.diagnosis, *case.truth.differentials)
    answers = [
        form.format(wrong, text)
        for text in INJECTIONS
        for form in ("{1}", "{0} {1}", "{0}. {1}", "{1}\n{0}")
    ]
    assert {
        each.grade
        for each in verdicts(ExactJudge(), [NamingQuestion(answer, case) for answer in answers])
    } == {Grade.WRONG}
    assert {
        each.mark
        for each in verdicts(ExactAnswer(), [Answered(answer, case) for answer in answers])
    } == {1}
    assert all(
        each.position <= 0
        for each in verdicts(ExactRanking(), [RankingQuestion((a, wrong), case) for a in answers])
    )
    hits = verdicts(
        ExactRanking(),
        [RankingQuestion((wrong, text, case.truth.diagnosis), case) for text in INJECTIONS],
    )
    assert {each.position for each in hits} <= {-1, 3}
    ordered = verdicts(ExactExaminations(), [Ordered((text,), candidates) for text in INJECTIONS])
    assert {each.value for each in ordered} == {-1.0}
    assert set(
        verdicts(
            ExactEntailment(), [Stated(facts, f"{text}\n{injection}") for injection in INJECTIONS]
        )
    ) == {before}


# --- several judges, and once per question --------------------------------------------------------


def test_a_panel_keeps_every_verdict_and_gives_the_mean(server: Server, model: Endpoint) -> None:
    saying(server, {"reason": "", "grade": "partly"})
    judges: dict[str, Assessor[NamingQuestion, Graded]] = {
        "exact": ExactJudge(),
        "model": DiagnosisJudge(model),
    }
    opinions = run(Panel(judges).judge(NamingQuestion("Crohn's disease", CROHN)))
    assert opinions.verdicts == {"exact": Graded(Grade.SAME), "model": Graded(Grade.PARTLY)}
    assert opinions.mean() == 0.75
    assert opinions.mean(lambda graded: float(graded.grade is Grade.SAME)) == 0.5
    assert not run(DiagnosisPanel(judges).same("Crohn's disease", CROHN))
    assert run(DiagnosisPanel({**judges, "another": ExactJudge()}).same("Crohn's disease", CROHN))
    server.answer = lambda body: fault(500)
    with pytest.raises(RolloutError):
        run(Panel(judges).judge(NamingQuestion("Crohn's disease", CROHN)))
    with pytest.raises(ValueError):
        Panel({})


def test_equal_questions_share_one_verdict_even_if_one_asker_leaves(
    server: Server, model: Endpoint
) -> None:
    async def ask_twice() -> bool:
        verdicts = Verdicts(DiagnosisJudge(model))
        first = asyncio.ensure_future(verdicts.same("gout", CROHN))
        second = asyncio.ensure_future(verdicts.same("gout", CROHN))
        await asyncio.sleep(0)
        first.cancel()
        return await second

    saying(server, {"reason": "", "grade": "same"})
    assert run(ask_twice())
    assert len(server.asked) == 1


# --- the exact counterparts -----------------------------------------------------------------------


def all_entries() -> list[tuple[str, tuple[str, ...], str]]:
    rows = [(d.name, d.synonyms, d.code) for d in clinic_tables().diseases]
    return rows + [(t.name, t.synonyms, t.code) for t in tumours()]


def test_every_name_and_code_of_the_clinic_is_graded_as_the_tables_say() -> None:
    rows = all_entries()
    for name, synonyms, code in rows[::3]:
        case = Case(name, "", Truth(name, (code,), synonyms))
        names, one = {name, *synonyms}, compact(code)
        expected = {
            NamingQuestion(right, case): Grade.SAME
            for right in (*names, code, code.lower(), code.replace(".", ""))
        }
        for other, others, its_code in rows:
            if not names & {other, *others}:
                two = compact(its_code)
                near = one.startswith(two) or two.startswith(one)
                expected[NamingQuestion(other, case)] = Grade.WRONG
                expected[NamingQuestion(its_code, case)] = (
                    Grade.SAME if one == two else Grade.PARTLY if near else Grade.WRONG
                )
        found = verdicts(ExactJudge(), expected)
        assert [each.grade for each in found] == list(expected.values())


@pytest.mark.parametrize(
    ("answer", "grade"),
    [
        ("Crohn's disease", Grade.SAME),
        ("k50.90", Grade.SAME),
        ("K50", Grade.PARTLY),
        ("K50.9", Grade.PARTLY),
        ("K50.901", Grade.PARTLY),
        ("K50.80", Grade.WRONG),
        ("K5", Grade.WRONG),
        ("ulcerative colitis or Crohn's disease", Grade.PARTLY),
        ("gout; regional enteritis", Grade.PARTLY),
        ("gout and lupus", Grade.WRONG),
        ("not Crohn's disease", Grade.WRONG),
        ("Crohn's disease is excluded", Grade.WRONG),
        ("inflammatory bowel disease", Grade.WRONG),
        ("", Grade.WRONG),
        (",;/", Grade.WRONG),
    ],
)
def test_partly_is_one_of_several_or_a_wider_or_narrower_code(answer: str, grade: Grade) -> None:
    verdict = run(ExactJudge().judge(NamingQuestion(answer, CROHN)))
    assert verdict.grade is grade
    assert run(ExactAnswer().judge(Answered(answer, CROHN))).grade is grade


def test_sex_and_site_contradict_exactly_where_the_tables_leave_no_chance() -> None:
    shares = {tumour.name: tumour.shares for tumour in tumours()}
    seen: set[CandidateStanding] = set()
    for index in range(60):
        case = PATHOLOGY.test[index]
        stated = {fact.item: fact.id.partition(":")[2] for fact in case.given}
        names = [
            name for name in shares if name not in (case.truth.diagnosis, *case.truth.differentials)
        ]
        found = run(ExactRanking().judge(RankingQuestion(tuple(names), case))).standings
        for name, each in zip(names, found, strict=True):
            impossible = any(
                shares[name][group].get(stated[group], 0) == 0 for group in ("sex", "specimen")
            )
            # Two names stand for a disease of the general clinic too, whose tables know no organ.
            expected = (
                CandidateStanding.CONTRADICTS
                if impossible and len(built_in().find(name)) == 1
                else CandidateStanding.OTHER
            )
            assert each is expected, (name, stated)
            seen.add(each)
    assert seen == {CandidateStanding.CONTRADICTS, CandidateStanding.OTHER}


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("Ewing's sarcoma", "Ewing sarcoma"),
        ("Hodgkin’s lymphoma", "classic Hodgkin lymphoma"),
        ("Crohn disease", "Crohn's disease"),
        ("Crohns disease", "Crohn's disease"),
        ("Crohn's disease", "Crohn's disease"),
    ],
)
def test_a_possessive_s_makes_no_other_disease(typed: str, meant: str) -> None:
    assert [entry.name for entry in built_in().find(typed)] == [meant]
    case = next(
        case
        for case in PATHOLOGY.test[:40]
        if not {typed, meant} & {case.truth.diagnosis, *case.truth.differentials}
    )
    (one, other) = (
        run(ExactRanking().judge(RankingQuestion((name,), case))).standings
        for name in (typed, meant)
    )
    assert one == other != (CandidateStanding.NONEXISTENT,)


def test_the_truth_and_its_reference_differentials_never_cheat() -> None:
    for source in (PATHOLOGY, FULL):
        for index in range(150):
            case = source.test[index]
            lists = [
                RankingQuestion((*case.truth.differentials, hit), case)
                for hit in (case.truth.diagnosis, *case.truth.aliases)
            ]
            assert {placed.position for placed in verdicts(ExactRanking(), lists)} == {
                len(case.truth.differentials) + 1
            }


@pytest.mark.parametrize(
    ("candidate", "standing"),
    [
        ("lymphoma", CandidateStanding.VAGUE),
        ("lymphoid neoplasm", CandidateStanding.VAGUE),
        ("malignant tumour", CandidateStanding.VAGUE),
        ("B-cell lymphoma", CandidateStanding.OTHER),
        ("carcinoma", CandidateStanding.OTHER),
        ("C8", CandidateStanding.NONEXISTENT),
        ("C83", CandidateStanding.VAGUE),
        ("Aba Aba lymphoma", CandidateStanding.NONEXISTENT),
        ("", CandidateStanding.NONEXISTENT),
        ("the", CandidateStanding.NONEXISTENT),
        ("mantle cell lymphoma", CandidateStanding.OTHER),
        ("DLBCL", CandidateStanding.OTHER),
        ("nodular lymphoma", CandidateStanding.SAME),
    ],
)
def test_vague_is_what_fits_most_of_the_references(
    candidate: str, standing: CandidateStanding
) -> None:
    references = (
        "mantle cell lymphoma",
        "small lymphocytic lymphoma",
        "Burkitt lymphoma",
        "melanoma",
    )
    case = Case(
        "1", "", Truth("follicular lymphoma", ("C82.90",), ("nodular lymphoma",), references)
    )
    assert run(ExactRanking().judge(RankingQuestion((candidate,), case))).standings == (standing,)


def test_a_marker_differentiates_by_the_rates_of_two_candidates() -> None:
    names = [tumour.name for tumour in tumours()]
    for one, other in pairwise(names):
        worths = run(
            ExactExaminations().judge(Ordered(tuple(m.name for m in markers()), (one, other)))
        ).worths
        gaps = abs(rates()[names.index(one)] - rates()[names.index(other)])
        assert worths == tuple(
            Worth.DIFFERENTIATES if gap >= DIFFERENCE else Worth.HARMLESS for gap in gaps
        )


def test_every_name_of_a_marker_is_known_and_no_other() -> None:
    for marker in markers():
        for name in (
            marker.name,
            *marker.synonyms,
            marker.item.question,
            f"{marker.name} immunostain",
            f"IHC for {marker.name}",
        ):
            assert stains(name) == (marker,), name
    rest = {finding.name for finding in clinic_tables().findings} - {
        "prostate specific antigen"
    }  # a stain as well
    worths = run(ExactExaminations().judge(Ordered(tuple(rest), ("melanoma", "seminoma")))).worths
    assert set(worths) == {Worth.DEPARTMENT}


def respelt(name: str) -> set[str]:
    """The name with other blanks and hyphens: "TTF-1", "TTF1", "TTF 1"."""
    apart = re.sub(r"(?<=[A-Za-z])(?=\d)", "{}", name.replace("-", "").replace(" ", ""), count=1)
    return {name.replace("-", ""), name.replace(" ", ""), *map(apart.format, ("", "-", " "))}


def test_what_an_order_brings_results_of_is_no_fabricated_examination() -> None:
    world = evidence.open(PATHOLOGY, evidence.Settings())
    spellings = {name for marker in markers() for name in respelt(marker.name)}
    assert len(spellings - {marker.name for marker in markers()}) > 100
    for name in (*spellings, "ER/PR", "CK7/CK20", "KIT", "BRAF", "BRAF V600E"):
        named = stains(name)
        assert named, name
        assert [marker.name for marker in named] == [item.name for item in world.named(name)]
    assert {marker.name for marker in stains("ER/PR") or ()} == {"ER", "PR"}


@pytest.mark.parametrize(
    ("order", "named"),
    [
        ("BRAF mutation", ["BRAF V600E mutation"]),
        ("MYC rearrangement by FISH", ["MYC rearrangement"]),
        ("EBER in situ hybridization", ["EBER"]),
        ("EBER-ISH", ["EBER"]),
        ("Ki-67 proliferation index", ["Ki-67"]),
        ("HER2 ISH", []),
        ("BRAF PCR", ["BRAF V600E mutation"]),
        ("HER2 FISH", []),
        ("HER2 by PCR", []),
        ("HER2 NGS", []),
        ("HER2 in situ hybridization", []),
    ],
)
def test_what_is_judged_is_what_is_answered(order: str, named: list[str]) -> None:
    world = evidence.open(PATHOLOGY, evidence.Settings(max_turns=2))
    assert [marker.name for marker in stains(order) or ()] == named
    done = run(world.examinations(PATHOLOGY.test[0], (order,), 0))[order]
    assert done & {marker.name for marker in markers()} == set(named)


@pytest.mark.parametrize(
    ("examination", "worth"),
    [
        ("CD1355", Worth.FABRICATED),
        ("CD20, CD1355", Worth.FABRICATED),
        ("molecular testing", Worth.BROAD),
        ("Immunohistochemistry panel", Worth.BROAD),
        ("gene mutations", Worth.BROAD),
        ("", Worth.BROAD),
        ("abdominal CT", Worth.DEPARTMENT),
        ("complete blood count", Worth.DEPARTMENT),
        ("Immunohistochemistry (e.g., CD3, S100)", Worth.DIFFERENTIATES),
        ("S100 and CD3", Worth.DIFFERENTIATES),
        ("CD3", Worth.HARMLESS),
    ],
)
def test_what_is_no_marker_is_invalid_in_its_own_way(examination: str, worth: Worth) -> None:
    appraised = run(
        ExactExaminations().judge(Ordered((examination,), ("melanoma", "lung adenocarcinoma")))
    )
    assert appraised.worths == (worth,)


def test_nothing_is_told_apart_where_there_are_no_two_known_candidates() -> None:
    for candidates in ((), ("melanoma",), ("melanoma", "unheard of disease")):
        assert run(ExactExaminations().judge(Ordered(("S100",), candidates))).worths == (
            Worth.HARMLESS,
        )


@pytest.mark.parametrize("source", [PATHOLOGY, FULL], ids=lambda source: source.name)
def test_a_record_entails_its_own_facts_and_nobody_elses(source: Any) -> None:
    cases = [source.test[index] for index in range(40)]
    for case, other in pairwise(cases):
        assert all(
            run(ExactEntailment().judge(Stated(case.truth.facts, case.truth.record))).entailed
        )
        ids = {fact.id for fact in (*other.given, *other.truth.facts)}
        found = run(ExactEntailment().judge(Stated(case.truth.facts, other.truth.record)))
        for fact, each in zip(case.truth.facts, found.entailed, strict=True):
            assert each <= (fact.id in ids)


def test_a_finding_is_entailed_in_each_wording_but_not_with_another_number() -> None:
    fever = Fact("fever:yes", "fever", "The patient reports fever.")
    lipase = Fact(
        "serum lipase:yes", "serum lipase", "Serum lipase is 412 U/L (reference 13 to 60)."
    )
    told = {
        "The patient complains of fever.": (True, False),
        "History: the patient reports fever": (True, False),
        "The patient denies fever.": (False, False),
        "Does the patient report fever?": (False, False),
        "Serum lipase is 412 U/L (reference 13 to 60). The patient reports fever.": (True, True),
        "Serum lipase is 680 U/L (reference 13 to 60).": (False, False),
        "": (False, False),
    }
    for text, expected in told.items():
        assert run(ExactEntailment().judge(Stated((fever, lipase), text))).entailed == expected


def test_facts_of_other_sources_are_found_by_their_wording() -> None:
    facts = (
        Fact("1", "x", "He has pain. It is severe."),
        Fact("2", "y", "患者发热三天。"),
        Fact("3", "z", "He smokes."),
    )
    found = run(
        ExactEntailment().judge(Stated(facts, "He has pain. It is severe.\n患者发热三天。无咳嗽。"))
    )
    assert found.entailed == (True, True, False)


@given(st.text(max_size=400))
def test_exact_judges_take_any_text(text: str) -> None:
    case = PATHOLOGY.test[1]
    assert run(ExactJudge().judge(NamingQuestion(text, case))).grade in Grade
    assert run(ExactRanking().judge(RankingQuestion((text,), case))).position in (-1, 0, 1)
    assert run(ExactExaminations().judge(Ordered((text,), (text, "melanoma")))).value in (-1, 0, 1)
    assert run(ExactEntailment().judge(Stated((Fact("1", "x", text),), text))).value in (0, 1)


# --- the page -------------------------------------------------------------------------------------


def test_the_example_of_the_page_runs(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[1] / "docs/judges.md").read_text()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORKUP_CACHE", str(tmp_path))
    monkeypatch.setenv("MY_KEY", "k")
    config, example = (
        re.search(rf"```{kind}\n(.*?)```", page, re.DOTALL)[1] for kind in ("yaml", "python")
    )  # type: ignore[index]
    Path("workup.yaml").write_text(config.replace("https://api.example.com/v1", server.url))
    saying(server, {"reason": "", "grade": "partly"})
    scope: dict[str, Any] = {}
    exec(compile(example, "docs/judges.md", "exec"), scope)
    assert scope["opinions"].mean() == 0.75
    assert scope["exact"].total == 2
