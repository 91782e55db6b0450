"""Rewards for ranked lists and orders (ES-4, ES-5, ES-7), in the paper's letters.

A turn is worth R_d + R_e − P_h·1[hack] if n_f = 0, else −P_f·n_f (Eq. 1). An episode's return is
the sum of its turns.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from workup.core.case import Case
from workup.core.episode import DIAGNOSE, Action, Batch, Episode, Score, Scores
from workup.core.errors import RolloutError, UserError
from workup.core.ports import Instruments, Reward
from workup.core.stages import Settle
from workup.environments.base.lists import ORDER, candidates, errors_in
from workup.environments.evidence import EXAMINING, RANKING, EvidenceSeeking
from workup.roles.judges.questions import Appraised, Ordered, RankingQuestion, RankingVerdict

Rank = Literal["ranked", "binary"]


@dataclass(frozen=True, slots=True)
class RewardWeights:
    """The constants of Eqs. 1 to 3; the defaults are those of Sec. 4.1.

    τ_1 holds while only preliminary information is shown, τ_2 once results are. With `rank`
    "binary" a hit anywhere in the list is worth 1 (Table 3).
    """

    τ_1: float = 0.8
    τ_2: float = 1.5
    rank: Rank = "ranked"
    B_e: float = 0.1
    P_h: float = 0.3
    P_f: float = 0.5


@dataclass(frozen=True, slots=True)
class TurnVerdict:
    """What the judges said of one turn: of its list, and of its orders (None in a last turn)."""

    placed: RankingVerdict
    appraised: Appraised | None = None


def R_d(i: int, D: int, τ: float) -> float:
    """e^(−i/τ) / Σ_{j=1..D} e^(−j/τ) (Eq. 3), within [0, 1], for τ from 0 to ∞.

    `i` is the place of the truth from 1, and not positive where the list has no hit; `D` is the
    list's length. The limits are 1[i = 1] at τ = 0, and 1/D at τ = ∞. Raises ValueError for a place
    beyond the list and for τ < 0.
    """
    if i > D or not τ >= 0:
        raise ValueError(f"i = {i}, |D| = {D}, τ = {τ}: i ≤ |D| and τ ≥ 0 are needed")
    if i <= 0:
        return 0.0
    if τ == 0:
        return float(i == 1)
    if not 1 / τ:
        return 1 / D
    # q^(i−1)·(1 − q)/(1 − q^D) with q = e^(−1/τ): no term can overflow, and none cancels.
    return math.exp(-(i - 1) / τ) * math.expm1(-1 / τ) / math.expm1(-D / τ)


def ranked_reward(environment: EvidenceSeeking, weights: RewardWeights) -> tuple[Reward, Settle]:
    """The rewards of all turns, each on its own (ES-4), and what settles their episodes.

    An episode that a judge cannot decide about is failed where the stage settles it; a reward of
    episodes that were not settled raises RolloutError.
    """
    judges = Judges(environment)

    async def reward(batch: Batch, instruments: Instruments) -> Scores:
        episodes = list(chain.from_iterable(batch))
        judged = await asyncio.gather(*map(judges.judged, episodes))
        judges.forget()
        scores = iter(
            [
                score(episode, verdicts, environment, weights)
                for episode, verdicts in zip(episodes, judged, strict=True)
            ]
        )
        return [[next(scores) for _ in group] for group in batch]

    async def settle(episode: Episode) -> None:
        await judges.judged(episode)

    return reward, settle


class Judges:
    """The verdicts on an episode's lists and orders, by the judges of its environment.

    They are remembered until `forget`, so that an episode that was settled is not judged again.
    """

    def __init__(self, environment: EvidenceSeeking) -> None:
        self._world = environment
        self._known: dict[tuple[str, Action, tuple[str, ...]], TurnVerdict] = {}

    def forget(self) -> None:
        self._known.clear()

    async def judged(self, episode: Episode) -> Mapping[int, TurnVerdict]:
        """The verdict on each turn without an error of format, by the turn's place.

        What is carried out is appraised, and in its first turn alone, by whatever name, so that it
        is paid once. Raises RolloutError where a judge gives no usable verdict.
        """
        places = [
            place for place in range(len(episode.turns)) if not n_f(episode, place, self._world)
        ]
        actions = [episode.turns[place].action for place in places]
        ordered: set[str] = set()
        fresh = []
        for place, action in zip(places, actions, strict=True):
            orders = () if action.kind == DIAGNOSE else action.content
            read = await self._world.examinations(episode.case, orders, place)
            new = (
                [order] if names.isdisjoint(ordered) else sorted(names - ordered)
                for order, names in read.items()
            )
            fresh.append(tuple(chain.from_iterable(new)))
            ordered.update(*read.values())
        asked = (self._turn(episode.case, *each) for each in zip(actions, fresh, strict=True))
        return dict(zip(places, await asyncio.gather(*asked), strict=True))

    async def _turn(self, case: Case, action: Action, fresh: tuple[str, ...]) -> TurnVerdict:
        """The verdict on an action; of its orders those that are `fresh` are appraised."""
        if (case.id, action, fresh) not in self._known:
            listed = candidates(action)
            placed = await self._placed(listed, case)
            appraised = None
            if action.kind != DIAGNOSE:
                judge = self._world.examining
                appraised = await judge.judge(Ordered(fresh, listed)) if fresh else Appraised(())
            self._known[case.id, action, fresh] = TurnVerdict(placed, appraised)
        return self._known[case.id, action, fresh]

    async def _placed(self, listed: tuple[str, ...], case: Case) -> RankingVerdict:
        placed = await self._world.ranking.judge(RankingQuestion(listed, case))
        if placed.total != len(listed) or placed.position > len(listed):
            raise RolloutError(
                f"the judge of lists saw {placed.total} candidates and a hit at "
                f"{placed.position}; there are {len(listed)}"
            )
        return placed


def n_f(episode: Episode, place: int, environment: EvidenceSeeking) -> int:
    """The errors of format of a turn, 0 to 2 (ES-4).

    The errors of its text are counted, an empty list of candidates among them. Orders in the last
    turn are one more. A text that the token limit cut off has at least one.
    """
    turn = episode.turns[place]
    late = place == environment.max_turns - 1 and turn.action.kind == ORDER
    return min(2, max(errors_in(turn.action) + late, int(turn.completion.truncated)))


def score(
    episode: Episode,
    judged: Mapping[int, TurnVerdict],
    environment: EvidenceSeeking,
    weights: RewardWeights,
) -> Score:
    """One episode's score, turn by turn; its `parts` are the terms of the sum."""
    w = weights
    parts = dict.fromkeys(("R_d", "R_e", "hack", "format"), 0.0)
    turns = []
    for place in range(len(episode.turns)):
        τ = w.τ_2 if environment.informed(episode, place) else w.τ_1
        terms = (
            _terms(judged[place], τ, w)
            if place in judged
            else {"format": -w.P_f * n_f(episode, place, environment)}
        )
        turns.append(sum(terms.values()))
        for name, value in terms.items():
            parts[name] += value
    return Score(tuple(turns), parts)


