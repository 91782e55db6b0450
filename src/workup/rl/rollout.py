"""The one rollout loop: a doctor plays a case in an environment, and the result is an episode.

The loop is asynchronous and keeps no state. A local model, an endpoint or a judge gets the requests
of all concurrent episodes at once and can batch them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from inspect import isawaitable
from typing import Any, TypeVar

from workup.core.case import Case
from workup.core.draws import seed_key
from workup.core.episode import DIAGNOSE, Action, Ending, Episode, Message, Observation, Turn
from workup.core.errors import FailuresError, RolloutError, UserError, reason
from workup.core.ports import Act, Doctor, Environment, Policy, Sampling

T = TypeVar("T")

ATTEMPTS = 4  # draws of one action with Play.avoid_repeats; the last one may repeat a question


@dataclass(frozen=True, slots=True)
class Play:
    """How the doctor is sampled: `temperature` 0 is greedy, `max_tokens` limits one completion.

    With `avoid_repeats`, an action whose `Turn.topic` an earlier one had is sampled again. After
    ATTEMPTS draws in all the last one counts. Use it only for evaluation: the result is no longer a
    sample of the policy.
    """

    temperature: float = 1.0
    max_tokens: int = 256
    avoid_repeats: bool = False


@dataclass(frozen=True, slots=True)
class ToPlay:
    """One episode to play; `key` seeds its draws."""

    case: Case
    key: int = 0


def check_failures(failed: Sequence[Episode], total: int, allowed: float) -> None:
    """Raises FailuresError, with the commonest reason, if too many of `total` episodes failed.

    Too many is more than the share `allowed`.
    """
    if len(failed) <= allowed * total:
        return
    reason, count = Counter(episode.reason for episode in failed).most_common(1)[0]
    raise FailuresError(
        f"{len(failed)} of {total} episodes failed, more than max_failed={allowed}; {count} of "
        f"them: {reason}"
    )


class TokenDoctor:
    """A token policy as a doctor; its transcript only grows, and ids stay as they were sampled."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    async def act(
        self, case: Case, opening: Sequence[Message], past: Sequence[Turn], sampling: Sampling
    ) -> Act:
        tokens: list[int] = []
        for turn in past:
            tokens += turn.prompt_tokens
            tokens += turn.completion.tokens
        prompt = self.policy.render(past[-1].observation.messages if past else opening, tokens)
        tokens += prompt
        return Act(prompt, await self.policy.sample(tuple(tokens), sampling))


async def itself(episode: Episode) -> Any:
    """The default `then` of `play_all`: returns the episode."""
    return episode


async def rollout(
    job: ToPlay, environment: Environment, doctor: Doctor, play: Play, past: Sequence[Turn] = ()
) -> Episode:
    """Plays one episode to its end, from the beginning or from the turns `past`.

    The last turn of `past` must not have ended the episode. A RolloutError of the doctor or the
    environment (an endpoint that gave up) makes the episode FAILED, with its reason. Any other
    exception is a defect and propagates. Raises UserError for an environment that returns something
    else than `workup.core.ports.Environment` says.
    """
    opening = _returned(environment.open(job.case), tuple, environment, "open")
    turns = list(past)
    try:
        while len(turns) < environment.max_turns:
            turn = await take_turn(job, environment, doctor, play, opening, turns)
            if turn.observation.done:
                return ended(job.case, opening, turns, turn)
            turns.append(turn)
    except RolloutError as error:
        return Episode(job.case, opening, tuple(turns), Ending.FAILED, reason(error))
    return Episode(job.case, opening, tuple(turns), Ending.OUT_OF_TURNS)


def ended(case: Case, opening: tuple[Message, ...], past: Sequence[Turn], last: Turn) -> Episode:
    """The episode that the turn `last` ended: by its diagnosis, by the token limit, or otherwise.

    An environment that ends an episode at another action has no further turn for it. A completion
    without room for any text is not a turn. Raises RolloutError if no turn is left.
    """
    if not last.completion.truncated:
        diagnosed = last.action.kind == DIAGNOSE
        ending = Ending.DIAGNOSED if diagnosed else Ending.OUT_OF_TURNS
        return Episode(case, opening, (*past, last), ending)
    turns = (*past, last) if last.completion.text or last.completion.tokens else tuple(past)
    if not turns:
        raise RolloutError("the opening leaves no room for a single token in the policy's context")
    return Episode(case, opening, turns, Ending.OUT_OF_TOKENS)


async def take_turn(
    job: ToPlay,
    environment: Environment,
    doctor: Doctor,
    play: Play,
    opening: tuple[Message, ...],
    past: Sequence[Turn],
) -> Turn:
    """The turn after `past`; `done` of its observation is True if it ends the episode.

    Raises what the doctor and the environment raise.
    """
    asked = {turn.topic for turn in past} - {None} if play.avoid_repeats else set()
    sampling = Sampling.of(environment, play.max_tokens, play.temperature, job.key)
    for attempt in range(ATTEMPTS):
        act = await doctor.act(job.case, opening, past, sampling)
        turn = await turn_after(job.case, environment, past, act)
        if turn.observation.done or turn.topic not in asked:
            break
        sampling = replace(sampling, key=seed_key(job.key, len(past), attempt))
    return turn


async def turn_after(case: Case, environment: Environment, past: Sequence[Turn], act: Act) -> Turn:
    """The turn that `act` makes after `past`: what is read in it, and the reply.

    Of a text that the token limit cut off no action is executed, and the episode is over. Raises
    RolloutError as the environment does, and UserError as `rollout`.
    """
    action = _returned(environment.read(act.completion.text), Action, environment, "read")
    if act.completion.truncated:
        return Turn(act.prompt_tokens, act.completion, action, Observation(done=True))
    answer = environment.answer(case, past, action)
    if not isawaitable(answer):
        raise UserError(f"{type(environment).__name__}.answer is a plain function: `async def` it")
    observation = _returned(await answer, Observation, environment, "answer")
    return Turn(act.prompt_tokens, act.completion, action, observation)


def _returned(value: T, kind: type[T], environment: Environment, method: str) -> T:
    """`value`, which a method returned. Raises UserError if it is not of this `kind`."""
    if isinstance(value, kind):
        return value
    raise UserError(
        f"{type(environment).__name__}.{method} returned {type(value).__name__}, not "
        f"{kind.__name__}: see `workup.core.ports.Environment`"
    )


async def play_all(
    jobs: Sequence[ToPlay],
    environment: Environment,
    doctor: Doctor,
    play: Play,
    concurrency: int = 256,
    then: Callable[[Episode], Awaitable[T]] = itself,
) -> list[T]:
    """Plays `jobs`, at most `concurrency` at a time; calls `then` on each episode when it is over.

    Returns what `then` returned, in the order of the jobs. `then` may wait (for a judge): the next
    episode starts meanwhile.
    """
    limit = asyncio.Semaphore(concurrency)

    async def one(job: ToPlay) -> T:
        async with limit:
            episode = await rollout(job, environment, doctor, play)
        return await then(episode)

    return list(await asyncio.gather(*(one(job) for job in jobs)))
