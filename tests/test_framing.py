"""`strategy.frame`: what a small policy writes stands in the form, whatever it writes."""

from __future__ import annotations

import asyncio
from functools import cache
from math import exp
from typing import Any

import pytest
import torch
from handmade import CASES, SOURCE
from hypothesis import given, settings
from hypothesis import strategies as st
from test_local_policy import letters as characters
from test_local_policy import plain, qwen
from test_modes import LISTED, WORLD, obeys, shelf
from test_modes import play as over_an_endpoint

from workup.core.case import Case
from workup.core.episode import Ending, Episode
from workup.core.errors import UserError
from workup.core.ports import Environment, Sampling
from workup.doctors import strategies
from workup.doctors.strategies import Driven, Searcher
from workup.doctors.strategies.framing import _overlap
from workup.environments.consultation import Consultation
from workup.environments.questioning import Questioning
from workup.models.local import LocalPolicy, OneOf
from workup.models.samplers.local import LocalModel
from workup.rl.rollout import Play, TokenDoctor, ToPlay, rollout

PLAYING = ("direct", "vanilla", "cot", "sop")
BRIEF = Questioning(Consultation(SOURCE.items, SOURCE.diagnoses), max_turns=3)


@cache
def chat() -> LocalModel:
    """Random weights that write one character per token, and never what was asked for."""
    return LocalModel(LocalPolicy(qwen(90, context=8_192), characters()))


def play(name: str, environment: Environment, case: Case = LISTED, **plan: Any) -> Episode:
    strategy = strategies.load(name)
    driven = Driven(TokenDoctor(chat().policy), chat().chat("m"))
    opened = strategy.open(driven, environment, strategy.settings(frame=True, **plan))
    job, how = ToPlay(case, 7), Play(1.0, 24)
    if isinstance(opened, Searcher):
        return asyncio.run(opened.play(job, how))
    return asyncio.run(rollout(job, environment, opened, how))


@pytest.mark.long
@pytest.mark.parametrize("name", PLAYING)
@pytest.mark.parametrize("world", ["questioning", "library"])
def test_a_policy_that_babbles_asks_and_then_answers(name: str, world: str) -> None:
    environment = BRIEF if world == "questioning" else shelf(world)
    episode = play(name, environment)
    kinds = [turn.action.kind for turn in episode.turns]
    assert len(kinds) == (1 if name == "direct" else environment.max_turns)
    asks = "search" if world == "library" else "ask"
    # A text without a letter or a digit says nothing, in a frame too.
    assert {*kinds[:-1]} <= {asks, "malformed"}
    assert kinds[-1] in ("diagnose", "malformed")
    for turn in episode.turns:
        said = turn.completion
        assert not said.truncated
        assert len(said.tokens) == len(said.logprobs)
        assert said.text.startswith("<think>") == (name == "cot")
        drawn = [logprob for logprob in said.logprobs if logprob]
        assert 0 < len(drawn) <= 24


@pytest.mark.parametrize("name", [*PLAYING, "naive", "pure-cot"])
def test_with_letters_every_answer_is_one_of_the_options(name: str) -> None:
    episode = play(name, BRIEF, letters=True)
    assert episode.ending is Ending.DIAGNOSED
    assert episode.answer[0] in ("A", "B", "C")
    open_question = play(name, BRIEF, CASES[0], letters=True)
    assert open_question.turns[-1].action.kind in ("diagnose", "malformed")


def test_a_letter_is_drawn_as_the_model_weighs_the_letters() -> None:
    """Oracle: the softmax of a plain forward pass, restricted to the letters' tokens."""
    policy = chat().policy
    assert isinstance(policy, LocalPolicy)
    prompt = policy.encode("one of three:")
    told = {}
    for letter in "ABC":
        (token,) = policy.encode(letter)
        told[letter] = exp(plain(policy.model, [[prompt, [token], []]], 1.0)[0])
    total = sum(told.values())

    async def drawn(key: int, temperature: float) -> Any:
        sampling = Sampling((), 8, temperature, key)
        return await policy.sample(prompt, sampling, policy.one_of("ABC"))

    greedy = asyncio.run(drawn(0, 0.0))
    assert greedy.text == max(told, key=lambda letter: told[letter])
    assert not greedy.truncated
    for key in range(5):
        said = asyncio.run(drawn(key, 1.0))
        assert len(said.tokens) == 1
        assert exp(said.logprobs[0]) == pytest.approx(told[said.text] / total, rel=1e-4)


paths = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, unique=True)


@given(paths, st.data())
def test_any_way_through_a_choice_ends_at_one_of_its_members(
    choices: list[tuple[int, int]], data: st.DataObject
) -> None:
    choice, taken = OneOf(choices, width=6), list[int]()
    assert choice.begin() == []
    while not choice.done:
        allowed = torch.nonzero(choice.allowed()).flatten().tolist()
        taken.append(data.draw(st.sampled_from(allowed)))
        assert choice.take(taken[-1]) == []
    assert tuple(taken) in choices


@given(st.text("ab]", max_size=6), st.text("ab]", min_size=1, max_size=4))
@settings(max_examples=60)
def test_the_tail_is_completed_and_never_doubled(text: str, tail: str) -> None:
    whole = text + tail[_overlap(text, tail) :]
    assert whole.endswith(tail)
    assert len(whole) == min(
        len(text + tail[k:]) for k in range(len(tail) + 1) if text.endswith(tail[:k])
    )


def test_what_does_not_fit_is_one_line() -> None:
    with pytest.raises(UserError, match=r"strategy\.letters needs strategy\.frame=true"):
        over_an_endpoint("naive", obeys, WORLD, letters=True)
    for name in ("vanilla", "direct", "cot", "sop", "mediq", "mcts-bt"):
        strategy = strategies.load(name)
        other = Driven(object(), chat().chat("m"))  # type: ignore[arg-type]
        with pytest.raises(UserError, match=r"strategy\.frame needs weights on this machine"):
            strategy.open(other, WORLD, strategy.settings(frame=True))

    class Elsewhere:
        """A policy of another sampler."""

    driven = Driven(TokenDoctor(Elsewhere()), chat().chat("m"))  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"strategy\.letters needs sampler=local"):
        strategies.load("vanilla").open(
            driven, WORLD, strategies.load("vanilla").settings(frame=True, letters=True)
        )
