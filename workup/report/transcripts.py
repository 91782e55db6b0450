"""A dozen cases, each played by two doctors, side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from workup.case import Fact
from workup.episode import Turn
from workup.report.tables import Ends
from workup.runs import Outcome, Record, Run
from workup.runs.transcript import facts_by_id, missed_critical
from workup.runs.words import equation

MOST = 12
VERDICTS = {True: "right", False: "wrong", None: "not judged"}


@dataclass(frozen=True)
class Line:
    """One turn: what was done (`label` and `content`, or the raw text where that says more), the reply, what it revealed."""

    number: int
    label: str
    content: str
    reply: str
    found: list[Fact]
    repeated: bool
    score: str


@dataclass(frozen=True)
class Side:
    """One doctor's encounter."""

    doctor: str
    verdict: str
    answer: str
    ending: str
    reason: str
    questions: int
    reward: str
    lines: list[Line]
    missed: list[Fact]


@dataclass(frozen=True)
class Pair:
    """One case with everyone who played it; `group` says how it was chosen."""

    record: Record
    sides: list[Side]
    group: str


@dataclass(frozen=True)
class Group:
    """Cases that went the same way, how many there are, and which are shown."""

    name: str
    size: int
    cases: list[str]


def groups(before: Sequence[Outcome], after: Sequence[Outcome], *, single: bool = False, most: int = MOST) -> list[Group]:
    """The common cases by verdict before and after (first samples), and which of them to show; `single`: by one verdict.

    The groups take turns, and within a group the cases stand in the order of their ids: nothing is picked by hand.
    """
    first, last = ({o.case_id: o.correct for o in reversed(side) if o.correct is not None} for side in (before, after))
    found: dict[str, list[str]] = defaultdict(list)
    for case in sorted(first.keys() & last.keys()):
        verdict = VERDICTS[last[case]]
        found[verdict if single else f"{VERDICTS[first[case]]} → {verdict}"].append(case)
    order = sorted(found, key=lambda name: (name.endswith("wrong"), name.startswith("right")))
    turns = [case for row in zip_longest(*(found[name] for name in order)) for case in row if case is not None]
    chosen = set(turns[:most])
    return [Group(name, len(found[name]), [case for case in found[name] if case in chosen]) for name in order]


def pairs(run: Run, ends: Ends, chosen: Sequence[Group]) -> Iterator[Pair]:
    """The chosen cases with their transcripts."""
    for group in chosen:
        for case in group.cases:
            records = [_record(run, doctor, case) for doctor in ends.names]
            yield Pair(records[0], [side(record) for record in records], group.name)


def _record(run: Run, doctor: str, case: str) -> Record:
    """The doctor's first judged episode of the case in its last evaluation."""
    found = [record for record in run.episodes(phase="eval", doctor=doctor, case=case) if record.correct is not None]
    last = max(record.step for record in found)
    return next(record for record in found if record.step == last)


def side(record: Record) -> Side:
    episode = record.episode
    reward = equation(record.score.total, record.score.parts).removeprefix("reward ") if record.score else ""
    return Side(
        record.doctor,
        VERDICTS[record.correct],
        ", ".join(episode.answer),
        episode.ending.value,
        episode.reason,
        episode.questions,
        reward,
        list(_lines(record)),
        missed_critical(record),
    )


def _lines(record: Record) -> Iterator[Line]:
    facts = facts_by_id(record.episode.case)
    scores = record.score.turns if record.score else ()
    asked: set[str] = set()
    for number, (turn, score) in enumerate(zip_longest(record.episode.turns, scores[: len(record.episode.turns)]), start=1):
        item = turn.observation.item
        label, content = _said(turn)
        found = [facts[id] for id in turn.observation.evidence if id in facts]
        reply = _reply(turn, found)
        shown = f"{score:+.2f}".replace("-", "−") if score else ""
        yield Line(number, label, content, reply, found, bool(item) and item in asked, shown)
        asked.add(item)


def _reply(turn: Turn, found: Sequence[Fact]) -> str:
    """What the doctor read, unless the findings that are shown anyway say just that."""
    reply = "\n".join(message.content for message in turn.observation.messages)
    return "" if found and reply.split() == " ".join(fact.text for fact in found).split() else reply


def _said(turn: Turn) -> tuple[str, str]:
    """("ask", "fever") where the text is just that action, else the action's kind and the raw text."""
    kind, content = turn.action.kind, ", ".join(turn.action.content)
    text = turn.completion.text.strip()
    inner = text.removeprefix(f"<{kind}>").removesuffix(f"</{kind}>").strip()
    return (kind, content) if inner == content else (kind, text)
