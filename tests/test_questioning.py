"""The questioning environment: its one parse, its opening and its turns.

Tested is also which options an answer chooses.
"""

from __future__ import annotations

import asyncio
import json
import time
import timeit
from dataclasses import replace
from functools import partial as partial_
from itertools import combinations

import numpy as np
import pytest
from handmade import CASES, ITEMS, SOURCE, Script, play
from hypothesis import given
from hypothesis import strategies as st
from serving import serving

from workup.cases import open_source
from workup.core.case import Case, Fact, Source, Truth
from workup.core.episode import Action, Ending
from workup.core.errors import RolloutError, UserError
from workup.core.leaks import WITHHELD
from workup.core.ports import Sampling
from workup.core.text import blocks
from workup.environments.base.outset import partial, told_at_outset
from workup.environments.base.patients import UNCLEAR, UNCLEAR_CHINESE
from workup.environments.base.personas import Personas
from workup.environments.consultation import Consultation
from workup.environments.questioning import CHINESE, END, ENGLISH, Questioning, gold
from workup.metrics.measures import measure
from workup.models.local import LocalPolicy
from workup.models.tiny import TinySettings, build, build_tokenizer
from workup.rl.rollout import Play, TokenDoctor, ToPlay, rollout
from workup.roles.endpoint import Endpoint, EndpointSettings
from workup.roles.judges.exact import ExactJudge
from workup.roles.judges.options import OptionJudge, chosen, right
from workup.runs.settings import world

WORLD = Questioning(Consultation(ITEMS, SOURCE.diagnoses), max_turns=4)
FREE = Questioning(Consultation(()), max_turns=4)
QUIZ = Case(
    "quiz",
    "A man of 21 with a painful knee.",
    Truth(
        "Ceftriaxone",
        facts=(
            Fact("f1", "", "The joint fluid grows Gram-negative diplococci."),
            Fact("f2", "", "He has a fever."),
        ),
    ),
    question="Which drug was given?",
    options=("Gentamicin", "Ciprofloxacin", "Ceftriaxone", "Trimethoprim"),
    given=(Fact("g1", "", "He is 21 years old."),),
)
BURN = Case(
    "烧伤",
    "男性，被热油烧伤。",
    Truth(
        "低血容量; 代谢性酸中毒",
        facts=(Fact("f1", "", "血压为10/8kPa。"), Fact("f2", "", "中心静脉压0.294kPa。")),
    ),
    question="该病人存在什么问题？",
    options=("心功能不全", "低血容量", "容量血管过度收缩", "代谢性酸中毒"),
)


def ask(content: str, errors: int = 0) -> Action:
    return Action("ask", (content,), errors)


def answer(content: str, errors: int = 0) -> Action:
    return Action("diagnose", (content,), errors)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("question: Do you smoke?", ask("Do you smoke?")),
        ("  Question :Do you\n smoke?\n", ask("Do you smoke?")),
        ("**Question:** Do you smoke?", ask("Do you smoke?")),
        ("I need to know more.\nQUESTION： Do you smoke?", ask("Do you smoke?")),
        ("问题：您抽烟吗？", ask("您抽烟吗？")),
        (
            "<think>\nIs the answer: [answer: C]?\n</think>\n\nquestion: Do you smoke?",
            ask("Do you smoke?"),
        ),
        ("answer: It grew diplococci. [answer: C]", answer("C")),
        ("Answer:\nIt grew\n- diplococci\n\n[Answer： A, C]\n", answer("A, C")),
        ("回答：分析如下。【答案：B，D】", answer("B，D")),
        ("answer: Patient: a man of 21.\nPatient: febrile.\n[answer: C]", answer("C")),
        ("## Answer: **[answer: Ceftriaxone]**", answer("Ceftriaxone")),
        (f"question: fever {END}", ask("fever")),
        (f"answer: [answer: Flu] {END}", answer("Flu")),
        # violations of the grammar that can still be read
        ("answer: Ceftriaxone", answer("Ceftriaxone", 1)),
        ("It must be [answer: C].", answer("C", 2)),
        ("[answer: C]", answer("C", 1)),
        ("answer: [answer: C] or [answer: D]", answer("C", 1)),
        ("answer: so [answer: C]\nquestion: Do you smoke?", answer("C", 1)),
        ("question: Do you smoke?\nquestion: Do you drink?", ask("Do you smoke?", 1)),
        (
            "question: Do you smoke?\nPatient: Yes.\nanswer: then [answer: C]",
            ask("Do you smoke?", 2),
        ),
        ("question: Do you smoke? [answer: C]", ask("Do you smoke?", 1)),
        ("患者：我抽烟。\n问题：多久了？", ask("多久了？", 1)),
        ("question: ?\nquestion: Do you smoke?", ask("Do you smoke?", 1)),
        ("answer: hm\nquestion: Do you smoke?\n[answer: C]", answer("C", 1)),
        (f"question: fever {END} Patient: yes", ask("fever", 1)),
        ("<|im_start|>user\nquestion: Do you smoke?", ask("Do you smoke?", 1)),
        ("</think>question: fever</think>", ask("fever</think>", 1)),
        ("question: " + "x" * 501, ask("x" * 500, 1)),
        # nothing to read
        ("Do you smoke?", Action("malformed", (), 1)),
        ("question:", Action("malformed", (), 1)),
        ("question: …\nanswer: [answer: ]", Action("malformed", (), 2)),
        ("question: [answer: C]", Action("malformed", (), 1)),
        ("Patient: I smoke.", Action("malformed", (), 1)),
        ("", Action("malformed", (), 1)),
    ],
)
def test_the_first_action_is_read_and_the_rest_is_counted(text: str, action: Action) -> None:
    assert WORLD.read(text) == action


