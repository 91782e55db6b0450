"""What an encounter revealed, compared with the hidden facts F of its case (CRAFT CR-6, CR-12).

D(τ) is `Episode.discovered` ∩ F. Facts that the presentation states are not in F, so that
confirming them counts nothing. A ratio with a denominator of 0 is None, unless its function says 0.
"""

from __future__ import annotations

from collections.abc import Iterable

from workup.core.case import Case, Fact
from workup.core.episode import DIAGNOSE, MALFORMED, Episode
from workup.core.errors import UserError
from workup.metrics.metric import TABLES, Caveat, Metric, Where

_WEIGHED = "where none was found, or nobody has scored their criticality"
CRITICAL = Metric(
    "critical",
    "of the findings that were found, the share that is pathognomonic (criticality 3)",
    undefined=_WEIGHED,
    rank=40,
    where=TABLES | Where.LIVE,
    always=True,
    curve="Critical share of what was found",
)
NOISE = Metric(
    "noise",
    "of the findings that were found, the share that is irrelevant (criticality 0)",
    undefined=_WEIGHED,
    rank=50,
    where=TABLES | Where.LIVE,
    always=True,
    curve="Noise share of what was found",
)
NOT_UNDERSTOOD = Metric(
    "not_understood",
    "share of the readable questions that the patient or the record did not understand, or has "
    "nothing on",
    undefined="where nothing readable was asked",
    rank=60,
    where=Where.TERMINAL | Where.PAGES,
    least=0.005,  # the smallest share that two decimals do not show as .00
    caveat=Caveat(
        0.1,
        "{share} of its questions were not understood, or the record has nothing on them: part of "
        "what it gets wrong is the exact patient's",
        ways=(
            ("environment.encoder", "understands meanings"),
            ("roles.interpreter", "puts a model between"),
            ("roles.patient", "puts a model in its place"),
            ("roles.simulator", "puts a model in its place"),
        ),
    ),
)
REVEALING = Metric(
    "revealing",
    "share of the readable questions whose answer told a finding",
    undefined="where nothing readable was asked",
    where=Where.NOWHERE,
)
UNREMARKABLE = Metric(
    "unremarkable",
    "share of the readable questions that were understood and whose answer told no finding: it is "
    "normal, or the patient does not know",
    undefined="where nothing readable was asked",
    where=Where.NOWHERE,
)
COVERAGE = Metric(
    "coverage",
    "share of all hidden findings that were found",
    undefined="where nothing can be asked, or nothing is hidden",
    rank=70,
    where=Where.PAGES,
    always=True,
    curve="Share of the findings found",
)
RECALL = Metric(
    "recall",
    "criticality of the findings that were found, as a share of that of all hidden ones",
    undefined="where nothing can be asked, nothing critical is hidden, or nobody has scored the "
    "findings' criticality",
    where=Where.NOWHERE,
)
REPEATS = Metric(
    "repeats",
    "share of the questions that had been asked before",
    undefined="where nothing was asked",
    rank=85,
    where=Where.LIVE,
)
METRICS = (CRITICAL, NOISE, NOT_UNDERSTOOD, REVEALING, UNREMARKABLE, COVERAGE, RECALL, REPEATS)


def found(episode: Episode) -> tuple[Fact, ...]:
    """D(τ): the hidden facts that were revealed, in the record's order."""
    discovered = episode.discovered
    return tuple(fact for fact in episode.case.truth.facts if fact.id in discovered)


def scored(episode: Episode) -> bool:
    """Whether every hidden fact of the case has a criticality weight."""
    return _weighed(episode.case)


def hidden(episode: Episode) -> bool:
    """Whether every hidden fact has a criticality weight, and one of them more than 0."""
    return _weighed(episode.case) and _weight(episode.case.truth.facts) > 0


def need_weights(case: Case) -> None:
    """Raises UserError for a case with a hidden fact that has no weight."""
    if not _weighed(case):
        raise UserError(
            f"case '{case.id}' has facts without a criticality weight: weigh them with `workup "
            "prepare criticality --cases SOURCE --out FILE.jsonl --model endpoint:NAME` and go "
            "on with jsonl:FILE.jsonl, or choose a reward without criticality "
            "(reward.variant=naive or reward.variant=info-recall)"
        )


def _weighed(case: Case) -> bool:
    return all(fact.weight is not None for fact in case.truth.facts)


def criticality_recall(episode: Episode) -> float:
    """CR(τ) = Σ_{f∈D(τ)} w_f / Σ_{f∈F} w_f, within [0, 1]; 0 when the denominator is 0 (CR-6).

    Raises UserError for a case whose facts have no weights.
    """
    need_weights(episode.case)
    total = _weight(episode.case.truth.facts)
    return _weight(found(episode)) / total if total else 0.0


def information_recall(episode: Episode) -> float:
    """`criticality_recall` with all w_f = 1: |D(τ)| / |F|, in [0, 1]; 0 when F is empty (CR-8)."""
    return coverage(episode) or 0.0


def coverage(episode: Episode) -> float | None:
    """Info coverage by count, |D(τ)| / |F| (CR-12); None when F is empty."""
    return _share(len(found(episode)), len(episode.case.truth.facts))


def noise_ratio(episode: Episode) -> float | None:
    """The share of the discovered facts with w_f = 0 (CR-12).

    None when none was discovered or they have no weights.
    """
    return _share_of_weight(episode, 0)


def critical_ratio(episode: Episode) -> float | None:
    """The share of the discovered facts with w_f = 3 (CR-12); None as for `noise_ratio`."""
    return _share_of_weight(episode, 3)


def repeats(episode: Episode) -> float | None:
    """Share of the questions that ask again what an earlier one asked; None when nothing was asked.

    Two questions are the same if they reach the same item or, where the environment knows no item,
    if their wording has the same normal form. Malformed turns are questions (they cost a turn) but
    repeat nothing.
    """
    asked = [turn.topic for turn in episode.gathered]
    topics = [topic for topic in asked if topic]
    return _share(len(topics) - len(set(topics)), len(asked))


def answers(episode: Episode) -> dict[str, float | None]:
    """The shares of the three kinds of answers among those to readable questions; their sum is 1.

    All None when nothing readable was asked. A reply that asks back is not understood, and so is
    one of an exact record or patient that has nothing on what was asked (`Observation.understood`).
    A patient who is not sure has understood.
    """
    asked = [
        turn.observation for turn in episode.turns if turn.action.kind not in (DIAGNOSE, MALFORMED)
    ]
    told = sum(seen.understood and bool(seen.evidence) for seen in asked)
    lost = sum(not (seen.understood or seen.item) for seen in asked)
    kinds = {REVEALING: told, UNREMARKABLE: len(asked) - told - lost, NOT_UNDERSTOOD: lost}
    return {metric.name: _share(count, len(asked)) for metric, count in kinds.items()}


def _weight(facts: Iterable[Fact]) -> int:
    return sum(fact.weight or 0 for fact in facts)


def _share_of_weight(episode: Episode, weight: int) -> float | None:
    if not scored(episode):
        return None
    facts = found(episode)
    return _share(sum(fact.weight == weight for fact in facts), len(facts))


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
