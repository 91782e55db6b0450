"""What is shown while a run works, on a terminal, in a log and to a machine."""

from __future__ import annotations

import io
import json
import math
import os
import pty
import subprocess
import sys
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from workup.core.statistics import Estimate
from workup.report.live import JsonLive, PlainLive, ScreenLive, StageProgress, show, spark
from workup.report.tables import gap_text
from workup.runs.words import cell, duration, equation, in_order, number

STEP = {
    "stage": "craft",
    "reward": 0.5,
    "parts": {"α·CR·acc": 0.31, "β·acc": 0.25, "λ·t/T": -0.06},
    "accuracy": 0.66,
    "questions": 6.94,
    "critical": 0.36,
    "noise": None,
    "endings": {"diagnosed": 97, "out of turns": 3, "failed": 0},
    "tokens_per_second": 5400.0,
}


def estimate(mean: float | None, half: float = 0.0) -> dict[str, Any]:
    low, high = (None, None) if mean is None else (mean - half, mean + half)
    return {"mean": mean, "low": low, "high": high, "n": 0 if mean is None else 100, "missing": 0}


def doctor(accuracy: float, questions: float, critical: float | None) -> dict[str, Any]:
    shares = {
        "accuracy": estimate(accuracy, 0.03),
        "macro_accuracy": estimate(accuracy, 0.04),
        "critical": estimate(critical, 0.01),
    }
    return {"episodes": 100, "cases": 50, "questions": estimate(questions), **shares}


SUMMARY = {
    "method": "craft",
    "cases": "clinic:s",
    "anchors": ["random doctor", "greedy information", "full information"],
    "doctors": {
        "trained": doctor(0.69, 6.04, 0.36),
        "full information": doctor(0.98, 0.0, None),
        "[bold]endpoint[/]": doctor(0.5, 1.0, 0.2),
        "random doctor": doctor(0.78, 10.0, 0.21),
    },
}


def test_plain_prints_now_and_then_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    stream = io.StringIO()
    with PlainLive(stream, every=5.0) as live:
        live.stage("craft", 101)
        for step in range(1, 102):
            now += 0.25
            live.step({**STEP, "step": step})
        live.note("saved")
    lines = stream.getvalue().splitlines()
    assert lines[0] == "craft: 101 steps"
    assert [line.split()[2] for line in lines[1:-1]] == [
        "20/101",
        "40/101",
        "60/101",
        "80/101",
        "100/101",
        "101/101",
    ]
    assert lines[2] == (
        "craft  step 40/101   0:15 left   5,400 tok/s   reward 0.50 = α·CR·acc 0.31 + β·acc 0.25 "
        "− λ·t/T 0.06   accuracy .66   questions 6.9   critical .36   97 % diagnosed · 3 % out "
        "of turns"
    )
    assert lines[-1] == "saved"


def test_json_lines_are_json_whatever_the_figures() -> None:
    stream = io.StringIO()
    with JsonLive(stream) as live:
        live.stage("craft", 2, done=1)
        live.step({"stage": "craft", "step": 2, "loss": math.nan, "parts": {"β": math.inf}})
        live.note("ü")
        live.table(SUMMARY)
    events = [
        json.loads(line, parse_constant=pytest.fail) for line in stream.getvalue().splitlines()
    ]
    assert [event["event"] for event in events] == ["stage", "step", "note", "summary"]
    assert events[0] == {"event": "stage", "name": "craft", "total": 2, "done": 1, "unit": "step"}
    assert (events[1]["loss"], events[1]["parts"]) == (None, {"β": None})
    assert events[3]["doctors"] == SUMMARY["doctors"]


def test_screen_shows_progress_and_leaves_one_summary_per_stage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    stream = io.StringIO()
    with ScreenLive(
        Console(file=stream, force_terminal=True, width=120, color_system=None)
    ) as live:
        live.stage("warm start", 1)
        live.step({"stage": "warm start", "step": 1, "loss": 0.34})
        live.stage("craft", 40)
        for step in range(1, 31):
            live.step({**STEP, "step": step, "reward": step / 60})
    text = stream.getvalue()
    assert "✓ warm start  1/1 step in 0:00" in text
    assert "loss 0.34" in text
    assert "■ craft  30/40 steps" in text, "a stage that was cut short is not ticked off"
    assert "▁" in text
    assert "█" in text
    assert text.rstrip().endswith("(means of 10 steps)")


@pytest.mark.long
def test_the_face_fits_the_stream() -> None:
    script = (
        "from workup.report.live import show; print(type(show()).__name__, "
        "type(show(as_json=True)).__name__)"
    )
    piped = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert piped.stdout.split() == ["PlainLive", "JsonLive"]
    parent, child = pty.openpty()
    subprocess.run([sys.executable, "-c", script], stdout=child, check=True)
    assert os.read(parent, 100).decode().split() == ["ScreenLive", "JsonLive"]


def test_a_terminal_without_the_letters_does_not_end_the_run() -> None:
    buffer = io.BytesIO()
    live = show(stream=io.TextIOWrapper(buffer, encoding="ascii"))
    live.stage("craft", 1)
    live.step({**STEP, "step": 1})
    live.table(SUMMARY)
    assert b"?CR?acc 0.31" in buffer.getvalue()


