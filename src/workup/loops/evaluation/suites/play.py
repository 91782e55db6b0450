"""Playing a suite: one evaluation per benchmark and doctor, each a run folder below the suite's."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any

from workup.core.disk import slug
from workup.core.episode import Ending
from workup.core.errors import UserError, unknown
from workup.doctors import strategies
from workup.loops.evaluation import loop as evaluation
from workup.loops.evaluation.arms import Steps, labels
from workup.loops.evaluation.suites import Benchmark, Lack, Suite, filled, placed, read
from workup.loops.evaluation.suites.foretold import Foretold, lines
from workup.report import scorecard
from workup.report import suite as report
from workup.report.live import Live
from workup.runs import Run, versions
from workup.runs.folder import free, is_run
from workup.runs.policies import resolve
from workup.runs.settings import (
    PolicySettings,
    build,
    in_full,
    mapping,
    merge,
    revised,
    with_user_config,
)


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user asks for: a suite by name or file, who plays it, and how.

    `data` is the folder of the suite's files. With `partial` the benchmarks whose files are missing
    are left out. `values` are settings of `workup evaluate`, which win over the suite's; `strategy`
    among them may name several, and each doctor plays them all. `of_endpoints` win over the suite's
    for doctors at endpoints alone. The suite is `made` where no file has it as it is played. An
    exam has `noted` what its scorecard tells of it.
    """

    suite: str
    doctors: Sequence[str]
    values: Mapping[str, Any]
    data: str | None = None
    partial: bool = False
    of_endpoints: Mapping[str, Any] = field(default_factory=dict)
    made: Suite | None = None
    noted: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Arm:
    """One evaluation: a doctor on a benchmark."""

    doctor: str  # the doctor's label in the suite's tables
    benchmark: Benchmark
    cases: str
    values: Mapping[str, Any]
    exam: bool = False

    @property
    def folder(self) -> str:
        """The evaluation's folder, relative to the suite's; in an exam each doctor has its own."""
        doctor, benchmark = slug(self.doctor), slug(self.benchmark.name)
        return f"{doctor}/{benchmark}" if self.exam else f"runs/{benchmark}/{doctor}"


@dataclass(frozen=True)
class Prepared:
    """A suite of which every evaluation was opened once; nothing is written yet."""

    asked: Asked
    suite: Suite
    found: Mapping[str, str]
    lacks: Sequence[Lack]
    account: str
    arms: Sequence[Mapping[str, Any]]
    loads: Sequence[Foretold]
    absent: Sequence[str]  # where a doctor that is an anchor does not play
    restricted: bool

    @classmethod
    def of(cls, asked: Asked) -> Prepared:
        """Raises UserError for what the user can mend."""
        suite = asked.made or read(asked.suite)
        found, lacks = placed(suite, asked.suite, asked.data)
        _refuse(asked, lacks, len(found))
        account, restricted = token_hex(8), False
        arms: list[Mapping[str, Any]] = []
        loads: list[Foretold] = []
        absent: list[str] = []
        begun: set[str] = set()
        for arm in all_arms(asked, suite, found):
            settings = _settings(arm)
            if arm.benchmark.name in begun:  # its anchors play with the first doctor
                how = settings.evaluation.model_copy(update={"anchors": False})
                settings = settings.model_copy(update={"evaluation": how})
            try:
                opened = _opened(arm, settings, account)
            except UserError as error:
                if not (asked.noted and is_anchor(settings)):
                    raise
                absent.append(str(error))
                continue
            begun.add(arm.benchmark.name)
            with closing(opened.supporting):
                restricted |= opened.source.restricted
                own = {"doctor": arm.doctor, "played_as": opened.label, "folder": arm.folder}
                arms.append(
                    {**own, "benchmark": arm.benchmark.name, "settings": opened.asked(settings)}
                )
                loads.append(Foretold.of(opened))
        if not arms:
            raise UserError(absent[0])
        return cls(asked, suite, found, lacks, account, arms, loads, absent, restricted)

    def create(self, out: Path) -> None:
        """Makes the suite's folder."""
        asked, seed = self.asked, self.arms[0]["settings"]["seed"]
        about = ("tests", "against", "gap")
        benchmarks = [
            {"name": each.name, "domain": each.domain, "cases": self.found[each.name]}
            | {key: value for key in about if (value := getattr(each, key))}
            for each in self.suite.benchmarks
            if each.name in self.found
        ]
        config = {
            **{"kind": report.KIND, "account": self.account, "suite": asked.suite},
            **{"about": self.suite.about, "seed": seed},
            **{"left_out": [lack.benchmark.name for lack in self.lacks]},
            **{"benchmarks": benchmarks, "arms": list(self.arms)},
            **({report.EXAM: {**asked.noted, "notes": self.notes()}} if asked.noted else {}),
        }
        Run.create(out, config, versions({"run": seed}), restricted=self.restricted).close()

    def notes(self) -> list[str]:
        """What is noted of an exam, with the stations that are left out and where none plays."""
        left = [*map(str, self.lacks), *self.absent]
        return [*self.asked.noted["notes"], *(f"{scorecard.LEFT_OUT}, {each}" for each in left)]


