"""Our encounters as a `verifiers` environment, played by its own loop against a real server."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from acting import bench, failing, ours, replies, script
from serving import serving
from waiting import HANG
from werkzeug import Response

from workup.core.episode import Episode
from workup.interop.adapters.bench import Bench, messages
from workup.runs import Record

pytest.importorskip("verifiers", reason="extra `verifiers`: it is not in `dev`")


def distinct() -> Bench:
    """Six cases that no two open alike, so that a server can tell them apart."""
    made = bench(most=20)
    environment = made.examination.environment
    openings = {json.dumps(messages(environment.open(case))): case for case in made.cases}
    return replace(made, cases=tuple(openings.values())[:6])


def answers(made: Bench, ids: Callable[[int], bool]) -> Any:
    """What a scripted model answers.

    In turns for which `ids` is true it tells token ids, one for each byte, as vLLM does.
    """
    environment = made.examination.environment
    openings = [json.dumps(messages(environment.open(case))) for case in made.cases]

    def answer(body: dict[str, Any]) -> Response:
        said = [{"role": m["role"], "content": m["content"]} for m in body["messages"]]
        opened = next(k for k in range(1, len(said) + 1) if json.dumps(said[:k]) in openings)
        place = openings.index(json.dumps(said[:opened]))
        turn = sum(m["role"] == "assistant" for m in said)
        text = script(made, place)[turn]
        choice: dict[str, Any] = {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": text},
        }
        whole: dict[str, Any] = {"id": "1", "object": "chat.completion", "created": 0, "model": "m"}
        if ids(turn):
            tokens = list(text.encode())
            marks = [{"token": chr(t), "logprob": -0.5, "top_logprobs": []} for t in tokens]
            choice |= {"token_ids": tokens, "logprobs": {"content": marks}}
            whole["prompt_token_ids"] = [b for m in said for b in m["content"].encode()]
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        body = json.dumps({**whole, "choices": [choice], "usage": usage})
        return Response(body, content_type="application/json")

    return answer


def played(
    made: Bench, monkeypatch: pytest.MonkeyPatch, ids: Callable[[int], bool] = lambda turn: False
) -> list[Any]:
    """What verifiers makes of the cases, in their order."""
    from verifiers.types import ClientConfig

    from workup.interop.adapters.verifiers import VerifiersEnvironment

    monkeypatch.setenv("NO_KEY", "none")
    environment = VerifiersEnvironment(made, made)
    with serving(answers(made, ids)) as server:
        client = ClientConfig(api_base_url=server.url, api_key_var="NO_KEY")
        done = asyncio.run(
            environment.evaluate(
                client, "m", num_examples=-1, state_columns=["trajectory", "workup", "info"]
            )
        )
    return sorted(done["outputs"], key=lambda row: row["info"]["place"])


def test_verifiers_plays_what_we_play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = distinct()
    records = ours(made, tmp_path / "run")
    for row, record in zip(played(made, monkeypatch), records, strict=True):
        assert row["error"] is None
        heard = [
            {"role": m["role"], "content": m["content"]}
            for m in map(dict, row["completion"])
            if m["role"] != "assistant"
        ]
        assert heard == [m for turn in replies(record)[:-1] for m in turn]
        same(row, record)


def test_the_command_finds_the_environment_by_its_name(tmp_path: Path) -> None:
    made = Bench.of("craft", cases="clinic:xs", side="test", most=6)
    diagnosis = made.cases[0].truth.diagnosis
    right = sum(case.truth.diagnosis == diagnosis for case in made.cases)
    assert 0 < right < len(made.cases)
    package = Path(__file__).parents[1] / "environments/workup_encounters"
    words = ["-m", "m", "-k", "NO_KEY", "-n", "6", "-r", "1", "--disable-tui", "--save-results"]
    words += ["-a", json.dumps({"cases": "clinic:xs", "most": 6}), "-o", str(tmp_path / "out")]
    with serving(lambda body: f"<diagnose>{diagnosis}</diagnose>") as server:
        done = subprocess.run(
            [Path(sys.executable).parent / "vf-eval", package.name, *words, "-b", server.url],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(package), *sys.path]),
                "NO_KEY": "none",
            },
            capture_output=True,
            text=True,
            timeout=HANG,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = (tmp_path / "out").rglob("results.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["error"] for row in rows] == [None] * len(made.cases)
    assert sum(row["metrics"]["_correct"] for row in rows) == right


def test_an_encounter_that_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    made = distinct()
    why = failing(monkeypatch, made)
    *others, last = played(made, monkeypatch)
    assert why in str(last["error"])
    assert last["workup"]["reward"] is None
    assert all(row["error"] is None for row in others)


def same(row: Any, record: Record) -> None:
    assert row["reward"] == pytest.approx(record.score.total)
    assert [step["reward"] for step in row["trajectory"]] == pytest.approx(record.score.turns)
    assert row["workup"]["correct"] is record.correct
    assert row["metrics"]["_questions"] == record.measures["questions"]


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[Episode]:
    """The episodes that are judged, as they come."""
    from workup.interop.adapters import verifiers as adapter

    judge, found = Bench.judge, []

    async def watched(self: Bench, episode: Episode, label: str = "") -> Record:
        found.append(episode)
        return await judge(self, episode, label)

    monkeypatch.setattr(adapter.Bench, "judge", watched)
    return found


def test_token_ids_are_handed_on_exactly(
    kept: list[Episode], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = distinct()
    records = ours(made, tmp_path / "run")
    for row, record in zip(played(made, monkeypatch, lambda turn: True), records, strict=True):
        same(row, record)
    assert len(kept) == len(made.cases)
    for episode in kept:
        exact(episode, len(episode.turns))


def test_after_a_turn_without_ids_there_are_none(
    kept: list[Episode], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise what the doctor said in that turn would be a prompt of the next."""
    played(distinct(), monkeypatch, lambda turn: turn != 1)
    assert max(len(episode.turns) for episode in kept) > 2
    for episode in kept:
        exact(episode, 1)


def exact(episode: Episode, count: int) -> None:
    """The first `count` turns have their ids, and the others none."""
    read = "".join(m.content for m in episode.opening)
    for turn in episode.turns[:count]:
        assert bytes(turn.prompt_tokens).decode() == read
        assert bytes(turn.completion.tokens).decode() == turn.completion.text
        assert turn.completion.logprobs == (-0.5,) * len(turn.completion.tokens)
        read = "".join(m.content for m in turn.observation.messages)
    assert not any(turn.prompt_tokens or turn.completion.tokens for turn in episode.turns[count:])
