"""The scorecard of an exam: what a clinician, an engineer and a reviewer ask of a model, on a page.

An exam is a suite (`workup.report.suite`); its figures are the measures of its evaluations. Every
figure has its interval, and leads to the report with its episodes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

from workup.core.episode import Ending
from workup.core.statistics import SHARE, Estimate, interval, macro
from workup.core.text import several
from workup.metrics.calibration import BRIER, ECE, LOG_SCORE, WORST
from workup.metrics.conformal import threshold
from workup.metrics.known import metric
from workup.report import tables, transcripts
from workup.report.rendering import render
from workup.report.suite import EXAM, Entrant, EvaluatedBenchmark, Table, opened, warned
from workup.report.suite import figures as suite_figures
from workup.report.transcripts import Meeting, OutcomeGroup
from workup.runs import Outcome, Run
from workup.runs.estimates import difference, value
from workup.runs.files import write_whole
from workup.runs.folder import goes_on
from workup.runs.settings import flat
from workup.runs.words import DASH, plus_minus, share

ALPHA, LEAST = 0.1, 9  # 1 − the promised coverage; calibration cases that promise anything
READ_ALL = "full information"  # the anchor that no doctor can reach by asking
RENAMED = "renamed"
FEW = 30  # cases of a station, below which the first thing to know is how few they are
LEFT_OUT = "left out"  # how the notes on stations begin that were not played
SHOWN = (("worst", 3), ("typical", 4), ("best", 3))


@dataclass(frozen=True)
class ScoreFigure:
    """One figure of one doctor; `link` leads to its episodes, relative to the page."""

    text: str
    estimate: Estimate | None = None
    link: str = ""
    bar: tuple[float, float, float] | None = None
    note: str = ""


@dataclass(frozen=True)
class ScoreRow:
    """A row of the scorecard: a name, what it means, and a figure for each column."""

    name: str
    about: str
    figures: Sequence[ScoreFigure]


@dataclass(frozen=True)
class ScorePart:
    """A part of the scorecard: what its rows have in common."""

    title: str
    about: str
    rows: Sequence[ScoreRow]


@dataclass(frozen=True)
class Scorecard:
    """All that the page shows of the entrants of `table`, which lie below `base`."""

    table: Table
    base: Path

    @property
    def doctors(self) -> list[Entrant]:
        return [each for each in self.table.entrants if not each.anchor]

    @property
    def heads(self) -> list[str]:
        """What stands above the figures of a row."""
        return ["lowest", *(each.label for each in self.doctors), "ideal"]

    def ends(self, station: str) -> tuple[Entrant | None, Entrant | None]:
        """The lowest anchor of a station, and the highest that sees no more than a doctor does.

        Anchors stand in rising order. The one that reads everything is the highest only where no
        more than one other plays.
        """
        here = {each.label: each for each in self.table.entrants if station in each.runs}
        order = dict.fromkeys(a for each in here.values() for a in each.runs[station][0].anchors)
        own = [here[label] for label in order if label in here]
        if not own:
            return None, None
        fair = [each for each in own if each.label != READ_ALL]
        return own[0], (fair if len(fair) > 1 else own)[-1]

    def asks(self, station: str) -> bool:
        """Whether anything can be asked at a station; of one without anchors it is supposed."""
        found = [each.level(station, "questions") for each in self.ends(station) if each]
        return not found or any(each is not None and each.mean > 0 for each in found)

    def row(self, station: str, name: str, title: str = "", about: str = "") -> ScoreRow | None:
        """A metric at a station, between its anchors; None where no doctor has it."""
        lowest, ideal = self.ends(station)
        ours = [self._figure(each, station, name) for each in self.doctors]
        if all(each.estimate is None for each in ours):
            return None
        first, last = (
            replace(self._figure(each, station, name), note=each.label if each else "")
            for each in (lowest, ideal)
        )
        return ScoreRow(title or station, about, [first, *ours, last])

    def _figure(self, entrant: Entrant | None, station: str, name: str) -> ScoreFigure:
        found = None if entrant is None else entrant.level(station, name)
        if entrant is None or found is None or math.isnan(found.mean):
            return ScoreFigure(DASH)
        bar = tables.bar(found, 1.0) if metric(name).share else None
        return ScoreFigure(plus_minus(name, found), found, self.link(entrant, station), bar)

    def link(self, entrant: Entrant, station: str) -> str:
        """Where the episodes stand that a figure is made of; "" before that page is written."""
        page = entrant.runs[station][0].report
        return page.relative_to(self.base).as_posix() if page.is_file() else ""

    def counted(self, title: str, about: str, of: Callable[[Outcome], float | None]) -> ScoreRow:
        """The mean of `of` over all stations, each with the same weight; linked to the highest."""
        made = []
        for each in self.doctors:
            rows = [(name, o) for name in each.runs for o in each.outcomes[name]]
            values, cases = [of(o) for _, o in rows], [(name, o.case_id) for name, o in rows]
            found = macro(values, cases, [name for name, _ in rows], bounds=SHARE, seed=each.seed)
            means: dict[str, float] = {}  # by station; below any where it is undefined
            for name in each.runs:
                own = [v for o in each.outcomes[name] if (v := of(o)) is not None]
                means[name] = sum(own) / len(own) if own else -math.inf
            peak = max(means, key=means.__getitem__, default="")
            known = not math.isnan(found.mean)
            text = plus_minus("accuracy", found) if known else DASH
            link = self.link(each, peak) if peak else ""
            made.append(ScoreFigure(text, found if known else None, link, tables.bar(found, 1.0)))
        return ScoreRow(title, about, [ScoreFigure(""), *made, ScoreFigure("")])

    # --- the parts ---------------------------------------------------------------------------

    def parts(self) -> list[ScorePart]:
        """The parts in their order, those without a row left out."""
        return [part for part in self._parts() if part.rows]

    def _parts(self) -> Iterator[ScorePart]:
        plain = [each.name for each in self.table.benchmarks if not each.against]
        accuracy = [self.row(b.name, "accuracy", "", b.tests) for b in self.table.benchmarks]
        apart = [b for b in self.table.benchmarks if b.against]
        yield ScorePart(
            "Accuracy",
            "The share of right diagnoses, between the lowest and the best doctor that knows the "
            "model of the cases.",
            _kept(accuracy),
        )
        yield ScorePart(
            "Memorised or read",
            "The same patients and library, once with the diseases' names and once with made-up "
            "ones. What is lost hangs on the names: the model had remembered these diseases, or "
            "their names made searching easier. Paired by patient.",
            _kept(self.lost(b) for b in apart if b.name == RENAMED),
        )
        yield ScorePart(
            "Robustness",
            "What is lost when the same patients are met under another condition. Paired.",
            _kept(self.lost(b) for b in apart if b.name != RENAMED),
        )
        for title, about, names in _MEASURED:
            rows = [
                self.row(station, name, f"{metric(name).title}, {station}")
                for name in names
                for station in plain
                if name not in _OF_QUESTIONS or self.asks(station)
            ]
            more = [self.covered(each) for each in plain] if title == "Stopping" else []
            yield ScorePart(title, about, _kept([*rows, *more]))
        yield ScorePart(
            "Form",
            "What was wrong, apart from what could not be read or understood. Means over stations.",
            [self.counted(*each) for each in _FORMS],
        )

    def lost(self, station: EvaluatedBenchmark) -> ScoreRow | None:
        """The paired loss of accuracy from the station that this one is held against."""
        made = [self._lost(each, station) for each in (*self.doctors, self.ends(station.name)[1])]
        if all(each.estimate is None for each in made[:-1]):
            return None
        return ScoreRow(
            station.gap, f"{station.against} − {station.name}", [ScoreFigure(""), *made]
        )

    def _lost(self, entrant: Entrant | None, station: EvaluatedBenchmark) -> ScoreFigure:
        if entrant is None or not {station.name, station.against} <= entrant.runs.keys():
            return ScoreFigure(DASH)
        before, after = (entrant.outcomes[name] for name in (station.against, station.name))
        found = difference(before, after, "accuracy", entrant.seed)
        note = entrant.label if entrant.anchor else ""
        text = tables.gap_text("accuracy", found, starred=True)
        return ScoreFigure(text, found, self.link(entrant, station.name), note=note)

    def covered(self, station: str) -> ScoreRow | None:
        """How often a set with a promised coverage held the truth; None with too few cases."""
        made = [self._covered(each, station) for each in self.doctors]
        if all(each.estimate is None for each in made):
            return None
        title = f"truth in the set of {share(1 - ALPHA)}, {station}"
        about = "split conformal: every second case calibrates, the others are tested"
        return ScoreRow(title, about, [ScoreFigure(""), *made, ScoreFigure("")])

    def _covered(self, entrant: Entrant, station: str) -> ScoreFigure:
        known: dict[str, float] = {}
        for o in entrant.outcomes.get(station, ()):
            if (score := value(o, LOG_SCORE.name)) is not None:
                known.setdefault(o.case_id, score)  # samples of one case are not independent
        scored = [(score, case) for case, score in known.items()]
        held, tested = scored[::2], scored[1::2]
        if len(held) < LEAST or not tested:
            return ScoreFigure(DASH)
        limit = threshold([score for score, _ in held], ALPHA)
        # No set holds a truth at the worst score, which those that are not listed have too.
        inside = [float(score <= limit and score < WORST) for score, _ in tested]
        found = interval(inside, [case for _, case in tested], bounds=SHARE, seed=entrant.seed)
        bar = tables.bar(found, 1.0)
        return ScoreFigure(plus_minus("in_set", found), found, self.link(entrant, station), bar)

    # --- several models, and words -----------------------------------------------------------

    def wins(self) -> list[tuple[str, str, Estimate]]:
        """(one, another, how often the first is right and the other wrong; ties count a half).

        By case, over the stations that both played, each with the same weight.
        """
        found = []
        for one, other in combinations(self.doctors, 2):
            values, cases = [], []
            for station in (each for each in one.runs if each in other.runs):
                theirs = {
                    (o.case_id, o.sample): value(o, "accuracy") for o in other.outcomes[station]
                }
                for o in one.outcomes[station]:
                    mine, their = value(o, "accuracy"), theirs.get((o.case_id, o.sample))
                    if mine is not None and their is not None:
                        values.append((mine - their + 1) / 2)
                        cases.append((station, o.case_id))
            if values:
                classes = [station for station, _ in cases]
                won = macro(values, cases, classes, bounds=SHARE, seed=one.seed)
                found.append((one.label, other.label, won))
        return found

    def short(self, doctor: Entrant) -> list[str]:
        """What a reader in a hurry has to know of a doctor, as sentences."""
        ahead = []
        for station in doctor.runs:
            lowest, _ = self.ends(station)
            if lowest is not None and lowest.label != doctor.label:
                own, low = doctor.outcomes[station], lowest.outcomes[station]
                ahead.append(difference(own, low, "accuracy", doctor.seed).low > 0)
        told = []
        most = max((len({o.case_id for o in each}) for each in doctor.outcomes.values()), default=0)
        if 0 < most < FEW:
            told.append(
                f"At most {several(most, 'case')} a station: only large differences can show."
            )
        if ahead:
            told.append(f"Above the lowest reference at {sum(ahead)} of {len(ahead)} stations.")
        for each in self.table.benchmarks:
            gap = self._lost(doctor, each).estimate if each.against else None
            if gap is None:
                continue
            if not gap.clear:
                if each.name == RENAMED:
                    told.append(f"Whether it read or remembered {self._untold(doctor, each)}.")
                continue
            verb = "lower" if gap.mean > 0 else "higher"
            size, *ends = (share(abs(v)) for v in (gap.mean, gap.low, gap.high))
            told.append(
                f"With {each.gap} its accuracy is {verb} by {size} [{', '.join(sorted(ends))}]."
            )
            if each.name == RENAMED and gap.mean > 0:
                level = doctor.level(each.against, "accuracy")
                assert level is not None  # the gap is made of it
                told.append(
                    f"So of its accuracy of {share(level.mean)} with the diseases' own names, "
                    f"{share(gap.mean)} hangs on the names: it remembered these diseases, or their "
                    "names made searching easier."
                )
        return told

    def _untold(self, doctor: Entrant, renamed: EvaluatedBenchmark) -> str:
        """What to say where no loss is shown: that there was none to show, or none was seen."""
        levels = [doctor.level(name, "accuracy") for name in (renamed.against, renamed.name)]
        if None in levels:
            return "cannot be told: its episodes failed"
        if not any(each.mean for each in levels if each):
            return "cannot be told: it is right with neither names"
        return "is not shown: the interval of the difference holds 0"

    def chosen(self, doctor: Entrant) -> list[tuple[str, list[tuple[str, str]]]]:
        """Ten episodes by rule, as (station, case): the worst, the typical, the best.

        Episodes are ordered: wrong before right, without a diagnosis before with one, more
        unreadable turns first, less told a question first, more questions first. From either end
        and from the middle they are taken in turn, of those that are as right as the first one
        of each station before a second.
        """
        rows = sorted(
            (_quality(o), place, o.case_id, name)
            for place, name in enumerate(doctor.runs)
            for o in doctor.outcomes[name]
            if o.correct is not None and not o.sample
        )
        order = [(name, case) for _, _, case, name in rows]
        right = {(name, case): quality[0] for quality, _, case, name in rows}
        middle = sorted(range(len(order)), key=lambda k: abs(k - len(order) // 2))
        ways = {"worst": order, "typical": [order[k] for k in middle], "best": order[::-1]}
        taken: set[tuple[str, str]] = set()
        found = []
        for group, most in SHOWN:
            free = [each for each in ways[group] if each not in taken]
            alike = [each for each in free if right[each] == right[free[0]]]
            first = {station: (station, case) for station, case in reversed(alike)}
            spread = [each for each in alike if first[each[0]] == each]
            own = [*spread, *(each for each in free if each not in spread)][:most]
            taken |= set(own)
            found.append((group, own))
        return found


_OF_QUESTIONS = ("informed", "premature", "over_ordered", "questions")
_MEASURED: Sequence[tuple[str, str, Sequence[str]]] = (
    (
        "Information",
        "What a question told of the true disease, beside the doctor that asks for most.",
        ("informed",),
    ),
    (
        "Stopping",
        "Closing too early, and ordering after the case was settled, by the exact posterior.",
        ("premature", "over_ordered"),
    ),
    (
        "Calibration",
        "How sure the doctor says it is, beside how often it is right; the references know.",
        (BRIER.name, ECE.name),
    ),
    (
        "Safety",
        "Diseases that must not be missed: how often they were named when they were there.",
        ("must_not_miss",),
    ),
    ("Effort", "Questions, searches and orders before the diagnosis.", ("questions",)),
)


_FORMS: Sequence[tuple[str, str, Callable[[Outcome], float | None]]] = (
    (
        "wrong diagnosis",
        "episodes with a diagnosis, and not the right one",
        lambda o: None if o.correct is None else float(_ended(o) and not o.correct),
    ),
    (
        "no diagnosis",
        "episodes that ran out of turns or tokens",
        lambda o: (
            None
            if o.ending == Ending.FAILED
            else _ended(o, Ending.OUT_OF_TURNS, Ending.OUT_OF_TOKENS)
        ),
    ),
    (
        "failed",
        "episodes in which a model gave up: they are in no other figure",
        lambda o: _ended(o, Ending.FAILED),
    ),
    ("unreadable turns", "turns that hold no action", lambda o: value(o, "malformed")),
    (
        "not understood",
        "readable questions that were not understood",
        lambda o: value(o, "not_understood"),
    ),
)


def _ended(outcome: Outcome, *endings: Ending) -> float:
    return float(outcome.ending in (endings or (Ending.DIAGNOSED,)))


def _kept(rows: Any) -> list[ScoreRow]:
    return [each for each in rows if each is not None]


def _quality(o: Outcome) -> tuple[float, ...]:
    """The order of episodes, the worst first."""
    told = o.measures.get("informed")
    unread = o.measures.get("malformed") or 0.0
    least = -math.inf if told is None else told
    return (float(bool(o.correct)), _ended(o), -unread, least, -o.questions)


# --- summary.json and the page --------------------------------------------------------------------


def is_exam(run: Run) -> bool:
    """Whether a suite's folder holds an exam."""
    return run.config.get(EXAM) is not None


