"""What stands in a run folder, as its readers rely on it: types and ranges.

A folder may be damaged, of another program, or made to disturb. Everything is checked when it is
read. Each check raises ValueError with what is wrong, in one line that quotes no value; the reader
adds which file it is.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from workup.core.case import Case
from workup.core.episode import Ending, Turn
from workup.core.shapes import first_problem
from workup.core.text import unsteering
from workup.runs.record import Outcome, Record

SUITE = "suite"
WEIGHTS = (None, 0, 1, 2, 3)
ENDINGS = frozenset(map(str, Ending))
LONGEST_FIELD = 80  # characters of a field's name in a message
COUNTS = ("step", "sample", "questions")
# The types of the columns that lists and tables read of an episode and its case.
COLUMNS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("phase", "doctor", "stage", "case_id", "ending"), (str,)),
    **dict.fromkeys(("diagnosis", "category"), (str,)),
    **dict.fromkeys(COUNTS, (int,)),
    "correct": (int, type(None)),
    "total": (float, int, type(None)),
}
Number = Annotated[int | float, Field(allow_inf_nan=False)]
Fold = Annotated[str, Field(pattern=r"^\d{1,9}/\d{1,9}$")]


class _Part(BaseModel):
    """Part of a file of ours. Fields that are not named here may be anything."""

    model_config = ConfigDict(extra="allow", strict=True)


class _Figure(_Part):
    """What `statistics.Estimate.as_json` returns."""

    mean: Number | None
    low: Number | None
    high: Number | None
    n: int
    missing: int = 0
    sd: Number = 0.0


class _Repeats(_Part):
    """What `estimates.over_repeats` returns."""

    each: list[Number]
    mean: Number
    sd: Number


def _where_mapping(value: Any, inner: ValidatorFunctionWrapHandler) -> Any:
    return inner(value) if isinstance(value, dict) else value


class _Entry(_Part):
    """One doctor of a run: what `summary.describe` returns. Its other mappings are estimates."""

    cases: int
    episodes: int
    endings: dict[str, int]
    seeds: list[Any] = []
    repeats_accuracy: _Repeats | None = None
    probabilities: str = ""
    ece_by_chance: Number | None = None
    __pydantic_extra__: dict[str, Annotated[_Figure, WrapValidator(_where_mapping)]]


class _Learned(_Part):
    """What `rising.Learning.as_json` returns."""

    stage: str
    stages: int
    updates: int
    verdict: Literal["rising", "level", "falling", "too short to tell"]
    reward: _Figure | None
    accuracy: _Figure | None


class _Learning(_Learned):
    """What `summary.describe_learning` returns."""

    go_on: str = ""
    folds: dict[str, _Learned] = {}


class _Call(_Part):
    role: str
    model: str
    calls: int
    hits: int
    prompt_tokens: int
    completion_tokens: int
    cost: Number


class _Stop(_Part):
    """An anchor that was stopped after some questions: `loops.evaluation.stopped.curves`."""

    questions: Number
    accuracy: _Figure


class _Summary(_Part):
    seconds: Number | None = None
    episodes_per_second: dict[str, Number] = {}
    anchors: list[str] = []
    calls: list[_Call] | None = None
    learning: _Learning | None = None
    doctors: dict[str, _Entry] = {}
    stopped: dict[str, list[_Stop]] = {}


class _SuiteSummary(_Part):
    """Its doctors are read by nobody: a suite's figures are made from its evaluations."""

    calls: list[_Call] | None = None


def _inside(folder: str) -> str:
    path = PurePosixPath(folder)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError("it leads out of the suite")
    return folder


class _Benchmark(_Part):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    domain: str
    cases: str
    tests: str = ""
    against: str = ""
    gap: str = ""


class _Exam(_Part):
    version: int
    size: str
    doctors: list[str]
    notes: list[str]


class _Arm(_Part):
    doctor: str
    played_as: str
    benchmark: str
    folder: Annotated[str, AfterValidator(_inside)]
    settings: dict[str, Any]


class _TrainedBefore(_Part):
    """What `policies.trained.Trained` is made of."""

    model_config = ConfigDict(extra="forbid", strict=True)

    run: str
    cases: str
    split: int | Fold


class _Config(_Part):
    """What is read of a run's settings before a method or an evaluation checks them itself."""

    kind: str | None = None
    restricted: bool | None = None
    account: str | None = None
    anchors: list[str] = []
    notes: list[str] | None = None
    changed: list[Any] = []
    method: str | None = None
    cases: str | None = None
    policy: str | None = None
    strategy: dict[str, Any] | None = None
    encounter: str | None = None
    seed: int | None = None
    split: int | Fold | None = None
    parts: list[Fold] = []  # folders are named after them
    trained_before: list[_TrainedBefore] = []
    budget: Number | None = None


class _Suite(_Config):
    suite: str
    about: str | None = None
    left_out: list[str]
    benchmarks: list[_Benchmark]
    arms: list[_Arm]
    exam: _Exam | None = None


def config(values: Mapping[str, Any]) -> None:
    """Checks config.yaml."""
    _fits(_Suite if values.get("kind") == SUITE else _Config, values)


