"""How completions are drawn from weights: one module of this package per sampler, by its name.

It defines `open(place, how)` for weights that stay as they are, and `follow(model, tokenizer, how)`
for a model in training. One from outside is named `package.module:attribute`, where the attribute
has these two.
"""

from __future__ import annotations

from dataclasses import dataclass
from pkgutil import iter_modules
from typing import Any, Protocol, cast

from workup.extras import named
from workup.ports import LanguageModel, LivePolicy


@dataclass(frozen=True)
class How:
    """`concurrency`: transcripts in flight, whose prefixes are kept; `threads` of the processor."""

    concurrency: int = 256
    dtype: str = "float32"
    threads: int = 1


class SamplerModule(Protocol):
    """What a module of this package defines."""

    def open(self, place: str, how: How) -> LanguageModel:
        """The weights of a model folder or a hub id. Raises UserError where there are none."""
        ...

    def follow(self, model: Any, tokenizer: Any, how: How) -> LivePolicy:
        """A policy with the weights of a causal language model of transformers.

        It is told by `refresh` when they have changed. It has `model` and `tokenizer` as
        attributes.
        """
        ...


def names() -> list[str]:
    """The samplers of this package, sorted; nothing is imported."""
    return sorted(module.name for module in iter_modules(__path__))


def load(name: str) -> SamplerModule:
    """The sampler of this name. Raises UserError where there is none."""
    known = {each: f"{__name__}.{each}" for each in names()}
    return cast(SamplerModule, named("sampler", name, known, ("open", "follow")))
