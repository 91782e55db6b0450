"""`workup prepare`: one step of offline preparation, from a file or source into a file of cases."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workup.cli.common import Endpoints, Strict
from workup.core.errors import UserError
from workup.core.text import several, unsteering

if TYPE_CHECKING:
    from workup.prepare.report import Report
    from workup.prepare.work import Job, PrepareProgress

UNASKED = 10_000  # more cases than this are prepared only if their number is given


def prepare(
    step: Annotated[
        str | None,
        typer.Argument(help="what to do; without it, all steps are listed with their settings"),
    ] = None,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="the step's settings, as in n=8"),
    ] = None,
    cases: Annotated[
        str | None,
        typer.Option(help="a source, a jsonl file of cases, or for extract-case raw reports"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="the jsonl file to make, or to go on with")
    ] = None,
    model: Annotated[
        str, typer.Option(help="endpoint:NAME, a model folder, a hub id, or exact")
    ] = "",
    config: Endpoints = None,
    limit: Annotated[int | None, typer.Option(min=1, help="only the first so many cases")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="cases in flight")] = 16,
    budget: Annotated[
        float | None,
        typer.Option(min=0, help="money that this file may cost, in the prices' currency"),
    ] = None,
    of: Annotated[str, typer.Option(help="which side is prepared: train, test or all")] = "all",
    split: Annotated[int, typer.Option(min=0, help="which fifth the source holds out")] = 0,
    strict: Strict = False,
    replay: Annotated[
        bool,
        typer.Option("--replay", help="answers from the cache alone; fail where there is none"),
    ] = False,
) -> None:
    """Prepare cases with a model: facts, criticality and more.

    The same command goes on where it stopped.
    """
    from workup.prepare import load
    from workup.prepare.inputs import open_input
    from workup.prepare.work import Job
    from workup.runs.settings import build, read

    if step is None:
        _list()
        return
    loaded = load(step)
    if cases is None or out is None:
        raise UserError(
            f"say what to read and what to write: workup prepare {step} --cases SOURCE --out "
            "FILE.jsonl"
        )
    settings = build(loaded.settings, read(words or ()))
    opened = open_input(
        cases, of=of, split=split, limit=limit, reports=loaded.from_reports, strict=strict
    )
    if limit is None:
        _check_few(cases, len(opened))
    _run(Job(step, opened, out, model, settings, concurrency), config, budget, replay)
    print(*opened.source.notes, sep="\n", file=sys.stderr)


def _check_few(cases: str, count: int) -> None:
    """Raises UserError for many cases without a limit: they cost much, so it has to be given."""
    if count > UNASKED:
        raise UserError(
            f"{cases} has {count:,} cases: say how many to prepare, as in --limit 100 "
            f"(--limit {count} is all of them)"
        )


def _run(job: Job, config: Path | None, budget: float | None, replay: bool) -> None:
    from workup.prepare.work import prepare
    from workup.roles.config import Config
    from workup.roles.run_models import RunModels

    found = Config.find(config)
    if budget is not None:
        found = found.model_copy(update={"budget": budget})
    run_models = RunModels(
        found, run=str(job.out.resolve()), restricted=job.input.source.restricted, replay=replay
    )
    try:
        with _progress() as show:
            report = prepare(job, run_models.open, show)
        _show(report, job.out)
    except KeyboardInterrupt:
        print(
            "\nstopped; everything finished is kept. Go on with the same command.", file=sys.stderr
        )
        raise
    finally:
        for row in run_models.costs():
            print(
                (
                    "{role} ({model}): {calls} calls, {hits} answers from the cache, cost "
                    "{cost:.4g}"
                ).format(**row)
            )
        run_models.close()


@contextmanager
def _progress() -> Iterator[Callable[[PrepareProgress], None]]:
    """A bar on a terminal, nothing elsewhere."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("")

        def show(progress: PrepareProgress) -> None:
            text = f"{progress.kept} kept, {progress.dropped} dropped, {progress.failed} failed"
            bar.update(task, completed=progress.seen, total=progress.total, description=text)

        yield show


def _show(report: Report, out: Path) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        "",
        "cases",
        "for example",
        title=Text(unsteering(f"{report.step} ({report.model})")),
        title_justify="left",
        box=None,
    )
    for what, count, examples in report.rows():
        # Text, since a failure's words are a server's and may hold square brackets
        cases = Text(unsteering(examples), overflow="ellipsis", no_wrap=True)
        table.add_row(Text(unsteering(what)), str(count), cases)
    Console(highlight=False).print(table)
    rest = "" if report.complete else "; the same command tries the rest again"
    print(f"{out}: {report.kept} of {several(report.cases, 'case')}{rest}")


def _list() -> None:
    from rich.console import Console
    from rich.table import Table

    from workup.prepare import load, names
    from workup.prepare.steps import StepSettings

    console = Console(highlight=False)
    shared = set(StepSettings.model_fields)
    steps = {f"{name}: {(step := load(name)).summary}": step.settings for name in names()} | {
        "every step": StepSettings
    }
    for title, settings in steps.items():
        console.print(title, style="bold", soft_wrap=True)
        table = Table(box=None, show_header=False)
        for key, field in settings.model_fields.items():
            if title == "every step" or key not in shared:
                table.add_row(f"  {key}={field.default}", field.description or "")
        console.print(table, "")
