"""`workup review`: people mark episodes without knowing whose they are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from workup.cli.common import group
from workup.core.errors import UserError

app = group("Have people mark episodes without knowing whose they are.")
Review = Annotated[Path, typer.Argument(help="the folder of a review")]


@app.callback()
def review() -> None:
    """Have people mark episodes without knowing whose they are."""


@app.command()
def make(
    runs: Annotated[list[Path], typer.Argument(help="run folders, on the same cases")],
    cases: Annotated[int, typer.Option(min=1, help="how many cases are drawn, at most")] = 50,
    by: Annotated[
        str, typer.Option(help="questions by name, as in accuracy,quality [default: all]")
    ] = "",
    pairs: Annotated[
        bool, typer.Option("--pairs", help="show two doctors' episodes of a case side by side")
    ] = False,
    doctor: Annotated[
        list[str] | None,
        typer.Option(help="whose episodes; may be repeated [default: each run's policy]"),
    ] = None,
    questions: Annotated[
        str | None, typer.Option(help="promed (its five scales), or a YAML file of questions")
    ] = None,
    truth: Annotated[
        bool, typer.Option("--truth/--no-truth", help="show reviewers the recorded diagnosis")
    ] = True,
    seed: Annotated[
        int | None, typer.Option(min=0, help="of cases, order and sides [default: drawn]")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="the review's folder [default: reviews/RUN]")
    ] = None,
) -> None:
    """Draw episodes for a review into a folder of its own."""
    from workup.studies.review import folder, form

    names = [name.strip() for name in by.split(",") if name.strip()]
    asked = form.chosen(form.read(questions), names, pairs=pairs)
    plan = folder.ReviewPlan(asked, cases, pairs, seed, doctor or (), truth)
    made = folder.make(runs, plan, out or Path("reviews") / runs[0].resolve().name)
    whose = ", ".join(each.label for each in made.manifest.doctors)
    what = "pairs" if pairs else "episodes"
    print(f"{len(made.items)} {what} of {len({item.case for item in made.items})} cases: {whose}")
    print(f"seed: {made.manifest.seed}, which reviewers should not know")
    print(f"next: workup view --review {made.path} --reviewer NAME")


@app.command()
def results(
    review: Review,
    csv: Annotated[Path | None, typer.Option(help="write every mark, unblinded, as CSV")] = None,
    parquet: Annotated[Path | None, typer.Option(help="the same as Parquet")] = None,
    json: Annotated[Path | None, typer.Option(help="write all figures as JSON")] = None,
) -> None:
    """Show agreement, means and win rates of a review."""
    from rich.console import Console

    from workup.studies.review import tables
    from workup.studies.review.folder import Review
    from workup.studies.review.results import Results

    found = Results.of(Review.open(review))
    if not found.marks:
        raise UserError(f"{review}: nobody has answered anything yet")
    console = Console(highlight=False)
    for each in tables.shown(found):
        if isinstance(each, str):
            console.print(each, "", markup=False)
        else:
            each.show(console)
    written = {csv: tables.write_csv, parquet: tables.write_parquet, json: tables.write_figures}
    for file, write in written.items():
        if file is not None:
            write(found, file)
            console.print(file, markup=False, soft_wrap=True)
