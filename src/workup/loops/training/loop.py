"""The one training loop: the stages of a method, with evaluations between them.

Everything that a run does follows from its settings and its seed. Every phase writes its result
into the run folder when it is done. So a run that was killed at any moment continues from its last
checkpoint and ends as it would have ended.
"""

from __future__ import annotations

import errno
import math
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import repeat
from pathlib import Path
from secrets import token_hex
from types import FrameType
from typing import Any

from workup import engines
from workup.cases.order import Order
from workup.core.episode import Sample
from workup.core.errors import UserError
from workup.core.ports import (
    DOCTOR,
    LIVE,
    Demonstration,
    Doctor,
    Engine,
    Instruments,
    Model,
    Policy,
    Scorer,
)
from workup.core.stages import (
    DpoStage,
    GrpoStage,
    KeptStage,
    SearchStage,
    SftStage,
)
from workup.doctors.beliefs import OwnWeights
from workup.engines.settings import PreferenceSettings, TuningSettings
from workup.loops.evaluation.examination import playing
from workup.loops.evaluation.stopped import curves
from workup.loops.frame import create, evaluate, finish
from workup.loops.training import warm
from workup.loops.training.collect import Collection, Share, Step, metrics
from workup.loops.training.plan import RECIPE, Plan
from workup.loops.training.search import Exploration, kept, pairs, searched, step_figures
from workup.report.live import Live
from workup.rl.rollout import TokenDoctor
from workup.rl.running import ahead, one_loop, run_to_end
from workup.rl.samples import spoken
from workup.runs import Record, Run
from workup.runs.folder import free
from workup.runs.policies.trained import held
from workup.runs.settings import Settings, merge, revised
from workup.runs.summary import summarise
from workup.runs.words import TRAINED, UNTRAINED

DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}
# safetensors' and torch's messages when the disk refuses
WRITER = re.compile(r"os error|inline_container|PytorchStreamWriter")


def start(settings: Settings, out: Path, live: Live, account: str = "") -> Run:
    """Trains into the new folder `out` and returns the finished run.

    Its calls are on `account` in the ledger, by default on one of its own. Raises UserError for
    what the user can mend, before anything is written. Raises KeyboardInterrupt after Ctrl-C, when
    everything is saved.
    """
    free(out)
    account = account or _account(settings)
    plan = Plan.of(settings, account)
    if plan.warm_steps and plan.policy.is_tiny:
        warm.refuse_unwritable_cache()
    notes = plan.introduced()
    # Loads torch, only now: mistakes are reported without the wait.
    engine = plan.engine(out)
    if engine.processes.is_main:
        config = {
            "account": account,
            "trained_before": [asdict(one) for one in plan.policy.history],
            **({"notes": list(plan.notes)} if plan.notes else {}),
            **plan.config,
        }
        create(out, config, plan)
        for note in notes:
            live.note(note)
    engine.processes.all_gather(())  # the other processes wait until the run exists
    return _go_on(out, plan, engine, live)


def resume(path: Path, live: Live, changes: Mapping[str, Any] | None = None) -> Run:
    """Continues an interrupted run and returns it finished; a finished one is returned as it is.

    `changes` are settings that may change in between (`settings.revised`); the run records them.
    """
    with Run.open(path) as run:
        plan = Plan.of(revised(Settings, run.settings, changes or {}), run.account)
        if run.summary and run.report.exists():
            live.note(f"{path} is finished")
            return run
    return _go_on(path, plan, plan.engine(path), live, changes or {})


def _go_on(
    path: Path,
    plan: Plan,
    engine: Engine,
    live: Live,
    changes: Mapping[str, Any] | None = None,
) -> Run:
    run = Run.open(path)
    plan.supporting.run_models.named(path)
    alone = run.alone() if engine.processes.is_main else nullcontext()
    with alone, _refusals(path), closing(plan.supporting):
        if changes and engine.processes.is_main:
            run.revise(merge(run.settings, changes), changes)
        for note in plan.source.notes if engine.processes.is_main else ():
            live.note(note)
        Training(run, plan, engine, live).run()
    return run


