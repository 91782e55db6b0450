"""`workup export`: episodes of a run, or cases, as files for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from workup.cli import complete


class ExportHelp(TyperCommand):
    """`workup export --help` ends with the list of formats."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        from workup.interop import exports

        rows = [(name, exports.load(name).summary) for name in exports.names()]
        with formatter.section("Formats"):
            formatter.write_dl(rows)


def export(
    what: Annotated[
        str, typer.Argument(metavar="RUN|CASES", help="a run folder, or cases as in clinic:s")
    ],
    form: Annotated[str, typer.Option("--as", help="the format", autocompletion=complete.formats)],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[COLUMN=VALUE]...",
            help="of a run: which episodes, as in phase=train doctor=policy correct=true",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="a new folder [default: exports/NAME-FORMAT]")
    ] = None,
    of: Annotated[str, typer.Option(help="of cases: test or train")] = "test",
    most: Annotated[
        int | None, typer.Option(min=1, help="of cases: at most so many, evenly spaced")
    ] = None,
    split: Annotated[int, typer.Option(min=0, help="of cases: which fifth is held out")] = 0,
    restricted: Annotated[
        bool, typer.Option("--restricted", help="restricted cases too, in a folder for you alone")
    ] = False,
) -> None:
    """Write episodes or cases as files for other programs."""
    from workup.core.errors import UserError
    from workup.interop import exports
    from workup.interop.exports import material
    from workup.interop.exports.writing import export as write
    from workup.runs.folder import is_run
    from workup.runs.machine import command

    found: material.Chosen | material.Drawn
    chosen = exports.load(form)
    path = Path(what)
    if is_run(path) or ":" not in what:
        found = material.chosen(path, words or ())
    elif words:
        raise UserError(f"'{words[0]}' chooses among a run's episodes, and {what} is no run")
    else:
        found = material.drawn(what, split=split, side=of, most=most)
    made = write(found, chosen, out, restricted=restricted, command=command())
    print(made.folder)
    for name, rows in made.written.rows.items():
        print(f"  {name}: {rows:,} {'row' if rows == 1 else 'rows'}")
