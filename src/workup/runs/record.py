"""One episode as the run folder keeps it: what happened, its score, and its place in the run.

A `Record` becomes a row of SQLite and a part of a block (see packed.py), and comes back equal, with
few exceptions: `Truth.extra` (typed, owned by a method), `Truth.graphs` and a passage's score are
not stored, and log-probabilities and advantages are kept in single precision.

Passages stand in the reply, and parts of an action in what the doctor said: their rows say where
(`_Places`), so that no text is kept twice.
"""

from __future__ import annotations

import json
import sqlite3
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from workup.core.case import Case, Fact, Kind, Passage, Truth
from workup.core.episode import (
    Action,
    Completion,
    Ending,
    Episode,
    Message,
    Observation,
    Part,
    Score,
    Turn,
)
from workup.core.errors import WorkupError
from workup.runs import transcript
from workup.runs.packed import PackedEpisode, text

encode = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, check_circular=False
).encode


@dataclass(frozen=True, slots=True)
class Record:
    """An episode with its verdict, its scores and its place in the run.

    `phase` is "train", "eval" or "calibration"; of a search stage it is "search" (the first episode
    of a case), "chosen" or "rejected". `doctor` says who played ("policy" while training; "warm
    start", "trained", "random doctor", … in evaluations); `step` counts the stage's updates from 1,
    and is 0 where training plays no part; `sample` tells the episodes of one case in one step
    apart.
    `measures` are per-episode metrics (None: undefined, such as the noise ratio of an episode that
    discovered nothing). `advantages` has one entry per token of the transcript, 0 outside the
    policy's own, or is empty.
    """

    doctor: str
    episode: Episode
    phase: str = "eval"
    stage: str = ""
    step: int = 0
    sample: int = 0
    correct: bool | None = None
    score: Score | None = None
    measures: Mapping[str, float | None] = field(default_factory=dict)
    advantages: Sequence[float] = ()

    @property
    def key(self) -> tuple[str, str, str, int, str, int]:
        """The columns that identify the record within a run."""
        return self.phase, self.doctor, self.stage, self.step, self.episode.case.id, self.sample

    def show(self) -> None:
        """Prints the transcript, with each finding's criticality and each turn's score."""
        place = f"{self.stage} step {self.step}" if self.stage else ""
        transcript.show(self.episode, self.doctor, place, self.correct, self.score)


class Outcome(NamedTuple):
    """What tables need of an episode, without its transcript."""

    case_id: str
    diagnosis: str
    category: str
    sample: int
    ending: str
    correct: bool | None
    questions: int
    total: float | None
    parts: Mapping[str, float]
    measures: Mapping[str, float | None]


def columns(record: Record) -> tuple[Any, ...]:
    """Ending, reason, verdict, questions and return: columns that lists filter and sort by."""
    episode, score = record.episode, record.score
    correct = None if record.correct is None else int(record.correct)
    total = None if score is None else score.total
    return episode.ending.value, episode.reason, correct, episode.questions, total


def entry(record: Record) -> PackedEpisode:
    """The rest of the record, for a block.

    Raises WorkupError when a score or measure is no finite number, which is a bug of the reward or
    measure that made it, and when advantages or log-probabilities do not fit the tokens.
    """
    episode, score = record.episode, record.score
    try:
        scores = encode(score.turns) if score else "null"
        parts = encode(dict(score.parts)) if score else "{}"
        measures = encode(dict(record.measures))
    except ValueError as error:
        raise WorkupError(
            f"case {episode.case.id}, {record.doctor}: a score or measure is no finite number "
            f"({error})"
        ) from error
    logprobs = array("f", [each for turn in episode.turns for each in turn.completion.logprobs])
    drawn = sum(len(turn.completion.tokens) for turn in episode.turns)
    count = drawn + sum(len(turn.prompt_tokens) for turn in episode.turns)
    if len(record.advantages) not in (0, count) or len(logprobs) != drawn:
        raise WorkupError(
            f"case {episode.case.id}: {len(record.advantages)} advantages for {count} tokens of "
            f"transcript, and {len(logprobs)} log-probabilities for {drawn} of the doctor's own"
        )
    texts = list(_texts(episode))
    return PackedEpisode(texts, (scores, parts, measures), logprobs, array("f", record.advantages))


def _texts(episode: Episode) -> Iterator[str]:
    """The opening and the turns, each with the prompt that follows it."""
    prompts = [turn.prompt_tokens for turn in episode.turns] + [()]
    opening = encode([(message.role, message.content) for message in episode.opening])
    yield text(opening, prompts[0])
    for turn, following in zip(episode.turns, prompts[1:], strict=True):
        said = _Places(turn.completion.text)
        row = (
            turn.completion.text,
            turn.action.kind,
            turn.action.content,
            turn.action.errors,
            turn.observation.item,
            turn.observation.evidence,
            [(message.role, message.content) for message in turn.observation.messages],
            turn.observation.done,
            turn.completion.truncated,
            turn.observation.sources,
            turn.observation.understood_by or turn.observation.understood,  # the step, if any
            [(part.name, *said.of(part.items)) for part in turn.action.parts],
            _rows(turn.observation),
        )
        yield text(encode(row), turn.completion.tokens, following)


