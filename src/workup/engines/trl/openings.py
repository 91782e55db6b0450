"""Openings trained once: what rows of a micro-batch begin with alike goes through the model once.

The episodes of a group have one opening, and those of a tree have more than that in common. Each
token that rows share up to there stands once in one long row of T tokens. A token sees its own
row's earlier tokens alone, so that every hidden state, and every gradient, is that of the padded
rows. Attention is computed row by row over the tokens that a row brings, so nothing is spent on
the tokens of other rows.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from workup.core.errors import WorkupError

SDPA = "sdpa"
CALL = {"cpu": 4e6, "cuda": 2e9}
"""Multiplications of one layer that cost as much as one more call of attention, by device.

That of a GPU is a guess: with it SmolLM2 is trained on padded rows there."""

DROPOUTS = ("attention_dropout", "attention_probs_dropout_prob", "attn_pdrop")
"""What configurations call the share of attention that is dropped in training."""

LAYER = 12
"""Multiplications of one layer per token, in squares of the hidden size."""


class Openings:
    """Rows of token ids in which equal beginnings stand once.

    `ids` and `positions` are (1, T). `places` (B, L) says where each token of a row stands among
    the T; behind a row's end it is 0 and means nothing. `calls` counts the layers that attended to
    it.
    """

    def __init__(self, rows: Sequence[Sequence[int]], device: torch.device) -> None:
        self.calls = 0
        self._rows: list[tuple[slice, Tensor, Tensor | None]] = []  # own tokens, all, who sees what
        places = np.zeros((len(rows), max(map(len, rows))), np.int64)
        ids: list[int] = []
        positions: list[int] = []
        previous: Sequence[int] = ()
        path = np.zeros(0, np.int64)
        for number in sorted(range(len(rows)), key=lambda number: tuple(rows[number])):
            row = rows[number]
            shared = _alike(previous, row)
            path = np.concatenate([path[:shared], np.arange(len(row) - shared) + len(ids)])
            places[number, : len(row)] = path
            if own := len(row) - shared:
                # Without a mask attention is causal: the row shares nothing.
                seen = torch.ones(own, len(row), dtype=torch.bool, device=device).tril(shared)
                whole = torch.from_numpy(path).to(device)
                span = slice(len(ids), len(ids) + own)
                self._rows.append((span, whole, seen if shared else None))
            ids += row[shared:]
            positions += range(shared, len(row))
            previous = row
        self.ids, self.positions = (
            torch.tensor([each], device=device) for each in (ids, positions)
        )
        self.places = torch.from_numpy(places).to(device)

    def inputs(self) -> dict[str, Any]:
        """What a model's forward pass gets.

        The mask is not read: a model that is given one makes none of its own.
        """
        mask = torch.zeros((1, 1, 1, 1), device=self.ids.device)
        return {
            **{"input_ids": self.ids, "position_ids": self.positions},
            **{"attention_mask": mask, "openings": self},
        }

    def check(self, model: Any, calls: int) -> None:
        """Raises WorkupError unless every layer attended once since there were so many `calls`."""
        layers = model.config.get_text_config().num_hidden_layers
        if self.calls - calls != layers:
            raise WorkupError(
                f"{self.calls - calls} of {layers} layers of {type(model).__name__} attended as "
                "asked, so its log-probabilities would be wrong; load it with "
                'attn_implementation="eager"'
            )

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        """Causal attention within each row: (1, T, heads, size) from (1, heads, T, size) each.

        Keys and values may have fewer heads, each for as many heads of the query.
        """
        self.calls += 1
        grouped = query.shape[1] != key.shape[1]
        seen = [
            F.scaled_dot_product_attention(
                query[:, :, own],
                key[:, :, path],
                value[:, :, path],
                attn_mask=mask,
                is_causal=mask is None,
                scale=scale,
                enable_gqa=grouped,
            )
            for own, path, mask in self._rows
        ]
        return torch.cat(seen, dim=2).transpose(1, 2).contiguous()


def total(rows: Sequence[Sequence[int]]) -> int:
    """T of these rows: the number of their different beginnings, the empty one left out."""
    ordered = sorted(map(tuple, rows))
    return sum(map(len, ordered)) - sum(_alike(*pair) for pair in pairwise(ordered))


def _alike(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two rows begin with alike."""
    equal = (a == b for a, b in zip(one, other, strict=False))
    return next((k for k, same in enumerate(equal) if not same), min(len(one), len(other)))


def worth(saved: int, rows: int, model: Any, device: torch.device) -> bool:
    """Whether to save so many tokens is worth a call of attention for each row in every layer."""
    config = model.config.get_text_config()
    return bool(saved * LAYER * config.hidden_size**2 > rows * CALL.get(device.type, CALL["cuda"]))


def able(model: Any) -> bool:
    """Whether the model's attention is the one that is replaced, and every token sees all before.

    A model with sliding windows, with dropout of attention, with another attention, or whose layers
    hand no keywords on is trained on padded rows.
    """
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None)
    plain = kinds == {"full_attention"} and (
        window is None or not getattr(config, "use_sliding_window", True)
    )
    attention = [each for each in model.modules() if hasattr(each, "layer_idx")]
    forwards = [inspect.signature(type(m).forward) for m in (model.base_model, *attention)]
    handed = all(
        any(each.kind is each.VAR_KEYWORD for each in forward.parameters.values())
        for forward in forwards
    )
    layers = len(attention) >= config.num_hidden_layers
    causal = all(getattr(each, "is_causal", True) for each in attention)
    whole = causal and not any(getattr(config, name, 0) for name in DROPOUTS)
    return bool(plain and whole and layers and handed and config._attn_implementation == SDPA)


@contextmanager
def attending() -> Iterator[None]:
    """A context in which `model(…, openings=Openings(…))` attends as the openings say.

    Layers get the keyword from their model's forward pass. Without it they attend as before.
    """
    usual = ALL_ATTENTION_FUNCTIONS[SDPA]
    ALL_ATTENTION_FUNCTIONS[SDPA] = _attend
    try:
        yield
    finally:
        ALL_ATTENTION_FUNCTIONS[SDPA] = usual


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    openings: Openings | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    if openings is None:
        found: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, **kwargs
        )
        return found
    biased = kwargs.get("position_bias") is not None or kwargs.get("is_causal") is False
    if kwargs.get("dropout") or biased:
        raise WorkupError(
            f"{type(module).__name__} drops attention, adds a bias to it or is not causal, so its "
            'log-probabilities would be wrong; load it with attn_implementation="eager"'
        )
    return openings.attend(query, key, value, kwargs.get("scaling")), None
