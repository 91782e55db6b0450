"""One step's experience: cases are played in groups, judged, scored and credited.

The results are samples for the engine and records for the run folder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from workup.cases.balance import balanced
from workup.cases.order import Order
from workup.core.case import Source
from workup.core.draws import seed_key
from workup.core.episode import Ending, Episode, Sample, Score, Scores
from workup.core.ports import LIVE, Environment, Instruments, Policy
from workup.core.stages import GrpoStage
from workup.loops.evaluation.examination import scores_of
from workup.rl.rollout import Play, TokenDoctor, ToPlay, check_failures, play_all
from workup.rl.samples import sample
from workup.roles.judges.verdicts import Verdicts
from workup.runs import Record
from workup.runs.judged import measured, measured_in, with_score
from workup.runs.settings import Settings


@dataclass(frozen=True)
class Share:
    """The part of each batch that this process plays, and its all-gather."""

    rank: int
    world: int


@dataclass(frozen=True)
class Step:
    """The result of step `number`, from 1.

    These are its records, failed episodes included, and this process's metrics.
    """

    number: int
    records: list[Record]
    metrics: dict[str, Any]


class Collection:
    """The experience of one reinforcement stage; `keep` gets every step before its update.

    `instruments` is called in every step: it returns what the reward may use, the doctor with its
    present weights included.
    """

    def __init__(
        self,
        stage: GrpoStage,
        source: Source,
        environment: Environment,
        settings: Settings,
        share: Share,
        keep: Callable[[Step], None],
        instruments: Callable[[], Instruments],
    ) -> None:
        self.stage = stage
        self.environment = environment
        self.settings = settings
        self.share = share
        self.keep, self.instruments = keep, instruments
        self.cases = (
            balanced(source.train, power=settings.balance, seed=settings.seed)
            if settings.balance
            else source.train
        )
        self.order = Order(len(self.cases), settings.seed)

    async def collect(self, policy: Policy, step: int) -> list[Sample]:
        """This process's samples of step `step` ≥ 0.

        They depend only on policy, settings and step.
        """
        jobs = self.jobs(step)
        play = Play(self.settings.temperature, self.settings.max_tokens)
        own = self.instruments()
        verdicts = Verdicts(own.judge, self.stage.settle)
        if LIVE in own.scorers:
            own.scorers[LIVE].refresh()
        # Episodes are judged while others still play. So a step waits for the judge only after
        # its last episode.
        settled = await play_all(
            jobs,
            self.environment,
            TokenDoctor(policy),
            play,
            self.settings.concurrency,
            then=verdicts.settle,
        )
        key = seed_key(self.stage.name, self.settings.seed, step)
        instruments = replace(own, judge=verdicts, key=key)
        good, scores, lost = await self._scored(self._good(settled), instruments)
        batch = tuple(tuple(episode for episode, _, _ in group) for group in good)
        advantages = self.stage.credit(batch, scores, own.all_gather)
        samples: list[Sample] = []
        records = [
            self._record(step, e, None, k)
            for k, (e, correct) in enumerate(settled)
            if correct is None
        ]
        records += [self._record(step, episode, None, number) for episode, number in lost]
        for group, marks, credits in zip(good, scores, advantages, strict=True):
            for (episode, correct, number), score, credit in zip(
                group, marks, credits, strict=True
            ):
                samples.append(sample(episode, credit))
                records.append(self._record(step, episode, correct, number, score, samples[-1]))
        self.keep(Step(step + 1, records, metrics(records)))
        return samples

    def jobs(self, step: int) -> list[ToPlay]:
        """This process's episodes, in whole groups: a group is never split between processes."""
        s, share = self.settings, self.share
        places = range(step * s.batch + share.rank, (step + 1) * s.batch, share.world)
        cases = [(place, self.cases[self.order[place]]) for place in places]
        return [
            ToPlay(case, seed_key(self.stage.name, s.seed, place, k))
            for place, case in cases
            for k in range(s.group)
        ]

    def _good(
        self, settled: Sequence[tuple[Episode, bool | None]]
    ) -> list[list[tuple[Episode, bool, int]]]:
        """The groups without their failed episodes.

        Raises WorkupError, with the commonest reason, when too many failed.
        """
        check_failures(
            [e for e, correct in settled if correct is None], len(settled), self.settings.max_failed
        )
        numbered = [(episode, correct, k) for k, (episode, correct) in enumerate(settled)]
        groups = [
            numbered[start : start + self.settings.group]
            for start in range(0, len(numbered), self.settings.group)
        ]
        kept = [
            [(e, correct, k) for e, correct, k in group if correct is not None] for group in groups
        ]
        return [group for group in kept if group]

    async def _scored(
        self, groups: list[list[tuple[Episode, bool, int]]], instruments: Instruments
    ) -> tuple[list[list[tuple[Episode, bool, int]]], Scores, list[tuple[Episode, int]]]:
        """The groups with their scores; episodes whose scoring gave up failed.

        Raises WorkupError, with the commonest reason, when too many did.
        """
        batch = tuple(tuple(episode for episode, _, _ in group) for group in groups)
        found = await scores_of(self.stage.reward, batch, instruments)
        kept: list[list[tuple[Episode, bool, int]]] = []
        scores: list[Sequence[Score]] = []
        lost: list[tuple[Episode, int]] = []
        for group, marks in zip(groups, found, strict=True):
            good = []
            for played, mark in zip(group, marks, strict=True):
                if isinstance(mark, Score):
                    good.append((played, mark))
                else:
                    why = str(mark) or type(mark).__name__
                    lost.append((replace(played[0], ending=Ending.FAILED, reason=why), played[2]))
            if good:
                kept.append([played for played, _ in good])
                scores.append([mark for _, mark in good])
        total = sum(map(len, batch))
        check_failures([episode for episode, _ in lost], total, self.settings.max_failed)
        return kept, scores, lost

    def _record(
        self,
        step: int,
        episode: Episode,
        correct: bool | None,
        number: int,
        score: Score | None = None,
        made: Sample | None = None,
    ) -> Record:
        record = Record(
            "policy",
            episode,
            phase="train",
            stage=self.stage.name,
            step=step + 1,
            # Two processes may play the same case in one step (an epoch ends within it): the number
            # tells them apart.
            sample=number * self.share.world + self.share.rank,
            correct=correct,
            advantages=made.advantages if made else (),
        )
        record = record if score is None else with_score(record, score)
        return measured(record, self.environment)


def metrics(records: Sequence[Record]) -> dict[str, Any]:
    """A step's figures: means over the episodes that have them."""
    scored = [record for record in records if record.score is not None]
    return {
        "reward": mean(record.score.total for record in scored if record.score),
        "parts": means([record.score.parts for record in scored if record.score]),
        **{
            name: mean(record.measures.get(name) for record in scored)
            for name in measured_in(scored)
        },
        "endings": dict(Counter(record.episode.ending.value for record in records)),
        "tokens": sum(
            len(turn.completion.tokens) for record in records for turn in record.episode.turns
        ),
        "episodes": len(records),
    }


def mean(values: Iterable[float | None]) -> float | None:
    defined = [value for value in values if value is not None]
    return fmean(defined) if defined else None


def means(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: fmean(part.get(name, 0.0) for part in parts) for name in names}
