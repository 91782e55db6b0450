"""The runs of a paper's claims, in their order: checks, three seeds of each set-up, then the rest.

Which set-up gets its next seeds goes by its need: the largest ratio, over its claims, of the
difference that its seeds could detect to the difference that is looked for. So seeds are added
where they decide most. The need rests on how the differences spread and not on where they lie, so
that adding seeds does not favour either verdict (Stein 1945).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from workup.core.errors import UserError
from workup.runs import Run
from workup.studies.claims import START, Claim, Paper, ScaleName, Setup, checks, meaning
from workup.studies.claims.decided import CANNOT, FEWEST, NOT_RUN, ClaimVerdict
from workup.studies.claims.queue import EVALUATE, ClaimRun, Queue

BOUNDS = 3
"""Seeds of the bounds, at most: no claim compares them."""

CHECKS, ELSEWHERE = "checks", "elsewhere"
PAPER = "paper"


@dataclass(frozen=True)
class ClaimsPlan:
    """What is run: claims of `paper` at one scale, seeds `first` … `first` + `seeds` − 1.

    The claims are those `chosen`; all if none is. A set-up gets up to `most` seeds where `seeds` of
    them leave its need above 1. `more` are settings for all runs (see `Setup.commands`). Runs lie
    in `folder`.
    """

    paper: Paper
    scale: ScaleName
    folder: Path
    seeds: int
    first: int = 0
    most: int = 0
    more: tuple[str, ...] = ()
    chosen: tuple[Claim, ...] = ()

    @cached_property
    def whole(self) -> ClaimsPlan:
        """The same plan with all claims of the paper: the folder's page shows all of them."""
        return replace(self, chosen=())

    @property
    def setups(self) -> Mapping[str, Setup]:
        """The set-ups of claims that can be run at this scale."""
        wanted = {claim.setup for claim in self.chosen or self.paper.claims if not claim.cannot}
        return {
            name: setup
            for name, setup in self.paper.setups.items()
            if name in wanted and self.scale in setup.scales
        }

    @property
    def every_seed(self) -> range:
        """Those of the plan, and those that could be added."""
        return range(self.first, self.first + max(self.seeds, self.most))

    def claims(self, setup: str) -> list[Claim]:
        every = self.chosen or self.paper.claims
        return [each for each in every if each.setup == setup and not each.cannot]

    def arms(self, setup: str) -> list[str]:
        """The arms that its claims compare, then the bounds.

        A paper's own configuration has none: they need the built-in clinic's probabilities.
        """
        chosen = self.setups[setup]
        used = {arm for claim in self.claims(setup) for arm, _ in claim.compared}
        bounds = [] if chosen.scales[self.scale].arms or self.scale == PAPER else chosen.bounds
        return [*(arm for arm in chosen.arms if arm in used), *bounds]

    def start(self, setup: str) -> ClaimRun | None:
        """The run with whose policy all arms of this set-up begin; None where there is none.

        It is supervised alone, whatever number of steps the plan has for the arms.
        """
        words = self.paper.setups[setup].scales[self.scale].start
        if not words:
            return None
        out = self.folder / setup / (f"{START}-{self.first}" if self.first else START)
        typed = (*shlex.split(words), f"seed={self.first}", *self.more, "steps=0")
        return ClaimRun(out, typed, START + words)

    def jobs(self, setup: str, seeds: Sequence[int]) -> list[ClaimRun]:
        """Seed by seed, the arms of a set-up."""
        chosen, found = self.setups[setup], []
        for seed in seeds:
            for arm in self.arms(setup):
                if arm in chosen.bounds and seed >= self.first + BOUNDS:
                    continue
                found.append(self.run(setup, arm, seed))
        return found

    def run(self, setup: str, arm: str, seed: int) -> ClaimRun:
        """One arm with one seed: the run of the first set-up that trains just this."""
        owner, name = self._owners[setup, arm]
        out = self.folder / owner / f"{name}-{seed}"
        return ClaimRun(out, self.words(owner, name, seed), self._kin(owner, seed))

    @cached_property
    def _owners(self) -> Mapping[tuple[str, str], tuple[str, str]]:
        """(set-up, arm) → the first ones that train the same, whatever the seed."""
        known: dict[str, tuple[str, str]] = {}
        found = {}
        for setup, its in self.paper.setups.items():
            for arm in its.commands(self.scale) if self.scale in its.scales else ():
                method, settings = meaning(self.words(setup, arm, self.first))
                same = repr((method, sorted(settings.items())))
                found[setup, arm] = known.setdefault(same, (setup, arm))
        return found

    def begun(self, setup: str, arm: str) -> list[int]:
        """The seeds of this arm that have a folder, whichever command began them."""
        out = self.run(setup, arm, self.first).out
        own = f"{out.name.rpartition('-')[0]}-"
        folders = (each for each in out.parent.glob(f"{own}*") if each.is_dir())
        seeds = (each.name.removeprefix(own) for each in folders)
        return sorted(int(seed) for seed in seeds if seed.isascii() and seed.isdecimal())

    def _kin(self, setup: str, seed: int) -> str:
        """Set-ups of the same words have the same warm starts."""
        return f"{self.paper.setups[setup].scales[self.scale].words} {seed}"

    def checked(self, setup: str) -> set[int]:
        """Under which `first` checks may lie: 0, the plan's own, and those that have a folder."""
        folder = self.folder / setup / CHECKS
        named = (each.name.rpartition("-")[2] for each in folder.glob("*-*") if each.is_dir())
        return {0, self.first, *(int(seed) for seed in named if seed.isdecimal())}

    def words(self, setup: str, arm: str, seed: int) -> tuple[str, ...]:
        """What is typed behind `workup train`, but for the folder."""
        command = self.paper.setups[setup].commands(self.scale, self.more)[arm]
        begun = self.start(setup)
        policy = ("--policy", str(begun.out)) if begun else ()
        return (*command, *policy, f"seed={seed}")

    def elsewhere(self, setup: str, arm: str, seed: int) -> dict[str, ClaimRun]:
        """The further evaluations of one arm's policy that a claim compares, by their names."""
        chosen = self.setups[setup]
        places = {**chosen.elsewhere, **chosen.scales[self.scale].further}
        wanted = {
            place
            for claim in self.claims(setup)
            for of, place in claim.compared
            if of == arm and place in places and not claim.of_run
        }
        trained = self.run(setup, arm, seed)
        return {
            place: ClaimRun(
                self.folder / setup / ELSEWHERE / place / f"{arm}-{seed}",
                (str(trained.out), *shlex.split(places[place])),
                trained.kin,
                EVALUATE,
            )
            for place in sorted(wanted)
        }

    def further(self, setup: str, seeds: Sequence[int]) -> list[tuple[ClaimRun, ClaimRun]]:
        """(what trains a policy, a further evaluation of it), seed by seed."""
        return [
            (self.run(setup, arm, seed), job)
            for seed in seeds
            for arm in self.arms(setup)
            for job in self.elsewhere(setup, arm, seed).values()
        ]

    def before(self, setup: str) -> list[ClaimRun]:
        """What is run before a set-up's arms: its start, if it has one, and its checks."""
        begun = self.start(setup)
        return [*([begun] if begun else ()), *self.checks(setup)]

    def checks(self, setup: str) -> list[ClaimRun]:
        """The short trainings that tell whether the set-up could show anything."""
        return [
            ClaimRun(
                self._check(setup, arm),
                checks.words(self.words(setup, arm, self.first)),
                self._kin(setup, self.first),
            )
            for arm in self.paper.setups[setup].tried
        ]

    def _check(self, setup: str, arm: str) -> Path:
        """The folder of an arm's check: older versions had no seed in its name."""
        older = self.folder / setup / CHECKS / arm
        if (older / "config.yaml").exists():
            with Run.open(older) as run:
                if run.seed == self.first:
                    return older
        return older.with_name(f"{arm}-{self.first}")

    def problem(self, setup: str) -> str | None:
        """Why its checks speak against a set-up; "" where they do not, None while they are run.

        Raises UserError for a check that the file asks for and that cannot be made.
        """
        tried = self.checks(setup)
        if not all(job.ended for job in tried):
            return None
        chosen = self.paper.setups[setup]
        try:
            return checks.problem(
                chosen, {arm: job.out for arm, job in zip(chosen.tried, tried, strict=True)}
            )
        except UserError as error:
            raise UserError(f"setup {setup}: {error}") from None