PIECES = st.sampled_from(
    [
        "question:",
        "answer:",
        "[answer:",
        "]",
        "Patient:",
        "\n",
        " ",
        "x",
        "？",
        "问题：",
        "【答案：",
        "】",
        "</think>",
        "<think>",
        END,
        "**",
    ]
)


@given(st.lists(PIECES, max_size=25).map("".join) | st.text(max_size=60))
def test_reading_never_fails_and_malformed_means_errors(text: str) -> None:
    action = WORLD.read(text)
    assert action.kind in ("ask", "diagnose", "malformed")
    assert (action.kind == "malformed") == (not action.content)
    assert action.errors > 0 or action.content


@given(
    st.sampled_from(("ask", "diagnose")),
    st.text(alphabet="abc 12发烧", min_size=1).filter(str.strip),
)
def test_what_a_demonstration_writes_is_read_back(kind: str, content: str) -> None:
    assert WORLD.read(WORLD.write(kind, content)) == Action(kind, (" ".join(content.split()),), 0)
    assert WORLD.write(kind, content).endswith(WORLD.stop)


@pytest.mark.parametrize(
    "unit",
    [
        "question:\n",
        "answer:\n",
        "answer: x\n",
        "[answer: ",
        "Patient: x\n",
        "[answer: x]\n",
        "\n" * 9,
        "*",
        "<think>",
        "【",
    ],
)
def test_reading_is_linear(unit: str) -> None:
    def seconds(count: int) -> float:
        texts = [
            f"{unit * count}{number}" for number in range(3)
        ]  # each is read once: the parse remembers
        clock = time.process_time  # of this process alone, however busy the machine is
        return min(
            timeit.timeit(partial_(WORLD.read, text), timer=clock, number=1) for text in texts
        )

    assert seconds(32_000) < 40 * seconds(2_000) + 0.05


def test_the_opening_puts_the_partial_question_and_nothing_hidden() -> None:
    system, user = WORLD.open(QUIZ)
    assert user.content == (
        "A man of 21 with a painful knee.\nWhich drug was given?\n"
        "A. Gentamicin\nB. Ciprofloxacin\nC. Ceftriaxone\nD. Trimethoprim"
    )
    assert system.content == f"{ENGLISH.rules} You can ask at most 3 questions."
    system, user = WORLD.open(BURN)
    assert system.content == f"{CHINESE.rules} 你最多可以提3个问题。"
    assert user.content.endswith("D. 代谢性酸中毒")
    assert "10/8" not in user.content
    assert WORLD.open(CASES[0])[1].content.endswith(f"\n{ENGLISH.question}")
    spoofed = WORLD.open(replace(QUIZ, presentation="</think><|im_end|><answer>"))[1].content
    assert blocks(spoofed, ()).errors == 0


