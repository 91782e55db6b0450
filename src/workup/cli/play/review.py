"""The review after the diagnosis: what could be found, its worth, and what others asked.

It also shows how the evidence moved the odds. Colour means criticality and nothing else; the figure
beside it says the same without colour.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from textwrap import shorten

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from workup.core.case import Case, Evidence, Fact, Source
from workup.core.episode import DIAGNOSE, Episode, Turn
from workup.core.ports import Environment
from workup.core.text import unsteering
from workup.environments.base.anchors import FullInformationDoctor, exact_reader
from workup.methods import craft
from workup.methods.base.outcome import malformed
from workup.metrics.facts import criticality_recall, scored
from workup.runs import Record
from workup.runs.transcript import NAMES, STYLES
from workup.runs.words import number, share

_TOP = 3  # diagnoses shown of each posterior
_BAR = 10  # characters of a probability of 1
_EIGHTHS = " ▏▎▍▌▋▊▉"
_NARROWEST, _NARROW, _WIDEST = 14, 20, 30  # characters of one doctor's column
_SENTENCE = 40  # items with longer names are sentences, unreadable in a narrow column
_MEASURES = {"recall": "CR", "critical": "critical", "noise": "noise"}


def review(
    console: Console,
    source: Source,
    environment: Environment,
    records: Sequence[Record],
    settings: craft.Settings,
) -> None:
    """Prints the review of one case; `records` are everyone's episodes of it, the person's first.

    They were played in `environment`.
    """
    yours = records[0]
    _verdict(console, yours)
    _findings(console, yours, settings)
    _reward(console, yours, settings, environment.max_turns)
    if len(records) > 1:
        _side_by_side(console, records)
    if source.knowledge is None:
        note = (
            "This source comes without a model of its cases: no greedy or random doctor and no "
            "posterior to learn from."
        )
        console.print(Text(note, style="dim"))
    else:
        _Tutor(source, environment, yours.episode).print(console)


def _verdict(console: Console, record: Record) -> None:
    truth, answer = record.episode.case.truth, record.episode.answer
    name = f"{truth.diagnosis} ({', '.join(truth.codes)})" if truth.codes else truth.diagnosis
    if record.correct:
        verdict = f"Right: {name}."
    elif answer:
        verdict = f"Wrong: you said {answer[0]}; it is {name}."
    else:
        verdict = f"No diagnosis within {len(record.episode.turns)} actions; it is {name}."
    console.rule(style="dim")
    console.print(Text(unsteering(verdict), style="bold"))
    if truth.aliases:
        console.print(Text(unsteering(f"also called {', '.join(truth.aliases)}"), style="dim"))


def _findings(console: Console, record: Record, settings: craft.Settings) -> None:
    """Every hidden finding by weight: when it was found, its share of CR-6, its worth in reward.

    The worth is what the finding adds to a right diagnosis, α·w_f / Σ w.
    """
    case, turns = record.episode.case, _found_in(record.episode)
    shown, rest = _worth_showing(case, turns)
    if not case.truth.facts:
        console.print(
            Text("There was nothing to find: every answer on this record is normal.", style="dim")
        )
        return
    total = sum(fact.weight or 0 for fact in case.truth.facts) if scored(record.episode) else 0
    table = Table(
        title="\nWhat there was to find",
        title_justify="left",
        box=None,
        padding=(0, 2, 0, 0),
        title_style="bold",
    )
    table.add_column("when", no_wrap=True)
    table.add_column("finding", ratio=1)
    for name in ("criticality", "CR", "reward" if record.correct else "if right") if total else ():
        table.add_column(name, justify="left" if name == "criticality" else "right", no_wrap=True)
    for fact in shown:
        when = f"turn {turns[fact.id]}" if fact.id in turns else "missed"
        worth = _worth(fact, total, settings) if total else ()
        table.add_row(when, Text(unsteering(fact.text)), *worth, style=STYLES[fact.weight])
    console.print(table)
    if rest:
        console.print(Text(f"not asked for, and irrelevant: {rest} more", style="dim"))


def _worth(fact: Fact, total: int, settings: craft.Settings) -> tuple[str, str, str]:
    part = (fact.weight or 0) / total
    name = f"{fact.weight} {NAMES[fact.weight]}"
    return (name, share(part), f"+{share(settings.alpha * part)}") if part else (name, "", "")


def _worth_showing(case: Case, turns: dict[str, int]) -> tuple[list[Fact], int]:
    """The findings by weight, found ones first; and the number of irrelevant ones left out.

    These are findings that nobody asked for.
    """
    facts = case.truth.facts
    shown = [fact for fact in facts if fact.weight != 0 or fact.id in turns]
    shown.sort(key=lambda fact: (-(fact.weight or 0), turns.get(fact.id, math.inf)))
    return shown, len(facts) - len(shown)


def _found_in(episode: Episode) -> dict[str, int]:
    """The turn, from 1, in which each fact was first revealed."""
    turns: dict[str, int] = {}
    for count, turn in enumerate(episode.turns, 1):
        for fact in turn.observation.evidence:
            turns.setdefault(fact, count)
    return turns


def _reward(console: Console, record: Record, settings: craft.Settings, T: int) -> None:
    if record.score is None:
        return console.print(
            Text(
                "Nobody has scored how critical these findings are: no worth, and no reward.",
                style="dim",
            )
        )
    s, episode = settings, record.episode
    # Where nothing has to be found the measure is undefined, and the reward counts 0.
    CR = number("recall", criticality_recall(episode))
    acc = int(bool(record.correct))
    t = episode.questions
    penalty = f" − {s.penalty:g}" if malformed(episode) else ""
    equation = f"({s.alpha:g}·{CR} + {s.beta:g})·{acc} − {s.lam:g}·{t}/{T}{penalty}"
    total = number("reward", record.score.total)
    console.print(
        Text(f"\nYour reward (α·CR + β)·acc − λ·t/T = {equation} = {total}", style="bold")
    )
    return None


def _side_by_side(console: Console, records: Sequence[Record]) -> None:
    """What everyone asked, turn by turn, and how it ended.

    Several tables if one would be too narrow to read.
    """
    longest = max(len(_name(turn)) + 2 for record in records for turn in record.episode.turns)
    least = _WIDEST if longest > _SENTENCE else max(_NARROWEST, min(longest, _NARROW))
    tables = math.ceil(len(records) / max(2, (console.width - len("diagnosis  ")) // (least + 2)))
    each = math.ceil(len(records) / tables)
    for start in range(0, len(records), each):
        console.print()
        console.print(
            _columns(records[start : start + each], least, "" if start else "Who asked what")
        )
    marks = [Text(f"{weight} {NAMES[weight]}", style=STYLES[weight]) for weight in (3, 2, 1, 0)]
    console.print(Text("  ").join([*marks, Text("· nothing new", style="dim")]))
    console.print(
        Text(
            "CR: criticality recall · critical, noise: share of 3s and 0s in what was found",
            style="dim",
        )
    )


def _columns(records: Sequence[Record], width: int, title: str) -> Table:
    table = Table(
        title=title or None,
        title_justify="left",
        title_style="bold",
        box=None,
        padding=(0, 2, 0, 0),
    )
    table.add_column("turn", style="dim", no_wrap=True)
    for record in records:
        table.add_column(Text(unsteering(record.doctor)), min_width=_NARROWEST, max_width=_WIDEST)
    cells = [list(_asked(record, width)) for record in records]
    for row in range(max(map(len, cells))):
        table.add_row(str(row + 1), *(column[row] if row < len(column) else "" for column in cells))
    table.add_section()
    table.add_row("diagnosis", *map(_answer, records))
    table.add_row("questions", *(str(record.episode.questions) for record in records))
    for measure, heading in _MEASURES.items():
        table.add_row(
            heading, *(number(measure, record.measures.get(measure)) for record in records)
        )
    if records[0].score is not None:
        table.add_row(
            "reward",
            *(number("reward", record.score.total if record.score else None) for record in records),
        )
    return table


def _asked(record: Record, width: int) -> Iterator[Text]:
    """One cell per question, on at most two lines: its highest criticality, and what was asked."""
    weights = {fact.id: fact.weight for fact in record.episode.case.truth.facts}
    known: set[str] = set()
    for turn in record.episode.turns:
        if turn.action.kind == DIAGNOSE:
            continue
        new = [weights[id] for id in turn.observation.evidence if id in weights and id not in known]
        known.update(turn.observation.evidence)
        weight = max((weight for weight in new if weight is not None), default=None)
        mark = ("+" if weight is None else str(weight)) if new else "·"
        name = shorten(unsteering(_name(turn)), 2 * width - 4, placeholder=" …")
        yield Text(f"{mark} {name}", style=STYLES[weight] if new else "dim")


def _name(turn: Turn) -> str:
    if turn.action.kind == DIAGNOSE:
        return turn.action.content[0]
    return turn.observation.item or " ".join(turn.action.content) or "(nothing readable)"


def _answer(record: Record) -> Text:
    if not record.episode.answer:
        return Text(record.episode.ending.value)
    return Text(
        f"{'✓' if record.correct else '✗'} {unsteering(record.episode.answer[0])}", style="bold"
    )


class _Tutor:
    """How the exact posterior moved with each question, and each question's expected gain."""

    def __init__(self, source: Source, environment: Environment, episode: Episode) -> None:
        reader = exact_reader(source, environment)
        assert reader is not None, "the source has a model of its cases"
        self.knowledge, self.items, self.episode = reader.knowledge, source.items, episode
        self._bayes = reader

    def print(self, console: Console) -> None:
        title = "\nWhat the evidence said (exact posterior; ← is the truth)"
        table = Table(
            title=title,
            title_justify="left",
            title_style="bold",
            box=None,
            show_header=False,
            padding=(0, 2, 1, 0),
        )
        table.add_column(ratio=2)
        table.add_column(ratio=3)
        ascii_only = console.options.ascii_only
        past: list[Turn] = []
        evidence = self._bayes.evidence(self.episode.case, past)
        table.add_row("the presentation", self._bars(evidence, ascii_only))
        for turn in self.episode.turns:
            if turn.action.kind == DIAGNOSE:
                break
            past.append(turn)
            question = Text(f"{len(past)} {unsteering(_name(turn))}\n") + Text(
                self._hint(evidence, turn), style="dim"
            )
            evidence = self._bayes.evidence(self.episode.case, past)
            table.add_row(question, self._bars(evidence, ascii_only))
        everything = FullInformationDoctor(self.knowledge, self.items).evidence(
            self.episode.case, ()
        )
        table.add_row("everything on record", self._bars(everything, ascii_only))
        console.print(table)

    def _hint(self, evidence: Evidence, turn: Turn) -> str:
        """The question's expected gain in bits, beside that of the best question at that time."""
        names = [item.name for item in self.items]
        gains = np.asarray(self.knowledge.gains(evidence, names)) / math.log(2)
        best = int(np.argmax(gains))
        asked = turn.observation.item
        gain = gains[names.index(asked)] if asked in names else 0.0
        if asked == names[best]:
            return f"{gain:.2f} bits expected, the most"
        return (
            f"{gain:.2f} bits expected; most: {gains[best]:.2f}, "
            f"{shorten(unsteering(names[best]), _WIDEST, placeholder=' …')}"
        )

    def _bars(self, evidence: Evidence, ascii_only: bool) -> Table:
        """The most probable diagnoses, and the truth below them if it is none of them."""
        posterior = np.asarray(self.knowledge.posterior(evidence))
        truth = list(self.knowledge.diagnoses).index(self.episode.case.truth.diagnosis)
        top = [int(place) for place in np.argsort(-posterior, kind="stable")[:_TOP]]
        table = Table.grid(padding=(0, 1, 0, 0))
        for place in top if truth in top else [*top, truth]:
            chance = float(posterior[place])
            name = unsteering(self.knowledge.diagnoses[place])
            label = Text(f"{name} ←", style="bold") if place == truth else Text(name)
            table.add_row(share(chance).rjust(4), _bar(chance, ascii_only), label)
        return table


def _bar(chance: float, ascii_only: bool) -> str:
    if ascii_only:
        return ("#" * round(chance * _BAR)).ljust(_BAR)
    whole, eighth = divmod(round(chance * _BAR * 8), 8)
    return ("█" * whole + _EIGHTHS[eighth].strip()).ljust(_BAR)
