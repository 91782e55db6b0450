"""The engine on verl: the driver plays and writes, verl's workers hold and update the weights."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

from workup.core.disk import whole_folder
from workup.core.episode import Sample
from workup.core.errors import UserError
from workup.core.ports import REFERENCE, Collect, Demonstration, Model, Pair, Scorer
from workup.engines import EngineJob
from workup.engines.settings import TuningSettings
from workup.engines.verl import checkpoints, estimator
from workup.engines.verl.adapters import whole_policy
from workup.engines.verl.alone import Alone
from workup.engines.verl.cluster import composed
from workup.engines.verl.manager import Manager
from workup.engines.verl.mapping import configuration, learning, scoring
from workup.engines.verl.policy import VerlPolicy
from workup.engines.verl.rows import TokenRow, lessons, rows, sequences
from workup.engines.verl.scorer import ReferenceScorer, ServerScorer
from workup.engines.verl.session import Session, Verl
from workup.engines.verl.trainer import VerlHooks
from workup.models.remote import KnownModel
from workup.models.samplers import How
from workup.rl.running import run_to_end

__all__ = ["VerlEngine", "estimator"]  # importing `estimator` registers it with verl
GRPO = "grpo"
Rows = Callable[[int, Sequence[str]], Sequence[TokenRow]]


class VerlEngine:
    """Implements `Engine`: one of verl's trainers after the other, each with the stage's weights.

    A stage's checkpoints are verl's own, in `folder/1-sft/global_step_N`, `folder/2-grpo/…` in the
    order of the calls. What a stage ends with is a model folder in its last checkpoint, which the
    next stage begins with. Servers run in reinforcement stages, and wherever the policy is asked
    outside of a stage; they keep running until another stage begins. `verl` starts the trainers.
    """

    def __init__(self, job: EngineJob, verl: Verl | None = None) -> None:
        self.values, self.folder = job.settings.model_dump(), job.folder.resolve()
        # Workers start in another folder, perhaps on another machine.
        self.weights = str(Path(job.place).resolve()) if Path(job.place).exists() else job.place
        self.known = KnownModel.of(self.weights)
        v = self.values
        how = How(v["concurrency"], v["dtype"], context=v["sampler_context"])
        self.policy = VerlPolicy(
            self.known, how, lambda: self._serving().client, lambda: self._serving().version
        )
        self.processes = Alone()
        self.on_step: Any = lambda step, metrics: None
        self._stopping = self.stopped = False
        self._session: Session | None = None
        self._stages = self._trained = 0  # stages that were begun; those that changed weights
        self._frozen = False  # whether a reward asks the frozen reference
        self._before = self.weights  # what the newest reinforcement stage began with
        self._last: Path | None = None  # the folder of that stage, until another changes weights
        self.verl = verl or Verl()
        self.verl.join(self._reinforcing())  # reports too few machines before anything is written

    # --- the policy ---

    @property
    def live(self) -> VerlEngine:
        return self

    def chat(self) -> Model:
        from workup.models.chat import LocalChat

        return LocalChat.over(self.policy, "the policy")

    def scorer(self, name: str) -> Scorer:
        if name != REFERENCE:
            return ServerScorer(self.policy, self.values["concurrency"])
        self._frozen = True
        if self._session is not None and not self._session.trainer.use_reference_policy:
            self._close()
        return ReferenceScorer(self.policy, self._reference)

    def _reference(self, samples: Sequence[Sample]) -> list[float]:
        return self._serving().trainer.reference(samples)

    @property
    def recipe(self) -> str:
        return repr([version(name) for name in ("verl", "torch", "transformers")])

    def save(self, folder: Path, *, merged: bool = True) -> None:
        """Copies the model folder of the last stage that was trained.

        Raises UserError where no stage has a whole checkpoint.
        """
        if not self._trained:
            raise UserError(f"{self.folder}: no whole checkpoint to take the policy from")
        with whole_folder(folder) as draft:
            shutil.copytree(self.weights, draft, dirs_exist_ok=True)
            self.known.tokenizer.save_pretrained(draft)

    def load(self, folder: Path) -> str:
        return "engine=verl begins with the weights of its policy"

    # --- stages ---

    def sft(
        self, batches: Iterable[Sequence[Demonstration | Sample]], steps: int, rate: Any
    ) -> None:
        done, given = self.done("sft"), iter(batches)
        todo = islice(given, min(done, steps), steps)

        def learned(step: int, uids: Sequence[str]) -> Sequence[TokenRow]:
            return lessons(sequences(next(todo), self.policy), uids[0], step)

        kind = "tuning" if isinstance(rate, TuningSettings) else "sft"
        self._train("sft", steps, learned, lambda: self._learning(kind, steps))

    def dpo(self, batches: Iterable[Sequence[Pair]], steps: int) -> None:
        todo = islice(iter(batches), min(self.done("dpo"), steps), steps)

        def preferred(step: int, uids: Sequence[str]) -> Sequence[TokenRow]:
            sides = [side for pair in next(todo) for side in pair]
            return lessons(sides, uids[0], step)

        self._train("dpo", steps, preferred, lambda: self._learning("dpo", steps))

    def grpo(self, collect: Collect, steps: int) -> None:
        def played(step: int, uids: Sequence[str]) -> Sequence[TokenRow]:
            self._serving().version = step - 1
            made = run_to_end(collect(self.policy, step - 1))
            return rows(made, uids, step)

        self._train(GRPO, steps, played, self._reinforcing)

    def done(self, kind: str) -> int:
        found = checkpoints.whole(self._coming(kind))
        return checkpoints.step(found[-1]) if found else 0

    def stop(self) -> None:
        self._stopping = True

    def _coming(self, kind: str) -> Path:
        """The folder of the coming stage."""
        return self.folder / f"{self._stages + 1}-{kind}"

    def _train(self, kind: str, steps: int, make: Rows, config: Callable[[], Any]) -> None:
        folder, done = self._coming(kind), self.done(kind)
        if not self.stopped and steps > done:
            session = self._opened(kind, folder, config)
            session.describe()
            session.fit(Manager(make))
        elif not self.stopped and steps:
            self._close()  # the session has the weights that this stage began with
        self._stages += 1
        if self.stopped or not steps:
            return
        found = checkpoints.whole(folder)[-1]
        self._before, self._last = self.weights, folder if kind == GRPO else None
        self.weights = str(whole_policy(found, self.values["lora"]))
        self._trained += 1
        self.stopped = self._stopping and checkpoints.step(found) < steps
        if self._session is not None:
            self._session.version = checkpoints.step(found)

    # --- verl ---

    def _reinforcing(self) -> Any:
        return self._playing(self.weights, self._coming(GRPO))

    def _playing(self, weights: str, folder: Path) -> Any:
        keys = configuration(self.values, weights, folder)
        return composed(scoring(keys) if self._frozen else keys)

    def _learning(self, kind: str, steps: int) -> Any:
        folder = self._coming("dpo" if kind == "dpo" else "sft")
        return composed(learning(self.values, kind, steps, self.weights, folder))

    def _serving(self) -> Session:
        """The session with servers.

        After a reinforcement stage it is that stage's; else one that the coming stage may take.
        """
        if self._session is not None and self._session.kind == GRPO:
            return self._session
        if (last := self._last) is not None:
            return self._opened(GRPO, last, lambda: self._playing(self._before, last))
        return self._opened(GRPO, self._coming(GRPO), self._reinforcing)

    def _opened(self, kind: str, folder: Path, config: Callable[[], Any]) -> Session:
        if self._session is None or self._session.folder != folder:
            self._close()
            hooks = VerlHooks(self._told, lambda: self._stopping, self.values["save_total_limit"])
            made = self.verl.maker(kind, self.values["dpo"]["beta"])
            self._session = Session(kind, folder, config(), self.verl, made, hooks)
        return self._session

    def _close(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session = None

    def _told(self, step: int, metrics: Any) -> None:
        self.on_step(step, metrics)
