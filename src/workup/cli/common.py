"""What several commands share: how cases are named, and help that shows common settings."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer
from typer.core import TyperCommand

from workup.cli import complete
from workup.core.errors import FailuresError, UserError

if TYPE_CHECKING:
    from workup.report.sheets import Sheet

CASES = "SCHEME:REST, as in clinic:s or ddxplus:FOLDER (`workup sources` lists all)"
Source = Annotated[str, typer.Argument(help=CASES, autocompletion=complete.sources)]
Strict = Annotated[bool, typer.Option("--strict", help="stop at the first row that is no case")]
Endpoints = Annotated[
    Path | None,
    typer.Option(
        help="a workup.yaml with the endpoints [default: the one in this folder, or your own]"
    ),
]


UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}  # seconds of each
_TIME = re.compile(r"(?:\d{1,9}(?:\.\d{1,9})?[smhdw]){1,5}")


def seconds(text: str, option: str) -> float:
    """The seconds of "90s", "1.5h", "2h10m" or "30d", as an option has them. Raises UserError."""
    parts = re.findall(r"([\d.]+)(\w)", text) if _TIME.fullmatch(text.strip()) else []
    if not (total := sum(float(number) * UNITS[unit] for number, unit in parts)):
        raise UserError(f"{option} {shlex.quote(text)}: write a time, as in 90s, 2h10m or 30d")
    return total


def write_figures(file: Path, sheet: Sheet) -> None:
    """Writes a table as JSON, with the command, the machine and the commit that made it."""
    from workup.runs.files import write_json
    from workup.runs.machine import command, origin, versions

    made = {"command": command(), "made": origin(versions({}))}
    write_json(file, {**made, "tables": [sheet.as_json()]})


def with_way_on(error: FailuresError, folder: Path) -> FailuresError:
    """The error with what to type next about the run in `folder`."""
    going = f"workup resume {shlex.quote(str(folder))}"
    return FailuresError(
        f"{error}. What was saved is kept: mend the cause, then type `{going}`; to allow more "
        f"failures, `{going} max_failed=MORE`"
    )


def group(help: str) -> typer.Typer:
    """An empty group of commands, which shows its help where no command is named."""
    return typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=help)


class TrainHelp(TyperCommand):
    """`workup train --help` ends with the settings that are changed most, read from their model."""

    model: ClassVar[str] = "Settings"
    common: ClassVar[tuple[str, ...]] = (
        *("preset", "steps", "batch", "group", "lr", "beta", "max_tokens"),
        *("seed", "split", "folds"),
        *("lora.r", "sft.steps", "evaluation.cases", "evaluation.samples", "roles.NAME", "budget"),
    )

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        from workup.cli.fields import settings_of
        from workup.runs import settings

        every = {each.name: each for each in settings_of(getattr(settings, self.model))}
        rows = [(every[name].typed, every[name].sense) for name in self.common]
        with formatter.section("Common settings (all: workup settings)"):
            formatter.write_dl(rows)


class EvaluateHelp(TrainHelp):
    """The same for `workup evaluate`."""

    model = "PolicySettings"
    common = (
        *("environment", "strategy", "max_tokens", "conclude", "seed", "split"),
        *("evaluation.cases", "evaluation.temperature", "roles.NAME", "budget"),
    )
