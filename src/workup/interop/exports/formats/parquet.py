"""Whole episodes or cases as one Parquet file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from workup.interop.exports import Written
from workup.interop.exports.material import Chosen, Drawn
from workup.interop.exports.records import CASES, EPISODES, case_row, meanings, noted
from workup.runs import parquet

summary = "whole episodes with token ids, masks, log-probabilities and advantages; or whole cases"

_FACT = pa.struct(
    [
        *((name, pa.string()) for name in ("id", "item", "text", "kind")),
        ("weight", pa.int32()),
    ]
)
_STATEMENT = pa.struct(
    [*((name, pa.string()) for name in ("head", "relation", "tail")), ("retrieved", pa.bool_())]
)
_TEXTS = pa.list_(pa.string())
_TYPES: Mapping[str, Any] = {
    "options": _TEXTS,
    "given": pa.list_(_FACT),
    "facts": pa.list_(_FACT),
    **dict.fromkeys(("codes", "aliases", "differentials", "references"), _TEXTS),
    "graphs": pa.list_(pa.list_(_STATEMENT)),
}
_CASES = pa.schema([(name, _TYPES.get(name, pa.string())) for name in CASES])


def of_run(chosen: Chosen, folder: Path) -> Written:
    measures = dict[str, None]()
    count = parquet.export(noted(chosen.records(), measures), folder / "episodes.parquet")
    return Written({"episodes.parquet": count}, EPISODES, measures=meanings(measures))


def of_cases(drawn: Drawn, folder: Path) -> Written:
    name = f"{drawn.side}.parquet"
    count = parquet.write(map(case_row, drawn.cases), _CASES, folder / name)
    return Written({name: count}, CASES)
