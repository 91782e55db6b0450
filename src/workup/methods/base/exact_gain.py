"""Ideal credit: each question is paid what its answer told, by the model behind the cases.

It takes the place of a method's own reward (`reward=exact-gain`), and everything else about the
method stays. It is no method of a paper, and no upper bound: no reward knows better what a question
told, yet a policy that is paid so may end below another. Where patients are asked for terms of the
HPO, the belief is that of the ranker of rare diseases; what they deny moves it nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from math import log

from workup.cases.publications import publications
from workup.core.case import Case, Source
from workup.core.episode import Batch, Episode, Score, Scores, Turn
from workup.core.errors import UserError
from workup.core.ports import Environment, Instruments, Reward
from workup.core.stages import GrpoStage, Stage, any_case
from workup.environments.base.anchors import BayesDiagnoser, exact_reader
from workup.environments.base.encounter import GREEDY
from workup.environments.base.queries import hops
from workup.environments.base.rankers import TermDoctor
from workup.methods import EXACT_GAIN
from workup.methods.base.outcome import malformed, score_each
from workup.rl.credit import one_step, to_go

Potential = Callable[[Case, Sequence[Turn]], float]
"""Φ(s): a case and the turns so far → how probable the truth is by then."""

PENALTY = 0.2
"""Taken off an episode without a diagnosis, as the methods' own rewards do."""

LEAST = 1e-6
"""A probability below it counts as this one: no single answer costs more than log(1/LEAST) nats."""


def r(Φ: Sequence[float], acc: float) -> tuple[float, ...]:
    """r_t = Φ(s_{t+1}) − Φ(s_t), with Φ(s_t) = log p(d* | e_t); on the last turn acc besides.

    e_t is what the presentation and the answers to the first t of T actions told. So the sum
    telescopes: Σ_t r_t = log p(d* | e_T) − log p(d* | e_0) + acc. `Φ` has T + 1 values, in nats.
    """
    *gains, last = (after - before for before, after in pairwise(Φ))
    return (*gains, last + acc)


def paid_by_gain(
    stages: Sequence[Stage], source: Source, environment: Environment
) -> Sequence[Stage]:
    """The stages, each reinforcement paid by `exact_gain`; all others stay.

    The advantage of a turn is its own reward, and what is to be expected from there on less what
    was before (`one_step`). With its own gain alone the policy would stop early, since a diagnosis
    tells nothing and late questions tell less than the average. With all rewards to come (`to_go`)
    a question would be paid for what later ones happened to tell. Raises UserError where there is
    no such reward.
    """
    if not any(isinstance(stage, GrpoStage) for stage in stages):
        raise UserError(
            f"reward={EXACT_GAIN} is for a method that reinforces, and this one does not: leave it "
            "out"
        )
    about = environment.about
    if not about.asks and not (about.searches and hops(source)):
        raise UserError(
            f"reward={EXACT_GAIN} pays what a question tells, and in this environment nothing can "
            "be asked for one by one: leave it out"
        )
    fits: Callable[[Case], None] = any_case
    if (reader := exact_reader(source, environment)) is not None:
        fits, Φ = _known_by(reader), potential(reader)
        credit, alone = one_step(lambda case: Φ(case, ())), True
    elif isinstance(asker := about.anchors(source, 0).get(GREEDY), TermDoctor):
        Φ, credit, alone = ranked_potential(asker), to_go(baseline="leave-one-out"), False
    else:
        raise UserError(
            f"reward={EXACT_GAIN} needs a model of the cases, which {source.name} does not have: "
            "leave it out"
        )
    reward = exact_gain(Φ)
    return [
        GrpoStage(stage.name, reward, credit, fits=fits, alone=alone)
        if isinstance(stage, GrpoStage)
        else stage
        for stage in stages
    ]


def _known_by(reader: BayesDiagnoser) -> Callable[[Case], None]:
    """A check of cases that raises UserError for a diagnosis that the reader does not know."""

    def fits(case: Case) -> None:
        if case.truth.diagnosis not in reader.knowledge.diagnoses:
            raise UserError(
                f"case '{case.id}': the model of the cases does not know '{case.truth.diagnosis}', "
                f"so that reward={EXACT_GAIN} cannot pay for it"
            )

    return fits


def potential(reader: BayesDiagnoser) -> Potential:
    """Φ(s) = log p(d* | e), in nats and at least log(LEAST); `r` says what e is."""
    place = {name: k for k, name in enumerate(reader.knowledge.diagnoses)}

    # Episodes share their first answers. Sorted, equal evidence is summed in one order.
    @lru_cache(maxsize=1 << 15)
    def posterior(evidence: tuple[tuple[str, tuple[str, ...]], ...]) -> Sequence[float]:
        return reader.knowledge.posterior(dict(evidence))

    def Φ(case: Case, past: Sequence[Turn]) -> float:
        p = posterior(tuple(sorted(reader.evidence(case, past).items())))
        return log(max(p[place[case.truth.diagnosis]], LEAST))

    return Φ


def ranked_potential(asker: TermDoctor) -> Potential:
    """Φ(s) = log P(d*), in nats and at least log(LEAST), by the ranker's belief P.

    A disease without annotations but those of the case's own publication has P = 0: no question
    about it gains or loses anything.
    """

    # Episodes of one case share their first answers.
    probability = lru_cache(maxsize=1 << 15)(asker.rankings.probability)

    def Φ(case: Case, past: Sequence[Turn]) -> float:
        own = frozenset[str]() if asker.own_paper else publications(case)
        present = tuple(sorted(asker.present(case, past)))
        return log(max(probability(tuple(case.truth.codes), present, own), LEAST))

    return Φ


def exact_gain(Φ: Potential) -> Reward:
    """The reward `r` of every episode, less PENALTY on the last turn of one without a diagnosis."""

    def score(episode: Episode, acc: float) -> Score:
        turns = episode.turns
        told = [Φ(episode.case, turns[:t]) for t in range(len(turns) + 1)]
        penalty = -PENALTY if malformed(episode) else 0.0
        parts = {"gain": told[-1] - told[0], "acc": acc, "malformed": penalty}
        return Score(r(told, acc + penalty), parts)

    async def reward(batch: Batch, instruments: Instruments) -> Scores:
        return await score_each(batch, instruments.judge, score)

    return reward
