"""One row per action of the doctor: what was said before, and the one message that followed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workup.interop.exports import Written
from workup.interop.exports.material import Chosen
from workup.interop.exports.talk import (
    PLACE,
    all_failed,
    before,
    place,
    schema,
    spoken,
    write,
)
from workup.runs import Record

summary = "one row per action of the doctor (`prompt`, `completion`) for supervised fine-tuning"

COLUMNS = {
    "prompt": "everything that was said before, as it was said",
    "completion": "the doctor's next message, alone",
    "turn": "the number of the action, from 1",
    "kind": "what was read from it, as in ask or diagnose; malformed if nothing",
    "score": "the turn's score; null if the episode was not scored",
    "correct": "the judge's verdict on the episode; null if there is none",
    "return": "the sum of the turns' scores; null if the episode was not scored",
    **PLACE,
}
TYPES = {
    "prompt": "messages",
    "completion": "messages",
    "turn": "int32",
    "kind": "string",
    "score": "float64",
    "correct": "bool",
    "return": "float64",
}


def of_run(chosen: Chosen, folder: Path) -> Written:
    rows = (row for record in chosen.finished() for row in _rows(record))
    return Written(write(rows, schema(TYPES), folder, all_failed(chosen)), COLUMNS, chosen.lost)


def _rows(record: Record) -> Iterator[dict[str, Any]]:
    episode, score = record.episode, record.score
    for k, (turn, past) in enumerate(zip(episode.turns, before(episode), strict=True)):
        yield {
            "prompt": past,
            "completion": [spoken(turn)],
            "turn": k + 1,
            "kind": turn.action.kind,
            "score": score.turns[k] if score else None,
            "correct": record.correct,
            "return": score.total if score else None,
            **place(record),
        }
