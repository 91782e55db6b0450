"""Five marks for a doctor's questions, by blinded judges (PM-19).

They are those of ProMed's Fig. 4, from 1 to 5. The information gain is measured beside them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Literal

import numpy as np
from markupsafe import Markup
from pydantic import Field

from workup.core.episode import DIAGNOSE, Ending, Episode
from workup.core.errors import RolloutError, UserError, unknown
from workup.core.ports import Model, Scorer
from workup.core.shapes import ClosedModel
from workup.core.statistics import Estimate, interval, paired
from workup.environments.consultation import Consultation
from workup.environments.questioning import Questioning
from workup.loops.evaluation.arms import labels
from workup.loops.evaluation.loop import open_model
from workup.methods.promed.question_gains import Weighing, question_gains
from workup.methods.promed.understanding import identified
from workup.report.sheets import Sheet
from workup.report.tables import Ends
from workup.rl.running import run_to_end
from workup.roles.fence import clean
from workup.roles.judges.assessor import Rubric, consult
from workup.runs import Record, Run
from workup.runs.policies import resolve
from workup.runs.settings import PolicySettings, Seed
from workup.studies.base import plots
from workup.studies.base.agreement import krippendorff
from workup.studies.base.result import STARRED, Result, Section, for_each, sheet, signed
from workup.studies.base.task import Names, Study, StudySettings, StudyTask

SCALES = ("helpfulness", "relevance", "flow", "clarity", "safety")
LONGEST_START, LONGEST_LINE, LONGEST_NAME = 20_000, 2_000, 300  # characters
AT_ONCE = 32  # conversations before the judges at a time
READING = (
    "You rate the questions that a doctor asked in a simulated consultation, a test bench and no "
    "medical device. Rate all questions together, each scale by itself, from 1 (very poor) to 5 "
    "(excellent); use the whole range.\n"
    "helpfulness: would the answers bring the doctor closer to a correct and confident "
    "conclusion?\n"
    "relevance: do the questions follow clinical reasoning about this patient, and aim at what "
    "matters medically?\n"
    "flow: does each question follow from what was known by then, or are they disjointed, "
    "redundant or repeated?\n"
    "clarity: is each question plain, unambiguous and specific enough for the one who has to "
    "answer it?\n"
    "safety: are the questions appropriate, without premature conclusions, needless alarm or "
    "needless invasiveness?\n"
    "Only the doctor's questions count: not the answers that they got, which are another's, and "
    "not how many there are.{more} Consultations may be in any language or in short forms such as "
    "the bare name of an examination; neither is a fault.\n"
    'Answer with one JSON object: {{"reason": one short sentence, "helpfulness": 1 to 5, '
    '"relevance": 1 to 5, "flow": 1 to 5, "clarity": 1 to 5, "safety": 1 to 5}}.'
)
BLIND = Rubric("question-quality/1", READING.format(more=""), max_tokens=400)
TOLD = Rubric(
    "question-quality-told/1",
    READING.format(
        more=(
            " Whether the doctor's conclusion was right is told for context: good questions may "
            "end in a wrong one."
        )
    ),
    max_tokens=400,
)
Mark = Literal[1, 2, 3, 4, 5]


class Settings(StudySettings):
    """Who reads what."""

    judges: Names = Field(min_length=1, description="who reads: endpoint:NAME, folders or hub ids")
    doctor: str | None = Field(None, description="whose episodes [default: the policy's]")
    scorer: str | None = Field(
        None, description="weighs facts for SIG: a run folder, a model folder or a hub id"
    )
    outcome: bool = Field(False, description="tell judges the verdict too, as the paper does")
    n: int = Field(25, ge=1, description="cases, the same of each run")
    seed: Seed = Field(0, description="of all draws")


class _Marks(ClosedModel):
    reason: str = Field(max_length=2_000)
    helpfulness: Mark
    relevance: Mark
    flow: Mark
    clarity: Mark
    safety: Mark


@dataclass(frozen=True, slots=True)
class Rated:
    """One conversation: its marks by judge in the order of SCALES, and its total SIG.

    A mark is None if the judge gave up.
    """

    run: str
    case: str
    marks: Mapping[str, tuple[int, ...] | None]
    gain: float | None = None

    def mean(self, scale: str) -> float | None:
        """The mean over the judges.

        None unless all have rated, since a mean over fewer would differ.
        """
        place = SCALES.index(scale)
        given = [marks[place] for marks in self.marks.values() if marks is not None]
        return fmean(given) if given and len(given) == len(self.marks) else None

    @property
    def overall(self) -> float | None:
        means = [mean for scale in SCALES if (mean := self.mean(scale)) is not None]
        return fmean(means) if len(means) == len(SCALES) else None


OVERALL, GAIN = "all five", "total SIG"
MARK = (1.0, 5.0)  # the ends of a scale


@dataclass(frozen=True, slots=True)
class ScaleFigures:
    """A run's mean on a scale over its conversations, and its difference to the first run's.

    The difference is paired by case.
    """

    run: str
    scale: str
    level: Estimate
    change: Estimate


@dataclass(frozen=True)
class QuestionQuality(Result):
    """The rated conversations of all runs.

    `silent` counts those without any question, by run; `reasons` why judges gave up.
    """

    titled = "Quality of questions on {source}"

    source: str
    seed: int
    judges: tuple[str, ...]
    outcome: bool
    scorer: str
    rated: tuple[Rated, ...]
    silent: Mapping[str, int]
    reasons: Mapping[str, int]
    scales: tuple[str, ...] = SCALES

    @property
    def runs(self) -> tuple[str, ...]:
        return tuple(self.silent)

    @property
    def facts(self) -> Mapping[str, str]:
        own = {frozenset(self._values(run, OVERALL)[1]) for run in self.runs}
        cases = len(frozenset().union(*own))
        verdict_line = (
            "the right answer, the doctor's and the verdict" if self.outcome else "the right answer"
        )
        head = {
            "Runs": ", ".join(self.runs),
            "Cases": f"{cases:,}{', the same of each run' if len(own) == 1 else ''}",
            "Judges": ", ".join(self.judges),
        }
        scored = {"SIG by": self.scorer} if self.scorer else {}
        return {**head, "Judges are told": verdict_line, **scored, "Seed": str(self.seed)}

    @property
    def shown(self) -> tuple[str, ...]:
        return (*SCALES, OVERALL, *([GAIN] if self.scorer else []))

    @cached_property
    def levels(self) -> list[ScaleFigures]:
        """Every scale of every run, also OVERALL, and GAIN where it is measured."""
        figures = []
        for run, scale in product(self.runs, self.shown):
            values, cases = self._values(run, scale)
            first = self._values(self.runs[0], scale)
            level = interval(values, cases, seed=self.seed)
            change = paired((values, cases), first, seed=self.seed)
            figures.append(ScaleFigures(run, scale, level, change))
        return figures

    def _values(self, run: str, scale: str) -> tuple[list[float | None], list[str]]:
        own = [each for each in self.rated if each.run == run]
        value: Callable[[Rated], float | None] = {
            OVERALL: lambda each: each.overall,
            GAIN: lambda each: each.gain,
        }.get(scale, lambda each: each.mean(scale))
        return [value(each) for each in own], [each.case for each in own]

    @cached_property
    def agreement(self) -> Mapping[str, Estimate]:
        """Krippendorff's ordinal α of the judges by scale, drawn by case; empty for one judge."""
        cases = [each.case for each in self.rated]
        return {
            scale: krippendorff(
                [
                    [None if marks is None else marks[place] for marks in each.marks.values()]
                    for each in self.rated
                ],
                cases,
                "ordinal",
                seed=self.seed,
            )
            for place, scale in enumerate(SCALES)
            if len(self.judges) > 1
        }

    def sections(self) -> Sequence[Section]:
        caption = (
            "Means with 95\u00a0% intervals (bootstrap by case), over the judges where there are "
            "several."
        )
        marks = Section("Marks", self._sheets(), self._figure, caption)
        return [marks, *([self._agreement()] if self.agreement else [])]

    def _figure(self) -> Markup:
        names = (*SCALES, OVERALL)
        marks = {
            run: [row.level for row in self.levels if row.run == run and row.scale in names]
            for run in self.runs
        }
        panels = {"Mark from 1 to 5": marks}
        return plots.rows("Marks by scale and run", names, panels, ends=dict.fromkeys(panels, MARK))

    def _sheets(self) -> list[Sheet]:
        by = {(row.scale, row.run): row for row in self.levels}
        levels = {
            "": lambda scale: scale,
            **for_each(self.runs, lambda run, scale: by[scale, run].level),
        }
        note = (
            "Total SIG: what the questions gained in all, in shares of φ~." if self.scorer else ""
        )
        sizes = ("conversations", *(str(by[OVERALL, run].level.n) for run in self.runs))
        first = sheet("By scale", self.shown, levels, note)
        shown = [replace(first, rows=[*first.rows, sizes])]
        if others := self.runs[1:]:
            gaps = {
                "": lambda scale: scale,
                **for_each(others, lambda run, scale: signed(by[scale, run].change)),
            }
            note = f"Paired by case. {STARRED}"
            shown.append(sheet(f"Difference to {self.runs[0]}", self.shown, gaps, note))
        return shown

    def _agreement(self) -> Section:
        columns = {
            "scale": lambda row: row[0],
            "α": lambda row: row[1],
            "conversations": lambda row: row[1].n,
        }
        note = (
            "1 is agreement, 0 chance; a dash where all marks are equal. Below 0.67 Krippendorff "
            "would conclude nothing."
        )
        alphas = sheet("Krippendorff's α, ordinal", self.agreement.items(), columns, note)
        means = {
            "judge": lambda judge: judge,
            **for_each(SCALES, lambda scale, judge: self._by(judge, scale)),
        }
        each = sheet("Mean marks of each judge", self.judges, means, "Over all runs.")
        return Section("Agreement of the judges", (alphas, each))

    def _by(self, judge: str, scale: str) -> Estimate:
        place = SCALES.index(scale)
        own = [(each.case, each.marks[judge]) for each in self.rated]
        marked = [(case, float(marks[place])) for case, marks in own if marks is not None]
        return interval([mark for _, mark in marked], [case for case, _ in marked], seed=self.seed)

    def check(self) -> None:
        """Raises RolloutError, with the reasons, where no judge gave a mark."""
        if not any(marks for each in self.rated for marks in each.marks.values()):
            raise RolloutError(f"no judge gave a mark: {'; '.join(self.reasons)}")

    def notes(self) -> Sequence[str]:
        part = sum(None in each.marks.values() for each in self.rated)
        lack = f"{part} conversations lack a judge's marks and are in no mean over all judges"
        partly = [lack] if part else []
        silent = [
            f"{run}: {count} conversations without a question are left out"
            for run, count in self.silent.items()
            if count
        ]
        lost = [f"{count} × {reason}" for reason, count in self.reasons.items()]
        blind = (
            "Judges saw the words of the questions only: no run, no thoughts, no markup of the "
            "doctor's."
        )
        return [blind, *silent, *partly, *lost]


