"""The output of a running run: a live view on a terminal, else plain lines, or JSON lines."""

from __future__ import annotations

import json
import re
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Self, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live as RichLive
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from workup.core.text import several, unsteering
from workup.metrics.facts import NOT_UNDERSTOOD
from workup.metrics.known import metric, shown
from workup.metrics.metric import Where
from workup.runs import warnings
from workup.runs.files import finite
from workup.runs.words import (
    TRAINED,
    cell,
    columns,
    duration,
    equation,
    in_order,
    means,
    number,
)

SMOOTHED = 10  # steps that shown figures are averaged over
REFRESHES = 4  # per second, on a terminal
PLAIN_EVERY = 5.0  # seconds between two lines where there is no terminal
SHORTEST = 10  # columns of a bar that shares its line
BLOCKS = "▁▂▃▄▅▆▇█"


class Live:
    """What train and evaluate report to; this one shows nothing."""

    def stage(self, name: str, total: int, *, done: int = 0, unit: str = "step") -> None:
        """A stage of `total` steps begins, `done` of them in an earlier session."""

    def step(self, metrics: Mapping[str, Any]) -> None:
        """Step `metrics["step"]` is done.

        All figures are optional: reward, parts, endings, tokens_per_second and the metrics that
        declare it (`Where.LIVE`), each of this step; accuracy_so_far of the `judged` episodes so
        far; and spent, the run's cost so far.
        """

    def note(self, text: str) -> None:
        """Something the reader should know; stays on the screen."""

    def table(self, summary: Mapping[str, Any]) -> None:
        """The result: what `summarise` returned."""

    def close(self) -> None:
        """Ends the view."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def show(*, as_json: bool = False, quiet: bool = False, stream: TextIO | None = None) -> Live:
    """The kind of output that fits `stream` (standard output by default); `quiet`: none."""
    if quiet:
        return Live()
    stream = stream or sys.stdout
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="replace")  # a terminal that lacks a letter must not end a run
    if as_json:
        return JsonLive(stream)
    return (
        ScreenLive(Console(file=stream, highlight=False)) if stream.isatty() else PlainLive(stream)
    )


@dataclass
class StageProgress:
    """One stage so far, and how long the rest will take."""

    name: str
    total: int
    done: int
    unit: str
    began: float = field(init=False)
    metrics: deque[Mapping[str, Any]] = field(default_factory=lambda: deque(maxlen=SMOOTHED))
    rewards: list[float] = field(default_factory=list)
    ticks: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=50))

    def __post_init__(self) -> None:
        self.began = time.monotonic()
        self.ticks.append((self.began, self.done))

    def add(self, metrics: Mapping[str, Any]) -> None:
        self.done = int(metrics.get("step", self.done + 1))
        self.metrics.append(metrics)
        if isinstance(metrics.get("reward"), int | float):
            self.rewards.append(metrics["reward"])
        self.ticks.append((time.monotonic(), self.done))

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    @property
    def left(self) -> float | None:
        """Seconds left at the pace of the last fifty steps; None before there is a pace."""
        (start, first), (end, last) = self.ticks[0], self.ticks[-1]
        return (self.total - last) * (end - start) / (last - first) if last > first else None

    def latest(self, name: str) -> float | None:
        """A metric that is counted from the beginning, from the last step that has it."""
        values = [metrics[name] for metrics in self.metrics if name in metrics]
        return values[-1] if values else None

    def mean(self, name: str) -> float | None:
        """The mean of a metric over the last steps that had it."""
        values = [
            metrics[name] for metrics in self.metrics if isinstance(metrics.get(name), int | float)
        ]
        return fmean(values) if values else None

    def means(self, name: str) -> dict[str, float]:
        """The same for a metric that is a mapping; a key that a step lacks counts 0 there."""
        steps = [
            metrics[name] for metrics in self.metrics if isinstance(metrics.get(name), Mapping)
        ]
        return {
            key: sum(step.get(key) or 0 for step in steps) / len(steps)
            for key in dict.fromkeys(k for s in steps for k in s)
        }


def reward_line(progress: StageProgress) -> str:
    reward = progress.mean("reward")
    return "" if reward is None else equation(reward, progress.means("parts"))


def figures(progress: StageProgress) -> list[tuple[str, str]]:
    """(name, figure) of everything that is known: counts so far, then means over the last steps."""
    logged = (name for metrics in progress.metrics for name in metrics)
    known = [(name, progress.mean(name)) for name in shown(logged, Where.LIVE)]
    live = [(name, number(name, value)) for name, value in known if value is not None]
    return [*_so_far(progress), *live]


def _so_far(progress: StageProgress) -> Iterable[tuple[str, str]]:
    if (accuracy := progress.latest("accuracy_so_far")) is not None:
        judged = f"{progress.latest('judged') or 0:,.0f} judged"
        yield "accuracy", f"{number('accuracy', accuracy)} ({judged})"
    if (spent := progress.latest("spent")) is not None:
        yield "spent", f"{spent:.4g}"


def endings_line(progress: StageProgress) -> str:
    endings = progress.means("endings")
    total = sum(endings.values())
    ranked = sorted(endings.items(), key=lambda pair: -pair[1])
    return " · ".join(
        f"{100 * count / total:.0f} % {name}" for name, count in ranked if count >= 0.005 * total
    )


def time_line(progress: StageProgress) -> str:
    speed, left = progress.mean("tokens_per_second"), progress.left
    parts = [
        f"{duration(left)} left" if left is not None else "",
        f"{speed:,.0f} tok/s" if speed else "",
    ]
    return "   ".join(part for part in parts if part)


def spark(values: Sequence[float], width: int = 24) -> str:
    """A curve in one line of block letters, from the lowest to the highest value.

    Empty before there is a curve.
    """
    if len(values) < width:
        return ""
    means = [
        fmean(values[len(values) * k // width : len(values) * (k + 1) // width])
        for k in range(width)
    ]
    low, high = min(means), max(means)
    return "".join(
        BLOCKS[int((value - low) / (high - low or 1) * (len(BLOCKS) - 1))] for value in means
    )


def print_result(summary: Mapping[str, Any], console: Console) -> None:
    """All evaluated doctors, from lower to upper anchors, in as many tables as the width needs."""
    from workup.report import calibration, suite  # load what draws reports, which takes a second
    from workup.report.sheets import Sheet
    from workup.runs import rising

    if summary.get("kind") == suite.KIND:
        for sheet in suite.sheets(summary):
            sheet.show(console)
        _warn(suite.warned(summary), console)
        return
    doctors, anchors = summary["doctors"], summary["anchors"]
    ranked = in_order(doctors, anchors)
    bold = {TRAINED: "bold", **dict.fromkeys(anchors, "dim")}
    sizes = {(entry["episodes"], entry["cases"]) for entry in doctors.values()}
    size = f"n = {min(sizes)[0]:,} ({several(min(sizes)[1], 'case')}) · " if len(sizes) == 1 else ""
    metrics = columns(doctors.values())
    rows = [[name, *(cell(name, doctors[name], each) for each in metrics)] for name in ranked]
    understood = _all_understood(doctors.values())
    if not size:
        rows = [[*row, f"{doctors[row[0]]['episodes']:,}"] for row in rows]
    Sheet(
        ("", *(metric(each).title for each in metrics), *(() if size else ("episodes",))),
        rows,
        f"{summary.get('method') or summary.get('policy')} on {summary.get('cases')}",
        f"{size}{understood}± half of the 95 % interval by case, [ ] its ends",
        styles={place: bold.get(name, "") for place, name in enumerate(ranked)},
    ).show(console)
    if (sure := calibration.sheet({name: doctors[name] for name in ranked})) is not None:
        sure.show(console)
    played = dict.fromkeys(ranked, str(summary.get("encounter") or ""))
    _warn(warnings.lines({name: doctors[name] for name in ranked}, played), console)
    if (learned := summary.get("learning")) is not None:
        console.print(Text(f"reward  {rising.told(learned)}"))
        if "go_on" in learned:  # in one piece: it is there to be copied
            console.print(Text(f"go on   {learned['go_on']}"), soft_wrap=True)
        console.print()


def _all_understood(entries: Iterable[Mapping[str, Any]]) -> str:
    """For a caption: how many questions were lost, where a table needs no column for them."""
    lost = means(entries, NOT_UNDERSTOOD.name)
    if not lost or max(lost) >= NOT_UNDERSTOOD.least:
        return ""
    if not any(lost):
        return "every readable question understood · "
    return f"fewer than 1 in {1 / NOT_UNDERSTOOD.least:.0f} readable questions not understood · "


def _warn(lines: Sequence[str], console: Console) -> None:
    for line in lines:
        console.print(Text(line, style="yellow"))
    if lines:
        console.print()


class JsonLive(Live):
    """One JSON object per event and line."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def stage(self, name: str, total: int, *, done: int = 0, unit: str = "step") -> None:
        self._put("stage", name=name, total=total, done=done, unit=unit)

    def step(self, metrics: Mapping[str, Any]) -> None:
        self._put("step", **metrics)

    def note(self, text: str) -> None:
        self._put("note", text=text)

    def table(self, summary: Mapping[str, Any]) -> None:
        self._put("summary", **summary)

    def _put(self, event: str, **values: Any) -> None:
        print(
            json.dumps({"event": event, **finite(values)}, ensure_ascii=False),
            file=self._stream,
            flush=True,
        )


