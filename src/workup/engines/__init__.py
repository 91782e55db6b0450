"""The engines, which update the weights: one module or folder of this package each.

The setting `engine` names one by its module: `workup train craft engine=trl`. The module defines
the three functions of `EngineModule`. An engine from outside is `engine=package.module:attribute`;
the attribute is any object with these three functions. `settings` is no engine: it holds the
settings that all engines have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Protocol, cast

from workup.core.extras import named
from workup.core.ports import Engine, LivePolicy, Processes
from workup.core.stages import Stage
from workup.engines.settings import EngineSettings


@dataclass(frozen=True)
class EngineJob:
    """What an engine is asked to train.

    `load()` returns a transformers causal language model and its tokenizer, before any training.
    `follow(model, tokenizer)` makes a policy that samples with its weights: the `follow` of the
    sampler that the setting `sampler` names, with its `how` filled in. The engine writes its
    checkpoints into `folder`, in its own format, and continues from the newest one there. `place`
    is the model folder or hub id that `load` reads; empty where the weights are made, not read.
    """

    settings: EngineSettings
    folder: Path
    load: Callable[[], tuple[Any, Any]]
    follow: Callable[[Any, Any], LivePolicy]
    place: str = ""


class EngineModule(Protocol):
    """What an engine's module defines, as plain functions."""

    def refuse(self, settings: EngineSettings, stages: Sequence[Stage]) -> None:
        """Raises UserError for a setting or a stage that the engine cannot follow.

        It is called before anything is written or loaded; the engine's libraries may be missing.
        An engine that plays every step before it trains on it refuses `ahead=1`.
        """
        ...

    def processes(self) -> Processes:
        """Connects the processes that train together, and loads no weights.

        With several processes a new run calls it once in each, before `open`.
        """
        ...

    def open(self, job: EngineJob) -> Engine:
        """An engine with the weights of `job.load()`; its stages load their checkpoints later.

        Raises UserError for settings that it cannot follow.
        """
        ...


def names() -> list[str]:
    """The engines of this package, sorted; nothing is imported."""
    return sorted(module.name for module in iter_modules(__path__) if module.name != "settings")


def load(name: str) -> EngineModule:
    """The engine of this name. Raises UserError if there is none, or if it lacks a function."""
    known = {each: f"{__name__}.{each}" for each in names()}
    return cast(EngineModule, named("engine", name, known, ("refuse", "processes", "open")))
