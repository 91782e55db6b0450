"""Do a policy's likelihoods tell a case's own facts from facts of others?

ProMed PM-20, Table 8.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from workup.cases.files import evenly_spaced
from workup.core.case import Case, Fact, Source
from workup.core.errors import RolloutError, UserError
from workup.core.statistics import SHARE, Estimate, interval, paired
from workup.core.text import normalise
from workup.environments.base.lexical import chinese
from workup.environments.base.withheld import withheld
from workup.methods.promed.shapley import (
    ShapleySettings,
    add_one_in,
    estimate,
    giveaways,
    hits,
    leave_one_out,
    precision,
)
from workup.rl.rollout import seed_key
from workup.rl.running import run_to_end
from workup.runs.settings import PolicySettings
from workup.studies import plots, trivia
from workup.studies.likelihood import Facts, Likelihood, opened, weights
from workup.studies.study import Section, Sheet, Study, plain, signed

AT = (1, 3, 10)
SHAPLEY, LEAVE_ONE_OUT, ADD_ONE_IN, CHANCE = "Shapley", "leave one out", "add one in", "chance"
RANKINGS = (SHAPLEY, LEAVE_ONE_OUT, ADD_ONE_IN)
MEASURES = {"hits": "Hits of min(K, own)", "precision": "Precision of K"}
Kind = Literal["other", "trivia"]
TRIES = 50  # other cases that are looked at for facts
POOL = 1_000  # cases that foreign facts are taken from


@dataclass(frozen=True, slots=True)
class Injection:
    """How noise is added, and how φ is estimated.

    There are `ratio` foreign facts for each own one, from "other" cases or "trivia". `least` is the
    criticality ψ from which on an own fact is relevant: with 1 the own facts that tell nothing
    count as noise too.
    """

    ratio: float = 1.0
    kind: Kind = "other"
    facts: Facts = "hidden"
    least: int = 0
    plan: ShapleySettings = field(default_factory=ShapleySettings)
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Ranked:
    """One case: the places of its relevant facts among `facts`, and every fact's value by ranking.

    Values are in nats.
    """

    case: str
    relevant: tuple[int, ...]
    facts: int
    values: Mapping[str, tuple[float, ...]]

    def measured(self, measure: str, ranking: str, k: int) -> float | None:
        """Hits or precision among the first k; None without a relevant fact."""
        if not self.relevant:
            return None
        scores = self.values.get(
            ranking, (0.0,) * self.facts
        )  # chance: all alike, ties broken at random
        return {"hits": hits, "precision": precision}[measure](scores, self.relevant, k)


@dataclass(frozen=True)
class Noise(Study):
    """The ranked cases of one policy.

    `left_out` counts cases by the reason for which they could not be ranked.
    """

    name: ClassVar[str] = "noise"
    question: ClassVar[str] = (
        "Every case's own facts are mixed with facts that do not belong to it, and all are "
        "ranked by what they do for the policy's likelihood of the right answer. A value that "
        "measures evidence puts the case's own facts first."
    )
    policy: str
    source: str
    injection: Injection
    ranked: tuple[Ranked, ...]
    left_out: Mapping[str, int]
    telling: int  # facts that contain the answer

    @property
    def title(self) -> str:
        return f"Noise injection: {self.policy} on {self.source}"

    @property
    def facts(self) -> Mapping[str, str]:
        own = np.mean([len(each.relevant) for each in self.ranked])
        every = np.mean([each.facts for each in self.ranked])
        noise = "facts of other cases" if self.injection.kind == "other" else "trivia"
        return {
            "Policy": self.policy,
            "Cases": f"{len(self.ranked):,} of {self.source}",
            "Facts per case": f"{own:.1f} relevant of {every:.1f}",
            "Noise": f"{noise}, {self.injection.ratio:g} for each own fact",
            "Seed": str(self.injection.seed),
        }

    def level(self, measure: str, ranking: str, k: int) -> Estimate:
        """The mean over cases."""
        return interval(
            [each.measured(measure, ranking, k) for each in self.ranked],
            self._ids,
            bounds=SHARE,
            seed=self.injection.seed,
        )

    def lead(self, measure: str, other: str, k: int) -> Estimate:
        """Shapley − `other`, paired by case."""
        ours, theirs = (
            ([each.measured(measure, name, k) for each in self.ranked], self._ids)
            for name in (SHAPLEY, other)
        )
        return paired(ours, theirs, bounds=SHARE, seed=self.injection.seed)

    @property
    def _ids(self) -> list[str]:
        return [each.case for each in self.ranked]

    def sections(self) -> Sequence[Section]:
        caption = "Means over cases with 95\u00a0% intervals (bootstrap by case)."
        sheets = [self._levels(measure) for measure in MEASURES]
        return [
            Section(
                "Own facts before foreign ones", (*sheets, self._leads()), self._figure(), caption
            )
        ]

    def _figure(self) -> Any:
        everyone, ends = (*RANKINGS, CHANCE), dict.fromkeys(MEASURES.values(), plots.SHARE)
        panels = {
            title: {name: [self.level(measure, name, k) for k in AT] for name in everyone}
            for measure, title in MEASURES.items()
        }
        return plots.rows(
            "Own facts among the first K of each ranking",
            [f"K = {k}" for k in AT],
            panels,
            ends=ends,
        )

    def _levels(self, measure: str) -> Sheet:
        rows = tuple(
            (name, *(plain(self.level(measure, name, k), 3) for k in AT))
            for name in (*RANKINGS, CHANCE)
        )
        how = {
            "hits": "How many of the first K are the case's own, of as many as can be. The paper's "
            "Recall@1 of 0.96 cannot be recall with some fifteen own facts; it is this, or "
            "precision.",
            "precision": (
                "How many of the first K are the case's own, of K, also where a case has fewer."
            ),
        }
        return Sheet(MEASURES[measure], ("ranking", *(f"K = {k}" for k in AT)), rows, how[measure])

    def _leads(self) -> Sheet:
        rows = tuple(
            (f"Shapley − {other}", *(signed(self.lead("hits", other, k), 3) for k in AT))
            for other in (LEAVE_ONE_OUT, ADD_ONE_IN, CHANCE)
        )
        note = "Hits of min(K, own), paired by case. *: the interval leaves out 0."
        return Sheet("Differences", ("", *(f"K = {k}" for k in AT)), rows, note)

    def notes(self) -> Sequence[str]:
        lost = [f"{count} cases left out: {reason}" for reason, count in self.left_out.items()]
        facts_line = (
            f"{self.telling} own facts contain the answer in so many words: their rank says "
            "nothing about evidence"
        )
        return [*lost, *([facts_line] if self.telling else [])]

    def as_json(self) -> dict[str, Any]:
        i = self.injection
        how = {
            "ratio": i.ratio,
            "noise": i.kind,
            "facts": i.facts,
            "least": i.least,
            "orders": i.plan.permutations,
        }
        levels = {
            measure: {
                name: {str(k): self.level(measure, name, k).as_json() for k in AT}
                for name in (*RANKINGS, CHANCE)
            }
            for measure in MEASURES
        }
        cases = [
            {
                "case": each.case,
                "relevant": list(each.relevant),
                "values": {name: list(v) for name, v in each.values.items()},
            }
            for each in self.ranked
        ]
        about = {"policy": self.policy, "cases": self.source, "seed": i.seed, **how}
        return {
            **about,
            **levels,
            "left_out": dict(self.left_out),
            "telling": self.telling,
            "ranked": cases,
        }


def study(
    settings: PolicySettings,
    label: str,
    injection: Injection,
    began: Callable[[int], None],
    tick: Callable[[], None],
) -> Noise:
    """Ranks the facts of the test cases; `began` gets their number. Raises UserError."""
    source, environment, cases = opened(settings)
    likelihood = Likelihood(
        weights(settings, source, environment).scorer(), environment, injection.facts
    )
    if injection.least and not any(
        fact.weight is not None for case in cases for fact in case.truth.facts
    ):
        raise UserError(
            f"--least {injection.least}: no fact of {source.name} has a criticality; leave it out"
        )
    began(len(cases))
    return run_to_end(_study(label, source, cases, likelihood, injection, tick))


async def _study(
    label: str,
    source: Source,
    cases: Sequence[Case],
    likelihood: Likelihood,
    injection: Injection,
    tick: Callable[[], None],
) -> Noise:
    limit = asyncio.Semaphore(16)
    pool = spread(source.test)

    async def one(case: Case) -> Ranked | str:
        async with limit:
            found = await rank(
                case, noise(case, pool, likelihood.of(case), injection), likelihood, injection
            )
        tick()
        return found

    found = await asyncio.gather(*(one(case) for case in cases))
    ranked = tuple(each for each in found if isinstance(each, Ranked))
    if not ranked:
        raise UserError(f"{source.name}: no case could be ranked; the first: {found[0]}")
    reasons = [each for each in found if isinstance(each, str)]
    telling = sum(len(giveaways(likelihood.of(case), case.truth.diagnosis)) for case in cases)
    return Noise(
        label,
        source.name,
        injection,
        ranked,
        {reason: reasons.count(reason) for reason in dict.fromkeys(reasons)},
        telling,
    )


def spread(cases: Sequence[Case]) -> list[Case]:
    """At most POOL of `cases`, evenly spaced."""
    return list(evenly_spaced(cases, POOL))


def noise(
    case: Case, pool: Sequence[Case], own: Sequence[Fact], injection: Injection
) -> list[Fact]:
    """Facts that do not belong to `case`: round(ratio · |own|), at least one if there are any.

    They are drawn by the case's id. From other cases come only facts of another diagnosis, about
    items that the case has no fact of; no text is taken twice.
    """
    rng = np.random.default_rng(seed_key("noise", injection.seed, case.id))
    wanted = max(1, round(injection.ratio * len(own)))
    if injection.kind == "trivia":
        texts_of = (
            trivia.CHINESE
            if chinese(case.presentation + case.question + (own[0].text if own else ""))
            else trivia.ENGLISH
        )
        return [
            Fact(f"noise{place}", "", texts_of[place])
            for place in rng.permutation(len(texts_of))[:wanted].tolist()
        ]
    own_facts = (*case.given, *case.truth.facts)
    items, texts = (
        {fact.item for fact in own_facts if fact.item},
        {normalise(fact.text) for fact in own_facts},
    )
    found: list[Fact] = []
    for fact in _foreign(case, pool, rng):
        if fact.item in items or normalise(fact.text) in texts:
            continue
        found.append(Fact(f"noise{len(found)}", fact.item, withheld(case, fact)))
        texts.add(normalise(fact.text))
        items |= {fact.item} - {""}
        if len(found) == wanted:
            break
    return found


def _foreign(case: Case, pool: Sequence[Case], rng: np.random.Generator) -> Iterator[Fact]:
    """At most two facts of each other case, so that the noise is not one patient's record."""
    for place in rng.permutation(len(pool))[:TRIES].tolist():
        other = pool[place]
        if other.id != case.id and normalise(other.truth.diagnosis) != normalise(
            case.truth.diagnosis
        ):
            facts = other.truth.facts
            yield from (facts[number] for number in rng.permutation(len(facts))[:2].tolist())


