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
from workup.core.case import Source
from workup.core.errors import UserError
from workup.core.ports import Doctor, LanguageModel, Sampling
from workup.doctors import strategies
from workup.doctors.endpoint import ModelDoctor
from workup.doctors.hybrid import Diagnoser, TranscriptDiagnoser
from workup.doctors.strategies import Searcher, Seat, Strategy
from workup.environments.base.anchors import BayesDiagnoser, FullInformationDoctor
from workup.environments.consultation import Consultation
from workup.loops.evaluation.examination import (
    Examination,
    Player,
    examine,
    hybrid,
    oracle,
    playing,
    searching,
)
from workup.loops.evaluation.remarks import remarks
from workup.loops.staff import Staff
from workup.models import samplers
from workup.report.live import Live
from workup.rl.rollout import TokenDoctor
from workup.roles.endpoint import ENDPOINT
from workup.runs import Run, policies, versions
from workup.runs.folder import FOLDS, free
from workup.runs.policies.unseen import counted, open_unseen, own_cases, refuse_met
from workup.runs.settings import PolicySettings, World, build, furnished, merge, revised, world
from workup.runs.summary import repeats, summarise

BAYES = "bayes"  # the name of the one who concludes by the source's own model


def completed(values: Mapping[str, Any]) -> tuple[PolicySettings, list[str]]:
    """`values` as settings, and notes for the reader.

    If `values` name no cases, they are those that the policy, or the one who concludes, was trained
    on. Raises UserError if there are none, and as `furnished` does.
    """
    if values.get("cases") is not None:
        return furnished(PolicySettings, values), []
    given = (values.get("policy"), values.get("conclude"))
    several = [str(name) for name in given if name not in (None, BAYES)]
    named = [next(iter(policies.fold_folders(name)), name) for name in several]
    for name in named:
        if policies.is_run_folder(name):
            policies.check(name)  # an evaluation, or a run that has not ended
    cases = own_cases(named)
    remark = f"cases   none were named: {cases} is taken, which the run was trained on"
    return furnished(PolicySettings, {**values, "cases": cases}), [remark]


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
    players = evaluation.players()
    asked = evaluation.asked(settings)
    noted: dict[str, Any] = {"anchors": list(evaluation.anchors)}
    noted["encounter"] = encounter(settings).name
    noted |= {"notes": [*evaluation.noted]} if evaluation.noted else {}
    config = {"kind": "evaluation", "account": account, **noted, **asked}
    weights = policies.identities({"policy": settings.policy, **evaluation.staff.roles})
    Run.create(
        out,
        config,
        versions({"run": settings.seed}, weights=weights),
        restricted=evaluation.source.restricted,
    ).close()
    return _go_on(out, evaluation, players, live)


def resume(path: Path, live: Live, changes: Mapping[str, Any] | None = None) -> Run:
    """Continues an interrupted evaluation: its episodes are kept, except failed ones.

    `changes` are settings that may change in between (`settings.revised`); the run records them.
    """
    with Run.open(path) as run:
        evaluation = Evaluation.of(
            revised(PolicySettings, run.settings, changes or {}), run.account
        )
        if changes:
            with run.alone():
                run.revise(merge(run.settings, changes), changes)
    return _go_on(path, evaluation, evaluation.players(), live)


def _go_on(path: Path, evaluation: Evaluation, players: Mapping[str, Player], live: Live) -> Run:
    from workup.report import build as build_report  # matplotlib takes a second to load

    began = time.monotonic()
    evaluation.staff.desk.named(path)
    with Run.open(path) as run, run.alone(), closing(evaluation.staff):
        played, split = len(evaluation.examination.played), evaluation.settings.split
        live.note(f"cases   {counted(evaluation.source, played, split)}")
        speed = {}
        for label, player in players.items():
            live.stage(f"evaluate {label}", evaluation.examination.total, unit="episode")
            since = time.monotonic()
            count = examine(
                run,
                evaluation.examination,
                player,
                label,
                lambda so_far: live.step({**so_far, **evaluation.staff.spent}),
            )
            if count:
                speed[label] = round(count / (time.monotonic() - since), 3)
        summary = summarise(
            run,
            steps=0,
            seconds=time.monotonic() - began,
            calls=evaluation.staff.calls,
            speed=speed,
        )
        live.table(summary)
        build_report(run)
        first = next(iter(players))
        if first in speed:
            live.note(f"speed   {first}: {speed[first]:.2f} episodes a second")
        for note in (*repeats(summary), *evaluation.notes):
            live.note(note)
        live.note(f"report  {run.report}")
    return Run.open(path)


