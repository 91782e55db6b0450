"""The rewards of search–refine–diagnose episodes (C-MIG CM-6 to CM-11, CM-14), in parts.

R_total = R_format + R_diag + R_doc + R_process. Methods differ in two parts. R_diag compares the
answer exactly, by embedding or by ICD tree. The process is rewarded by nothing, by a hit of the
answer's name, or by an information gain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from typing import Literal

from workup.core.case import Case
from workup.core.episode import Batch, Ending, Episode, Score, Scores
from workup.core.ports import AllGather, Context, Credit, Instruments, Reward, Scorer, ScoreRequest
from workup.core.text import neutralise, same_name, tagged
from workup.environments.base.searching import DIAGNOSIS, REFINE, SearchGrammar, evidence
from workup.methods.base.encoders import embedder
from workup.methods.cmig.information_gain import (
    LogitP,
    Order,
    document_rewards,
    logit_p,
    probability_gains,
    refinement_rewards,
)
from workup.methods.cmig.naming import PRINTED, NamingRule
from workup.metrics.documents import contains, doc_hit
from workup.metrics.extra.emb import Embedding
from workup.metrics.extra.kg import KnowledgeGraph
from workup.metrics.icd_distance import load_tree
from workup.metrics.name_files import look, synonyms
from workup.metrics.naming import Coder, known_names
from workup.rl.credit import Advantages, turn_zscore

Composition = Literal["nonlinear", "linear"]
View = Literal["refinement", "query", "documents"]
Likeness = Callable[[str, Case], Awaitable[float]]  # answer, case → R_diag within [0, 1]


@dataclass(frozen=True, slots=True)
class Supervision:
    """The process reward of one episode: `turns` for single turns (R_doc, gains), and R_process."""

    turns: tuple[float, ...]
    process: float = 0.0


Supervise = Callable[[Sequence[Episode], Instruments], Awaitable[Sequence[Supervision]]]


# --- the outcome ---


def answered(episode: Episode) -> str:
    """The diagnosis that was given; "" if there was none or the token limit cut it off."""
    return episode.answer[0] if episode.ending is Ending.DIAGNOSED else ""


def exact(answer: str, case: Case) -> bool:
    """Whether answer and gold diagnosis have the same normal form (CM-9); aliases do not count."""
    return same_name(answer, case.truth.diagnosis)


async def exact_match(answer: str, case: Case) -> float:
    """R_diag as printed: 1 or 0."""
    return float(exact(answer, case))


def icd_tree(release: str = "cm", names: str = "") -> Likeness:
    """R_diag of AutoRefine-ICDTree: KG = max(0, 1 − 0.2·d) (CM-16).

    It is 1 if the names match, and 0 for a name without a code. `names` is a file of further names
    (`workup.metrics.name_files.synonyms`). The first one loads the release, which takes seconds.
    Raises UserError if its package is missing or the file cannot be read.
    """
    graph = _graph(release, names)  # now: a mistake must not wait for the first wrong answer

    async def likeness(answer: str, case: Case) -> float:
        return 1.0 if exact(answer, case) else await graph.score(answer, case)

    return likeness


@cache
def _graph(release: str, names: str) -> KnowledgeGraph:
    """The graph with the names of release and file alone.

    A reward must not depend on which other cases are in the batch.
    """
    look(names)
    icd = load_tree(release)
    return KnowledgeGraph(Coder(icd, more=synonyms(names, icd, known_names(icd))))


def embedding(encoder: str, threshold: float) -> Likeness:
    """R_diag of AutoRefine-Embedding (Eq. 12): the cosine of answer and gold diagnosis.

    It is 0 below `threshold`. `encoder` is one of `workup.methods.base.encoders`. Raises UserError
    for a model that does not exist.
    """
    measured = Embedding(embedder(encoder), threshold)

    async def likeness(answer: str, case: Case) -> float:
        return measured.score(answer, case)

    return likeness


# --- the way there ---


async def unsupervised(
    episodes: Sequence[Episode], instruments: Instruments
) -> Sequence[Supervision]:
    """Search-R1: no process reward, only the outcome."""
    return [Supervision((0.0,) * len(episode.turns)) for episode in episodes]


def hard(view: View, weight: float, naming: NamingRule = PRINTED) -> Supervise:
    """R_process = `weight`·1[a ⊆ I] (Eq. 13): whether the answer's name a is in the text I.

    I is any refinement of passages (AutoRefine), query (HardSearch) or document (HardDoc). `naming`
    says which refinements and queries count.
    """

    def seen(episode: Episode) -> bool:
        if view == "documents":
            return bool(doc_hit(episode))
        written = naming.queries(episode) if view == "query" else naming.refinements(episode)
        return contains(written, episode.case)

    async def supervise(
        episodes: Sequence[Episode], instruments: Instruments
    ) -> Sequence[Supervision]:
        return [
            Supervision((0.0,) * len(episode.turns), weight * seen(episode)) for episode in episodes
        ]

    return supervise


@dataclass(frozen=True, slots=True)
class GainWeights:
    """C-MIG's two views, in the paper's letters: see `workup.methods.cmig.information_gain`.

    A view with weight 0 asks the scorer nothing. `joined` says which refinements make s_refine: all
    of them, one after the other, or the last one.
    """

    w_d: float = 1.0
    alpha_d: float = 1.0
    w_r: float = 0.1
    order: Order = 2
    half_positive: bool = True
    joined: Literal["all", "last"] = "all"


def multi_view(gains: GainWeights, scorer: str, naming: NamingRule = PRINTED) -> Supervise:
    """C-MIG: R_doc by turn (CM-6) and R_refine (CM-7).

    `scorer` ("reference" or "policy") measures both. A round of R_doc is a search that found a
    passage and that another turn follows: nobody reads what the last turn found. The median of CM-7
    runs over every episode of the batch that has a refinement; `naming` says which refinements
    count.
    """

    async def supervise(
        episodes: Sequence[Episode], instruments: Instruments
    ) -> Sequence[Supervision]:
        judge = instruments.scorer(scorer)
        views = await asyncio.gather(
            *(_views(judge, episode, gains, naming.refinements(episode)) for episode in episodes)
        )
        refined = refinement_rewards(
            [view.refined for view in views], instruments.all_gather, w_r=gains.w_r
        )
        turns = (
            _by_turn(episode, view, gains) for episode, view in zip(episodes, views, strict=True)
        )
        return [Supervision(*paid) for paid in zip(turns, refined, strict=True)]

    return supervise


def _by_turn(episode: Episode, view: LogitP, gains: GainWeights) -> tuple[float, ...]:
    """The summands of R_doc, each on the turn whose search returned the round's documents."""
    g = gains
    rewards = iter(
        document_rewards(
            view.rounds, w_d=g.w_d, alpha_d=g.alpha_d, order=g.order, half_positive=g.half_positive
        )
    )
    found = (turn.observation.passages for turn, _ in pairwise(episode.turns))
    return (*(next(rewards, 0.0) if passages else 0.0 for passages in found), 0.0)


