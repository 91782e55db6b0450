"""The evaluation that every doctor of a run goes through, and the doctors that can take part.

Test cases, seeds, environment and judge are the same for all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from workup.cases.files import evenly_spaced
from workup.core.case import Case, Source
from workup.core.draws import seed_key
from workup.core.episode import Batch, Ending, Episode, Score
from workup.core.errors import BudgetError, RolloutError, UserError
from workup.core.ports import (
    Doctor,
    Environment,
    Instruments,
    Judge,
    Model,
    Reward,
    Scorer,
    alone,
)
from workup.core.stages import Settle
from workup.doctors.beliefs import BeliefScores, Believing, OwnWeights
from workup.doctors.hybrid import Diagnoser, conclude, whole_record
from workup.doctors.strategies import Searcher
from workup.environments.base.anchors import BayesDiagnoser
from workup.environments.consultation import Consultation
from workup.metrics.extra import Measure, MeasuredWorld, Models, Values, open_measures, take
from workup.metrics.prices import costs
from workup.metrics.reading import reader_of
from workup.rl.rollout import Play, ToPlay, check_failures, rollout
from workup.rl.running import run_to_end
from workup.roles.judges.verdicts import Verdicts
from workup.runs import Record, Run
from workup.runs.judged import measured, with_score
from workup.runs.settings import EvaluationSettings

FOLDED = "folds=5 trains five times, so that every case is tested once"
CHUNK = 256  # episodes in memory at a time
Progress = Callable[[Mapping[str, float]], None]
"""Called after every episode with the figures so far:

