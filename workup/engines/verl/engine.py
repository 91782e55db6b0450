"""The engine on verl: the driver plays and writes, verl's workers hold and update the weights."""

from __future__ import annotations

import asyncio
import atexit
import shutil
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import transfer_queue
from omegaconf import OmegaConf

from workup.disk import whole_folder
from workup.engines import Job
from workup.engines.verl import checkpoints, estimator
from workup.engines.verl.alone import Alone
from workup.engines.verl.cluster import composed, connect
from workup.engines.verl.manager import Manager
from workup.engines.verl.mapping import configuration
from workup.engines.verl.policy import VerlPolicy
from workup.engines.verl.trainer import Hooks, WorkupTrainer
from workup.episode import Sample
from workup.errors import UserError
from workup.models.remote import Known
from workup.models.samplers import How
from workup.ports import Collect, Demonstration, Model, Pair, Scorer

__all__ = ["VerlEngine", "estimator"]  # importing `estimator` registers it with verl


class VerlEngine(Alone):
    """Implements `Engine` for one reinforcement stage.

    The first sample, or the stage, starts verl's workers and servers; they keep running until the
    process ends. Checkpoints are verl's own, in `folder/1-grpo/global_step_N`. `make` builds the
    trainer, `join` connects to Ray.
    """

    def __init__(
        self,
        job: Job,
        make: Callable[[Any, Hooks], WorkupTrainer] = WorkupTrainer,
        join: Callable[[Any], None] = connect,
    ) -> None:
        values = job.settings.model_dump()
        self.folder = (job.folder / "1-grpo").resolve()  # workers start elsewhere
        self.config = composed(configuration(values, job.place, self.folder))
        join(self.config)  # too few machines are told before anything is written
        self.make, self.keep = make, values["save_total_limit"]
        self.known = Known.of(job.place)
        how = How(values["concurrency"], values["dtype"], context=values["sampler_context"])
        self.policy = VerlPolicy(self.known, how, self._client, lambda: self._trained)
        self.on_step: Any = lambda step, metrics: None
        self._stopping = self.stopped = False
        self._trainer: WorkupTrainer | None = None
        self._llm: Any = None
        self._trained = self.done("grpo")  # updates that the weights on the servers have seen
        self._stages = 0

    # --- the policy ---

    def chat(self) -> Model:
        from workup.models.chat import LocalChat

        return LocalChat.over(self.policy, "the policy")

    def scorer(self, name: str) -> Scorer:
        raise UserError(
            f"engine=verl has no {name} scorer yet, which this method's reward asks; train it with "
            "engine=trl"
        )

    @property
    def recipe(self) -> str:
        return repr([version(name) for name in ("verl", "torch", "transformers")])

    def save(self, folder: Path, *, merged: bool = True) -> None:
        """Copies the newest checkpoint's Hugging Face folder."""
        found = checkpoints.whole(self.folder)
        if not found:
            raise UserError(f"{self.folder}: no whole checkpoint to take the policy from")
        with whole_folder(folder) as draft:
            shutil.copytree(found[-1] / "actor" / "huggingface", draft, dirs_exist_ok=True)
            self.known.tokenizer.save_pretrained(draft)

    def load(self, folder: Path) -> str:
        return "engine=verl begins with the weights of its policy"

    # --- stages ---

    def sft(
        self, batches: Iterable[Sequence[Demonstration | Sample]], steps: int, rate: Any
    ) -> None:
        if steps:
            self._refuse("a supervised stage")

    def dpo(self, batches: Iterable[Sequence[Pair]], steps: int) -> None:
        self._refuse("a DPO stage")

    def _refuse(self, what: str) -> NoReturn:
        raise UserError(
            f"engine=verl trains by reinforcement alone, and this method has {what}: train that "
            "with engine=trl, then go on with --policy RUN (docs/cluster.md)"
        )

    def grpo(self, collect: Collect, steps: int) -> None:
        self._stages += 1
        if self._stages > 1:
            self._refuse("a second reinforcement stage")
        if self.stopped or self.done("grpo") >= steps:
            return

        def played(step: int) -> Sequence[Sample]:
            self._trained = step
            return asyncio.run(_awaited(collect, self.policy, step))

        trainer = self._started()
        trainer.fit(Manager(played))
        self._trained = self.done("grpo")
        self.stopped = self._stopping and self._trained < steps

    def done(self, kind: str) -> int:
        found = checkpoints.whole(self.folder) if kind == "grpo" else []
        return checkpoints.step(found[-1]) if found else 0

    def stop(self) -> None:
        self._stopping = True

    # --- verl ---

    def _client(self) -> Any:
        if self._llm is None:
            self._llm = self._started().get_llm_client()
        return self._llm

    def _started(self) -> WorkupTrainer:
        """The trainer with its workers and servers, which the first call starts."""
        if self._trainer is None:
            found = checkpoints.whole(self.folder)
            trainer = self.config.trainer
            trainer.resume_mode = "resume_path" if found else "disable"
            trainer.resume_from_path = str(found[-1]) if found else None
            OmegaConf.resolve(self.config)
            self.folder.mkdir(parents=True, exist_ok=True)
            OmegaConf.save(self.config, self.folder / "verl.yaml")
            transfer_queue.init(self.config.transfer_queue)
            atexit.register(transfer_queue.close)
            hooks = Hooks(self._told, lambda: self._stopping, self.keep)
            self._trainer = self.make(self.config, hooks)
            self._trainer.init()
        return self._trainer

    def _told(self, step: int, metrics: Any) -> None:
        self.on_step(step, metrics)


async def _awaited(collect: Collect, policy: VerlPolicy, step: int) -> Sequence[Sample]:
    return await collect(policy, step)
