"""The samplers, which draw completions from weights: one module of this package each.

The setting `sampler` names one by its module: `workup train craft sampler=local`. The module
defines the two functions of `SamplerModule`. A sampler from outside is
`sampler=package.module:attribute`; the attribute is any object with these two functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from pkgutil import iter_modules
from typing import Any, Protocol, cast

from workup.core.extras import named
from workup.core.ports import LanguageModel, LivePolicy


@dataclass(frozen=True)
class How:
    """How a sampler runs.

    `concurrency` is how many transcripts the prefix cache holds at most. `dtype` is the precision
    of weights that are loaded (float32, bfloat16, float16); a model in training keeps its own.
    `threads` is how many threads of the processor torch uses. A sampler with processes of its own
    takes at most the share `memory` of the device's memory, within (0, 1), and transcripts of at
    most `context` tokens (None: the model's own limit). A sampler on a server finds it at
    `address`.
    """

    concurrency: int = 256
    dtype: str = "float32"
    threads: int = 1
    memory: float = 0.3
    context: int | None = None
    address: str | None = None


class SamplerModule(Protocol):
    """What a sampler's module defines, as plain functions."""

    def open(self, place: str, how: How) -> LanguageModel:
        """A model with the weights of a folder or a hub id (Hugging Face); they stay as they are.

        Raises UserError if there are none.
        """
        ...

    def follow(self, model: Any, tokenizer: Any, how: How) -> LivePolicy:
        """A policy with the weights of a transformers causal language model.

        The engine calls the policy's `refresh` when it has changed the weights. It finds what it
        trains in the policy's attributes `model` and `tokenizer`, the objects given here.
        """
        ...


def names() -> list[str]:
    """The samplers of this package, sorted; nothing is imported."""
    return sorted(module.name for module in iter_modules(__path__))


def load(name: str) -> SamplerModule:
    """The sampler of this name. Raises UserError if there is none, or if it lacks a function."""
    known = {each: f"{__name__}.{each}" for each in names()}
    return cast(SamplerModule, named("sampler", name, known, ("open", "follow")))