async def _views(
    scorer: Scorer, episode: Episode, gains: GainWeights, refined: Sequence[str]
) -> LogitP:
    found = [evidence(turn) for turn, _ in pairwise(episode.turns) if turn.observation.passages]
    documents = [f"\n{text}" for text in found] if gains.w_d else []
    s = " ".join(refined if gains.joined == "all" else refined[-1:]) if gains.w_r else ""
    # What the policy wrote must not act in the scorer's prompt.
    refinement = f"\n{tagged(REFINE, neutralise(s))}" if s else None
    return await logit_p(scorer, _score_request(episode), documents, refinement)


def _score_request(
    episode: Episode, contexts: tuple[Context, ...] = ((),), *, bare: bool = False
) -> ScoreRequest:
    case, opening = episode.case, () if bare else episode.opening
    return ScoreRequest(case.id, case.truth.diagnosis, opening, contexts, lead=f"<{DIAGNOSIS}>")


def turn_gains(weight: float, scorer: str) -> Supervise:
    """IGPO: each turn but the last gets the rise of the gold diagnosis's probability.

    The probability is that after the whole transcript so far, measured by `scorer` ("reference" or
    "policy").
    """

    async def supervise(
        episodes: Sequence[Episode], instruments: Instruments
    ) -> Sequence[Supervision]:
        judge = instruments.scorer(scorer)
        found = await asyncio.gather(*(judge.score(_prefixes(episode)) for episode in episodes))
        return [
            Supervision((*(weight * gain for gain in probability_gains(one.means)), 0.0))
            for one in found
        ]

    return supervise


