"""What a measure declares of each of its numbers, beside its code; tables and pages ask it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Flag, auto

BY = " by "  # between a metric's name and the judge whose own figure it is
SHARE, COUNT, ANY = (0.0, 1.0), (0.0, math.inf), (-math.inf, math.inf)
LAST = 1_000  # the rank of a metric that names none


class Where(Flag):
    """Where a metric is shown, besides summary.json and the viewer's lists of episodes."""

    NOWHERE = 0
    TERMINAL = auto()
    """In the tables on the terminal, where somebody has it."""
    PAGES = auto()
    """In the tables of reports, comparisons and the viewer, where it is defined for somebody."""
    PAIRED = auto()
    """Among the paired differences of two policies."""
    STEPS = auto()
    """In metrics.jsonl, as the mean of a training step."""
    LIVE = auto()
    """In the live view of a training."""


PAGED = Where.PAGES | Where.PAIRED
TABLES = Where.TERMINAL | PAGED


@dataclass(frozen=True, slots=True)
class Caveat:
    """A line that stands below a table where a doctor's mean is above `above`.

    `text` follows the doctor's name; {share} in it is the mean of a share, as "97 %". There is none
    where fewer than `fewest` episodes have the metric: a single question is no reason to warn.
    `ways` are settings with what they do about it; those that an environment has are told.
    """

    above: float
    text: str
    fewest: int = 3
    ways: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Metric:
    """One number that is averaged over episodes, or over training steps.

    `sense` says in a sentence what it is, and `undefined` where it is not defined; "" for a number
    that every episode has. `heading` stands above its column, by default the name in words.
    `range` is (lowest, highest). Columns stand in the order of `rank`. `digits` are the decimals
    shown.

    What few metrics need: with `always` summary.json has it whatever was measured. The terminal has
    a column for it only where some doctor's mean is at least `least`. `macro` names classes of
    cases ("diagnosis", "category"), and makes "macro_NAME" the mean over classes of each class's
    mean. `curve` is the title of its figure over training. `caveat` warns where its mean is high.
    """

    name: str
    sense: str
    heading: str = ""
    undefined: str = ""
    range: tuple[float, float] = SHARE
    digits: int = 2
    rank: int = LAST
    where: Where = TABLES
    always: bool = False
    least: float = -math.inf
    macro: str = ""
    curve: str = ""
    caveat: Caveat | None = None

    @property
    def title(self) -> str:
        """What stands above its column."""
        return self.heading or self.name.replace("_", " ")

    @property
    def share(self) -> bool:
        """Whether it lies in [0, 1]."""
        return self.range == SHARE

    @property
    def meaning(self) -> str:
        """What it is, and where it is undefined; "" where nobody declared it."""
        return f"{self.sense}; undefined {self.undefined}" if self.undefined else self.sense
