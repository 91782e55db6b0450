"""C-MIG's arithmetic and its scorer.

The arithmetic is compared with its own examples and exploits, the scorer with one prompt at a time.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_local_policy import letters, qwen

from workup.core.episode import Message
from workup.core.ports import ScoreRequest, alone
from workup.methods.cmig.information_gain import (
    LogitP,
    differences,
    document_rewards,
    logit_p,
    probability_gains,
    refinement_rewards,
)
from workup.models.local import LocalPolicy
from workup.models.scorer import LocalScorer

torch.set_num_threads(1)

ROUNDS = st.lists(st.floats(-9, 0), min_size=1, max_size=6)
GAINS = st.lists(st.none() | st.floats(-3, 3), max_size=12)

STEADY, RECOVERING = (-3.0, -2.0, -1.0, 0.0), (-3.0, -2.0, -4.0, -2.0)  # CM-E1


@given(ROUNDS, st.floats(0.1, 3), st.floats(0.1, 3))
def test_the_literal_formula(rounds: list[float], w: float, alpha: float) -> None:
    """CM-6 written out term by term."""
    N = len(rounds) - 1
    Δ = [0.0] + [rounds[k] - rounds[k - 1] for k in range(1, N + 1)]
    expected = 0.0
    if N >= 2 and Δ[1] > 0:
        expected = (
            w / N * sum(max(math.tanh(alpha * (Δ[k] - Δ[k - 1])), 0.0) for k in range(2, N + 1))
        )
    found = document_rewards(rounds, w_d=w, alpha_d=alpha)
    assert sum(found) == pytest.approx(expected, abs=1e-12)
    assert len(found) == N
    assert all(reward >= 0 for reward in found)
    assert found[:1] == (0.0,) * min(N, 1)


def test_the_paper_s_rule_can_be_exploited() -> None:
    assert sum(document_rewards(STEADY)) == 0
    assert sum(document_rewards(RECOVERING)) == pytest.approx(1 / 3, abs=1e-3)


def test_the_harmful_search_twice_is_paid_too() -> None:
    assert sum(document_rewards((-3, -2, -4, -4))) == pytest.approx(math.tanh(2) / 3)
    assert sum(document_rewards((-3, -2, -4, -4), order=1)) == 0


def test_first_differences_pay_progress_and_signed_ones_close_the_hole() -> None:
    assert sum(document_rewards(STEADY, order=1)) == pytest.approx(2 / 3 * math.tanh(1))
    assert sum(document_rewards(RECOVERING, order=1)) == pytest.approx(math.tanh(2) / 3), (
        "still pays to harm first"
    )
    assert sum(document_rewards(RECOVERING, order=1, half_positive=False)) == pytest.approx(0)
    assert sum(document_rewards(STEADY, order=1, half_positive=False)) > 0.5


@given(ROUNDS, st.floats(0.1, 3), st.floats(0.1, 3), st.booleans())
def test_from_the_first_search_on_each_gain_is_paid_where_it_was_made(
    rounds: list[float], w: float, alpha: float, half_positive: bool
) -> None:
    found = document_rewards(rounds, w_d=w, alpha_d=alpha, order=0, half_positive=half_positive)
    assert len(found) == len(rounds) - 1
    for k, paid in enumerate(found, start=1):
        risen = math.tanh(alpha * (rounds[k] - rounds[k - 1]))
        counted = max(risen, 0.0) if half_positive else risen
        assert paid == pytest.approx(w * counted / (len(rounds) - 1), abs=1e-12)


@given(ROUNDS)
def test_from_the_first_search_on_gains_and_losses_sum_to_the_whole_way(
    rounds: list[float],
) -> None:
    """With a small α_d, for which tanh is its argument; so no detour pays."""
    N, α = len(rounds) - 1, 1e-6
    found = document_rewards(rounds, alpha_d=α, order=0, half_positive=False)
    assert sum(found) * N / α == pytest.approx(rounds[-1] - rounds[0] if N else 0, abs=1e-6)


def test_the_gate() -> None:
    assert document_rewards((-3.0, -3.0, 0.0)) == (0.0, 0.0)
    assert document_rewards((-3.0, -3.5, 0.0), order=1, half_positive=False) == (0.0, 0.0)
    assert document_rewards((-3.0, 0.0)) == (0.0,), "one search only"
    assert document_rewards((-3.0, 0.0), order=0) == (math.tanh(3.0),), "no gate"
    assert document_rewards((-3.0,)) == document_rewards((-3.0,), order=0) == ()


@given(GAINS, st.data())
def test_any_split_over_processes_gives_the_same_rewards(
    everyone: list[float | None], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(everyone)), max_size=3)))
    shares = [everyone[a:b] for a, b in zip([0, *cuts], [*cuts, len(everyone)], strict=True)]
    sent: list[float] = []
    for share in shares:
        refinement_rewards(share, lambda mine: sent.extend(mine) or mine)  # type: ignore[func-returns-value]
    calls: list[int] = []

    def all_gather(mine: Sequence[float]) -> Sequence[float]:
        calls.append(len(mine))
        return sent

    found = [reward for share in shares for reward in refinement_rewards(share, all_gather)]
    assert len(calls) == len(shares), "each process calls it exactly once, whatever it has"
    assert tuple(found) == refinement_rewards(everyone, alone)


@given(GAINS)
def test_refinements_at_or_above_the_median_of_the_positive_ones_are_paid(
    everyone: list[float | None],
) -> None:
    found = refinement_rewards(everyone, alone, w_r=0.3)
    positive = [gain for gain in everyone if gain is not None and gain > 0]
    for gain, reward in zip(everyone, found, strict=True):
        assert reward == (
            0.3 if gain is not None and gain > 0 and gain >= np.median(positive) else 0.0
        )


@given(ROUNDS)
def test_gains_in_probability_add_up(rounds: list[float]) -> None:
    found = probability_gains(rounds)
    assert list(accumulate(found, initial=math.exp(rounds[0]))) == pytest.approx(
        [math.exp(x) for x in rounds], abs=1e-12
    )
    assert differences(rounds) == pytest.approx(np.diff(rounds), abs=1e-12)


# ------------------------------------------------------------------------------------------- scorer

REQUEST = ScoreRequest(
    "x", "influenza", (Message("user", "what is it?\n"),), (("never asked",),), "it is "
)
DOCUMENTS = ("a text about fever.", "flu comes in winter.", "a text about fever.")


def scorer() -> LocalScorer:
    return LocalScorer(LocalPolicy(qwen(90), letters()))


def test_everything_at_once_is_what_each_prompt_by_itself_gives() -> None:
    judge, separate = scorer(), scorer()
    found = asyncio.run(logit_p(judge, REQUEST, DOCUMENTS, "so: flu."))

    def apart(text: str) -> float:
        opening = (Message("user", f"what is it?\n{text}"),)
        return asyncio.run(
            separate.score(ScoreRequest("x", "influenza", opening, lead="it is "))
        ).means[0]

    assert found.question == pytest.approx(apart(""), abs=1e-5)
    assert found.documents == pytest.approx([apart(text) for text in DOCUMENTS], abs=1e-5)
    assert found.refinement == pytest.approx(apart("so: flu."), abs=1e-5)
    assert found.refined == pytest.approx(apart("so: flu.") - apart(""), abs=1e-5)
    assert found.rounds == (found.question, *found.documents)
    assert judge.work.forwards == 1
    assert judge.work.scored == 4, "the first document came twice"


def test_a_group_that_found_the_same_is_scored_once() -> None:
    judge = scorer()

    async def group() -> list[LogitP]:
        return list(
            await asyncio.gather(
                *(logit_p(judge, REQUEST, DOCUMENTS[: 1 + k % 2]) for k in range(8))
            )
        )

    found = asyncio.run(group())
    assert judge.work.scored == 3
    assert found[0] == found[2]
    assert found[0].refinement is None
    assert found[0].refined is None
    assert asyncio.run(logit_p(judge, REQUEST, ())).rounds == (found[0].question,)