async def rank(
    case: Case, foreign: Sequence[Fact], likelihood: Likelihood, injection: Injection
) -> Ranked | str:
    """Every fact's value by each ranking; or a reason why there is none.

    The reason quotes no text of the case.
    """
    own = likelihood.of(case)
    if not own or not foreign:
        return "no facts of its own" if foreign or not own else "no foreign facts to add"
    # Mixed, because the place in the prompt has an effect too.
    order = (
        np.random.default_rng(seed_key("mix", injection.seed, case.id))
        .permutation(len(own) + len(foreign))
        .tolist()
    )
    facts = [(*own, *foreign)[place] for place in order]
    game = likelihood.game(case, facts)
    try:
        φ = await estimate(
            game, len(facts), injection.plan, [seed_key("shapley", injection.seed, case.id)]
        )
        without, alone = await leave_one_out(game, len(facts)), await add_one_in(game, len(facts))
    except RolloutError:
        return "the prompt does not fit the policy"
    relevant = tuple(
        at
        for at, place in enumerate(order)
        if place < len(own) and (own[place].weight or 0) >= injection.least
    )
    values = {SHAPLEY: φ.values, LEAVE_ONE_OUT: without, ADD_ONE_IN: alone}
    return Ranked(case.id, relevant, len(facts), values)
