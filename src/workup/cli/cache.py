"""`workup cache`: what the models have answered so far, and what that cost."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workup.cli.common import group, seconds
from workup.core.errors import UserError, unknown
from workup.core.text import several, unsteering

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from workup.roles.replies import CallCost, Replies


app = group("The answers of models in supporting roles, and their costs.")
Folder = Annotated[
    Path | None,
    typer.Option("--cache", help="the cache's folder [default: $WORKUP_CACHE or ~/.cache/workup]"),
]
Role = Annotated[str | None, typer.Option(help="only answers in this role, for example judge")]
Model = Annotated[
    str | None, typer.Option(help="only answers of this model, as `workup cache show` names it")
]


@app.command()
def show(
    key: Annotated[
        str | None, typer.Argument(help="the key of one answer, or how it begins")
    ] = None,
    cache: Folder = None,
) -> None:
    """What is kept, by role and model; or one request and its answer."""
    from rich.console import Console

    with _opened(cache) as replies:
        console = Console(highlight=False)
        if key is None:
            _show_all(replies, console)
        else:
            _show_one(replies, key, console)


@app.command()
def prune(
    older: Annotated[
        str | None, typer.Option(help="only answers unused for this long: 12h, 30d, 8w")
    ] = None,
    larger: Annotated[
        str | None, typer.Option(help="only until the cache has this size: 500MB, 2GB")
    ] = None,
    role: Role = None,
    model: Model = None,
    dry: Annotated[bool, typer.Option("--dry-run", help="say what would go, and keep it")] = False,
    cache: Folder = None,
) -> None:
    """Take answers out, those unused for longest first. The ledger keeps what was paid."""
    from workup.roles import upkeep
    from workup.runs.words import size

    if older is larger is role is model is None:
        raise UserError(
            "say what to take out: --older 30d, --larger 2GB, --role NAME, --model NAME"
        )
    limit = None if larger is None else _size(larger)
    which = upkeep.Which(role, model, seconds(older, "--older") if older else 0.0)
    with _opened(cache) as replies:
        count, taken = upkeep.prune(replies, which, limit, dry=dry)
    print(f"{'would take' if dry else 'took'} out {_answers(count)}, {size(taken)}")


@app.command()
def export(
    file: Annotated[Path, typer.Argument(help="the JSON lines file to write")],
    role: Role = None,
    model: Model = None,
    cache: Folder = None,
) -> None:
    """Write kept answers with their requests: a replay set."""
    from workup.roles import upkeep

    with _opened(cache) as replies:
        count = upkeep.export(replies, file, upkeep.Which(role, model))
    print(f"{file}: {_answers(count)}")


@app.command("import")
def take_in(
    file: Annotated[Path, typer.Argument(help="a file that `workup cache export` wrote")],
    cache: Folder = None,
) -> None:
    """Add the answers of an exported file to those that are kept."""
    from workup.roles import upkeep

    upkeep.look(file)  # before a cache is made
    with _opened(cache, new=True) as replies:
        new, total = upkeep.take_in(replies, file)
    print(f"{new:,} of {total:,} answers are new")


@app.command()
def costs(
    run: Annotated[
        str | None,
        typer.Option(help="by role and model, for this run folder, prepared file or name"),
    ] = None,
    cache: Folder = None,
) -> None:
    """What calls took: how many were sent or cached, tokens, money."""
    from rich.console import Console

    with _opened(cache) as replies:
        if run is None:
            names = replies.names()
            runs = replies.runs()
            rows = [(_shown(run, names), _total(replies.costs(run))) for run in runs]
        else:
            rows = [(f"{row.role} · {row.model}", row) for row in replies.costs(_run(run, replies))]
    Console(highlight=False).print(_costs("run" if run is None else "role · model", rows))


@contextmanager
def _opened(cache: Path | None, *, new: bool = False) -> Iterator[Replies]:
    """The cache in `cache` or the user's; with `new` it is made where there is none."""
    from workup.core.disk import users_cache
    from workup.roles.replies import FILE, Replies

    path = (cache or users_cache()) / FILE
    if not new and not path.exists():
        raise UserError(
            f"nothing is kept in {path} (another folder: --cache, or the variable WORKUP_CACHE)"
        )
    replies = Replies(path)
    try:
        yield replies
    finally:
        replies.close()


