"""Runs a plan and says what it found: the verdicts after every batch, in the plan's folder."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console

from workup.runs.machine import command, origin, versions
from workup.runs.words import duration
from workup.studies.claims import decided
from workup.studies.claims.decided import ClaimFinding, Ended
from workup.studies.claims.page import ClaimVerdicts
from workup.studies.claims.queue import ClaimRun, Queue, summary_of
from workup.studies.claims.trial import ClaimsPlan, ClaimTrial

NAME = "claims"
QUESTION = "Which of the paper's claims hold here, and which could these runs not decide?"


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
        """Runs what the plan wants; the verdicts. An interruption leaves everything in place."""
        self.trial.run()
        return self.write()

    def foretell(self) -> None:
        """Prints what would be typed, for how many runs and hours; starts nothing."""
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
            runs = len(self.plan.jobs(name, self.plan.every_seed[: self.plan.seeds]))
            told = [f"{runs} runs: {len(self.plan.arms(name))} arms, {self.plan.seeds} seeds"]
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
        runs, problem = self.ended(setup), self.trial.problems.get(setup, "")
        return [decided.finding(each, runs, problem) for each in self.plan.claims(setup)]

    def ended(self, setup: str) -> list[Ended]:
        """The runs of a set-up that have ended; each is read once for the set-up's claims."""
        found, claims = [], self.plan.claims(setup)
        for seed in self.plan.every_seed:
            for arm in self.plan.arms(setup):
                out = self.plan.run(setup, arm, seed).out
                if (setup, out) not in self._read and summary_of(out) is not None:
                    others = self.plan.elsewhere(setup, arm, seed)
                    if not all(job.ended or job in self.queue.failed for job in others.values()):
                        continue
                    places = {name: job.out for name, job in others.items() if job.ended}
                    self._read[setup, out] = decided.ended(out, arm, seed, claims, places)
                if (setup, out) in self._read:
                    found.append(self._read[setup, out])
        return found

    def verdicts(self) -> ClaimVerdicts:
        """Of all claims, in the order of the file."""
        runs = {name: self.ended(name) for name in self.plan.setups}
        lacking = {
            each.setup: f"it has no set-up at the scale {self.plan.scale}"
            for each in self.plan.paper.claims
            if not each.cannot and each.setup not in self.plan.setups
        }
        problems = {**self.trial.problems, **lacking}
        findings = [
            decided.finding(each, runs.get(each.setup, ()), problems.get(each.setup, ""))
            for each in self.plan.paper.claims
        ]
        about = {name: setup.about for name, setup in self.plan.setups.items()}
        typed = {
            name: {
                arm: self.plan.run(name, arm, self.plan.first).typed for arm in self.plan.arms(name)
            }
            for name in self.plan.setups
        }
        failed = {job.name: why for job, why in self.queue.failed.items()}
        return ClaimVerdicts(
            *(self.plan.paper.paper, self.plan.scale, findings, runs, about, typed, failed),
            made([each for found in runs.values() for each in found]),
        )

    def write(self) -> ClaimVerdicts:
        """Writes the page and the figures as they stand."""
        found = self.verdicts()
        found.write(self.plan.folder, NAME, QUESTION, command())
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
        self.console.print(f"{job.name}  {duration(job.seconds or 0)}{after}", markup=False)

    def left(self) -> float:
        """Seconds that the runs of the plan will probably still take; 0 if nobody knows."""
        names = [name for name in self.plan.setups if name not in self.trial.problems]
        seeds = range(self.plan.first, self.plan.first + self.plan.seeds)
        jobs = {job for name in names for job in self.plan.jobs(name, seeds)}
        known = {out for _, out in self._read} | {job.out for job in self.queue.failed}
        open_ones = sum(job.out not in known and not job.ended for job in jobs)
        return open_ones * self.queue.length / self.queue.workers


def made(runs: Sequence[Ended]) -> Mapping[str, Any]:
    """When, with which version and on what kind of machine: what a result is kept with.

    `commit` is that of the runs; all of them where they differ.
    """
    kept = origin(versions({}))
    if commits := sorted({run.commit[:9] for run in runs if run.commit}):
        kept["commit"] = ", ".join(commits)
    return {**kept, "ended": datetime.now(UTC).isoformat(timespec="seconds")}
