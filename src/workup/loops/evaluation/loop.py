"""`workup evaluate`: one policy, its anchors and hybrid pipelines, on cases not trained on."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from secrets import token_hex
from typing import Any

from workup import environments
from workup.core.errors import UserError
from workup.core.ports import Doctor, LanguageModel, Sampling
from workup.doctors import strategies
from workup.doctors.beliefs import OwnWeights
from workup.doctors.endpoint import ModelDoctor
from workup.doctors.hybrid import Diagnoser, TranscriptDiagnoser
from workup.doctors.strategies import Driven, Searcher, Strategy
from workup.environments.base.anchors import FullInformationDoctor, exact_reader
from workup.environments.consultation import Consultation
from workup.loops.evaluation.examination import (
    Examination,
    Player,
    hybrid,
    oracle,
    playing,
    searching,
)
from workup.loops.evaluation.remarks import remarks
from workup.loops.evaluation.stopped import curves
from workup.loops.evaluation.stopping import Stopping, divided, told
from workup.loops.frame import Frame, create, evaluate, finish
from workup.loops.supporting import SupportingRoles
from workup.metrics.calibration import SCORED
from workup.models import samplers
from workup.report.live import Live
from workup.rl.rollout import TokenDoctor
from workup.runs import Run
from workup.runs.folder import free
from workup.runs.policies import TINY, Resolved, identities, own_judges, resolve
from workup.runs.policies.unseen import counted, open_unseen, own_cases, refuse_met
from workup.runs.settings import (
    STRATEGY,
    PolicySettings,
    World,
    build,
    merge,
    revised,
    with_user_config,
    world,
)
from workup.runs.summary import repeats, summarise
from workup.runs.words import ORACLE

BAYES = "bayes"  # the name of the one who concludes by the source's own model


def completed(values: Mapping[str, Any]) -> tuple[PolicySettings, list[str]]:
    """`values` as settings, and notes for the reader.

    If `values` name no cases, they are those that the policy, or the one who concludes, was trained
    on. Raises UserError if there are none, and as `with_user_config` does.
    """
    if values.get("cases") is not None:
        return with_user_config(PolicySettings, values), []
    given = (values.get("policy"), values.get("conclude"))
    several = [resolve(str(name)) for name in given if name not in (None, BAYES)]
    named = [resolve(each.folds[0]) if each.folds else each for each in several]
    for each in named:
        if each.is_run:
            each.check()  # an evaluation, or a run that has not ended
    cases = own_cases(named)
    remark = f"cases   none were named: {cases} is taken, which the run was trained on"
    return with_user_config(PolicySettings, {**values, "cases": cases}), [remark]


def start(settings: PolicySettings, out: Path, live: Live, account: str = "") -> Run:
    """Evaluates one policy into the new folder `out`.

    Its calls are on `account` in the ledger, by default on one of its own. The policy and the
    anchors are evaluated, and with `conclude` hybrid and oracle too. `settings.policy` is a model
    folder, a run folder, a hub id, endpoint:NAME, or the name of an anchor. Raises UserError for
    what the user can mend, before anything is written.
    """
    refuse_untrained(settings)
    free(out)
    account = account or token_hex(8)
    evaluation = Evaluation.of(settings, account)
    players, examination = evaluation.players(), evaluation.believing
    _ = evaluation.stopping  # its mistakes, before anything is written
    asked = evaluation.asked(settings)
    noted: dict[str, Any] = {"anchors": list(evaluation.anchors)}
    noted["encounter"] = encounter(settings, evaluation.policy).name
    noted |= {"notes": [*evaluation.noted]} if evaluation.noted else {}
    config = {"kind": "evaluation", "account": account, **noted, **asked}
    create(out, config, evaluation)
    return _go_on(out, evaluation, examination, players, live)


def resume(path: Path, live: Live, changes: Mapping[str, Any] | None = None) -> Run:
    """Continues an interrupted evaluation: its episodes are kept, except failed ones.

    `changes` are settings that may change in between (`settings.revised`); the run records them.
    Raises UserError where local weights are others than those that played.
    """
    with Run.open(path) as run:
        evaluation = Evaluation.of(
            revised(PolicySettings, run.settings, changes or {}), run.account
        )
        _refuse_other_weights(run, evaluation)
        if changes:
            with run.alone():
                run.revise(merge(run.settings, changes), changes)
    return _go_on(path, evaluation, evaluation.believing, evaluation.players(), live)


def _go_on(
    path: Path,
    evaluation: Evaluation,
    examination: Examination,
    players: Mapping[str, Player],
    live: Live,
) -> Run:
    began = time.monotonic()
    evaluation.supporting.run_models.named(path)
    with Run.open(path) as run, run.alone(), closing(evaluation.supporting):
        before: Mapping[str, Any] = run.summary or {}
        played, split = len(evaluation.examination.played), evaluation.settings.split
        live.note(f"cases   {counted(evaluation.source, played, split)}")
        speed = dict(before.get("episodes_per_second", {}))
        for label, player in players.items():
            since = time.monotonic()
            count = evaluate(run, examination, player, label, live, evaluation.supporting)
            if count:
                speed[label] = round(count / (time.monotonic() - since), 3)
        rule: Mapping[str, Any] | None = None
        if evaluation.stopping is not None:
            rule = evaluation.stopping.play(run, examination, live, evaluation.supporting)
        summary = summarise(
            run,
            steps=0,
            seconds=(before.get("seconds") or 0.0) + time.monotonic() - began,
            calls=evaluation.supporting.calls,
            speed=speed,
            stopped=curves(run, evaluation.source, evaluation.environment),
            stopping=rule,
        )
        first = next(iter(players))
        rate = f"speed   {first}: {speed[first]:.2f} episodes a second" if first in speed else ""
        notes = (
            *filter(None, [rate, told(rule) if rule else ""]),
            *repeats(summary),
            *evaluation.notes,
        )
        finish(run, summary, notes, live)
    return Run.open(path)


def _refuse_other_weights(run: Run, evaluation: Evaluation) -> None:
    before = run.versions.get("weights") or {}
    now = identities({r: name for r, name in evaluation.weighed.items() if r in before})
    for role, weights in before.items():
        if now.get(role) != weights:
            raise UserError(
                f"{run.path} was played with other weights: {role} was {weights} and is now "
                f"{now.get(role, 'not there')}; bring them back, or begin anew with another --out"
            )


def refuse_untrained(settings: PolicySettings) -> None:
    """Raises UserError for the tiny policy, which is worth evaluating in a run's folder only."""
    if settings.policy == TINY:
        raise UserError(
            "'tiny' is trained first: workup train METHOD, then workup evaluate runs/NAME"
        )