def _show_all(replies: Replies, console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    from workup.roles import upkeep
    from workup.runs.words import size

    table = Table("role", "model", box=None, pad_edge=False, header_style="bold")
    for name in ("answers", "size", "since", "last used"):
        table.add_column(name, justify="right")
    shelves = upkeep.shelves(replies)
    for shelf in shelves:
        table.add_row(
            Text(unsteering(shelf.role)),
            Text(unsteering(shelf.model)),
            f"{shelf.entries:,}",
            size(shelf.size),
            _date(shelf.created)[:10],
            _date(shelf.used)[:10],
        )
    console.print(table)
    entries, whole = sum(shelf.entries for shelf in shelves), sum(shelf.size for shelf in shelves)
    console.print(
        f"{replies.path}: {_answers(entries)}, {size(whole)}", soft_wrap=True, markup=False
    )


def _show_one(replies: Replies, key: str, console: Console) -> None:
    from workup.roles import upkeep

    entry = upkeep.entry(replies, key)
    request, reply = dict(entry.request), dict(entry.reply)
    messages, text = request.pop("messages"), reply.pop("text")
    facts = {
        "key": entry.key,
        **request,
        "created": _date(entry.created),
        "last used": _date(entry.used),
        **reply,
    }
    parts = [f"{name}: {value}" for name, value in facts.items() if value != ""]
    parts += [f"\n[{message['role']}]\n{message['content']}" for message in messages]
    shown = unsteering("\n".join([*parts, f"\n[answer]\n{text}"]))  # a model wrote some of this
    console.print(shown, markup=False, soft_wrap=True)


def _costs(first: str, rows: Sequence[tuple[str, CallCost]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(first, box=None, pad_edge=False, header_style="bold", show_footer=len(rows) > 1)
    total = _total([row for _, row in rows])
    for name, cells in _columns(total).items():
        table.add_column(name, cells, justify="right")
    for label, row in rows:
        table.add_row(Text(unsteering(label)), *_columns(row).values())
    return table


def _columns(row: CallCost) -> dict[str, str]:
    return {
        "calls": f"{row.calls:,}",
        "from cache": f"{row.hits:,}",
        "tokens read": f"{row.prompt_tokens:,}",
        "written": f"{row.completion_tokens:,}",
        "cost": f"{row.cost:.4f}",
    }


def _total(rows: Sequence[CallCost]) -> CallCost:
    from workup.roles.replies import CallCost

    numbers = ("calls", "hits", "prompt_tokens", "completion_tokens", "cost")
    return CallCost("", "", **{name: sum(getattr(row, name) for row in rows) for name in numbers})


def _shown(run: str, names: Mapping[str, str]) -> str:
    """The folder or file of a run in the ledger, else the run's name there.

    Below the working directory the path is relative. A folder whose run was made again has several
    names in the ledger, so the name is added.
    """
    name = names.get(run, run)
    path = Path(name)
    if path.is_absolute() and path.is_relative_to(Path.cwd()):
        name = str(path.relative_to(Path.cwd()))
    return f"{name} ({run})" if list(names.values()).count(names.get(run, "")) > 1 else name


def _run(name: str, replies: Replies) -> str:
    """The run's name in the ledger: as given, a run folder's account, or the path of what was made.

    Of a folder that is gone, the last run that was there.
    """
    from workup.runs import Run
    from workup.runs.folder import is_run

    known = replies.runs()
    account = str(Run.open(name).config.get("account", "")) if is_run(Path(name)) else ""
    path = str(Path(name).resolve())
    gone = [run for run, folder in replies.names().items() if folder == path and not account]
    for candidate in (name, account, path, *gone[-1:]):
        if candidate in known:
            return candidate
    if account:
        raise UserError(
            f"{name} has called no model; `workup cache costs` lists the runs that have"
        )
    shown = [_shown(run, replies.names()) for run in known]
    raise unknown("run in the ledger", name, shown, more="`workup cache costs` lists all")


def _size(text: str) -> int:
    from pydantic import ByteSize, TypeAdapter

    if not re.fullmatch(r"\d{1,9}(\.\d{1,9})? ?[KMGT]?B", text.strip(), re.IGNORECASE):
        raise UserError(f"--larger {text}: a number and B, KB, MB, GB or TB, for example 2GB")
    return TypeAdapter(ByteSize).validate_python(text.strip())


def _answers(count: int) -> str:
    return several(count, "answer")


def _date(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"