class _Places:
    """Texts that stand in another one, in its order, as places there.

    A place is two numbers: the characters between the text before it and this one, and its length.
    What does not stand there, behind the one before, is written as it is.
    """

    def __init__(self, whole: str) -> None:
        self._whole, self._end = whole, 0

    def of(self, texts: Iterable[str]) -> Iterator[int | str]:
        for each in texts:
            start = self._whole.find(each, self._end)
            if start < 0:
                yield each
            else:
                yield from (start - self._end, len(each))
                self._end = start + len(each)

    def texts(self, row: Iterable[Any]) -> Iterator[str]:
        """What `of` made this row of. Raises ValueError for places out of order."""
        values = iter(row)
        for value in values:
            if isinstance(value, str):
                yield value
                continue
            start, length = self._end + value, next(values, None)
            if start < self._end or length is None or length < 0:
                raise ValueError("a text stands nowhere")
            self._end = start + length
            yield self._whole[start : self._end]


def _reply(messages: Sequence[Message]) -> str:
    return "".join(message.content for message in messages)


def _rows(observation: Observation) -> list[tuple[int | str, ...]] | None:
    """The passages: the id of each, then title and text; None where nothing was searched."""
    if observation.passages is None:
        return None
    places = _Places(_reply(observation.messages))
    return [(p.id, *places.of((p.title, p.text))) for p in observation.passages]


def _passages(
    rows: Sequence[Sequence[Any]] | None, messages: Sequence[Message]
) -> tuple[Passage, ...] | None:
    if rows is None:
        return None
    places = _Places(_reply(messages))
    read = ((id, *places.texts(row)) for id, *row in rows)
    return tuple(Passage(id, text, title) for id, title, text in read)


def turns_of(text: str) -> list[dict[str, Any]]:
    """The column `turns` as one mapping per turn, for readers who need no whole episode.

    Raises ValueError, LookupError or TypeError for a text that is none of ours.
    """
    held = json.loads(text)
    return [dict(zip(held["columns"], row, strict=False)) for row in held["rows"]]


def flat(episode: Episode) -> tuple[list[int], bytearray, list[float]]:
    """(token ids, mask, log-probabilities), one entry per token; the mask is 1 for the doctor's."""
    tokens: list[int] = []
    mask = bytearray()
    logprobs: list[float] = []
    for turn in episode.turns:
        prompt = len(turn.prompt_tokens)
        tokens += turn.prompt_tokens
        tokens += turn.completion.tokens
        mask += bytes(prompt) + b"\1" * len(turn.completion.tokens)
        logprobs += (0.0,) * prompt
        logprobs += turn.completion.logprobs
    return tokens, mask, logprobs


def from_row(row: sqlite3.Row, case: Case) -> Record:
    """The record of a row of the view `episodes`."""
    scores = (
        None
        if row["scores"] is None
        else Score(tuple(json.loads(row["scores"])), json.loads(row["parts"]))
    )
    messages = tuple(Message(*message) for message in json.loads(row["opening"]))
    episode = Episode(case, messages, _from_turns(row), Ending(row["ending"]), row["reason"])
    return Record(
        doctor=row["doctor"],
        episode=episode,
        phase=row["phase"],
        stage=row["stage"],
        step=row["step"],
        sample=row["sample"],
        correct=None if row["correct"] is None else bool(row["correct"]),
        score=scores,
        measures=json.loads(row["measures"]),
        advantages=tuple(array("f", row["advantages"])),
    )


def _from_turns(row: sqlite3.Row) -> tuple[Turn, ...]:
    tokens, logprobs = tuple(array("i", row["tokens"])), tuple(array("f", row["logprobs"]))
    turns, start = [], 0
    for (
        said,
        kind,
        content,
        errors,
        item,
        evidence,
        reply,
        done,
        truncated,
        sources,
        understood,
        parts,
        passages,
        prompt,
        length,
    ) in json.loads(row["turns"])["rows"]:
        middle, end = start + prompt, start + prompt + length
        completion = Completion(said, tokens[middle:end], logprobs[middle:end], truncated)
        messages = tuple(Message(*message) for message in reply)
        observation = Observation(
            messages,
            tuple(evidence),
            item,
            done,
            tuple(sources),
            understood is not False,
            _passages(passages, messages),
            understood if isinstance(understood, str) else "",
        )
        places = _Places(said)
        read = tuple(Part(name, tuple(places.texts(items))) for name, *items in parts)
        action = Action(kind, tuple(content), errors, read)
        turns.append(Turn(tokens[start:middle], completion, action, observation))
        start = end
    return tuple(turns)


def to_case_row(case: Case) -> tuple[Any, ...]:
    """The values of a case's row: id, diagnosis, category, and the whole case as JSON.

    The JSON is without `truth.extra`.
    """
    truth = {
        name: getattr(case.truth, name)
        for name in ("codes", "aliases", "differentials", "record", "references")
    }
    body = {
        "presentation": case.presentation,
        "question": case.question,
        "options": case.options,
        "given": [asdict(fact) for fact in case.given],
        "facts": [asdict(fact) for fact in case.truth.facts],
        **truth,
    }
    return case.id, case.truth.diagnosis, case.category, encode(body)


def from_case_row(row: sqlite3.Row) -> Case:
    body = json.loads(row["body"])
    truth = Truth(
        row["diagnosis"],
        tuple(body["codes"]),
        tuple(body["aliases"]),
        tuple(body["differentials"]),
        _facts(body["facts"]),
        body["record"],
        tuple(body["references"]),
    )
    return Case(
        row["id"],
        body["presentation"],
        truth,
        body["question"],
        tuple(body["options"]),
        _facts(body["given"]),
        row["category"],
    )


def _facts(facts: Sequence[Mapping[str, Any]]) -> tuple[Fact, ...]:
    return tuple(
        Fact(fact["id"], fact["item"], fact["text"], Kind(fact["kind"]), fact["weight"])
        for fact in facts
    )
