"""What all stages' trainers share, and the supervised stages on transformers' own trainer.

GRPO is in `policy`, DPO in `preference`.

The libraries own the optimiser, its schedule, precision, sharding, processes, trackers, checkpoints
and the loss itself. Four things are overridden here: where the data come from (every update asks
for its own), how a batch is cut into micro-batches (so that the gradient does not depend on it),
that only policy tokens are scored, and that a checkpoint appears whole or not at all.

TRL's SFTTrainer is not used: it needs a data set of rows, reads a two-dimensional attention mask
for its token count (a tree's has four), and scores every position.
"""

from __future__ import annotations

import math
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import torch
from accelerate.utils import DistributedType, gather_object
from torch import Tensor
from transformers import PrinterCallback, Trainer
from transformers.utils import logging

from workup.core.errors import UserError, WorkupError
from workup.core.ports import OnStep
from workup.engines.trl.batches import MicroBatch, close, packed_part, split, tree_mask
from workup.engines.trl.damage import seal
from workup.engines.trl.scoring import ScoredTokens
from workup.engines.trl.sharding import WHOLE
from workup.models.lora import Base
from workup.rl.samples import Packed

CHECKPOINT = "checkpoint-"
NAMES = {
    "learning_rate": "lr",
    "clip_ratio/region_mean": "clip_ratio",
    "cispo_clip_ratio": "clip_ratio",
}
KEPT = (
    "loss",
    "grad_norm",
    "learning_rate",
    "kl",
    "entropy",
    "clip_ratio/region_mean",
    "cispo_clip_ratio",
    "margin",
    "preferred",
    "gap_mean",
    "gap_p95",
    "gap_kl",
    "staleness",
)


class EmptyBatches(Sequence[dict[str, Any]]):
    """What the library takes for a loader: `count` empty batches, of which none is held."""

    def __init__(self, count: int) -> None:
        self._places = range(count)

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> EmptyBatches: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | EmptyBatches:
        found = self._places[index]
        return {} if isinstance(found, int) else EmptyBatches(len(found))


@dataclass(frozen=True)
class TrlHooks:
    """How a trainer talks to the engine.

    `period` is how many updates make a step, `keep` how many checkpoints stay. `base` is the model
    that adapters are trained on, where it has a name.
    """

    on_step: OnStep
    stopping: Callable[[], bool]
    period: int
    keep: int
    base: Base | None = None


class StageTrainer(Trainer, ABC):  # type: ignore[misc]
    """What all stages share."""

    def __init__(self, *args: Any, hooks: TrlHooks, **kwargs: Any) -> None:
        self.hooks, self._saving = hooks, False
        super().__init__(*args, **kwargs)
        self.remove_callback(PrinterCallback)
        if self.is_fsdp_enabled:
            raise UserError(WHOLE)

    @abstractmethod
    def parts(self) -> list[MicroBatch]:
        """The micro-batches of the present update, on this process's device."""

    @abstractmethod
    def part_loss(self, model: Any, part: MicroBatch) -> Tensor:
        """The part's share of the loss.

        Over all parts and processes the shares add up to `world` times the batch's loss.
        """

    @property
    def world(self) -> int:
        return int(self.accelerator.num_processes)

    def totals(self, counts: Sequence[int]) -> list[list[int]]:
        """The `counts` of every process, one row per process in rank order."""
        rows: list[list[int]] = gather_object([list(counts)])
        return rows

    def get_train_dataloader(self) -> EmptyBatches:
        return EmptyBatches(self.args.max_steps)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        self.state.save_steps = self.args.save_steps  # a checkpoint brings those it was made with
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
        """Does nothing: a run folder describes itself."""

    def _send_telemetry(self) -> None:
        """Does nothing: no run reports to anyone that it was not told to report to."""

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        super().log(logs, start_time)
        self.state.log_history.clear()  # it would grow with every step
        if "loss" not in logs:
            return
        for name in ("loss", "grad_norm"):
            if not math.isfinite(logs.get(name, 0.0)):
                raise WorkupError(
                    f"update {self.state.global_step}: {name} is {logs[name]}; lower lr or "
                    "max_grad_norm"
                )
        step = self.state.global_step // self.hooks.period
        self.hooks.on_step(
            step, {NAMES.get(name, name): float(logs[name]) for name in KEPT if name in logs}
        )
        # Logging comes after an update and before saving. If one process stops, all stop.
        if any(gather_object([self.hooks.stopping()])):
            self.control.should_save = self.control.should_training_stop = True

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Raises where transformers warns; tied weights are saved once, under their first name."""
        missing = set(load_result.missing_keys) - set(
            getattr(self.model, "_tied_weights_keys", None) or ()
        )
        if missing or load_result.unexpected_keys:
            raise WorkupError(
                "the checkpoint does not fit this model: "
                f"{sorted([*missing, *load_result.unexpected_keys])[:4]}"
            )

    def _get_output_dir(self, trial: Any) -> str:
        return (
            str(Path(self.args.output_dir) / "saving")
            if self._saving
            else str(self.args.output_dir)
        )

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
            if self.hooks.base is not None:
                self.hooks.base.note(folder / "saving" / name)
            seal(folder / "saving" / name)
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
    found = [
        path
        for path in folder.glob(f"{CHECKPOINT}*")
        if path.name.removeprefix(CHECKPOINT).isdigit()
    ]
    return sorted(found, key=updates)


def updates(checkpoint: Path) -> int:
    """How many updates a checkpoint has seen."""
    return int(checkpoint.name.removeprefix(CHECKPOINT))


class ImitationTrainer(StageTrainer):
    """Maximum likelihood of the labelled tokens, averaged over all of the batch's."""

    def __init__(
        self, *args: Any, batches: Iterator[Sequence[Packed]], micro_batch: int, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.batches, self.micro_batch, self.labelled = batches, micro_batch, 1

    def parts(self) -> list[MicroBatch]:
        rows = next(self.batches, None)
        if not rows:
            raise WorkupError(
                f"demonstrations ran out after {self.state.global_step} of {self.args.max_steps} "
                "updates"
            )
        # Rows of similar length need little padding, and rows without branches need no mask.
        chunks = split(rows, self.micro_batch, key=lambda row: (row.branched, len(row.tokens)))
        parts = [
            packed_part(part, self.args.device)
            for chunk in chunks
            for part in close(chunk, lambda row: len(row.tokens))
        ]
        self.labelled = max(
            1, sum(row[0] for row in self.totals([sum(part.tokens for part in parts)]))
        )
        return parts

    def part_loss(self, model: Any, part: MicroBatch) -> Tensor:
        x = part.inputs
        mask = None
        if "segments" in x:
            mask = tree_mask(
                x["segments"], x["reach"], self.model.config._attn_implementation, self.model.dtype
            )
        with self.accelerator.autocast():
            logprobs, _ = model(
                input_ids=x["input_ids"],
                attention_mask=mask,
                position_ids=x.get("position_ids"),
                wanted=ScoredTokens(x["parents"], x["targets"]),
            )
        loss: Tensor = -logprobs.sum() * (self.world / self.labelled)
        return loss
