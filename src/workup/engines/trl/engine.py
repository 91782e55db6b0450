"""The engine on TRL: one machine or several, CPU or GPU, whole models or adapters."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from accelerate.utils import set_seed
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import SafetensorError
from safetensors.torch import load_model
from transformers import TrainingArguments
from transformers.utils import SAFE_WEIGHTS_NAME
from trl import GRPOConfig

from workup.core.disk import whole_folder
from workup.core.episode import Sample
from workup.core.errors import UserError
from workup.core.ports import (
    REFERENCE,
    Collect,
    Demonstration,
    LivePolicy,
    Model,
    OnStep,
    Pair,
    Scorer,
)
from workup.engines.settings import EngineSettings, RateSettings
from workup.engines.trl.accelerated import AccelerateProcesses
from workup.engines.trl.arguments import plain_arguments, policy_arguments
from workup.engines.trl.damage import refuse_damaged, refuse_incomplete
from workup.engines.trl.openings import attending
from workup.engines.trl.playing import CopiedPolicy, PlayedSteps
from workup.engines.trl.policy import Correction, PolicyTrainer
from workup.engines.trl.preference import PreferenceTrainer
from workup.engines.trl.scoring import scoring
from workup.engines.trl.trainer import (
    ImitationTrainer,
    StageTrainer,
    TrlHooks,
    checkpoints,
    quietly,
    updates,
)
from workup.models.chat import LocalChat
from workup.models.local import LocalPolicy
from workup.models.lora import Base, refuse_other, write
from workup.models.scorer import LocalScorer
from workup.rl.samples import rows


class Following(LivePolicy, Protocol):
    """A policy that samples with the weights of `model`, which the engine trains in place.

    Its own copy of them, if it has one, is renewed by `refresh`.
    """

    model: Any  # a causal language model of transformers
    tokenizer: Any


class TrlEngine:
    """Implements `Engine` with the trainers of transformers and TRL.

    A stage's checkpoints are in `folder/1-sft/checkpoint-N`, `folder/2-grpo/checkpoint-N`, … in the
    order of the calls; without `resume` none may be there. The device is that of the policy's
    model.

    `on_step(step, metrics)` is called on every process after step 1, 2, … of a stage, with loss,
    grad_norm and lr; by `grpo` also with kl, entropy, clip_ratio (but for sapo, which clips
    nothing), the gap between sampler and trainer (`gap_mean`, `gap_p95`, `gap_kl`) and, with
    `ahead`, staleness; by `dpo` with margin and preferred.

    `place` is the folder or hub id that the policy's weights were read from. With it adapters are
    saved alone and name that model; without it, and with `lora.merged`, they are saved merged.
    """

    def __init__(
        self,
        policy: Following,
        settings: EngineSettings,
        folder: Path,
        *,
        on_step: OnStep = lambda step, metrics: None,
        resume: bool = False,
        place: str = "",
    ) -> None:
        self.policy, self.settings = policy, settings
        self.folder, self.on_step, self.resume = folder, on_step, resume
        self.cpu = next(policy.model.parameters()).device.type == "cpu"
        self.processes = AccelerateProcesses(cpu=self.cpu)
        self._stages = 0
        self._stopping = self.stopped = False
        self.checkpoint: Path | None = None  # the newest one of the present stage
        self._base = None
        if settings.lora is not None and place:
            self._base = Base.of(place, str(policy.model.dtype).removeprefix("torch."))
        self.model = _adapted(policy.model, settings)

    # --- the policy ---

    @property
    def live(self) -> TrlEngine:
        return self

    @property
    def local(self) -> LocalPolicy:
        """The policy on the trained module itself, whichever sampler plays the episodes."""
        policy = self.policy
        if isinstance(policy, LocalPolicy):
            return policy
        return LocalPolicy(policy.model, policy.tokenizer)

    def chat(self) -> Model:
        # A new one for every call: it caches what it computed with the weights of that time.
        return LocalChat(self.policy.model, self.policy.tokenizer, "the policy")

    def scorer(self, name: str) -> Scorer:
        return LocalScorer.frozen(self.local) if name == REFERENCE else LocalScorer(self.local)

    def save(self, folder: Path, *, merged: bool = True) -> None:
        if not self.processes.is_main:
            return
        model, lora = self.policy.model, self.settings.lora
        with whole_folder(folder) as draft:
            self.policy.tokenizer.save_pretrained(draft)
            if merged and self._base is not None and lora is not None and not lora.merged:
                quietly(write, self.model, self._base, draft)
                return
            if merged and isinstance(self.model, PeftModel):
                model = copy.deepcopy(self.model).merge_and_unload()
            quietly(model.save_pretrained, draft)

    def load(self, folder: Path) -> str:
        model = self.policy.model
        before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
        try:
            load_model(model, str(folder / SAFE_WEIGHTS_NAME))
            why = ""
        except (RuntimeError, SafetensorError, OSError) as error:
            why = " ".join(str(error).split())[:200]
        if all(self.processes.all_gather([not why])):
            self.policy.refresh()
            return ""
        model.load_state_dict(before)  # the load may have failed halfway
        return why or "another process could not take them"

    @property
    def recipe(self) -> str:
        tokenizer = self.policy.tokenizer.backend_tokenizer.to_str()
        libraries = [version(name) for name in ("torch", "transformers", "trl", "peft")]
        device = next(self.policy.model.parameters()).device.type
        return repr((self.processes.world, device, libraries, tokenizer))

    # --- stages ---

    def stop(self) -> None:
        self._stopping = True

    def done(self, kind: str) -> int:
        found = checkpoints(self.folder / f"{self._stages + 1}-{kind}") if self.resume else []
        period = self.settings.num_iterations if kind == "grpo" else 1
        return updates(found[-1]) // period if found else 0

    def sft(
        self,
        batches: Iterable[Sequence[Demonstration | Sample]],
        steps: int,
        rate: RateSettings | None = None,
    ) -> None:
        def trainer(folder: Path, done: int) -> StageTrainer:
            return ImitationTrainer(
                model=self.model,
                args=self._plain(rate or self.settings.sft, folder, steps),
                processing_class=self.policy.tokenizer,
                batches=(rows(batch, self.policy) for batch in islice(batches, done, None)),
                micro_batch=self.settings.micro_batch,
                hooks=self._hooks(1),
            )

        self._fit("sft", steps, trainer)

    def dpo(self, batches: Iterable[Sequence[Pair]], steps: int) -> None:
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

        self._fit("dpo", steps, trainer)

    def grpo(self, collect: Collect, steps: int) -> None:
        settings, mu = self.settings, self.settings.num_iterations
        own, policy = isinstance(self.policy, LocalPolicy), self.policy
        if settings.ahead and isinstance(policy, LocalPolicy):
            policy = CopiedPolicy(policy)
        playing = PlayedSteps(collect, policy, steps, ahead=bool(settings.ahead))

        def trainer(folder: Path, done: int) -> StageTrainer:
            adapters = isinstance(self.model, PeftModel)
            reference = None  # of the KL term: a copy of the policy as the stage begins
            if settings.beta and not adapters:
                reference = copy.deepcopy(self.model).requires_grad_(False).eval()
            arguments = policy_arguments(settings, folder, steps, cpu=self.cpu)
            return PolicyTrainer(
                model=self.model,
                # With adapters TRL copies the present one as the reference; without, it would
                # reload a model by name.
                args=_one_device(GRPOConfig(**arguments, beta=settings.beta if adapters else 0.0)),
                processing_class=self.policy.tokenizer,
                playing=playing,
                reference=reference,
                beta=settings.beta,
                micro_batch=settings.micro_batch,
                correction=Correction(own, settings.importance_cap),
                hooks=self._hooks(mu),
            )

        with closing(playing):
            self._fit("grpo", steps * mu, trainer)

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
            if self._base is not None:
                refuse_other(found[-1], self._base)
        done = updates(found[-1]) if found else 0
        base = self.model.get_base_model() if isinstance(self.model, PeftModel) else self.model
        with scoring(base), attending():
            trainer = make(folder, done)
            try:
                if done >= total:
                    trainer._load_from_checkpoint(str(found[-1]))
                else:
                    with _libraries_frozen():
                        trainer.train(resume_from_checkpoint=str(found[-1]) if found else None)
            except Exception:
                # The checkpoint that was loaded may be the cause.
                if found and trainer.state.global_step <= done:
                    refuse_damaged(found[-1])
                raise
        # As all processes heard it, whichever was asked to stop.
        halted = trainer.control.should_training_stop and trainer.state.global_step < total
        self.stopped = halted and done < total
        self.checkpoint = checkpoints(folder)[-1]
        self._settle()

    def _settle(self) -> None:
        """Leaves the model as a sampler needs it, without the trainer's changes."""
        if isinstance(self.model, PeftModel) and "ref" in self.model.peft_config:
            self.model.delete_adapter("ref")
        for model in (self.model, self.policy.model):
            # Otherwise the next stage's trainer would not wrap the model again.
            vars(model).pop("_is_accelerate_prepared", None)
            vars(model).pop("_original_forward", None)
        self.model.eval()
        self.policy.refresh()
        gc.collect()  # a data-parallel wrapper frees the gradients only when it is collected

    def _hooks(self, period: int) -> TrlHooks:
        keep = self.settings.save_total_limit
        return TrlHooks(self.on_step, lambda: self._stopping, period, keep, self._base)


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


def _one_device(arguments: Any) -> Any:
    """One process trains on one device; several GPUs need several (`accelerate launch`)."""
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


@contextmanager
def _libraries_frozen() -> Iterator[None]:
    """A context in which objects alive now are left out of garbage collections.

    A collection over the libraries' objects takes 0.2 s. A program that has frozen its objects
    itself keeps them frozen: `gc.unfreeze` cannot tell them from ours.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
