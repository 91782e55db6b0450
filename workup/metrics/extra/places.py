"""Does a doctor compare passages, or copy by rank? Accuracy by the place of the right passage."""

from __future__ import annotations

from collections.abc import Sequence

from workup.case import Case
from workup.environments.base.searching import passages
from workup.environments.base.thoughts import documents
from workup.episode import Ending, Episode
from workup.metrics.documents import contains, stands_in
from workup.metrics.extra import Measure, Models, Values

PLACES = 3  # places with a value of their own; later ones share one


def open(option: str, cases: Sequence[Case], models: Models) -> Measure:
    """The measure; `option` is ignored."""
    return measure


async def measure(episode: Episode, correct: bool) -> Values:
    """Where the right passage stood, whether the answer was right then, and whether it was read.

    Passages count from 1 in the order in which a turn's search showed them. A passage is right if
    it holds the diagnosis or an alias (Doc_Hit's rule). The last turn that has a right passage
    decides. All values are 0 or 1; all are undefined where no search was answered.

    - shown_first: the first passage is right; 0 where none is
    - right_at_1, right_at_2, right_at_3, right_later, right_unseen: `correct`, each defined where
      the first right passage has that place; `right_unseen` where no passage is right
    - answer_read: the diagnosis that was given stands in a passage of any turn; undefined where
      none was given
    """
    answered = (passages(turn) or documents(turn) for turn in episode.turns)
    rounds = list(filter(None, answered))
    place = next(filter(None, (_place(shown, episode.case) for shown in reversed(rounds))), 0)
    names = ("right_unseen", *(f"right_at_{number}" for number in range(1, PLACES + 1)))
    there = names[place] if place <= PLACES else "right_later"
    given = episode.ending is Ending.DIAGNOSED
    read = stands_in(episode.answer, (text for shown in rounds for text in shown))
    return {
        "shown_first": float(place == 1) if rounds else None,
        **{
            name: float(correct) if rounds and name == there else None
            for name in (*names[1:], "right_later", names[0])
        },
        "answer_read": float(read) if rounds and given else None,
    }


def _place(shown: Sequence[str], case: Case) -> int:
    """The place of the first right passage, from 1; 0 where none is."""
    return next((place for place, text in enumerate(shown, 1) if contains([text], case)), 0)