def conversations(
    runs: Mapping[str, Run], doctor: str | None, n: int, seed: int
) -> dict[str, list[Record]]:
    """At most `n` cases, drawn by `seed`, the same for each run: the first sample of one doctor.

    That is `doctor`, or else the run's last one. Failed episodes are left out. Raises UserError if
    the runs have no case in common, or `doctor` is in none.
    """
    found = {name: _episodes(run, doctor) for name, run in runs.items()}
    common = sorted(set.intersection(*(set(own) for own in found.values())))
    if not common:
        raise UserError(f"{', '.join(runs)}: no case that all of them evaluated")
    chosen = np.random.default_rng([seed, n]).permutation(len(common))[:n]
    return {
        name: [own[common[place]] for place in sorted(chosen.tolist())]
        for name, own in found.items()
    }


def _episodes(run: Run, doctor: str | None) -> dict[str, Record]:
    doctors = run.doctors()
    if doctor is not None and doctor not in doctors:
        raise unknown("evaluated doctor", doctor, doctors)
    if not doctors:
        raise UserError(
            f"{run.path}: nobody was evaluated in this run; let it finish with `workup resume "
            f"{run.path}`"
        )
    name = doctor or Ends.of(doctors, run.anchors).after or doctors[0]
    where = {"phase": "eval", "doctor": name, "sample": 0}
    records = (
        record for record in run.episodes(**where) if record.episode.ending is not Ending.FAILED
    )
    return {record.episode.case.id: record for record in records}


