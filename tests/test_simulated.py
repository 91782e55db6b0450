"""The simulated step against closed forms, a plain loop, and the estimate on paper."""

from __future__ import annotations

import heapq
import json
from dataclasses import replace
from pathlib import Path

import pytest
from bench import simulated
from bench.simulated import Clock, Playing, Queue, Request, Server, Work, limits, shapes, step
from hypothesis import given
from hypothesis import strategies as st

SMALL = Work(episodes=24, gpus=2, turns=4, judges=4)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=20), st.integers(1, 4))
def test_a_queue_serves_in_order_by_whoever_is_free(jobs: list[int], servers: int) -> None:
    clock, ended = Clock(), {}
    queue = Queue(clock, servers)
    for number, seconds in enumerate(jobs):
        queue.ask(seconds, lambda number=number: ended.setdefault(number, clock.now))  # type: ignore[misc]
    clock.run()
    free = [0] * servers
    for number, seconds in enumerate(jobs):
        at = heapq.heappop(free) + seconds
        heapq.heappush(free, at)
        assert ended[number] == at
    assert queue.busy == sum(jobs)


def alone(work: Work, new: int, length: int) -> float:
    """A completion that has a server for itself: its prompt, then token after token."""
    m = work.machine
    weights = 2 * work.parameters / (m.reading * m.bandwidth)
    total = max(2 * work.parameters * new / (m.inference * m.peak), weights)
    for made in range(1, length):
        held = new + made - 1
        read = (2 * work.parameters + work.layers_bytes * held) / (m.reading * m.bandwidth)
        total += max(2 * work.parameters / (m.inference * m.peak), read)
    return total


@pytest.mark.parametrize(("new", "length"), [(600, 1), (600, 60), (1, 5), (9000, 2)])
def test_a_completion_alone_takes_what_the_formula_says(new: int, length: int) -> None:
    clock, work, ended = Clock(), Work(), []
    server = Server(clock, work)
    server.ask(Request(new, 0, length, lambda: ended.append(clock.now)))
    clock.run()
    assert ended == [pytest.approx(alone(work, new, length))]
    assert server.busy == pytest.approx(ended[0])
    assert server.held == 0


def test_completions_together_share_the_reading_of_the_weights() -> None:
    clock, work, ended = Clock(), Work(), []
    server = Server(clock, work)
    for _ in range(64):
        server.ask(Request(10, 0, 50, lambda: ended.append(clock.now)))
    clock.run()
    assert len(ended) == 64
    assert clock.now < 2 * alone(work, 10, 50)


def test_the_same_seed_is_the_same_step_and_another_is_not() -> None:
    assert step(SMALL) == step(SMALL)
    assert step(replace(SMALL, seed=1)).play != step(SMALL).play


def test_every_token_and_every_judgement_is_counted_once() -> None:
    played = Playing(SMALL).play()
    made = shapes(SMALL)
    assert played.tokens == sum(SMALL.prompt + shape.tokens for shape in made)
    assert played.calls == SMALL.episodes
    asked = Playing(replace(SMALL, patient=True)).play()
    assert asked.calls == sum(len(shape.completions) for shape in made)
    assert Playing(replace(SMALL, fresh=0.0)).play().calls == 0


@pytest.mark.parametrize("judge", [0.3, 3.0, 30.0])
def test_a_slow_judge_costs_between_its_queue_and_its_queue_behind_play(judge: float) -> None:
    quick = Playing(replace(SMALL, judge=0.0)).play()
    slow = Playing(replace(SMALL, judge=judge)).play()
    queue = judge * SMALL.episodes / SMALL.judges
    assert max(queue, quick.seconds) <= slow.seconds <= quick.seconds + queue + judge
    assert slow.busy == pytest.approx(quick.busy)
    assert slow.tail >= judge


def test_what_play_waits_for() -> None:
    assert limits(SMALL, Playing(replace(SMALL)).play()) == "servers"
    slow = replace(SMALL, judge=60.0)
    assert limits(slow, Playing(slow).play()) == "judge"
    busy = replace(SMALL, driver=1.0)
    assert limits(busy, Playing(busy).play()) == "driver"


def test_the_estimate_on_paper_comes_out() -> None:
    """Of 64 cases x 8 episodes of 2,000 tokens on one H200: rollout 34 s, reference 36 s, 122 s."""
    found = step(replace(Work(), gpus=1, driver=0.0, judging=0.0))
    per_token = 512 * 2000 / found.play.tokens
    assert found.play.seconds * per_token == pytest.approx(34, rel=0.25)
    assert found.reference * per_token == pytest.approx(36, rel=0.05)
    assert found.update * per_token == pytest.approx(122, rel=0.05)


def test_money_is_hours_and_calls() -> None:
    found = step(SMALL)
    assert found.gpu_money == pytest.approx(found.seconds / 3600 * 2 * 3.0)
    assert found.judge_money == pytest.approx(24 * 0.0004)


def test_apart_a_step_takes_as_long_as_the_slower_half() -> None:
    seconds, playing = simulated.asynchronous(SMALL)
    whole = step(SMALL)
    assert playing == 1
    learned = (whole.reference + whole.update) * 2
    play = Playing(replace(SMALL, gpus=1)).play().seconds
    assert seconds == pytest.approx(max(play, learned) + SMALL.sync)


def test_the_kept_tables_are_of_today() -> None:
    """The rows of the smallest steps; the others take half a minute."""
    file = Path(__file__).parents[1] / "results/scale.json"
    kept = json.loads(file.read_text(encoding="utf-8"))["tables"][0]["rows"]
    for row, gpus in zip(kept, (1, 8, 64), strict=False):
        assert row == simulated._row(Work(episodes=64, gpus=gpus))