def figures(run: Run) -> dict[str, Any]:
    """The scorecard as JSON values: by part, row and doctor, each with its interval and link."""
    card = Scorecard(opened(run), run.path)
    parts = [
        {
            "title": part.title,
            "rows": [
                {
                    "name": row.name,
                    "about": row.about,
                    "figures": {
                        head: {**own.estimate.as_json(), "link": own.link, "who": own.note or head}
                        for head, own in zip(card.heads, row.figures, strict=True)
                        if own.estimate is not None
                    },
                }
                for row in part.rows
            ],
        }
        for part in card.parts()
    ]
    wins = [{"of": a, "over": b, **found.as_json()} for a, b, found in card.wins()]
    told = {each.label: card.short(each) for each in card.doctors}
    shown = {each.label: dict(card.chosen(each)) for each in card.doctors}
    return {"parts": parts, "wins": wins, "short": told, "transcripts": shown}


def build(run: Run, *, transcripts: bool = False) -> Path:
    """Writes the scorecard of the exam in `run` as its report.html, and returns its path.

    Transcripts of restricted cases are left out, unless `transcripts` asks for them. Raises
    UserError when the disk refuses.
    """
    card, exam = Scorecard(opened(run), run.path), run.config[EXAM]
    withheld = run.restricted and not transcripts
    whole = all((run.path / arm["folder"] / "summary.json").is_file() for arm in run.config["arms"])
    unfinished = [] if whole else [f"Not finished: {goes_on(run.path)} goes on."]
    facts = {
        "Models": ", ".join(each.label for each in card.doctors),
        "Stations": f"{len(run.config['benchmarks'])}, version {exam['version']}, {exam['size']}",
        "Seed": str(run.seed),
        **(
            {"Settings": changed}
            if (changed := ", ".join(f"{name}={each}" for name, each in flat(exam["settings"])))
            else {}
        ),
        "Started": run.started[:16],
    }
    content = {
        "title": f"Exam of {facts['Models']}",
        "facts": list(facts.items()),
        "command": run.versions.get("command"),
        "notes": [*unfinished, *noted(run)],
        "left_out": [note for note in exam["notes"] if note.startswith(LEFT_OUT)],
        "warnings": grouped(warned(suite_figures(card.table))),
        "heads": card.heads,
        "short": [(each.label, card.short(each)) for each in card.doctors],
        "parts": card.parts(),
        "wins": card.wins(),
        "won": partial(plus_minus, "accuracy"),
        "groups": []
        if withheld
        else [group for each in card.doctors for group in meetings(card, each)],
        "calls": tables.calls(run.summary.get("calls") or ()),
        "workup_version": run.versions.get("workup"),
    }
    write_whole(run.report, render("scorecard.html", **content), private=run.restricted)
    return run.report


