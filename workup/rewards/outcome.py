"""Whether the diagnosis was right, and the plain reward made of that (CRAFT's R_naive)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from workup.episode import Batch, Ending, Episode, Score, Scores
from workup.ports import Instruments, Judge, Reward

Rule = Callable[[Episode, float], Score]  # episode, acc ∈ {0, 1} → score


def malformed(episode: Episode) -> bool:
    """Whether the trajectory ended without a valid diagnosis: out of turns or out of tokens.

    A diagnosis in a completion that the token limit cut off was not executed and does not count.
    """
    return episode.ending is not Ending.DIAGNOSED


async def accuracy(episode: Episode, judge: Judge) -> float:
    """acc(d̂, d*) ∈ {0, 1}; 0, without a call of the judge, if the trajectory is malformed.

    Raises RolloutError when the judge cannot decide.
    """
    return 0.0 if malformed(episode) else float(await judge.same(episode.answer[0], episode.case))


async def graded(episode: Episode, judge: Judge, partly: float) -> float:
    """R_answer / 2 of Med-R³'s Eq. 3: 1 right, 0 wrong; `partly` (0.5 there) for partly right.

    0 and failures are those of `accuracy`.
    """
    if malformed(episode):
        return 0.0
    grade = await judge.grade(episode.answer[0], episode.case)
    return grade if grade in (0.0, 1.0) else partly


def naive(episode: Episode, acc: float, penalty: float) -> Score:
    """R_naive(τ) = acc(d̂, d*), less `penalty` for a malformed trajectory; no step term."""
    less = -penalty if malformed(episode) else 0.0
    return Score.at_end(episode, acc + less, acc=acc, malformed=less)


async def score_each(batch: Batch, judge: Judge, rule: Rule) -> Scores:
    """`rule` applied to every episode of the batch; the judge gets all of them in one call."""
    accs = iter(
        await asyncio.gather(*(accuracy(episode, judge) for group in batch for episode in group))
    )
    return [[rule(episode, next(accs)) for episode in group] for group in batch]


def correctness(penalty: float) -> Reward:
    """R_naive of every episode: 1 or 0, less `penalty` where there is no valid diagnosis."""

    async def reward(batch: Batch, instruments: Instruments) -> Scores:
        return await score_each(
            batch, instruments.judge, lambda episode, acc: naive(episode, acc, penalty)
        )

    return reward
