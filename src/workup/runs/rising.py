"""Was a run still rising when it ended? Its last quarter against the one before, beyond the noise.

The steps of the last reinforcement stage have rewards y_1 … y_n. With b = ⌊n / 4K⌋, the last 2·K·b
of them are two quarters of K = 6 blocks of b steps. ȳ_qk is the mean of block k of quarter q, and
ȳ_q the mean of that quarter. The rise is the difference of the two,

    d = ȳ_2 − ȳ_1,

and its 95 % interval is d ± t·s·√(2/K), with Student's t of 2K − 3 = 9 degrees of freedom and

    s² = Σ_qk (ȳ_qk − ȳ_q − β·(k − (K + 1)/2))² / (2K − 3).

β is the least-squares slope that both quarters share: what a steady rise adds to the spread of the
blocks within a quarter is no noise. For independent normal noise the interval is exact, with a rise
and without. Means of blocks (batch means: Conway 1963; Law & Carson 1979) also allow for steps that
resemble their neighbours, as far as the resemblance is gone after a block.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from workup.core.statistics import LEVEL, ROUNDING, Estimate
from workup.metrics import steps
from workup.runs.words import share

BLOCKS = 6
"""K: blocks in a quarter. More would find smaller rises, and be misled by shorter memories."""

SHORTEST = 2
"""Steps of a block, at least: blocks of one step allow for no resemblance at all."""

FEWEST = 4 * BLOCKS * SHORTEST
"""Steps of a stage, below which it is too short to tell."""


class LearningVerdict(StrEnum):
    """What the interval of the rise says: all of it above 0, all of it below, or neither."""

    RISING = "rising"
    LEVEL = "level"
    FALLING = "falling"
    SHORT = "too short to tell"


_SAID = {
    LearningVerdict.RISING: "still rising",
    LearningVerdict.LEVEL: "level within the noise",
    LearningVerdict.FALLING: "falling",
}


@dataclass(frozen=True, slots=True)
class Learning:
    """How the last reinforcement stage of a run ended.

    `stage` is its name, `updates` how many of its steps have a reward, `stages` how many
    reinforcement stages the run has. `reward` and `accuracy` are the rises; None where there are
    too few steps.
    """

    stage: str
    stages: int
    updates: int
    reward: Estimate | None
    accuracy: Estimate | None

    @property
    def verdict(self) -> LearningVerdict:
        """By the reward, which the run was paid for."""
        return verdict(self.reward)

    def as_json(self) -> dict[str, Any]:
        """{"stage", "stages", "updates", "verdict", "reward", "accuracy"}; the rises as estimates.

        `n` of an estimate counts the steps of both quarters, `missing` those without the figure.
        """
        rises = {"reward": self.reward, "accuracy": self.accuracy}
        return {
            **{"stage": self.stage, "stages": self.stages, "updates": self.updates},
            "verdict": str(self.verdict),
            **{name: each and each.as_json() for name, each in rises.items()},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Learning:
        rises = (value[name] and Estimate.from_json(value[name]) for name in ("reward", "accuracy"))
        return cls(value["stage"], value["stages"], value["updates"], *rises)

    def __str__(self) -> str:
        """ "still rising, +.02 [.01, .03] from the third quarter of 1,000 updates to the last" """
        where = f" in {self.stage}" if self.stages > 1 else ""
        if self.reward is None:
            few = f"{self.updates:,} updates, at least {FEWEST} are needed"
            return f"{LearningVerdict.SHORT}{where}: {few}"
        beside = f" (accuracy {with_sign(self.accuracy)})" if self.accuracy else ""
        return (
            f"{_SAID[self.verdict]}{where}, {with_sign(self.reward)} from the third quarter of "
            f"{self.updates:,} updates to the last{beside}"
        )


def told(entry: Mapping[str, Any]) -> str:
    """The entry `learning` of summary.json in one sentence, without the command."""
    each = Counter(fold["verdict"] for fold in entry.get("folds", {}).values())
    folds = ", ".join(f"{number} {verdict}" for verdict, number in each.most_common())
    return f"{Learning.from_json(entry)}{f'; fold by fold: {folds}' if folds else ''}"


def learning(lines: Iterable[Mapping[str, Any]]) -> Learning | None:
    """How the last reinforcement stage among the lines of metrics.jsonl ended; None without one."""
    driven = [
        line
        for line in lines
        if line.get("reward") is not None
        and not any(each.name in line for each in steps.SEARCHED)  # searches have rewards, too
    ]
    if not driven:
        return None
    stages = [line["stage"] for line in driven]
    last = [line for line in driven if line["stage"] == stages[-1]]
    rises = (rise([line.get(name) for line in last]) for name in ("reward", "accuracy"))
    return Learning(stages[-1], len(set(stages)), len(last), *rises)


def rise(values: Sequence[float | None]) -> Estimate | None:
    """d with its interval, of one value for each step; None for fewer than `FEWEST` values.

    Steps without a value are left out and counted in `missing`. The interval has no width where
    the blocks have no noise.
    """
    known = np.array([value for value in values if value is not None], dtype=float)
    size = len(known) // (4 * BLOCKS)
    if size < SHORTEST:
        return None
    from scipy.special import stdtrit  # few commands need it, and it takes a while to load

    used = 2 * BLOCKS * size
    blocks = known[-used:].reshape(2, BLOCKS, size).mean(2)
    quarters = blocks.mean(1)
    time = np.arange(BLOCKS) - (BLOCKS - 1) / 2
    around = blocks - quarters[:, None]
    slope = (around * time).sum() / (2 * (time**2).sum())
    freedom = 2 * BLOCKS - 3
    spread = math.sqrt(((around - slope * time) ** 2).sum() / freedom)
    half = float(stdtrit(freedom, (1 + LEVEL) / 2)) * spread * math.sqrt(2 / BLOCKS)
    least = ROUNDING * float(np.abs(known).max())  # of equal figures that were rounded
    mean, half = (0.0 if abs(each) <= least else each for each in (quarters[1] - quarters[0], half))
    missing = len(values) - len(known)
    return Estimate(float(mean), float(mean - half), float(mean + half), used, missing)


def verdict(found: Estimate | None) -> LearningVerdict:
    """What a rise with its interval says."""
    if found is None:
        return LearningVerdict.SHORT
    if found.low > 0:
        return LearningVerdict.RISING
    return LearningVerdict.FALLING if found.high < 0 else LearningVerdict.LEVEL


def with_sign(found: Estimate) -> str:
    """ "+.021 [.012, .030]", with as many decimals as show two digits of the interval's width."""
    size = 2 * found.half or abs(found.mean)
    digits = max(2, 1 - math.floor(math.log10(size))) if size else 2
    low, high = (share(each, digits) for each in (found.low, found.high))
    return f"{'+' if found.mean > 0 else ''}{share(found.mean, digits)} [{low}, {high}]"
