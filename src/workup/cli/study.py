"""`workup study` and `workup audit`: one command for each study or audit that is found.

Words without `=` say what is studied; all settings are typed as `key=value`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from workup.cli.common import Endpoints

if TYPE_CHECKING:
    from workup.studies.base.task import Room

Cases = Annotated[str | None, typer.Option(help="the source whose test cases are taken")]
Out = Annotated[
    Path | None,
    typer.Option("--out", help="folder for the numbers and the page [default: by name and cases]"),
]


class _Listed(TyperGroup):
    """A group whose commands are the modules of a room; its help lists them with one line each."""

    room: Room

    def list_commands(self, ctx: Any) -> list[str]:
        from workup.studies.base import task

        return task.names(self.room)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        from workup.studies.base import task

        if ctx.resilient_parsing and cmd_name not in task.names(self.room):
            return None  # Tab was pressed behind a name that is not there
        study, about = task.load(self.room, cmd_name), task.summary(self.room, cmd_name)
        own = typer.Typer(rich_markup_mode=None, add_completion=False)
        metavar = f"{study.of.upper()}... [KEY=VALUE]..." if study.of else "[KEY=VALUE]..."
        help = f"{about}\n\n{study.question}"
        own.command(cmd_name, cls=_Described, help=help)(_command(self.room, cmd_name, metavar))
        command = typer.main.get_command(own)
        command.settings = study.settings  # type: ignore[attr-defined]
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        from workup.studies.base import task

        with formatter.section("Commands"):
            names = self.list_commands(ctx)
            formatter.write_dl([(name, task.summary(self.room, name)) for name in names])


class _Studies(_Listed):
    room: Room = "study"


class _Audits(_Listed):
    room: Room = "audit"


class _Described(TyperCommand):
    """The command of one study: its help ends with its settings, read from their model."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        from workup.cli.fields import settings_of

        own = [*settings_of(self.settings)]  # type: ignore[attr-defined]
        with formatter.section("Settings"):
            formatter.write_dl([(each.typed, f"{each.sense} [{each.range}]") for each in own])


def _command(room: Room, name: str, metavar: str) -> Callable[..., None]:
    def command(
        words: Any = None,
        cases: Cases = None,
        config: Endpoints = None,
        out: Out = None,
    ) -> None:
        from rich.console import Console

        from workup.report import live
        from workup.runs.machine import command
        from workup.studies.base import task

        with live.show() as view:
            study = task.load(room, name)
            with task.commissioned(room, name, words or (), cases, view, out, config) as made:
                found = study.run(made)
        console = Console(highlight=False)
        found.show(console)
        page = found.write(made.folder, name, study.question, command())
        console.print(f"page  {page}", soft_wrap=True, markup=False)
        found.check()

    command.__annotations__["words"] = Annotated[
        list[str] | None, typer.Argument(metavar=metavar, help="what is studied, and settings")
    ]
    return command


studies = typer.Typer(
    cls=_Studies,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Study policies: tables, figures as JSON, and a page each.",
)
audits = typer.Typer(
    cls=_Audits,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Measure how far to trust the models in supporting roles.",
)


@studies.callback()
def study() -> None:
    """Study policies: tables, figures as JSON, and a page each."""


@audits.callback()
def audit() -> None:
    """Measure how far to trust the models in supporting roles."""