@dataclass(frozen=True)
class Evaluation(Frame):
    """Settings resolved into objects.

    Its construction finds the mistakes that a user can make, before anything is written.
    """

    settings: PolicySettings
    conclude: Resolved | None
    examination: Examination
    met: Sequence[str] = ()  # notes on cases that a policy was trained on
    calibrating: Examination | None = None  # on the cases that a rule for stopping is fitted to

    @property
    def weighed(self) -> Mapping[str, str]:
        own = {} if self.conclude is None else {"conclude": self.conclude.name}
        return {**super().weighed, **own}

    @classmethod
    def of(cls, settings: PolicySettings, account: str) -> Evaluation:
        """The evaluation that `settings` describe.

        Raises UserError, also for cases that a policy was trained on, unless `seen` is set.
        """
        if settings.folds is not None:
            raise UserError(
                f"'{settings.policy}' is no cross-validation: folds=… is for what `workup train "
                "METHOD folds=…` made. A file that a policy was not trained on is played whole"
            )
        policy = resolve(settings.policy)
        conclude = None if settings.conclude is None else resolve(settings.conclude)
        if conclude is not None:
            conclude.check((BAYES,))
        settings, (strategy, tuned) = as_trained(settings, policy), strategy_of(settings)
        named = [each for each in (policy, conclude) if each is not None]
        source, split = open_unseen(settings.cases, named, settings.split, strict=settings.strict)
        settings = settings.model_copy(update={"split": split})
        environment = encounter(settings, policy).open(source)
        strategy.fits(environment)
        source = environment.about.presented(source, settings.seed)
        known = environment.about.anchors(source, settings.seed)
        policy.check(known, why=environment.about.notes)
        if policy.name in known and settings.strategy:
            raise UserError(
                f"'{policy.name}' is an anchor: a strategy is for a policy that can be prompted"
            )
        supporting = SupportingRoles(
            settings, source, environment, account, settings.evaluation.measures
        )
        how = settings.evaluation
        if settings.stopping.alpha is not None and how.probabilities is None:
            how = how.model_copy(update={"probabilities": SCORED})  # a rule reads them
        examination = Examination.of(
            source,
            supporting.environment,
            supporting.judge,
            how,
            supporting.measuring,
            max_tokens=settings.max_tokens or 256,
            seed=settings.seed,
            concurrency=settings.concurrency,
            max_failed=settings.max_failed,
        )
        for each in named:
            if each.endpoint:
                supporting.run_models.open(each.name)
        calibrating = None
        if settings.stopping.alpha is not None:
            examination, calibrating = divided(examination, settings.stopping)
        seen = settings.evaluation.seen
        used = [*examination.played, *(calibrating.played if calibrating else ())]
        met = refuse_met(used, settings.cases, split, named, allowed=seen)
        # Each episode in flight needs a slot of a local policy's prefix cache. With more
        # episodes than slots, prompts are computed again in every turn.
        at_once = max(1, settings.concurrency // tuned.in_flight)
        examination = replace(examination, concurrency=at_once)
        frame = (policy, source, supporting, settings.seed)
        return cls(*frame, settings, conclude, examination, met, calibrating)

    def asked(self, settings: PolicySettings) -> dict[str, Any]:
        """`settings`, from which this was made, as a run keeps them: with the split and the roles.

        The roles are those that hold here.
        """
        own = {"split": self.settings.split, "roles": self.supporting.roles}
        return {**settings.model_dump(mode="json"), **own}

    @property
    def notes(self) -> Sequence[str]:
        """What the reader should know."""
        return (*self.met, *self.noted, *self.source.notes, *self.supporting.notes)

    @cached_property  # it looks at many cases
    def noted(self) -> Sequence[str]:
        """What the run keeps of `notes`.

        They are on policies that are their own judges, on missing anchors, and on what the cases
        lack.
        """
        named, environment = (self.policy, self.conclude), self.supporting.environment
        judging = own_judges([*filter(None, named)], self.settings)
        lacking = remarks(self.source, environment, self.examination.played)
        return (*judging, *environment.about.notes, *lacking)

    @property
    def label(self) -> str:
        """The policy's label in tables: "rag (smollm2)", or "smollm2" without a strategy."""
        strategy = self.settings.strategy.get("name")
        return f"{strategy} ({self.policy.label})" if strategy else self.policy.label

    def players(self) -> dict[str, Player]:
        """Everyone who plays, by label."""
        known, label, name = self.anchors, self.label, self.policy.name
        played = known.get(name) or self._player
        gatherer = searching(played) if isinstance(played, Searcher) else playing(played)
        players = {label: gatherer}
        if self.conclude is not None:
            (diagnoser, reader), other = self._diagnosers(self.conclude), self.conclude.label
            record = Consultation(self.source.items, self.source.diagnoses)
            players[f"{label}, {other} concludes"] = hybrid(gatherer, diagnoser)
            players[f"{other}, {ORACLE}"] = oracle(reader, record)
        others = known if self.settings.evaluation.anchors else {}
        return {
            **players,
            **{label: playing(doctor) for label, doctor in others.items() if label != name},
        }

    @property
    def believing(self) -> Examination:
        """The examination with what the policy and the anchors believe, if that is measured."""
        found, known, name = self.examination, self.anchors, self.policy.name
        if found.believing is None:
            return found
        own = known.get(name) or self._own.doctor
        found = found.believed(self.label, own, self._weights)
        for label, doctor in known.items():
            found = found.believed(label, doctor)
        return found

    @cached_property
    def _own(self) -> Driven:
        return self._driven(self.policy)

    @cached_property
    def stopping(self) -> Stopping | None:
        """The row in which the policy stops by a rule, if that is asked for.

        Raises UserError for a strategy that plays whole episodes, and as `believing`.
        """
        believing, calibrating = self.examination.believing, self.calibrating
        if believing is None or calibrating is None:
            return None
        doctor = self.anchors.get(self.policy.name) or self._player
        if isinstance(doctor, Searcher):
            raise UserError(
                "stopping.alpha: this strategy plays whole episodes and cannot be stopped"
            )
        own = self.anchors.get(self.policy.name) or self._own.doctor
        belief = believing.of(own, self._weights)
        return Stopping(self.settings.stopping, self.label, doctor, belief, calibrating)

    @cached_property
    def _player(self) -> Doctor | Searcher:
        """The policy as the strategy plays it."""
        if not self.settings.strategy:
            return self._own.doctor
        strategy, tuned = strategy_of(self.settings)
        opened: Doctor | Searcher = strategy.open(self._own, self.examination.environment, tuned)
        return opened

    @property
    def _weights(self) -> OwnWeights | None:
        """The weights that play, if they are here and no strategy is between."""
        if self.policy.name in self.anchors or self.settings.strategy:
            return None
        model = self._own.weights
        return None if model is None else OwnWeights(model.policy, model.scorer)

    def _driven(self, policy: Resolved) -> Driven:
        """The policy as a doctor, and as a chat model if its weights have a chat template."""
        if policy.endpoint:
            doctor = ModelDoctor(self.supporting.run_models.open(policy.name))
            return Driven(doctor, doctor.model)
        model = open_model(self.settings, policy)
        return Driven(TokenDoctor(model.policy), model.chat(policy.label), model)

    def _diagnosers(self, concluding: Resolved) -> tuple[Diagnoser, Diagnoser]:
        """The one who concludes from a transcript, and the one who has the whole record."""
        environment, source = self.examination.environment, self.source
        if concluding.name != BAYES:
            sampling = Sampling.of(environment, self.settings.max_tokens or 256)
            doctor = self._driven(concluding).doctor
            policy = TranscriptDiagnoser(doctor, environment, sampling)
            return policy, policy
        exact = exact_reader(source, environment)
        if exact is None:
            raise UserError(
                f"conclude=bayes needs a model of the cases, which {source.name} does not have"
            )
        # In a whole record what is not mentioned is normal.
        return exact, FullInformationDoctor(exact.knowledge, source.items, environment.write)


def encounter(settings: PolicySettings, policy: Resolved) -> World:
    """The environment that the settings name.

    By default it is that of the run that trained the policy; without such a run, the consultation.
    Settings left open are as trained, in another environment too if it has them.
    """
    given = settings.environment
    usual = policy.trained().get("environment", {"name": "consultation"})
    name = str(given.get("name") or usual["name"])
    if name != usual["name"] and policy.is_run:
        fields = environments.load(name).Settings.model_fields
        own = {key: value for key, value in usual.items() if key in fields}
        usual = {**own, "name": name}
    return world(given, usual)


def as_trained(settings: PolicySettings, policy: Resolved) -> PolicySettings:
    """`settings`, with the `max_tokens` of the run that trained the policy if they name none."""
    if settings.max_tokens is not None or not policy.is_run:
        return settings
    return settings.model_copy(update={"max_tokens": policy.trained().get("max_tokens")})


def strategy_of(settings: PolicySettings) -> tuple[Strategy, Any]:
    """The strategy that the settings name (by default vanilla), with its settings.

    Raises UserError for a name that does not exist.
    """
    strategy = strategies.load(str(settings.strategy.get("name") or "vanilla"))
    own = {key: value for key, value in settings.strategy.items() if key != "name"}
    return strategy, build(strategy.settings, own, prefix=STRATEGY)


def open_model(settings: PolicySettings, policy: Resolved) -> LanguageModel:
    """The weights of a run, a model folder or a hub id, with the sampler of the settings."""
    return samplers.load(settings.sampler).open(policy.weights(), settings.how)
