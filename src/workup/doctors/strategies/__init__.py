"""Prompting strategies for untrained policies.

A strategy adds prompts, calls or a search around a policy, in any environment; it changes no
weights. A module here declares its own by name in `strategies`; there is no registry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Protocol, runtime_checkable

from workup.core.episode import Episode
from workup.core.errors import UserError, unknown
from workup.core.ports import Doctor, Environment, LanguageModel, Model
from workup.core.shapes import FrozenModel
from workup.rl.rollout import Play, ToPlay


@dataclass(frozen=True)
class Driven:
    """The policy that a strategy drives: as a doctor, and as a chat model that answers anything.

    `model` is None for a policy that knows only the encounter (the tiny one), `weights` for one
    that is reached over a network.
    """

    doctor: Doctor
    model: Model | None = None
    weights: LanguageModel | None = None

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

    async def play(self, job: ToPlay, play: Play) -> Episode: ...


class Plain(FrozenModel):
    """The base class of every strategy's settings; most strategies have no others."""

    @property
    def in_flight(self) -> int:
        """How many episodes of one case are played at once."""
        return 1


@dataclass(frozen=True)
class Strategy:
    """One way to prompt: `settings` is a pydantic model class, `open` makes a doctor of a policy.

    `open(policy, environment, settings)` raises UserError if the policy or the environment cannot
    be played this way. So does `fits(environment)`, which a caller asks before it loads weights.
    """

    summary: str
    paper: str
    settings: type[Any]
    open: Callable[[Driven, Environment, Any], Doctor | Searcher]
    fits: Callable[[Environment], None] = lambda environment: None


def names() -> list[str]:
    """The built-in strategies, sorted."""
    return sorted(_strategies())


def load(name: str) -> Strategy:
    """The strategy of this name. Raises UserError when there is none."""
    known = _strategies()
    if name not in known:
        raise unknown("strategy", name, known, more="`workup methods` lists all")
    return known[name]


def _strategies() -> Mapping[str, Strategy]:
    modules = (import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__))
    return {
        name: strategy
        for module in modules
        for name, strategy in getattr(module, "strategies", {}).items()
    }
