"""One of verl's trainers with its workers and servers, from its start to its end."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import transfer_queue
from omegaconf import OmegaConf
from ray.exceptions import RayError

from workup.engines.verl import checkpoints
from workup.engines.verl.cluster import connect, leave, refuse_shared
from workup.engines.verl.lessons import VerlImitation, VerlPreference
from workup.engines.verl.manager import Manager
from workup.engines.verl.trainer import VerlHooks, WorkupTrainer
from workup.engines.verl.watch import ended, watched

Make = Callable[[Any, VerlHooks], WorkupTrainer]


class Verl:
    """How the engine reaches verl: by which trainers, on which Ray cluster."""

    reinforcement: type[WorkupTrainer] = WorkupTrainer
    imitation: type[VerlImitation] = VerlImitation
    preference: type[VerlPreference] = VerlPreference

    def maker(self, kind: str, beta: float) -> Make:
        """What makes the trainer of a stage: grpo, sft or dpo with its β."""
        if kind == "dpo":
            return partial(self.preference, beta=beta)
        return self.imitation if kind == "sft" else self.reinforcement

    def join(self, config: Any) -> None:
        connect(config)

    def leave(self) -> None:
        leave()


class Session:
    """Starts the workers of one stage, from its newest whole checkpoint if it has one.

    `version` is how many updates of this stage the weights on the servers have seen. It ends with
    `close`, or with the process.
    """

    def __init__(
        self, kind: str, folder: Path, config: Any, verl: Verl, make: Make, hooks: VerlHooks
    ) -> None:
        self.kind, self.folder, self.config, self.verl = kind, folder, config, verl
        found = checkpoints.whole(folder)
        self.version = checkpoints.step(found[-1]) if found else 0
        if found:
            checkpoints.wait_for_files(found[-1])
        config.trainer.resume_mode = "resume_path" if found else "disable"
        config.trainer.resume_from_path = str(found[-1]) if found else None
        OmegaConf.resolve(config)
        verl.join(config)
        refuse_shared()
        transfer_queue.init(config.transfer_queue)
        atexit.register(transfer_queue.close)
        self.trainer = make(config, hooks)
        self.trainer.init()
        self._client: Any = None

    @property
    def client(self) -> Any:
        """What samples on the servers."""
        if self._client is None:
            self._client = self.trainer.get_llm_client()
        return self._client

    def fit(self, manager: Manager) -> None:
        """Trains to the last step. Raises WorkupError where a process of verl's is lost."""
        try:
            with watched():
                self.trainer.fit(manager)
        except RayError as error:
            raise ended(error) from error

    def describe(self) -> None:
        """Writes verl's whole configuration beside the checkpoints."""
        self.folder.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(self.config, self.folder / "verl.yaml")

    def close(self) -> None:
        """Ends workers and servers, so that another session can have the GPUs."""
        atexit.unregister(transfer_queue.close)
        transfer_queue.close()
        self.verl.leave()
