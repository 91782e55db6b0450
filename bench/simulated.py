"""A training step on many GPUs, simulated event by event: where its time goes, and its money.

`python -m bench.simulated` prints the tables of docs/results/scale.md. Nothing is measured here:
the inputs are measured elsewhere or assumed, as their comments say. The same seed gives the same
figures.

One driver (a queue with one server) talks to the policy's servers, one per GPU, and to a judge with
a limit of calls at a time. A server works in iterations, as vLLM does: each computes the waiting
prompts' new tokens, up to a limit, and one token of every completion that is under way.
"""

from __future__ import annotations

import argparse
import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, product
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from workup.report.sheets import Sheet
from workup.runs.files import write_json
from workup.runs.machine import origin, versions


@dataclass(frozen=True)
class Machine:
    """One GPU. Peak and bandwidth are an H200's; the shares of them are those of a paper estimate.

    The estimate: training reaches .40 of the peak, inference .45, reading weights .70 of the
    bandwidth. `price` per hour is assumed.
    """

    peak: float = 989e12  # operations per second, bfloat16
    bandwidth: float = 4.8e12  # bytes per second
    training: float = 0.40
    inference: float = 0.45
    reading: float = 0.70
    price: float = 3.0


@dataclass(frozen=True)
class Work:
    """One step. Lengths are in tokens; the completions' and replies' are means.

    `driver` is the processor time of a turn in the driver: 2 ms for verl's two calls through Ray
    (measured, `bench.ray_calls`) and .1 ms for environment and rollout (measured with a policy that
    costs nothing). `judging` is that of a judge's call (3 ms) and `look_up` that of an answer from
    the cache (.04 ms), both measured (docs/performance.md). `fresh` is the share of judgements that
    need a call: 1 in a first epoch, .16 in the next two (measured there). `sync`, the time in which
    new weights reach the servers, is assumed.
    """

    episodes: int = 512
    gpus: int = 8
    parameters: float = 7.6e9
    layers_bytes: float = 57_344.0  # keys and values of a token: 28 layers, 4 heads of 128, bf16
    prompt: int = 600
    turns: int = 10
    completion: int = 60
    reply: int = 80
    full: bool = False  # whole weights with recomputation: 8 operations instead of 6
    reference: bool = True
    judge: float = 0.3
    judges: int = 64
    fresh: float = 1.0
    patient: bool = False  # each reply, too, is a call of the judge's latency
    driver: float = 0.0021
    judging: float = 0.003
    look_up: float = 0.00004
    call_price: float = 0.0004  # 700 tokens in at .3 and 150 out at 1.2 per million, about
    sync: float = 5.0
    chunk: int = 8192  # prompt tokens that a server computes in one iteration at most
    running: int = 256  # completions under way in a server at most
    seed: int = 0
    machine: Machine = Machine()


@dataclass(frozen=True)
class Played:
    """What playing took, in seconds: all, servers at work (mean), driver at work.

    `tail` is the time after the last completion, in which only the judge works.
    """

    seconds: float
    busy: float
    driver: float
    tail: float
    calls: int
    tokens: int


@dataclass(frozen=True)
class Step:
    """A synchronous step and its parts in seconds, and what it costs."""

    play: Played
    reference: float
    update: float
    sync: float
    gpu_money: float
    judge_money: float

    @property
    def seconds(self) -> float:
        return self.play.seconds + self.reference + self.update + self.sync


class Clock:
    """Events in the order of their time, then of their making."""

    def __init__(self) -> None:
        self.now, self._events, self._number = 0.0, [], count()  # type: ignore[var-annotated]

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._number), act))

    def run(self) -> None:
        while self._events:
            self.now, _, act = heapq.heappop(self._events)
            act()


class Queue:
    """`servers` that each do one thing at a time, first come first served."""

    def __init__(self, clock: Clock, servers: int) -> None:
        self.clock, self.free, self.busy = clock, servers, 0.0
        self.waiting: deque[tuple[float, Callable[[], None]]] = deque()

    def ask(self, seconds: float, then: Callable[[], None]) -> None:
        self.waiting.append((seconds, then))
        self._next()

    def _next(self) -> None:
        if not self.free or not self.waiting:
            return
        seconds, then = self.waiting.popleft()
        self.free -= 1
        self.busy += seconds

        def done() -> None:
            self.free += 1
            then()
            self._next()

        self.clock.after(seconds, done)


@dataclass(eq=False)
class Request:
    """A completion: the prompt's new tokens, its past in the prefix cache, and its length."""

    new: int
    past: int
    length: int
    then: Callable[[], None]


