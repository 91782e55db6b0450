"""How good a doctor's questions are (PM-19, ProMed Fig. 4).

Model judges give five marks from 1 to 5; the information gain is measured beside them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from workup.core.episode import DIAGNOSE, Ending, Episode
from workup.core.errors import RolloutError, UserError, unknown
from workup.core.ports import Model, Scorer
from workup.core.statistics import Estimate, interval, paired
from workup.environments.consultation import Consultation
from workup.environments.questioning import Questioning
from workup.methods.promed.question_gains import Weighing, question_gains
from workup.methods.promed.understanding import identified
from workup.roles.fence import clean
from workup.roles.judges.assessor import Rubric, consult
from workup.runs import Record, Run
from workup.studies import plots
from workup.studies.agreement import krippendorff
from workup.studies.study import Section, Sheet, Study, plain, signed

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


class _Marks(BaseModel):
    model_config = ConfigDict(extra="forbid")

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


@dataclass(frozen=True)
class QuestionQuality(Study):
    """The rated conversations of all runs.

    `silent` counts those without any question, by run; `reasons` why judges gave up.
    """

    name: ClassVar[str] = "questions"
    question: ClassVar[str] = (
        "How good are the questions themselves, whatever the diagnosis was? Judges read the "
        "consultations in one shuffled order and are not told whose they are. The scales are the "
        "paper's."
    )
    source: str
    seed: int
    judges: tuple[str, ...]
    outcome: bool
    scorer: str
    rated: tuple[Rated, ...]
    silent: Mapping[str, int]
    reasons: Mapping[str, int]

    @property
    def runs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(each.run for each in self.rated))

    @property
    def title(self) -> str:
        return f"Quality of questions on {self.source}"

    @property
    def facts(self) -> Mapping[str, str]:
        cases = len({each.case for each in self.rated})
        verdict_line = (
            "the right answer, the doctor's and the verdict" if self.outcome else "the right answer"
        )
        head = {
            "Runs": ", ".join(self.runs),
            "Cases": f"{cases:,}, the same of each run",
            "Judges": ", ".join(self.judges),
        }
        scored = {"SIG by": self.scorer} if self.scorer else {}
        return {**head, "Judges are told": verdict_line, **scored, "Seed": str(self.seed)}

    def level(self, run: str, scale: str) -> Estimate:
        """The mean over conversations of a scale, of OVERALL or of GAIN."""
        values, cases = self._values(run, scale)
        return interval(values, cases, seed=self.seed)

    def change(self, run: str, scale: str) -> Estimate:
        """The difference to the first run, paired by case."""
        first = self._values(self.runs[0], scale)
        return paired(self._values(run, scale), first, seed=self.seed)

    def _values(self, run: str, scale: str) -> tuple[list[float | None], list[str]]:
        own = [each for each in self.rated if each.run == run]
        value: Callable[[Rated], float | None] = {
            OVERALL: lambda each: each.overall,
            GAIN: lambda each: each.gain,
        }.get(scale, lambda each: each.mean(scale))
        return [value(each) for each in own], [each.case for each in own]

    def agreement(self, scale: str) -> Estimate:
        """Krippendorff's ordinal α among the judges, over all conversations; drawn by case."""
        place = SCALES.index(scale)
        units = [
            [None if marks is None else marks[place] for marks in each.marks.values()]
            for each in self.rated
        ]
        return krippendorff(units, [each.case for each in self.rated], "ordinal", seed=self.seed)

    @property
    def shown(self) -> tuple[str, ...]:
        return (*SCALES, OVERALL, *([GAIN] if self.scorer else []))

    def sections(self) -> Sequence[Section]:
        caption = (
            "Means with 95\u00a0% intervals (bootstrap by case), over the judges where there are "
            "several."
        )
        marks = Section("Marks", tuple(self._sheets()), self._figure(), caption)
        return (
            [marks, Section("Agreement of the judges", tuple(self._agreement()))]
            if len(self.judges) > 1
            else [marks]
        )

    def _figure(self) -> Any:
        panels = {
            "Mark from 1 to 5": {
                run: [self.level(run, scale) for scale in (*SCALES, OVERALL)] for run in self.runs
            }
        }
        return plots.rows(
            "Marks by scale and run",
            (*SCALES, OVERALL),
            panels,
            ends=dict.fromkeys(panels, plots.MARK),
        )

    def _sheets(self) -> list[Sheet]:
        sizes = ("conversations", *(str(self.level(run, OVERALL).n) for run in self.runs))
        rows = tuple(
            (scale, *(plain(self.level(run, scale)) for run in self.runs)) for scale in self.shown
        )
        note = (
            "Total SIG: what the questions gained in all, in shares of φ~." if self.scorer else ""
        )
        levels = Sheet("By scale", ("", *self.runs), (*rows, sizes), note)
        if len(self.runs) < 2:
            return [levels]
        gaps = tuple(
            (scale, *(signed(self.change(run, scale)) for run in self.runs[1:]))
            for scale in self.shown
        )
        note = "Paired by case. *: the interval leaves out 0."
        return [levels, Sheet(f"Difference to {self.runs[0]}", ("", *self.runs[1:]), gaps, note)]

    def _agreement(self) -> list[Sheet]:
        found = {scale: self.agreement(scale) for scale in SCALES}
        rows = tuple((scale, plain(alpha), str(alpha.n)) for scale, alpha in found.items())
        note = (
            "1 is agreement, 0 chance; a dash where all marks are equal. Below 0.67 Krippendorff "
            "would conclude nothing."
        )
        means = tuple(
            (judge, *(plain(self._by(judge, scale)) for scale in SCALES)) for judge in self.judges
        )
        return [
            Sheet("Krippendorff's α, ordinal", ("scale", "α", "conversations"), rows, note),
            Sheet("Mean marks of each judge", ("judge", *SCALES), means, "Over all runs."),
        ]

    def _by(self, judge: str, scale: str) -> Estimate:
        place = SCALES.index(scale)
        own = [
            (each.case, marks) for each in self.rated if (marks := each.marks[judge]) is not None
        ]
        return interval(
            [float(marks[place]) for _, marks in own], [case for case, _ in own], seed=self.seed
        )

    def notes(self) -> Sequence[str]:
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
        return [blind, *silent, *lost]

    def as_json(self) -> dict[str, Any]:
        levels = {
            run: {scale: self.level(run, scale).as_json() for scale in self.shown}
            for run in self.runs
        }
        agreement = (
            {scale: self.agreement(scale).as_json() for scale in SCALES}
            if len(self.judges) > 1
            else {}
        )
        rated = [
            {
                "run": each.run,
                "case": each.case,
                "marks": {j: m and list(m) for j, m in each.marks.items()},
                "sig": each.gain,
            }
            for each in self.rated
        ]
        how = {
            "judges": list(self.judges),
            "outcome": self.outcome,
            "scorer": self.scorer,
            "scales": list(SCALES),
        }
        found = {
            "levels": levels,
            "agreement": agreement,
            "silent": dict(self.silent),
            "rated": rated,
        }
        return {"cases": self.source, "seed": self.seed, **how, **found}


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
    name = doctor or _evaluated(run, doctors)
    where = {"phase": "eval", "doctor": name, "sample": 0}
    records = (
        record for record in run.episodes(**where) if record.episode.ending is not Ending.FAILED
    )
    return {record.episode.case.id: record for record in records}


def _evaluated(run: Run, doctors: Sequence[str]) -> str:
    """The trained policy, or in an evaluation the one that it is about."""
    if not doctors:
        raise UserError(
            f"{run.path}: nobody was evaluated in this run; let it finish with `workup resume "
            f"{run.path}`"
        )
    return "trained" if "trained" in doctors else doctors[0]


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


async def study(
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
