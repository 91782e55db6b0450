"""What a run shows while it works: a live view on a terminal, plain lines elsewhere, JSON lines for machines."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from types import TracebackType
from typing import Any, Protocol, Self, TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live as RichLive
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from workup.runs.files import finite
from workup.runs.words import ANCHORS, COLUMNS, cell, duration, equation, in_order, number

SMOOTHED = 10  # steps that shown figures are averaged over
REFRESHES = 4  # per second, on a terminal
PLAIN_EVERY = 5.0  # seconds between two lines where there is no terminal
STYLES = {"trained": "bold", **dict.fromkeys(ANCHORS, "dim")}
BLOCKS = "▁▂▃▄▅▆▇█"
SHOWN = (
    *("accuracy", "questions", "critical", "noise", "repeats"),
    *("kept", "right", "depth", "calls"),
    *("loss", "kl", "entropy", "margin", "preferred"),
)


class Live(Protocol):
    """What train and evaluate report to."""

    def stage(self, name: str, total: int, *, done: int = 0, unit: str = "step") -> None:
        """A stage of `total` steps begins, `done` of them in an earlier session."""

    def step(self, metrics: Mapping[str, Any]) -> None:
        """Step `metrics["step"]` is done. Read: reward, parts, endings, tokens_per_second and what `SHOWN` names; all
        optional."""

    def note(self, text: str) -> None:
        """Something the reader should know; stays on the screen."""

    def table(self, summary: Mapping[str, Any]) -> None:
        """The result: what `summarise` returned."""

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...


def show(*, as_json: bool = False, stream: TextIO | None = None) -> Live:
    """The face that fits `stream` (standard output by default)."""
    stream = stream or sys.stdout
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="replace")  # a terminal that lacks a letter must not end a run
    if as_json:
        return JsonLive(stream)
    return ScreenLive(Console(file=stream, highlight=False)) if stream.isatty() else PlainLive(stream)


@dataclass
class Progress:
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

    def mean(self, name: str) -> float | None:
        """The mean of a metric over the last steps that had it."""
        values = [metrics[name] for metrics in self.metrics if isinstance(metrics.get(name), int | float)]
        return fmean(values) if values else None

    def means(self, name: str) -> dict[str, float]:
        """The same for a metric that is a mapping; a key that a step lacks counts 0 there."""
        steps = [metrics[name] for metrics in self.metrics if isinstance(metrics.get(name), Mapping)]
        return {key: sum(step.get(key) or 0 for step in steps) / len(steps) for key in dict.fromkeys(k for s in steps for k in s)}


def reward_line(progress: Progress) -> str:
    reward = progress.mean("reward")
    return "" if reward is None else equation(reward, progress.means("parts"))


def figures(progress: Progress) -> list[tuple[str, str]]:
    """(name, figure) of everything that is known, means over the last steps."""
    shown = [(name, progress.mean(name)) for name in SHOWN]
    return [(name, number(name, value)) for name, value in shown if value is not None]


def endings_line(progress: Progress) -> str:
    endings = progress.means("endings")
    total = sum(endings.values())
    ranked = sorted(endings.items(), key=lambda pair: -pair[1])
    return " · ".join(f"{100 * count / total:.0f} % {name}" for name, count in ranked if count >= 0.005 * total)


def time_line(progress: Progress) -> str:
    speed, left = progress.mean("tokens_per_second"), progress.left
    parts = [f"{duration(left)} left" if left is not None else "", f"{speed:,.0f} tok/s" if speed else ""]
    return "   ".join(part for part in parts if part)


def spark(values: Sequence[float], width: int = 24) -> str:
    """A curve in one line of block letters, from the lowest to the highest value; empty before there is a curve."""
    if len(values) < width:
        return ""
    means = [fmean(values[len(values) * k // width : len(values) * (k + 1) // width]) for k in range(width)]
    low, high = min(means), max(means)
    return "".join(BLOCKS[int((value - low) / (high - low or 1) * (len(BLOCKS) - 1))] for value in means)


def result_table(summary: Mapping[str, Any]) -> Table:
    """Every evaluated doctor, from the floor to the ceiling."""
    doctors = summary["doctors"]
    sizes = {(entry["episodes"], entry["cases"]) for entry in doctors.values()}
    size = f"n = {min(sizes)[0]:,} ({min(sizes)[1]:,} cases) · " if len(sizes) == 1 else ""
    table = Table(
        title=f"{summary.get('method') or summary.get('policy')} on {summary.get('cases')}",
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
    )
    table.caption, table.caption_justify = f"{size}± half of the 95 % interval, by case", "left"
    columns = ["", *COLUMNS.values(), *([] if size else ["episodes"])]
    for heading in columns:
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for doctor in in_order(doctors):
        cells = [cell(doctor, doctors[doctor], metric) for metric in COLUMNS]
        table.add_row(
            escape(doctor), *cells, *([] if size else [f"{doctors[doctor]['episodes']:,}"]), style=STYLES.get(doctor, "")
        )
    return table


class _Base:
    """What the three faces share: they are context managers, and remember the stage."""

    progress: Progress | None = None

    def close(self) -> None:
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class JsonLive(_Base):
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
        print(json.dumps({"event": event, **finite(values)}, ensure_ascii=False), file=self._stream, flush=True)


class PlainLive(_Base):
    """A line every few seconds, for logs and pipes."""

    def __init__(self, stream: TextIO, every: float = PLAIN_EVERY) -> None:
        self._stream, self._every, self._last = stream, every, 0.0

    def stage(self, name: str, total: int, *, done: int = 0, unit: str = "step") -> None:
        self.progress, self._last = Progress(name, total, done, unit), time.monotonic()
        self._put(f"{name}: {total:,} {unit}s" + (f", {done:,} of them done before" if done else ""))

    def step(self, metrics: Mapping[str, Any]) -> None:
        assert self.progress, "a stage must begin before its steps"
        self.progress.add(metrics)
        now = time.monotonic()
        if now - self._last >= self._every or self.progress.done >= self.progress.total:
            self._last = now
            self._put(self._line(self.progress))

    def note(self, text: str) -> None:
        self._put(text)

    def table(self, summary: Mapping[str, Any]) -> None:
        Console(file=self._stream, width=100, highlight=False).print(result_table(summary))

    def _line(self, progress: Progress) -> str:
        head = f"{progress.name}  {progress.unit} {progress.done:,}/{progress.total:,}"
        measured = "   ".join(f"{name} {figure}" for name, figure in figures(progress))
        parts = (head, time_line(progress), reward_line(progress), measured, endings_line(progress))
        return "   ".join(part for part in parts if part)

    def _put(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


class ScreenLive(_Base):
    """A view that renews itself; what is finished scrolls up and stays."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: RichLive | None = None

    def stage(self, name: str, total: int, *, done: int = 0, unit: str = "step") -> None:
        self._finish()
        self.progress = Progress(name, total, done, unit)
        self._live = RichLive(get_renderable=self._render, console=self._console, refresh_per_second=REFRESHES, transient=True)
        self._live.start()

    def step(self, metrics: Mapping[str, Any]) -> None:
        assert self.progress, "a stage must begin before its steps"
        self.progress.add(metrics)

    def note(self, text: str) -> None:
        self._console.print(Text(text))

    def table(self, summary: Mapping[str, Any]) -> None:
        self._finish()
        self._console.print(result_table(summary))

    def close(self) -> None:
        self._finish()

    def _finish(self) -> None:
        """Replace the running view by one line that stays."""
        if self._live is None or self.progress is None:
            return
        self._live.stop()
        self._live, progress = None, self.progress
        whole = progress.done >= progress.total
        head = Text.assemble(("✓ ", "green") if whole else ("■ ", "yellow"), (progress.name, "bold"))
        head.append(f"  {progress.done:,}/{progress.total:,} {progress.unit}s in {duration(progress.elapsed)}")
        known = list(_figures(progress))
        self._console.print(head, *known, *([""] if known else []), sep="\n")

    def _render(self) -> RenderableType:
        assert self.progress
        return Group(_bar(self.progress), *_figures(self.progress))


def _figures(progress: Progress) -> Iterable[Text]:
    """The lines below the bar: the reward and its parts, the measures, the endings."""
    if reward := reward_line(progress):
        yield Text.assemble("  ", reward, "   ", (spark(progress.rewards), "cyan"))
    if known := figures(progress):
        yield Text("  ") + Text("   ").join(Text.assemble((f"{name} ", "dim"), (figure, "bold")) for name, figure in known)
    if endings := endings_line(progress):
        yield Text.assemble(("  endings ", "dim"), endings, (f"   (means of {len(progress.metrics)} steps)", "dim"))


def _bar(progress: Progress) -> Table:
    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True)
    done = f"{progress.unit} {progress.done:,}/{progress.total:,}"
    bar = ProgressBar(total=progress.total, completed=progress.done, complete_style="cyan", finished_style="green")
    grid.add_row(Text(progress.name), done, bar, time_line(progress) or duration(progress.elapsed))
    return grid