@dataclass
class ClaimTrial:
    """A plan on its way. `untried` has the set-ups that are not run, with the reason.

    `need` is a set-up's need with the runs that have ended; None where none of its claims has a
    figure. `told` gets each job that has ended, `looked` is called after every batch.
    """

    plan: ClaimsPlan
    queue: Queue
    need: Callable[[str], float | None]
    told: Callable[[ClaimRun], object]
    looked: Callable[[], object]
    untried: dict[str, ClaimVerdict] = field(default_factory=dict)
    seeds: dict[str, int] = field(default_factory=dict)

    def run(self) -> None:
        """Runs everything that the plan wants, within the queue's time.

        Raises UserError, before anything is run, where a folder has a run of other words.
        """
        for job in self._every_job():
            job.refuse_another()
        self._check()
        open_ones = [name for name in self.plan.setups if name not in self.untried]
        least = min(FEWEST, self.plan.seeds)
        self._batch([(name, least) for name in open_ones])
        while name := self._neediest(open_ones):
            if not self.queue.has_time():
                self.queue.short = True
                return
            most = self.plan.seeds if self.seeds[name] < self.plan.seeds else self.plan.most
            self._batch([(name, min(most, self.seeds[name] + self.queue.workers))])

    def _every_job(self) -> Iterator[ClaimRun]:
        """Whatever the page shows: every set-up's, of every seed that has a folder."""
        plan = self.plan.whole
        for name in plan.setups:
            yield from plan.before(name)
            for arm in plan.arms(name):
                for seed in {*plan.begun(name, arm), *plan.every_seed}:
                    yield plan.run(name, arm, seed)
                    yield from plan.elsewhere(name, arm, seed).values()

    def _check(self) -> None:
        setups = self.plan.setups
        starts = [job for name in setups if (job := self.plan.start(name))]
        self.queue.run(starts, self.told)
        self.queue.run([job for name in setups for job in self.plan.checks(name)], self.told)
        for name in setups:
            lost = [job for job in self.plan.before(name) if job in self.queue.failed]
            if lost:
                reason = f"{lost[0].name} failed: {self.queue.failed[lost[0]]}"
                self.untried[name] = ClaimVerdict(NOT_RUN, reason)
            elif why := self.plan.problem(name):
                self.untried[name] = ClaimVerdict(CANNOT, why)
        self.looked()

    def _batch(self, wanted: Sequence[tuple[str, int]]) -> None:
        """Brings each of these set-ups to so many seeds."""
        jobs, further = [], []
        for name, number in wanted:
            had = self.seeds.get(name, 0)
            seeds = range(self.plan.first + had, self.plan.first + number)
            jobs += self.plan.jobs(name, seeds)
            further += self.plan.further(name, seeds)
            self.seeds[name] = number
        self.queue.run(jobs, self.told)
        whole = [
            job for trained, job in further if trained not in self.queue.failed and trained.ended
        ]
        self.queue.run(whole, self.told)
        self.looked()

    def _neediest(self, setups: Sequence[str]) -> str | None:
        """The set-up that gets the next seeds; None when all have what they need."""
        needs = {name: self.need(name) for name in setups}
        few = [name for name in setups if self.seeds[name] < self.plan.seeds]
        more = [
            name
            for name in setups
            if name not in few and self.seeds[name] < self.plan.most and (needs[name] or 0) > 1
        ]
        return max(few or more, key=lambda name: needs[name] or 0, default=None)
