"""verl's synchronous trainer, told what only we know: how many rows are real, and when to stop."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import transfer_queue
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.metric import reduce_metrics
from verl.utils.py_functional import rename_dict
from verl.workers.utils.padding import response_from_nested

from workup.core.episode import Sample
from workup.core.errors import WorkupError
from workup.core.ports import OnStep
from workup.engines.verl import checkpoints, losses
from workup.engines.verl.manager import PLACE, put
from workup.engines.verl.rows import lessons

SCORED = "scored"  # the partition of TransferQueue with answers that the reference reads
MICRO = "micro_batch_size_per_gpu"  # verl's name of it beside a batch
NAMES = {
    "actor/loss": "loss",
    "actor/grad_norm": "grad_norm",
    "actor/lr": "lr",
    "actor/kl": "kl",
    "actor/entropy": "entropy",
    "actor/clip_ratio": "clip_ratio",
    "gap_mean": "gap_mean",
    "actor/margin": "margin",
    "actor/preferred": "preferred",
    "timing_s/update_actor": "update_seconds",
}


@dataclass(frozen=True)
class VerlHooks:
    """How the trainer talks to the engine; `keep` is how many checkpoints stay."""

    on_step: OnStep
    stopping: Callable[[], bool]
    keep: int


class WorkupTrainer(PPOTrainerSync):  # type: ignore[misc]
    """Differs from verl's trainer in six things.

    A step is one update per iteration over all of its rows, however many episodes failed. The loss
    is divided by the number of real rows, not by that of a batch without failures. A step's metrics
    are reported before its checkpoint is written. A checkpoint counts when it is whole, and old
    ones are removed after that. Rows keep the order in which they were made, so that a step played
    again is the same but for rounding.
    """

    def __init__(self, config: Any, hooks: VerlHooks) -> None:
        self.hooks = hooks
        self.total_training_steps: int
        self._played = self._micro = 1  # rows of the present step, and of its micro-batches
        actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
        self.loss: Any = partial(losses.reinforced, config=actor)
        super().__init__(config)

    def init(self) -> None:
        super().init()
        self.actor_rollout_wg.set_loss_fn(self.loss)

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, float]) -> Any:
        batch = super().step(metrics, timing_raw)
        timed = {f"timing_s/{name}": seconds for name, seconds in timing_raw.items()}
        self.hooks.on_step(self.global_steps, told(metrics | timed, self.global_steps))
        return batch

    def publish(self) -> None:
        """Brings the new weights to the servers."""
        super().on_step_end()

    def on_step_end(self) -> None:
        self.publish()
        if self.hooks.stopping() and self.global_steps < self.total_training_steps:
            if not (self._folder(self.global_steps) / checkpoints.WHOLE).is_file():
                self._save_checkpoint()
            self.total_training_steps = self.global_steps

    def _balance_batch(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        self._played = len(batch.keys)
        batch.reorder(sorted(range(len(batch.keys)), key=lambda k: batch.tags[k][PLACE]))
        return super()._balance_batch(batch, *args, **kwargs)

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        # verl cuts a worker's rows into equal micro-batches of a given size, or stops.
        limit = self.config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu
        self._micro = micro_batch(self._played, dp_size, limit)
        return dp_size * self._micro

    def _compute_old_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        batch.extra_info[MICRO] = self._micro
        batch = super()._compute_old_log_prob(batch, metrics)
        if "actor/entropy" in metrics:  # verl averaged it as it averages the loss
            metrics["actor/entropy"] = self._mean(batch, "entropy")
        if not self.config.algorithm.rollout_correction.bypass_mode:
            # verl's own figure is a difference of probabilities, not of their logarithms.
            metrics["gap_mean"] = self._mean(batch, "old_log_probs", "rollout_log_probs")
        return batch

    def _mean(self, batch: Any, name: str, less: str | None = None) -> float:
        """The mean over all policy tokens of a field of the rows in TransferQueue.

        With `less`, another field, it is the mean size of their difference.
        """
        names = [name, "response_mask", *([less] if less else [])]
        data = transfer_queue.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=names
        )
        values, mask, *other = (data[each].to_padded_tensor(0) for each in names)
        if other:
            values = (values - other[0]).abs()
        return float((values * mask).sum() / mask.sum())

    def _compute_ref_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        batch.extra_info[MICRO] = self._micro
        return super()._compute_ref_log_prob(batch, metrics)

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        actor = self.config.actor_rollout_ref.actor
        batch.extra_info.update(
            calculate_entropy=bool(actor.calculate_entropy or actor.entropy_coeff),
            distillation_use_topk=False,
            distillation_only=False,
            # A mean over sequences is over those that were played.
            global_batch_size=sum(not tag.get("is_padding", False) for tag in batch.tags),
            mini_batch_size=len(batch.keys),
            micro_batch_size_per_gpu=self._micro,
            epochs=actor.ppo_epochs,
            seed=actor.data_loader_seed,
            dataloader_kwargs={"shuffle": False},
            temperature=self.config.actor_rollout_ref.rollout.temperature,
        )
        output = self.actor_rollout_wg.update_actor(batch)
        found = rename_dict(output["metrics"], "actor/")
        found["perf/mfu/actor"] = found.pop("actor/mfu")
        metrics.update(reduce_metrics(found))
        return batch

    def reference(self, samples: Sequence[Sample]) -> list[float]:
        """log P of the labelled tokens of each sample under verl's frozen reference, in nats."""
        workers = max(self.actor_rollout_wg._query_dispatch_info("actor")) + 1
        limit = self.config.actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu
        micro = micro_batch(len(samples), workers, limit)
        real = put(lessons(samples, uuid4().hex, self.global_steps), SCORED)
        batch = upsample_batch_to_divisible_size(real, workers * micro, self.tokenizer.eos_token_id)
        batch.extra_info.update(
            {"calculate_entropy": False, "compute_loss": False, "temperature": 1.0, MICRO: micro}
        )
        if self.ref_in_actor:  # without its adapters the actor is what the stage began with
            batch.extra_info["no_lora_adapter"] = True
            self.actor_rollout_wg.compute_log_prob(batch)
        else:
            self.ref_policy_wg.compute_ref_log_prob(batch)
        data = transfer_queue.kv_batch_get(
            keys=real.keys, partition_id=SCORED, select_fields=["log_probs", "response_mask"]
        )
        transfer_queue.kv_clear(keys=batch.keys, partition_id=SCORED)
        found = response_from_nested(data["log_probs"], data["response_mask"])
        return [float(row.double().sum()) for row in found.unbind()]

    def _save_checkpoint(self) -> None:
        super()._save_checkpoint()
        checkpoints.seal(self._folder(self.global_steps), self.global_steps)
        checkpoints.prune(Path(self.config.trainer.default_local_dir), self.hooks.keep)

    def _folder(self, step: int) -> Path:
        return Path(self.config.trainer.default_local_dir) / f"{checkpoints.PREFIX}{step}"


def micro_batch(rows: int, workers: int, limit: int) -> int:
    """Rows of a micro-batch, at most `limit`, so that few empty rows make all of them equal.

    Example: 17 rows on 2 workers with at most 4: each worker has 9 or 8, in three micro-batches of
    3; one row is empty.
    """
    share = -(-rows // workers)
    return -(-share // -(-share // limit))


def told(metrics: Mapping[str, Any], step: int) -> dict[str, float]:
    """verl's metrics of an update by our names. Raises WorkupError where the loss is no number."""
    found = {
        name: float(metrics[theirs])
        for theirs, name in {**{f"actor/{k}": v for k, v in NAMES.items()}, **NAMES}.items()
        if theirs in metrics
    }
    for name in ("loss", "grad_norm"):
        if not math.isfinite(found.get(name, 0.0)):
            raise WorkupError(f"update {step}: {name} is {found[name]}; lower lr or max_grad_norm")
    return found
