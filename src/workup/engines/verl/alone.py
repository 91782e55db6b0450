"""One process that trains alone, as `Processes` sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Alone:
    """Implements `Processes` for the driver: verl's own workers never see our code."""

    rank, world, is_main = 0, 1, True

    def all_gather(self, values: Sequence[float]) -> Sequence[float]:
        return values

    def send_to_main(self, value: T) -> list[T]:
        return [value]

    def from_main(self, value: T) -> T:
        return value
