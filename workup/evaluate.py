"""The one evaluation loop: doctors play test cases, and what they did becomes records, measures and a summary."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from workup.case import Case, Source
from workup.environments.doctors import FullInformationDoctor, GreedyDoctor, RandomDoctor
from workup.episode import Episode, Score
from workup.errors import UserError
from workup.judges.verdicts import Verdicts
from workup.ports import Doctor, Environment, Instruments, Judge, Reward
from workup.rollout import Job, Play, play_all, seed_key
from workup.runs import Record, Run
from workup.settings import EvaluationSettings
from workup.signals.measures import measure

CHUNK = 256  # episodes in memory at a time
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Examination:
    """What every doctor of a run is put through: the same cases, the same seeds, the same judge.

    `reward` scores the episodes as training does, so that the report can show where the reward comes from.
    """

    environment: Environment
    cases: Sequence[Case]
    judge: Judge
    settings: EvaluationSettings
    reward: Reward | None = None
    max_tokens: int = 256
    seed: int = 0
    costs: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls, source: Source, environment: Environment, judge: Judge, settings: EvaluationSettings, **more: object
    ) -> Examination:
        """The examination on the test split of `source`; UserError when that is empty."""
        if not len(source.test):
            raise UserError(f"{source.name} holds no test case; a file needs at least a handful of cases to hold some out")
        costs = {item.name: item.cost for item in source.items}
        return cls(environment, source.test, judge, settings, costs=costs, **more)  # type: ignore[arg-type]

    @property
    def total(self) -> int:
        """How many episodes one doctor plays."""
        return min(len(self.cases), self.settings.cases) * self.settings.samples

    def jobs(self) -> Iterator[tuple[Job, int]]:
        """Every episode to play, with the number of its sample; the key depends on case and sample alone."""
        # Evenly spaced, since a file may be sorted by diagnosis.
        count = min(len(self.cases), self.settings.cases)
        for case in (self.cases[index * len(self.cases) // count] for index in range(count)):
            for sample in range(self.settings.samples):
                yield Job(case, seed_key("evaluate", self.seed, case.id, sample)), sample

    @property
    def play(self) -> Play:
        return Play(self.settings.temperature, self.max_tokens, self.settings.avoid_repeats)


def examine(run: Run, examination: Examination, doctor: Doctor, label: str, progress: Progress | None = None) -> None:
    """Plays the examination and writes its episodes into `run` as those of `label`."""
    jobs, done = examination.jobs(), 0
    while chunk := list(islice(jobs, CHUNK)):
        run.write(asyncio.run(_examine(examination, doctor, label, chunk)))
        done += len(chunk)
        if progress is not None:
            progress(done, examination.total)


async def _examine(examination: Examination, doctor: Doctor, label: str, jobs: Sequence[tuple[Job, int]]) -> list[Record]:
    verdicts = Verdicts(examination.judge)
    played = await play_all([job for job, _ in jobs], examination.environment, doctor, examination.play, CHUNK)
    settled = await verdicts.settle(played)
    scores = await _scores([e for e, correct in settled if correct is not None], examination.reward, verdicts)
    records = []
    for (episode, correct), (_, sample) in zip(settled, jobs, strict=True):
        judged = correct is not None
        measures = measure(episode, bool(correct), examination.costs) if judged else {}
        score = next(scores) if judged and examination.reward else None
        records.append(Record(label, episode, sample=sample, correct=correct, score=score, measures=measures))
    return records


async def _scores(episodes: Sequence[Episode], reward: Reward | None, judge: Judge) -> Iterator[Score]:
    if reward is None or not episodes:
        return iter(())
    return iter((await reward((tuple(episodes),), Instruments(judge)))[0])


def anchors(source: Source, environment: Environment, seed: int) -> dict[str, Doctor]:
    """The doctors that every curve is held against, by label; none where the source has no model of its cases."""
    if source.knowledge is None:
        return {}
    return {
        "random doctor": RandomDoctor(source.knowledge, source.items, environment.max_turns, seed),
        "greedy information": GreedyDoctor(source.knowledge, source.items, environment.max_turns),
        "full information": FullInformationDoctor(source.knowledge, source.items),
    }
