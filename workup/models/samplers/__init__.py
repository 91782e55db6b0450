"""The samplers, which draw completions from weights: one module of this package each.

A sampler is found by its name. It defines `open(place, how)` for weights that stay as they are, and
`follow(model, tokenizer, how)` for a model in training. One from outside is named
`package.module:attribute`; the attribute has these two.
"""

from __future__ import annotations

from dataclasses import dataclass
from pkgutil import iter_modules
from typing import Any, Protocol, cast

from workup.extras import named
from workup.ports import LanguageModel, LivePolicy


@dataclass(frozen=True)
class How:
    """How a sampler runs.

    `concurrency` is the number of transcripts in flight, whose prefixes are kept; `threads` are
    those of the processor.
    """

    concurrency: int = 256
    dtype: str = "float32"
    threads: int = 1


class SamplerModule(Protocol):
    """What a module of this package defines."""

    def open(self, place: str, how: How) -> LanguageModel:
        """The weights of a model folder or a hub id. Raises UserError if there are none."""
        ...

    def follow(self, model: Any, tokenizer: Any, how: How) -> LivePolicy:
        """A policy with the weights of a transformers causal language model.

        It learns by `refresh` when they have changed. It has the attributes `model` and
        `tokenizer`.
        """
        ...


def names() -> list[str]:
    """The samplers of this package, sorted; nothing is imported."""
    return sorted(module.name for module in iter_modules(__path__))


def load(name: str) -> SamplerModule:
    """The sampler of this name. Raises UserError if there is none."""
    known = {each: f"{__name__}.{each}" for each in names()}
    return cast(SamplerModule, named("sampler", name, known, ("open", "follow")))
