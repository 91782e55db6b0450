"""RAGES: look-ups in a base of the paper's size, and what a slow judge and simulator cost a step.

24,000 statistics of 465 examinations in 1,629 diseases (ES-9), in a folder on disk. A look-up goes
from the diagnosis as a case names it, and the order as a doctor writes it, to the statistic.

The step is one of evidence-seeking diagnosis, 16 cases × 8 episodes (ES-10), with a model in every
role: once one of this process that answers at once, once one behind a server that takes 300 ms and
says the same, and once more this one while the step before is trained on (`ahead=1`). The model
writes every result, and judges every list, every order and every diagnosis. The tiny policy's own
step takes about a second, in which nothing can hide; the same is measured with one of 9 M
parameters, whose step is still far shorter than a language model's. A step is a mean over four,
each with cases that nobody has played before; the first step of a run is not counted.
"""

from __future__ import annotations

import csv
import json
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import torch

from bench.figures import Figure
from bench.judging import endpoint
from bench.slow_endpoint import answer
from workup.cases import open_source
from workup.cases.exam_terms import key
from workup.core.ports import Instruments, Model, Reply, Request, Teaching
from workup.core.stages import GrpoStage
from workup.engines.trl.engine import TrlEngine
from workup.environments.base.lists import ORDER
from workup.environments.evidence import EXAMINING, RANKING, SIMULATOR, EvidenceSeeking
from workup.environments.evidence import Settings as EvidenceSettings
from workup.environments.exams.exam_base import ExamBase
from workup.environments.exams.exam_sources import build
from workup.environments.exams.rages import RagesSettings
from workup.loops.training.collect import Collection, Share, Step
from workup.methods import load
from workup.models.local import LocalPolicy
from workup.models.tiny import TinySettings
from workup.models.tiny import build as build_tiny
from workup.roles.config import Config
from workup.roles.endpoint import EndpointSettings
from workup.roles.judges.diagnosis import DiagnosisJudge
from workup.roles.run_models import RunModels
from workup.runs.settings import Settings

CASES, GROUP, STEPS, LESSONS = 16, 8, 5, 60
DISEASES, TESTS, STATISTICS, LOOKUPS = 1_629, 465, 24_000, 20_000
SIZES = {"0.1 M": TinySettings(), "9 M": TinySettings(width=384, layers=6)}
T = TypeVar("T")
WANTED, OPENED = 10_000, 0.1


def measure() -> list[Figure]:
    """By the processor's time: a machine that others use too makes no difference."""
    draw = random.Random(0)
    with TemporaryDirectory() as folder:
        pairs = _table(Path(folder) / "table.csv", draw)
        build([str(Path(folder) / "table.csv")], Path(folder) / "base")
        opening, base = _timed(lambda: ExamBase.open(str(Path(folder) / "base")))
        orders = [draw.choice(pairs) for _ in range(LOOKUPS)]
        seconds, found = _timed(lambda: sum(_look_up(base, *order) for order in orders))
    assert found == LOOKUPS
    rate = LOOKUPS / seconds
    name = "examination look-ups per processor second"
    steps = [figure for size in SIZES for figure in _step(size)]
    return [
        Figure(name, rate, WANTED, "/s", rate / WANTED, 1.0, True),
        Figure("opening the base", opening, OPENED, "s", opening / OPENED, 1.0, False),
        *steps,
    ]


def _step(size: str) -> list[Figure]:
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder, endpoint() as settings:
        plain, plain_cpu, _ = _played(Path(folder) / "plain", size, AtOnce())
        slow, slow_cpu, calls = _with_models(Path(folder) / "slow", size, settings, ahead=0)
        early, early_cpu, _ = _with_models(Path(folder) / "early", size, settings, ahead=1)
    step, spent = f"step with judge and simulator, {size}", f"its processor time, {size}"
    return [
        Figure(step, slow, plain, "s", slow / plain, 1.25, False),
        Figure(spent, slow_cpu, plain_cpu, "s", slow_cpu / plain_cpu, 1.25, False),
        Figure(f"the step with ahead=1, {size}", early, plain, "s", early / plain, 1.3, False),
        Figure(spent, early_cpu, plain_cpu, "s", early_cpu / plain_cpu, 1.3, False),
        Figure(f"calls per result that was ordered, {size}", calls, 1.0, "", calls, 1.0, False),
    ]


