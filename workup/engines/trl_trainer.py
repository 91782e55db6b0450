"""The two trainers: transformers' for the supervised stage, TRL's GRPO for the reinforcement stage.

The libraries own the optimiser, its schedule, precision, sharding, processes, trackers, checkpoints and the loss itself. What
is overridden here: where the data come from (one update asks for its own), how a batch is cut into micro-batches (so that the
gradient does not depend on it), that only policy tokens are scored, and that a checkpoint appears whole or not at all.

TRL's SFTTrainer is not used: it wants a data set of rows, reads a two-dimensional attention mask for its token count (a
tree's has four), and scores every position.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import DistributedType, gather_object
from datasets import Dataset
from torch import Tensor
from transformers import PrinterCallback, Trainer
from transformers.utils import logging
from trl import GRPOTrainer
from trl.trainer.utils import use_adapter

from workup.engines.trl_batches import BLANK, Part, packed_part, policy_part, split, tree_mask
from workup.engines.trl_scoring import Wanted
from workup.episode import Sample
from workup.errors import UserError, WorkupError
from workup.samples import Packed

CHECKPOINT = "checkpoint-"
NAMES = {"learning_rate": "lr", "clip_ratio/region_mean": "clip_ratio"}
KEPT = ("loss", "grad_norm", "learning_rate", "kl", "entropy", "clip_ratio/region_mean")
# By what share of the batch a micro-batch's loss counts, given how TRL averages within it; the others divide by the whole
# batch's tokens themselves.
SHARE = {"grpo": "sequences", "sapo": "sequences", "dr_grpo": "sequences", "bnpo": "tokens"}
FINE = 1e-4  # largest difference of a token's log-probability between sampler and trainer, in nats, in float32
COARSE = 2e-2  # the same in half precision, as a mean over the tokens

Hook = Callable[[int, dict[str, float]], None]


@dataclass(frozen=True)
class Hooks:
    """How a trainer talks to the engine. `period` is how many updates make a step, `keep` how many checkpoints stay."""

    on_step: Hook
    stopping: Callable[[], bool]
    period: int
    keep: int


class StageTrainer(Trainer):  # type: ignore[misc]
    """What both stages share."""

    def __init__(self, *args: Any, hooks: Hooks, **kwargs: Any) -> None:
        self.hooks, self._saving = hooks, False
        super().__init__(*args, **kwargs)
        self.remove_callback(PrinterCallback)
        if self.is_fsdp_enabled:
            raise UserError("the sampler needs the whole model on every process: use data parallelism (or LoRA), not FSDP")

    def parts(self) -> list[Part]:
        """The micro-batches of the present update, on this process's device."""
        raise NotImplementedError

    def part_loss(self, model: Any, part: Part) -> Tensor:
        """The part's share of the loss; over all parts and processes they add up to `world` times the batch's loss."""
        raise NotImplementedError

    @property
    def world(self) -> int:
        return int(self.accelerator.num_processes)

    def totals(self, counts: Sequence[int]) -> list[list[int]]:
        """Every process's `counts`."""
        rows: list[list[int]] = gather_object([list(counts)])
        return rows

    def get_train_dataloader(self) -> list[dict[str, Any]]:
        return [{}] * self.args.max_steps

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        model.train()
        total = torch.zeros((), device=self.args.device)
        parts = self.parts()
        for k, part in enumerate(parts):
            last = k == len(parts) - 1
            deepspeed = self.accelerator.distributed_type == DistributedType.DEEPSPEED
            self.accelerator.gradient_state._set_sync_gradients(last)
            with nullcontext() if last or deepspeed else self.accelerator.no_sync(model):
                loss = self.part_loss(model, part)
                self.accelerator.backward(loss)
            total += loss.detach()
        return total

    def floating_point_ops(self, inputs: Any) -> int:
        return 0

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: a run folder describes itself."""

    def _send_telemetry(self) -> None:
        """Nothing: no run reports to anyone it was not told to report to."""

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        super().log(logs, start_time)
        self.state.log_history.clear()  # it would grow with every step
        if "loss" not in logs:
            return
        for name in ("loss", "grad_norm"):
            if not math.isfinite(logs.get(name, 0.0)):
                raise WorkupError(f"update {self.state.global_step}: {name} is {logs[name]}; lower lr or max_grad_norm")
        step = self.state.global_step // self.hooks.period
        self.hooks.on_step(step, {NAMES.get(name, name): float(logs[name]) for name in KEPT if name in logs})
        # Logging comes after an update and before saving. Any process's wish to stop is everyone's.
        if any(gather_object([self.hooks.stopping()])):
            self.control.should_save = self.control.should_training_stop = True

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Raises where transformers warns; tied weights are saved once, under their first name."""
        missing = set(load_result.missing_keys) - set(getattr(self.model, "_tied_weights_keys", None) or ())
        if missing or load_result.unexpected_keys:
            raise WorkupError(f"the checkpoint does not fit this model: {sorted([*missing, *load_result.unexpected_keys])[:4]}")

    def _get_output_dir(self, trial: Any) -> str:
        return str(Path(self.args.output_dir) / "saving") if self._saving else str(self.args.output_dir)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Writes beside, then renames: a kill leaves the old checkpoint or the new one."""
        folder = Path(self.args.output_dir)
        name = f"{CHECKPOINT}{self.state.global_step}"
        if (folder / name).exists():
            return
        self._saving = True
        if self.args.should_save:
            shutil.rmtree(self._get_output_dir(trial), ignore_errors=True)
        self.accelerator.wait_for_everyone()
        quietly(super()._save_checkpoint, model, trial)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            (folder / "saving" / name).rename(folder / name)
            (folder / "saving").rmdir()
            for old in checkpoints(folder)[: -self.hooks.keep]:
                shutil.rmtree(old)
        self._saving = False
        self.accelerator.wait_for_everyone()


def quietly(save: Callable[..., None], *arguments: Any) -> None:
    """Calls `save` without the progress bar that transformers shows for every file it writes."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        save(*arguments)
    finally:
        if shown:
            logging.enable_progress_bar()


