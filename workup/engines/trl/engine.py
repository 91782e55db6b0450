"""The engine on TRL: one machine or several, CPU or GPU, whole models or adapters."""

from __future__ import annotations

import asyncio
import copy
import gc
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

from accelerate import PartialState
from accelerate.utils import gather_object, set_seed
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import TrainingArguments
from trl import GRPOConfig

from workup.engines.trl.damage import refuse_damaged, refuse_incomplete
from workup.engines.trl.policy import PolicyTrainer
from workup.engines.trl.preference import PreferenceTrainer
from workup.engines.trl.scoring import scoring
from workup.engines.trl.settings import (
    EngineSettings,
    RateSettings,
    plain_arguments,
    policy_arguments,
)
from workup.engines.trl.trainer import (
    Hook,
    Hooks,
    ImitationTrainer,
    StageTrainer,
    checkpoints,
    quietly,
    updates,
)
from workup.episode import Sample
from workup.errors import UserError
from workup.ports import Collect, Demonstration, Pair, Policy
from workup.rl.samples import Writer, rows
from workup.whole import whole_folder

T = TypeVar("T")


class LivePolicy(Policy, Writer, Protocol):
    """A policy that samples from a transformers model which the engine trains in place."""

    model: Any
    tokenizer: Any

    def refresh(self) -> None:
        """Forgets what it computed with the old weights."""
        ...