def start(asked: Asked, out: Path, live: Live) -> Run:
    """Evaluates `asked.doctors` on the suite, in the new folder `out`.

    Raises UserError for what the user can mend, before anything is written: each benchmark is
    opened for each doctor before the first one is played.
    """
    free(out)
    prepared = Prepared.of(asked)
    prepared.create(out)
    for line in foretell(prepared) if asked.noted else map(_left_out, prepared.lacks):
        live.note(line)
    return _go_on(out, live, {})


def foretell(prepared: Prepared) -> list[str]:
    """What the suite will ask for and cost, what is left out, and who does not play where."""
    left = map(_left_out, [*prepared.lacks, *prepared.absent])
    return [*left, *lines(prepared.loads, prepared.arms[0]["settings"])]


def _left_out(what: object) -> str:
    return f"{scorecard.LEFT_OUT}   {what}"


def is_anchor(settings: PolicySettings) -> bool:
    """Whether the policy's name can be no other than an anchor's: those alone have a blank."""
    named = resolve(settings.policy)
    return named.place is None and not named.endpoint and " " in named.name


def resume(path: Path, live: Live, changes: Mapping[str, Any] | None = None) -> Run:
    """Goes on with an interrupted suite; benchmarks that were played are not played again.

    `changes` are settings that may change in between (`settings.revised`), of every evaluation.
    """
    return _go_on(path, live, changes or {})


def _refuse(asked: Asked, lacks: Sequence[Lack], found: int) -> None:
    """Raises UserError where benchmarks are missing and the user did not say to go on without."""
    if not lacks or (asked.partial and found):
        return
    told = "\n  ".join(map(str, lacks))
    count = f"{len(lacks)} of its {len(lacks) + found} benchmarks"
    rest = "; --partial evaluates the others" if found else ""
    raise UserError(f"suite {asked.suite} lacks {count}{rest}\n  {told}")


def all_arms(asked: Asked, suite: Suite, found: Mapping[str, str]) -> Iterator[Arm]:
    """Benchmark by benchmark, every doctor with every strategy."""
    asked_strategy = in_full(asked.values.get("strategy"))
    named = _strategies(asked_strategy.get("name"))
    short = labels(list(dict.fromkeys(asked.doctors)))
    if len(short) < len(asked.doctors):
        raise UserError("a doctor is named twice; name each once")
    _refuse_alike([*short.values()])
    for benchmark in suite.benchmarks:
        if benchmark.name not in found:
            continue
        shared = _over(benchmark.settings, suite.settings)
        shared = filled(shared, asked.data or "")
        for policy, name in short.items():
            usual = _over(asked.of_endpoints, shared) if resolve(policy).endpoint else shared
            own = {**_over(asked.values, usual), "cases": found[benchmark.name]}
            for strategy in named:
                values = {**own, "policy": policy}
                if strategy is not None:
                    values["strategy"] = _tuned(asked_strategy, strategy, named)
                doctor = f"{strategy} ({name})" if strategy else name
                yield Arm(doctor, benchmark, found[benchmark.name], values, bool(asked.noted))


def _refuse_alike(names: Sequence[str]) -> None:
    """Raises UserError for doctors whose runs would share a folder."""
    folders = [slug(name) for name in names]
    for place, folder in enumerate(folders):
        if folder in folders[:place]:
            other = names[folders.index(folder)]
            raise UserError(
                f"the runs of '{other}' and '{names[place]}' would share the folder {folder}; "
                "evaluate them one by one, or give one of them another name"
            )


