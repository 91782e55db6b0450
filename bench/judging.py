"""What a judge behind an endpoint costs a training step, with cached look-ups.

A step has 64 cases × 8 episodes; a call takes 300 ms. Measured is also what a call costs this
process while many are under way.

Two runs of the same steps, one with the exact judge, one with a language model behind a real server
on loopback (a process of its own). Its answers arrive while other episodes still play; equal
questions are asked once. The second pass over the same cases shows how much the cache saves, while
the policy goes on changing.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from bench.figures import Figure
from workup.cases.clinic import open_clinic
from workup.core.case import Case, Source
from workup.core.episode import Message
from workup.core.ports import Instruments, Judge, Request, Teaching
from workup.core.stages import GrpoStage
from workup.engines.trl.engine import TrlEngine
from workup.environments.consultation import Consultation
from workup.loops.training.collect import Collection, Share
from workup.methods import load
from workup.models.local import LocalPolicy
from workup.models.tiny import TinySettings, build
from workup.roles import clients
from workup.roles.config import Config
from workup.roles.endpoint import Endpoint, EndpointSettings
from workup.roles.judges.diagnosis import DiagnosisJudge
from workup.roles.judges.exact import ExactJudge
from workup.roles.run_models import RunModels
from workup.runs.settings import Settings

LATENCY, CONCURRENCY = 0.3, 128
CASES, GROUP, LESSONS, EPOCHS = 64, 8, 300, 3  # a step is an epoch: it plays all cases
LOOKUPS = 20_000
UNDER_WAY, CALLS = 512, 1_500


def measure() -> list[Figure]:
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder, endpoint() as settings:
        run_models = RunModels(Config(endpoints={"slow": settings}), "bench", cache=Path(folder))
        judge = Counting(run_models)
        plain = epochs(Path(folder) / "plain", ExactJudge(), lambda: None)
        judged = epochs(Path(folder) / "judged", judge, judge.mark)
        saved = 1 - (judge.calls[-1] - judge.calls[0]) / (judge.asked[-1] - judge.asked[0])
        rate = lookups(run_models)
        run_models.close()
        small, one = under_way(settings, clients.MOST), under_way(settings, UNDER_WAY)
    return [
        Figure(
            "first epoch with a judge of 300 ms",
            judged[0],
            plain[0],
            "s",
            judged[0] / plain[0],
            1.2,
            False,
        ),
        Figure("judgements of later epochs without a call", saved, 1.0, "", saved, 0.9, True),
        Figure("a call among 512, beside one pool", small, one, "s", small / one, 0.8, False),
        Figure("cached look-ups", rate, 10_000.0, "/s", rate / 10_000, 1.0, True),
    ]


class Counting:
    """A language model as judge that counts its calls.

    It notes, after each epoch, how often it was asked and how many calls that took.
    """

    def __init__(self, run_models: RunModels) -> None:
        self.run_models, self.judge, self.times = (
            run_models,
            DiagnosisJudge(run_models.open("endpoint:slow")),
            0,
        )
        self.asked: list[int] = []
        self.calls: list[int] = []

    async def same(self, answer: str, case: Case) -> bool:
        return await self.grade(answer, case) == 1

    async def grade(self, answer: str, case: Case) -> float:
        self.times += 1
        return await self.judge.grade(answer, case)

    def mark(self) -> None:
        self.asked.append(self.times)
        self.calls.append(sum(row["calls"] for row in self.run_models.costs()))


def epochs(folder: Path, judge: Judge, mark: Callable[[], None]) -> list[float]:
    """Seconds of each epoch of a run that starts from the same warm start."""
    settings = Settings(
        method="craft", max_tokens=8, batch=CASES, group=GROUP, steps=EPOCHS, lr=1e-3
    )
    method, whole = load("craft"), open_clinic("s")
    source = Source(
        "clinic:s", whole.train[:CASES], whole.test[:1], whole.items, whole.diagnoses, whole.phrases
    )
    environment = Consultation(source.items, source.diagnoses)
    model, tokenizer = build(source, environment.phrases, TinySettings(), seed=1)
    times: list[float] = []

    def on_step(step: int, update: Mapping[str, float]) -> None:
        times.append(time.perf_counter())
        mark()

    engine = TrlEngine(LocalPolicy(model.eval(), tokenizer), settings, folder, on_step=on_step)
    lessons = (
        [Teaching().demonstrate(whole, environment, 0, 16 * k + i) for i in range(16)]
        for k in range(LESSONS)
    )
    engine.sft(lessons, LESSONS)
    stage = next(
        stage
        for stage in method.stages(method.settings(), environment)
        if isinstance(stage, GrpoStage)
    )
    collection = Collection(
        stage,
        source,
        environment,
        settings,
        Share(0, 1),
        lambda step: None,
        lambda: Instruments(judge),
    )
    times[:] = [time.perf_counter()]
    engine.grpo(collection.collect, settings.steps)
    return [after - before for before, after in pairwise(times)]


def under_way(settings: EndpointSettings, pool: int) -> float:
    """Processor seconds of a call with 512 under way, in pools of so many connections."""
    wide = settings.model_copy(update={"concurrency": UNDER_WAY})
    asked = [Request("judge", "bench", (Message("user", f"{index}"),)) for index in range(CALLS)]

    async def ask() -> float:
        model = Endpoint(wide)
        await asyncio.gather(*(model.complete(request) for request in asked[:UNDER_WAY]))
        began = time.process_time()
        await asyncio.gather(*(model.complete(request) for request in asked))
        return (time.process_time() - began) / CALLS

    usual, clients.MOST = clients.MOST, pool
    try:
        return min(asyncio.run(ask()) for _ in range(3))
    finally:
        clients.MOST = usual


def lookups(run_models: RunModels) -> float:
    """Cached answers per second, asked for by concurrent tasks."""
    requests = [
        Request("judge", "bench", (Message("user", f"{index % 500}"),)) for index in range(LOOKUPS)
    ]
    model = run_models.open("endpoint:slow")

    async def ask() -> float:
        await asyncio.gather(*(model.complete(request) for request in requests[:500]))
        began = time.perf_counter()
        await asyncio.gather(*(model.complete(request) for request in requests))
        return LOOKUPS / (time.perf_counter() - began)

    return asyncio.run(ask())


@contextmanager
def endpoint() -> Iterator[EndpointSettings]:
    """The slow server in a process of its own."""
    command = [sys.executable, "-m", "bench.slow_endpoint", str(LATENCY)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
        yield EndpointSettings(base_url=url, model="bench", concurrency=CONCURRENCY)
        server.kill()
