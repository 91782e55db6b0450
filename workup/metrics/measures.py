"""One encounter in numbers: what evaluations average, intervals and plots are made of."""

from __future__ import annotations

from collections.abc import Mapping

from workup.environments.library import evidence
from workup.episode import DIAGNOSE, MALFORMED, Ending, Episode
from workup.metrics import facts
from workup.metrics.documents import doc_hit


def measure(
    episode: Episode,
    correct: bool,
    costs: Mapping[str, float] | None = None,
    *,
    asks: bool = True,
    searches: bool = False,
) -> dict[str, float | None]:
    """Every measure of one episode by name; None where it is undefined, so that averages leave it
    out.

    `asks` and `searches` are the environment's: whether findings could be asked for, and
    documents searched.

    - accuracy: 0 or 1, `correct` as the judge saw it
    - questions: actions other than the diagnosis, malformed ones included
    - recall (criticality recall), coverage, critical, noise, repeats: shares in [0, 1], see
      `workup.metrics.facts`
    - doc_hit: 0 or 1, where documents could be searched: whether a retrieved one names the truth
      (C-MIG Eq. 14); an episode that searched nothing has 0
    - hit_if_searched: the same, undefined in episodes that retrieved nothing
    - recall and coverage of the patient's record are undefined where nothing can be asked, whether
      anything was searched or not
    - malformed: share of the turns that held no readable action
    - diagnosed, out_of_turns, out_of_tokens, failed: 0 or 1 for each `Ending`
    - cost: the sum of `costs` by item name over the questions; what has no cost there counts 1
    """
    costs = costs or {}
    malformed = sum(turn.action.kind == MALFORMED for turn in episode.turns)
    return {
        "accuracy": float(correct),
        "questions": float(episode.questions),
        "recall": facts.criticality_recall(episode) if facts.scored(episode) and asks else None,
        "coverage": facts.coverage(episode) if asks else None,
        "critical": facts.critical_ratio(episode),
        "noise": facts.noise_ratio(episode),
        "repeats": facts.repeats(episode),
        "malformed": malformed / len(episode.turns) if episode.turns else None,
        **{ending.name.lower(): float(episode.ending is ending) for ending in Ending},
        **(_retrieval(episode) if searches else {}),
        "cost": sum(
            costs.get(turn.observation.item, 1.0)
            for turn in episode.turns
            if turn.action.kind != DIAGNOSE
        ),
    }


def _retrieval(episode: Episode) -> dict[str, float | None]:
    hit = doc_hit(episode)
    return {"doc_hit": hit, "hit_if_searched": hit if any(map(evidence, episode.turns)) else None}
