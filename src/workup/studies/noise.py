"""Which ranking of facts puts foreign ones last (PM-20).

Do a policy's likelihoods tell a case's own facts from facts of others? ProMed's Table 8.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from markupsafe import Markup
from pydantic import Field

from workup.cases.files import evenly_spaced
from workup.core.case import Case, Fact
from workup.core.draws import seed_key
from workup.core.errors import RolloutError, UserError
from workup.core.ports import Scorer
from workup.core.statistics import SHARE, Estimate, interval, paired
from workup.core.text import normalise
from workup.environments.base.lexical import chinese
from workup.environments.base.withheld import withheld
from workup.loops.evaluation.arms import labels
from workup.methods.promed.question_gains import Facts, Weighing
from workup.methods.promed.shapley import (
    ShapleySettings,
    add_one_in,
    estimate,
    hits,
    leave_one_out,
    precision,
)
from workup.report.sheets import Sheet
from workup.rl.running import run_to_end
from workup.studies.base import plots, trivia
from workup.studies.base.arms import settings_of
from workup.studies.base.likelihood import TOLD, by_case, opened, weights
from workup.studies.base.result import (
    INTERVALS,
    STARRED,
    Result,
    Section,
    for_each,
    left_out,
    plain,
    sheet,
    signed,
)
from workup.studies.base.task import SourceSettings, Study, StudyTask

AT = (1, 3, 10)
SHAPLEY, LEAVE_ONE_OUT, ADD_ONE_IN, CHANCE = "Shapley", "leave one out", "add one in", "chance"
RANKINGS = (SHAPLEY, LEAVE_ONE_OUT, ADD_ONE_IN)
MEASURES = {"hits": "Hits of min(K, own)", "precision": "Precision of K"}
READ = {
    "hits": "How many of the first K are the case's own, of as many as can be. The paper's "
    "Recall@1 of 0.96 cannot be recall with some fifteen own facts; it is this, or precision.",
    "precision": "How many of the first K are the case's own, of K, also where a case has fewer.",
}
TRIES = 50  # other cases that are looked at for facts
POOL = 1_000  # cases that foreign facts are taken from
AT_ONCE = 16  # cases that are ranked at the same time


class Settings(SourceSettings):
    """How noise is added, and how φ is estimated."""

    ratio: float = Field(1.0, gt=0, description="foreign facts for each own one")
    kind: Literal["other", "trivia"] = Field(
        "other",
        description="other: facts of other cases; trivia: remarks that matter to no disease",
    )
    facts: Facts = Field("hidden", description=TOLD)
    least: int = Field(
        0, ge=0, le=3, description="criticality from which on an own fact is relevant"
    )
    orders: int = Field(16, ge=1, description="orders of the facts at most")


@dataclass(frozen=True, slots=True)
class RankedFacts:
    """One case: the places of its relevant facts among `facts`, and every fact's value by ranking.

    `own` of the facts are the case's. Values are in nats.
    """

    case: str
    relevant: tuple[int, ...]
    facts: int
    own: int
    values: Mapping[str, tuple[float, ...]]

    def measured(self, measure: str, ranking: str, k: int) -> float | None:
        """Hits or precision among the first k; None without a relevant fact."""
        if not self.relevant:
            return None
        # By chance all facts are alike, and ties are broken at random.
        scores = self.values.get(ranking, (0.0,) * self.facts)
        return {"hits": hits, "precision": precision}[measure](scores, self.relevant, k)


@dataclass(frozen=True, slots=True)
class RankingFigures:
    """A ranking's mean over cases by measure and K, and by K how far Shapley hits more often."""

    ranking: str
    levels: Mapping[str, Mapping[int, Estimate]]
    lead: Mapping[int, Estimate]


@dataclass(frozen=True)
class Noise(Result):
    """The ranked cases of one policy.

    `left_out` counts cases by the reason for which they could not be ranked. `telling` counts facts
    that contain the answer.
    """

    titled = "Noise injection: {policy} on {source}"

    policy: str
    source: str
    settings: Settings
    ranked: tuple[RankedFacts, ...]
    left_out: Mapping[str, int]
    telling: int

    @property
    def facts(self) -> Mapping[str, str]:
        own = np.mean([len(each.relevant) for each in self.ranked])
        every = np.mean([each.facts for each in self.ranked])
        # As it was: there are not always as many foreign facts as were asked for.
        ratio = sum(e.facts for e in self.ranked) / sum(e.own for e in self.ranked) - 1
        noise = "facts of other cases" if self.settings.kind == "other" else "trivia"
        return {
            "Policy": self.policy,
            "Cases": f"{len(self.ranked):,} of {self.source}",
            "Facts per case": f"{own:.1f} relevant of {every:.1f}",
            "Noise": f"{noise}, {ratio:.2g} for each own fact",
            "Seed": str(self.settings.seed),
        }

    @cached_property
    def rankings(self) -> list[RankingFigures]:
        seed, made = self.settings.seed, list[RankingFigures]()
        for name in (*RANKINGS, CHANCE):
            levels = {
                measure: {
                    k: interval(*self._values(measure, name, k), bounds=SHARE, seed=seed)
                    for k in AT
                }
                for measure in MEASURES
            }
            leads = {
                k: paired(
                    self._values("hits", SHAPLEY, k),
                    self._values("hits", name, k),
                    bounds=SHARE,
                    seed=seed,
                )
                for k in AT
                if name != SHAPLEY
            }
            made.append(RankingFigures(name, levels, leads))
        return made

    def _values(self, measure: str, ranking: str, k: int) -> tuple[list[float | None], list[str]]:
        values = [each.measured(measure, ranking, k) for each in self.ranked]
        return values, [each.case for each in self.ranked]

    def sections(self) -> Sequence[Section]:
        sheets = [self._levels(measure) for measure in MEASURES]
        leads = sheet(
            "Differences",
            self.rankings[1:],
            {
                "": lambda row: f"Shapley − {row.ranking}",
                **for_each(AT, lambda k, row: signed(row.lead[k], 3), "K = {}"),
            },
            f"Hits of min(K, own), paired by case. {STARRED}",
        )
        return [Section("Own facts before foreign ones", (*sheets, leads), self._figure, INTERVALS)]

    def _figure(self) -> Markup:
        label, ks = "Own facts among the first K of each ranking", [f"K = {k}" for k in AT]
        panels = {
            title: {row.ranking: [*row.levels[measure].values()] for row in self.rankings}
            for measure, title in MEASURES.items()
        }
        return plots.rows(label, ks, panels, ends=dict.fromkeys(panels, SHARE))

    def _levels(self, measure: str) -> Sheet:
        return sheet(
            MEASURES[measure],
            self.rankings,
            {
                "ranking": lambda row: row.ranking,
                **for_each(AT, lambda k, row: plain(row.levels[measure][k], 3), "K = {}"),
            },
            READ[measure],
        )

    def notes(self) -> Sequence[str]:
        line = (
            f"{self.telling} own facts contain the answer in so many words: their rank says "
            "nothing about evidence"
        )
        return [*left_out(self.left_out), *([line] if self.telling else [])]


