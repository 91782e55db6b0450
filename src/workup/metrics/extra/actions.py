"""Was it right to ask back, or to answer? Action accuracy for Abg-CoQA (PM-16)."""

from __future__ import annotations

from collections.abc import Sequence

from workup.core.case import Case
from workup.core.episode import DIAGNOSE, MALFORMED, Episode
from workup.core.errors import UserError
from workup.metrics.extra import Measure, Models, Values
from workup.metrics.metric import PAGED, Metric, Where

_TEXT = "where the case does not say whether its question is ambiguous"
METRICS = (
    Metric(
        "action",
        "share of the first turns that rightly ask back or rightly answer",
        undefined=_TEXT,
        where=Where.NOWHERE,
        macro="category",
    ),
    Metric(
        "action_ambiguous",
        "share of the ambiguous questions that were answered by a question",
        "right to ask back",
        undefined="where the question is not ambiguous",
        rank=800,
        where=PAGED,
    ),
    Metric(
        "action_non_ambiguous",
        "share of the other questions that were answered rightly at once",
        "right to answer",
        undefined="where the question is ambiguous",
        rank=801,
        where=PAGED,
    ),
    Metric(
        "macro_action",
        "mean of the two shares of right first turns, of ambiguous and of other questions",
        "both, macro",
        undefined=_TEXT,
        rank=802,
        where=PAGED,
    ),
)


def open(option: str, cases: Sequence[Case], models: Models) -> Measure:
    """The measure. Raises UserError for cases that do not say which questions are ambiguous."""
    if not any(ambiguous(case) is not None for case in cases):
        raise UserError(
            "measure 'actions' needs cases that say which questions are ambiguous, as those of "
            "abgcoqa:FOLDER do"
        )
    return measure


async def measure(episode: Episode, correct: bool) -> Values:
    """action ∈ {0, 1}, by the first turn; also action_ambiguous and action_non_ambiguous.

    The measure of one class is undefined for the other. An ambiguous question needs a question
    back; any other question needs the right answer at once.
    """
    asks_back = ambiguous(episode.case)
    if asks_back is None:
        return {"action": None, "action_ambiguous": None, "action_non_ambiguous": None}
    first = episode.turns[0].action.kind if episode.turns else ""
    asked, answered = first not in ("", DIAGNOSE, MALFORMED), first == DIAGNOSE and correct
    right = float(asked if asks_back else answered)
    return {
        "action": right,
        "action_ambiguous": right if asks_back else None,
        "action_non_ambiguous": None if asks_back else right,
    }


def ambiguous(case: Case) -> bool | None:
    """Whether the question needs a question back; None if the case does not say."""
    extra = case.truth.extra
    return bool(extra["ambiguous"]) if isinstance(extra, dict) and "ambiguous" in extra else None