def _prefixes(episode: Episode) -> ScoreRequest:
    """The transcript up to each of its turns, as sampled token ids if it has them, else as text."""
    sampled = all(turn.prompt_tokens and turn.completion.tokens for turn in episode.turns)
    contexts: list[Context] = [(episode.turns[0].prompt_tokens,) if sampled else ()]
    for turn, after in pairwise(episode.turns):
        read = tuple(f"\n{message.content}" for message in turn.observation.messages)
        more: Context = (
            (turn.completion.tokens, after.prompt_tokens)
            if sampled
            else (f"\n{neutralise(turn.completion.text)}", *read)
        )
        contexts.append((*contexts[-1], *more))
    return _score_request(episode, tuple(contexts), bare=sampled)


# --- together ---


def search_reward(
    grammar: SearchGrammar,
    likeness: Likeness,
    supervise: Supervise,
    *,
    w_f: float,
    composition: Composition,
) -> Reward:
    """R_total (CM-10): rewards of single turns are on these turns, all else is on the last."""

    async def reward(batch: Batch, instruments: Instruments) -> Scores:
        paid = iter(await supervise([episode for group in batch for episode in group], instruments))
        worth = iter(
            await asyncio.gather(
                *(_worth(episode, likeness) for group in batch for episode in group)
            )
        )
        return [
            [
                compose(e, next(worth), next(paid), w_f * grammar.well_formed(e), composition)
                for e in g
            ]
            for g in batch
        ]

    return reward


async def _worth(episode: Episode, likeness: Likeness) -> float:
    """R_diag; 0, without a call, if no diagnosis was given."""
    return await likeness(answered(episode), episode.case) if answered(episode) else 0.0


def compose(
    episode: Episode, R_diag: float, paid: Supervision, R_format: float, composition: Composition
) -> Score:
    """R_total from its parts (CM-10).

    Nonlinear (App. B.1): R_format + R_diag + R_doc, and R_process only if the diagnosis is not
    exactly right. Linear (Eq. 8): the sum of all four.
    """
    bypassed = composition == "nonlinear" and exact(answered(episode), episode.case)
    R_process = 0.0 if bypassed else paid.process
    *before, last = paid.turns
    parts = {
        "format": R_format,
        "diagnosis": R_diag,
        "documents": sum(paid.turns),
        "process": R_process,
    }
    return Score((*before, last + R_format + R_diag + R_process), parts)


def turn_credit(gamma: float) -> Credit:
    """A_t = Σ_{k≥t} γ^{k−t} z_k (IGPO); z are the turns' rewards, standardised over the group.

    The standardisation runs over all turns of all episodes of the group. With γ = 0 a turn's
    advantage is its own reward alone, and only the last turn's depends on the diagnosis.
    """
    standardise = turn_zscore()

    def credit(batch: Batch, scores: Scores, all_gather: AllGather) -> Advantages:
        return [
            [_to_go(turns, gamma) for turns in group]
            for group in standardise(batch, scores, all_gather)
        ]

    return credit


def _to_go(values: Sequence[float], gamma: float) -> tuple[float, ...]:
    backwards = accumulate(reversed(values), lambda after, value: value + gamma * after)
    return tuple(reversed([*backwards]))
