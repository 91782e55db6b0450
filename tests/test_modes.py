"""Med-R³'s four ways to answer (MR-2): over an endpoint, the tiny policy and a chat model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from handmade import CASES, SOURCE
from hypothesis import given
from hypothesis import strategies as st
from library_world import DOCUMENTS, index_folder
from serving import Server, serving
from test_local_policy import letters, qwen

from workup.core.case import Case
from workup.core.episode import Ending, Episode
from workup.core.errors import UserError
from workup.core.ports import Environment
from workup.core.text import neutralise
from workup.doctors import strategies
from workup.doctors.endpoint import ModelDoctor
from workup.doctors.strategies import Driven, Searcher, modes
from workup.environments.base.searching import LONGEST
from workup.environments.base.thoughts import well_formed
from workup.environments.consultation import Consultation
from workup.environments.questioning import Questioning
from workup.metrics.measures import measure
from workup.models.local import LocalPolicy
from workup.models.samplers.local import LocalModel
from workup.models.tiny import TinySettings, build
from workup.rl.rollout import Play, TokenDoctor, ToPlay
from workup.rl.samples import sample
from workup.roles.endpoint import Endpoint, EndpointSettings
from workup.runs.settings import world

MODES = ("naive", "pure-cot", "rag", "cot-rag")
THINKING = ("pure-cot", "cot-rag")
RETRIEVING = ("rag", "cot-rag")
WORLD = Consultation(SOURCE.items, SOURCE.diagnoses, 5)
ASKING = Questioning(WORLD, max_turns=5)
LISTED = replace(
    CASES[1],
    presentation="Fever, pain, crackles over the lungs, and sputum.",
    question="What is it?",
    options=("Flu", "Pneumonia", "Pancreatitis"),
)
CHINESE = replace(
    LISTED, presentation="患者发热三天，咳嗽。", question="诊断是什么？", options=("流感", "肺炎")
)

Answer = Callable[[dict[str, Any]], str]


@cache
def shelf(name: str) -> Environment:
    return world({"name": name, "index": str(index_folder())}, {}).open(SOURCE)


def play(
    name: str, answer: Answer, environment: Environment, case: Case = LISTED, **plan: Any
) -> tuple[Episode, Server]:
    """One episode of a mode over an endpoint."""
    with serving(answer) as server:
        model = Endpoint(EndpointSettings(base_url=server.url, model="m"))
        episode = run(name, Driven(ModelDoctor(model), model), environment, case, **plan)
    return episode, server


def run(
    name: str, driven: Driven, environment: Environment, case: Case = LISTED, **plan: Any
) -> Episode:
    strategy = strategies.load(name)
    opened = strategy.open(driven, environment, strategy.settings(**plan))
    assert isinstance(opened, Searcher)
    return asyncio.run(opened.play(ToPlay(case, 7), Play(1.0, plan.pop("tokens", 24))))


def obeys(body: dict[str, Any]) -> str:
    """Answers B in the form that the rules show, with a thought where they ask for one."""
    *_, form, _ = body["messages"][0]["content"].split("\n")
    thought = "<think>Crackles, so B.</think>" if "<think>" in str(body["messages"][0]) else ""
    return thought + form.replace(modes.DOTS, "B")


@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("where", ["library", "reasoning"])
def test_a_mode_answers_once_and_searches_at_most_once(name: str, where: str) -> None:
    environment = shelf(where)
    episode, server = play(name, obeys, environment)
    searched = name in RETRIEVING
    assert (episode.ending, episode.answer) == (Ending.DIAGNOSED, ("B",))
    assert [turn.action.kind for turn in episode.turns] == ["search"] * searched + ["diagnose"]
    assert len(server.asked) == 1  # the search is not the policy's
    found = measure(episode, True, environment)
    assert (found["questions"], found["doc_hit"]) == (float(searched), float(searched))
    assert [len(t.observation.passages or ()) for t in episode.turns][:-1] == [3] * searched
    assert all(turn.action == environment.read(turn.completion.text) for turn in episode.turns)


@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("case", [LISTED, CHINESE, CASES[0]], ids=["options", "chinese", "open"])
def test_the_transcript_is_what_the_policy_read(name: str, case: Case) -> None:
    """Rules of the mode's own, letters before the options, and nothing of the truth."""
    episode, server = play(name, obeys, shelf("library"), case)
    read = [(each["role"], each["content"]) for each in server.asked[0]["messages"]]
    opening = [(each.role, each.content) for each in episode.opening]
    assert read[:2] == opening
    assert len(read) == (4 if name in RETRIEVING else 2)
    rules = opening[0][1]
    assert ("think" in rules) == (name in THINKING)
    assert rules.count("<diagnosis>…</diagnosis>") == 1
    assert "search>" not in rules
    listed = "".join(f"\n{letter}. {o}" for letter, o in zip("ABC", case.options, strict=False))
    assert opening[1][1].endswith(listed)
    if name in RETRIEVING:
        said, found = read[2:]
        assert (said[0], found[0]) == ("assistant", "user")
        # What is asked and the form of an answer stand once more, behind the passages.
        query = said[1].removeprefix("<search>").removesuffix("</search>")
        assert found[1].endswith(f"{query}{listed}\n" + rules.split("\n", 1)[1])
        assert episode.turns[0].observation.passages


def test_the_passages_are_the_best_ones_for_the_case_and_have_their_ids() -> None:
    for k in (1, 2):
        episode, _ = play("rag", obeys, shelf("library"), passages=k)
        assert len(episode.passages) == k
        assert episode.passages[0].id.startswith("pneumonia")
    assert episode.passages[0].title == DOCUMENTS[1].title