def _with_models(
    folder: Path, size: str, endpoint: EndpointSettings, *, ahead: int
) -> tuple[float, float, float]:
    """Seconds and processor seconds of a step, and the simulator's calls for each result."""
    run_models = RunModels(Config(endpoints={"slow": endpoint}), "bench", cache=folder / "cache")
    model = run_models.open("endpoint:slow")
    seconds, worked, orders = _played(folder, size, model, ahead)
    calls = {row["role"]: int(row["calls"]) for row in run_models.costs()}
    run_models.close()
    return seconds, worked, calls["simulator"] / orders


class AtOnce:
    """Implements `Model`: says what the slow server says, and takes no time."""

    name = "at once"

    async def complete(self, request: Request) -> Reply:
        schema = json.loads(request.schema or "{}")
        return Reply(answer(schema, request.messages[-1].content))


def _played(folder: Path, size: str, model: Model, ahead: int = 0) -> tuple[float, float, int]:
    """Steps from the same warm start: seconds and processor seconds of one, results ordered."""
    wing = open_source("clinic:pathology")
    source = replace(wing, train=wing.train[: STEPS * CASES], test=wing.test[:1])
    own = EvidenceSettings(max_turns=2, rages=RagesSettings(sources=("generated",)))
    built_in = EvidenceSeeking(source, EvidenceSettings(max_turns=2))
    roles = dict.fromkeys((RANKING, EXAMINING, SIMULATOR), model)
    world = EvidenceSeeking(source, own).with_models(roles)
    settings = Settings(
        method="evidence-seeking",
        max_tokens=48,
        batch=CASES,
        group=GROUP,
        steps=STEPS,
        lr=1e-3,
        ahead=ahead,
    )
    policy, tokenizer = build_tiny(source, world.phrases, SIZES[size], seed=1)
    times: list[tuple[float, float]] = []
    engine = TrlEngine(
        LocalPolicy(policy.eval(), tokenizer),
        settings,
        folder,
        on_step=lambda step, update: times.append((time.perf_counter(), time.process_time())),
    )
    lessons = (
        [Teaching().demonstrate(source, built_in, 0, 16 * k + i) for i in range(16)]
        for k in range(LESSONS)
    )
    engine.sft(lessons, LESSONS)
    method = load("evidence-seeking")
    stage = next(s for s in method.stages(method.settings(), world) if isinstance(s, GrpoStage))
    judge = DiagnosisJudge(model)
    ordered = 0

    def keep(step: Step) -> None:
        nonlocal ordered
        actions = [turn.action for r in step.records for turn in r.episode.turns]
        ordered += sum(len(action.content) for action in actions if action.kind == ORDER)

    loop = Collection(stage, source, world, settings, Share(0, 1), keep, lambda: Instruments(judge))
    times.clear()
    engine.grpo(loop.collect, STEPS)
    (began, worked), (ended, spent) = times[0], times[-1]
    return (ended - began) / (STEPS - 1), (spent - worked) / (STEPS - 1), ordered


def _table(path: Path, draw: random.Random) -> list[tuple[str, str]]:
    """Writes the statistics; returns disease and examination of each, by a further name."""
    every = [(d, t) for d in range(DISEASES) for t in range(TESTS)]
    chosen = sorted(draw.sample(every, STATISTICS))
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("disease", "test", "positive", "n", "disease_names", "test_names"))
        for d, t in chosen:
            hits = draw.randint(0, 50)
            writer.writerow((f"tumour {d}", f"CD{t}x", hits, 50, f"neoplasm {d}", f"antigen {t}"))
    return [(f"Neoplasm {d}", f"antigen {t} immunostain") for d, t in chosen]


def _look_up(base: ExamBase, disease: str, order: str) -> bool:
    exam = base.test(key(order))
    return exam is not None and base.share(base.disease([disease]), exam) is not None


def _timed(work: Callable[[], T]) -> tuple[float, T]:
    began = time.process_time()
    done = work()
    return time.process_time() - began, done
