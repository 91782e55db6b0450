"""The gain of each question of an encounter (ProMed): the facts newly understood, weighted.

With φ~, the softmax of the facts' Shapley values under a language model, it is the Shapley
information gain SIG (PM-6). With 1/|F| it is the plain information gain (PM-3).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from workup.core.case import Case, Fact
from workup.core.draws import seed_key
from workup.core.episode import Episode
from workup.core.errors import RolloutError, UserError
from workup.core.ports import Environment, Scorer, ScoreRequest
from workup.environments.base.outset import partial
from workup.environments.base.withheld import withheld
from workup.methods.promed.shapley import (
    Game,
    ShapleySettings,
    answer_game,
    estimate,
    gains,
    giveaways,
    pieces,
    softmax,
    uniform,
)
from workup.methods.promed.understanding import Understanding

Facts = Literal["hidden", "all"]
FactOrder = Literal["permutation", "canonical"]


@dataclass(frozen=True)
class Weighing:
    """How the facts F of a case are weighed; prompts are those of `environment`.

    With `facts` "hidden", F are the facts that the presentation does not state, and the
    presentation stands before them: v(S) = log P(A* | Q_p, S). With "all", F is the paper's: all
    facts, sentences of the presentation among them that no fact states (`partial`), after the bare
    question, v(S) = log P(A* | Q, S).
    """

    environment: Environment
    plan: ShapleySettings = field(default_factory=ShapleySettings)
    order: FactOrder = "permutation"
    facts: Facts = "hidden"

    def known(self, case: Case) -> Case:
        """The case with the presentation that stands before S, and with F as its hidden facts."""
        return partial(case, 0.0) if self.facts == "all" else case

    def of(self, case: Case) -> tuple[Fact, ...]:
        """F as the patient tells it: without the names of the answer; those of others stay."""
        facts = self.known(case).truth.facts
        return tuple(replace(fact, text=withheld(case, fact)) for fact in facts)

    def request(self, case: Case) -> ScoreRequest:
        """A* as the policy writes it, after the environment's opening."""
        lead, answer = self.environment.lessons.conclusion(case)
        return ScoreRequest(case.id, answer, self.environment.open(self.known(case)), lead=lead)

    def game(self, case: Case, facts: Sequence[Fact], scorer: Scorer) -> Game:
        """v(S) for S among `facts`, which may hold others than the case's own."""
        return answer_game(scorer, self.request(case), pieces(facts), self.order)

    async def shapley(self, case: Case, scorer: Scorer, key: int = 0) -> dict[str, float]:
        """φ~ by id; the weights sum to 1. Orders are drawn by `key` and the case's id.

        Raises UserError for a case that does not fit the scorer's context.
        """
        facts = self.of(case)
        game = self.game(case, facts, scorer)
        try:
            φ = await estimate(game, len(facts), self.plan, [seed_key("shapley", key, case.id)])
        except RolloutError as error:
            raise UserError(
                f"Shapley values: {error}; leave the case out, or weigh all facts alike "
                "(reward.process=ig)"
            ) from error
        return dict(zip([fact.id for fact in facts], softmax(φ.values), strict=True))

    def alike(self, case: Case) -> dict[str, float]:
        """1/|F| by id."""
        facts = self.known(case).truth.facts
        return dict(zip([fact.id for fact in facts], uniform(len(facts)), strict=True))

    def giveaways(self, case: Case) -> int:
        """How many facts contain the answer even as the patient tells them.

        Their φ says nothing about evidence.
        """
        return len(giveaways(self.of(case), case.truth.diagnosis))


async def question_gains(
    episodes: Sequence[Episode],
    weighing: Weighing,
    understanding: Understanding,
    scorer: Scorer | None,
    key: int = 0,
) -> list[tuple[float, ...]]:
    """SIG(q_t) of every turn of every episode, 0 for turns that are not questions.

    Without a scorer it is the plain gain IG. Facts are weighed once per case, whatever the number
    of its episodes; `key` seeds the orders that are drawn for that.
    """
    cases = {episode.case.id: episode.case for episode in episodes}
    if scorer is None:
        weights = {id: weighing.alike(case) for id, case in cases.items()}
    else:
        found = await asyncio.gather(
            *(weighing.shapley(case, scorer, key) for case in cases.values())
        )
        weights = dict(zip(cases, found, strict=True))
    facts = {id: weighing.of(case) for id, case in cases.items()}
    understood = await asyncio.gather(
        *(understanding(episode, facts[episode.case.id]) for episode in episodes)
    )
    return [
        gains(known, weights[episode.case.id])
        for episode, known in zip(episodes, understood, strict=True)
    ]