def test_a_note_cannot_steer_the_terminal() -> None:
    """Notes quote files and servers; an escape sequence of theirs must not arrive."""
    streams = (plain := io.StringIO()), (screen := io.StringIO())
    views = PlainLive(plain), ScreenLive(Console(file=screen, force_terminal=True))
    for view in views:
        view.note("red \x1b[31m\rback\x07")
    for stream in streams:
        assert stream.getvalue().strip() == "red  [31m back"


def test_one_of_each_is_no_plural() -> None:
    stream = io.StringIO()
    one = {**SUMMARY, "doctors": {"trained": {**SUMMARY["doctors"]["trained"]}}}
    one["doctors"]["trained"] |= {"episodes": 1, "cases": 1}
    live = PlainLive(stream)
    live.stage("craft", 1)
    live.table(one)
    assert "craft: 1 step\n" in stream.getvalue()
    assert "n = 1 (1 case)" in stream.getvalue()


def test_the_table_goes_from_floor_to_ceiling_and_escapes_names() -> None:
    stream = io.StringIO()
    PlainLive(stream).table(SUMMARY)
    rows = [line.strip() for line in stream.getvalue().splitlines() if "±" in line]
    assert [row.split("  ")[0] for row in rows[:-1]] == [
        "random doctor",
        "[bold]endpoint[/]",
        "trained",
        "full information",
    ]
    assert rows[0].split()[2:] == [".78", "±.03", ".78", "±.04", "10.0", "±0.0", ".21", "±.01", "–"]
    assert rows[3].split()[2:] == [".98", "±.03", ".98", "±.04", "–", "–", "–"], (
        "it asked nothing because it knew"
    )
    assert "n = 100 (50 cases)" in rows[-1]


def test_rows_of_different_size_say_so() -> None:
    stream = io.StringIO()
    PlainLive(stream).table(
        {
            **SUMMARY,
            "doctors": {**SUMMARY["doctors"], "trained": {**doctor(0.7, 6, 0.3), "episodes": 1200}},
        }
    )
    assert "episodes" in stream.getvalue()
    assert "1,200" in stream.getvalue()


def test_time_left_follows_the_recent_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    progress = StageProgress("craft", 300, 100, "step")
    assert progress.left is None
    for step in range(101, 201):
        now += 10.0 if step <= 110 else 1.0  # a slow beginning is forgotten
        progress.add({"step": step})
    assert progress.left == pytest.approx(100.0)


def test_missing_figures_are_left_out_of_means() -> None:
    progress = StageProgress("craft", 9, 0, "step")
    for value in (1.0, None, 3.0):
        progress.add({"noise": value, "endings": {"failed": 2}} if value else {})
    assert progress.mean("noise") == 2.0
    assert progress.means("endings") == {"failed": 2.0}
    assert progress.mean("loss") is None
    assert progress.done == 3


@given(st.lists(st.floats(-1e6, 1e6), max_size=80), st.integers(1, 30))
def test_sparks_span_the_blocks(values: list[float], width: int) -> None:
    line = spark(values, width)
    assert len(line) == (width if len(values) >= width else 0)
    rising = spark(sorted(values), width)
    assert list(rising) == sorted(rising)


@pytest.mark.parametrize(
    ("metric", "value", "text"),
    [
        ("accuracy", 0.664, ".66"),
        ("accuracy", 1.0, "1.00"),
        ("questions", 6.94, "6.9"),
        ("return", -0.5, "−0.50"),
        ("noise", None, "–"),
    ],
)
def test_numbers(metric: str, value: float | None, text: str) -> None:
    assert number(metric, value) == text


@pytest.mark.parametrize(
    ("mean", "half", "text"),
    [
        (0.0063, 0.0031, "+.006 ±.003"),
        (0.0063, 0.0149, "+.006 ±.015"),
        (0.0063, 0.0151, "+.01 ±.02"),
        (-0.00012, 0.0004, "−.0001 ±.0004"),
        (0.5, 0.0, "+.50 ±.00"),
        (0.5, math.nan, "+.50"),
    ],
)
def test_a_narrow_interval_has_more_digits(mean: float, half: float, text: str) -> None:
    assert gap_text("accuracy", Estimate(mean, mean - half, mean + half, 9)) == text


def test_words() -> None:
    assert [number("noise", value) for value in (-0.031, -0.001, 0.999)] == ["−.03", ".00", "1.00"]
    assert [duration(seconds) for seconds in (-1, 59.6, 3725)] == ["0:00", "1:00", "1:02:05"]
    anchors = ("random doctor", "greedy information", "full information")
    assert in_order(["mine", "full information", "trained", "random doctor"], anchors) == [
        "random doctor",
        "mine",
        "trained",
        "full information",
    ]
    stages = ["trained", "full information", "stage 1", "warm start", "stage 2", "untrained"]
    assert in_order(stages, anchors) == [
        "untrained",
        "warm start",
        "stage 1",
        "stage 2",
        "trained",
        "full information",
    ]
    assert cell("trained", {"questions": estimate(0.0)}, "questions") == "0.0 ±0.0", (
        "a policy that asks nothing is told"
    )
    assert cell("trained", {}, "accuracy") == "–"


