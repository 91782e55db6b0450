"""No test depends on the speed of the machine: what waits, waits for an event (see `waiting`)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TIMED = {"time.sleep", "time.monotonic", "time.perf_counter"}
WAITING = {"run", "communicate", "wait", "join", "urlopen", "result", "wait_for", "check_output"}


def timed(source: str) -> Iterator[str]:
    """The lines that look at a clock, sleep, or wait for no longer than some seconds."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        limits = [word.value for word in node.keywords if word.arg == "timeout"]
        seconds = [isinstance(limit, ast.Constant) and limit.value is not None for limit in limits]
        if called in TIMED or (called.rpartition(".")[2] in WAITING and any(seconds)):
            yield f"line {node.lineno}: {ast.unparse(node)}"


def test_no_test_looks_at_a_clock() -> None:
    found = {
        path.name: list(timed(path.read_text(encoding="utf-8")))
        for path in Path(__file__).parent.glob("*.py")
        if path.name != "waiting.py"
    }
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_what_looks_at_a_clock_is_found() -> None:
    assert len(list(timed("time.sleep(1); began = time.monotonic()"))) == 2
    assert len(list(timed("subprocess.run(words, timeout=60); child.wait(timeout=3.5)"))) == 2
    assert not list(timed("subprocess.run(words, timeout=HANG); Endpoint(timeout=5); time.time()"))