def summary(values: Mapping[str, Any]) -> None:
    """Checks summary.json."""
    _fits(_SuiteSummary if values.get("kind") == SUITE else _Summary, values)


def _fits(model: type[BaseModel], values: Mapping[str, Any]) -> None:
    try:
        model.model_validate(dict(values))
    except ValidationError as error:
        where, told = first_problem(error)
        raise ValueError(
            f"field '{one_line(where)}': {told.removeprefix('Value error, ')}"
        ) from None


def one_line(text: str) -> str:
    """The beginning of a text from a file, for a message: in one line, without control codes."""
    plain = unsteering(text).replace("\n", " ")
    return plain if len(plain) <= LONGEST_FIELD else f"{plain[:LONGEST_FIELD]}…"


def step(line: Mapping[str, Any]) -> None:
    """Checks a line of metrics.jsonl."""
    for name, kind in (("stage", str), ("step", int)):
        if type(line.get(name)) is not kind:
            raise ValueError(f"it has no '{name}'")
    if line["step"] < 0:
        raise ValueError("its 'step' is below 0")
    for name in ("seconds", "scoring_seconds", "reward", "accuracy"):
        if not _number(line.get(name), none=True):
            raise ValueError(f"its '{name}' is no number")
    if line.get("scoring_seconds") and not line.get("seconds"):
        raise ValueError("it has 'scoring_seconds' without 'seconds'")
    if (parts := line.get("parts")) is not None:
        numbers(parts, "parts")


def numbers(values: Any, name: str, *, none: bool = False) -> None:
    """Checks a mapping of names to finite numbers, or to None where `none` allows it."""
    if not isinstance(values, Mapping):
        raise ValueError(f"its '{name}' is no mapping")
    for key, value in values.items():
        if not isinstance(key, str) or not _number(value, none=none):
            raise ValueError(f"of its '{name}', '{one_line(str(key))}' is no number")


def _number(value: Any, *, none: bool = False) -> bool:
    if value is None:
        return none
    return isinstance(value, int | float) and math.isfinite(value)


def columns(row: sqlite3.Row) -> None:
    """Checks those of `COLUMNS` that a row has, by the types that SQLite has kept."""
    for name in row.keys():  # noqa: SIM118 (a row iterates over its values)
        if name in COLUMNS and type(row[name]) not in COLUMNS[name]:
            raise ValueError(f"its '{name}' is a {type(row[name]).__name__}")
        if name in COUNTS and not 0 <= row[name] < 2**53:
            raise ValueError(f"its '{name}' is {row[name]}")
        if name == "ending" and row[name] not in ENDINGS:
            raise ValueError("its 'ending' is none that an episode has")


def outcome(found: Outcome) -> None:
    """Checks what tables need of an episode; its columns were checked as `columns` does."""
    numbers(found.parts, "parts")
    numbers(found.measures, "measures", none=True)


def record(found: Record) -> None:
    """Checks an episode with all that it holds."""
    episode = found.episode
    for text in (found.phase, found.doctor, found.stage, episode.reason, *_texts(episode.case)):
        _text(text)
    for message in episode.opening:
        _text(message.role)
        _text(message.content)
    for turn in episode.turns:
        _turn(turn)
    if any(fact.weight not in WEIGHTS for fact in episode.case.all_facts):
        raise ValueError("a finding's weight is not 0 to 3")
    numbers(found.measures, "measures", none=True)
    if found.score is not None:
        numbers(found.score.parts, "parts")
        numbers({str(place): value for place, value in enumerate(found.score.turns)}, "scores")
    length = sum(len(t.prompt_tokens) + len(t.completion.tokens) for t in episode.turns)
    if len(found.advantages) not in (0, length):
        raise ValueError(f"it has {len(found.advantages):,} advantages for {length:,} tokens")


def _texts(case: Case) -> Iterator[Any]:
    truth = case.truth
    yield from (case.id, case.presentation, case.question, case.category, *case.options)
    yield from (truth.diagnosis, truth.record, *truth.codes, *truth.aliases)
    yield from (*truth.differentials, *truth.references)
    for fact in case.all_facts:
        yield from (fact.id, fact.item, fact.text)


def _turn(turn: Turn) -> None:
    said, seen = turn.completion, turn.observation
    for text in (said.text, turn.action.kind, *turn.action.content, seen.item):
        _text(text)
    for text in (*seen.evidence, *seen.sources):
        _text(text)
    for part in turn.action.parts:
        for text in (part.name, *part.items):
            _text(text)
    for passage in seen.passages or ():
        for text in (passage.id, passage.title, passage.text):
            _text(text)
    for message in seen.messages:
        _text(message.role)
        _text(message.content)
    if not isinstance(turn.action.errors, int):
        raise ValueError("a turn's errors are no number")
    if len(said.tokens) != len(said.logprobs):
        raise ValueError("a turn has not as many log-probabilities as tokens")


def _text(value: Any) -> None:
    if not isinstance(value, str):
        raise ValueError(f"a text is a {type(value).__name__}")
    if not value.isascii():
        value.encode()  # half a character, which no page can show: an error of its own
