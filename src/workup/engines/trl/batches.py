"""Samples and packed demonstrations as padded tensors, in micro-batches.

Their gradients add up to that of the whole batch exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from workup.core.episode import Sample
from workup.engines.trl import openings
from workup.engines.trl.openings import Openings
from workup.rl.samples import Packed, visible

Array = npt.NDArray[Any]
T = TypeVar("T")

# A sequence without labelled tokens. It keeps the processes' micro-batches equal in number and size
# when some have fewer episodes. It has three tokens, because TRL takes a single column of values
# behind the first token for one value per sequence, and would count it.
BLANK = Sample((0,) * 3, (False,) * 3, (0.0,) * 3, (0.0,) * 3, (0,) * 3)
PADDING = 1024  # tokens of padding that cost at least as much as one more pass over the model


@dataclass(frozen=True)
class MicroBatch:
    """One micro-batch: the input of the forward pass.

    It has the numbers of its sequences and policy tokens. With `openings` equal beginnings of its
    rows go through the model once.
    """

    inputs: dict[str, Tensor]
    sequences: int
    tokens: int
    openings: Openings | None = None


def split(items: Sequence[T], limit: int, key: Callable[[T], Any]) -> list[list[T]]:
    """Cuts `items`, sorted by `key`, into the fewest chunks of at most `limit`.

    The chunks have nearly the same number of items.
    """
    count = -(-len(items) // limit)
    ordered = sorted(items, key=key)
    bounds = [round(k * len(items) / count) for k in range(count + 1)]
    return [ordered[a:b] for a, b in pairwise(bounds)]


def close(items: list[T], length: Callable[[T], int]) -> list[list[T]]:
    """`items`, in their order, in chunks of items of similar length.

    A chunk is cut in two where that saves most padding, as long as it saves more than `PADDING`
    tokens.
    """
    lengths = np.array([length(item) for item in items])
    counts = np.arange(1, len(items))  # items before each place where the chunk can be cut
    before = np.maximum.accumulate(lengths)[:-1]
    behind = np.maximum.accumulate(lengths[::-1])[::-1][1:]
    saved = lengths.max() * len(items) - before * counts - behind * counts[::-1]
    if not len(saved) or saved.max() <= PADDING:
        return [items]
    place = int(saved.argmax()) + 1
    return [*close(items[:place], length), *close(items[place:], length)]


def padded(rows: Sequence[Any], dtype: type, fill: int = 0) -> Array:
    """`rows` of different lengths as one right-padded array (rows, longest)."""
    lengths = np.array([len(row) for row in rows])
    out = np.full((len(rows), lengths.max()), fill, dtype=dtype)
    flat: Array = np.fromiter(chain.from_iterable(rows), dtype=dtype, count=int(lengths.sum()))
    out[np.arange(out.shape[1]) < lengths[:, None]] = flat
    return out


def policy_parts(
    samples: Sequence[Sample], limit: int, model: Any, device: torch.device
) -> list[MicroBatch]:
    """`samples` in micro-batches of at most `limit`, with `openings` where these are worth it.

    Then rows that begin alike stand together, else rows of similar length.
    """
    plain = split(samples, limit, key=lambda sample: len(sample.tokens))
    columns = sum(len(chunk) * max(len(s.tokens) for s in chunk) for chunk in plain)
    # Less is saved than there is: most batches of a tiny model are left at that.
    if openings.worth(columns, len(samples), model, device) and openings.able(model):
        alike = split(samples, limit, key=lambda sample: tuple(sample.tokens))
        saved = columns - sum(openings.total([s.tokens for s in chunk]) for chunk in alike)
        if openings.worth(saved, len(samples), model, device):
            made = [Openings([s.tokens for s in chunk], device) for chunk in alike]
            return [
                replace(policy_part(chunk, device), openings=each)
                for chunk, each in zip(alike, made, strict=True)
            ]
    return [policy_part(chunk, device) for chunk in plain]


def policy_part(samples: Sequence[Sample], device: torch.device) -> MicroBatch:
    """The tensors of TRL's GRPO loss, (B, T): a "prompt" of one token, all else "completion".

    Padding is on the right, where causal attention never looks, so that no attention mask is
    needed; `completion_mask` marks the policy's tokens.
    """
    ids = padded([s.tokens for s in samples], np.int64)
    mask = padded([s.mask for s in samples], np.int64)
    old = padded([s.logprobs for s in samples], np.float32)
    advantages = padded([s.advantages for s in samples], np.float32)
    arrays = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": np.zeros_like(ids[:, :1]),
        "completion_ids": ids[:, 1:],
        "completion_mask": mask[:, 1:],
        "advantages": advantages[:, 1:],
        "old_per_token_logps": old[:, 1:],
    }
    tensors = {
        name: torch.from_numpy(np.ascontiguousarray(array)).to(device)
        for name, array in arrays.items()
    }
    return MicroBatch(tensors, len(samples), int(mask[:, 1:].sum()))


def packed_part(rows: Sequence[Packed], device: torch.device) -> MicroBatch:
    """Packed demonstrations as `input_ids`, `position_ids` (B, T), `parents`, `targets` (N,).

    N counts the labelled tokens; `parents` are flat indices. If any row has branches, `segments`
    and `reach` (B, T) say which tokens see which.
    """
    ids = padded([row.tokens for row in rows], np.int64)
    labelled = padded([row.labelled for row in rows], np.bool_)
    labelled[:, 0] = False  # nothing predicts the first token
    parents = (
        padded([row.parents for row in rows], np.int64)
        + np.arange(len(rows))[:, None] * ids.shape[1]
    )
    arrays = {"input_ids": ids, "parents": parents[labelled], "targets": ids[labelled]}
    if any(row.branched for row in rows):
        arrays["position_ids"] = padded([row.positions for row in rows], np.int64)
        arrays["segments"] = padded([row.segments for row in rows], np.int64, -1)
        arrays["reach"] = padded([row.reach for row in rows], np.int64, -1)
    tensors = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
    return MicroBatch(tensors, len(rows), len(arrays["targets"]))


def tree_mask(segments: Tensor, reach: Tensor, implementation: str, dtype: torch.dtype) -> Tensor:
    """The 4-D attention mask (B, 1, T, T) of packed rows: boolean for SDPA, additive for eager.

    Eager attention adds its mask, so that a boolean one would give wrong results silently.
    """
    seen: Tensor = visible(
        torch.arange(segments.shape[1], device=segments.device), segments, reach
    )[:, None]
    if implementation != "eager":
        return seen
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(
        ~seen, torch.finfo(dtype).min
    )
