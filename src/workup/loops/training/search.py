"""A SearchStage: the policy searches training cases, and the stage's choice is kept.

The results are in the run's episodes.sqlite. Phase "search" has the first episode of every case,
with the figures of the search among its measures. Phases "chosen" and "rejected" have the episodes
that later stages learn from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from workup.cases.order import Order
from workup.core.case import Case
from workup.core.draws import seed_key
from workup.core.episode import Ending, Episode, Sample, Score
from workup.core.errors import RolloutError, UserError
from workup.core.ports import LIVE, Environment, Instruments, Pair, Policy, Sampling, alone
from workup.core.stages import Choice, Explored, SearchStage, Trial
from workup.loops.training.collect import mean
from workup.rl.rollout import TokenDoctor, check_failures
from workup.rl.samples import imitated, spoken
from workup.roles.judges.verdicts import Verdicts
from workup.runs import Record, Run
from workup.runs.judged import measured
from workup.runs.settings import Settings

SEARCH, CHOSEN, REJECTED = "search", "chosen", "rejected"
STEP = 64  # cases of a step; what is in flight at a time is limited by the settings
FIGURES = ("kept", "right", "trials", "failures", "depth", "calls")


class Exploration:
    """The searches of one stage.

    A case's search depends only on policy, settings and case, not on searches beside it.
    """

    def __init__(
        self,
        stage: SearchStage,
        cases: Sequence[Case],
        environment: Environment,
        settings: Settings,
        instruments: Instruments,
    ) -> None:
        self.stage = stage
        self.environment = environment
        self.settings = settings
        self.instruments = instruments
        self.total = min(stage.cases or len(cases), len(cases))
        order = Order(len(cases), settings.seed)
        self.cases = [cases[order[place]] for place in range(self.total)]
        # Trees hold several episodes in flight each.
        self.at_once = max(1, settings.concurrency // 4)

    @property
    def steps(self) -> int:
        return -(-self.total // STEP)

    def step(self, number: int) -> list[Case]:
        """The cases of step `number` ≥ 1."""
        return self.cases[(number - 1) * STEP : number * STEP]

    def before(self, step: int) -> int:
        """The number of cases before those of step `step`."""
        return min((step - 1) * STEP, self.total)

    async def search(
        self, policy: Policy, step: int, cases: Iterable[Case], keep: Callable[[list[Record]], None]
    ) -> None:
        """Searches `cases` of step `step`, a quarter of `concurrency` at the same time.

        `keep` gets a case's records when its search is over.
        """
        verdicts, doctor = Verdicts(self.instruments.judge), TokenDoctor(policy)
        if LIVE in self.instruments.scorers:
            self.instruments.scorers[LIVE].refresh()
        # Each process searches its own cases, one at a time, so there is no all-gather. What is
        # drawn for a case does not depend on the step that it is searched in.
        instruments = replace(
            self.instruments,
            judge=verdicts,
            all_gather=alone,
            key=seed_key(self.stage.name, self.settings.seed),
        )

        async def value(episode: Episode) -> Score:
            settled, correct = await verdicts.settle(episode)
            if correct is None:
                raise RolloutError(settled.reason)
            return (await self.stage.reward(((episode,),), instruments))[0][0]

        limit = asyncio.Semaphore(self.at_once)

        async def one(case: Case) -> None:
            s = self.settings
            key = seed_key(self.stage.name, s.seed, case.id)
            sampling = Sampling.of(self.environment, s.max_tokens, s.temperature, key)
            async with limit:
                found = await self.stage.search(case, self.environment, doctor, value, sampling)
            judged = [(await verdicts.settle(episode))[1] for episode, _ in found.scored]
            trials = [
                Trial(e, score, bool(correct))
                for (e, score), correct in zip(found.scored, judged, strict=True)
            ]
            keep(self._records(step, case, found, trials))

        await asyncio.gather(*map(one, cases))

    def _records(
        self, step: int, case: Case, found: Explored, trials: Sequence[Trial]
    ) -> list[Record]:
        choice = self.stage.choose(trials)
        figures = _figures(found, trials, choice)
        if trials:
            first = self._record(SEARCH, step, 0, trials[0], figures)
        else:
            reason = found.failures[0] if found.failures else "the search played nothing"
            failed = Episode(case, self.environment.open(case), (), Ending.FAILED, reason)
            first = Record(
                "policy", failed, phase=SEARCH, stage=self.stage.name, step=step, measures=figures
            )
        chosen = [self._record(CHOSEN, step, k, trial) for k, trial in enumerate(choice.chosen)]
        rejected = [
            self._record(REJECTED, step, k, trial) for k, trial in enumerate(choice.rejected)
        ]
        return [first, *chosen, *rejected]

    def _record(
        self,
        phase: str,
        step: int,
        number: int,
        trial: Trial,
        figures: Mapping[str, float] | None = None,
    ) -> Record:
        record = Record(
            "policy",
            trial.episode,
            phase=phase,
            stage=self.stage.name,
            step=step,
            sample=number,
            correct=trial.correct,
            score=trial.score,
            measures=figures or {},
        )
        return measured(record, self.environment)


def _figures(found: Explored, trials: Sequence[Trial], choice: Choice) -> dict[str, float]:
    """The figures of one search; `right` is the share of its episodes with a right answer."""
    right = sum(trial.correct for trial in trials) / len(trials) if trials else 0.0
    counts = (len(found.scored), len(found.failures), found.depth, found.calls)
    return dict(zip(FIGURES, (float(bool(choice.chosen)), right, *map(float, counts)), strict=True))


def searched(run: Run, stage: str, step: int) -> set[str]:
    """The ids of the cases of a step whose search succeeded."""
    found = run.episodes(phase=SEARCH, stage=stage, step=step)
    return {
        record.episode.case.id for record in found if record.episode.ending is not Ending.FAILED
    }


def step_figures(run: Run, stage: str, step: int, max_failed: float) -> dict[str, Any]:
    """The figures of a step: means over its cases, and over the chosen episodes.

    Raises WorkupError when more than the share `max_failed` of the searches failed.
    """
    first = list(run.episodes(phase=SEARCH, stage=stage, step=step))
    check_failures(
        [r.episode for r in first if r.episode.ending is Ending.FAILED], len(first), max_failed
    )
    chosen = [
        record for record in run.episodes(phase=CHOSEN, stage=stage, step=step) if record.score
    ]
    return {
        **{name: mean(record.measures.get(name) for record in first) for name in FIGURES},
        "reward": mean(record.score.total for record in chosen if record.score),
        "questions": mean(record.measures.get("questions") for record in chosen),
    }


def kept(run: Run, stage: str) -> tuple[list[Sample], int]:
    """What `stage` chose, to imitate, and how many episodes it chose.

    Episodes without a turn that can be imitated are left out. Raises UserError if none is left.
    """
    chosen = [imitated(record.episode) for record in run.episodes(phase=CHOSEN, stage=stage)]
    found = [sample for sample in chosen if any(sample.mask)]
    none = " whose turns keep to the grammar" if chosen else ": not one answer was right"
    return found or _nothing(stage, f"no episode{none}"), len(chosen)


def pairs(run: Run, stage: str) -> list[Pair]:
    """What `stage` chose, each with the episode that it rejected.

    Raises UserError without a pair.
    """
    rejected = {_place(record): record for record in run.episodes(phase=REJECTED, stage=stage)}
    chosen = [
        record for record in run.episodes(phase=CHOSEN, stage=stage) if _place(record) in rejected
    ]
    found = [
        (spoken(record.episode), spoken(rejected[_place(record)].episode)) for record in chosen
    ]
    return found or _nothing(stage, "no pair: no case has both a right and a wrong answer")


def _place(record: Record) -> tuple[str, int]:
    return record.episode.case.id, record.sample


def _nothing(stage: str, what: str) -> list[Any]:
    raise UserError(
        f"stage '{stage}' kept {what}; search more cases or more often, or begin with a better "
        "policy"
    )
