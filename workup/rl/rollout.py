"""The one episode loop: a doctor, a case and an environment make an episode.

Asynchronous and without state: whatever waits (a local model, an endpoint, a judge) sees all
concurrent episodes at once and may batch them.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from workup.case import Case
from workup.episode import Ending, Episode, Message, Observation, Turn
from workup.errors import RolloutError, WorkupError
from workup.ports import Act, Doctor, Environment, Policy, Sampling

T = TypeVar("T")

ATTEMPTS = 4  # draws before a repeated question is let through, with Play.avoid_repeats


@dataclass(frozen=True, slots=True)
class Play:
    """How the doctor is sampled: `temperature` 0 is greedy, `max_tokens` bounds one completion.

    `avoid_repeats` draws again (at most ATTEMPTS times) when an action asks for what was asked
    before: for evaluation only, since it is no longer the policy's own distribution.
    """

    temperature: float = 1.0
    max_tokens: int = 256
    avoid_repeats: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """One episode to play; `key` seeds its draws."""

    case: Case
    key: int = 0


def seed_key(*parts: object) -> int:
    """A 64-bit number that depends on all parts and on nothing else (not on the process or
    platform).
    """
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "big")


def check_failures(failed: Sequence[Episode], total: int, allowed: float) -> None:
    """Raises WorkupError when more than the share `allowed` of `total` episodes failed, with the
    commonest reason.
    """
    if len(failed) <= allowed * total:
        return
    reason, count = Counter(episode.reason for episode in failed).most_common(1)[0]
    raise WorkupError(
        f"{len(failed)} of {total} episodes failed, more than max_failed={allowed}; {count} of "
        f"them: {reason}"
    )


class TokenDoctor:
    """A token policy in the doctor's chair: transcripts only grow, and ids are passed on exactly as
    sampled.
    """

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
    """What `play_all` returns when nothing else is asked for."""
    return episode


async def rollout(
    job: Job, environment: Environment, doctor: Doctor, play: Play, past: Sequence[Turn] = ()
) -> Episode:
    """Plays one episode to its end, from its beginning or on from the turns `past`, the last of
    which ended nothing.

    A RolloutError from the doctor or the environment (an endpoint or a patient that gave up) makes
    the episode FAILED with its reason; any other exception is a defect and propagates.
    """
    opening = environment.open(job.case)
    turns = list(past)
    try:
        while len(turns) < environment.max_turns:
            turn = await take_turn(job, environment, doctor, play, opening, turns)
            if turn.observation.done:
                return ended(job.case, opening, turns, turn)
            turns.append(turn)
    except RolloutError as error:
        return Episode(
            job.case, opening, tuple(turns), Ending.FAILED, str(error) or type(error).__name__
        )
    return Episode(job.case, opening, tuple(turns), Ending.OUT_OF_TURNS)


def ended(case: Case, opening: tuple[Message, ...], past: Sequence[Turn], last: Turn) -> Episode:
    """The episode that `last` ended: by its diagnosis, or because it hit the token limit.

    A completion that had no room for any text is no turn; raises RolloutError where no turn is
    left.
    """
    if not last.completion.truncated:
        return Episode(case, opening, (*past, last), Ending.DIAGNOSED)
    turns = (*past, last) if last.completion.text or last.completion.tokens else tuple(past)
    if not turns:
        raise RolloutError("the opening leaves no room for a single token in the policy's context")
    return Episode(case, opening, turns, Ending.OUT_OF_TOKENS)


async def take_turn(
    job: Job,
    environment: Environment,
    doctor: Doctor,
    play: Play,
    opening: tuple[Message, ...],
    past: Sequence[Turn],
) -> Turn:
    """The turn that follows `past`; its observation is `done` where it ends the episode.

    Raises what the others raise.
    """
    asked = (
        {turn.observation.item for turn in past if turn.observation.item}
        if play.avoid_repeats
        else set()
    )
    sampling = Sampling(environment.stop, play.max_tokens, play.temperature, job.key)
    for attempt in range(ATTEMPTS):
        act = await doctor.act(job.case, opening, past, sampling)
        if act.completion.truncated:
            # Cut off in mid-sentence: nothing is executed, and the episode is over.
            return Turn(
                act.prompt_tokens,
                act.completion,
                environment.read(act.completion.text),
                Observation(done=True),
            )
        action = environment.read(act.completion.text)
        observation = await environment.answer(job.case, past, action)
        if observation.item not in asked:
            break
        sampling = replace(sampling, key=seed_key(job.key, len(past), attempt))
    return Turn(act.prompt_tokens, act.completion, action, observation)


async def play_all(
    jobs: Sequence[Job],
    environment: Environment,
    doctor: Doctor,
    play: Play,
    concurrency: int = 256,
    then: Callable[[Episode], Awaitable[T]] = itself,
) -> list[T]:
    """Plays `jobs`, at most `concurrency` at a time, and hands each episode to `then` as soon as it
    is over.

    What `then` returns comes back in the order of the jobs. It may wait (for a judge) without
    holding up the next episode.
    """
    limit = asyncio.Semaphore(concurrency)

    async def one(job: Job) -> T:
        async with limit:
            episode = await rollout(job, environment, doctor, play)
        return await then(episode)

    return list(await asyncio.gather(*(one(job) for job in jobs)))