`step`, the number of episodes (those of earlier sessions included); `judged`, how many of them
have a verdict; and, if `judged` is not 0, `accuracy_so_far`, the share of them that is right."""


@dataclass(frozen=True)
class Examination:
    """The evaluation of a run: the same cases, seeds and judge for every doctor.

    `reward` scores the episodes as training does, so that the report can show the reward's parts.
    `reader` is the exact reader, where there is one. `own` are the measures of single doctors, by
    label. `believing` makes what doctors believe, where the settings ask for it. Episodes are
    recorded under `phase`.
    """

    environment: Environment
    cases: Sequence[Case]
    judge: Judge
    settings: EvaluationSettings
    reward: Reward | None = None
    settle: Settle | None = None  # what the reward needs of each episode
    max_tokens: int = 256
    seed: int = 0
    scorers: Mapping[str, Scorer] = field(default_factory=dict)
    models: Mapping[str, Model] = field(default_factory=dict)
    concurrency: int = CHUNK
    max_failed: float = 0.2
    costs: Mapping[str, float] = field(default_factory=dict)
    measures: Sequence[Measure] = ()
    reader: BayesDiagnoser | None = None
    believing: Believing | None = None
    own: Mapping[str, Sequence[Measure]] = field(default_factory=dict)
    phase: str = "eval"

    @classmethod
    def of(
        cls,
        source: Source,
        environment: Environment,
        judge: Judge,
        settings: EvaluationSettings,
        models: Models | None = None,
        **more: object,
    ) -> Examination:
        """The evaluation on the test split of `source`.

        Further measures are the environment's and those in `settings`.

        `models` play the measures' roles. Raises UserError if the split is empty or a measure
        cannot be taken.
        """
        if not len(source.test):
            raise UserError(
                f"{source.name} holds no test case; a file needs at least a handful of cases to "
                f"hold some out ({FOLDED})"
            )
        more["costs"] = costs(source, settings.prices)
        more["reader"] = reader_of(source, environment)
        made = cls(environment, source.test, judge, settings, **more)  # type: ignore[arg-type]
        if settings.probabilities is not None:
            own = (environment, judge, made.seed, settings.draws, made.max_tokens)
            believing = Believing(settings.probabilities, source, *own)
            made = replace(made, believing=believing)
        specs = list(dict.fromkeys((*environment.about.measures, *settings.measures)))
        world = MeasuredWorld(source, environment)
        return replace(made, measures=open_measures(specs, made.played, models, world))

    def believed(
        self, label: str, doctor: Doctor, weights: OwnWeights | None = None
    ) -> Examination:
        """This evaluation, which measures what `doctor` believes if the settings ask for it.

        Raises UserError as `Believing.of`.
        """
        if self.believing is None:
            return self
        measure = BeliefScores(self.believing.of(doctor, weights))
        return replace(self, own={**self.own, label: (measure,)})

    @property
    def total(self) -> int:
        """The number of episodes of one doctor."""
        return min(len(self.cases), self.settings.cases) * self.settings.samples

    @property
    def played(self) -> Sequence[Case]:
        """The cases that are played, evenly spaced, made when they are indexed."""
        return evenly_spaced(self.cases, self.settings.cases)

    def jobs(self) -> Iterator[tuple[ToPlay, int]]:
        """Every episode to play, with the number of its sample.

        The key depends on case and sample alone.
        """
        for case in self.played:
            for sample in range(self.settings.samples):
                yield ToPlay(case, seed_key("evaluate", self.seed, case.id, sample)), sample

    @property
    def play(self) -> Play:
        return Play(self.settings.temperature, self.max_tokens, self.settings.avoid_repeats)


Player = Callable[[Examination, ToPlay], Awaitable[Episode]]


def playing(doctor: Doctor) -> Player:
    """`doctor` plays every episode from the presentation to the diagnosis."""

    async def play(examination: Examination, job: ToPlay) -> Episode:
        return await rollout(job, examination.environment, doctor, examination.play)

    return play


def searching(searcher: Searcher) -> Player:
    """`searcher` looks ahead, and shows one of the episodes that it played."""

    async def play(examination: Examination, job: ToPlay) -> Episode:
        return await searcher.play(job, examination.play)

    return play


def hybrid(gather: Player, diagnoser: Diagnoser) -> Player:
    """One doctor gathers, another concludes from the transcript (CR-11)."""

    async def play(examination: Examination, job: ToPlay) -> Episode:
        gathered = await gather(examination, job)
        if gathered.ending is Ending.FAILED:
            return gathered
        return await _concluded(gathered, diagnoser, examination.environment)

    return play


def oracle(diagnoser: Diagnoser, record: Consultation) -> Player:
    """The diagnoser reads the whole of `record` at once (CR-11)."""

    async def play(examination: Examination, job: ToPlay) -> Episode:
        environment = examination.environment
        return await _concluded(whole_record(job.case, environment, record), diagnoser, environment)

    return play


async def _concluded(episode: Episode, diagnoser: Diagnoser, environment: Environment) -> Episode:
    try:
        return await conclude(episode, diagnoser, environment)
    except RolloutError as error:
        return replace(episode, ending=Ending.FAILED, reason=f"diagnoser: {error}")


def examine(
    run: Run, examination: Examination, player: Player, label: str, progress: Progress | None = None
) -> int:
    """Plays the evaluation for one doctor and writes its episodes into `run` as `label`.

    Returns how many were played: those of earlier sessions are kept, except failed ones. Where
    Ctrl-C or a spent budget ends it, what has been played and scored is written. Raises WorkupError
    when more than `max_failed` of the episodes failed.
    """
    played = [o for o in run.outcomes(label, examination.phase) if o.ending != Ending.FAILED]
    kept = {(o.case_id, o.sample) for o in played}
    jobs = (
        (job, sample) for job, sample in examination.jobs() if (job.case.id, sample) not in kept
    )
    done, failed = len(kept), []
    judged = sum(o.correct is not None for o in played)
    right = sum(o.correct is True for o in played)

    def tick(correct: bool | None) -> None:
        nonlocal done, judged, right
        done, judged, right = done + 1, judged + (correct is not None), right + (correct is True)
        if progress is not None:
            share = {"accuracy_so_far": right / judged} if judged else {}
            progress({"step": done, "judged": judged, **share})

    while chunk := list(islice(jobs, CHUNK)):
        records = run_to_end(_examine(examination, player, label, chunk, tick, run.write))
        failed += [record.episode for record in records if record.episode.ending is Ending.FAILED]
        check_failures(failed, done, examination.max_failed)
    return done - len(kept)


async def _examine(
    examination: Examination,
    player: Player,
    label: str,
    jobs: Sequence[tuple[ToPlay, int]],
    tick: Callable[[bool | None], None],
    keep: Callable[[list[Record]], None],
) -> list[Record]:
    """Plays `jobs` and returns their records, which `keep` gets too.

    Where Ctrl-C or a spent budget ends the playing, it gets those that are there. Where one ends
    their scoring it gets none: they are played again, from the cache where a server answered.
    """
    verdicts = Verdicts(examination.judge, examination.settle)
    limit = asyncio.Semaphore(examination.concurrency)

    over: dict[int, Record] = {}  # by the place of the job

    async def one(place: int, job: ToPlay, sample: int) -> None:
        async with limit:
            episode = await player(examination, job)
        over[place] = await judged(examination, verdicts, label, episode, sample)
        tick(over[place].correct)

    async def kept() -> list[Record]:
        records = await scored(examination, verdicts, [over[place] for place in sorted(over)])
        keep(records)
        return records

    try:
        await asyncio.gather(*(one(place, *job) for place, job in enumerate(jobs)))
    except (asyncio.CancelledError, BudgetError):
        await kept()
        raise
    return await kept()


async def judged(
    examination: Examination, verdicts: Verdicts, label: str, episode: Episode, sample: int = 0
) -> Record:
    """The record of an episode that is over, with its verdict and its measures, not yet scored."""
    episode, correct = await verdicts.settle(episode)
    further: Values = {}
    if correct is not None:
        measures = (*examination.measures, *examination.own.get(label, ()))
        episode, further = await take(measures, episode, correct)
    if episode.ending is Ending.FAILED:
        correct = None
    record = Record(
        label, episode, examination.phase, sample=sample, correct=correct, measures=further
    )
    return measured(record, examination.environment, examination.costs, examination.reader)


async def scored(
    examination: Examination, verdicts: Verdicts, records: Sequence[Record]
) -> list[Record]:
    """The judged records with the reward's scores; failed episodes have none.

    An episode whose scoring gave up is a failed one.
    """
    good = tuple(record.episode for record in records if record.correct is not None)
    if examination.reward is None or not good:
        return list(records)
    instruments = Instruments(
        verdicts,
        scorers=examination.scorers,
        models=examination.models,
        key=seed_key("evaluate", examination.seed),
    )
    scores = iter((await scores_of(examination.reward, (good,), instruments))[0])
    return [record if record.correct is None else _with(record, next(scores)) for record in records]


async def scores_of(
    reward: Reward, batch: Batch, instruments: Instruments
) -> list[list[Score | RolloutError]]:
    """The score of each episode, or why there is none.

    Where some cannot be scored, the others are scored together once more: a reward may compare
    them. `all_gather` of `instruments` is called as often as in a process in which none failed, if
    a reward calls it after whatever may fail.
    """
    try:
        return [list(scores) for scores in await reward(batch, instruments)]
    except RolloutError:
        pass  # one episode is to blame, or several: each is tried by itself
    own = replace(instruments, all_gather=alone)
    why: list[list[RolloutError | None]] = [[] for _ in batch]
    for group, reasons in zip(batch, why, strict=True):
        for episode in group:
            try:
                await reward(((episode,),), own)
                reasons.append(None)
            except RolloutError as error:
                reasons.append(error)
    kept = (
        tuple(e for e, reason in zip(group, reasons, strict=True) if reason is None)
        for group, reasons in zip(batch, why, strict=True)
    )
    try:
        scored = await reward(tuple(group for group in kept if group), instruments)
    except RolloutError as error:  # it failed once more, where each episode alone did not
        return [[reason or error for reason in reasons] for reasons in why]
    scores = iter([score for group in scored for score in group])
    return [[reason or next(scores) for reason in reasons] for reasons in why]


def _with(record: Record, found: Score | RolloutError) -> Record:
    if isinstance(found, Score):
        return with_score(record, found)
    episode = replace(record.episode, ending=Ending.FAILED, reason=f"reward: {found}")
    return replace(record, episode=episode, correct=None, measures={})
