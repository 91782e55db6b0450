"""What a training run is, from its settings: policy, cases, environment, stages, evaluation.

A plan finds the mistakes that a user can make, before anything is written and before torch is
loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from workup import engines
from workup.cases import open_source
from workup.cases.balance import balanced
from workup.core.case import Case
from workup.core.errors import UserError, unknown
from workup.core.ports import (
    DOCTOR,
    Demonstration,
    Doctor,
    Engine,
)
from workup.core.stages import (
    GrpoStage,
    Method,
    SearchStage,
    SftStage,
    Stage,
    any_case,
)
from workup.engines import EngineJob
from workup.engines.settings import OWN_TEACHER
from workup.loops.evaluation.examination import FOLDED, Examination
from workup.loops.evaluation.remarks import remarks
from workup.loops.frame import Frame
from workup.loops.supporting import SupportingRoles
from workup.loops.training.teachers import teacher
from workup.methods import EXACT_GAIN, load
from workup.methods.base.exact_gain import paid_by_gain
from workup.models import samplers
from workup.runs.folder import CHECKPOINTS
from workup.runs.policies import TRAINABLE, own_judges, resolve
from workup.runs.policies.unseen import counted, refuse_met
from workup.runs.settings import Settings, World, build, preset_note, world

FEW = 30  # test cases, below which a cross-validation is pointed out
# Cases of either side that are looked at before anything is written. Where a model draws them, few
# tell of all; in a file each may lack something.
LOOKED_AT, READ = 20, 2_000
RECIPE = 64  # demonstrations that tell warm starts apart: the first ones, and as many evenly spaced


@dataclass(frozen=True)
class Plan(Frame):
    """Settings resolved into objects.

    Its construction finds the mistakes that a user can make, before anything is written.
    """

    settings: Settings
    method: Method
    options: Any  # the method's own settings
    world: World

    @classmethod
    def of(cls, settings: Settings, account: str) -> Plan:
        method = load(settings.method)
        policy = resolve(settings.policy)
        if policy.endpoint:
            raise UserError(
                f"'{policy.name}' cannot be trained: its weights are elsewhere ({TRAINABLE})"
            )
        policy.check(forms=TRAINABLE)
        if settings.folds is not None:
            raise UserError(
                "folds=… trains in one process, with `workup train`; here name one fold, as in "
                f"split=1/{settings.folds}"
            )
        engine = engines.load(settings.engine)
        samplers.load(settings.sampler)
        options = build(method.settings, settings.own_reward, prefix="reward")
        source = open_source(settings.cases, split=settings.split, strict=settings.strict)
        if not len(source.train):
            raise UserError(f"{source.name} holds no training case")
        chosen = world(settings.environment, method.environment)
        environment = chosen.open(source)
        source = environment.about.presented(source, settings.seed)
        supporting = SupportingRoles(
            settings, source, environment, account, settings.evaluation.measures
        )
        frame = (policy, source, supporting, settings.seed)
        plan = cls(*frame, settings, method, options, chosen)
        engine.refuse(settings, plan.stages)
        plan._refuse_without_models()
        plan._look(plan.examination.played)  # here, not after the warm start
        plan._refuse_unheeded_teacher()
        if settings.balance:
            balanced(source.train, power=settings.balance, seed=settings.seed)
        return plan

    def _refuse_without_models(self) -> None:
        """Raises UserError for a role that a reward asks and no model plays."""
        rewarded = (each for each in self.stages if isinstance(each, GrpoStage | SearchStage))
        asked = dict.fromkeys(role for stage in rewarded for role in stage.models)
        if missing := [role for role in asked if role not in {DOCTOR, *self.supporting.models}]:
            raise UserError(
                f"the reward asks a language model as '{missing[0]}': name one with "
                f"roles.{missing[0]}=endpoint:NAME"
            )

    def _look(self, played: Sequence[Case]) -> None:
        """Raises UserError for settings, a case or a demonstration that a stage cannot use.

        `played` are the test cases: rewards score evaluations too.
        """
        s, train = self.settings, self.source.train
        most = LOOKED_AT if self.source.knowledge else READ
        for stage in self.stages:
            if isinstance(stage, GrpoStage):
                if s.steps and s.group == 1 and not stage.alone:
                    raise UserError(
                        "group=1 compares an episode with nothing, so that nothing is learned: "
                        "take group=2 or more"
                    )
                looked = () if stage.fits is any_case else (train, played)
                for case in chain.from_iterable(islice(side, most) for side in looked):
                    stage.fits(case)
            elif isinstance(stage, SftStage) and (stage.size is not None or self.warm_steps):
                for place in range(min(LOOKED_AT, len(train))):
                    self.demonstration(stage, place * stage.each)

    def _refuse_unheeded_teacher(self) -> None:
        """Raises UserError where the teacher could play in none of the first demonstrations."""
        if self.teacher is None:
            if self.settings.sft.teacher_share < 1:
                raise UserError(
                    "sft.teacher_share changes nothing without a teacher: name one, as in "
                    "sft.teacher=greedy"
                )
            return
        if not self.warm_steps:
            return
        for usual in _warm_starts(self._begun()):
            taught = usual.taught_by(self.teacher, 1.0)
            for k in range(RECIPE):
                if self.demonstration(usual, k) != self.demonstration(taught, k):
                    return
        raise UserError(
            f"sft.teacher={self.settings.sft.teacher} changes nothing: no encounter is imitated in "
            "this warm start; leave it out"
        )

    @property
    def config(self) -> dict[str, Any]:
        """The content of config.yaml: every setting, defaults included."""
        own = {
            "roles": self.supporting.roles,
            "environment": self.world.config,
            "anchors": list(self.anchors),
            "reward": {**self.settings.reward, **self.options.model_dump(mode="json")},
        }
        return {**self.settings.model_dump(mode="json"), **own}

    @cached_property  # it looks at many cases
    def notes(self) -> tuple[str, ...]:
        """The method's notes on its settings, what of `preset=paper` is not kept, and warnings.

        A bound says that it is one. The warnings are of a policy that is its own judge, of
        settings for a warm start that does not take place, of anchors that are missing, and of what
        the cases lack.
        """
        notes: Callable[[Any], tuple[str, ...]] | None = getattr(self.method, "notes", None)
        own = own_judges([self.policy], self.settings)
        printed = preset_note(self.method, self.settings.preset, self.config)
        source, played = self.source, self.examination.played
        lacking = remarks(source, self.environment, played, source.train)
        told = (
            *self._bounds(),
            *printed,
            *own,
            *self._idle(),
            *self.environment.about.notes,
            *lacking,
        )
        return (*(notes(self.options) if notes else ()), *told)

    def _idle(self) -> Iterator[str]:
        """Which settings of a warm start change nothing, since there is none."""
        s = self.settings
        usual = Settings(method=s.method).sft if self.policy.is_tiny else type(s.sft)()
        named = ["sft.…"] if s.sft != usual else []
        named += ["warm_start=true"] if s.warm_start else []
        if self.warms or not named:
            return
        why = "this policy gets no warm start; add warm_start=true"
        if s.begin is not None:
            why = f"begin={s.begin} leaves the warm start out"
        yield f"{' and '.join(named)} change{'s' * (len(named) == 1)} nothing: {why}"

    def _bounds(self) -> Iterator[str]:
        """What is not as the method has it, because the model of the cases takes part."""
        if self.settings.exact_gain:
            yield (
                f"reward={EXACT_GAIN}: questions are paid by the model of the cases. This is a "
                "bound and not the method."
            )
        if self.teacher is not None and self.warms:
            teacher, share = self.settings.sft.teacher, self.settings.sft.teacher_share
            often = f", in {100 * share:.0f} % of its encounters," if share < 1 else ""
            yield (
                f"sft.teacher={teacher}: the warm start imitates{often} a doctor who knows the "
                "model of the cases. The method's own teacher does not know it."
            )

    @property
    def warms(self) -> bool:
        """Whether the run begins with a warm start: by default the tiny policy's alone."""
        s, first = self.settings, self.stages[0]
        if s.begin is not None and not (isinstance(first, SftStage) and first.size is None):
            return False
        return self.policy.is_tiny if s.warm_start is None else s.warm_start

    @property
    def warm_steps(self) -> int:
        """Supervised updates of the warm start; 0 without one."""
        return self.settings.sft.steps if self.warms else 0

    def introduced(self) -> list[str]:
        """The lines shown at the start.

        They say which cases are played, whether the policy knows them, and the method's notes.
        Raises UserError if the policy was trained on cases that it is to be evaluated on.
        """
        s, played = self.settings, self.examination.played
        met = refuse_met(played, s.cases, s.split, [self.policy], allowed=s.evaluation.seen)
        default = "" if "cases" in s.model_fields_set else " (the default; --cases names others)"
        trained = f"{len(self.source.train):,} training cases of {s.cases}{default}"
        tested = counted(self.source, len(played), s.split)
        few = self.source.undivided and isinstance(s.split, int) and len(played) < FEW
        return [
            f"cases   trained on {trained}",
            f"cases   evaluated on {tested}",
            *([f"cases   so few tell little: {FOLDED}"] if few else []),
            *met,
            *self.notes,
        ]

    def demonstration(self, stage: SftStage, index: int) -> Demonstration:
        """The index-th demonstration of the stage; no model plays a role in it."""
        return stage.demonstrate(self.source, self.supporting.built_in, self.settings.seed, index)

    @cached_property  # what a doctor has worked out serves all demonstrations
    def teacher(self) -> Doctor | None:
        """Whose encounters the warm start imitates; None: those of the method's demonstrations."""
        name = self.settings.sft.teacher
        if name == OWN_TEACHER:
            return None
        return teacher(name, self.supporting.built_in, self.source, self.settings.seed)

    @cached_property
    def stages(self) -> Sequence[Stage]:
        """The method's stages from `begin` on, with the reward and the teacher of the settings."""
        made = self._begun()
        if self.settings.exact_gain:
            made = paid_by_gain(made, self.source, self.environment)
        if (doctor := self.teacher) is None:
            return made
        share = self.settings.sft.teacher_share
        taught = {stage.name: stage.taught_by(doctor, share) for stage in _warm_starts(made)}
        return [taught.get(stage.name, stage) for stage in made]

    def _begun(self) -> Sequence[Stage]:
        """The method's stages, from the one that `begin` names.

        Raises UserError if there is none of this name, or if a stage needs what was left out.
        """
        every, first = self.method.stages(self.options, self.environment), self.settings.begin
        names = [stage.name for stage in every]
        if first is None:
            return every
        if first not in names:
            raise unknown("stage", first, names)
        left = every[names.index(first) :]
        for stage in left:
            of = getattr(stage, "of", None)
            if of is not None and of not in names[names.index(first) :]:
                raise UserError(
                    f"stage '{stage.name}' learns what '{of}' keeps: begin with that one, or after "
                    f"'{stage.name}'"
                )
        return left

    @property
    def scoring(self) -> GrpoStage | SearchStage | None:
        """The last stage with a reward, which scores the evaluations."""
        stages = [stage for stage in self.stages if isinstance(stage, GrpoStage | SearchStage)]
        return stages[-1] if stages else None

    @property
    def examination(self) -> Examination:
        """The evaluation of every doctor of the run; UserError if the source holds no test case."""
        stage, s = self.scoring, self.settings
        return Examination.of(
            self.source,
            self.environment,
            self.supporting.judge,
            s.evaluation,
            self.supporting.measuring,
            reward=stage.reward if stage else None,
            settle=stage.settle if isinstance(stage, GrpoStage) else None,
            max_tokens=s.max_tokens,
            seed=s.seed,
            concurrency=s.concurrency,
            max_failed=s.max_failed,
        )

    @cached_property
    def place(self) -> str:
        """Where the policy's weights are: a folder or a hub id; "" of the tiny policy."""
        return "" if self.policy.is_tiny else self.policy.weights()

    def weights(self) -> tuple[Any, Any]:
        """Model and tokenizer before any training; UserError if there are none of this name."""
        import torch

        from workup.models.tiny import build as build_tiny
        from workup.models.weights import load

        s = self.settings
        torch.set_num_threads(s.threads)
        if self.policy.is_tiny:
            return build_tiny(self.source, self.environment.lessons.phrases, s.tiny, s.seed)
        return load(self.place, dtype=s.dtype)

    def engine(self, out: Path) -> Engine:
        """The engine that the settings name, with the policy before any training."""
        s = self.settings
        follow = partial(samplers.load(s.sampler).follow, how=s.how)
        job = EngineJob(s, out / CHECKPOINTS, self.weights, follow, self.place)
        return engines.load(s.engine).open(job)


def _warm_starts(stages: Sequence[Stage]) -> list[SftStage]:
    return [stage for stage in stages if isinstance(stage, SftStage) and stage.size is None]
