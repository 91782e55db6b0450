"""Whole episodes or cases as one Parquet file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from workup.core.extras import wanted
from workup.interop.exports import Written
from workup.interop.exports.material import Chosen, Drawn
from workup.interop.exports.records import CASES, EPISODES, case_row, meanings, noted
from workup.runs import parquet

summary = "whole episodes with token ids, masks, log-probabilities and advantages; or whole cases"


def of_run(chosen: Chosen, folder: Path) -> Written:
    measures = dict[str, None]()
    count = parquet.export(noted(chosen.records(), measures), folder / "episodes.parquet")
    return Written({"episodes.parquet": count}, EPISODES, measures=meanings(measures))


def of_cases(drawn: Drawn, folder: Path) -> Written:
    name = f"{drawn.side}.parquet"
    count = parquet.write(map(case_row, drawn.cases), _case_columns(), folder / name)
    return Written({name: count}, CASES)


def _case_columns() -> Any:
    pa = wanted("pyarrow")
    fact = pa.struct(
        [
            *((name, pa.string()) for name in ("id", "item", "text", "kind")),
            ("weight", pa.int32()),
        ]
    )
    statement = pa.struct(
        [*((name, pa.string()) for name in ("head", "relation", "tail")), ("retrieved", pa.bool_())]
    )
    texts = pa.list_(pa.string())
    types = {
        "options": texts,
        "given": pa.list_(fact),
        "facts": pa.list_(fact),
        **dict.fromkeys(("codes", "aliases", "differentials", "references"), texts),
        "graphs": pa.list_(pa.list_(statement)),
    }
    return pa.schema([(name, types.get(name, pa.string())) for name in CASES])
