"""A transcript on the terminal: each finding in the colour of its criticality, each turn with its
score.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from workup.case import Case, Fact
from workup.episode import Turn
from workup.runs.record import Record

# Okabe–Ito colours, which people with colour-blindness tell apart; None is "not scored".
STYLES = {None: "default", 0: "grey50", 1: "#56b4e9", 2: "#e69f00", 3: "bold #d55e00"}
NAMES = {None: "not scored", 0: "irrelevant", 1: "supportive", 2: "significant", 3: "pathognomonic"}


def show(record: Record, console: Console | None = None) -> None:
    """Print `record` to `console` (standard output by default)."""
    console = console or Console(highlight=False)
    console.print(_head(record), *map(Text, _openings(record)), sep="\n")
    console.print(_table(record))
    console.print(_missed(record))
    console.print(Text("criticality  ") + _legend())


def _head(record: Record) -> Text:
    verdict = {True: "right", False: "wrong", None: "not judged"}[record.correct]
    answer = ", ".join(record.episode.answer) or "none"
    place = f" · {record.stage} step {record.step}" if record.stage else ""
    reward = f" · return {record.score.total:+.2f}" if record.score else ""
    line = (
        f"{record.episode.case.id} · {record.doctor}{place} · {record.episode.ending.value}{reward}"
    )
    return Text(
        f"{line}\nanswer: {answer} ({verdict}) · truth: {record.episode.case.truth.diagnosis}",
        style="bold",
    )


def _openings(record: Record) -> Iterable[str]:
    return (message.content for message in record.episode.opening if message.role != "system")


def _table(record: Record) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 1))
    table.add_column(justify="right", style="dim")
    table.add_column(ratio=2)
    table.add_column(ratio=3)
    table.add_column(justify="right")
    facts = facts_by_id(record.episode.case)
    scores = record.score.turns if record.score else ()
    for number, turn in enumerate(record.episode.turns):
        score = f"{scores[number]:+.2f}" if number < len(scores) else ""
        table.add_row(str(number + 1), Text(turn.completion.text), _reply(turn, facts), score)
    return table


def _reply(turn: Turn, facts: dict[str, Fact]) -> Text:
    weights = [facts[id].weight for id in turn.observation.evidence if id in facts]
    text = "\n".join(message.content for message in turn.observation.messages)
    heaviest = max((weight for weight in weights if weight is not None), default=None)
    return Text(text, style=STYLES[heaviest] if weights else "dim")


def _missed(record: Record) -> Text:
    missed = missed_critical(record)
    if not missed:
        return Text("no critical finding was missed", style="dim")
    lines = [
        Text("missed: ") + Text(f"{fact.text} ({NAMES[fact.weight]})", style=STYLES[fact.weight])
        for fact in missed
    ]
    return Text("\n").join(lines)


def _legend() -> Text:
    return Text("  ").join(
        Text(f"{weight} {NAMES[weight]}", style=STYLES[weight]) for weight in (0, 1, 2, 3)
    )


def facts_by_id(case: Case) -> dict[str, Fact]:
    """Every fact of a case, also those that its presentation states."""
    return {fact.id: fact for fact in (*case.given, *case.truth.facts)}


def missed_critical(record: Record) -> list[Fact]:
    """The findings of weight 2 or 3 that the episode did not discover, the heaviest first."""
    found = record.episode.discovered
    missed = [
        fact
        for fact in record.episode.case.truth.facts
        if (fact.weight or 0) >= 2 and fact.id not in found
    ]
    return sorted(missed, key=lambda fact: -(fact.weight or 0))