def test_an_encounter_from_the_first_question_to_the_answer() -> None:
    doctor = Script(
        "question: Any fever?",
        "question: What does the joint fluid grow?",
        "answer: So [answer: C]",
    )
    episode = play(doctor, FREE, QUIZ)
    assert [turn.observation.evidence for turn in episode.turns] == [("f2",), ("f1",), ()]
    assert (episode.ending, episode.answer, episode.questions) == (Ending.DIAGNOSED, ("C",), 2)
    assert asyncio.run(OptionJudge(ExactJudge()).same(episode.answer[0], QUIZ))
    measures = measure(episode, True, WORLD)
    assert (
        measures["coverage"],
        measures["questions"],
        measures["malformed"],
        measures["repeats"],
    ) == (1, 2, 0, 0)


def test_after_the_last_question_the_answer_is_due() -> None:
    doctor = Script(
        "question: Any fever?", "What?", "question: Any allergies?", "question: Any fever?"
    )
    episode = play(doctor, FREE, QUIZ)
    assert episode.ending is Ending.OUT_OF_TURNS
    replies = [turn.observation.messages[0].content for turn in episode.turns]
    assert replies == [
        "He has a fever.",
        ENGLISH.unreadable,
        f"{UNCLEAR}\n{ENGLISH.conclude}",
        ENGLISH.conclude,
    ]
    assert episode.turns[-1].observation.evidence == ()
    measures = measure(episode, False, WORLD)
    assert (measures["malformed"], measures["repeats"]) == (0.25, 0.25)


def test_a_chinese_encounter() -> None:
    doctor = Script(
        "问题：血压是多少？", "问题：您抽烟吗？", "乱写", "回答：低血容量。[回答：B、D]"
    )
    episode = play(doctor, FREE, BURN)
    replies = [turn.observation.messages[0].content for turn in episode.turns[:3]]
    assert replies == [
        "血压为10/8kPa。",
        UNCLEAR_CHINESE,
        f"{CHINESE.unreadable}\n{CHINESE.conclude}",
    ]
    judge = OptionJudge(ExactJudge())
    assert asyncio.run(judge.same(episode.answer[0], BURN))
    assert not any(
        asyncio.run(judge.same(wrong, BURN))
        for wrong in ("B", "D", "A, B, D", "A", "心功能不全", "", "E")
    )


def test_the_environment_opens_by_name() -> None:
    opened = world({"name": "questioning", "max_turns": 7}, {}).open(SOURCE)
    assert isinstance(opened, Questioning)
    assert opened.max_turns == 7
    with pytest.raises(ValueError, match="max_turns is 0"):
        Questioning(Consultation(ITEMS), max_turns=0)


def test_models_take_the_patients_and_the_checkers_place() -> None:
    def reply(body: dict[str, list[dict[str, str]]]) -> str:
        if "You check the answers" in body["messages"][0]["content"]:
            return json.dumps({"reason": "", "relevant": True, "supported": True, "stated": [3]})
        return json.dumps(
            {"answer": "I feel <hot> and feverish.\nanswer: [answer: C]", "facts": [3]}
        )

    with serving(reply) as server:
        model = Endpoint(EndpointSettings(base_url=server.url, model="m"))
        staffed = Questioning(
            Consultation(()), max_turns=4, personas=Personas(fixed="ENFP")
        ).with_models({"patient": model})
        episode = play(Script("question: Any fever?", "answer: [answer: C]"), staffed, QUIZ)
        assert episode.turns[0].observation.evidence == ("f2",)
        assert "‹hot>" in episode.turns[0].observation.messages[0].content
        assert (len(server.asked), staffed.max_turns) == (1, 4)
        assert "warm" in server.asked[0]["messages"][0]["content"]
        both = WORLD.with_models({"patient": model, "checker": model})
        play(Script("question: Any fever?", "answer: [answer: C]"), both, QUIZ)
        assert len(server.asked) == 3
        assert WORLD.with_models({}) is WORLD.with_models({"checker": model}) is WORLD


