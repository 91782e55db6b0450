"""What was said, as chat messages, and where an episode stands in its run: columns of every set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from workup.core.episode import Episode, Message, Turn
from workup.core.errors import UserError
from workup.core.extras import wanted
from workup.interop.exports.material import Chosen
from workup.runs import Record, parquet

ASSISTANT = "assistant"
FILE = "train.parquet"
PLACE: Mapping[str, str] = {
    "phase": "train, eval, calibration, or search, chosen and rejected of a search stage",
    "doctor": "who played; policy while training",
    "stage": "the stage of the training, empty outside",
    "step": "the update within the stage, from 1; 0 outside a training",
    "case": "the case's id",
    "sample": "tells the episodes of one case in one step apart",
}


def schema(types: Mapping[str, str]) -> Any:
    """The Arrow schema of a set: its own columns, then the place of the episode in the run.

    `types` has for each own column "messages" (a list of messages), Arrow's name of a type such as
    "int32", or "int32[]" for a list of these. Raises UserError where pyarrow is not installed.
    """
    pa = wanted("pyarrow")
    places = dict.fromkeys(PLACE, "string") | {"step": "int32", "sample": "int32"}
    found = []
    for name, kind in {**types, **places}.items():
        if kind == "messages":
            message = pa.struct([("role", pa.string()), ("content", pa.string())])
            found.append((name, pa.list_(message)))
        elif kind.endswith("[]"):
            found.append((name, pa.list_(pa.type_for_alias(kind.removesuffix("[]")))))
        else:
            found.append((name, pa.type_for_alias(kind)))
    return pa.schema(found)


def write(
    rows: Iterable[Mapping[str, Any]], columns: Any, folder: Path, none: str
) -> dict[str, int]:
    """Writes a set into the folder; returns its file with the number of rows.

    `columns` is the Arrow schema. Raises UserError, which says `none`, if there is no row.
    """
    count = parquet.write(rows, columns, folder / FILE)
    if not count:
        raise UserError(none)
    return {FILE: count}


def all_failed(chosen: Chosen) -> str:
    """What to say of episodes that all failed."""
    return (
        f"{chosen.run.path}: all of these episodes failed, and none can be learned from; "
        "--as jsonl or parquet has them with their reasons"
    )


def place(record: Record) -> dict[str, Any]:
    """The values of `PLACE`."""
    names = ("phase", "doctor", "stage", "step", "case", "sample")
    return dict(zip(names, record.key, strict=True))


def plain(messages: Iterable[Message]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in messages]


def spoken(turn: Turn) -> dict[str, str]:
    """What the doctor said in a turn, exactly: as an assistant's message."""
    return {"role": ASSISTANT, "content": turn.completion.text}


def before(episode: Episode) -> Iterator[list[dict[str, str]]]:
    """For each turn what had been said before it."""
    said = plain(episode.opening)
    for turn in episode.turns:
        yield list(said)
        said += [spoken(turn), *plain(turn.observation.messages)]


def whole(episode: Episode) -> list[dict[str, str]]:
    """The episode up to the doctor's last words; a reply that nobody answered is left out."""
    *_, past = before(episode)
    return [*past, spoken(episode.turns[-1])]
