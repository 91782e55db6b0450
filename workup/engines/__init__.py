"""The engines, which update the weights: one module or folder of this package each.

An engine is found by its name. It defines `processes() -> Processes` and `open(job: Job) ->
Engine` (`workup.ports`). One from outside is named `package.module:attribute`; the attribute has
these two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Protocol, cast

from workup.engines.settings import EngineSettings
from workup.extras import named
from workup.ports import Engine, LivePolicy, Processes


@dataclass(frozen=True)
class Job:
    """What an engine is asked to train.

    `load()` returns a transformers causal language model and its tokenizer, before any training.
    `follow(model, tokenizer)` makes a policy that samples with its weights, by the sampler that the
    settings name. Checkpoints go to `folder`; the engine continues from those that are there.
    """

    settings: EngineSettings
    folder: Path
    load: Callable[[], tuple[Any, Any]]
    follow: Callable[[Any, Any], LivePolicy]


class EngineModule(Protocol):
    """What a module of this package defines."""

    def processes(self) -> Processes:
        """The processes that train together; connects them, and loads no weights."""
        ...

    def open(self, job: Job) -> Engine:
        """An engine with the job's weights. Raises UserError for settings it cannot follow."""
        ...


def names() -> list[str]:
    """The engines of this package, sorted; nothing is imported."""
    return sorted(module.name for module in iter_modules(__path__) if module.name != "settings")


def load(name: str) -> EngineModule:
    """The engine of this name. Raises UserError where there is none."""
    known = {each: f"{__name__}.{each}" for each in names()}
    return cast(EngineModule, named("engine", name, known, ("processes", "open")))