def test_an_equation_is_written_only_where_it_holds() -> None:
    assert equation(0.5, {"a": 0.7, "b": -0.2}) == "reward 0.50 = a 0.70 − b 0.20"
    assert equation(0.5, {"a": -0.2, "b": 0.7}) == "reward 0.50 = − a 0.20 + b 0.70"
    assert equation(0.5, {"CR": 0.4, "acc": 0.6}) == "reward 0.50   CR 0.40 · acc 0.60"
    assert equation(0.5, {"a": 0.5, "aux": 0.0}) == "reward 0.50 = a 0.50"
    assert equation(0.5, {}) == "reward 0.50"


@pytest.mark.parametrize("width", range(40, 100, 3))
def test_no_pair_of_name_and_figure_is_broken(width: int) -> None:
    stream = io.StringIO()
    step = {**STEP, "step": 1, "kept": 0.5, "right": 0.25, "loss": 0.34, "kl": 0.01, "entropy": 1.5}
    with ScreenLive(
        Console(file=stream, force_terminal=True, width=width, color_system=None)
    ) as live:
        live.stage("craft", 1)
        live.step(step)
    lines = stream.getvalue().splitlines()
    for pair in (
        "accuracy .66",
        "questions 6.9",
        "critical .36",
        "loss 0.34",
        "kl 0.01",
        "entropy 1.50",
    ):
        assert any(pair in line for line in lines), pair


def drawn(
    width: int, *steps: dict[str, Any], stage: str = "information greedy doctor"
) -> list[str]:
    """What the running view shows after the steps, and what stays of it, line by line."""
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=width, color_system=None)
    with ScreenLive(console) as live:
        live.stage(stage, 5000, unit="episode")
        for step in steps:
            live.step(step)
        console.print(live._render())
    return stream.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_nothing_of_the_running_view_is_lost_or_broken(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    ended = {"diagnosed": 9, "out of turns": 5, "out of tokens": 4}
    steps = [{**STEP, "step": step, "endings": ended} for step in range(2471, 2501)]
    lines = drawn(width, *steps)
    whole = ("information greedy doctor", "episode 2,500/5,000", "5,400 tok/s", "━" * 10)
    terms = ("reward 0.50 =", "α·CR·acc 0.31", "+ β·acc 0.25", "− λ·t/T 0.06", spark([0.5] * 30))
    endings = ("endings 50 % diagnosed", "· 28 % out of turns", "· 22 % out of tokens")
    for part in (*whole, *terms, *endings, "(means of 10 steps)"):
        assert any(part in line for line in lines), part
    assert not any("…" in line for line in lines)


@pytest.mark.parametrize("width", [60, 80])
def test_the_result_table_is_whole_on_a_narrow_terminal(width: int) -> None:
    stream = io.StringIO()
    ScreenLive(Console(file=stream, width=width)).table(SUMMARY)
    text = stream.getvalue()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    for figure in (
        ".69 ±.03",
        ".69 ±.04",
        "6.0 ±0.0",
        ".36 ±.01",
        ".98 ±.03",
        "10.0 ±0.0",
        ".21 ±.01",
    ):
        assert figure in text, figure
    for heading in ("accuracy", "macro", "questions", "critical", "noise"):
        assert heading in text, heading


@pytest.mark.parametrize("width", [60, 80])
def test_an_interval_that_is_not_in_the_middle_is_shown_whole(width: int) -> None:
    lopsided = {"mean": 0.0, "low": 0.0, "high": 0.28, "n": 10, "sd": 0.0}
    doctors = {name: {**entry, "accuracy": lopsided} for name, entry in SUMMARY["doctors"].items()}
    stream = io.StringIO()
    ScreenLive(Console(file=stream, width=width)).table({**SUMMARY, "doctors": doctors})
    text = stream.getvalue()
    assert max(map(len, text.splitlines())) <= width
    assert text.count(".00 [.00, .28]") == len(doctors)
    assert "…" not in text


def test_accuracy_and_money_are_the_latest_and_no_means() -> None:
    steps = [
        {"step": 1, "judged": 0, "spent": 0.5},
        {"step": 2, "judged": 1, "accuracy_so_far": 1.0, "spent": 1.25},
        {"step": 3, "judged": 2, "accuracy_so_far": 0.5, "spent": 2.5},
    ]
    assert any("accuracy .50 (2 judged)   spent 2.5" in line for line in drawn(60, *steps))
    stream = io.StringIO()
    with PlainLive(stream, every=0.0) as live:
        live.stage("evaluate doc", 3, unit="episode")
        for step in steps:
            live.step(step)
    first, *_, last = stream.getvalue().splitlines()[1:]
    assert "accuracy" not in first, "no verdict yet"
    assert last.endswith("accuracy .50 (2 judged)   spent 2.5")
