"""Where the time of a whole training step goes: 16 cases × 8 episodes × 10 turns.

The episodes are sampled, judged, recorded and trained on.

Everything is what `workup train craft` runs: the engine with its default settings, collection,
reward, credit, and a run folder that keeps every episode. Ours is the time outside the model:
everything but its forward passes (the sampler's and the trainer's) and the backward pass, the
optimiser included.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from bench.figures import Figure
from bench.ward import MAX_TOKENS, SIZE, TURNS
from workup.cases.clinic import open_clinic
from workup.core.case import Source
from workup.core.ports import Demonstration, Instruments
from workup.core.stages import GrpoStage
from workup.engines.trl.engine import TrlEngine
from workup.environments.consultation import Consultation
from workup.loops.training.collect import Collection, Share, Step
from workup.methods import load
from workup.models.local import LocalPolicy
from workup.models.tiny import build
from workup.roles.judges.exact import ExactJudge
from workup.runs import Run, versions
from workup.runs.settings import Settings

Seconds = dict[str, float]
LESSONS, WARM_UP, STEPS = 120, 3, 15


def measure() -> list[Figure]:
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        steps = run(Path(folder))
    turns = fmean(step["turns"] for step in steps)
    if turns < 0.99 * TURNS:
        raise SystemExit(f"step: episodes of {turns} turns instead of {TURNS}")
    # Means, not medians: now and then a step pays for the garbage of several.
    total = fmean(step["total"] for step in steps)
    outside = fmean(step["total"] - step["forward"] - step["backward"] for step in steps)
    return [
        Figure(
            "training step, outside the model", outside, total, "s", outside / total, 0.15, False
        )
    ]


def run(folder: Path) -> list[Seconds]:
    """Seconds of every step, by what they were spent on; and its mean turns per episode."""
    settings = Settings(method="craft", max_tokens=MAX_TOKENS, steps=WARM_UP + STEPS, lr=1e-6)
    method, source = load("craft"), open_clinic("s")
    environment = Consultation(source.items, source.diagnoses, TURNS)
    model, tokenizer = build(source, environment.phrases, SIZE, seed=1)
    steps: list[Seconds] = []
    with (
        Run.create(folder / "run", {"method": "craft"}, versions({"run": 0}, "bench")) as disk,
        timed(model) as spent,
    ):

        def keep(step: Step) -> None:
            spent["turns"] = fmean(len(record.episode.turns) for record in step.records)
            disk.write(step.records)

        def on_step(step: int, update: Mapping[str, float]) -> None:
            disk.log({"stage": "grpo", "step": step, **update})
            steps.append({**spent, "total": time.perf_counter()})
            spent.clear()

        engine = TrlEngine(
            LocalPolicy(model.eval(), tokenizer), settings, folder / "checkpoints", on_step=on_step
        )
        engine.sft(
            ([lesson(source, environment, 16 * k + i) for i in range(16)] for k in range(LESSONS)),
            LESSONS,
        )
        steps.clear()
        stage = next(
            s for s in method.stages(method.settings(), environment) if isinstance(s, GrpoStage)
        )
        collection = Collection(
            stage,
            source,
            environment,
            settings,
            Share(0, 1),
            keep,
            lambda: Instruments(ExactJudge()),
        )
        engine.grpo(collection.collect, settings.steps)
    for before, step in reversed(list(pairwise(steps))):
        step["total"] -= before["total"]
    return steps[WARM_UP:]


def lesson(source: Source, environment: Consultation, index: int) -> Demonstration:
    """Ten random questions and no diagnosis.

    A policy that imitates this has ten turns in every episode.
    """
    case, rng = source.train[-1 - index], np.random.default_rng([2, index])
    asked = [source.items[i] for i in rng.integers(len(source.items), size=TURNS)]
    said = [f"<{item.kind.value}>{item.name}</{item.kind.value}>" for item in asked]
    heard = [environment.reply(case, environment.read(text)).messages for text in said]
    return Demonstration(environment.open(case), tuple(zip(said, heard, strict=True)))


@contextmanager
def timed(model: Any) -> Iterator[Seconds]:
    """Seconds in forward and in backward passes, added up until they are cleared."""
    spent: Seconds = defaultdict(float)
    begun: dict[str, float] = {}

    def begin(name: str) -> Callable[..., None]:
        return lambda *_: begun.__setitem__(name, time.perf_counter())

    def end(name: str) -> Callable[..., None]:
        return lambda *_: spent.__setitem__(name, spent[name] + time.perf_counter() - begun[name])

    def backward(self: Accelerator, *arguments: Any, **settings: Any) -> None:
        begin("backward")()
        plain(self, *arguments, **settings)
        end("backward")()

    plain, Accelerator.backward = Accelerator.backward, backward
    hooks = [
        model.register_forward_pre_hook(begin("forward")),
        model.register_forward_hook(end("forward")),
    ]
    try:
        yield spent
    finally:
        Accelerator.backward = plain
        for hook in hooks:
            hook.remove()
