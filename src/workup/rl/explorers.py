"""How a search stage finds episodes worth learning from, and which it keeps (ProMed, PM-8)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from math import inf

from workup.core.case import Case
from workup.core.draws import seed_key
from workup.core.episode import Episode, Score
from workup.core.ports import Doctor, Environment, Sampling
from workup.core.stages import Choice, Explored, Explorer, Trial, Value
from workup.rl.rollout import Play, ToPlay, rollout
from workup.rl.treesearch import Search, TreeSearch, valued


def tree_search(settings: Search) -> Explorer:
    """Grows one tree per case (Algorithm 2)."""

    async def explore(
        case: Case, environment: Environment, doctor: Doctor, value: Value, sampling: Sampling
    ) -> Explored:
        play = Play(sampling.temperature, sampling.max_tokens)
        grown = await TreeSearch(environment, doctor, value, settings, play).grow(
            ToPlay(case, sampling.key)
        )
        scored = tuple((trajectory.episode, trajectory.score) for trajectory in grown.trajectories)
        return Explored(scored, tuple(grown.failures), grown.depth, grown.calls)

    return explore


def samples(count: int, enough: float = inf) -> Explorer:
    """Plays a case `count` times, first greedily; once only if the greedy R is ≥ `enough`."""

    async def explore(
        case: Case, environment: Environment, doctor: Doctor, value: Value, sampling: Sampling
    ) -> Explored:
        play = Play(sampling.temperature, sampling.max_tokens)

        async def one(number: int, play: Play) -> tuple[Episode, Score | None, str]:
            episode = await rollout(
                ToPlay(case, seed_key(sampling.key, number)), environment, doctor, play
            )
            return await valued(episode, value)

        played = [await one(0, replace(play, temperature=0.0))]
        if not (played[0][1] is not None and played[0][1].total >= enough):
            played += await asyncio.gather(*(one(number, play) for number in range(1, count)))
        scored = tuple((episode, score) for episode, score, _ in played if score is not None)
        failures = tuple(why for _, score, why in played if score is None)
        return Explored(scored, failures, calls=sum(len(episode.turns) for episode, *_ in played))

    return explore


def best(trials: Sequence[Trial]) -> Choice:
    """The right episode of highest R, of equal ones the earliest; nothing if no answer is right."""
    right = [trial for trial in trials if trial.correct]
    return Choice((max(right, key=_total),)) if right else Choice()


def best_and_worst(trials: Sequence[Trial]) -> Choice:
    """The right episode of highest R and the wrong one of lowest R; nothing if either is missing.

    Of equal episodes the earliest is taken.
    """
    kept, wrong = best(trials), [trial for trial in trials if not trial.correct]
    return replace(kept, rejected=(min(wrong, key=_total),)) if kept.chosen and wrong else Choice()


def _total(trial: Trial) -> float:
    return trial.score.total
