"""What a method is made of: an environment, and stages that train a policy in it, in order.

`SftStage` learns demonstrations, `SearchStage` plays and keeps episodes, `KeptStage` and `DpoStage`
learn what was kept, `GrpoStage` reinforces.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from workup.core.case import Case, Source
from workup.core.episode import Episode, Score
from workup.core.errors import UserError
from workup.core.ports import (
    Credit,
    Demonstration,
    Doctor,
    Environment,
    Reward,
    Sampling,
    Teaching,
)


@dataclass(frozen=True)
class SftStage:
    """A supervised stage (sft) on demonstrations.

    `demonstrate(source, environment, seed, index)` makes the index-th demonstration.

    With a `size` the data are demonstrations of that many training cases (0: of all), `each` of
    every case; every policy goes through the stage (settings `tuning`). Without a `size` it is a
    warm start: settings `sft` say how long it takes, and by default only the tiny policy goes
    through it.
    """

    name: str
    demonstrate: Callable[[Source, Environment, int, int], Demonstration]
    size: int | None = None
    each: int = 1

    def taught_by(self, doctor: Doctor, share: float = 1.0) -> SftStage:
        """The same stage, with `doctor` in `share` of the encounters that its `Teaching` imitates.

        Raises UserError for demonstrations that no `Teaching` makes.
        """
        teaching = getattr(self.demonstrate, "__self__", None)
        if not isinstance(teaching, Teaching):
            raise UserError(
                f"the stage '{self.name}' makes its demonstrations in its own way, so that nobody "
                "else can be imitated: leave out sft.teacher"
            )
        taught = replace(teaching, doctor=doctor, doctor_share=share)
        return replace(self, demonstrate=taught.demonstrate)


# Asks further judges about an episode; raises RolloutError when one of them gives up.
Settle = Callable[[Episode], Awaitable[None]]
# R(τ) of an episode, its total; raises RolloutError where there is none to be had.
Value = Callable[[Episode], Awaitable[Score]]


@dataclass(frozen=True, slots=True)
class Trial:
    """One episode that a search played, its score R, and whether its answer is right."""

    episode: Episode
    score: Score
    correct: bool


@dataclass(frozen=True, slots=True)
class Explored:
    """The result of searching one case: its scored episodes in the order played, greedy first.

    `depth` is the number of actions of the tree's deepest node (0 without a tree). `calls` is how
    often the doctor acted. `failures` are the reasons of episodes that failed.
    """

    scored: tuple[tuple[Episode, Score], ...]
    failures: tuple[str, ...] = ()
    depth: int = 0
    calls: int = 0


# case, environment, doctor, value, how to sample → what was found; `Sampling.key` seeds all draws
Explorer = Callable[[Case, Environment, Doctor, Value, Sampling], Awaitable[Explored]]


@dataclass(frozen=True, slots=True)
class Choice:
    """The trials of a case that are kept.

    For DPO the k-th of `chosen` is preferred to the k-th of `rejected`.
    """

    chosen: tuple[Trial, ...] = ()
    rejected: tuple[Trial, ...] = ()


@dataclass(frozen=True)
class SearchStage:
    """A search stage; it changes no weights.

    `search` plays training cases with the policy as it is; `choose` says which episodes are kept.
    Later stages name this one to read them. At most `cases` training cases are searched, each once;
    0 means all. The reward is asked about one episode at a time, in no fixed order, so it must not
    use statistics of a batch. `models` are the supporting roles whose models the reward asks.
    """

    name: str
    search: Explorer
    reward: Reward
    choose: Callable[[Sequence[Trial]], Choice]
    cases: int = 0
    scorers: tuple[str, ...] = ()
    models: tuple[str, ...] = ()


@dataclass(frozen=True)
class KeptStage:
    """A supervised stage (sft) on the episodes that the SearchStage `of` chose.

    It trains on the sampled token ids themselves (settings `tuning`).
    """

    name: str
    of: str


@dataclass(frozen=True)
class DpoStage:
    """Direct preference optimisation on the pairs of the SearchStage `of` (settings `dpo`)."""

    name: str
    of: str


def any_case(case: Case) -> None:
    """The `fits` of a reward that can score every case."""


@dataclass(frozen=True)
class GrpoStage:
    """A reinforcement stage (grpo): how episodes are scored, and how scores become advantages.

    `scorers` names the scorers that the reward asks, and `models` the supporting roles whose models
    it asks, and DOCTOR for the policy's: a run without one of the roles is refused before it writes
    anything. `settle` is called with each episode as soon as it is over: it asks the judges whose
    verdicts the reward needs besides `Instruments.judge`; where it raises RolloutError, the episode
    is failed. `fits` raises UserError for a case that the reward cannot score; a run calls it with
    its first training cases, and with the first ones that it tests, before it writes anything.
    `alone` says that `credit` learns from a single episode of a case; others get 0 there, and a run
    with group=1 is refused.
    """

    name: str
    reward: Reward
    credit: Credit
    scorers: tuple[str, ...] = ()
    fits: Callable[[Case], None] = any_case
    settle: Settle | None = None
    models: tuple[str, ...] = ()
    alone: bool = False


Stage = SftStage | SearchStage | KeptStage | DpoStage | GrpoStage


@dataclass(frozen=True)
class Method:
    """One way to train: its settings (a pydantic model class), its environment, its stages.

    `environment` is the default of the setting `environment`: a name, and settings that differ
    from that environment's own defaults. Example: {"name": "questioning", "max_turns": 11}.
    `stages(settings, environment)` gives the stages of a run in that environment, in order.

    `printed` are the settings that its paper prints, nested as a file of settings has them
    ({"lr": 5e-7, "reward": {"tau": 0.8}}): `preset=paper` takes them; None where there are none.
    `notes(settings)` is what a run says at its start and in its report.
    """

    paper: str
    summary: str
    settings: type[Any]
    environment: Mapping[str, Any]
    stages: Callable[[Any, Environment], Sequence[Stage]]
    printed: Mapping[str, Any] | None = None
    notes: Callable[[Any], tuple[str, ...]] = lambda settings: ()
