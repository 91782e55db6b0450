"""What a measurement is, how contestants take turns, and the one table that shows it all."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from rich.table import Table


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table.

    `ours` and `baseline` are in `unit`; `ratio` has to be on the right side of `target`.
    """

    measure: str
    ours: float
    baseline: float
    unit: str
    ratio: float
    target: float
    at_least: bool

    @property
    def met(self) -> bool:
        return self.ratio >= self.target if self.at_least else self.ratio <= self.target


HEADINGS = ("measure", "ours", "baseline", "ratio", "target", "met")


def _three_digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def rows(figures: Sequence[Figure]) -> list[tuple[str, ...]]:
    """The figures as text, below HEADINGS."""
    return [
        (
            f.measure,
            f"{_three_digits(f.ours)} {f.unit}".strip(),
            f"{_three_digits(f.baseline)} {f.unit}".strip(),
            f"{f.ratio:.2f}",
            f"{'≥' if f.at_least else '≤'} {f.target:g}",
            "yes" if f.met else "no",
        )
        for f in figures
    ]


def table(figures: Sequence[Figure]) -> Table:
    shown = Table(HEADINGS[0], title="workup bench")
    for heading in HEADINGS[1:]:
        shown.add_column(heading, justify="right", no_wrap=True)
    for *cells, met in rows(figures):
        shown.add_row(*cells, f"[{'green' if met == 'yes' else 'red'}]{met}[/]")
    return shown


def race(contestants: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Each contestant's median seconds; see `laps`."""
    return {name: took for name, (took,) in laps(contestants, rounds, [time.perf_counter]).items()}


def laps(
    contestants: Mapping[str, Callable[[], object]],
    rounds: int,
    clocks: Sequence[Callable[[], float]],
) -> dict[str, list[float]]:
    """Each contestant's median seconds by each of `clocks`.

    They take turns (A B C A B C …), so that a slow minute slows them all alike.
    """
    seconds: dict[str, list[list[float]]] = {name: [[] for _ in clocks] for name in contestants}
    for run in contestants.values():
        run()  # the first time pays for imports, caches and allocations
    for _ in range(rounds):
        for name, run in contestants.items():
            gc.collect()
            starts = [clock() for clock in clocks]
            run()
            for values, clock, start in zip(seconds[name], clocks, starts, strict=True):
                values.append(clock() - start)
    return {name: [median(values) for values in by_clock] for name, by_clock in seconds.items()}