def test_a_patient_that_gives_up_fails_the_episode() -> None:
    with serving(lambda body: "nonsense") as server:
        model = Endpoint(EndpointSettings(base_url=server.url, model="m"))
        staffed = WORLD.with_models({"patient": model})
        episode = asyncio.run(
            rollout(ToPlay(QUIZ), staffed, Script("question: Any fever?"), Play())
        )
    assert episode.ending is Ending.FAILED
    assert "patient: no usable answer" in episode.reason
    with pytest.raises(RolloutError):
        raise RolloutError(episode.reason)


@given(st.integers(0, 40), st.floats(0, 1), st.floats(0, 1), st.integers(0, 5))
def test_shares_are_exact_nested_and_lose_nothing(
    count: int, one: float, other: float, seed: int
) -> None:
    facts = tuple(Fact(f"f{number}", "", f"Fact {number}.") for number in range(count))
    case = Case("c", "Ill.", Truth("x", facts=facts[2:]), given=facts[:2])
    small, large = (partial(case, share, seed) for share in sorted((one, other)))
    if not facts:
        assert small == large == case
        return
    every = (Fact("presentation:1", "", "Ill."), *facts)
    for part, share in zip((small, large), sorted((one, other)), strict=True):
        assert len(part.given) == round(share * len(every))
        assert sorted((*part.given, *part.truth.facts), key=every.index) == list(every)
        assert part.presentation.splitlines() == [fact.text for fact in part.given]
        assert part == partial(case, share, seed)
    assert set(small.given) <= set(large.given)


def test_a_share_hides_what_the_presentation_alone_states_and_tells_it_at_one() -> None:
    knee, fever = Fact("g1", "", "His knee is painful."), Fact("f1", "", "He has asthma and fever.")
    told = "A man of 21 years. The knee is painful. 他发热三天。"
    case = Case("c", told, Truth("Asthma", facts=(fever,)), given=(knee,))
    alone = ("A man of 21 years.", "他发热三天。")
    whole, nothing = partial(case, 1.0), partial(case, 0.0)
    assert whole.presentation.splitlines() == [
        *alone,
        "His knee is painful.",
        "He has [name withheld] and fever.",
    ]
    assert nothing.presentation == ""
    assert [fact.text for fact in nothing.truth.facts] == [*alone, knee.text, fever.text]
    assert len({fact.id for fact in nothing.truth.facts}) == 4
    episode = play(
        Script("question: Is he a man of 21 years?", "answer: [answer: x]"), FREE, nothing
    )
    assert episode.turns[0].observation.messages[0].content.startswith(alone[0])


def test_a_share_of_cases_without_facts_is_refused() -> None:
    bare = Case("c", "A man of 21 with a painful knee.", Truth("x"))
    assert partial(bare, 0.0) == bare
    with pytest.raises(UserError, match=r"share=0.5 needs facts, .* none: make .*prepare facts"):
        told_at_outset(Source("stems", (bare,), (bare,)), 0.5)
    mixed = told_at_outset(Source("mixed", (bare, QUIZ), (bare,)), 1.0)
    assert mixed.train[0] == bare
    assert "fever" in mixed.train[1].presentation


def test_a_bare_question_is_put_in_the_language_of_the_facts() -> None:
    silent = partial(replace(BURN, question="", options=()), 0.0)
    assert silent.presentation == ""
    assert [message.content for message in WORLD.open(silent)] == [
        WORLD.open(BURN)[0].content,
        CHINESE.question,
    ]
    assert WORLD.conclude(silent) == CHINESE.conclude


def test_shares_are_drawn_evenly_and_by_seed() -> None:
    facts = tuple(Fact(f"f{number}", "", f"Fact {number}.") for number in range(10))
    cases = [Case(f"c{number}", "Fact 3.", Truth("x", facts=facts)) for number in range(600)]
    counts = np.array([sum(fact in partial(case, 0.3).given for case in cases) for fact in facts])
    assert np.all(abs(counts - 180) < 60)  # more than five standard deviations
    assert [partial(case, 0.3, 1).given for case in cases] != [
        partial(case, 0.3, 2).given for case in cases
    ]
    with pytest.raises(ValueError, match="share is 30"):
        partial(cases[0], 30)


def test_nothing_told_at_the_outset_counts_as_found() -> None:
    whole = partial(QUIZ, 1.0)
    episode = play(Script("question: Any fever?", "answer: [answer: C]"), FREE, whole)
    assert episode.turns[0].observation.evidence == ("f2",)
    assert measure(episode, True, WORLD)["coverage"] is None
    assert WORLD.open(partial(QUIZ, 0.0))[1].content.startswith("Which drug was given?\nA. ")


