"""Inspect's log files, one per doctor and evaluation: `inspect view --log-dir FOLDER` shows them.

A log is a zip archive of JSON documents. It is written sample by sample, so that no more than one
is in memory; the documents are Inspect's own classes.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote
from zipfile import ZIP_DEFLATED, ZipFile

from workup.core.disk import slug
from workup.core.episode import Ending
from workup.core.extras import wanted
from workup.interop.exports import Written
from workup.interop.exports.material import Chosen
from workup.runs import Record, Run

summary = "Inspect's .eval logs, one per doctor and evaluation, for `inspect view`"

SCORER, REWARD = "diagnosis", "reward"
_LONGEST = 200  # characters of a sample's id, which is the name of a file within the archive
# What a path in an archive must not hold: control characters, backslashes, "..", a leading slash.
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\%]|\.\.|^/")


def of_run(chosen: Chosen, folder: Path) -> Written:
    """Evaluations, unless a phase was asked for. Raises UserError where inspect_ai is missing."""
    wanted("inspect_ai")
    chosen = chosen.within("eval") if "eval" in chosen.phases else chosen
    rows: dict[str, int] = {}
    for key, records in groupby(chosen.records(), lambda record: record.key[:4]):
        name = _free(slug("-".join(str(part) for part in key[1:] if part)), rows)
        rows[name] = _log(folder / name, chosen.run, key, records)
    return Written(rows, {}, (f"`inspect view --log-dir .` shows the {len(rows)} logs.",))


def _free(stem: str, taken: Mapping[str, int]) -> str:
    stem, number = stem[:100] or "doctor", 2
    name = f"{stem}.eval"
    while name in taken:
        name, number = f"{stem}-{number}.eval", number + 1
    return name


@dataclass
class _Counts:
    """What the log's header tells of its samples."""

    samples: int = 0
    cases: int = 0
    right: list[float] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)
    epochs: int = 0

    def add(self, record: Record) -> None:
        self.samples += 1
        self.cases += record.sample == 0
        self.epochs = max(self.epochs, record.sample + 1)
        if record.correct is not None:
            self.right.append(float(record.correct))
        if record.score is not None:
            self.returns.append(record.score.total)


def _log(path: Path, run: Run, key: tuple[Any, ...], records: Iterator[Record]) -> int:
    """Writes one log; returns how many samples it has."""
    counts = _Counts()
    with ZipFile(path, "w", ZIP_DEFLATED) as archive, tempfile.TemporaryFile() as summaries:
        for record in records:
            sample = _sample(record)
            name = f"samples/{sample.id}_epoch_{sample.epoch}.json"
            archive.writestr(name, sample.model_dump_json(exclude_none=True))
            summaries.write(b"," if counts.samples else b"[")
            summaries.write(sample.summary().model_dump_json(exclude_none=True).encode())
            counts.add(record)
        summaries.write(b"]")
        summaries.seek(0)
        with archive.open("summaries.json", "w") as file:
            while block := summaries.read(1 << 20):
                file.write(block)
        header = _header(run, key, counts)
        archive.writestr("header.json", header.model_dump_json(exclude_none=True))
    return counts.samples


def _header(run: Run, key: tuple[Any, ...], counts: _Counts) -> Any:
    from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalResults, EvalSpec

    phase, doctor, stage, step = key
    config = run.config
    # The same export of the same run is the same log.
    own = hashlib.blake2b(json.dumps([run.name, *key]).encode(), digest_size=11).hexdigest()
    environment = config.get("environment") or {}
    place = {"run": run.name, "phase": phase, "stage": stage, "step": step}
    return EvalLog(
        status="success",
        eval=EvalSpec(
            eval_id=own,
            run_id=own,
            task_id=own,
            created=str(run.versions.get("started") or "1970-01-01T00:00:00+00:00"),
            task=str(environment.get("name") or config.get("method") or "workup"),
            dataset=EvalDataset(name=str(config.get("cases")), samples=counts.cases),
            model=f"workup/{doctor}",
            config=EvalConfig(epochs=counts.epochs),
            packages={"workup": metadata.version("workup")},
            metadata={**place, **{each: config.get(each) for each in ("method", "policy", "seed")}},
        ),
        results=EvalResults(
            total_samples=counts.samples,
            completed_samples=len(counts.right),
            scores=_scores(counts),
        ),
    )


def _scores(counts: _Counts) -> list[Any]:
    from inspect_ai.log import EvalMetric, EvalScore

    found = []
    for name, metric, values in (
        (SCORER, "accuracy", counts.right),
        (REWARD, "mean", counts.returns),
    ):
        if values:
            mean = EvalMetric(name=metric, value=sum(values) / len(values))
            found.append(EvalScore(name=name, scorer=name, metrics={metric: mean}))
    return found


def _sample(record: Record) -> Any:
    from inspect_ai.log import EvalError, EvalSample
    from inspect_ai.model import ModelOutput

    episode = record.episode
    opening = _messages((message.role, message.content) for message in episode.opening)
    said = [
        pair
        for turn in episode.turns
        for pair in (
            ("assistant", turn.completion.text),
            *((message.role, message.content) for message in turn.observation.messages),
        )
    ]
    last = episode.turns[-1].completion.text if episode.turns else ""
    reason = episode.reason
    error = EvalError(message=reason, traceback=reason, traceback_ansi=reason)
    return EvalSample(
        id=_id(episode.case.id),
        epoch=record.sample + 1,
        input=opening,
        choices=list(episode.case.options) or None,
        target=episode.case.truth.diagnosis,
        messages=[*opening, *_messages(said)],
        output=ModelOutput.from_content(f"workup/{record.doctor}", last),
        scores=_marks(record) or None,
        metadata={
            "case": episode.case.id,
            "category": episode.case.category,
            "ending": episode.ending.value,
            **{f"measure {name}": value for name, value in record.measures.items()},
        },
        error=error if episode.ending is Ending.FAILED else None,
    )


def _messages(pairs: Any) -> list[Any]:
    from inspect_ai.model import ChatMessageAssistant, ChatMessageSystem, ChatMessageUser

    kinds = {
        "system": ChatMessageSystem,
        "user": ChatMessageUser,
        "assistant": ChatMessageAssistant,
    }
    return [kinds[role](content=content) for role, content in pairs]


def _marks(record: Record) -> dict[str, Any]:
    from inspect_ai.scorer import Score

    marks: dict[str, Any] = {}
    if record.correct is not None:
        answer = "; ".join(record.episode.answer) or None
        marks[SCORER] = Score(value="C" if record.correct else "I", answer=answer)
    if record.score is not None:
        turns = {"turns": list(record.score.turns), "parts": dict(record.score.parts)}
        marks[REWARD] = Score(value=record.score.total, metadata=turns)
    return marks


def _id(case: str) -> str:
    """The sample's id: the case's, with what a file name cannot hold percent-encoded."""
    safe = _UNSAFE.sub(lambda found: quote(found[0], safe="").replace(".", "%2E"), case)
    if len(safe) <= _LONGEST:
        return safe
    digest = hashlib.blake2b(case.encode(), digest_size=8).hexdigest()
    return f"{safe[:_LONGEST]}~{digest}"
