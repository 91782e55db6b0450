"""Prompting strategies for untrained policies: one module each, whose name is the strategy's.

A strategy adds prompts, calls or a search around a policy, in any environment; it changes no
weights. There is no registry.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Protocol, cast, runtime_checkable

from pydantic import BaseModel, ConfigDict

from workup.core.episode import Episode
from workup.core.errors import UserError, unknown
from workup.core.ports import Doctor, Environment, Model
from workup.rl.rollout import Job, Play


@dataclass(frozen=True)
class Seat:
    """The policy that a strategy drives: as a doctor, and as a chat model that answers anything.

    `model` is None for a policy that knows only the encounter (the tiny one).
    """

    doctor: Doctor
    model: Model | None = None

    def chat(self, strategy: str) -> Model:
        """The chat model. Raises UserError if the policy is none."""
        if self.model is None:
            raise UserError(
                f"strategy '{strategy}' asks the policy questions of its own: it needs a chat "
                "model or an endpoint"
            )
        return self.model


@runtime_checkable
class Searcher(Protocol):
    """A strategy that plays whole episodes, because it looks ahead, and shows one of them."""

    async def play(self, job: Job, play: Play) -> Episode: ...


class Plain(BaseModel):
    """The base class of every strategy's settings; most strategies have no others."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @property
    def in_flight(self) -> int:
        """How many episodes of one case are played at once."""
        return 1


class Strategy(Protocol):
    """What a module of this package defines: `summary`, `paper`, its settings (pydantic), `open`.

    `open` raises UserError if the policy or the environment cannot be played this way.
    """

    summary: str
    paper: str
    Settings: type[Any]

    def open(self, seat: Seat, environment: Environment, settings: Any) -> Doctor | Searcher: ...


def refuse_unfit(strategy: Strategy, environment: Environment) -> None:
    """Raises UserError where the strategy has a `fits` that refuses the environment.

    A caller so reports it before weights are loaded.
    """
    fits = getattr(strategy, "fits", None)
    if fits is not None:
        fits(environment)


def names() -> list[str]:
    """The built-in strategies, sorted: `mcts_bt.py` is "mcts-bt"."""
    found = [module.name for module in iter_modules(__path__)]
    return sorted(
        name.replace("_", "-")
        for name in found
        if hasattr(import_module(f"{__name__}.{name}"), "open")
    )


def load(name: str) -> Strategy:
    """The strategy of this name. Raises UserError when there is none."""
    if name not in names():
        raise unknown("strategy", name, names(), more="`workup methods` lists all")
    return cast(Strategy, import_module(f"{__name__}.{name.replace('-', '_')}"))
