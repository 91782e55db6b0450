"""The measures of one episode: the numbers that evaluations average and plot."""

from __future__ import annotations

from collections.abc import Mapping

from workup.core.episode import DIAGNOSE, MALFORMED, Ending, Episode
from workup.core.ports import Environment
from workup.environments.base.lists import take_apart
from workup.environments.base.searching import SEARCH
from workup.metrics import facts
from workup.metrics.documents import doc_hit

LISTS = "differential"  # the further measure that environments of ranked lists take by themselves


def measure(
    episode: Episode,
    correct: bool,
    environment: Environment,
    costs: Mapping[str, float] | None = None,
) -> dict[str, float | None]:
    """Every measure of one episode by name; None if it is undefined, so that averages leave it out.

    `environment` says what can be measured: whether findings can be asked for, and whether
    documents can be searched.

    - accuracy: 0 or 1, `correct` as the judge saw it
    - questions: actions other than the diagnosis, malformed ones included
    - recall (criticality recall), coverage, critical, noise, repeats: shares in [0, 1], see
      `workup.metrics.facts`; recall and coverage are undefined where nothing can be asked
    - doc_hit: 0 or 1, where documents can be searched: whether a retrieved one names the truth
      (C-MIG Eq. 14); 0 if nothing was searched
    - hit_if_searched: as doc_hit, undefined if nothing was retrieved
    - searches: how many searches the doctor wrote, or a mode for it, where documents can be
      searched; one in the last turn, which gets no reply, counts too
    - not_understood: the share of the readable questions that were not understood, where something
      can be asked; undefined where nothing was
    - ddx: the length of the first turn's list, where ranked lists are written (ES-14); undefined
      where none could be read
    - malformed: the share of the turns without a readable action
    - diagnosed, out_of_turns, out_of_tokens, failed: 0 or 1 for each `Ending`
    - cost: the sum of `costs` by item name over the questions; an item without a cost counts 1
    """
    asks, costs = environment.about.asks, costs or {}
    malformed = sum(turn.action.kind == MALFORMED for turn in episode.turns)
    return {
        "accuracy": float(correct),
        "questions": float(episode.questions),
        "recall": facts.criticality_recall(episode) if asks and facts.scored(episode) else None,
        "coverage": facts.coverage(episode) if asks else None,
        "critical": facts.critical_ratio(episode),
        "noise": facts.noise_ratio(episode),
        "repeats": facts.repeats(episode),
        **({"not_understood": facts.not_understood(episode)} if asks else {}),
        "malformed": malformed / len(episode.turns) if episode.turns else None,
        **{ending.name.lower(): float(episode.ending is ending) for ending in Ending},
        **(_retrieval(episode, environment) if environment.about.searches else {}),
        **({"ddx": ddx(episode)} if LISTS in environment.about.measures else {}),
        "cost": sum(
            costs.get(turn.observation.item, 1.0)
            for turn in episode.turns
            if turn.action.kind != DIAGNOSE
        ),
    }


def ddx(episode: Episode) -> float | None:
    """#DDx: how many candidates the first turn ranks (ES-14); None where no list could be read."""
    first = take_apart(episode.turns[0].completion.text).candidates if episode.turns else ()
    return float(len(first)) or None


def _retrieval(episode: Episode, environment: Environment) -> dict[str, float | None]:
    hit = doc_hit(episode, environment.about.documents)
    searched = any(map(environment.about.documents, episode.turns))
    made = sum(turn.action.kind == SEARCH for turn in episode.turns)
    return {
        "doc_hit": hit,
        "hit_if_searched": hit if searched else None,
        "searches": float(made),
    }
