"""Sequences whose elements are made when they are indexed."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeVar, overload

T = TypeVar("T")


class Lazy(Sequence[T]):
    """Cases, or other things, made when they are indexed, the last few kept.

    `make(index)` must be a function of its index alone. `labels`, where given, has one small
    integer per case (its diagnosis), so that classes can be counted without making a single case.
    `id_of(index)`, where given, is the id of a case, so that a case can be looked for without
    making the others.
    """

    def __init__(
        self,
        size: int,
        make: Callable[[int], T],
        labels: array[int] | None = None,
        keep: int = 256,
        id_of: Callable[[int], str] | None = None,
    ) -> None:
        self._size, self._make, self.labels = size, lru_cache(keep)(make), labels
        self.id_of = id_of

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [self._make(i) for i in range(*index.indices(self._size))]
        if not -self._size <= index < self._size:
            raise IndexError(f"{index} of {self._size}")
        return self._make(index % self._size)