@pytest.mark.parametrize("environment", [WORLD, ASKING], ids=["consultation", "questioning"])
def test_without_a_library_two_modes_play_and_two_say_what_to_type(
    environment: Environment,
) -> None:
    for name in ("naive", "pure-cot"):
        episode, _ = play(name, obeys, environment)
        assert (episode.ending, episode.answer[0]) == (Ending.DIAGNOSED, "B"), name
        assert play(name, obeys, environment, CHINESE)[0].answer[0] == "B"
    for name in RETRIEVING:
        with pytest.raises(UserError, match=f"'{name}' searches a library.*environment=library"):
            play(name, obeys, environment)


@pytest.mark.parametrize("name", MODES)
def test_what_is_no_answer_is_not_carried_out(name: str) -> None:
    episode, server = play(name, lambda body: "<search>hobby</search>", shelf("library"))
    assert (episode.ending, episode.answer) == (Ending.OUT_OF_TURNS, ())
    assert len(server.asked) == 1
    assert not episode.turns[-1].observation.evidence
    asked, _ = play("naive", lambda body: "<ask>fever</ask>", WORLD, CASES[0])
    assert (asked.ending, asked.discovered) == (Ending.OUT_OF_TURNS, frozenset())


def test_a_thought_and_its_answer_keep_the_grammar_of_one_thought() -> None:
    assert well_formed(play("pure-cot", obeys, shelf("reasoning"))[0])


# --- the query ------------------------------------------------------------------------------------


def test_the_query_is_the_case_without_its_options() -> None:
    shown = shelf("library").open(LISTED)[-1].content
    told = "Fever, pain, crackles over the lungs, and sputum."
    findings = "Yes: sputum. Yes: crackles. Yes: chest film."
    assert modes.query(shown, LISTED) == f"{told} {findings} What is it?"


words = st.text(st.sampled_from("ab <>/;é中."), max_size=700)


@given(words, words, st.lists(st.text("xy<", min_size=1, max_size=9), max_size=3))
def test_a_long_query_keeps_the_question_and_the_beginning(
    described: str, question: str, options: list[str]
) -> None:
    case = replace(LISTED, presentation=described, question=question, options=tuple(options))
    shown = neutralise("\n".join(line for line in (described, question, *options) if line))
    made = modes.query(shown, case)
    assert len(made) <= LONGEST
    told = " ".join(shown.removesuffix(neutralise("\n".join(options))).split())
    if len(told) <= LONGEST:
        assert made == told
    asked = " ".join(neutralise(question).split())
    if len(asked) < LONGEST and told.endswith(asked):
        assert made.endswith(asked)
    assert told.startswith(made.removesuffix(asked).strip()) or len(asked) >= LONGEST


# --- weights on this machine ----------------------------------------------------------------------


@cache
def tiny(where: str) -> LocalPolicy:
    settings = TinySettings(width=16, layers=1, heads=1, context=512)
    return LocalPolicy(*build(SOURCE, (*WORLD.phrases, *shelf(where).phrases), settings, 0))


@pytest.mark.parametrize("name", MODES)
def test_the_tiny_policy_keeps_its_rules_and_its_answer_is_begun(name: str) -> None:
    environment = shelf("library")
    episode = run(name, Driven(TokenDoctor(tiny("library"))), environment)
    assert episode.opening == environment.open(LISTED)
    last = episode.turns[-1].completion
    assert last.text.startswith("<diagnosis>")
    begun = len(tiny("library").encode("<diagnosis>"))
    assert set(last.logprobs[:begun]) == {0.0}
    assert all(value < 0 for value in last.logprobs[begun:])
    assert len(episode.turns) == 1 + (name in RETRIEVING)


@cache
def chat() -> LocalModel:
    return LocalModel(LocalPolicy(qwen(90, context=4096), letters()))


@pytest.mark.parametrize("name", MODES)
def test_a_chat_models_ids_are_kept_and_the_passages_are_masked(name: str) -> None:
    """Also where its answer is framed: the prompt of a turn continues the turns before it."""
    model = chat()
    driven = Driven(TokenDoctor(model.policy), model.chat("m"))
    for frame in (False, True):
        episode = run(name, driven, shelf("library"), frame=frame)
        *before, last = episode.turns
        if frame:
            assert "<diagnosis>\n" in last.completion.text
            assert last.completion.truncated or last.completion.text.endswith("</diagnosis>")
            assert (last.completion.text.startswith("<think>")) == (name in THINKING)
            assert "</think><diagnosis>\n" in last.completion.text or name not in THINKING
        rendered = model.policy.render(episode.opening)
        assert episode.turns[0].prompt_tokens == rendered
        if before:
            read = (*rendered, *before[0].completion.tokens)
            reply = model.policy.render(before[0].observation.messages, read)
            assert last.prompt_tokens == reply
            assert set(before[0].completion.logprobs) == {0.0}
        kept = sample(episode, [0.0] * len(episode.turns))
        masked = [t for t, mine in zip(kept.tokens, kept.mask, strict=True) if not mine]
        assert masked == [t for turn in episode.turns for t in turn.prompt_tokens]


def test_an_endpoints_answer_cannot_be_framed() -> None:
    with pytest.raises(UserError, match=r"strategy\.frame needs weights on this machine"):
        play("naive", obeys, WORLD, frame=True)