def run(task: StudyTask) -> Noise:
    """Ranks the facts of the test cases. Raises UserError."""
    settings, policy = task.settings, task.one
    evaluation = settings_of(task.values, policy)
    source, environment, cases = opened(evaluation)
    scorer = weights(evaluation, source, environment).scorer()
    weighing = Weighing(environment, facts=settings.facts)
    scored = (fact.weight is not None for case in cases for fact in case.truth.facts)
    if settings.least and not any(scored):
        raise UserError(
            f"least={settings.least}: no fact of {source.name} has a criticality; leave it out"
        )
    pool = spread(source.test)

    async def ranked(case: Case) -> RankedFacts | str:
        foreign = noise(case, pool, weighing.of(case), settings)
        return await rank(case, foreign, weighing, scorer, settings)

    found, lost = run_to_end(by_case(cases, ranked, task.begin(len(cases)), AT_ONCE))
    counted = {each.case for each in found}
    telling = sum(weighing.giveaways(case) for case in cases if case.id in counted)
    return Noise(labels([policy])[policy], source.name, settings, found, lost, telling)


def spread(cases: Sequence[Case]) -> list[Case]:
    """At most POOL of `cases`, evenly spaced."""
    return list(evenly_spaced(cases, POOL))


def noise(case: Case, pool: Sequence[Case], own: Sequence[Fact], settings: Settings) -> list[Fact]:
    """Facts that do not belong to `case`: round(ratio · |own|), at least one if there are any.

    They are drawn by the case's id. From other cases come only facts of another diagnosis, about
    items that the case has no fact of; no text is taken twice.
    """
    rng = np.random.default_rng(seed_key("noise", settings.seed, case.id))
    wanted = max(1, round(settings.ratio * len(own)))
    if settings.kind == "trivia":
        said = case.presentation + case.question + (own[0].text if own else "")
        texts_of = trivia.CHINESE if chinese(said) else trivia.ENGLISH
        return [
            Fact(f"noise{place}", "", texts_of[place])
            for place in rng.permutation(len(texts_of))[:wanted].tolist()
        ]
    own_facts = case.all_facts
    items = {fact.item for fact in own_facts if fact.item}
    texts = {normalise(fact.text) for fact in own_facts}
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
    case: Case, foreign: Sequence[Fact], weighing: Weighing, scorer: Scorer, settings: Settings
) -> RankedFacts | str:
    """Every fact's value by each ranking; or a reason why there is none.

    The reason quotes no text of the case.
    """
    own = weighing.of(case)
    if not own or not foreign:
        return "no facts of its own" if foreign or not own else "no foreign facts to add"
    # Mixed, because the place in the prompt has an effect too.
    order = (
        np.random.default_rng(seed_key("mix", settings.seed, case.id))
        .permutation(len(own) + len(foreign))
        .tolist()
    )
    facts = [(*own, *foreign)[place] for place in order]
    game = weighing.game(case, facts, scorer)
    try:
        seeds = [seed_key("shapley", settings.seed, case.id)]
        φ = await estimate(game, len(facts), ShapleySettings(settings.orders), seeds)
        without, alone = await leave_one_out(game, len(facts)), await add_one_in(game, len(facts))
    except RolloutError:
        return "the prompt does not fit the policy"
    relevant = tuple(
        at
        for at, place in enumerate(order)
        if place < len(own) and (own[place].weight or 0) >= settings.least
    )
    values = {SHAPLEY: φ.values, LEAVE_ONE_OUT: without, ADD_ONE_IN: alone}
    return RankedFacts(case.id, relevant, len(facts), len(own), values)


study = Study(
    "Every case's own facts are mixed with facts that do not belong to it, and all are ranked by "
    "what they do for the policy's likelihood of the right answer. A value that measures evidence "
    "puts the case's own facts first.",
    run,
    Settings,
    of="policy",
)