def _account(settings: Settings) -> str:
    """A new run's name in the ledger, the same in all its processes."""
    name = token_hex(8)
    # The engine's libraries take seconds to load; a single process does not need them here.
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    return engines.load(settings.engine).processes().from_main(name) if several else name


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    """A context that reports a disk which refuses a checkpoint in one line.

    torch and safetensors wrap the system's error in their own.
    """
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        refused = error.errno in DISK if isinstance(error, OSError) else WRITER.search(str(error))
        if not refused:
            raise
        raise UserError(
            f"cannot write {path}: the disk is full or sealed; make room, then type `workup "
            f"resume {path}`"
        ) from error


@contextmanager
def _interruptible(engine: Engine) -> Iterator[None]:
    """A context for a stage of the engine: Ctrl-C ends it after the present step.

    The step is finished and saved, then KeyboardInterrupt is raised. A second Ctrl-C stops at once.
    """
    asked: list[int] = []

    def ask(signum: int, frame: FrameType | None) -> None:
        asked.append(signum)
        engine.stop()
        signal.signal(signal.SIGINT, before)

    before = signal.getsignal(signal.SIGINT)
    catching = threading.current_thread() is threading.main_thread()
    if catching:
        signal.signal(signal.SIGINT, ask)
    try:
        yield
    finally:
        if catching:
            signal.signal(signal.SIGINT, before)
    if asked or engine.stopped:
        raise KeyboardInterrupt


@dataclass(frozen=True)
class Collected:
    """The figures of a step that was played, and when its episodes were written."""

    figures: dict[str, Any]
    at: float  # seconds of `time.monotonic`