def _terms(judged: TurnVerdict, τ: float, w: RewardWeights) -> dict[str, float]:
    """The terms of Eq. 1 for a turn without an error of format.

    The judge gives a list with a hack the position −1, so its R_d is 0.
    """
    placed = judged.placed
    hit = float(placed.position > 0)
    return {
        "R_d": hit if w.rank == "binary" else R_d(placed.position, placed.total, τ),
        "R_e": w.B_e * judged.appraised.value if judged.appraised else 0.0,
        "hack": -w.P_h * bool(placed.hacks),
    }


def fits(environment: EvidenceSeeking, weights: RewardWeights) -> None:
    """Raises UserError where the built-in judges know too little of the cases of `environment`."""
    if not environment.ranks:
        raise UserError(
            "the candidates of these cases can only be judged by a language model: name one with "
            f"roles.{RANKING}=endpoint:NAME"
        )
    if weights.B_e and environment.settings.department != "pathology":
        raise UserError(
            "the judges of examinations know what a pathologist orders: leave examinations unpaid "
            "with reward.bonus=0, or set environment.department=pathology"
        )
    if weights.B_e and not environment.examines:
        raise UserError(
            "the built-in judge of examinations knows clinic:pathology alone: name a model with "
            f"roles.{EXAMINING}=endpoint:NAME, or leave examinations unpaid with reward.bonus=0"
        )
