"""`workup claims`: runs what would decide a paper's claims, and says what it found."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workup.cli import complete
from workup.cli.common import seconds
from workup.core.errors import UserError, WorkupError
from workup.core.text import several

if TYPE_CHECKING:
    from rich.console import Console

    from workup.studies.claims.deciding import Deciding


PaperName = Annotated[
    str | None,
    typer.Argument(
        help="craft, promed … or a YAML file of claims [default: list all]",
        autocompletion=complete.papers,
    ),
]


def claims(
    paper: PaperName = None,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="settings of every run, as in steps=200"),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="a claim or a set-up; can be given several times")
    ] = None,
    scale: Annotated[str, typer.Option(help="tiny, small or paper")] = "tiny",
    seeds: Annotated[int, typer.Option(min=1, help="of every arm")] = 8,
    first: Annotated[int, typer.Option(min=0, help="the first seed")] = 0,
    most: Annotated[
        int, typer.Option(min=0, help="so many where --seeds are too few for the paper's effect")
    ] = 0,
    budget: Annotated[
        str | None, typer.Option(help="stop in time, as in 30m or 2h10m; the same command goes on")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="runs at once [default: one for each core]")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="their folder [default: runs/claims/PAPER-SCALE]")
    ] = None,
    dry: Annotated[
        bool, typer.Option("--dry", help="show the commands, and hours where known; start nothing")
    ] = False,
) -> None:
    """Decide a paper's claims: train its arms, several seeds each."""
    from rich.console import Console

    from workup.studies import claims as known
    from workup.studies.claims import ahead
    from workup.studies.claims.deciding import Deciding
    from workup.studies.claims.queue import Queue
    from workup.studies.claims.trial import ClaimsPlan

    console = Console(highlight=False)
    if paper is None:
        _list(console)
        return
    if scale not in known.SCALES:
        raise UserError(f"--scale {scale}: write {', '.join(known.SCALES)}")
    if 0 < most < seeds:
        raise UserError(f"--most {most} is below --seeds {seeds}; raise it, or leave it out")
    folder = out or Path("runs") / "claims" / f"{Path(paper).stem}-{scale}"
    whole, more = known.read(paper), tuple(_settings(words or ()))
    chosen = whole.chosen(only) if only else ()
    plan = ClaimsPlan(whole, scale, folder, seeds, first, most, more, chosen)
    if not plan.setups:
        raise UserError(f"{paper}: no claim can be run at --scale {scale}")
    limit = None if budget is None else seconds(budget, "--budget")
    deciding = Deciding(plan, Queue(jobs or os.cpu_count() or 1, limit), console)
    ahead.refuse(plan, paper)
    if dry:
        deciding.foretell()
        return
    _run(deciding, console)


def _run(deciding: Deciding, console: Console) -> None:
    """Runs the plan and shows the verdicts. Raises WorkupError, after that, where a run failed."""
    folder = deciding.plan.folder
    try:
        deciding.run().show(console)
    except KeyboardInterrupt:
        console.print(f"stopped; the same command goes on ({folder})", markup=False)
        raise
    over = f"the budget is over; the same command goes on ({folder})\n" * deciding.queue.short
    console.print(f"{over}page  {folder / 'claims.html'}", soft_wrap=True, markup=False)
    if failed := deciding.queue.failed:
        job, why = next(iter(failed.items()))
        first = f"{job.name}{', …' * (len(failed) > 1)}"
        raise WorkupError(f"{several(len(failed), 'run')} failed: {first} ({job.log}: {why})")


def _settings(words: list[str] | tuple[str, ...]) -> list[str]:
    """The words, which must be settings of `workup train`. Raises UserError."""
    from workup.runs.settings import Settings, build, read

    given = read(words)
    decided = ("method", "seed", "policy", "cases", "out")
    if named := next((key for key in decided if key in given), None):
        raise UserError(f"{named}= is decided by the set-up and --first; leave it out")
    build(Settings, {**given, "method": "craft"})  # of its own method each run reads them again
    return [*words]


def _list(console: Console) -> None:
    from rich.table import Table

    from workup.studies import claims as known

    for name in known.names():
        console.print(f"workup claims {name}", style="bold", markup=False)
        claims = known.read(name).claims
        table = Table.grid(padding=(0, 2))
        # Ids are typed, so they stay whole.
        table.add_column(no_wrap=True)
        for claim in claims:
            table.add_row(f"  {claim.id}", "ours" if claim.ours else claim.place, claim.says)
        console.print(table)
        console.print()
