"""Forward passes of a model over the slots of its key-value cache.

`Passes` starts a pass kernel by kernel. `CapturedPasses` replays captured CUDA graphs: on a GPU a
small pass takes as long as Python needs to start its kernels, and a graph starts all of them at
once. A graph has fixed shapes, so a pass is padded to the next of a few shapes.

Example: 21 requests with one new token each and at most 300 tokens in the cache are computed by the
graph of 32 rows, width 1 and reach 384. Its 11 rows of padding write to the place of slot 0 that
holds padding, and nobody reads their logits. A shape is captured when it is asked for the third
time.
"""

from __future__ import annotations

import inspect
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from workup.models.slots import Slots

log = logging.getLogger(__name__)

# A padded pass of more tokens keeps a GPU at work for longer than its kernels take to start.
LARGEST = 2_048
REACH = 128  # the smallest reach of a captured pass
ASKED = 3  # passes of one shape before it is captured, which takes as long as four of them
REHEARSALS = 2  # passes before a capture, in which libraries choose kernels and take memory


@dataclass(frozen=True)
class NewTokens:
    """New tokens of several requests, right-aligned: all arrays are (rows, width), `slots` (rows,).

    `real` is False where there is padding; `ids` and `positions` are 0 there.
    """

    ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    real: NDArray[np.bool_]
    slots: NDArray[np.int64]

    @classmethod
    def of(
        cls, pending: Sequence[Sequence[int]], held: Sequence[int], slots: Sequence[int]
    ) -> NewTokens:
        """The tokens `pending` of each request, whose slot holds `held` tokens before them."""
        counts = np.array([len(tokens) for tokens in pending])
        width = counts.max()
        column = np.arange(width) - (width - counts)[:, None]  # negative where there is padding
        real = column >= 0
        ids = np.zeros(real.shape, dtype=np.int64)
        ids[real] = list(chain.from_iterable(pending))
        return cls(ids, np.where(real, column + np.array(held)[:, None], 0), real, np.array(slots))

    def padded(self, rows: int, width: int) -> NewTokens:
        """The same as (rows, width): padding tokens on the left, rows of padding below."""
        more = rows - self.ids.shape[0], width - self.ids.shape[1]
        around = (0, more[0]), (more[1], 0)
        return NewTokens(
            np.pad(self.ids, around),
            np.pad(self.positions, around),
            np.pad(self.real, around),
            np.pad(self.slots, around[0]),
        )

    @property
    def reach(self) -> int:
        """How many tokens the longest request has when the pass is done."""
        return int(self.positions.max()) + 1


