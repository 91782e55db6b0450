"""The processes of one training, started by `accelerate launch` or alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object

T = TypeVar("T")


class AccelerateProcesses:
    """Implements `Processes` by accelerate."""

    def __init__(self, *, cpu: bool | None = None) -> None:
        self._state = PartialState(cpu=not torch.cuda.is_available() if cpu is None else cpu)

    @property
    def rank(self) -> int:
        return int(self._state.process_index)

    @property
    def world(self) -> int:
        return int(self._state.num_processes)

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def all_gather(self, values: Sequence[float]) -> Sequence[float]:
        everyone: list[float] = gather_object(list(values))
        return everyone

    def send_to_main(self, value: T) -> list[T]:
        everyone: list[T] = gather_object([value]) if self.world > 1 else [value]
        return everyone if self.is_main else []

    def from_main(self, value: T) -> T:
        box = [value]
        if self.world > 1:
            broadcast_object_list(box)
        return box[0]
