"""Supervised and DPO stages by verl's workers: what is learned is given, and nothing is sampled."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions

from workup.engines.verl import losses
from workup.engines.verl.rows import place
from workup.engines.verl.trainer import VerlHooks, WorkupTrainer, micro_batch


class VerlImitation(WorkupTrainer):
    """verl's trainer with the supervised loss, and without servers: no GPU is set aside for them.

    Rows come from a `Manager`, as those of a reinforcement stage do.
    """

    _enable_hybrid_replicas = False  # verl's name for servers beside the workers

    def __init__(self, config: Any, hooks: VerlHooks) -> None:
        super().__init__(config, hooks)
        self.loss = losses.supervised

    def on_init_end(self) -> None:
        """Does nothing: no server waits for weights."""

    def on_sample_end(self) -> None:
        """Does nothing: no server has to sleep."""

    def publish(self) -> None:
        """Does nothing, as `on_init_end`."""


class VerlPreference(VerlImitation):
    """verl's trainer with DPO's loss. The two rows of a pair stay in one micro-batch."""

    def __init__(self, config: Any, hooks: VerlHooks, beta: float) -> None:
        super().__init__(config, hooks)
        self.loss = partial(losses.preference, beta=beta)

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        limit = self.config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu
        self._micro = 2 * micro_batch(self._played // 2, dp_size, max(1, limit // 2))
        return dp_size * self._micro

    def _balance_batch(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        batch = super()._balance_batch(batch, *args, **kwargs)
        workers = max(self.actor_rollout_wg._dispatch_info["actor"]) + 1
        batch.reorder(paired(batch.keys, batch.tags, workers))
        return batch


def paired(keys: Sequence[str], tags: Sequence[dict[str, Any]], workers: int) -> list[int]:
    """An order of the rows with pairs side by side, and equally long work for each worker.

    A pair's rows were numbered one after the other. Empty rows come in pairs of their own.
    """
    order = sorted(
        range(len(keys)), key=lambda k: (bool(tags[k].get("is_padding", False)), place(keys[k]))
    )
    pairs = list(zip(order[0::2], order[1::2], strict=True))
    lengths = torch.tensor([sum(tags[k]["seq_len"] for k in pair) for pair in pairs])
    shares = get_seqlen_balanced_partitions(
        calculate_workload(lengths), k_partitions=workers, equal_size=True
    )
    return [k for share in shares for number in share for k in pairs[number]]
