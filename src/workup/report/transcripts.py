"""Encounters with the same patients, side by side: a dozen on the page, all on further pages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import groupby, zip_longest
from typing import Any

from workup.core.case import Case, Fact
from workup.core.episode import Turn
from workup.runs import Outcome, Record, Run
from workup.runs.transcript import (
    NAMES,
    doubtful,
    facts_by_id,
    missed_critical,
    origins,
    understood_as,
)
from workup.runs.words import equation

MOST = 12
CASES, CHARACTERS = 20, 400_000  # the most on one of the further pages
VERDICTS = {True: "right", False: "wrong", None: "not judged"}


@dataclass(frozen=True)
class Player:
    """Someone whose last evaluation is shown; `label` is the name for the reader."""

    label: str
    run: Run
    doctor: str


@dataclass(frozen=True)
class TranscriptTurn:
    """One turn: the action, the reply, and what it revealed.

    The action is `label` and `content`, or the raw text if that says more. `meant` says what it was
    understood to ask for, and by which step, where that is not what it says.
    """

    number: int
    label: str
    content: str
    reply: str
    origins: str
    found: list[Fact]
    repeated: bool
    understood: bool
    meant: str
    doubt: str  # what became of the truth in the reply, and the truth; "" of neither
    score: str


@dataclass(frozen=True)
class TranscriptEpisode:
    """One doctor's encounter; `missed` is None where findings could not be asked for."""

    doctor: str
    verdict: str
    answer: str
    ending: str
    reason: str
    questions: int
    reward: str
    lines: list[TranscriptTurn]
    missed: list[Fact] | None

    @property
    def size(self) -> int:
        """How many characters the reader gets to see, roughly."""
        found = sum(len(fact.text) for line in self.lines for fact in line.found)
        return found + sum(len(line.content) + len(line.reply) for line in self.lines)


@dataclass(frozen=True)
class Meeting:
    """One case with everyone who played it; `group` says how they fared."""

    case: Case
    sides: list[TranscriptEpisode]
    group: str

    @property
    def size(self) -> int:
        return len(self.case.presentation) + sum(side.size for side in self.sides)


@dataclass(frozen=True)
class OutcomeGroup:
    """Cases that went the same way, how many there are, and which are shown."""

    name: str
    size: int
    cases: list[str]


def groups(
    sides: Sequence[Sequence[Outcome]], *, between: str = " → ", most: int = MOST
) -> list[OutcomeGroup]:
    """The cases that all `sides` were judged on, by their verdicts, and those to show.

    The first samples count. Groups in which the sides disagree come first. The groups take turns;
    within a group the cases are in the order of their ids: nothing is picked by hand.
    """
    verdicts = [
        {each.case_id: each.correct for each in reversed(side) if each.correct is not None}
        for side in sides
    ]
    common = set.intersection(*(set(side) for side in verdicts)) if verdicts else set()
    found: dict[tuple[bool, ...], list[str]] = defaultdict(list)
    for case in sorted(common):
        found[tuple(bool(side[case]) for side in verdicts)].append(case)
    order = sorted(found, key=lambda each: (len(set(each)) == 1, not each[-1], each))
    turns = [
        case
        for row in zip_longest(*(found[each] for each in order))
        for case in row
        if case is not None
    ]
    chosen = set(turns[:most])
    names = {each: between.join(VERDICTS[verdict] for verdict in each) for each in order}
    return [
        OutcomeGroup(
            names[each], len(found[each]), [case for case in found[each] if case in chosen]
        )
        for each in order
    ]


def shown(players: Sequence[Player], chosen: Sequence[OutcomeGroup]) -> Iterator[Meeting]:
    """The chosen cases, with each player's first judged episode."""
    for group in chosen:
        for case in group.cases:
            found = (player.run.evaluated(player.doctor, case=case) for player in players)
            records = [next(r for r in own if r.correct is not None) for own in found]
            sides = [
                side(record, player.label) for player, record in zip(players, records, strict=True)
            ]
            yield Meeting(records[0].episode.case, sides, group.name)


