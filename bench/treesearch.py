"""Trees of 64 cases grown side by side, and one after the other.

They are the same trees, by the same model on one thread.

A tree alone already draws and simulates eight children at once; what the others add is a fuller
batch. The policy always asks (`bench.ward`), so that both contestants generate the same number of
tokens; `same` checks that the trees are equal. The policy keeps as many transcripts as episodes are
in flight: with half of that the gain is lost to prompts that are computed again.
"""

from __future__ import annotations

import asyncio

import torch

from bench.figures import Figure, race
from bench.ward import MAX_TOKENS, Ward
from workup.core.episode import Episode, Score
from workup.models.local import LocalPolicy
from workup.rl.rollout import Play, TokenDoctor, ToPlay
from workup.rl.treesearch import Search, Tree, TreeSearch

CASES, ROUNDS = 64, 3
SEARCH = Search(
    iterations=2
)  # of the five, to keep the bench short: every iteration is the same work


def measure() -> list[Figure]:
    torch.set_num_threads(1)
    ward = Ward.open()
    jobs = [ToPlay(case, key) for key, case in enumerate(ward.cases[:CASES])]
    policy = LocalPolicy(ward.model, ward.tokenizer, max_batch=CASES * SEARCH.width)
    search = TreeSearch(
        ward.environment, TokenDoctor(policy), found, SEARCH, Play(max_tokens=MAX_TOKENS)
    )

    def together() -> list[Tree]:
        policy.refresh()
        return asyncio.run(search.grow_all(jobs))

    def one_by_one() -> list[Tree]:
        policy.refresh()
        return asyncio.run(search.grow_all(jobs, concurrency=1))

    same(together(), one_by_one())
    seconds = race({"together": together, "one by one": one_by_one}, ROUNDS)
    mine, theirs = seconds["together"], seconds["one by one"]
    return [
        Figure(
            "tree search over 64 cases, beside one tree at a time",
            mine,
            theirs,
            "s",
            theirs / mine,
            4.0,
            True,
        )
    ]


async def found(episode: Episode) -> Score:
    """R: the share of the case's facts that were brought to light."""
    return Score.at_end(episode, len(episode.discovered) / max(1, len(episode.case.truth.facts)))


def same(some: list[Tree], others: list[Tree]) -> None:
    """Stops the bench unless both have grown the same trees."""
    for one, other in zip(some, others, strict=True):
        if one.show() != other.show():
            raise SystemExit(
                f"the trees of {one.job.case.id} differ:\n{one.show()}\n{other.show()}"
            )


if __name__ == "__main__":
    from rich.console import Console

    from bench.figures import table

    Console().print(table(measure()))