@dataclass(frozen=True)
class Reading:
    """How conversations are read.

    `seed` is that of the shuffling. With `outcome` judges are told the verdict, as in the paper.
    `scorer` (its name, itself) weighs the facts for SIG. With `restricted` no model's words reach
    the study, errors included.
    """

    seed: int = 0
    outcome: bool = False
    scorer: tuple[str, Scorer] | None = None
    restricted: bool = False


async def read(
    source: str,
    conversed: Mapping[str, Sequence[Record]],
    judges: Mapping[str, Model],
    reading: Reading,
    tick: Callable[[], None] = lambda: None,
) -> QuestionQuality:
    """Has every conversation of every run rated by every judge, in one shuffled order.

    Raises UserError where no conversation holds a question.
    """
    every = [
        (run, record)
        for run, records in conversed.items()
        for record in records
        if record.episode.questions
    ]
    order = np.random.default_rng([reading.seed, len(every)]).permutation(len(every)).tolist()
    limit, reasons = asyncio.Semaphore(AT_ONCE), Counter[str]()

    async def one(place: int) -> tuple[int, Rated]:
        run, record = every[place]
        async with limit:
            marks = {
                name: await _rate(judge, record, reading, reasons) for name, judge in judges.items()
            }
            gain = (
                None
                if reading.scorer is None
                else await _gained(record.episode, reading.scorer[1], reading.seed, reasons)
            )
        tick()
        return place, Rated(run, record.episode.case.id, marks, gain)

    found = dict(await asyncio.gather(*map(one, order)))
    silent = {
        run: sum(not record.episode.questions for record in records)
        for run, records in conversed.items()
    }
    rated = tuple(found[place] for place in range(len(every)))
    if not rated:
        raise UserError(f"{', '.join(conversed)}: no conversation holds a question")
    name = reading.scorer[0] if reading.scorer else ""
    common = dict(reasons.most_common(5))
    return QuestionQuality(
        source, reading.seed, tuple(judges), reading.outcome, name, rated, silent, common
    )


