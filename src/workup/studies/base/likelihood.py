"""What studies of a policy's own likelihoods open, and how they value case after case."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from typing import TypeVar

from workup.core.case import Case, Source
from workup.core.errors import UserError
from workup.core.ports import Environment, LanguageModel
from workup.loops.evaluation.loop import Evaluation, open_model
from workup.runs.policies import resolve
from workup.runs.settings import PolicySettings

R = TypeVar("R")
TOLD = "hidden: those the presentation does not state; or all"


async def by_case(
    cases: Sequence[Case],
    value: Callable[[Case], Awaitable[R | str]],
    tick: Callable[[], None],
    at_once: int = 1,
) -> tuple[tuple[R, ...], dict[str, int]]:
    """Every case's value, in order; and how many cases have none, by the reason for it.

    Raises UserError where no case has a value.
    """
    limit = asyncio.Semaphore(at_once)

    async def one(case: Case) -> R | str:
        async with limit:
            found = await value(case)
        tick()
        return found

    every = await asyncio.gather(*map(one, cases))
    reasons = Counter(each for each in every if isinstance(each, str))
    valued = tuple(each for each in every if not isinstance(each, str))
    if not valued:
        raise UserError(f"no case can be valued; the first: {every[0]}")
    return valued, dict(reasons)


def opened(settings: PolicySettings) -> tuple[Source, Environment, Sequence[Case]]:
    """The source, the environment and the cases that an evaluation with these settings would play.

    Raises UserError.
    """
    found = Evaluation.of(settings, "study")
    with closing(found.supporting):
        return found.source, found.examination.environment, found.examination.played


def weights(settings: PolicySettings, source: Source, environment: Environment) -> LanguageModel:
    """The weights behind the policy that `settings` name.

    Raises UserError for one without log-probabilities: an endpoint, or an anchor.
    """
    policy = resolve(settings.policy)
    if policy.endpoint or policy.name in environment.about.anchors(source, 0):
        raise UserError(
            f"'{policy.name}' gives no log-probabilities, which this study reads: name a run "
            "folder, a model folder or a hub id"
        )
    return open_model(settings, policy)
