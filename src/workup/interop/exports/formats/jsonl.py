"""Whole episodes, or cases in Workup's own format, one JSON object per line."""

from __future__ import annotations

import json
from pathlib import Path

from workup.cases.jsonl import keeps_sidecar, line_of, sidecar_of, write_sidecar
from workup.interop.exports import Written
from workup.interop.exports.material import Chosen, Drawn
from workup.interop.exports.records import EPISODES, meanings, noted
from workup.runs.files import finite
from workup.runs.parquet import row

summary = "the same as JSON lines; cases in Workup's own format, which --cases jsonl:FILE reads"


def of_run(chosen: Chosen, folder: Path) -> Written:
    count, measures = 0, dict[str, None]()
    with (folder / "episodes.jsonl").open("w", encoding="utf-8", newline="\n") as file:
        for record in noted(chosen.records(), measures):
            file.write(json.dumps(finite(row(record)), ensure_ascii=False) + "\n")
            count += 1
    return Written({"episodes.jsonl": count}, EPISODES, measures=meanings(measures))


def of_cases(drawn: Drawn, folder: Path) -> Written:
    name, source, count = f"{drawn.side}.jsonl", drawn.source, 0
    with (folder / name).open("w", encoding="utf-8", newline="\n") as file:
        for case in drawn.cases:
            file.write(line_of(case, restricted=source.restricted) + "\n")
            count += 1
    if keeps_sidecar(source):
        write_sidecar(folder / name, source.items, source.diagnoses)
    beside = sidecar_of(folder / name).name
    note = f"The lines are in Workup's own format, as in `--cases jsonl:{name}`."
    if (folder / beside).exists():
        note += f" `{beside}` holds the items that can be asked for, and the diagnoses."
    return Written({name: count}, {}, (note,))