async def _rate(
    judge: Model, record: Record, reading: Reading, reasons: Counter[str]
) -> tuple[int, ...] | None:
    rubric = TOLD if reading.outcome else BLIND
    try:
        found = await consult(judge, rubric, sections(record, reading.outcome), _Marks)
    except RolloutError as error:
        reasons[f"no marks from {judge.name}" if reading.restricted else str(error)] += 1
        return None
    return tuple(getattr(found, scale) for scale in SCALES)


async def _gained(
    episode: Episode, scorer: Scorer, seed: int, reasons: Counter[str]
) -> float | None:
    """Σ_t SIG(q_t), by identity of what was told; the orders of facts are drawn by `seed`.

    None if a case does not fit the scorer's context.
    """
    try:
        world = Questioning(Consultation(()), max_turns=max(1, len(episode.turns)))
        (gains,) = await question_gains([episode], Weighing(world), identified, scorer, seed)
    except UserError:
        reasons["no SIG, the case does not fit the scorer"] += 1
        return None
    return sum(gains)


def sections(record: Record, outcome: bool) -> list[tuple[str, str]]:
    """The part of a conversation that a judge reads; it does not show the run or the policy."""
    episode = record.episode
    shown = [
        ("what the doctor was told at first", clean(episode.opening[-1].content, LONGEST_START)),
        ("the consultation", "\n".join(_lines(episode))),
        ("the right answer", _line(episode.case.truth.diagnosis, LONGEST_NAME)),
    ]
    if not outcome:
        return shown
    verdict = {True: "right", False: "wrong", None: "not judged"}[record.correct]
    given = _line(", ".join(episode.answer) or "none", LONGEST_NAME)
    return [*shown, ("the doctor's answer", f"{given} ({verdict})")]


def _lines(episode: Episode) -> list[str]:
    """The questions as they were parsed.

    Thoughts and markup would tell policies apart, and were said to nobody.
    """
    lines = []
    for turn in episode.turns:
        if turn.action.kind == DIAGNOSE:
            continue
        asked = (
            "; ".join(_line(content, LONGEST_LINE) for content in turn.action.content)
            or "(nothing readable)"
        )
        lines.append(f"Doctor [{turn.action.kind}]: {asked}")
        lines += [
            f"Answer: {_line(message.content, LONGEST_LINE)}"
            for message in turn.observation.messages
        ]
    return lines


def _line(text: str, longest: int) -> str:
    return " ".join(clean(text, longest).split())


def run(task: StudyTask) -> QuestionQuality:
    """Lets the judges read the conversations of all runs. Raises UserError."""
    s = task.settings
    opened = {label: Run.open(Path(path)) for path, label in labels(task.words).items()}
    cases = ", ".join(dict.fromkeys(str(each.config.get("cases", "")) for each in opened.values()))
    restricted = any(each.restricted for each in opened.values())
    chosen = conversations(opened, s.doctor, s.n, s.seed)
    scorer = (Path(s.scorer).name, _scorer(s.scorer)) if s.scorer else None
    run_models = task.run_models(restricted=restricted)
    judges = {label: run_models.open(spec) for spec, label in labels(s.judges).items()}
    tick = task.begin(sum(map(len, chosen.values())), "conversation")
    reading = Reading(s.seed, s.outcome, scorer, restricted)
    return run_to_end(read(cases, chosen, judges, reading, tick))


def _scorer(policy: str) -> Scorer:
    named = resolve(policy)
    if named.endpoint:
        raise UserError(
            f"scorer={policy}: an endpoint gives no log-probabilities; name a run folder, a "
            "model folder or a hub id"
        )
    return open_model(PolicySettings(policy=policy, cases=""), named).scorer()


study = Study(
    "How good are the questions themselves, whatever the diagnosis was? Judges read the "
    "consultations in one shuffled order and are not told whose they are. The scales are the "
    "paper's.",
    run,
    Settings,
    of="run",
)
