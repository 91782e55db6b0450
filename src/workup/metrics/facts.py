"""What an encounter revealed, compared with the hidden facts F of its case (CRAFT CR-6, CR-12).

D(τ) is `Episode.discovered` ∩ F. Facts that the presentation states are not in F, so that
confirming them counts nothing. A ratio with a denominator of 0 is None, unless its function says 0.
"""

from __future__ import annotations

from collections.abc import Iterable

from workup.core.case import Case, Fact
from workup.core.episode import DIAGNOSE, MALFORMED, Episode, Turn
from workup.core.errors import UserError
from workup.core.text import normalise


def found(episode: Episode) -> tuple[Fact, ...]:
    """D(τ): the hidden facts that were revealed, in the record's order."""
    discovered = episode.discovered
    return tuple(fact for fact in episode.case.truth.facts if fact.id in discovered)


def scored(episode: Episode) -> bool:
    """Whether every hidden fact of the case has a criticality weight."""
    return _weighed(episode.case)


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
    asked = [_topic(turn) for turn in episode.turns if turn.action.kind != DIAGNOSE]
    topics = [topic for topic in asked if topic]
    return _share(len(topics) - len(set(topics)), len(asked))


def not_understood(episode: Episode) -> float | None:
    """Share of the readable questions whose reply says that it was not understood.

    Within [0, 1]; None when nothing readable was asked. A reply that asks back is such a reply, and
    so is one of an exact record or patient that has nothing on what was asked
    (`Observation.understood`).
    """
    asked = [turn for turn in episode.turns if turn.action.kind not in (DIAGNOSE, MALFORMED)]
    return _share(sum(not turn.observation.understood for turn in asked), len(asked))


def _topic(turn: Turn) -> tuple[str, str] | None:
    if turn.observation.item:
        return "item", turn.observation.item
    return ("wording", normalise(turn.action.content[0])) if turn.action.content else None


def _weight(facts: Iterable[Fact]) -> int:
    return sum(fact.weight or 0 for fact in facts)


def _share_of_weight(episode: Episode, weight: int) -> float | None:
    if not scored(episode):
        return None
    facts = found(episode)
    return _share(sum(fact.weight == weight for fact in facts), len(facts))


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
