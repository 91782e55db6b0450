"""`workup audit`: how far the models in supporting roles can be trusted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workup.cli.common import Endpoints, group
from workup.core.errors import RolloutError, UserError
from workup.rl.running import run_to_end

if TYPE_CHECKING:
    from workup.core.ports import Model
    from workup.environments.exams.rages import RagesSettings
    from workup.studies.audits.disease_orders import Adversarial
    from workup.studies.audits.judge import Audit
    from workup.studies.audits.rages import Orders, RagesAudit

    Ask = Callable[[Model, Callable[[], None]], Coroutine[None, None, Audit]]

RECORDED = 0.5  # share of each record that the simulator knows by default

app = group("Measure how far to trust the models in supporting roles.")


@app.callback()
def audit() -> None:
    """Measure how far to trust the models in supporting roles."""


@app.command()
def judge(
    model: Annotated[str, typer.Option(help="endpoint:NAME, a model folder, or a hub id")],
    cases: Annotated[
        str, typer.Option(help="where the probes come from; clinic:pathology tries all judgements")
    ] = ("clinic:pathology"),
    labels: Annotated[
        Path | None,
        typer.Option(help="a review: what most reviewers say, in place of probes and --cases"),
    ] = None,
    n: Annotated[int, typer.Option("--n", min=1, help="probes of each judgement")] = 200,
    seed: Annotated[int, typer.Option(help="which probes")] = 0,
    config: Endpoints = None,
    out: Annotated[Path | None, typer.Option(help="write everything as JSON")] = None,
) -> None:
    """Compare a model's verdicts with the exact judge's or people's.

    The probes are those whose exact verdict is known. With --labels they are the diagnoses of a
    review (`workup review`), and all of them are asked about.
    """
    from rich.console import Console
    from rich.progress import Progress

    from workup.roles.config import Config
    from workup.roles.desk import Desk

    ask, name, restricted = _of_reviewers(labels) if labels else _of_probes(cases, n, seed)
    desk = Desk(Config.find(config), f"audit judge {model} {name}", restricted=restricted)
    try:
        with Progress(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task("probes", total=None)
            found = run_to_end(ask(desk.open(model), lambda: progress.advance(task)))
    finally:
        desk.close()
    console = Console(highlight=False)
    console.print(found.table())
    for judgement in found.versions:
        console.print("", found.confusion(judgement))
    for reason, count in found.failures().most_common(5):
        console.print(f"{count} × {reason}", markup=False)
    if out is not None:
        found.write(out)
        console.print(out, markup=False)
    _answered(found.failures(), len(found.compared))


def _of_probes(cases: str, n: int, seed: int) -> tuple[Ask, str, bool]:
    """What to ask a model, what that is called, and whether its cases are restricted."""
    from workup.cases import open_source
    from workup.studies.audits.judge import audit

    source = open_source(cases)
    name = f"{cases} {n} {seed}"
    return lambda model, tick: audit(model, source, n, seed, tick), name, source.restricted


def _of_reviewers(review: Path) -> tuple[Ask, str, bool]:
    """The same for what reviewers have said."""
    from workup.studies.audits.labels import audit
    from workup.studies.review.folder import Review
    from workup.studies.review.results import Results

    results = Results.of(Review.open(review))
    restricted = results.review.manifest.restricted
    return lambda model, tick: audit(model, results, tick), f"labels {review}", restricted


@app.command()
def simulator(
    cases: Annotated[str, typer.Option(help="the source whose test cases are asked about")],
    patient: Annotated[
        str, typer.Option(help="embedded, default, checked, persona, or record")
    ] = "default",
    model: Annotated[
        str | None, typer.Option(help="who plays: endpoint:NAME, a model folder, or a hub id")
    ] = None,
    checker: Annotated[
        str | None, typer.Option(help="who judges, and checks facts for the checked patient")
    ] = None,
    n: Annotated[
        int, typer.Option("--n", "-n", min=1, help="questions, the four kinds in turn")
    ] = 200,
    seed: Annotated[int, typer.Option(help="which questions, and the personas")] = 0,
    config: Endpoints = None,
    out: Annotated[Path | None, typer.Option(help="write everything as JSON")] = None,
) -> None:
    """Measure how far a simulated patient or record can be trusted.

    Measured are relevance, factuality and leakage of the diagnosis.
    """
    from rich.console import Console
    from rich.progress import Progress

    from workup.cases import open_source
    from workup.roles.config import Config
    from workup.roles.desk import Desk
    from workup.studies.audits.simulator import Simulator, audit

    source = open_source(cases)
    name = f"audit simulator {patient} {model} {checker} {cases} {n} {seed}"
    desk = Desk(Config.find(config), name, restricted=source.restricted)
    try:
        player, judge = (desk.open(spec) if spec else None for spec in (model, checker))
        with Progress(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task("questions", total=n)
            staged = Simulator(patient, source, player, judge, seed)
            found = run_to_end(
                audit(staged, source, n, judge, seed, lambda: progress.advance(task))
            )
    finally:
        desk.close()
    console = Console(highlight=False)
    console.print(found.table())
    for note in found.notes():
        console.print(note, markup=False)
    if out is not None:
        found.write(out, texts=not source.restricted)
        console.print(out, markup=False)
    _answered(found.failures(), len(found.judged))


@app.command()
def rages(
    base: Annotated[
        str, typer.Option(help="a folder of `workup index build --kind exams`, or clinic")
    ] = "clinic",
    tables: Annotated[
        Path | None, typer.Option(help="another table of statistics that the base is compared with")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="who writes what is missing: endpoint:NAME, a folder, a hub id"),
    ] = None,
    nearest: Annotated[
        str, typer.Option(help="how the base's disease is found: exact or embedding")
    ] = "exact",
    recorded: Annotated[
        float, typer.Option(min=0, max=1, help="share of each record that the simulator knows")
    ] = RECORDED,
    n: Annotated[int, typer.Option("--n", "-n", min=1, help="orders of each configuration")] = 400,
    seed: Annotated[int, typer.Option(help="which orders, and which part of the records")] = 0,
    adversarial: Annotated[
        bool, typer.Option("--adversarial", help="order diseases: is the diagnosis given away?")
    ] = False,
    cases: Annotated[
        str, typer.Option(help="whose test cases are ordered for, with --adversarial")
    ] = "clinic:pathology",
    config: Endpoints = None,
    out: Annotated[Path | None, typer.Option(help="write everything as JSON")] = None,
) -> None:
    """Measure how often simulated examination results are right.

    The figures are by source of a result. Right is the patient's own result, which the pathology
    wing knows. With --adversarial, measure instead how often an order that names a disease tells
    whether the patient has it; without --model a candid writer answers whatever is asked.
    """
    from workup.cases.files import existing
    from workup.environments.exams.exam_base import ExamBase
    from workup.environments.exams.rages import RagesSettings
    from workup.runs.settings import build
    from workup.studies.audits.rages import WING, Orders, compare

    if not adversarial and cases != WING:
        raise UserError(f"only the results of {WING} are known: leave out --cases")
    if adversarial and (tables or recorded != RECORDED):
        raise UserError("--adversarial orders diseases: leave out --tables and --recorded")
    settings = build(RagesSettings, {"base": base, "nearest": nearest})
    found: Adversarial | RagesAudit
    if adversarial:
        found = _diseases(settings, cases, n, seed, model, config)
    else:
        found = _ordered(Orders(settings, n, seed, recorded), model, config)
        if tables is not None:
            found = replace(found, compared=compare(ExamBase.open(base), existing(str(tables))))
    _reported(found, out)


def _reported(found: Adversarial | RagesAudit, out: Path | None) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    for shown in found.tables():
        console.print(shown)
    for note in found.notes():
        console.print(note, markup=False)
    if out is not None:
        found.write(out)
        console.print(out, markup=False)
    _answered(found.failures(), found.asked)


def _ordered(orders: Orders, model: str | None, config: Path | None) -> RagesAudit:
    from rich.console import Console
    from rich.progress import Progress

    from workup.cases import open_source
    from workup.roles.config import Config
    from workup.roles.desk import Desk
    from workup.studies.audits.rages import WING, audit

    desk = Desk(Config.find(config), f"audit rages {model} {orders}")
    try:
        writer = desk.open(model) if model else None
        with Progress(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task("orders", total=orders.n * len(orders.configurations(writer)))
            return run_to_end(
                audit(open_source(WING), orders, writer, lambda: progress.advance(task))
            )
    finally:
        desk.close()


def _diseases(
    settings: RagesSettings, cases: str, n: int, seed: int, model: str | None, config: Path | None
) -> Adversarial:
    from rich.console import Console
    from rich.progress import Progress

    from workup.cases import open_source
    from workup.roles.config import Config
    from workup.roles.desk import Desk
    from workup.studies.audits.disease_orders import audit

    source = open_source(cases)
    name = f"audit rages --adversarial {model} {cases} {n} {seed}"
    desk = Desk(Config.find(config), name, restricted=source.restricted)
    try:
        writer = desk.open(model) if model else None
        with Progress(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task("orders", total=n)
            return run_to_end(
                audit(source, settings, n, seed, writer, lambda: progress.advance(task))
            )
    finally:
        desk.close()


@app.command()
def names(
    file: Annotated[
        Path,
        typer.Argument(
            help="names and their ICD-10 codes: a table with tabs or commas, or JSON lines"
        ),
    ],
    columns: Annotated[
        str, typer.Option(help="headings of names and codes, as in label,xref; else the first two")
    ] = "",
    by: Annotated[
        str, typer.Option(help="heading of a column by which the names are also told apart")
    ] = "",
    release: Annotated[str, typer.Option(help="cm (ICD-10-CM) or who")] = "cm",
    names: Annotated[
        str, typer.Option(help="a file of further names that may be used: FILE or FILE#NAMES,CODES")
    ] = "",
    model: Annotated[
        str | None,
        typer.Option(
            help="who codes what is not found as it stands: endpoint:NAME, a folder, a hub id"
        ),
    ] = None,
    config: Endpoints = None,
) -> None:
    """Measure how often disease names get the right ICD-10 code.

    Right is the code that a curator gave them.
    """
    from rich.console import Console

    from workup.cases.files import existing
    from workup.metrics.icd_distance import load_tree
    from workup.metrics.name_files import read, synonyms
    from workup.metrics.naming import Coder, known_names
    from workup.roles.config import Config
    from workup.roles.desk import Desk
    from workup.studies.audits.naming import agreement, audit, table, together

    icd = load_tree(release)
    headings = [name.strip() for name in columns.split(",") if name.strip()]
    right, left_out = together(read(existing(str(file)), icd, headings, by))
    more = synonyms(names, icd, known_names(icd))
    desk = Desk(Config.find(config), f"audit names {file} {model}")
    try:
        coder = Coder(icd, model=desk.open(model) if model else None, more=more)
        mapped, failed = run_to_end(audit(coder, right))
    finally:
        desk.close()
    console = Console(highlight=False, soft_wrap=True)
    console.print(table(mapped, icd))
    console.print(agreement(mapped, coder))
    console.print(
        f"{left_out:,} rows have no code of this release, {failed:,} names were given up by the "
        "model"
    )


def _answered(failures: Counter[str], asked: int) -> None:
    """Raises RolloutError, with the commonest reason, if the model answered nothing of an audit."""
    if asked and failures.total() == asked:
        raise RolloutError(f"all {asked} probes failed: {failures.most_common(1)[0][0]}")
