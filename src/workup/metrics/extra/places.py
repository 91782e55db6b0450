"""Does a doctor compare passages, or copy by rank? Accuracy by the place of the right passage."""

from __future__ import annotations

from collections.abc import Sequence

from workup.core.case import Case
from workup.core.episode import Ending, Episode
from workup.metrics.documents import contains, stands_in
from workup.metrics.extra import Measure, Models, Values
from workup.metrics.metric import COUNT, PAGED, Metric

UNSEEN, ALONE, LATER = "right_unseen", "right_alone", "right_later"
AT = ("right_at_1", "right_at_2", "right_at_3")
_UNSHOWN, _ALONE = "where no passage was shown", "where fewer than two passages were shown"
METRICS = (
    Metric(
        "passages",
        "how many passages the deciding search showed: the last that showed a right one, or else "
        "the last that showed any",
        undefined=_UNSHOWN,
        range=COUNT,
        rank=600,
        where=PAGED,
    ),
    Metric(
        "shown_first",
        "share of the deciding searches whose first passage names the truth",
        "first is right",
        undefined=_ALONE,
        rank=601,
        where=PAGED,
    ),
    *(
        Metric(
            name,
            f"accuracy where the first right passage of several stood {place}",
            f"accuracy, {heading}",
            undefined="elsewhere",
            rank=602 + number,
            where=PAGED,
        )
        for number, (name, place, heading) in enumerate(
            zip(
                (*AT, LATER),
                ("first", "second", "third", "behind the third"),
                ("1st", "2nd", "3rd", "later"),
                strict=True,
            )
        )
    ),
    Metric(
        ALONE,
        "accuracy where the only passage names the truth",
        "accuracy, alone",
        undefined="elsewhere",
        rank=606,
        where=PAGED,
    ),
    Metric(
        UNSEEN,
        "accuracy where no passage names the truth",
        "accuracy, unseen",
        undefined="elsewhere",
        rank=607,
        where=PAGED,
    ),
    Metric(
        "answer_read",
        "share of the diagnoses that stand in a passage",
        undefined="where no passage was shown, or no diagnosis given",
        rank=608,
        where=PAGED,
    ),
)


def open(option: str, cases: Sequence[Case], models: Models) -> Measure:
    """The measure; `option` is ignored."""
    return measure


async def measure(episode: Episode, correct: bool) -> Values:
    """Where the right passage stood, whether the answer was right then, and whether it was read.

    Passages count from 1 in the order in which a turn's search showed them. A passage is right if
    it holds the diagnosis or an alias (Doc_Hit's rule). The last turn with a right passage decides,
    without one the last turn with passages. All values are undefined where no passage was shown.
    """
    found = (turn.observation.passages for turn in episode.turns)
    rounds = [[passage.whole for passage in passages] for passages in found if passages]
    if not rounds:
        return dict.fromkeys(("passages", "shown_first", *AT, LATER, ALONE, UNSEEN, "answer_read"))
    decided = [shown for shown in rounds if _place(shown, episode.case)] or rounds
    place, several = _place(decided[-1], episode.case), len(decided[-1]) > 1
    there = (UNSEEN, *(AT if several else (ALONE,)))
    name = there[place] if place < len(there) else LATER
    read = stands_in(episode.answer, (text for shown in rounds for text in shown))
    return {
        "passages": float(len(decided[-1])),
        "shown_first": float(place == 1) if several else None,
        **{each: float(correct) if each == name else None for each in (*AT, LATER, ALONE, UNSEEN)},
        "answer_read": float(read) if episode.ending is Ending.DIAGNOSED else None,
    }


def _place(shown: Sequence[str], case: Case) -> int:
    """The place of the first right passage, from 1; 0 where none is."""
    return next((place for place, text in enumerate(shown, 1) if contains([text], case)), 0)
