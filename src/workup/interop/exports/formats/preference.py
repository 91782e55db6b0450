"""Pairs of actions, for DPO and reward models: `prompt`, `chosen`, `rejected`.

Two episodes of one case share their first turns. The pair is the first action in which they differ:
the one of the better episode is chosen. So each side is one message of the doctor, and no trainer
learns the patient's words.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from workup.interop.exports import Written
from workup.interop.exports.material import Chosen
from workup.interop.exports.talk import PLACE, before, place, schema, spoken, write
from workup.runs import Record

summary = "pairs of actions (`prompt`, `chosen`, `rejected`) for preference optimisation"

COLUMNS = {
    "prompt": "everything that was said before the two episodes part, as it was said",
    "chosen": "the better episode's next message, alone",
    "rejected": "the other episode's next message, alone",
    "turn": "the number of the action, from 1",
    "chosen_return": "what the better episode came to: its return, or 1 if right where none is",
    "rejected_return": "what the other episode came to",
    **PLACE,
    "sample": "the better episode's number",
}
TYPES = {
    "prompt": "messages",
    "chosen": "messages",
    "rejected": "messages",
    "turn": "int32",
    "chosen_return": "float64",
    "rejected_return": "float64",
}
_NOTE = (
    "Where a search stage chose and rejected episodes, its pairs are taken. Otherwise, of all "
    "episodes of a case in one step, the best and the worst make a pair if they differ in return "
    "(without returns: in being right). The message that is chosen led to the better episode; that "
    "it is the better message by itself, one pair does not show."
)
CHOSEN, REJECTED = "chosen", "rejected"
Pair = tuple[Record, Record]  # the better one first


def of_run(chosen: Chosen, folder: Path) -> Written:
    """The pairs of a search stage, if the run has one; else those of all groups of episodes.

    Raises UserError without a pair.
    """
    searched = {CHOSEN, REJECTED} <= set(chosen.phases)
    found = _searched(chosen) if searched else _grouped(chosen.finished())
    rows = (row for pair in found if (row := _row(*pair)) is not None)
    none = (
        f"{chosen.run.path}: no pair can be made of these episodes. It takes two of one case in "
        "one step, of which one came to more: train with group=2 or more, or evaluate with "
        "--repeats 2"
    )
    return Written(write(rows, schema(TYPES), folder, none), COLUMNS, (_NOTE, *chosen.lost))


def _searched(chosen: Chosen) -> Iterator[Pair]:
    """The k-th episode that was chosen of a case with the k-th rejected; both in the same order."""
    others = chosen.finished(phase=REJECTED)
    other = next(others, None)
    for record in chosen.finished(phase=CHOSEN):
        while other is not None and other.key[1:] < record.key[1:]:
            other = next(others, None)
        if other is not None and other.key[1:] == record.key[1:]:
            yield record, other


def _grouped(records: Iterable[Record]) -> Iterator[Pair]:
    for _, group in groupby(records, lambda record: record.key[:-1]):
        worths = [(worth, record) for record in group if (worth := _worth(record)) is not None]
        worths.sort(key=lambda pair: (pair[0], pair[1].sample))
        if worths and worths[0][0] < worths[-1][0]:
            yield worths[-1][1], worths[0][1]


def _worth(record: Record) -> float | None:
    """The return, or whether the episode is right where nothing was scored."""
    if record.score is not None:
        return record.score.total
    return None if record.correct is None else float(record.correct)


def _row(better: Record, worse: Record) -> dict[str, Any] | None:
    """The first action in which the two differ, as a row.

    None if one is the beginning of the other, and if the same words got different replies.
    """
    ahead = zip(before(better.episode), better.episode.turns, worse.episode.turns, strict=False)
    for number, (past, turn, other) in enumerate(ahead, 1):
        if turn.completion.text != other.completion.text:
            return {
                "prompt": past,
                "chosen": [spoken(turn)],
                "rejected": [spoken(other)],
                "turn": number,
                "chosen_return": _worth(better),
                "rejected_return": _worth(worse),
                **place(better),
            }
        if turn.observation.messages != other.observation.messages:
            return None  # the same words, another reply: what follows has no common past
    return None