class Training:
    """One run in progress. Each process has one; only the main process writes."""

    def __init__(self, disk: Run, plan: Plan, engine: Engine, live: Live) -> None:
        self.disk, self.plan, self.engine, self.live = disk, plan, engine, live
        self.settings, self.policy = plan.settings, engine.live.policy
        self.scorers: dict[str, Mapping[str, Scorer]] = {}  # stage → its scorers by name
        # the step, from 0, that an earlier session played ahead and did not train on
        self.played_ahead: int | None = None
        self._clock("")
        engine.on_step = self._on_step

    def run(self) -> None:
        """Runs every phase that is not done yet, then writes summary and report."""
        label, steps = UNTRAINED, 0
        for stage in self.plan.stages:
            if isinstance(stage, SearchStage):
                self._explore(stage)
            elif isinstance(stage, SftStage) and stage.size is None:
                if self.plan.warm_steps and self.settings.evaluation.untrained:
                    self._evaluate(label)  # the base model, beside what a warm start makes of it
                made = self._imitate(stage)
                label = stage.name if made else label
                steps += made
            else:
                if isinstance(stage, GrpoStage):
                    # before the stage's checkpoints change the weights that a reference keeps
                    self._scorers(stage)
                self._evaluate(label)
                steps += self._train(stage)
                label = stage.name
        if self.engine.processes.is_main:
            self.engine.live.save(self.disk.policy)
        self._evaluate(TRAINED)
        if self.engine.processes.is_main:
            self._finish(steps)

    # --- phases ---

    def _imitate(self, stage: SftStage) -> int:
        """The supervised warm start; returns its steps.

        By default only the tiny policy goes through it, which knows nothing before.
        """
        steps, folder = self.plan.warm_steps, self.disk.checkpoints / "warm-start"
        if not (steps and self.plan.policy.is_tiny):
            self._demonstrated(stage, steps)
            return steps
        store, processes = warm.Store(folder, self._recipe(stage)), self.engine.processes
        wait = f"{stage.name}: an equal run is making it, and this one waits"
        # Of several processes none may wait for long while the others wait for it.
        alone = processes.world == 1 and not store.found
        with store.in_turn(lambda: self.live.note(wait)) if alone else nullcontext():
            if not self._taken(store, stage.name):
                store.check()
                self._demonstrated(stage, steps)
                if processes.is_main:
                    store.save(partial(self.engine.live.save, merged=False))
        return steps

    def _demonstrated(self, stage: SftStage, steps: int) -> None:
        done = self._begin(stage.name, "sft", steps)
        with _interruptible(self.engine):
            self.engine.sft(ahead(self._demonstrations(stage, done)), steps, self.settings.sft)

    def _taken(self, store: warm.Store, name: str) -> bool:
        """Whether all processes could take the warm start from an identical earlier run."""
        if not all(self.engine.processes.all_gather([store.found])):
            return False
        if not (why := store.take(self.engine.live.load)):
            self.engine.sft((), 0, self.settings.sft)  # the stages keep their numbers
            if self.engine.processes.is_main:
                store.adopt()
                self.live.note(f"✓ {name}: taken from an identical earlier run")
            return True
        if self.engine.processes.is_main:
            store.discard()
            self.live.note(f"{name}: made anew, since the kept one does not fit ({why})")
        return False

    def _explore(self, stage: SearchStage) -> None:
        """Searches the cases that no earlier session has searched.

        Writes a case when it is done.
        """
        plan, disk, s = self.plan, self.disk, self.settings
        exploration = Exploration(
            stage, plan.source.train, plan.environment, s, self._instruments(stage)()
        )
        logged = sum(line["stage"] == stage.name for line in disk.metrics())
        # the main process decides for all
        first = int(self.engine.processes.all_gather([logged])[0]) + 1
        disk.refuse_lost(stage.name, first - 1)
        self._clock(stage.name)
        self.policy.refresh()
        if self.engine.processes.is_main:
            self.live.stage(
                stage.name, exploration.total, done=exploration.before(first), unit="case"
            )
        for step in range(first, exploration.steps + 1):
            found = searched(disk, stage.name, step)
            mine = [
                case
                for case in exploration.step(step)[
                    self.engine.processes.rank :: self.engine.processes.world
                ]
                if case.id not in found
            ]
            with self._written(exploration.before(step) + len(found)) as write:
                run_to_end(exploration.search(self.policy, step, mine, write))
            if self.engine.processes.is_main:
                self._log(
                    step,
                    step_figures(disk, stage.name, step, s.max_failed),
                    shown=exploration.before(step + 1),
                )
        self.engine.processes.all_gather(())  # nobody reads what was kept before it is written

    @contextmanager
    def _written(self, done: int) -> Iterator[Callable[[list[Record]], None]]:
        """A context with the function that writes a case's records; `done` cases are there already.

        With several processes, the main one writes all records at the end.
        """
        mine: list[Record] = []

        def write(records: list[Record]) -> None:
            nonlocal done
            done += 1
            self.disk.write(records)
            self.live.step({**records[0].measures, "step": done, **self.plan.supporting.spent})

        if self.engine.processes.world == 1:
            yield write
            return
        yield mine.extend
        records = [record for share in self.engine.processes.send_to_main(mine) for record in share]
        if self.engine.processes.is_main:
            self.disk.write(records)

    def _train(self, stage: SftStage | KeptStage | DpoStage | GrpoStage) -> int:
        """A stage that every policy goes through; returns its steps."""
        s, source = self.settings, self.plan.source
        if isinstance(stage, GrpoStage):
            return self._reinforce(stage)
        if isinstance(stage, DpoStage):
            found = pairs(self.disk, stage.of)
            return self._learn(stage.name, s.dpo, len(found), found.__getitem__)
        if isinstance(stage, KeptStage):
            samples, chosen = kept(self.disk, stage.of)
            if len(samples) < chosen and self.engine.processes.is_main:
                self.live.note(
                    f"{stage.name}: {chosen - len(samples)} of the {chosen} kept episodes have no "
                    "turn that keeps to the grammar; they are left out"
                )
            return self._learn(stage.name, s.tuning, len(samples), samples.__getitem__)
        cases = min(stage.size or len(source.train), len(source.train))
        return self._learn(
            stage.name,
            s.tuning,
            cases * stage.each,
            partial(self.plan.demonstration, stage),
        )

    def _learn(
        self,
        name: str,
        how: TuningSettings | PreferenceSettings,
        size: int,
        get: Callable[[int], Any],
    ) -> int:
        """Trains on data of `size` pieces in a random order, `how.epochs` times.

        Returns the steps.
        """
        rank, world = self.engine.processes.rank, self.engine.processes.world
        batch = max(world, min(how.batch, size))
        steps = math.ceil(how.epochs * size / batch)
        order = Order(size, self.settings.seed)
        done = self._begin(name, "dpo" if isinstance(how, PreferenceSettings) else "sft", steps)
        places = (
            range(start + rank, start + batch if start >= done * batch else 0, world)
            for start in range(0, steps * batch, batch)
        )
        batches = ([get(order[place]) for place in mine] for mine in places)
        with _interruptible(self.engine):
            if isinstance(how, PreferenceSettings):
                self.engine.dpo(batches, steps)
            else:
                self.engine.sft(batches, steps, how)
        return steps

    def _reinforce(self, stage: GrpoStage) -> int:
        self._begin(stage.name, "grpo", self.settings.steps)
        plan, share = self.plan, Share(self.engine.processes.rank, self.engine.processes.world)
        loop = Collection(
            stage,
            plan.source,
            plan.environment,
            self.settings,
            share,
            self._keep,
            self._instruments(stage),
        )

        async def collect(policy: Policy, step: int) -> Sequence[Sample]:
            if step == self.played_ahead:
                return self._played(stage.name, step)
            return await loop.collect(policy, step)

        with _interruptible(self.engine):
            self.engine.grpo(collect, self.settings.steps)
        return self.settings.steps

    def _played(self, stage: str, step: int) -> Sequence[Sample]:
        """The samples of a step that an earlier session played one step ahead."""
        found = list(self.disk.episodes(phase="train", stage=stage, step=step + 1))
        self.collected[step + 1] = Collected(metrics(found), time.monotonic())
        found = sorted((one for one in found if one.score is not None), key=lambda one: one.sample)
        return [replace(spoken(one.episode), advantages=tuple(one.advantages)) for one in found]

    def _evaluate(self, label: str) -> None:
        """Plays the test cases with the present policy, unless an earlier session has."""
        if self.engine.processes.is_main:
            weights = OwnWeights(self.policy, partial(self.engine.live.scorer, LIVE))
            self._examine(TokenDoctor(self.policy), label, weights)

    def _examine(self, doctor: Doctor, label: str, weights: OwnWeights | None = None) -> None:
        examination = replace(
            self.plan.examination, scorers=self._known_scorers(), models=self._models()
        ).believed(label, doctor, weights)
        if len(self.disk.episodes(phase="eval", doctor=label)) == examination.total:
            return
        self.policy.refresh()
        player = playing(doctor)
        evaluate(self.disk, examination, player, label, self.live, self.plan.supporting)

    def _finish(self, steps: int) -> None:
        if self.settings.evaluation.anchors:
            for label, doctor in self.plan.anchors.items():
                self._examine(doctor, label)
        seconds = sum(line.get("seconds", 0.0) for line in self.disk.metrics())
        summary = summarise(
            self.disk,
            steps=steps,
            seconds=seconds,
            calls=self.plan.supporting.calls,
            stopped=curves(self.disk, self.plan.source, self.plan.environment),
        )
        finish(self.disk, summary, self.plan.supporting.notes, self.live)
        self.live.note(f"look    workup play {self.settings.cases} --against {self.disk.path}")

    # --- parts ---

    def _scorers(self, stage: GrpoStage | SearchStage) -> Mapping[str, Scorer]:
        """The scorers that the stage's reward asks for.

        They are made when the stage begins, with the weights of that moment.
        """
        if stage.name not in self.scorers:
            self.scorers[stage.name] = {
                name: self.engine.live.scorer(name) for name in stage.scorers
            }
        return self.scorers[stage.name]

    def _instruments(self, stage: GrpoStage | SearchStage) -> Callable[[], Instruments]:
        scorers = self._scorers(stage)
        return lambda: Instruments(
            self.plan.supporting.judge, self.engine.processes.all_gather, scorers, self._models()
        )

    def _models(self) -> Mapping[str, Model]:
        """The models that a reward may ask.

        Those of the supporting roles, and the present doctor.
        """
        return {DOCTOR: self.engine.live.chat(), **self.plan.supporting.models}

    def _scoring(self) -> float:
        """The seconds that this process's scorers have taken so far."""
        return sum(scorer.seconds for found in self.scorers.values() for scorer in found.values())

    def _known_scorers(self) -> Mapping[str, Scorer]:
        """The scorers for the reward of evaluations: the newest of each kind.

        Without one, it is made with the present weights.
        """
        stage = self.plan.scoring
        known = {name: scorer for found in self.scorers.values() for name, scorer in found.items()}
        return {
            name: known.get(name) or self.engine.live.scorer(name)
            for name in (stage.scorers if stage else ())
        }

    def _recipe(self, stage: SftStage) -> str:
        """What the warm start of a tiny policy depends on.

        Demonstrations spread over the whole warm start are part of it. They depend on teacher,
        environment and cases, so that methods with the same demonstrations share one warm start.
        So is what the files of the cases hold: a corrected file is another recipe.
        """
        s, total = self.settings, self.settings.sft.steps * self.settings.sft.batch
        drawn = {*range(min(total, RECIPE)), *range(0, total, -(-total // RECIPE) or 1)}
        with one_loop():
            shown = [self.plan.demonstration(stage, k) for k in sorted(drawn)]
        made = (s.cases, s.split, s.seed, s.tiny, s.lora, s.sft)
        # These decide how sums are rounded, or how a gradient is clipped.
        how = (s.micro_batch, s.max_grad_norm, s.bf16, s.gradient_checkpointing, s.threads)
        files = held(s.cases)
        return repr((stage.name, made, how, s.engine, self.engine.recipe, shown, *files))

    def _demonstrations(self, stage: SftStage, done: int) -> Iterator[list[Demonstration]]:
        """This process's share of each batch; of the first `done` none, since they are skipped."""
        yield from repeat([], done)
        batch = self.settings.sft.batch
        index = done * batch
        while True:
            mine = range(
                index + self.engine.processes.rank, index + batch, self.engine.processes.world
            )
            with one_loop():
                made = [self.plan.demonstration(stage, i) for i in mine]
            yield made
            index += batch

    def _begin(self, name: str, kind: str, total: int) -> int:
        """Opens a stage in the live view; returns how many of its steps are done.

        Drops from the run folder the steps after the stage's last checkpoint.
        """
        self._clock(name)
        done = self.engine.done(kind)
        kept = int(kind == "grpo" and self.settings.ahead and 0 < done < total)
        self.played_ahead = done if kept else None
        if self.engine.processes.is_main:
            self.disk.truncate_after(name, done, ahead=kept)
            for step in range(done, done + kept + 1) if kind == "grpo" else ():
                self.disk.refuse_lost(name, step)
            if total:
                self.live.stage(name, total, done=done)
        return done

    def _clock(self, name: str) -> None:
        """Starts the time of the stage `name`, to which logged lines belong from now on."""
        self.stage, self.last, self.scored = name, time.monotonic(), self._scoring()
        self.worked = time.process_time()
        self.collected: dict[int, Collected] = {}  # by step, from 1, until it has been trained on

    def _keep(self, step: Step) -> None:
        """Writes a step's episodes before its update.

        A step that is killed in between is played and written again.
        """
        records = [
            record for share in self.engine.processes.send_to_main(step.records) for record in share
        ]
        figures = step.metrics if self.engine.processes.world == 1 else metrics(records)
        if self.engine.processes.is_main:
            self.disk.write(records)
        self.collected[step.number] = Collected(figures, time.monotonic())

    def _on_step(self, step: int, update: Mapping[str, float]) -> None:
        """Called by the engine after every update."""
        found = self.collected.pop(step, None)
        figures = {**(found.figures if found else {}), **update}
        if found:
            figures["update_seconds"] = time.monotonic() - max(found.at, self.last)
        self._log(step, figures)

    def _log(self, step: int, figures: Mapping[str, Any], shown: int | None = None) -> None:
        """Logs a step and shows it, under the number `shown` if that is another."""
        now = time.monotonic()
        seconds, self.last = now - self.last, now
        scored, self.scored = self.scored, self._scoring()
        worked, self.worked = self.worked, time.process_time()
        line = {"stage": self.stage, "step": step, "seconds": seconds, **figures}
        line["processor_seconds"] = self.worked - worked
        if self.scored > scored:
            line["scoring_seconds"] = self.scored - scored
        if tokens := line.get("tokens"):
            line["tokens_per_second"] = tokens / seconds
        if self.engine.processes.is_main:
            line |= self.plan.supporting.spent
            self.disk.log(line)
            self.live.step({**line, "step": step if shown is None else shown})
