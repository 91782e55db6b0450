"""How much evidence moves a scorer towards the gold answer: C-MIG's two views, and IGPO's gain.

LogitP(a | I) = (1/L) Σ_l log π(a_l | I, a_<l), the mean log-probability of the gold answer's tokens
(CM-4), and ΔIG = LogitP(a | I_extra) − LogitP(a | I_base) (CM-5), both in nats. π is the
`Scorer`'s: a frozen reference, or the live policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import exp, tanh
from statistics import median
from typing import Literal

from workup.core.ports import AllGather, Piece, Scorer, ScoreRequest

Order = Literal[0, 1, 2]
"""Which differences of LogitP between rounds are paid, see `document_rewards`."""


@dataclass(frozen=True, slots=True)
class LogitP:
    """LogitP(a | I) in nats (≤ 0) for one episode's evidence I.

    I is the question alone, the question with each of D_1 … D_N, and the question with the
    refinement.
    """

    question: float
    documents: tuple[float, ...] = ()
    refinement: float | None = None

    @property
    def rounds(self) -> tuple[float, ...]:
        """LogitP with D_0 = ∅, D_1, …, D_N."""
        return (self.question, *self.documents)

    @property
    def refined(self) -> float | None:
        """Δ(s) = LogitP(a | q, s_refine) − LogitP(a | q) (CM-7); None without a refinement."""
        return None if self.refinement is None else self.refinement - self.question


async def logit_p(
    scorer: Scorer,
    request: ScoreRequest,
    documents: Sequence[Piece],
    refinement: Piece | None = None,
) -> LogitP:
    """LogitP for all evidence of an episode, in one call.

    `documents[k]` is D_{k+1}: the result of one search, as the prompt shows it. Each D_k stands
    alone after the request's opening (the question q), not after D_1 … D_{k−1}. The request's own
    contexts are not used.
    """
    shown: tuple[Piece, ...] = (*documents, *(() if refinement is None else (refinement,)))
    question, *means = (
        await scorer.score(replace(request, contexts=((), *((piece,) for piece in shown))))
    ).means
    return LogitP(
        question, tuple(means[: len(documents)]), None if refinement is None else means[-1]
    )


def differences(rounds: Sequence[float]) -> tuple[float, ...]:
    """Δ(D_k) = LogitP(a | q, D_k) − LogitP(a | q, D_{k−1}) for k = 1 … N (CM-6).

    `rounds` is LogitP at D_0 … D_N.
    """
    return tuple(after - before for before, after in pairwise(rounds))


def document_rewards(
    rounds: Sequence[float],
    *,
    w_d: float = 1.0,
    alpha_d: float = 1.0,
    order: Order = 2,
    half_positive: bool = True,
) -> tuple[float, ...]:
    """C-MIG-D by round (CM-6, CM-11): R_k = (w_d/N) max(tanh(α_d δ_k), 0).

    δ_k = Δ(D_k) − Δ(D_{k−1}) for k ≥ 2, and δ_1 = 0. All R_k are 0 if Δ(D_1) ≤ 0 or N < 2. Their
    sum is the sequence's R_doc; R_k by itself is the turn's. `rounds` is LogitP at D_0 … D_N.

    As printed it rewards a second difference: steady progress earns nothing, but harm followed by
    recovery does. `order` 1 takes Δ(D_k) for δ_k; it rewards progress, and still the recovery.
    `order` 0 does so from k = 1 on, for any N and Δ(D_1): the first search is paid as well, and the
    δ_k sum to LogitP(D_N) − LogitP(D_0). Without `half_positive` losses count too, so that recovery
    earns back no more than was lost.
    """
    Δ = differences(rounds)
    N = len(Δ)
    if order and (N < 2 or Δ[0] <= 0):
        return (0.0,) * N
    δ = Δ if order == 0 else (0.0, *(Δ[1:] if order == 1 else differences(Δ)))
    bounded = (tanh(alpha_d * change) for change in δ)
    return tuple(w_d / N * (max(change, 0.0) if half_positive else change) for change in bounded)


def refinement_rewards(
    gains: Sequence[float | None], all_gather: AllGather, *, w_r: float = 0.1
) -> tuple[float, ...]:
    """C-MIG-R (CM-7): w_r for each episode whose Δ(s) is at least the batch's positive median.

    That is the median of the positive Δ(s) of the whole batch; other episodes get 0. `gains` are
    this process's episodes, None for those without a refinement; correct ones belong here too.
    Calls `all_gather` exactly once, so that every split of the batch over processes gives the same
    rewards.
    """
    positive = [
        gain for gain in all_gather([gain for gain in gains if gain is not None]) if gain > 0
    ]
    if not positive:
        return (0.0,) * len(gains)
    threshold = median(positive)
    return tuple(w_r if gain is not None and gain >= threshold else 0.0 for gain in gains)


def probability_gains(rounds: Sequence[float]) -> tuple[float, ...]:
    """IGPO's gain of turn k: exp(LogitP_k) − exp(LogitP_{k−1}), within (−1, 1) (CM-14).

    LogitP is measured under the live policy.
    """
    return differences([exp(value) for value in rounds])
