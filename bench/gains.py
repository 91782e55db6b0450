"""C-MIG's reference scoring beside one prompt at a time.

Eight cases with groups of eight episodes, each with three searches and a refinement. First with the
tiny policy's size and lengths (a question of 8 tokens, evidence of 30, a refinement of 8); then on
0.6 M parameters with those of real text (190, 300 in three passages, 60), once with all evidence
different, once with six results per case that its 24 searches find, as episodes of one group do.
One prompt at a time is a plain causal forward pass with a batch of one, and the output layer only
where an answer's token is predicted; values agree to 1e-5 per token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from bench.figures import Figure, race
from bench.shapley import ANSWER, QUESTION, RULES, separately, untrained, words
from workup.core.episode import Message
from workup.core.ports import ScoreRequest
from workup.methods.cmig.information_gain import LogitP, logit_p
from workup.models.local import LocalPolicy
from workup.models.scorer import LocalScorer

ROUNDS = 3
CASES, GROUP, SEARCHES = 8, 8, 3


@dataclass(frozen=True, slots=True)
class Lengths:
    """In tokens."""

    question: int
    evidence: int
    refinement: int


TINY, REAL = Lengths(8, 30, 8), Lengths(RULES + QUESTION, 300, 60)


@dataclass(frozen=True, slots=True)
class Searched:
    """What one episode is scored by."""

    request: ScoreRequest
    documents: tuple[str, ...]
    refinement: str


def measure() -> list[Figure]:
    torch.set_num_threads(1)
    tiny, policy = untrained(width=64), untrained(width=168)
    beside = "beside one prompt at a time"
    return [
        compare(tiny, f"gains of evidence, tiny policy, {beside}", TINY, None, 4.0),
        compare(policy, f"gains of evidence, all of it different, {beside}", REAL, None, 4.0),
        compare(policy, f"gains of evidence, six results per case, {beside}", REAL, 6, 4.0),
    ]


def compare(
    policy: LocalPolicy, name: str, lengths: Lengths, results: int | None, target: float
) -> Figure:
    batch = [episode for index in range(CASES) for episode in group(index, lengths, results)]
    scorer = LocalScorer(policy)

    def ours() -> list[LogitP]:
        scorer.refresh()
        return asyncio.run(together(scorer, batch))

    apart = partial(one_by_one, policy, batch)
    agree(ours(), apart())
    seconds = race({"ours": ours, "apart": apart}, ROUNDS)
    return Figure(
        name,
        seconds["ours"],
        seconds["apart"],
        "s",
        seconds["apart"] / seconds["ours"],
        target,
        True,
    )


def group(index: int, lengths: Lengths, results: int | None) -> list[Searched]:
    """The episodes of one case; with `results`, what their searches find is one of so many."""
    rng = np.random.default_rng([2, index])
    opening = (Message("user", words(rng, lengths.question)),)
    request = ScoreRequest(str(index), words(rng, ANSWER), opening)
    found = [f"\n{words(rng, lengths.evidence)}" for _ in range(results or GROUP * SEARCHES)]
    picked = (
        rng.integers(results, size=(GROUP, SEARCHES))
        if results
        else np.arange(GROUP * SEARCHES).reshape(GROUP, SEARCHES)
    )
    return [
        Searched(request, tuple(found[i] for i in row), f"\n{words(rng, lengths.refinement)}")
        for row in picked
    ]


async def together(scorer: LocalScorer, batch: Sequence[Searched]) -> list[LogitP]:
    return list(
        await asyncio.gather(
            *(logit_p(scorer, one.request, one.documents, one.refinement) for one in batch)
        )
    )


def one_by_one(policy: LocalPolicy, batch: Sequence[Searched]) -> list[LogitP]:
    made = []
    for one in batch:
        contexts = ((), *((text,) for text in (*one.documents, one.refinement)))
        question, *rest = (
            separately(policy, one.request, [context])[0] / ANSWER for context in contexts
        )
        made.append(LogitP(question, tuple(rest[:-1]), rest[-1]))
    return made


def agree(ours: Sequence[LogitP], theirs: Sequence[LogitP]) -> None:
    mine, others = (
        [[*one.rounds, one.refinement or 0.0] for one in side] for side in (ours, theirs)
    )
    difference = np.abs(np.subtract(mine, others)).max()
    if difference > 1e-5:
        raise SystemExit(f"gains: packed and separate values differ by {difference}")
