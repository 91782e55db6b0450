"""An engine that trains nothing and counts what the training loop brings it."""

from __future__ import annotations

import asyncio
from itertools import islice
from pathlib import Path

from workup.engines import EngineJob


class Alone:
    rank, world, is_main = 0, 1, True

    def all_gather(self, values):  # type: ignore[no-untyped-def]
        return values

    def send_to_main(self, value):  # type: ignore[no-untyped-def]
        return [value]

    def from_main(self, value):  # type: ignore[no-untyped-def]
        return value


class Counting:
    stopped, recipe = False, "counting"

    def __init__(self, job: EngineJob) -> None:
        self.model, self.tokenizer = job.load()
        self.policy = job.follow(self.model, self.tokenizer)
        self.on_step = lambda step, metrics: None
        self.seen: list[tuple[str, int, int]] = []  # stage, step, pieces of data
        self.processes, self.live = Alone(), self
        ENGINES.append(self)

    def _count(self, kind: str, batches, steps: int) -> None:  # type: ignore[no-untyped-def]
        for step, batch in enumerate(islice(batches, steps), start=1):
            self.seen.append((kind, step, len(batch)))
            self.on_step(step, {"loss": 0.0})

    def sft(self, batches, steps, rate) -> None:  # type: ignore[no-untyped-def]
        self._count("sft", batches, steps)

    def dpo(self, batches, steps) -> None:  # type: ignore[no-untyped-def]
        self._count("dpo", batches, steps)

    def grpo(self, collect, steps) -> None:  # type: ignore[no-untyped-def]
        batches = (asyncio.run(collect(self.policy, step)) for step in range(steps))
        self._count("grpo", batches, steps)

    def done(self, kind: str) -> int:
        return 0

    def stop(self) -> None:
        self.stopped = True

    def save(self, folder: Path, *, merged: bool = True) -> None:
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def load(self, folder: Path) -> str:
        return "a counting engine keeps its weights"

    def chat(self):  # type: ignore[no-untyped-def]
        return None

    def scorer(self, name: str):  # type: ignore[no-untyped-def]
        raise NotImplementedError(name)


ENGINES: list[Counting] = []


class engine:  # what `engine=counting_engine:engine` names
    @staticmethod
    def refuse(settings, stages) -> None:  # type: ignore[no-untyped-def]
        pass

    open = Counting
    processes = Alone
