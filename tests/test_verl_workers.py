"""Two workers of Ray on one machine share answers, ledger and budget; one of them is killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from workup.core.episode import Message
from workup.core.errors import BudgetError
from workup.core.ports import Reply, Request
from workup.roles.account import Account
from workup.roles.cached import Cached
from workup.roles.endpoint import Price
from workup.roles.replies import FILE, Replies

ray = pytest.importorskip("ray", reason="Ray comes with verl's environment: make test-verl")
PRICE = Price(output=100_000)  # ten tokens of an answer cost 1
CALLS = "calls.txt"
HERE = Path(__file__).parent


class Told:
    """A model that notes each call it gets, by any process, and answers by its number."""

    name = "told"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def complete(self, request: Request) -> Reply:
        number = request.messages[0].content
        with (self.folder / CALLS).open("a") as calls:
            calls.write(f"{number}\n")
        await asyncio.sleep(0.002)
        return Reply(f"answer {number}", prompt_tokens=5, completion_tokens=10)


def question(number: int) -> Request:
    return Request("judge", "1", (Message("user", str(number)),), max_tokens=10)


class Worker:
    """What plays in a process of its own: a model behind the cache, on the run's account."""

    def __init__(self, folder: str, budget: float | None) -> None:
        place = Path(folder)
        account = Account(Replies(place / FILE), "run", budget)
        self.model = Cached(Told(place), account, PRICE)

    def pid(self) -> int:
        return os.getpid()

    def ask(self, numbers: list[int]) -> tuple[list[str], bool]:
        """The answers, one after the other; and whether the budget ended it."""
        return asyncio.run(asked(self.model, numbers))

    def close(self) -> None:
        self.model.account.replies.close()


async def asked(model: Cached, numbers: list[int]) -> tuple[list[str], bool]:
    """Not a method: Ray would run the worker in an event loop of its own."""
    found = []
    for number in numbers:
        try:
            found.append((await model.complete(question(number))).text)
        except BudgetError:
            return found, True
    return found, False


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    # Ray's workers import this module by its name, wherever the tests were started.
    path = os.pathsep.join([str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    own = {"env_vars": {"PYTHONPATH": path.rstrip(os.pathsep)}}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=own)
    yield
    ray.shutdown()


def two(folder: Path, budget: float | None = None) -> list[Any]:
    return [ray.remote(Worker).remote(str(folder), budget) for _ in range(2)]


def calls(folder: Path) -> list[int]:
    return [int(line) for line in (folder / CALLS).read_text().split()]


def charged(folder: Path) -> tuple[int, float]:
    """How many calls the ledger has, and their money."""
    replies = Replies(folder / FILE)
    rows = Account(replies, "run").costs()
    replies.close()
    return sum(row.calls for row in rows), sum(row.cost for row in rows)


def closed(workers: list[Any]) -> None:
    ray.get([worker.close.remote() for worker in workers])


def test_what_one_worker_asked_the_other_has(tmp_path: Path) -> None:
    first, second = two(tmp_path)
    ray.get(first.ask.remote(list(range(10))))
    found, _ = ray.get(second.ask.remote(list(range(20))))
    assert found == [f"answer {k}" for k in range(20)]
    closed([first, second])
    assert calls(tmp_path) == list(range(20))
    assert charged(tmp_path) == (20, pytest.approx(20.0))


def test_at_the_same_time_every_call_is_on_the_ledger_once(tmp_path: Path) -> None:
    workers = two(tmp_path)
    found = ray.get([worker.ask.remote(list(range(60))) for worker in workers])
    assert [texts for texts, _ in found] == [[f"answer {k}" for k in range(60)]] * 2
    closed(workers)
    made = calls(tmp_path)
    assert set(made) == set(range(60))
    assert charged(tmp_path)[0] == len(made)


def test_a_budget_holds_over_both(tmp_path: Path) -> None:
    """A worker does not see what the other has in flight: one call more at most."""
    workers = two(tmp_path, budget=12)
    shares = [list(range(40)), list(range(100, 140))]
    found = ray.get([w.ask.remote(share) for w, share in zip(workers, shares, strict=True)])
    assert all(ended for _, ended in found)
    closed(workers)
    number, money = charged(tmp_path)
    assert 12 <= money <= 13
    assert number == len(calls(tmp_path)) == sum(len(texts) for texts, _ in found)


def test_a_killed_worker_has_lost_no_answer_and_none_is_charged_twice(tmp_path: Path) -> None:
    killed, other = two(tmp_path)
    pid = ray.get(killed.pid.remote())
    asking = killed.ask.remote(list(range(300)))
    while not (tmp_path / CALLS).exists() or len(calls(tmp_path)) < 50:
        pass
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ray.exceptions.RayError):
        ray.get(asking)
    begun = len(calls(tmp_path))
    found, _ = ray.get(other.ask.remote(list(range(300))))
    assert found == [f"answer {k}" for k in range(300)]
    closed([other])
    made = calls(tmp_path)
    again = sorted(number for number in set(made) if made.count(number) > 1)
    assert again in ([], [begun - 1])  # at most the call that was in flight when it was killed
    assert charged(tmp_path)[0] == 300