def checkpoints(folder: Path) -> list[Path]:
    """A stage's whole checkpoints, oldest first."""
    found = [path for path in folder.glob(f"{CHECKPOINT}*") if path.name.removeprefix(CHECKPOINT).isdigit()]
    return sorted(found, key=updates)


def updates(checkpoint: Path) -> int:
    """How many updates a checkpoint has seen."""
    return int(checkpoint.name.removeprefix(CHECKPOINT))


class ImitationTrainer(StageTrainer):
    """Maximum likelihood of the labelled tokens, averaged over all of the batch's."""

    def __init__(self, *args: Any, batches: Iterator[Sequence[Packed]], micro_batch: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.batches, self.micro_batch, self.labelled = batches, micro_batch, 1

    def parts(self) -> list[Part]:
        rows = next(self.batches, None)
        if not rows:
            raise WorkupError(f"demonstrations ran out after {self.state.global_step} of {self.args.max_steps} updates")
        # Of like shape, to save padding; and a row without branches needs no mask among its like.
        chunks = split(rows, self.micro_batch, key=lambda row: (row.branched, len(row.tokens)))
        parts = [packed_part(chunk, self.args.device) for chunk in chunks]
        self.labelled = max(1, sum(row[0] for row in self.totals([sum(part.tokens for part in parts)])))
        return parts

    def part_loss(self, model: Any, part: Part) -> Tensor:
        x = part.inputs
        mask = None
        if "segments" in x:
            mask = tree_mask(x["segments"], x["reach"], self.model.config._attn_implementation, self.model.dtype)
        with self.accelerator.autocast():
            logprobs, _ = model(
                input_ids=x["input_ids"],
                attention_mask=mask,
                position_ids=x.get("position_ids"),
                wanted=Wanted(x["parents"], x["targets"]),
            )
        loss: Tensor = -logprobs.sum() * (self.world / self.labelled)
        return loss


class PolicyTrainer(StageTrainer, GRPOTrainer):  # type: ignore[misc]
    """GRPO's clipped loss (CR-10, CM-12), as TRL computes it, on samples and per-token advantages that come from outside.

    `reference` is the frozen model of the KL term; None without one, or when it is the adapter "ref" of the same model.
    """

    def __init__(
        self, *, collect: Callable[[int], Sequence[Sample]], reference: Any, beta: float, micro_batch: int, **kwargs: Any
    ) -> None:
        rows = Dataset.from_dict({"prompt": [""]})  # never read, but TRL wants one
        super().__init__(reward_funcs=_no_reward, train_dataset=rows, **kwargs)
        self.collect, self.ref_model, self.beta, self.micro_batch = collect, reference, beta, micro_batch
        self._parts: list[Part] = []
        self._totals = {"sequences": 1, "tokens": 1}
        self._checked = False

    def parts(self) -> list[Part]:
        step, repeat = divmod(self.state.global_step, self.hooks.period)
        if repeat == 0:
            self.model.eval()
            samples = list(self.collect(step))
            self.model.train()
            self._parts = self._cut(samples, step)
            self._check(self._parts[-1])
            if self.beta:
                for part in self._parts:
                    part.inputs["ref_per_token_logps"] = self._reference(part)
        return self._parts

    def _cut(self, samples: list[Sample], step: int) -> list[Part]:
        rows = self.totals([len(samples), sum(sum(s.mask) for s in samples)])
        self._totals = {"sequences": sum(row[0] for row in rows), "tokens": sum(row[1] for row in rows)}
        if not self._totals["tokens"]:
            raise WorkupError(f"step {step + 1}: not one episode to train on; all of them failed")
        # TRL's metrics are gathered per micro-batch: every process must have as many, of the same size.
        samples += [BLANK] * (max(row[0] for row in rows) - len(samples))
        chunks = split(samples, self.micro_batch, key=lambda s: len(s.tokens))
        parts = [policy_part(chunk, self.args.device) for chunk in chunks]
        for part in parts:
            part.inputs["num_items_in_batch"] = torch.tensor(float(self._totals["tokens"]), device=self.args.device)
        return parts

    def part_loss(self, model: Any, part: Part) -> Tensor:
        shares = {"sequences": part.sequences, "tokens": part.tokens}
        share = {unit: self.world * count / self._totals[unit] for unit, count in shares.items()} | {"": 1.0}
        weight = share[SHARE.get(self.loss_type, "")]
        # TRL's bonus is a mean over the micro-batch's tokens: it counts by its share of those.
        self.entropy_coef = self.args.entropy_coef * share["tokens"] / weight if weight else 0.0
        loss: Tensor = weight * self._compute_loss(model, part.inputs)
        self._metrics["train"].pop("entropy_coef", None)
        return loss

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int, compute_entropy: bool = False, **_: Any
    ) -> tuple[Tensor, Tensor | None, None]:
        """Log-probabilities and entropies (B, logits_to_keep), 0 where `attention_mask` is: there the environment speaks."""
        rows, columns = attention_mask.nonzero(as_tuple=True)
        wanted = Wanted(
            rows * input_ids.shape[1] + columns - 1,
            input_ids[rows, columns],
            self.temperature,
            entropy=compute_entropy,
            differentiable=self._entropy_bonus_enabled,
        )
        with self.accelerator.autocast():
            found = model(input_ids=input_ids, wanted=wanted)

        def spread(values: Tensor) -> Tensor:
            empty = torch.zeros(input_ids.shape, device=values.device, dtype=values.dtype)
            return empty.index_put((rows, columns), values)[:, -logits_to_keep:]

        return spread(found[0]), spread(found[1]) if compute_entropy else None, None

    @torch.no_grad()
    def _logprobs(self, model: Any, part: Part) -> Tensor:
        x = part.inputs
        ids = torch.cat([x["prompt_ids"], x["completion_ids"]], dim=1)
        mask = torch.cat([x["prompt_mask"], x["completion_mask"]], dim=1)
        return self._get_per_token_logps_and_entropies(model, ids, mask, ids.shape[1] - 1)[0]

    def _reference(self, part: Part) -> Tensor:
        if self.ref_model is not None:
            return self._logprobs(self.ref_model, part)
        with use_adapter(self.model, adapter_name="ref"):
            return self._logprobs(self.model, part)

    def _check(self, part: Part) -> None:
        """Once per run: sampler and trainer, at the same weights, must agree; a misalignment shows nowhere else."""
        if self._checked or not part.tokens:
            return
        self._checked = True
        gap = (self._logprobs(self.model, part) - part.inputs["old_per_token_logps"]).abs()
        exact = self.model.dtype == torch.float32 and not self.args.bf16
        found, limit = (gap.max().item(), FINE) if exact else (gap.sum().item() / part.tokens, COARSE)
        if not found <= limit:
            raise WorkupError(
                f"the trainer's log-probabilities differ from the sampler's by {found:.2g} nats (limit {limit:g}): episodes "
                f"must come from this very model, without top-p, top-k or masks, at temperature {self.temperature:g}"
            )


def _no_reward(**_: Any) -> list[float]:
    raise AssertionError("rewards are not TRL's business here")
