"""From scores to advantages: pure arithmetic, one number per turn (signature `ports.Credit`).

All standard deviations are of the sample (n − 1), as in TRL and verl. If all values are equal, the
advantages are exactly 0, even with ε = 0: a rounding residue divided by ε would be a false signal.
A group of one episode gets 0. The order of a group's episodes changes no bit of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from workup.core.case import Case
from workup.core.episode import Batch, Episode, Group, Score, Scores
from workup.core.ports import AllGather, Credit

Normalise = Literal["group_std", "batch_std", "none"]
Baseline = Literal["last", "leave-one-out", "reached"]
Advantages = list[list[tuple[float, ...]]]
Array = NDArray[np.float64]
Ints = NDArray[np.int64]
EPSILON = 1e-6


def zscore(normalise: Normalise = "group_std", epsilon: float = EPSILON) -> Credit:
    """One advantage per trajectory, for all its turns, from R_k = the sum of its turns' scores.

    - "group_std": A_k = (R_k − mean) / (std + ε) over the K trajectories of the case: GRPO as
      printed (CRAFT 3.4, CR-10).
    - "batch_std": A_k = (R_k − mean of its group) / (std of all these differences, over every
      process, + ε).
    - "none": A_k = R_k − mean of its group.

    Only "batch_std" calls `all_gather`, exactly once, for an empty batch too.
    """

    def credit(batch: Batch, scores: Scores, all_gather: AllGather) -> Advantages:
        centred = [_centred(np.array([score.total for score in group])) for group in scores]
        scaled = _scaled(centred, normalise, epsilon, all_gather)
        return [
            [(A,) * len(episode.turns) for episode, A in zip(group, values.tolist(), strict=True)]
            for group, values in zip(batch, scaled, strict=True)
        ]

    return credit


def turn_zscore(epsilon: float = EPSILON) -> Credit:
    """A_{k,t} = (r_{k,t} − mean) / (std + ε), over all turns of all trajectories of the group."""
    return _pooled(lambda episode: [1] * len(episode.turns), lambda episode: 0, epsilon)


def place_zscore(epsilon: float = EPSILON) -> Credit:
    """A_{k,t} = (r_{k,t} − mean_t) / (std_t + ε), over the group's trajectories that reach turn t.

    It is GRPO on single turns: a first turn is compared with first turns alone.
    """

    def within(scores: Sequence[Score]) -> list[tuple[float, ...]]:
        A = [np.zeros(len(score.turns)) for score in scores]
        for t in range(max(map(len, A), default=0)):
            there = [k for k, turns in enumerate(A) if t < len(turns)]
            differences = _centred(np.array([scores[k].turns[t] for k in there]))
            for k, value in zip(
                there, _over(differences, _spread(differences) + epsilon), strict=True
            ):
                A[k][t] = value
        return [tuple(turns.tolist()) for turns in A]

    return lambda batch, scores, all_gather: [within(group) for group in scores]


def token_zscore(
    epsilon: float = EPSILON, *, count: Literal["actions", "all"] = "actions"
) -> Credit:
    """As `turn_zscore`, but a turn counts as often as it has tokens (ProMed Eq. 13).

    Eq. 13 has no ε. Each token has its action's reward. Mean and std run over all action tokens of
    the group. Turns without token ids (of a doctor that is no token policy) count nothing. With
    `count="all"` the environment's tokens, prompt included, count as well, with the reward 0 that
    Eq. 12 gives them.
    """

    def others(episode: Episode) -> int:
        return sum(len(turn.prompt_tokens) for turn in episode.turns) if count == "all" else 0

    return _pooled(
        lambda episode: [len(turn.completion.tokens) for turn in episode.turns], others, epsilon
    )


def to_go(
    normalise: Normalise = "batch_std", epsilon: float = EPSILON, baseline: Baseline = "last"
) -> Credit:
    """A_{k,t} = G_{k,t} − b_{k,t}: the rewards to come, less a baseline over the group at turn t.

    G_{k,t} = Σ_{s ≥ t} r_{k,s}, for the T_k turns t = 0 … T_k − 1 of trajectory k, K of them in a
    group. The baseline b is one of three:

    - "last": b_t = the mean over all K of G_{j, min(t, T_j − 1)}. A trajectory that is over counts
      at later turns with the return of its last action. Without normalisation the expected update
      is (K − 1)/K times the gradient of the expected return.
    - "leave-one-out": the same mean over the K − 1 others. The expected update is that gradient.
    - "reached": b_t = the mean over those trajectories that reach turn t. A trajectory that reaches
      it alone is compared with itself and gets exactly 0, whatever its answer was worth. Late turns
      count too little.

    Example with K = 2: the first trajectory answers at once, wrongly (reward 0). The second asks
    (0.5) and then answers rightly (3): its returns are 3.5 and 3. With "last" the first one's 0
    counts at both turns, and the second gets 1.75 and 1.5. With "reached" the second gets 1.75 and
    0: nothing is learned from its right answer.

    "group_std" divides by the group's standard deviation around 0, √(Σ A² / (n − 1)) over its n
    turns; "batch_std" by that of all turns of all processes; "none" by nothing. Only "batch_std"
    calls `all_gather`, exactly once, for an empty batch too.
    """
    less = {"last": _less_mean, "leave-one-out": _less_others, "reached": _less_reached}[baseline]

    def differences(scores: Sequence[Score]) -> Array:
        T = np.array([len(score.turns) for score in scores], dtype=np.int64)
        reached = np.arange(T.max(initial=0)) < T[:, None]  # (K, turns)
        r = np.zeros(reached.shape)
        r[reached] = [value for score in scores for value in score.turns]
        G = np.cumsum(r[:, ::-1], axis=1)[:, ::-1]
        A: Array = less(G, T)[reached]  # one trajectory after the other
        return A

    def credit(batch: Batch, scores: Scores, all_gather: AllGather) -> Advantages:
        scaled = _scaled([differences(group) for group in scores], normalise, epsilon, all_gather)
        return [_by_episode(A, group) for A, group in zip(scaled, batch, strict=True)]

    return credit


def one_step(known: Callable[[Case], float], epsilon: float = EPSILON) -> Credit:
    """A_{k,t} = r_{k,t} + V_{t+1}(Φ_{k,t+1}) − V_t(Φ_{k,t}): own reward, and what it leads to.

    It is for rewards that say how much more is known: Φ_{k,t} = `known`(case) + Σ_{s < t} r_{k,s}.
    V_t(Φ) = a_t + c_t·Φ is the line of least squares, −1 ≤ c_t ≤ 0, through the rewards to come,
    G_{k,t} = Σ_{s ≥ t} r_{k,s}, of the trajectories of all cases and processes that reach turn t.
    Behind a trajectory's last turn V is 0. `to_go` has in the place of V_{t+1} what the same
    trajectory got by its later turns, which is mostly chance where each turn has its own reward.

    Example, both with Φ_0 = −2: one trajectory answers at once, wrongly (reward 0). Another asks
    (0.5) and then answers rightly (1). V_0 is 0.75 and V_1 is 1: the first gets −0.75, the second
    0.75 and 0.

    It divides by the standard deviation around 0 of all turns of all processes, and calls
    `all_gather` exactly twice, for an empty batch too. A group of one episode is compared as well.
    """

    def credit(batch: Batch, scores: Scores, all_gather: AllGather) -> Advantages:
        cases = [episode.case for group in batch for episode in group]
        r = [np.array(score.turns) for group in scores for score in group]
        before = [np.cumsum(np.append(0.0, own))[:-1] for own in r]
        Φ = [known(case) + gained for case, gained in zip(cases, before, strict=True)]
        G = [np.cumsum(own[::-1])[::-1] for own in r]
        seen = [np.ravel([np.arange(len(g)), φ, g], "F") for φ, g in zip(Φ, G, strict=True)]
        everywhere = np.array(all_gather(np.concatenate([*seen, []]).tolist()))
        a, c = _lines(everywhere.reshape(-1, 3))
        V = [a[: len(φ)] + c[: len(φ)] * φ for φ in Φ]
        ahead = (own + np.append(v[1:], 0.0) - v for own, v in zip(r, V, strict=True))
        groups = [np.concatenate([*(next(ahead) for _ in group), []]) for group in batch]
        scaled = _scaled(groups, "batch_std", epsilon, all_gather)
        return [_by_episode(A, group) for A, group in zip(scaled, batch, strict=True)]

    return credit


def _lines(seen: Array) -> tuple[Array, Array]:
    """a_t and c_t of every turn t, from rows of (t, Φ, G) in any order."""
    rows = seen[np.lexsort(seen.T[::-1])]  # sorted, so that rounding does not depend on order
    a, c = [], []
    for turn in range(int(rows[:, 0].max(initial=-1)) + 1):
        Φ, G = rows[rows[:, 0] == turn, 1:].T
        c.append(_slope(Φ, G))
        rest = G - c[-1] * Φ
        a.append(rest[0] if np.ptp(rest) == 0 else rest.mean())
    return np.array(a), np.array(c)


def _slope(Φ: Array, G: Array) -> float:
    """Of the line of least squares, within [−1, 0]: what is known by now is not told later."""
    x = _centred(Φ)
    square = float((x**2).sum())
    return float(np.clip((x * (G - G.mean())).sum() / square, -1.0, 0.0)) if square else 0.0


def _less_mean(G: Array, T: Ints) -> Array:
    last = np.minimum(np.arange(G.shape[1]), T[:, None] - 1)
    return _centred(np.take_along_axis(G, last, axis=1))  # of G_{k, min(t, T_k − 1)}


def _less_others(G: Array, T: Ints) -> Array:
    """x_k − (Σ_{j≠k} x_j)/(K − 1) = K/(K − 1)·(x_k − mean)."""
    return _less_mean(G, T) * len(G) / max(len(G) - 1, 1)


def _less_reached(G: Array, T: Ints) -> Array:
    A = np.zeros_like(G)
    for t in range(G.shape[1]):
        there = t < T
        A[there, t] = _centred(G[there, t])
    return A


Counts = Callable[[Episode], Sequence[int]]


def _pooled(counts: Counts, others: Callable[[Episode], int], epsilon: float) -> Credit:
    """Standardises the turns' scores in each group; turn k counts `counts(episode)[k]` times.

    Each episode adds `others(episode)` values of 0.
    """

    def credit(batch: Batch, scores: Scores, all_gather: AllGather) -> Advantages:
        return [within(group, marks) for group, marks in zip(batch, scores, strict=True)]

    def within(group: Group, scores: Sequence[Score]) -> list[tuple[float, ...]]:
        r = np.array([value for score in scores for value in score.turns])
        times = [n for episode in group for n in counts(episode)]
        counted = np.concatenate([np.repeat(r, times), np.zeros(sum(map(others, group)))])
        A = np.zeros(len(r))
        if len(group) > 1 and len(counted) and np.ptp(counted):
            mean = _mean(counted)
            A = _over(r - mean, _spread(counted - mean) + epsilon)
        return _by_episode(A, group)

    return credit


def _by_episode(A: Array, group: Group) -> list[tuple[float, ...]]:
    """One value per turn of a group, as one tuple per episode."""
    ends = np.cumsum([len(episode.turns) for episode in group], dtype=np.int64)
    return [tuple(values.tolist()) for values in np.split(A, ends)[:-1]]


def _scaled(
    groups: Sequence[Array], normalise: Normalise, epsilon: float, all_gather: AllGather
) -> list[Array]:
    """Each group's differences, divided as `normalise` says."""
    if normalise == "group_std":
        return [_over(group, _spread(group) + epsilon) for group in groups]
    if normalise == "batch_std":
        everywhere = np.array(all_gather(np.concatenate([*groups, []]).tolist()))
        return [_over(group, _spread(everywhere) + epsilon) for group in groups]
    return list(groups)


def _centred(values: Array) -> Array:
    """Differences from the mean over the first axis; exactly 0 if all are equal."""
    if not len(values):
        return values
    return np.where(np.ptp(values, axis=0) > 0, values - _mean(values), 0.0)


def _mean(values: Array) -> Array:
    """The mean over the first axis, of sorted values, so that rounding does not depend on order."""
    return np.asarray(np.sort(values, axis=0).mean(axis=0))


def _spread(differences: Array) -> float:
    """The sample standard deviation of values whose mean is already 0; 0 for fewer than two."""
    n = len(differences)
    return float(np.sqrt(np.sort(differences**2).sum() / (n - 1))) if n > 1 else 0.0


def _over(differences: Array, divisor: float) -> Array:
    """`differences` / `divisor`; 0 if the divisor is 0, since then all differences are 0."""
    return differences / divisor if divisor else np.zeros_like(differences)
