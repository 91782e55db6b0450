"""Trains on this process's share of fixed batches, in one process or as one of two."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import engine_world as world
import numpy as np
import torch

from workup.core.episode import Sample
from workup.core.ports import Demonstration
from workup.engines.settings import EngineSettings, SupervisedSettings
from workup.engines.trl.engine import TrlEngine

Trained = tuple[dict[str, torch.Tensor], list[dict[str, float]]]


def train(folder: Path) -> Trained:
    """The weights in the end, and what was logged after each reinforcement step."""
    torch.set_num_threads(1)
    policy = world.Toy(world.model())
    settings = EngineSettings(
        lr=1e-3,
        beta=0.1,
        entropy=0.02,
        micro_batch=2,
        num_iterations=2,
        sft=SupervisedSettings(lr=1e-3),
        save_every=2,
    )
    engine = TrlEngine(policy, settings, folder)
    # Shares of different sizes: five sequences here, two there.
    share = {1: slice(None), 2: slice(0, 5) if engine.processes.is_main else slice(5, None)}[
        engine.processes.world
    ]

    def demonstrations(step: int) -> list[Demonstration]:
        rng = np.random.default_rng([1, step])
        return [world.demonstration(rng, k % 3) for k in range(7)][share]

    async def collect(_: Any, step: int) -> list[Sample]:
        return world.episodes(policy.model, [2, step], 7)[share]

    logged: list[dict[str, float]] = []
    engine.sft(map(demonstrations, range(3)), 3)
    engine.on_step = lambda _, metrics: logged.append(dict(metrics))
    engine.grpo(collect, 3)
    if engine.processes.world == 2:
        assert list(
            engine.processes.all_gather(
                [float(engine.processes.rank)] * (1 + engine.processes.rank)
            )
        ) == [0.0, 1.0, 1.0]
    weights = {name: value.detach().clone() for name, value in policy.model.state_dict().items()}
    return weights, logged


def run(rank: int, port: int, folder: Path) -> None:
    """One of two processes that find each other at `port`; the first one saves what came out."""
    where = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in where.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "ACCELERATE_USE_CPU": "true"}
    trained = train(folder)
    if torch.distributed.get_rank() == 0:
        torch.save(trained, folder / "trained.pt")
    torch.distributed.destroy_process_group()