def refuse_untrained(settings: PolicySettings) -> None:
    """Raises UserError for the tiny policy, which is worth evaluating in a run's folder only."""
    if settings.policy == policies.TINY:
        raise UserError(
            "'tiny' is trained first: workup train METHOD, then workup evaluate runs/NAME"
        )


@dataclass(frozen=True)
class Evaluation:
    """Settings resolved into objects.

    Its construction finds the mistakes that a user can make, before anything is written.
    """

    settings: PolicySettings
    source: Source
    staff: Staff
    examination: Examination
    met: Sequence[str] = ()  # notes on cases that a policy was trained on

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
        if settings.conclude is not None:
            policies.check(settings.conclude, (BAYES,))
        settings, (strategy, plan) = as_trained(settings), strategy_of(settings)
        named = [name for name in (settings.policy, settings.conclude) if name is not None]
        source, split = open_unseen(settings.cases, named, settings.split, strict=settings.strict)
        settings = settings.model_copy(update={"split": split})
        environment, measures = encounter(settings).open(source), settings.evaluation.measures
        strategies.refuse_unfit(strategy, environment)
        source = environment.about.presented(source, settings.seed)
        known = environment.about.anchors(source, settings.seed)
        policies.check(settings.policy, known, why=environment.about.notes)
        if settings.policy in known and settings.strategy is not None:
            raise UserError(
                f"'{settings.policy}' is an anchor: a strategy is for a policy that can be prompted"
            )
        staff = Staff(settings, source, environment, account, measures)
        examination = Examination.of(
            source,
            staff.environment,
            staff.judge,
            settings.evaluation,
            staff.measuring,
            max_tokens=settings.max_tokens or 256,
            seed=settings.seed,
            concurrency=settings.concurrency,
            max_failed=settings.max_failed,
        )
        for name in (settings.policy, settings.conclude or BAYES):
            if name.startswith(ENDPOINT):
                staff.desk.open(name)
        seen = settings.evaluation.seen
        met = refuse_met(examination.played, settings.cases, split, named, allowed=seen)
        # Each episode in flight needs a slot of a local policy's prefix cache. With more
        # episodes than slots, prompts are computed again in every turn.
        at_once = max(1, settings.concurrency // plan.in_flight)
        return cls(settings, source, staff, replace(examination, concurrency=at_once), met)

    @property
    def anchors(self) -> Mapping[str, Doctor]:
        """The doctors that bound what is measured, by label, from the lowest to the highest."""
        return self.examination.environment.about.anchors(self.source, self.settings.seed)

    def asked(self, settings: PolicySettings) -> dict[str, Any]:
        """`settings`, from which this was made, as a run keeps them: with the split and the roles.

        The roles are those that hold here.
        """
        own = {"split": self.settings.split, "roles": self.staff.roles}
        return {**settings.model_dump(mode="json"), **own}

    @property
    def notes(self) -> Sequence[str]:
        """What the reader should know."""
        return (*self.met, *self.noted, *self.source.notes, *self.staff.notes)

    @cached_property  # it looks at many cases
    def noted(self) -> Sequence[str]:
        """What the run keeps of `notes`.

        They are on policies that are their own judges, on missing anchors, and on what the cases
        lack.
        """
        named, environment = (self.settings.policy, self.settings.conclude), self.staff.environment
        own_judges = policies.own_judges([*filter(None, named)], self.settings)
        lacking = remarks(self.source, environment, self.examination.played)
        return (*own_judges, *environment.about.notes, *lacking)

    def players(self) -> dict[str, Player]:
        """Everyone who plays, by label."""
        s, known = self.settings, self.anchors
        gatherer = playing(known[s.policy]) if s.policy in known else self.player(s.policy)
        label = played_as(s.policy, s.strategy)
        players = {label: gatherer}
        if s.conclude is not None:
            (diagnoser, reader), other = self._diagnosers(s.conclude), short_name(s.conclude)
            record = Consultation(self.source.items, self.source.diagnoses)
            players[f"{label}, {other} concludes"] = hybrid(gatherer, diagnoser)
            players[f"{other}, oracle context"] = oracle(reader, record)
        others = known if s.evaluation.anchors else {}
        return {
            **players,
            **{label: playing(doctor) for label, doctor in others.items() if label != s.policy},
        }

    def player(self, name: str) -> Player:
        """The policy as the strategy plays it."""
        if self.settings.strategy is None:
            return playing(self.doctor(name))
        strategy, tuned = strategy_of(self.settings)
        played = strategy.open(self._seat(name), self.examination.environment, tuned)
        return searching(played) if isinstance(played, Searcher) else playing(played)

    def _seat(self, name: str) -> Seat:
        """The policy as a doctor, and as a chat model if its weights have a chat template."""
        if name.startswith(ENDPOINT):
            doctor = ModelDoctor(self.staff.desk.open(name))
            return Seat(doctor, doctor.model)
        model = open_model(self.settings, name)
        return Seat(TokenDoctor(model.policy), model.chat(short_name(name)))

    def doctor(self, name: str) -> Doctor:
        """An endpoint, or the policy of a run, a model folder or a hub id, as a doctor."""
        if name.startswith(ENDPOINT):
            return ModelDoctor(self.staff.desk.open(name))
        return TokenDoctor(open_model(self.settings, name).policy)

    def _diagnosers(self, name: str) -> tuple[Diagnoser, Diagnoser]:
        """The one who concludes from a transcript, and the one who has the whole record."""
        environment, knowledge = self.examination.environment, self.source.knowledge
        if name != BAYES:
            sampling = Sampling(environment.stop, self.settings.max_tokens or 256)
            policy = TranscriptDiagnoser(self.doctor(name), environment, sampling)
            return policy, policy
        if knowledge is None:
            raise UserError(
                f"conclude=bayes needs a model of the cases, which {self.source.name} does not have"
            )
        items, write = self.source.items, environment.write
        about = environment.about
        exact = BayesDiagnoser(knowledge, items, write, about.known, about.documents)
        # In a whole record what is not mentioned is normal.
        return exact, FullInformationDoctor(knowledge, items, write)


def short_name(policy: str) -> str:
    """An endpoint's name, or the last part of a folder or a hub id."""
    if policy.startswith(ENDPOINT):
        return policy.removeprefix(ENDPOINT)
    folder = Path(policy)  # a policy of a cross-validation is called after all of them
    return folder.parent.parent.name if folder.parent.name == FOLDS else folder.name


def played_as(policy: str, strategy: str | None) -> str:
    """The label of a policy in tables: "rag (smollm2)", or "smollm2" without a strategy."""
    return f"{strategy} ({short_name(policy)})" if strategy else short_name(policy)


def encounter(settings: PolicySettings) -> World:
    """The environment that the settings name.

    By default it is that of the run that trained the policy; without such a run, the consultation.
    Settings left open are as trained, in another environment too if it has them.
    """
    given = settings.environment
    if not policies.is_run_folder(settings.policy):
        return world(given, {"name": "consultation"})
    config = policies.trained(settings.policy)
    usual = config["environment"]
    name = str(given.get("name") or usual["name"])
    if name != usual["name"]:
        fields = environments.load(name).Settings.model_fields
        usual = {key: value for key, value in usual.items() if key in fields}
    return world(given, {**usual, "name": name})


def as_trained(settings: PolicySettings) -> PolicySettings:
    """`settings`, with the `max_tokens` of the run that trained the policy if they name none."""
    if settings.max_tokens is not None or not policies.is_run_folder(settings.policy):
        return settings
    config = policies.trained(settings.policy)
    return settings.model_copy(update={"max_tokens": config.get("max_tokens")})


def strategy_of(settings: PolicySettings) -> tuple[Strategy, Any]:
    """The strategy that the settings name (by default vanilla), with its settings.

    Raises UserError for a name that does not exist.
    """
    strategy = strategies.load(settings.strategy or "vanilla")
    return strategy, build(strategy.Settings, settings.plan, prefix="plan")


def open_model(settings: PolicySettings, name: str) -> LanguageModel:
    """The weights of a run, a model folder or a hub id, with the sampler of the settings."""
    return samplers.load(settings.sampler).open(policies.path(name), settings.how)
