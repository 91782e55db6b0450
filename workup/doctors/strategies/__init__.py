"""How an untrained policy can be made to play: one module per strategy, whose name is the
strategy's. There is no registry.

A strategy adds prompts, calls or a search around a policy, in any environment; it changes no
weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Protocol, cast, runtime_checkable

from pydantic import BaseModel, ConfigDict

from workup.episode import Episode
from workup.errors import UserError, unknown
from workup.ports import Doctor, Environment, Model
from workup.rl.rollout import Job, Play


@dataclass(frozen=True)
class Seat:
    """The policy that a strategy drives: as the doctor it is by itself, and as a chat model that
    can be asked anything.

    `model` is None for a policy that knows nothing but the encounter (the tiny one).
    """

    doctor: Doctor
    model: Model | None = None

    def chat(self, strategy: str) -> Model:
        """The chat model. Raises UserError where the policy is none."""
        if self.model is None:
            raise UserError(
                f"strategy '{strategy}' asks the policy questions of its own: it needs a chat "
                "model or an endpoint"
            )
        return self.model


@runtime_checkable
class Searcher(Protocol):
    """A strategy that plays a whole episode, since it has to look ahead: of what it played it shows
    one.
    """

    async def play(self, job: Job, play: Play) -> Episode: ...


class Plain(BaseModel):
    """What the settings of every strategy are made from; all of them for most."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @property
    def in_flight(self) -> int:
        """How many episodes of one case are played at once."""
        return 1


class Strategy(Protocol):
    """What a module of this package defines: what it is, where it comes from, its settings (a
    pydantic class), and `open`.

    `open` raises UserError where the policy or the environment cannot be played this way.
    """

    summary: str
    paper: str
    Settings: type[Any]

    def open(self, seat: Seat, environment: Environment, settings: Any) -> Doctor | Searcher: ...


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
