"""From scores to advantages: pure arithmetic, one number per turn (signature `ports.Credit`).

All standard deviations are of the sample (n − 1), as in TRL and verl. Where all values are equal the advantages are
exactly 0: no rounding residue, divided by ε, may become a signal. A group of one episode gets 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, islice
from typing import Literal

from workup.episode import Batch, Episode, Group, Score, Scores
from workup.ports import Credit, Gather

Normalise = Literal["group_std", "batch_std", "none"]
Advantages = list[list[tuple[float, ...]]]
EPSILON = 1e-6


def zscore(normalise: Normalise = "group_std", epsilon: float = EPSILON) -> Credit:
    """One advantage per trajectory, the same for all its turns, from R_k = the sum of its turns' scores.

    - "group_std": A_k = (R_k − mean) / (std + ε) over the K trajectories of the case: GRPO as printed (CRAFT 3.4, CR-10).
    - "batch_std": A_k = (R_k − mean of its group) / (std of all these differences, over every process, + ε).
    - "none": A_k = R_k − mean of its group.

    Only "batch_std" calls `gather`, exactly once, whatever the batch holds.
    """

    def credit(batch: Batch, scores: Scores, gather: Gather) -> Advantages:
        centred = [_centre([score.total for score in group], _once(group)) for group in scores]
        if normalise == "group_std":
            scaled = [_scale(group, _spread(group, _once(group)) + epsilon) for group in centred]
        elif normalise == "batch_std":
            everywhere = gather([difference for group in centred for difference in group])
            spread = _spread(everywhere, _once(everywhere))
            scaled = [_scale(group, spread + epsilon) for group in centred]
        else:
            scaled = centred
        return [[(a,) * len(e.turns) for e, a in zip(*pair, strict=True)] for pair in zip(batch, scaled, strict=True)]

    return credit


def turn_zscore(epsilon: float = EPSILON) -> Credit:
    """A_{k,t} = (r_{k,t} − mean) / (std + ε), mean and std over all turns of all trajectories of the group alike."""
    return _pooled(lambda episode: _once(episode.turns), lambda episode: 0, epsilon)


def token_zscore(epsilon: float = EPSILON, *, count: Literal["actions", "all"] = "actions") -> Credit:
    """As `turn_zscore`, but each turn counts as often as it has tokens (ProMed Eq. 13, which has no ε).

    Each token inherits its action's reward, and mean and std run over all action tokens of the group; turns of doctors
    that are no token policies count nothing. With "all" the tokens of the environment count as well, prompt included,
    with the reward 0 that Eq. 12 gives them.
    """

    def others(episode: Episode) -> int:
        return sum(len(turn.prompt_tokens) for turn in episode.turns) if count == "all" else 0

    return _pooled(lambda episode: [len(turn.completion.tokens) for turn in episode.turns], others, epsilon)


def to_go(normalise: Normalise = "batch_std", epsilon: float = EPSILON) -> Credit:
    """Rewards to come: G_{k,t} = Σ_{s ≥ t} r_{k,s}, less the mean of G_{·,t} over the trajectories that reach turn t.

    So an action is compared with what others did at the same point, and is credited with all that came after it. "group_std"
    divides by the standard deviation of the group's differences, "batch_std" by that of everyone's, "none" by nothing.
    Only "batch_std" calls `gather`, exactly once, whatever the batch holds.
    """

    def credit(batch: Batch, scores: Scores, gather: Gather) -> Advantages:
        centred = [_centred_by_turn([_to_come(score.turns) for score in group]) for group in scores]
        flat = [[value for values in group for value in values] for group in centred]
        if normalise == "group_std":
            divisors = [_spread(values, _once(values)) + epsilon for values in flat]
        elif normalise == "batch_std":
            everywhere = gather([value for values in flat for value in values])
            divisors = [_spread(everywhere, _once(everywhere)) + epsilon] * len(centred)
        else:
            divisors = [1.0] * len(centred)
        return [[tuple(_scale(values, divisor)) for values in group] for group, divisor in zip(centred, divisors, strict=True)]

    return credit


def _to_come(rewards: Sequence[float]) -> list[float]:
    return list(accumulate(reversed(rewards)))[::-1]


def _centred_by_turn(returns: Sequence[Sequence[float]]) -> list[list[float]]:
    """Differences from the mean over those that have such a turn."""
    columns = [iter(_centre(there, _once(there))) for there in _columns(returns)]
    return [[next(columns[t]) for t in range(len(row))] for row in returns]


def _columns(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    return [[row[t] for row in rows if t < len(row)] for t in range(max(map(len, rows), default=0))]


Counts = Callable[[Episode], Sequence[int]]


def _pooled(counts: Counts, others: Callable[[Episode], int], epsilon: float) -> Credit:
    """Standardises the turns' scores within each group, each counted as often as `counts` says, beside `others` zeros."""

    def credit(batch: Batch, scores: Scores, gather: Gather) -> Advantages:
        return [_within(group, marks, counts, others, epsilon) for group, marks in zip(batch, scores, strict=True)]

    return credit


def _within(
    group: Group, scores: Sequence[Score], counts: Counts, others: Callable[[Episode], int], epsilon: float
) -> list[tuple[float, ...]]:
    if len(group) < 2:
        return [(0.0,) * len(episode.turns) for episode in group]
    values = [*(r for score in scores for r in score.turns), 0.0]
    times = [*(n for episode in group for n in counts(episode)), sum(map(others, group))]
    centred = iter(_standardise(values, times, epsilon))
    return [tuple(islice(centred, len(episode.turns))) for episode in group]


def _standardise(values: Sequence[float], counts: Sequence[int], epsilon: float) -> list[float]:
    centred = _centre(values, counts)
    return _scale(centred, _spread(centred, counts) + epsilon)


def _once(values: Sequence[object]) -> list[int]:
    return [1] * len(values)


def _centre(values: Sequence[float], counts: Sequence[int]) -> list[float]:
    """Differences from the mean; exactly 0 where all that count are equal."""
    counted = [value for value, n in zip(values, counts, strict=True) if n]
    if not counted or min(counted) == max(counted):
        return [0.0] * len(values)
    mean = math.fsum(n * value for value, n in zip(values, counts, strict=True)) / sum(counts)
    return [value - mean for value in values]


def _spread(centred: Sequence[float], counts: Sequence[int]) -> float:
    """Sample standard deviation of values whose mean has been taken off; 0 for fewer than two."""
    n = sum(counts)
    return math.sqrt(math.fsum(k * c * c for c, k in zip(centred, counts, strict=True)) / (n - 1)) if n > 1 else 0.0


def _scale(values: Sequence[float], divisor: float) -> list[float]:
    return [value / divisor for value in values]