def _strategies(given: Any) -> list[str | None]:
    """The strategies that "naive,rag" or a list names; one None for none. Raises UserError."""
    names = given.split(",") if isinstance(given, str) else list(given or ())
    named = [str(name).strip() for name in names]
    for name in named:
        strategies.load(name)
    if len(set(named)) < len(named):
        raise UserError("strategy names one of them twice; name each once")
    return [*named] or [None]


def _tuned(given: Mapping[str, Any], strategy: str, named: Sequence[str | None]) -> dict[str, Any]:
    """The setting `strategy` for one of those `named`: its name, and what it knows of `given`.

    A setting that none of `named` knows stays, so that the strategy refuses it.
    """
    known = {key for name in named if name for key in strategies.load(name).settings.model_fields}
    own = strategies.load(strategy).settings.model_fields
    tuned = {key: value for key, value in given.items() if key in own or key not in known}
    return {**tuned, "name": strategy}


def _over(values: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """`usual` with `values` over it; where these name another environment, its settings alone."""
    mine, theirs = in_full(values.get("environment")), in_full(usual.get("environment"))
    other = "name" in mine and mine["name"] != theirs.get("name")
    return {**merge(usual, values), "environment": mine if other else merge(theirs, mine)}


def _settings(arm: Arm) -> PolicySettings:
    """The settings of the arm's evaluation. Raises UserError that names the benchmark."""
    try:
        return with_user_config(PolicySettings, arm.values)
    except UserError as error:
        raise UserError(f"{arm.benchmark.name}: {error}") from None


def _opened(arm: Arm, settings: PolicySettings, account: str) -> evaluation.Evaluation:
    """The evaluation of an arm. Raises UserError that names the benchmark."""
    try:
        evaluation.refuse_untrained(settings)
        opened = evaluation.Evaluation.of(settings, account)
        if opened.policy.endpoint:
            opened.players()  # checked in full, as no weights have to be loaded for it
        return opened
    except UserError as error:
        raise UserError(f"{arm.benchmark.name}: {error}") from None


def _go_on(path: Path, live: Live, changes: Mapping[str, Any]) -> Run:
    from workup.report import build as build_report  # matplotlib takes a second to load

    began = time.monotonic()
    with Run.open(path) as run, run.alone():
        if changes:
            arms = run.config["arms"]
            ends = {end for arm in arms for end in arm["settings"]["endpoints"]}
            if missing := [end for end in mapping(changes, "endpoints") if end not in ends]:
                raise unknown("endpoint of this suite", missing[0], ends)
            for arm in arms:
                revised(PolicySettings, arm["settings"], _own(changes, arm["settings"]))
            run.revise({}, changes)
        quiet = Steps(live, several=True)
        try:
            for arm in run.config["arms"]:
                quiet.now = arm["benchmark"]
                _play(run, arm, quiet, changes)
        finally:  # a budget that is spent, or Ctrl-C: what was played is shown all the same
            summary = report.summarise(run, seconds=time.monotonic() - began)
            if scorecard.is_exam(run):
                found = scorecard.figures(run)
                run.write_summary(summary | {"scorecard": found})
                for doctor, told in found["short"].items():
                    live.note(f"{doctor}: {' '.join(told)}")
            else:
                live.table(summary)
            build_report(run)
            live.note(f"report  {run.report}")
    return Run.open(path)


def _own(changes: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The part of `changes` that fits these settings, without endpoints that they do not have."""
    others = {key: new for key, new in changes.items() if key != "endpoints"}
    reached = mapping(changes, "endpoints")
    own = {end: new for end, new in reached.items() if end in settings["endpoints"]}
    return {**others, "endpoints": own} if own else others


def _play(run: Run, arm: Mapping[str, Any], live: Live, changes: Mapping[str, Any]) -> None:
    """Plays one evaluation, or what is left of it."""
    path, values = run.path / arm["folder"], arm["settings"]
    if is_run(path):
        own = _own(changes, values)
        if own or not _played(path):
            evaluation.resume(path, live, own).close()
        return
    for changed in run.config.get("changed", ()):
        given = {key: new for key, new in changed.items() if key != "when"}
        values = merge(values, _own(given, values))
    evaluation.start(build(PolicySettings, values), path, live, run.account).close()


def _played(path: Path) -> bool:
    """Whether an evaluation is over and none of its episodes failed."""
    with Run.open(path) as run:
        doctors = run.summary.get("doctors", {}).values()
        return bool(doctors) and not any(each["endings"].get(Ending.FAILED) for each in doctors)