@dataclass
class Server:
    """One GPU that samples for everyone who asks."""

    clock: Clock
    work: Work
    busy: float = 0.0
    waiting: deque[Request] = field(default_factory=deque)
    under_way: list[tuple[int, int, Request]] = field(default_factory=list)  # by the iteration
    held: int = 0  # tokens of the transcripts under way
    admitted: int = 0  # completions so far
    iteration: int = 0
    going: bool = False

    def ask(self, request: Request) -> None:
        self.waiting.append(request)
        if not self.going:
            self.going = True
            self._iterate()

    def _iterate(self) -> None:
        work, m, decoding = self.work, self.work.machine, len(self.under_way)
        computed = 0
        admitted: list[Request] = []
        while self.waiting and decoding + len(admitted) < work.running:
            if computed and computed + self.waiting[0].new > work.chunk:
                break
            admitted.append(self.waiting.popleft())
            computed += admitted[-1].new
        operations = 2 * work.parameters * (computed + decoding)
        read = 2 * work.parameters + work.layers_bytes * self.held
        seconds = max(operations / (m.inference * m.peak), read / (m.reading * m.bandwidth))
        self.busy += seconds
        self.held += decoding
        self.iteration += 1
        for request in admitted:
            self.held += request.past + request.new
            last = self.iteration + request.length - 1  # the prompt's iteration makes the first one
            self.admitted += 1
            heapq.heappush(self.under_way, (last, self.admitted, request))
        self.clock.after(seconds, self._ended)

    def _ended(self) -> None:
        while self.under_way and self.under_way[0][0] <= self.iteration:
            _, _, request = heapq.heappop(self.under_way)
            self.held -= request.past + request.new + request.length - 1
            request.then()
        self.going = bool(self.waiting or self.under_way)
        if self.going:
            self._iterate()


@dataclass(frozen=True)
class Shape:
    """An episode: the length of each completion and of each reply."""

    completions: tuple[int, ...]
    replies: tuple[int, ...]

    @property
    def tokens(self) -> int:
        return sum(self.completions) + sum(self.replies[:-1])


