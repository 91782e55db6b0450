"""Our encounters behind an OpenEnv server, played over a real socket by its own client."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from acting import bench, failing, ours, replies, script

pytest.importorskip("openenv.core", reason="extra `openenv`: it is not in `dev`")


@pytest.fixture
def address() -> Iterator[str]:
    import uvicorn

    from workup.interop.adapters.openenv import serving

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        server = uvicorn.Server(uvicorn.Config(serving(bench()), log_level="warning"))
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        yield f"http://127.0.0.1:{port}"
        server.should_exit = True
        thread.join()


def test_a_client_plays_what_we_play(address: str, tmp_path: Path) -> None:
    from openenv.core import GenericEnvClient

    made = bench()
    records = ours(made, tmp_path / "run")
    with GenericEnvClient(base_url=address).sync() as client:
        for place, record in enumerate(records):
            opened = client.reset(seed=place)
            assert opened.observation["messages"] == [
                {"role": m.role, "content": m.content} for m in record.episode.opening
            ]
            for text, heard in zip(script(made, place), replies(record), strict=True):
                result = client.step({"text": text})
                assert result.observation["messages"] == heard
            assert result.done
            assert result.reward == pytest.approx(record.score.total)
            assert result.observation["outcome"]["correct"] is record.correct
            assert result.observation["outcome"]["rewards"] == pytest.approx(record.score.turns)


def test_without_a_seed_sessions_get_one_case_after_the_other(address: str) -> None:
    from openenv.core import GenericEnvClient

    opened = []
    for _ in range(2):
        with GenericEnvClient(base_url=address).sync() as client:
            opened += [client.reset().observation["messages"] for _ in range(2)]
    expected = [bench().open(place).opening for place in range(4)]
    assert opened == [[{"role": m.role, "content": m.content} for m in each] for each in expected]


def test_two_sessions_do_not_meet(address: str) -> None:
    from openenv.core import GenericEnvClient

    made = bench()
    with (
        GenericEnvClient(base_url=address).sync() as one,
        GenericEnvClient(base_url=address).sync() as other,
    ):
        one.reset(seed=0)
        other.reset(seed=3)
        for mine, yours in zip(script(made, 0), script(made, 3), strict=False):
            first, second = one.step({"text": mine}), other.step({"text": yours})
        assert (first.done, second.done) == (True, False)


def test_an_encounter_that_fails_has_a_reason_and_no_reward(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from openenv.core import GenericEnvClient

    made = bench()
    why, last = failing(monkeypatch, made), len(made.cases) - 1
    with GenericEnvClient(base_url=address).sync() as client:
        client.reset(seed=last)
        result = [client.step({"text": text}) for text in script(made, last)][-1]
    assert result.done
    assert result.reward is None
    assert result.observation["outcome"]["reason"] == why