class PlainLive(Live):
    """A line every few seconds, for logs and pipes."""

    progress: StageProgress | None = None

    def __init__(self, stream: TextIO, every: float = PLAIN_EVERY) -> None:
        self._stream, self._every, self._last = stream, every, 0.0

    def stage(self, name: str, total: int, *, done: int = 0, unit: str = "step") -> None:
        self.progress, self._last = StageProgress(name, total, done, unit), time.monotonic()
        self._put(
            f"{name}: {several(total, unit)}" + (f", {done:,} of them done before" if done else "")
        )

    def step(self, metrics: Mapping[str, Any]) -> None:
        assert self.progress, "a stage must begin before its steps"
        self.progress.add(metrics)
        now = time.monotonic()
        if now - self._last >= self._every or self.progress.done >= self.progress.total:
            self._last = now
            self._put(self._line(self.progress))

    def note(self, text: str) -> None:
        self._put(unsteering(text))

    def table(self, summary: Mapping[str, Any]) -> None:
        print_result(summary, Console(file=self._stream, width=110, highlight=False))

    def _line(self, progress: StageProgress) -> str:
        head = f"{progress.name}  {progress.unit} {progress.done:,}/{progress.total:,}"
        measured = "   ".join(f"{name} {figure}" for name, figure in figures(progress))
        parts = (head, time_line(progress), reward_line(progress), measured, endings_line(progress))
        return "   ".join(part for part in parts if part)

    def _put(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


class ScreenLive(Live):
    """A view that renews itself; what is finished scrolls up and stays."""

    progress: StageProgress | None = None

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: RichLive | None = None

    def stage(self, name: str, total: int, *, done: int = 0, unit: str = "step") -> None:
        self._finish()
        self.progress = StageProgress(name, total, done, unit)
        self._live = RichLive(
            get_renderable=self._render,
            console=self._console,
            refresh_per_second=REFRESHES,
            transient=True,
        )
        self._live.start()

    def step(self, metrics: Mapping[str, Any]) -> None:
        assert self.progress, "a stage must begin before its steps"
        self.progress.add(metrics)

    def note(self, text: str) -> None:
        self._console.print(Text(unsteering(text)))

    def table(self, summary: Mapping[str, Any]) -> None:
        self._finish()
        print_result(summary, self._console)

    def close(self) -> None:
        self._finish()

    def _finish(self) -> None:
        """Replaces the running view by one line that stays."""
        if self._live is None or self.progress is None:
            return
        self._live.stop()
        self._live, progress = None, self.progress
        whole = progress.done >= progress.total
        head = Text.assemble(
            ("✓ ", "green") if whole else ("■ ", "yellow"), (progress.name, "bold")
        )
        head.append(
            f"  {progress.done:,}/{several(progress.total, progress.unit)} in "
            f"{duration(progress.elapsed)}"
        )
        known = list(_figures(progress, self._console.width))
        self._console.print(head, *known, *([""] if known else []), sep="\n")

    def _render(self) -> RenderableType:
        assert self.progress
        return Group(
            _bar(self.progress, self._console.width),
            *_figures(self.progress, self._console.width),
        )


def _flowed(parts: Iterable[Text], width: int, gap: str = "   ") -> Iterable[Text]:
    """Lines of at most `width` columns, where parts allow it; no part is broken."""
    line = Text()
    for part in parts:
        if line and line.cell_len + len(gap) + part.cell_len > width:
            yield line
            line = Text()
        line = Text.assemble(line, gap, part) if line else Text.assemble("  ", part)
    if line:
        yield line


def _figures(progress: StageProgress, width: int) -> Iterable[Text]:
    """The lines below the bar: the reward and its parts, the measures, the endings."""
    if reward := reward_line(progress):
        terms = [Text(term) for term in re.split(r"\s+(?=[+−·] )", reward)]
        curve = spark(progress.rewards)
        yield from _flowed([*terms, *([Text(curve, "cyan")] if curve else [])], width, " ")
    if known := figures(progress):
        pairs = (Text.assemble((f"{name} ", "dim"), (figure, "bold")) for name, figure in known)
        yield from _flowed(pairs, width)
    if endings := endings_line(progress):
        first, *others = endings.split(" · ")
        shares = [
            Text.assemble(("endings ", "dim"), first),
            *(Text(f"· {each}") for each in others),
        ]
        steps = Text(f"  (means of {several(len(progress.metrics), 'step')})", "dim")
        yield from _flowed([*shares, steps], width, " ")


def _bar(progress: StageProgress, width: int) -> RenderableType:
    """Name, count, bar and time in one line; the bar has its own line if they do not fit."""
    name = Text(progress.name, "bold")
    done = Text(f"{progress.unit} {progress.done:,}/{progress.total:,}")
    left = Text(time_line(progress) or duration(progress.elapsed))
    bar = ProgressBar(
        total=progress.total, completed=progress.done, complete_style="cyan", finished_style="green"
    )
    if sum(part.cell_len + 2 for part in (name, done, left)) + SHORTEST > width:
        return Group(*_flowed((name, done, left), width), bar)
    grid = Table.grid(padding=(0, 2), expand=True)
    for ratio in (None, None, 1, None):
        grid.add_column(ratio=ratio, no_wrap=True)
    grid.add_row(name, done, bar, left)
    return grid
