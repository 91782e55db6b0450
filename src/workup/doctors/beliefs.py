"""How probable each disease is to a doctor, after any of its turns.

Three things read these probabilities: calibration (`workup.metrics.calibration`), stopping
(`workup.doctors.stopping`) and the studies of both. Where they come from is said beside every
figure:

- exact: an anchor's own posterior
- scored: a local policy's log-probability of naming each disease of the closed list next, as a
  softmax over the list
- drawn: how often each disease is named in repeated conclusions from the same transcript
- stated: the doctor names one disease and says how sure it is; the rest is spread evenly over the
  others
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from workup.core.case import Case, Source
from workup.core.draws import seed_key
from workup.core.episode import DIAGNOSE, Ending, Episode, Turn
from workup.core.errors import UserError
from workup.core.ports import (
    Doctor,
    Environment,
    Judge,
    Policy,
    Sampling,
    Scorer,
    ScoreRequest,
)
from workup.core.text import asserts, normalise
from workup.doctors.hybrid import TranscriptDiagnoser
from workup.environments.base.anchors import BayesDiagnoser
from workup.metrics.calibration import DRAWN, SCORED, scores
from workup.metrics.extra import Values

DRAWS = 10
ASKED_CONFIDENCE = (
    "Before the diagnosis, write how probable you think it is that it is right, as a whole number "
    "of percent: <confidence>0 to 100</confidence>."
)
_CONFIDENCE = re.compile(r"<confidence>\s{0,9}(\d{1,3}(?:\.\d{1,6})?)\s{0,9}%?\s{0,9}</confidence>")

Probabilities = tuple[float, ...]  # in the order of `Belief.names`, ≥ 0, with a sum of at most 1


class Belief(Protocol):
    """What a doctor believes. `names` is the closed list of diseases."""

    @property
    def names(self) -> Sequence[str]: ...

    async def after(
        self, case: Case, pasts: Sequence[Sequence[Turn]]
    ) -> Sequence[Probabilities | None]:
        """The probabilities after each of `pasts`; None where the doctor gave none to read.

        Raises RolloutError where a model gives up, or a transcript does not fit it.
        """
        ...


def place(belief: Belief, case: Case) -> int | None:
    """The place of the true disease in the closed list; None where it is not listed."""
    names = belief.names
    return names.index(case.truth.diagnosis) if case.truth.diagnosis in names else None


class ExactBelief:
    """The posterior of an anchor."""

    def __init__(self, doctor: BayesDiagnoser) -> None:
        self._doctor, self.names = doctor, tuple(doctor.knowledge.diagnoses)

    async def after(
        self, case: Case, pasts: Sequence[Sequence[Turn]]
    ) -> Sequence[Probabilities | None]:
        known = (self._doctor.evidence(case, past) for past in pasts)
        return [tuple(map(float, self._doctor.knowledge.posterior(each))) for each in known]


class ScoredBelief:
    """P(disease) ∝ P(the policy writes this diagnosis | its transcript so far), over the list.

    The transcript is that of `workup.rl.rollout.TokenDoctor`, token for token.
    """

    def __init__(
        self, policy: Policy, scorer: Scorer, environment: Environment, names: Sequence[str]
    ) -> None:
        self._policy, self._scorer, self._environment = policy, scorer, environment
        self.names = tuple(names)

    async def after(
        self, case: Case, pasts: Sequence[Sequence[Turn]]
    ) -> Sequence[Probabilities | None]:
        opening = self._environment.open(case)
        contexts = []
        for past in pasts:
            tokens = [t for turn in past for t in (*turn.prompt_tokens, *turn.completion.tokens)]
            told = past[-1].observation.messages if past else opening
            contexts.append(((*tokens, *self._policy.render(told, tokens)),))
        requests = []
        for name in self.names:
            lead, _, tail = self._environment.write(DIAGNOSE, name).partition(name)
            requests.append(ScoreRequest(case.id, name + tail, (), tuple(contexts), lead))
        found = await asyncio.gather(*map(self._scorer.score, requests))
        totals = np.array([each.totals for each in found], dtype=float)  # (diseases, pasts)
        weights = np.exp(totals - totals.max(axis=0))
        shares = weights / weights.sum(axis=0)
        return [tuple(column.tolist()) for column in shares.T]


class Concluding(ABC):
    """What drawn and stated beliefs share: a doctor that concludes from a transcript.

    An answer that names a listed disease is that one. Of another answer the judge decides: it is
    the true disease, or none of the list.
    """

    def __init__(
        self, diagnoser: TranscriptDiagnoser, judge: Judge, names: Sequence[str], seed: int
    ) -> None:
        self._diagnoser, self._judge, self._seed = diagnoser, judge, seed
        self.names = tuple(names)
        self._places = {normalise(name): place for place, name in enumerate(self.names)}

    async def after(
        self, case: Case, pasts: Sequence[Sequence[Turn]]
    ) -> Sequence[Probabilities | None]:
        return list(await asyncio.gather(*(self._one(case, tuple(past)) for past in pasts)))

    @abstractmethod
    async def _one(self, case: Case, past: tuple[Turn, ...]) -> Probabilities | None: ...

    async def _said(self, case: Case, past: tuple[Turn, ...], more: str, draw: int) -> str:
        """The text in which the doctor concludes after `past`; "" if it was cut off."""
        key = seed_key("belief", self._seed, case.id, len(past), draw)
        told = replace(self._diagnoser, sampling=replace(self._diagnoser.sampling, key=key))
        opening = self._diagnoser.environment.open(case)
        said = await told.conclude(Episode(case, opening, past, Ending.OUT_OF_TURNS), more)
        return "" if said.truncated else said.text

    async def _named(self, case: Case, text: str) -> str | None:
        """The listed disease that a text names; "" for another one, None where it names none."""
        action = self._diagnoser.environment.read(text)
        if action.kind != DIAGNOSE or not action.content:
            return None
        (answer, *_) = action.content
        place = self._places.get(normalise(answer))
        if place is not None and asserts(answer):
            return self.names[place]
        truth = self._places.get(normalise(case.truth.diagnosis))
        right = truth is not None and await self._judge.same(answer, case)
        return self.names[truth] if truth is not None and right else ""


class DrawnBelief(Concluding):
    """How often each disease was named in `draws` conclusions, each drawn with temperature 1.

    One more draw is spread evenly over the list, so that nothing that may be true has probability
    0: of eight diseases, one named in 7 of 10 draws has (7 + 1/8) / 11. Draws without a readable
    diagnosis are left out. If none is left, there is no belief.
    """

    def __init__(
        self,
        diagnoser: TranscriptDiagnoser,
        judge: Judge,
        names: Sequence[str],
        seed: int = 0,
        draws: int = DRAWS,
    ) -> None:
        super().__init__(diagnoser, judge, names, seed)
        self._draws = draws

    async def _one(self, case: Case, past: tuple[Turn, ...]) -> Probabilities | None:
        async def draw(number: int) -> str | None:
            return await self._named(case, await self._said(case, past, "", number))

        named = await asyncio.gather(*map(draw, range(self._draws)))
        counts = Counter(name for name in named if name is not None)
        total = counts.total()
        if not total:
            return None
        return tuple((counts[name] + 1 / len(self.names)) / (total + 1) for name in self.names)


class StatedBelief(Concluding):
    """The disease that the doctor names has the probability that it states.

    The rest is spread evenly over the other diseases of the list. There is no belief where no
    diagnosis or no number from 0 to 100 can be read.
    """

    async def _one(self, case: Case, past: tuple[Turn, ...]) -> Probabilities | None:
        text = await self._said(case, past, ASKED_CONFIDENCE, 0)
        found, named = _CONFIDENCE.search(text), await self._named(case, text)
        stated = float(found[1]) / 100 if found else 2.0
        if named is None or stated > 1:
            return None
        others = len(self.names) - (named in self.names)
        rest = (1 - stated) / others if others else 0.0
        return tuple(stated if name == named else rest for name in self.names)


@dataclass(frozen=True)
class BeliefScores:
    """The measures of what a doctor believes when it has asked its last question."""

    belief: Belief

    async def __call__(self, episode: Episode, correct: bool) -> Values:
        """Those of `workup.metrics.calibration`. Raises RolloutError where the belief gives up."""
        (last,) = await self.belief.after(episode.case, [episode.gathered])
        return scores(last, place(self.belief, episode.case))


class OwnWeights(NamedTuple):
    """The weights behind a doctor, as a policy and, made when it is needed, as a scorer."""

    policy: Policy
    scorer: Callable[[], Scorer]


@dataclass(frozen=True)
class Believing:
    """How the beliefs of a run's doctors are made; `how` is "scored", "drawn" or "stated".

    Raises UserError where the answers of the source are open, so that there is no list.
    """

    how: str
    source: Source
    environment: Environment
    judge: Judge
    seed: int = 0
    draws: int = DRAWS
    max_tokens: int = 256

    def __post_init__(self) -> None:
        if not self.source.diagnoses:
            raise UserError(
                f"evaluation.probabilities={self.how}: {self.source.name} has no closed list of "
                "diseases to give probabilities of; leave it out"
            )

    def of(self, doctor: Doctor, weights: OwnWeights | None = None) -> Belief:
        """What `doctor` believes: an anchor exactly, any other in the way of `how`.

        Raises UserError where "scored" is wanted of a doctor without `weights` of its own.
        """
        if isinstance(doctor, BayesDiagnoser):
            return ExactBelief(doctor)
        names = self.source.diagnoses
        if self.how == SCORED:
            if weights is None:
                raise UserError(
                    "evaluation.probabilities=scored reads the log-probabilities of local weights "
                    "that play without a strategy; write evaluation.probabilities=drawn or =stated"
                )
            return ScoredBelief(weights.policy, weights.scorer(), self.environment, names)
        temperature = 1.0 if self.how == DRAWN else 0.0
        sampling = Sampling.of(self.environment, self.max_tokens, temperature)
        diagnoser = TranscriptDiagnoser(doctor, self.environment, sampling)
        if self.how == DRAWN:
            return DrawnBelief(diagnoser, self.judge, names, self.seed, self.draws)
        return StatedBelief(diagnoser, self.judge, names, self.seed)
