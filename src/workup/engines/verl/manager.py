"""verl's agent-loop manager: it asks us for a step's rows and puts them into TransferQueue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import transfer_queue
from verl.utils import tensordict_utils
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from workup.core.errors import WorkupError
from workup.engines.verl.rows import TokenRow

PARTITION = "train"
PLACE = "place"


class Manager:
    """Implements verl's contract for agent-loop managers: one method.

    `make(step, uids)`, step from 1, returns the rows of a step; a row's key begins with one of
    `uids`. A reinforcement stage plays, judges, scores and credits the whole batch there. It is
    here, and not in verl's workers, because rewards and credit compare the episodes of a group and
    a batch.
    """

    def __init__(self, make: Callable[[int, Sequence[str]], Sequence[TokenRow]]) -> None:
        self.make = make

    def generate_sequences(self, prompts: Any) -> None:
        """Returns when all rows of the step are in TransferQueue, and its prompts are done.

        Raises WorkupError for a step without any row.
        """
        step = int(tensordict_utils.get(prompts, "global_steps"))
        uids = [str(uid) for uid in prompts["uid"]]
        made = self.make(step, uids)
        if not made:
            raise WorkupError(f"step {step}: nothing to train on; every episode failed")
        put(made, PARTITION)
        transfer_queue.kv_batch_put(
            keys=uids, tags=[{"status": "finished"} for _ in uids], partition_id=PARTITION
        )


def put(made: Sequence[TokenRow], partition: str) -> Any:
    """Puts rows into TransferQueue; returns verl's name for them, in their order.

    The order is in their tags too: TransferQueue returns them in any, and sums of float numbers
    depend on it.
    """
    keys, tags = [row.key for row in made], [{**row.tag, PLACE: k} for k, row in enumerate(made)]
    fields = list_of_dict_to_tensordict([row.fields for row in made])
    transfer_queue.kv_batch_put(keys=keys, fields=fields, tags=tags, partition_id=partition)
    return transfer_queue.KVBatchMeta(partition_id=partition, keys=keys, tags=tags)
