"""episodes.sqlite as one Parquet file, for pandas, DuckDB, Spark and the like."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from workup.core.disk import whole_file
from workup.core.episode import Observation
from workup.core.extras import wanted
from workup.runs.files import clear_errors
from workup.runs.record import Record, flat

_ROWS = 1_000  # rows in memory at a time, and per row group


def schema() -> Any:
    """The Arrow schema of an episode. Raises UserError where pyarrow is not installed."""
    pa = wanted("pyarrow")
    texts = pa.list_(pa.string())
    # Not a map, which Hugging Face's datasets cannot read.
    named = pa.list_(pa.struct([("name", pa.string()), ("value", pa.float64())]))
    passage = pa.struct([(name, pa.string()) for name in ("id", "title", "text")])
    turn = pa.struct(
        [
            ("text", pa.string()),
            ("kind", pa.string()),
            ("content", texts),
            ("errors", pa.int32()),
            ("parts", pa.list_(pa.struct([("name", pa.string()), ("items", texts)]))),
            ("item", pa.string()),
            ("understood", pa.bool_()),
            ("understood_by", pa.string()),
            ("evidence", texts),
            ("sources", texts),
            ("passages", pa.list_(passage)),
            ("observation", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
            ("score", pa.float64()),
        ]
    )
    return pa.schema(
        [
            *((name, pa.string()) for name in ("phase", "doctor", "stage")),
            ("step", pa.int32()),
            ("case", pa.string()),
            ("sample", pa.int32()),
            *((name, pa.string()) for name in ("diagnosis", "category", "ending", "reason")),
            ("answer", texts),
            ("correct", pa.bool_()),
            ("questions", pa.int32()),
            ("return", pa.float64()),
            ("parts", named),
            ("measures", named),
            ("opening", turn.field("observation").type),
            ("turns", pa.list_(turn)),
            ("tokens", pa.list_(pa.int32())),
            ("mask", pa.list_(pa.bool_())),
            ("logprobs", pa.list_(pa.float32())),
            ("advantages", pa.list_(pa.float32())),
        ]
    )


def export(records: Iterable[Record], path: Path) -> int:
    """Writes `records` to `path`, whole or not at all; returns how many.

    Raises UserError when the disk refuses.
    """
    return write(map(row, records), schema(), path)


def write(rows: Iterable[Mapping[str, Any]], columns: Any, path: Path) -> int:
    """Writes rows of the Arrow schema `columns` to `path`, whole or not at all; returns how many.

    A thousand rows are in memory at a time. Raises UserError when the disk refuses.
    """
    pa, pq = wanted("pyarrow"), wanted("pyarrow.parquet")
    left, written = iter(rows), 0
    with (
        clear_errors(path),
        whole_file(path) as draft,
        pq.ParquetWriter(draft, columns, compression="zstd") as writer,
    ):
        while chunk := list(islice(left, _ROWS)):
            writer.write_table(pa.Table.from_pylist(chunk, schema=columns))
            written += len(chunk)
    return written


def row(record: Record) -> dict[str, Any]:
    """The values of the columns of `schema`."""
    episode, score = record.episode, record.score
    tokens, mask, logprobs = flat(episode)
    return {
        "phase": record.phase,
        "doctor": record.doctor,
        "stage": record.stage,
        "step": record.step,
        "case": episode.case.id,
        "sample": record.sample,
        "diagnosis": episode.case.truth.diagnosis,
        "category": episode.case.category,
        "ending": episode.ending.value,
        "reason": episode.reason,
        "answer": list(episode.answer),
        "correct": record.correct,
        "questions": episode.questions,
        "return": score.total if score else None,
        "parts": _named(score.parts if score else {}),
        "measures": _named(record.measures),
        "opening": [
            {"role": message.role, "content": message.content} for message in episode.opening
        ],
        "turns": list(_turns(record)),
        "tokens": tokens,
        "mask": [bool(flag) for flag in mask],
        "logprobs": logprobs,
        "advantages": list(record.advantages),
    }


def _named(values: Mapping[str, float | None]) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in values.items()]


def _passages(observation: Observation) -> list[dict[str, str]] | None:
    if observation.passages is None:
        return None
    return [{"id": p.id, "title": p.title, "text": p.text} for p in observation.passages]


def _turns(record: Record) -> Iterator[dict[str, Any]]:
    scores = record.score.turns if record.score else ()
    for number, turn in enumerate(record.episode.turns):
        yield {
            "text": turn.completion.text,
            "kind": turn.action.kind,
            "content": list(turn.action.content),
            "errors": turn.action.errors,
            "parts": [asdict(part) for part in turn.action.parts],
            "item": turn.observation.item,
            "understood": turn.observation.understood,
            "understood_by": turn.observation.understood_by,
            "evidence": list(turn.observation.evidence),
            "sources": list(turn.observation.sources),
            "passages": _passages(turn.observation),
            "observation": [
                {"role": message.role, "content": message.content}
                for message in turn.observation.messages
            ],
            "score": scores[number] if number < len(scores) else None,
        }