def grouped(warnings: Sequence[str]) -> list[str]:
    """The warnings "WHO: SHARE % of …; N episodes", without N.

    Those that differ in who and share alone are one.
    """
    found: dict[str, list[str]] = {}
    for line in warnings:
        who, _, said = line.partition(": ")
        number, percent, rest = re.sub(r"; [\d,]+ episodes$", "", said).partition(" % ")
        found.setdefault(rest, []).append(f"{who}, {number}{percent}".rstrip())
    return [f"{'; '.join(each)} {rest}".rstrip() for rest, each in found.items()]


def meetings(card: Scorecard, doctor: Entrant) -> Iterator[tuple[str, list[Meeting]]]:
    """The chosen episodes of a doctor, group by group, each under its station's name."""
    for group, places in card.chosen(doctor):
        found: list[Meeting] = []
        for station, case in places:
            run, label = doctor.runs[station]
            player = transcripts.Player(doctor.label, run, label)
            chosen = OutcomeGroup(station, 1, [case])
            found += transcripts.shown([player], [chosen])
        yield f"{doctor.label}: {group}", found


def noted(run: Run) -> list[str]:
    """What a reader has to know before any figure: who was no stranger to what was asked.

    Answers from the cache, models that judge themselves or play a role before themselves, cases
    that tell their diagnosis.
    """
    inner = [
        note
        for arm in run.config["arms"]
        if (run.path / arm["folder"] / "config.yaml").is_file()
        for note in Run.open(run.path / arm["folder"]).config.get("notes", ())
    ]
    cached = [
        f"{row['hits']:,} of {row['hits'] + row['calls']:,} answers of {row['model']}, a doctor, "
        "came from the cache: it gave them before, in this exam or another run, and was not asked "
        "again."
        for row in run.summary.get("calls") or ()
        if row["role"] == "doctor" and row["hits"]
    ]
    own = [note for note in run.config[EXAM]["notes"] if not note.startswith(LEFT_OUT)]
    return [*own, *cached, *dict.fromkeys(inner)]
