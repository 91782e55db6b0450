"""What there is to choose from: `workup methods`, `workup settings` and `workup sources`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from workup.cli import complete

if TYPE_CHECKING:
    from rich.console import Console

    from workup.cli.fields import Groups, Owner, Setting

PRINTED = "preset=paper takes what the paper prints; what you set yourself stays"
PIPED = 240  # columns where there is no terminal: a line that is searched with grep stays whole

Name = Annotated[
    str | None,
    typer.Argument(
        help="a method, a strategy, an environment, or part of a setting's name",
        autocompletion=complete.names,
    ),
]


def methods(
    name: Annotated[
        str | None,
        typer.Argument(help="one of them, with all its settings", autocompletion=complete.choices),
    ] = None,
) -> None:
    """List methods, strategies, environments; or one's settings."""
    from workup import environments, methods
    from workup.cli.fields import owner
    from workup.doctors import strategies

    console = _console()
    if name is None:
        console.print("workup train NAME", style="bold")
        for own, *baselines in methods.by_paper().values():
            console.print(f"\n{methods.load(own).paper}", style="dim", markup=False)
            _overview(console, {each: methods.load(each).summary for each in (own, *baselines)})
        console.print("\nworkup evaluate POLICY strategy=NAME", style="bold")
        _overview(console, {each: strategies.load(each).summary for each in strategies.names()})
        console.print("\nworkup evaluate POLICY environment=NAME", style="bold")
        _overview(console, {n: environments.load(n).summary for n in environments.names()})
        return
    found = owner(name)
    console.print(found.title, style="bold", markup=False)
    console.print(f"{found.paper}\n".lstrip(), style="dim", markup=False)
    for heading, listed in _groups(found).items():
        if heading != found.title:
            console.print(heading, style="bold", markup=False)
        _table(console, listed)


def settings(name: Name = None) -> None:
    """List every setting with default, range and sense."""
    from workup import environments, methods
    from workup.cli import fields
    from workup.core.errors import unknown
    from workup.doctors import strategies

    console, groups = _console(), fields.trained() | fields.evaluated()
    if name is None:
        _show(console, groups)
        console.print("reward.…  a method's own: `workup settings METHOD`", markup=False)
        for kind, article in (("strategy", "a"), ("environment", "an")):
            line = f"{kind}.…  {article} {kind}'s own: `workup settings {kind.upper()}`"
            console.print(line, markup=False)
        return
    wanted, owners = name.partition("=")[0], [*methods.names(), *strategies.names()]
    owners += environments.names()
    exact = [fields.owner(wanted)] if wanted in owners or ":" in wanted else []
    groups |= {} if exact else fields.owned(owners)
    matching = {
        heading: [each for each in settings if wanted.lower() in each.name]
        for heading, settings in groups.items()
    }
    found: Groups = {heading: own for each in exact for heading, own in _groups(each).items()}
    found |= {heading: settings for heading, settings in matching.items() if settings}
    if not found:
        every = {each.name for settings in groups.values() for each in settings}
        raise unknown("setting", name, {*every, *owners}, more="`workup settings` lists all")
    _show(console, found)


def sources() -> None:
    """List where cases can come from, with an example of each."""
    from workup.cases import schemes

    console = _console()
    for each in schemes():
        console.print(f"{each.name}:", style="bold", end=" ", markup=False)
        console.print(each.summary, markup=False)
        console.print(f"    --cases {each.example}\n", style="cyan", markup=False, soft_wrap=True)
    console.print("`workup cases SOURCE` shows what is in one.", markup=False)


def _console() -> Console:
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PIPED)


def _overview(console: Console, summaries: Mapping[str, str]) -> None:
    from rich.table import Table

    table = Table(box=None, show_header=False)
    for name, summary in summaries.items():
        table.add_row(f"  {name}", summary)
    console.print(table)


def _groups(owner: Owner) -> Groups:
    """Its own settings, and of a method what `preset=paper` sets, by heading."""
    found: Groups = {owner.title: owner.settings}
    if owner.printed:
        found[PRINTED] = owner.printed
    return found


def _show(console: Console, groups: Mapping[str, Sequence[Setting]]) -> None:
    for heading, settings in groups.items():
        console.print(heading, style="bold", markup=False)
        _table(console, settings)


def _table(console: Console, settings: Iterable[Setting]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False)
    table.add_column(no_wrap=True)
    for each in settings:
        table.add_row(
            f"  {each.typed}", Text.assemble(f"{each.sense}  ", (f"[{each.range}]", "dim"))
        )
    console.print(table)
