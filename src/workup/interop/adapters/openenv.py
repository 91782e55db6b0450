"""An OpenEnv server: any of its clients plays our encounters over HTTP and WebSocket."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any
from uuid import uuid4

from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
from pydantic import Field

from workup.core.errors import WorkupError
from workup.interop.adapters.bench import Bench, meant, messages, told
from workup.rl.interaction import Interaction
from workup.rl.running import run_to_end

SESSIONS = 64
"""Encounters at the same time, each in a session of its own."""
LONGEST = 100_000
"""Characters of one action at most."""


class DoctorAction(Action):
    """What the doctor says: one action in the environment's grammar."""

    text: str = Field(max_length=LONGEST)


class EncounterObservation(Observation):
    """The messages for the doctor, and what the last request was understood to ask for.

    At the end `reward` is the return, and `outcome` what `workup.interop.adapters.bench.told`
    gives: the verdict, every turn's reward, the measures.
    """

    messages: list[dict[str, str]] = Field(default_factory=list)
    meant: dict[str, Any] = Field(default_factory=dict)
    outcome: dict[str, Any] = Field(default_factory=dict)


class EncounterState(State):
    """Where the encounter is: the case's place, and the number of turns in `step_count`."""

    place: int = 0
    turns_left: int = 0


class OpenEnvEnvironment(Environment):
    """One session: an encounter after the other with the cases of `bench`.

    `places` says which case comes next; all sessions of a server share it.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, bench: Bench, places: Iterator[int]) -> None:
        super().__init__()
        self.bench, self._next = bench, places
        self._place, self._id = 0, ""
        self._interaction: Interaction | None = None

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **_: Any
    ) -> EncounterObservation:
        """Opens the case at place `seed` (modulo their number); without a seed, the next one."""
        self._place = (next(self._next) if seed is None else seed) % len(self.bench.cases)
        self._id = episode_id or uuid4().hex
        self._interaction = self.bench.open(self._place)
        return EncounterObservation(messages=messages(self._interaction.opening))

    async def step_async(
        self, action: DoctorAction, timeout_s: float | None = None, **_: Any
    ) -> EncounterObservation:
        """Takes one action. Raises WorkupError where no encounter has begun, or it is over."""
        if self._interaction is None:
            raise WorkupError("no encounter is open: call reset first")
        reply = await self._interaction.say(action.text)
        if not self._interaction.done:
            return EncounterObservation(messages=messages(reply.messages), meant=meant(reply))
        outcome = told(await self.bench.judge(self._interaction.episode))
        said = messages(reply.messages)
        return EncounterObservation(
            messages=said,
            meant=meant(reply),
            done=True,
            reward=outcome["reward"],
            outcome=dict(outcome),
        )

    def step(
        self, action: DoctorAction, timeout_s: float | None = None, **more: Any
    ) -> EncounterObservation:
        return run_to_end(self.step_async(action, timeout_s, **more))

    @property
    def state(self) -> EncounterState:
        turns = len(self._interaction.turns) if self._interaction else 0
        most = self.bench.examination.environment.max_turns
        return EncounterState(
            episode_id=self._id, step_count=turns, place=self._place, turns_left=most - turns
        )


def app(
    method: str = "craft", cases: str = "clinic:s", side: str = "train", **settings: Any
) -> Any:
    """The server of the environment of `method`, an ASGI application.

    `settings` are those of `Bench.of`.

    Serve it with `uvicorn`. Whoever reaches it can play: keep it on loopback.
    """
    return serving(Bench.of(method, cases=cases, side=side, **settings))


def serving(bench: Bench) -> Any:
    """The server for encounters with the cases of `bench`."""
    places = count()
    return create_fastapi_app(
        lambda: OpenEnvEnvironment(bench, places),
        DoctorAction,
        EncounterObservation,
        max_concurrent_envs=SESSIONS,
    )