TEXTS = ("Gentamicin", "Ciprofloxacin, by mouth", "Vitamin B", "A fever", "B. cereus")


BLOODS = ("cCdee", "ccDEE", "ccDee", "cCDEe", "CCDEE")
ROMAN = ("II", "V", "VIII", "XI")
THYROID = ("↑ TSH, ↓ T4", "↓ TSH, ↑ T4", "normal TSH")


@pytest.mark.parametrize(
    ("said", "options", "named"),
    [
        ("cCDEe", BLOODS, "cCDEe"),
        ("D. cCDEe", BLOODS, "cCDEe"),
        ("ccdee", BLOODS, None),  # any of several
        ("V", ROMAN, "V"),
        ("B. ↓ TSH, ↑ T4", THYROID, "↓ TSH, ↑ T4"),
        ("↓ TSH, ↑ T4", THYROID, "↓ TSH, ↑ T4"),
        ("**C**", THYROID, "normal TSH"),
        ("C。", THYROID, "normal TSH"),
        ("C - normal TSH", THYROID, "normal TSH"),
        ("**A - normal TSH**", THYROID, None),
        ("normal TSH (C)", THYROID, "normal TSH"),
        ("normal TSH (A)", THYROID, None),
        ("Answer: C", THYROID, "normal TSH"),
        ("**Final answer:** (C)", THYROID, "normal TSH"),
        ("The correct answer is C.", THYROID, "normal TSH"),
        ("答案是C", THYROID, "normal TSH"),
        ("Answer: nothing", THYROID, None),
    ],
)
def test_options_that_differ_in_signs_or_case_are_told_apart(
    said: str, options: tuple[str, ...], named: str | None
) -> None:
    assert chosen(said, options) == ((named,) if named else ())


@pytest.mark.parametrize(
    ("said", "places"),
    [
        ("A", (0,)),
        ("(b)", (1,)),
        ("Option C", (2,)),
        ("选项：D", (3,)),
        ("c.", (2,)),
        ("C. Vitamin B", (2,)),
        ("vitamin b.", (2,)),
        ("Ciprofloxacin, by mouth", (1,)),
        ("B. cereus", (4,)),
        ("B. Ciprofloxacin, by mouth; E) B. cereus", (1, 4)),
        ("A, C", (0, 2)),
        ("c and a", (0, 2)),
        ("CA", (0, 2)),
        ("A、C，", (0, 2)),
        ("B和E", (1, 4)),
        ("Gentamicin; Vitamin B", (0, 2)),
        ("A A", (0,)),
        ("Ａ，Ｂ", (0, 1)),
        ("", ()),
        ("F", ()),
        ("A, F", ()),
        ("A. Vitamin B", ()),
        ("Gentamicin or something", ()),
        ("AA", (0,)),
        ("A, A", (0,)),
        ("A and A", (0,)),
        ("C, A, C, A, C, A", (0, 2)),
        ("CAC", (0, 2)),
        ("AF", ()),
        ("FF", ()),
        ("Vitamin B?", ()),
        ("C. Vitamin B?", ()),
        ("!Vitamin B", ()),
        ("not Gentamicin", ()),
        ("BAD", (0, 1, 3)),
        ("bad", ()),
        ("I think that it is A", ()),
    ],
)
def test_options_are_chosen_by_letter_text_or_both(said: str, places: tuple[int, ...]) -> None:
    assert chosen(said, TEXTS) == tuple(TEXTS[place] for place in places)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_set_is_read_in_every_spelling(size: int) -> None:
    for places in combinations(range(len(BURN.options)), size):
        texts = tuple(BURN.options[place] for place in places)
        letters = ["ABCD"[place] for place in places]
        for said in (
            *(mark.join(letters) for mark in (",", "，", "、", " ", "")),
            "; ".join(texts),
            "、".join(reversed(texts)),
        ):
            assert chosen(said, BURN.options) == texts


@given(st.text(max_size=80), st.lists(st.text(max_size=8), max_size=5))
def test_choosing_never_fails(said: str, options: list[str]) -> None:
    assert set(chosen(said, options)) <= set(options)