def everything(players: Sequence[Player]) -> Iterator[Meeting]:
    """Every case that someone played, with all episodes of all players, in the order of the ids.

    One case is in memory at a time. Two runs may use the same id for different patients; these are
    separate entries.
    """

    def played_by(place: int, player: Player) -> Iterator[tuple[str, int, Record]]:
        for record in player.run.evaluated(player.doctor):
            yield record.episode.case.id, place, record

    mine = [played_by(place, player) for place, player in enumerate(players)]
    played = merge(*mine, key=lambda each: each[:2])
    for _, together in groupby(played, key=lambda each: each[0]):
        patients: dict[str, list[tuple[int, Record]]] = defaultdict(list)
        for _, place, record in together:
            patients[record.episode.case.presentation].append((place, record))
        for episodes in patients.values():
            yield _meeting(players, episodes)


def _meeting(players: Sequence[Player], episodes: Sequence[tuple[int, Record]]) -> Meeting:
    several = {place for place, record in episodes if record.sample}
    sides = [
        side(
            record,
            f"{players[place].label}, episode {record.sample + 1}"
            if place in several
            else players[place].label,
        )
        for place, record in episodes
    ]
    right = sum(each.verdict == VERDICTS[True] for each in sides)
    return Meeting(episodes[0][1].episode.case, sides, f"{right} of {len(sides)} right")


def in_pages(meetings: Iterator[Meeting]) -> Iterator[list[Meeting]]:
    """The meetings in pages of at most `CASES` cases and about `CHARACTERS` characters.

    A page has at least one case.
    """
    page: list[Meeting] = []
    size = 0
    for meeting in meetings:
        if page and (len(page) == CASES or size + meeting.size > CHARACTERS):
            yield page
            page, size = [], 0
        page.append(meeting)
        size += meeting.size
    if page:
        yield page


def side(record: Record, label: str) -> TranscriptEpisode:
    episode = record.episode
    reward = (
        equation(record.score.total, record.score.parts).removeprefix("reward ")
        if record.score
        else ""
    )
    return TranscriptEpisode(
        label,
        VERDICTS[record.correct],
        ", ".join(episode.answer),
        episode.ending.value,
        episode.reason,
        episode.questions,
        reward,
        list(_lines(record)),
        # A share of findings without a value says so: they stood in the opening, or were none.
        None if record.measures.get("coverage", 0.0) is None else missed_critical(episode),
    )


def _lines(record: Record) -> Iterator[TranscriptTurn]:
    facts = facts_by_id(record.episode.case)
    scores = record.score.turns if record.score else ()
    asked: set[str] = set()
    for number, (turn, score) in enumerate(
        zip_longest(record.episode.turns, scores[: len(record.episode.turns)]), start=1
    ):
        item = turn.observation.item
        label, content = _said(turn)
        found = [facts[id] for id in turn.observation.evidence if id in facts]
        reply = "\n".join(message.content for message in turn.observation.messages)
        if found and reply.split() == " ".join(fact.text for fact in found).split():
            reply = ""  # the findings are shown anyway, and say just that
        shown = f"{score:+.2f}".replace("-", "−") if score else ""
        repeated = bool(item) and item in asked
        understood = turn.observation.understood or bool(item)
        meant, where = understood_as(turn.observation), origins(turn)
        true = doubtful(record.episode, number - 1)
        told = (number, label, content, reply, where, found, repeated, understood)
        yield TranscriptTurn(*told, meant, true, shown)
        asked.add(item)


def legend(meetings: Sequence[Meeting]) -> dict[str, Any]:
    """For a page: what the weights are called, and whether every finding has one."""
    weights = {fact.weight for meeting in meetings for fact in meeting.case.truth.facts}
    names = [
        (weight, name) for weight, name in NAMES.items() if weight is not None or None in weights
    ]
    return {"legend": names, "scored": None not in weights}


def _said(turn: Turn) -> tuple[str, str]:
    """("ask", "fever") if the text is just that action, else the action's kind and the raw text."""
    kind, content = turn.action.kind, ", ".join(turn.action.content)
    text = turn.completion.text.strip()
    inner = text.removeprefix(f"<{kind}>").removesuffix(f"</{kind}>").strip()
    return (kind, content) if inner == content else (kind, text)
