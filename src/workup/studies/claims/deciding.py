"""Runs a plan and says what it found: the verdicts after every batch, in the plan's folder."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console

from workup.core.disk import hold
from workup.core.errors import UserError
from workup.core.text import several
from workup.runs import Run
from workup.runs.files import clear_errors
from workup.runs.machine import command, origin
from workup.runs.words import duration
from workup.studies.claims import decided
from workup.studies.claims.decided import CANNOT, NOT_RUN, ClaimFinding, ClaimVerdict, Ended
from workup.studies.claims.page import ClaimVerdicts, told_left_out, told_patients
from workup.studies.claims.queue import EVALUATE, TRAIN, ClaimRun, Queue, summary_of
from workup.studies.claims.trial import ClaimsPlan, ClaimTrial

NAME = "claims"
STARTED = "started"
LOCK = ".lock"
MEANS = ("--budget", "--jobs", "--out")  # options that no verdict follows from
QUESTION = "Which of the paper's claims hold here, and which could these runs not decide?"


def without_means(typed: str) -> str:
    """What was typed, without how long, how and where: others repeat it in their own way.

    'workup claims craft --jobs 2 --seeds 3' becomes 'workup claims craft --seeds 3'.
    """
    words, kept = iter(shlex.split(typed)), []
    for word in words:
        option, equals, _ = word.partition("=")
        if option not in MEANS:
            kept.append(word)
        elif not equals:
            next(words, None)
    return shlex.join(kept)


@dataclass
class Deciding:
    """A plan, its queue, and the verdicts so far; `console` gets a line for every run."""

    plan: ClaimsPlan
    queue: Queue
    console: Console
    _read: dict[tuple[str, Path], Ended] = field(default_factory=dict)

    @cached_property
    def trial(self) -> ClaimTrial:
        return ClaimTrial(self.plan, self.queue, self.need, self.told, self.write)

    def run(self) -> ClaimVerdicts:
        """Runs what the plan wants; the verdicts. An interruption leaves everything in place.

        Raises UserError where another process runs in the same folder.
        """
        with alone(self.plan.folder):
            self.trial.run()
            return self.write()

    def foretell(self) -> None:
        """Prints what would be typed, for how many runs and hours; starts nothing."""
        counted: set[ClaimRun] = set()
        for name, setup in self.plan.setups.items():
            size = setup.scales[self.plan.scale]
            self.console.print(f"{name}: {setup.about}", style="bold", markup=False)
            begin = self.plan.start(name)
            if begin:
                self._command(begin)
            for arm in self.plan.arms(name):
                self._command(self.plan.run(name, arm, self.plan.first))
                for job in self.plan.elsewhere(name, arm, self.plan.first).values():
                    self._command(job)
            jobs = self.plan.jobs(name, self.plan.every_seed[: self.plan.seeds])
            runs = len({*jobs} - counted)
            arms = several(len(self.plan.arms(name)), "arm")
            told = [f"{several(runs, 'run')}: {arms}, {several(self.plan.seeds, 'seed')}"]
            told += [f"{len(jobs) - runs} more are those above"] if len(jobs) > runs else []
            told += (
                [f"{len(before)} short ones first"] if (before := self.plan.checks(name)) else []
            )
            counted.update(jobs)
            told += [f"about {size.hours * runs:g} hours in all"] if size.hours else []
            told += [f"on {size.hardware}"] if size.hardware else []
            told += [f"needs {size.needs}"] if size.needs else []
            self.console.print("; ".join(told) + "\n", markup=False, soft_wrap=True)

    def _command(self, job: ClaimRun) -> None:
        words = f"  {job.typed} {shlex.join(['--out', str(job.out)])}"
        self.console.print(words, markup=False, soft_wrap=True)

    def need(self, setup: str) -> float | None:
        """The largest need among the claims of a set-up."""
        needs = [each.need for each in self.findings(setup) if each.need is not None]
        return max(needs, default=None)

    def findings(self, setup: str) -> list[ClaimFinding]:
        """What its runs say of every claim of one set-up."""
        runs = decided.counting(self.ended(setup), self.plan.setups[setup].begins)
        untried = self.trial.untried.get(setup)
        return [decided.finding(each, runs, untried) for each in self.plan.claims(setup)]

    def ended(self, setup: str) -> list[Ended]:
        """The runs of a set-up that have ended, of every seed that has a folder.

        Each is read once for the set-up's claims; again while a further evaluation is to come.
        """
        plan, found, wanted = self.plan.whole, [], setup in self.plan.setups
        begun = [(seed, arm) for arm in plan.arms(setup) for seed in plan.begun(setup, arm)]
        for seed, arm in sorted(begun, key=lambda each: each[0]):
            out = plan.run(setup, arm, seed).out
            if (known := self._read.get((setup, out))) is not None:
                found.append(known)
            elif summary_of(out) is not None:
                others = plan.elsewhere(setup, arm, seed)
                places = {name: job.out if job.ended else None for name, job in others.items()}
                begins = plan.setups[setup].begins
                run = decided.ended(out, arm, seed, plan.claims(setup), places, begins)
                found.append(run)
                awaited = self.plan.elsewhere(setup, arm, seed).values() if wanted else ()
                if all(job.ended or job in self.queue.failed for job in awaited):
                    self._read[setup, out] = run
        return found

    def verdicts(self) -> ClaimVerdicts:
        """Of all claims, in the order of the file."""
        plan = self.plan.whole
        every = {name: self.ended(name) for name in plan.setups}
        runs = {
            name: decided.counting(every[name], setup.begins) for name, setup in plan.setups.items()
        }
        untried = {**self.refused, **self.trial.untried}
        for each in plan.paper.claims:
            if not each.cannot and each.setup not in plan.setups:
                lacking = f"it has no set-up at the scale {plan.scale}"
                untried[each.setup] = ClaimVerdict(NOT_RUN, lacking)
        findings = [
            decided.finding(each, runs.get(each.setup, ()), untried.get(each.setup))
            for each in plan.paper.claims
        ]
        about = {
            name: " ".join(
                [
                    setup.about,
                    *told_patients(setup.scales[plan.scale]),
                    *told_left_out(setup.begins, every[name]),
                ]
            )
            for name, setup in plan.setups.items()
        }
        typed = {
            name: {arm: plan.run(name, arm, plan.first).typed for arm in plan.arms(name)}
            for name in plan.setups
        }
        failed = {job.name: why for job, why in self.queue.failed.items()}
        return ClaimVerdicts(
            *(plan.paper.paper, plan.scale, findings, runs, about, typed, failed),
            made(
                [
                    *(m for found in runs.values() for each in found for m in each.made),
                    *self._checked(),
                ]
            ),
        )

    @cached_property
    def refused(self) -> Mapping[str, ClaimVerdict]:
        """The set-ups of which a check speaks against them, whichever command made it."""
        found, plan = {}, self.plan.whole
        for name in plan.setups:
            firsts = sorted(plan.checked(name))
            told = (replace(plan, first=first).problem(name) for first in firsts)
            if why := next(filter(None, told), None):
                found[name] = ClaimVerdict(CANNOT, why)
        return found

    def _checked(self) -> Iterator[Mapping[str, Any]]:
        """What the checks that spoke against set-ups say of themselves."""
        for name in self.refused:
            for first in self.plan.whole.checked(name):
                for job in replace(self.plan.whole, first=first).checks(name):
                    if job.ended:
                        with Run.open(job.out) as run:
                            yield origin(run.versions)

    def write(self) -> ClaimVerdicts:
        """Writes the page and the figures as they stand."""
        found = self.verdicts()
        found.write(self.plan.folder, NAME, QUESTION, without_means(command()))
        return found

    def told(self, job: ClaimRun) -> None:
        """One line for a run that has ended."""
        if job in self.queue.failed:
            self.console.print(
                f"{job.name}  failed: {self.queue.failed[job]}  ({job.log})",
                markup=False,
                soft_wrap=True,
            )
            return
        left = self.left()
        after = f"  about {duration(left)} left" if left else ""
        self.console.print(f"{job.name}  {duration(self.queue.took[job])}{after}", markup=False)

    def left(self) -> float:
        """Seconds that the runs of the plan will probably still take; 0 if nobody knows."""
        names = [name for name in self.plan.setups if name not in self.trial.untried]
        seeds = range(self.plan.first, self.plan.first + self.plan.seeds)
        jobs = {job for name in names for job in self.plan.jobs(name, seeds)}
        jobs |= {job for name in names for _, job in self.plan.further(name, seeds)}
        known = {out for _, out in self._read} | {job.out for job in self.queue.failed}
        lengths = {verb: self.queue.length(verb) for verb in (TRAIN, EVALUATE)}
        open_ones = (job for job in jobs if job.out not in known and not job.ended)
        return sum(lengths[job.verb] for job in open_ones) / self.queue.workers


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """A lock on the folder, which ends with its process: two queues would run the same jobs."""
    with clear_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("a")
    with file:
        try:
            hold(file)
        except BlockingIOError:
            raise UserError(
                f"another `workup claims` works in {folder}; wait for it, or choose another --out"
            ) from None
        yield


def made(runs: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """When, with which version and on what kind of machine: what a result is kept with.

    It is what the runs say of themselves; all that they say where they differ, but of the days the
    last one.
    """
    kept: dict[str, Any] = {}
    for key in dict.fromkeys(key for run in runs for key in run):
        values = sorted({str(run[key]) for run in runs if key in run})
        kept[key] = values[-1] if key == STARTED else ", ".join(values)
    return kept