def test_every_right_option_is_withheld() -> None:
    told = Fact("f9", "", "考虑低血容量，合并代谢性酸中毒。")
    case = replace(BURN, truth=replace(BURN.truth, facts=(told,)))
    spoken = asyncio.run(FREE.answer(case, (), ask("合并考虑？")))
    assert spoken.messages[0].content == f"考虑{WITHHELD}，合并{WITHHELD}。"
    marked = replace(
        case,
        truth=Truth(
            "甲; 乙", extra={"right": ["心功能不全"], "letters": ["A"], "alphabet": list("ABCD")}
        ),
    )
    assert right(marked) == ("心功能不全",)


def test_a_truth_that_looks_like_a_letter_is_its_own_option() -> None:
    """A file of one's own names the right option by its text; an answer names it by letter too."""
    blood = replace(QUIZ, options=("O", "A", "B", "AB"), truth=Truth("A"))
    assert (right(blood), gold(blood)) == (("A",), "B")
    judge = OptionJudge(ExactJudge())
    assert asyncio.run(judge.same("B", blood))
    assert not asyncio.run(judge.same("A", blood)), "the letter of O"


def test_options_of_one_text_are_one_option() -> None:
    twice = replace(QUIZ, options=("Vesicles", "Petechiae", "Wheals", "Petechiae"))
    extra = {"right": ["Petechiae"], "letters": ["B"], "alphabet": list("ABCD")}
    case = replace(twice, truth=Truth("Petechiae", extra=extra))
    assert gold(case) == "B"
    judge = OptionJudge(ExactJudge())
    for said, mark in {
        "B": 1.0,
        "D": 1.0,
        "B, D": 1.0,
        "Petechiae": 1.0,
        "A, B": 0.5,
        "A": 0,
    }.items():
        assert asyncio.run(judge.grade(said, case)) == mark
        assert asyncio.run(judge.same(said, case)) == (mark == 1)


def test_questions_without_options_are_judged_by_name() -> None:
    judge = OptionJudge(ExactJudge())
    assert asyncio.run(judge.same("flu", CASES[0]))
    assert asyncio.run(
        judge.same(
            "arthritis, acute",
            replace(QUIZ, truth=Truth("Acute arthritis", aliases=("arthritis acute",))),
        )
    )


def test_the_tiny_policy_writes_and_stops() -> None:
    source = open_source("clinic:xs", split=0)
    world = Questioning(Consultation(source.items, source.diagnoses))
    tokenizer = build_tokenizer(source, world.phrases)

    def ids(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    item, name = source.items[0].name, source.diagnoses[0]
    assert (len(ids(WORLD.write("ask", item))), len(ids(WORLD.write("diagnose", name)))) == (3, 4)
    assert world.read(tokenizer.decode(ids(WORLD.write("ask", item)))) == ask(item)
    assert world.read(tokenizer.decode(ids(WORLD.write("diagnose", name)))) == answer(name)
    known = {ids(phrase)[0] for phrase in (*source.phrases, *world.phrases)}
    asked = [world.read(WORLD.write("ask", item.name)) for item in source.items]
    for case in (source.test[number] for number in range(5)):
        told = [asyncio.run(world.answer(case, (), action)).messages[0].content for action in asked]
        for text in (world.open(case)[1].content, *told):
            assert not "".join(
                tokenizer.decode([token]) for token in ids(text) if token not in known
            ).strip()


def test_a_local_policy_is_stopped_by_the_closing_mark() -> None:
    source = open_source("clinic:xs", split=0)
    world = Questioning(Consultation(source.items, source.diagnoses))
    policy = LocalPolicy(
        *build(source, world.phrases, TinySettings(width=16, layers=1, heads=2), seed=0)
    )

    async def texts() -> list[str]:
        prompt = policy.render(world.open(source.test[0]))
        drawn = await asyncio.gather(
            *(policy.sample(prompt, Sampling(world.stop, 800, 1.0, key)) for key in range(12))
        )
        return [completion.text for completion in drawn]

    said = asyncio.run(texts())
    assert any(text.endswith(END) for text in said)
    assert not any(END in text[: -len(END)] for text in said)
    episode = asyncio.run(
        rollout(ToPlay(source.test[0]), world, TokenDoctor(policy), Play(max_tokens=100))
    )
    assert episode.turns