class TrlEngine:
    """Implements `Engine`.

    Each call of `imitate`, `tune`, `prefer` or `reinforce` is one stage with its own checkpoints.

    A stage's checkpoints lie in `folder/1-imitate/checkpoint-N`, `folder/2-reinforce/checkpoint-N`,
    … in the order of the calls. With `resume`, the same calls in the same order continue: finished
    stages load what they ended with, the unfinished one goes on from its newest checkpoint.
    Training happens on the device where the policy's model lies.

    `on_step(step, metrics)` is called on every process after step 1, 2, …, with loss, grad_norm and
    lr; when reinforcing, also with kl, entropy and clip_ratio; when preferring, with margin and
    preferred. `run` runs a coroutine to its end (asyncio.run, or a Runner's, to keep one event
    loop).
    """

    def __init__(
        self,
        policy: LivePolicy,
        settings: EngineSettings,
        folder: Path,
        *,
        on_step: Hook = lambda step, metrics: None,
        resume: bool = False,
        run: Callable[[Coroutine[Any, Any, Sequence[Sample]]], Sequence[Sample]] = asyncio.run,
    ) -> None:
        self.policy, self.settings, self.folder, self.on_step, self.resume, self.run = (
            policy,
            settings,
            folder,
            on_step,
            resume,
            run,
        )
        self.cpu = next(policy.model.parameters()).device.type == "cpu"
        self._state = PartialState(cpu=self.cpu)
        self._stages = 0
        self._stopping = self.stopped = False
        self.checkpoint: Path | None = None  # the newest one of the present stage
        self.model = _adapted(policy.model, settings)

    # --- processes ---

    @property
    def rank(self) -> int:
        return int(self._state.process_index)

    @property
    def world(self) -> int:
        """How many processes train together."""
        return int(self._state.num_processes)

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def gather(self, values: Sequence[float]) -> Sequence[float]:
        """Everyone's `values`, in rank order; every process must call it."""
        everyone: list[float] = gather_object(list(values))
        return everyone

    def send_to_main(self, value: T) -> list[T]:
        """Everyone's `value` on the main process, nothing on the others; every process must call
        it.
        """
        everyone: list[T] = gather_object([value]) if self.world > 1 else [value]
        return everyone if self.is_main else []

    def save(self, folder: Path) -> None:
        """The main process writes the policy as a complete model folder (adapters merged in); it
        appears whole.
        """
        if not self.is_main:
            return
        model = (
            copy.deepcopy(self.model).merge_and_unload()
            if isinstance(self.model, PeftModel)
            else self.model
        )
        with whole_folder(folder) as draft:
            quietly(model.save_pretrained, draft)
            self.policy.tokenizer.save_pretrained(draft)

    def stop(self) -> None:
        """Ends the present stage after the present step, with a checkpoint; later stages do
        nothing. Safe in a signal handler.
        """
        self._stopping = True

    def done(self, kind: str) -> int:
        """How many steps of the coming stage ("imitate", "tune", "prefer" or "reinforce") an
        earlier session has checkpointed.
        """
        found = checkpoints(self.folder / f"{self._stages + 1}-{kind}") if self.resume else []
        period = self.settings.num_iterations if kind == "reinforce" else 1
        return updates(found[-1]) // period if found else 0

    # --- stages ---

    def imitate(self, batches: Iterable[Sequence[Demonstration]], steps: int) -> None:
        """Trains on this process's share of `steps` batches of demonstrations."""
        self._supervise("imitate", self.settings.sft, batches, steps)

    def tune(self, batches: Iterable[Sequence[Demonstration | Sample]], steps: int) -> None:
        """The same on a method's own data: a sample's tokens are learned as they are, where its
        mask is.
        """
        self._supervise("tune", self.settings.tuning, batches, steps)

    def prefer(self, batches: Iterable[Sequence[Pair]], steps: int) -> None:
        """Trains on this process's share of `steps` batches of pairs (DPO); the reference is the
        policy as it is now.
        """

        def trainer(folder: Path, done: int) -> StageTrainer:
            return PreferenceTrainer(
                model=self.model,
                args=self._plain(self.settings.dpo, folder, steps),
                processing_class=self.policy.tokenizer,
                batches=islice(batches, done, steps),
                beta=self.settings.dpo.beta,
                micro_batch=self.settings.micro_batch,
                hooks=self._hooks(1),
            )

        self._fit("prefer", steps, trainer)

    def reinforce(self, collect: Collect, steps: int) -> None:
        """Trains on `steps` batches; `collect(policy, step)`, step from 0, brings this process's
        share of each.
        """
        settings, mu = self.settings, self.settings.num_iterations

        def samples(step: int) -> Sequence[Sample]:
            self.policy.refresh()
            return self.run(_awaited(collect, self.policy, step))

        def trainer(folder: Path, done: int) -> StageTrainer:
            adapters = isinstance(self.model, PeftModel)
            arguments = policy_arguments(settings, folder, steps, cpu=self.cpu)
            return PolicyTrainer(
                model=self.model,
                # With adapters TRL copies the present one as the reference; without, it would
                # reload a model by name.
                args=_one_device(GRPOConfig(**arguments, beta=settings.beta if adapters else 0.0)),
                processing_class=self.policy.tokenizer,
                collect=samples,
                reference=_frozen(self.model) if settings.beta and not adapters else None,
                beta=settings.beta,
                micro_batch=settings.micro_batch,
                hooks=self._hooks(mu),
            )

        self._fit("reinforce", steps * mu, trainer)

    def _supervise(
        self,
        kind: str,
        rate: RateSettings,
        batches: Iterable[Sequence[Demonstration | Sample]],
        steps: int,
    ) -> None:
        def trainer(folder: Path, done: int) -> StageTrainer:
            return ImitationTrainer(
                model=self.model,
                args=self._plain(rate, folder, steps),
                processing_class=self.policy.tokenizer,
                batches=(rows(batch, self.policy) for batch in islice(batches, done, None)),
                micro_batch=self.settings.micro_batch,
                hooks=self._hooks(1),
            )

        self._fit(kind, steps, trainer)

    def _plain(self, rate: RateSettings, folder: Path, steps: int) -> Any:
        return _one_device(
            TrainingArguments(**plain_arguments(self.settings, rate, folder, steps, cpu=self.cpu))
        )

    def _fit(self, kind: str, total: int, make: Callable[[Path, int], StageTrainer]) -> None:
        self._stages += 1
        if self.stopped or total == 0:
            return
        folder = self.folder / f"{self._stages}-{kind}"
        found = checkpoints(folder)
        if found and not self.resume:
            raise UserError(
                f"{folder}: holds the checkpoints of an earlier run; resume it, or choose "
                "another folder"
            )
        if found:
            refuse_incomplete(found[-1])
        done = updates(found[-1]) if found else 0
        base = self.model.get_base_model() if isinstance(self.model, PeftModel) else self.model
        with scoring(base):
            trainer = make(folder, done)
            try:
                if done >= total:
                    trainer._load_from_checkpoint(str(found[-1]))
                else:
                    with _libraries_frozen():
                        trainer.train(resume_from_checkpoint=str(found[-1]) if found else None)
            except Exception:
                if found and trainer.state.global_step <= done:  # it may be what was loaded
                    refuse_damaged(found[-1])
                raise
        self.stopped = self._stopping and trainer.state.global_step < total and done < total
        self.checkpoint = checkpoints(folder)[-1]
        self._settle()

    def _settle(self) -> None:
        """Leaves the model as a sampler wants it, and nothing of the trainer behind."""
        if isinstance(self.model, PeftModel) and "ref" in self.model.peft_config:
            self.model.delete_adapter("ref")
        for model in (self.model, self.policy.model):
            # Else the next stage's trainer would not wrap the model again.
            vars(model).pop("_is_accelerate_prepared", None)
            vars(model).pop("_original_forward", None)
        self.model.eval()
        self.policy.refresh()
        gc.collect()  # a data-parallel wrapper lets go of the gradients only when it is collected

    def _hooks(self, period: int) -> Hooks:
        return Hooks(self.on_step, lambda: self._stopping, period, self.settings.save_total_limit)


async def _awaited(collect: Collect, policy: Policy, step: int) -> Sequence[Sample]:
    return await collect(policy, step)


def _adapted(model: Any, settings: EngineSettings) -> Any:
    if settings.lora is None:
        return model
    lora = settings.lora
    targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
    set_seed(settings.seed)
    adapted = get_peft_model(
        model,
        LoraConfig(r=lora.r, lora_alpha=lora.alpha, target_modules=targets, task_type="CAUSAL_LM"),
    )
    if settings.gradient_checkpointing:
        adapted.enable_input_require_grads()
    return adapted


def _frozen(model: Any) -> Any:
    """A copy of the policy as it is now: the reference of the KL term."""
    return copy.deepcopy(model).requires_grad_(False).eval()


def _one_device(arguments: Any) -> Any:
    """One process trains on one device; several GPUs need several (`accelerate launch`)."""
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


@contextmanager
def _libraries_frozen() -> Iterator[None]:
    """Keeps what is alive now out of garbage collections: walking through the libraries' objects
    takes 0.2 s each time.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