def shapes(work: Work) -> list[Shape]:
    """The episodes: turns are uniform around their mean, lengths have a long tail (lognormal)."""
    rng = np.random.default_rng(work.seed)
    made = []
    for _ in range(work.episodes):
        low = max(1, work.turns // 2)
        turns = int(rng.integers(low, 2 * work.turns - low + 1))
        made.append(Shape(_lengths(rng, work.completion, turns), _lengths(rng, work.reply, turns)))
    return made


def _lengths(rng: Any, mean: float, size: int) -> tuple[int, ...]:
    spread = 0.5
    drawn = rng.lognormal(np.log(mean) - spread**2 / 2, spread, size)
    return tuple(int(x) for x in np.maximum(1, np.rint(drawn)))


class Playing:
    """All episodes of a step at the same time, from the first prompt to the last verdict."""

    def __init__(self, work: Work) -> None:
        self.work, self.clock = work, Clock()
        self.driver, self.judge = Queue(self.clock, 1), Queue(self.clock, work.judges)
        self.servers = [Server(self.clock, work) for _ in range(work.gpus)]
        self.rng = np.random.default_rng([work.seed, 1])
        self.sampled = 0.0  # when the last completion was there
        self.calls = self.tokens = 0

    def play(self) -> Played:
        for number, shape in enumerate(shapes(self.work)):
            self.tokens += self.work.prompt + shape.tokens
            self._turn(shape, number % self.work.gpus, 0, 0, self.work.prompt)
        self.clock.run()
        return Played(
            self.clock.now,
            sum(server.busy for server in self.servers) / self.work.gpus,
            self.driver.busy,
            self.clock.now - self.sampled,
            self.calls,
            self.tokens,
        )

    def _turn(self, shape: Shape, server: int, turn: int, past: int, new: int) -> None:
        length = shape.completions[turn]

        def sampled() -> None:
            self.sampled = self.clock.now
            if turn + 1 == len(shape.completions):
                self._judged()
                return
            reply = shape.replies[turn]

            def go_on() -> None:
                self._turn(shape, server, turn + 1, past + new + length, reply)

            self._called(go_on) if self.work.patient else go_on()

        request = Request(new, past, length, sampled)
        self.driver.ask(self.work.driver, lambda: self.servers[server].ask(request))

    def _judged(self) -> None:
        if self.rng.random() < self.work.fresh:
            self._called(lambda: None)
        else:
            self.driver.ask(self.work.look_up, lambda: None)

    def _called(self, then: Callable[[], None]) -> None:
        self.calls += 1
        self.driver.ask(self.work.judging, lambda: self.judge.ask(self.work.judge, then))


def step(work: Work) -> Step:
    """A synchronous step: play, judge, reference, update, new weights to the servers."""
    m, played = work.machine, Playing(work).play()
    operations = work.parameters * played.tokens
    reference = 2 * operations / (m.inference * m.peak * work.gpus) if work.reference else 0.0
    update = (8 if work.full else 6) * operations / (m.training * m.peak * work.gpus)
    whole = played.seconds + reference + update + work.sync
    money = whole * work.gpus * m.price / 3600
    return Step(played, reference, update, work.sync, money, played.calls * work.call_price)


def asynchronous(work: Work) -> tuple[float, int]:
    """Seconds per step when some GPUs only play and the others only update, and how many play.

    The next step is played with weights one step old while this one is learned. The best split is
    taken. Needs at least two GPUs.
    """
    whole = step(work)
    learned = (whole.reference + whole.update) * work.gpus
    splits = sorted({max(1, round(work.gpus * k / 8)) for k in range(1, 8)} - {work.gpus})
    found = [
        (max(Playing(replace(work, gpus=n)).play().seconds, learned / (work.gpus - n)), n)
        for n in splits
    ]
    seconds, playing = min(found)
    return seconds + work.sync, playing


def limits(work: Work, played: Played) -> str:
    """What play waits for most: "servers", "driver", "judge", or "turns" (one after the other)."""
    judge = played.calls * work.judge / work.judges
    shares = {"servers": played.busy, "driver": played.driver, "judge": judge}
    name = max(shares, key=lambda each: shares[each])
    return name if shares[name] > 0.5 * played.seconds else "turns"


def tables() -> list[Sheet]:
    """The tables of docs/results/scale.md."""
    return [_steps(), _judges(), _drivers()]


def _steps() -> Sheet:
    """A synchronous step, first epoch, judge of .3 s."""
    sizes = [(episodes, gpus) for episodes in (64, 512, 4096) for gpus in (1, 8, 64)]
    headings = [
        *("episodes", "GPUs", "play", "reference + update", "step", "asynchronous"),
        *("GPUs' price", "judge's price", "play waits for"),
    ]
    rows = [_row(Work(episodes=episodes, gpus=gpus)) for episodes, gpus in sizes]
    return Sheet(headings, rows, "A synchronous step", words=2)


def _row(work: Work) -> list[str]:
    found = step(work)
    p = found.play
    return [
        str(work.episodes),
        str(work.gpus),
        f"{p.seconds:.0f} s",
        f"{found.reference + found.update:.1f} s",
        f"{found.seconds:.0f} s",
        f"{asynchronous(work)[0]:.0f} s" if work.gpus > 1 else "–",
        f"{found.gpu_money:.2f}",
        f"{found.judge_money:.2f}",
        limits(work, p),
    ]


def _judges() -> Sheet:
    """Slower judges: 512 episodes on 8 GPUs."""
    rows = []
    for judge, judges, patient in product((0.3, 1.0, 3.0), (16, 64, 256), (False, True)):
        work = Work(judge=judge, judges=judges, patient=patient)
        found = step(work)
        who = "judge and patient" if patient else "judge"
        play, whole = f"{found.play.seconds:.0f} s", f"{found.seconds:.0f} s"
        rows.append([who, f"{judge:g} s", str(judges), play, whole, limits(work, found.play)])
    headings = ["who is called", "latency", "calls at a time", "play", "step", "play waits for"]
    return Sheet(headings, rows, "Judges", words=3)


def _drivers() -> Sheet:
    """A faster driver, and answers from the cache: 64 GPUs."""
    rows = []
    for episodes, driver, fresh in product((512, 4096), (0.0021, 0.0005), (1.0, 0.16)):
        work = Work(episodes=episodes, gpus=64, driver=driver, fresh=fresh)
        played = step(work).play
        rows.append(
            [
                str(episodes),
                f"{driver * 1e3:g} ms",
                f"{1 - fresh:.0%}",
                f"{played.seconds:.0f} s",
                f"{played.driver:.0f} s",
                limits(work, played),
            ]
        )
    headings = [
        *("episodes", "driver per turn", "answers from the cache", "play", "driver at work"),
        "play waits for",
    ]
    return Sheet(headings, rows, "Driver and cache", words=3)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.simulated", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the tables here")
    arguments = parser.parse_args(words)
    found = tables()
    for each in found:
        each.show(Console(width=120))
    if arguments.json:
        command = "python -m bench.simulated"
        made = {"command": command, "made": origin(versions({}, command))}
        write_json(arguments.json, {**made, "tables": [each.as_json() for each in found]})


if __name__ == "__main__":
    main()
