"""A policy's own likelihood of the answer given facts, v(S) = log P_θ(A* | Q, S), for studies."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from workup.core.case import Case, Fact, Source
from workup.core.errors import UserError
from workup.core.ports import Environment, LanguageModel, Scorer, ScoreRequest
from workup.environments.base.outset import partial
from workup.environments.base.withheld import withheld
from workup.loops.evaluation.loop import Evaluation, open_model
from workup.methods.promed.shapley import Game, answer_game, pieces
from workup.runs.policies import resolve
from workup.runs.settings import PolicySettings

R = TypeVar("R")
Facts = Literal["hidden", "all"]
TOLD = "hidden: those the presentation does not state; or all"
FactOrder = Literal["permutation", "canonical"]


@dataclass(frozen=True)
class Likelihood:
    """v(S) of the policy behind `scorer`, after the opening of `environment` and the facts of S.

    Each fact is a line. With `facts` "hidden", S is taken from the facts that the presentation does
    not state, and the presentation stands before them. With "all" it is taken from the paper's F,
    and only the question stands before them. `order` is `answer_game`'s.
    """

    scorer: Scorer
    environment: Environment
    facts: Facts = "hidden"
    order: FactOrder = "permutation"

    def of(self, case: Case) -> tuple[Fact, ...]:
        """F, each fact as it would be told: the names of the answer are withheld."""
        return tuple(
            replace(fact, text=withheld(case, fact)) for fact in self._known(case).truth.facts
        )

    def game(self, case: Case, facts: Sequence[Fact]) -> Game:
        """v(S) for S among `facts`, which may hold others than the case's own."""
        lead, answer = self.environment.lessons.conclusion(case)
        request = ScoreRequest(case.id, answer, self.environment.open(self._known(case)), lead=lead)
        return answer_game(self.scorer, request, pieces(facts), self.order)

    def _known(self, case: Case) -> Case:
        return partial(case, 0.0) if self.facts == "all" else case


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
