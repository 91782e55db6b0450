"""The key-value cache of a local policy: which tokens each slot holds, and where they lie.

A slot holds the keys and values of one transcript. A request continues the slot that holds the
longest part of its prompt from the beginning. Whole blocks of a prompt that another slot holds are
copied from there, so that an opening which several episodes share is computed once.

Example, with BLOCK = 64: eight episodes open with the same 200 tokens. The first is computed. The
other seven copy 192 tokens (three blocks) and compute the last 8.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import Cache, CacheLayerMixin

BLOCK = 64  # tokens: slots share whole blocks, and their length is a multiple of it
# Idle slots are looked up by this many last tokens before whole transcripts are compared.
TAIL = 8


def blocks_of(tokens: Sequence[int]) -> list[bytes]:
    """A digest of each beginning of `tokens` that is a multiple of BLOCK long, shortest first.

    Equal digests are equal beginnings: the digest k is of the first (k + 1) · BLOCK tokens.
    """
    data, digest, made = np.asarray(tokens, dtype=np.int64), hashlib.blake2b(digest_size=16), []
    for end in range(BLOCK, len(data) + 1, BLOCK):
        digest.update(data[end - BLOCK : end].tobytes())
        made.append(digest.digest())
    return made


class SlotLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers ships no types here
    """One layer's keys and values, each stored as (slots, heads, capacity, head size).

    Attention reads one head after the other. Where a head's positions lie side by side, a
    processor takes half as long as where the heads of a position do. Each row writes at its own
    positions.
    """

    is_compileable = False

    def __init__(self, table: Slots) -> None:
        super().__init__()
        self.table = table

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys, self.values = self._empty(key_states), self._empty(value_states)
        self.is_initialized = True

    def _empty(self, like: torch.Tensor) -> torch.Tensor:
        """A buffer of the table's present size for heads as in `like` (…, heads, …, size)."""
        t = self.table
        return like.new_zeros((t.count, like.shape[1], t.capacity, like.shape[3]))

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        # Under autocast keys and values can differ in precision, and from those of another stage.
        self.keys = _wide_enough(self.keys, key_states)
        self.values = _wide_enough(self.values, value_states)
        return self._write(self.keys, key_states), self._write(self.values, value_states)

    def _write(self, store: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """Writes `new` (rows, heads, width, size).

        Returns the rows' past (rows, heads, reach, size) in the precision of `new`.
        """
        t = self.table
        # Whole rows of a two-dimensional view: several times faster than indexing slots, heads and
        # positions separately.
        heads, size = store.shape[1], store.shape[3]
        flat = new.transpose(1, 2).reshape(-1, size)
        store.view(-1, size).index_copy_(0, t.places_of(heads), flat.to(store.dtype))
        past = store[:, :, : t.reach]
        # Neighbouring slots need no copy: the usual case, since episodes start together.
        rows = (
            past.index_select(0, t.rows)
            if t.first is None
            else past[t.first : t.first + len(t.rows)]
        )
        return rows.to(new.dtype)

    def grow(self, count: int, capacity: int) -> None:
        """Enlarges the buffers from (count, capacity) to the table's present size.

        Keeps their content.
        """
        if not self.is_initialized:
            return
        assert self.keys is not None
        assert self.values is not None
        self.keys = self._enlarged(self.keys, count, capacity)
        self.values = self._enlarged(self.values, count, capacity)

    def _enlarged(self, old: torch.Tensor, count: int, capacity: int) -> torch.Tensor:
        new = self._empty(old)
        new[:count, :, :capacity] = old
        return new

    def copy(self, source: int, target: int, begin: int, end: int) -> None:
        """Copies the positions `begin` to `end` of one slot into another."""
        for store in (self.keys, self.values):
            assert store is not None
            store[target, :, begin:end] = store[source, :, begin:end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.table.reach, 0

    def get_seq_length(self) -> int:
        return self.table.reach

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length  # its name in transformers 5.10, which verl needs


def _wide_enough(store: torch.Tensor | None, new: torch.Tensor) -> torch.Tensor:
    """`store`, in a precision that holds what `new` does."""
    assert store is not None
    return store.to(torch.promote_types(store.dtype, new.dtype))


class Slots:
    """Which tokens each slot of the cache holds, and where the present forward pass writes."""

    def __init__(self, layers: int, device: torch.device) -> None:
        self.count, self.capacity, self.device = 0, 0, device
        self.rows = self.places = torch.empty(0, dtype=torch.long, device=device)
        self.reach = 0
        self.first: int | None = None
        self._places_of: dict[int, torch.Tensor] = {}  # heads → `places`, one for each head
        self.layers = [SlotLayer(self) for _ in range(layers)]
        self.cache = Cache(layers=self.layers)
        self.free: list[int] = []
        # Slots that no request is using → the tokens they hold, oldest first.
        self.idle: dict[int, tuple[int, ...]] = {}
        # Idle slots by the number of their tokens, then by the last TAIL of these tokens.
        self.index: dict[int, dict[tuple[int, ...], list[int]]] = {}
        self.holders: dict[bytes, int] = {}  # a beginning's digest → a slot that holds it
        self.held: dict[int, set[bytes]] = {}  # a slot → the digests under which it stands there

    def aim(
        self, rows: torch.Tensor, places: torch.Tensor, reach: int, *, first: int | None
    ) -> None:
        """The next pass is of the slots `rows`, writes to `places` and reads `reach` positions.

        `places` (rows · width,) counts positions from that of slot 0 on. `first` is the first of
        neighbouring slots, and None for others.
        """
        self.rows, self.places, self.reach, self.first = rows, places, reach, first
        self._places_of.clear()

    def places_of(self, heads: int) -> torch.Tensor:
        """Where the present pass writes (rows · width · heads,), if each slot has so many heads."""
        if heads not in self._places_of:
            slots = self.places.div(self.capacity, rounding_mode="floor")
            head = torch.arange(heads, device=self.device)
            begins = (slots[:, None] * (heads - 1) + head) * self.capacity
            self._places_of[heads] = (self.places[:, None] + begins).reshape(-1)
        return self._places_of[heads]

    def reserve(self, slots: int, length: int) -> None:
        """Makes room for `slots` rows of `length` tokens, and one position for padding."""
        if slots <= self.count and length < self.capacity:
            return
        before = self.count, self.capacity
        self.free.extend(range(self.count, slots))
        self.count = max(self.count, slots)
        if length >= self.capacity:
            self.capacity = BLOCK * (length * 5 // 4 // BLOCK + 1)
        for layer in self.layers:
            layer.grow(*before)

    def claim(self, prompt: tuple[int, ...], limit: int) -> tuple[int, int]:
        """A slot for `prompt`, and how many of the prompt's tokens it holds (never all of them)."""
        for length in sorted(self.index, reverse=True):
            if length < len(prompt):
                for slot in self.index[length].get(prompt[max(0, length - TAIL) : length], ()):
                    if self.idle[slot] == prompt[:length]:
                        self._forget(slot)
                        return slot, length
        if not self.free and self.count >= limit:
            oldest = next(iter(self.idle))
            self._forget(oldest)
            self.free.append(oldest)
        if not self.free:
            self.reserve(min(limit, max(8, 2 * self.count)), 0)
        # The lowest free slot keeps a batch contiguous.
        slot = min(self.free)
        self.free.remove(slot)
        for digest in self.held.pop(slot, ()):
            if self.holders.get(digest) == slot:
                del self.holders[digest]
        return slot, 0

    def hold(self, slot: int, blocks: Sequence[bytes]) -> None:
        """Notes that `slot` holds the beginnings with these digests (see `blocks_of`)."""
        self.held.setdefault(slot, set()).update(blocks)
        self.holders.update(dict.fromkeys(blocks, slot))

    def share(self, slot: int, length: int, blocks: Sequence[bytes]) -> int:
        """Copies into `slot` what other slots hold of a prompt with these `blocks`.

        `slot` holds the prompt's first `length` tokens before. The result is how many it holds
        afterwards, which is `length` if no other slot holds more.
        """
        for count in range(len(blocks), length // BLOCK, -1):
            source = self.holders.get(blocks[count - 1])
            if source is not None:
                for layer in self.layers:
                    layer.copy(source, slot, length, count * BLOCK)
                return count * BLOCK
        return length

    def release(self, slot: int, tokens: tuple[int, ...]) -> None:
        """The request is done; `tokens` are those whose keys and values the slot holds."""
        self.idle[slot] = tokens
        self.index.setdefault(len(tokens), {}).setdefault(tokens[-TAIL:], []).append(slot)

    def _forget(self, slot: int) -> None:
        tokens = self.idle.pop(slot)
        length, tail = len(tokens), tokens[-TAIL:]
        self.index[length][tail].remove(slot)
        if not self.index[length][tail]:
            del self.index[length][tail]
        if not self.index[length]:
            del self.index[length]

    def clear(self) -> None:
        """Forgets everything: the weights have changed."""
        self.idle.clear()
        self.index.clear()
        self.holders.clear()
        self.held.clear()
        self.free = list(range(self.count))
