"""Our encounters as an Inspect task, played by Inspect itself."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from acting import bench, failing, ours, replies, script
from serving import serving
from waiting import HANG

from workup.interop.adapters.bench import Bench

inspect_ai = pytest.importorskip("inspect_ai", reason="extra `inspect`: it is not in `dev`")


def evaluated(made: Bench, folder: Path) -> Any:
    """The log of Inspect's evaluation, in which a model says what the scripts say."""
    from inspect_ai.model import ModelOutput, ModelUsage, get_model

    from workup.interop.adapters.inspect import task

    said = [text for place in range(len(made.cases)) for text in script(made, place)]
    outputs = [ModelOutput.from_content("mockllm/model", text) for text in said]
    for output in outputs:
        output.usage = ModelUsage()  # otherwise a tokenizer is fetched to count
    model = get_model("mockllm/model", custom_outputs=outputs)
    (log,) = inspect_ai.eval(
        task(made), model=model, log_dir=str(folder), display="none", max_samples=1
    )
    return log


def test_inspect_plays_what_we_play(tmp_path: Path) -> None:
    made = bench()
    records = ours(made, tmp_path / "run")
    log = evaluated(made, tmp_path / "logs")
    assert log.status == "success", log.error.traceback
    for sample, record in zip(log.samples, records, strict=True):
        opening = len(record.episode.opening)
        heard = [(m.role, m.text) for m in sample.messages[opening:] if m.role != "assistant"]
        ourselves = [(m["role"], m["content"]) for turn in replies(record) for m in turn]
        assert heard == ourselves
        assert sample.scores["diagnosis"].value == ("C" if record.correct else "I")
        assert sample.scores["reward"].value == pytest.approx(record.score.total)
        assert sample.scores["reward"].metadata["rewards"] == pytest.approx(record.score.turns)
    right = sum(record.correct is True for record in records) / len(records)
    by_name = {score.name: score for score in log.results.scores}
    assert by_name["diagnosis"].metrics["accuracy"].value == pytest.approx(right)


TASK = """
from inspect_ai import Task, task
from workup.interop.adapters.inspect import encounter

@task
def mine() -> Task:
    return encounter("craft", cases="clinic:xs", most=6, settings={"environment": {"max_turns": 4}})
"""


def test_the_command_plays_what_we_play(tmp_path: Path) -> None:
    """`inspect eval` makes its tasks below the event loop that it runs."""
    from inspect_ai.log import list_eval_logs, read_eval_log

    made = Bench.of("craft", cases="clinic:xs", side="test", most=6, environment={"max_turns": 4})
    diagnosis = made.cases[0].truth.diagnosis
    (tmp_path / "mine.py").write_text(TASK)
    words = ["eval", "mine.py", "--model", "openai-api/mine/m", "--display", "plain"]
    with serving(lambda body: f"<diagnose>{diagnosis}</diagnose>") as server:
        done = subprocess.run(
            [sys.executable, "-m", "inspect_ai", *words, "--log-dir", "logs"],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),
                "MINE_API_KEY": "none",
                "MINE_BASE_URL": server.url,
            },
            capture_output=True,
            text=True,
            timeout=HANG,
            check=False,
        )
    (found,) = list_eval_logs(str(tmp_path / "logs"))
    log = read_eval_log(found)
    assert log.status == "success", done.stdout + done.stderr
    right = [case.truth.diagnosis == diagnosis for case in made.cases]
    assert [sample.scores["diagnosis"].value == "C" for sample in log.samples] == right
    assert 0 < sum(right) < len(right)


def test_the_task_is_found_by_its_name() -> None:
    """It is `workup/encounter`: the package's name, and that of the function."""
    from workup.interop.adapters import inspect

    (point,) = entry_points(group="inspect_ai", name="workup")
    assert point.load() is inspect
    assert callable(inspect.encounter)


@pytest.mark.parametrize(("most", "fails"), [(0.0, True), (0.2, 0.2), (1.0, False)])
def test_the_share_that_may_fail_is_no_number_of_samples(most: float, fails: float) -> None:
    from workup.interop.adapters.inspect import task

    made = bench()
    made = replace(made, examination=replace(made.examination, max_failed=most))
    assert task(made).fail_on_error == fails


def test_an_encounter_that_fails_is_an_error_and_no_zero(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = bench()
    why = failing(monkeypatch, made)
    log = evaluated(made, tmp_path)
    assert log.status == "success", "one of six is below the share that ends an evaluation"
    *others, last = log.samples
    assert why in last.error.message
    assert not last.scores
    assert all(sample.scores for sample in others)
    assert log.results.completed_samples == len(others)
