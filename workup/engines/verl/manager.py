"""verl's agent-loop manager: it asks us for a step's samples and puts them into TransferQueue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import transfer_queue
from verl.utils import tensordict_utils
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from workup.engines.verl.rows import rows
from workup.episode import Sample
from workup.errors import WorkupError

PARTITION = "train"


class Manager:
    """Implements verl's contract for agent-loop managers: one method.

    `collect(step)`, step from 0, plays, judges, scores and credits the whole batch. It is here, and
    not in verl's workers, because rewards and credit compare the episodes of a group and a batch.
    """

    def __init__(self, collect: Callable[[int], Sequence[Sample]]) -> None:
        self.collect = collect

    def generate_sequences(self, prompts: Any) -> None:
        """Returns when all rows of the step are in TransferQueue, and its prompts are done."""
        step = int(tensordict_utils.get(prompts, "global_steps"))
        uids = [str(uid) for uid in prompts["uid"]]
        made = rows(self.collect(step - 1), uids, step)
        if not made:
            raise WorkupError(f"step {step}: not one episode to train on; all of them failed")
        transfer_queue.kv_batch_put(
            keys=[row.key for row in made],
            fields=list_of_dict_to_tensordict([row.fields for row in made]),
            tags=[row.tag for row in made],
            partition_id=PARTITION,
        )
        transfer_queue.kv_batch_put(
            keys=uids, tags=[{"status": "finished"} for _ in uids], partition_id=PARTITION
        )