class Passes:
    """Forward passes of `model`, whose keys and values lie in `slots`."""

    join = 16
    """Requests with at most so many new tokens share a padded pass with those that decode."""

    def __init__(self, model: Any, slots: Slots) -> None:
        self.model, self.slots, self.device = model, slots, slots.device
        self.cache_argument = _cache_argument(model)

    def __call__(self, new: NewTokens) -> torch.Tensor:
        """Logits (rows, vocabulary) after each row's last token; overwritten by the next pass."""
        self.slots.reserve(0, new.reach)
        rows = new.slots
        self.slots.aim(
            self._on(rows),
            self._on(self._places(new)),
            new.reach,
            first=int(rows[0]) if rows[-1] - rows[0] == len(rows) - 1 else None,
        )
        return self._compute(self._on(new.ids), self._on(new.positions))

    def refresh(self) -> None:
        """The weights have changed; their tensors may be others."""

    def _on(self, values: NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(values).to(self.device)

    def _places(self, new: NewTokens) -> NDArray[np.int64]:
        """Where in the cache each token's keys and values go (rows · width)."""
        last = self.slots.capacity - 1  # of each slot: for padding
        inside = np.where(new.real, new.positions, last)
        return (new.slots[:, None] * self.slots.capacity + inside).reshape(-1)

    def _compute(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        reach = torch.arange(self.slots.reach, device=self.device)
        mask = reach <= positions[:, None, :, None]
        if self.model.config._attn_implementation == "eager":
            # Eager attention adds its mask: a boolean one would be silently wrong.
            mask = torch.where(mask, 0.0, torch.finfo(self.model.dtype).min).to(self.model.dtype)
        out = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **{self.cache_argument: self.slots.cache},
        )
        return out.logits[:, -1]  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Captured:
    """A captured pass: it reads the first four tensors and writes `logits` (rows, vocabulary)."""

    ids: torch.Tensor  # (rows, width)
    positions: torch.Tensor  # (rows, width)
    slots: torch.Tensor  # (rows,)
    places: torch.Tensor  # (rows · width,)
    logits: torch.Tensor
    replay: Callable[[], None]


class CapturedPasses(Passes):
    """The same, captured once for each shape. Large passes are started kernel by kernel.

    A graph keeps the addresses of the weights and of the cache. It is captured again where these
    have moved, so weights may change in place only, or before a `refresh`. A model whose pass
    cannot be captured is told in a warning; its passes are then started kernel by kernel.
    """

    join = 1  # a graph of one new token per row costs less than a wider one

    def __init__(self, model: Any, slots: Slots) -> None:
        super().__init__(model, slots)
        self.graphs: dict[tuple[int, ...], Captured] = {}
        self.asked: Counter[tuple[int, ...]] = Counter()
        self.pool: Any = None
        self.stores: list[torch.Tensor | None] = []
        self.weights = self._addresses()
        self.possible = True
        self._forget()

    def refresh(self) -> None:
        if (now := self._addresses()) != self.weights:
            self._forget()
            self.weights = now

    def __call__(self, new: NewTokens) -> torch.Tensor:
        whole = new.padded(_power(new.ids.shape[0]), _power(new.ids.shape[1]))
        graph = self._graph(whole)
        if graph is None:
            return super().__call__(new)
        for tensor, values in (
            (graph.ids, whole.ids),
            (graph.positions, whole.positions),
            (graph.slots, whole.slots),
            (graph.places, self._places(whole)),
        ):
            tensor.copy_(torch.from_numpy(values))
        graph.replay()
        return graph.logits[: len(new.slots)]

    def _graph(self, whole: NewTokens) -> Captured | None:
        """The graph of a padded pass, captured now if need be; None where there is none (yet)."""
        if whole.ids.size > LARGEST or not self.possible:
            return None
        self.slots.reserve(0, whole.reach)
        if not self._in_place():
            self._forget()
            return None
        reach = min(max(REACH, _ceiling(whole.reach)), self.slots.capacity)
        shape = (*whole.ids.shape, reach)
        self.asked[shape] += 1
        if shape not in self.graphs and self.asked[shape] >= ASKED:
            try:
                self.graphs[shape] = self._capture(whole, reach)
            except RuntimeError as error:
                self.possible = False
                log.warning(
                    "a forward pass of this model cannot be captured as a CUDA graph (%s); passes "
                    "are started kernel by kernel, which is several times slower",
                    str(error).splitlines()[0],
                )
        return self.graphs.get(shape)

    def _forget(self) -> None:
        """Drops all graphs, and the memory that they share: it cannot be used without them."""
        self.graphs.clear()
        self.pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None

    def _in_place(self) -> bool:
        """Whether the cache lies where it lay at the last call."""
        stores: list[torch.Tensor | None] = []
        for layer in self.slots.layers:
            stores += layer.keys, layer.values
        same = len(stores) == len(self.stores) and all(
            new is not None and new is old for new, old in zip(stores, self.stores, strict=True)
        )
        self.stores = stores
        return same

    def _addresses(self) -> list[int]:
        return [weight.data_ptr() for weight in self.model.parameters()]

    def _capture(self, new: NewTokens, reach: int) -> Captured:
        arrays = new.ids, new.positions, new.slots, self._places(new)
        ids, positions, slots, places = map(self._on, arrays)

        def compute() -> torch.Tensor:
            self.slots.aim(slots, places, reach, first=None)
            return self._compute(ids, positions)

        logits, replay = recorded(compute, self.pool)
        return Captured(ids, positions, slots, places, logits, replay)


def recorded(
    compute: Callable[[], torch.Tensor], pool: Any
) -> tuple[torch.Tensor, Callable[[], None]]:
    """What `compute` returns, and a function that computes it anew in the same tensors.

    Raises RuntimeError where `compute` waits for the device.
    """
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch gives it no types
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(REHEARSALS):
            compute()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        found = compute()
    return found, graph.replay


def passes_of(model: Any, slots: Slots) -> Passes:
    """Captured on a GPU; a processor starts its kernels fast enough."""
    return (CapturedPasses if slots.device.type == "cuda" else Passes)(model, slots)


def _power(count: int) -> int:
    """The next power of two: 1, 2, 4, 8, …"""
    return 1 << (count - 1).bit_length()


def _ceiling(count: int) -> int:
    """The next power of two, or half way to it: 1, 2, 3, 4, 6, 8, 12, 16, 24, …"""
    power = _power(count)
    return power * 3 // 4 if power >= 4 and count <= power * 3 // 4 else power


def _cache_argument(model: Any) -> str:
    """What the model's `forward` calls its KV cache: transformers renamed it in 5.24."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    known = inspect.signature(inner.forward).parameters
    return "cache" if "cache" in known else "past_key_values"
