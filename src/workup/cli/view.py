"""`workup view`: a local page on run folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from workup.core.errors import UserError


def view(
    runs: Annotated[
        list[Path] | None, typer.Argument(help="run folders [default: those in runs/]")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one")] = 8180,
    host: Annotated[
        str, typer.Option(help="0.0.0.0 lets other machines in: whoever there has the link")
    ] = "127.0.0.1",
    name: Annotated[
        list[str] | None,
        typer.Option(help="what else browsers may call it; addresses and localhost always do"),
    ] = None,
    restricted: Annotated[
        bool, typer.Option("--restricted", help="show runs on restricted cases too")
    ] = False,
    review: Annotated[
        Path | None,
        typer.Option(
            help="a folder of `workup review make`, to mark its episodes in place of runs"
        ),
    ] = None,
    reviewer: Annotated[
        list[str] | None,
        typer.Option(help="who reviews, each with a link of their own; may be repeated"),
    ] = None,
) -> None:
    """Look at runs in a browser: curves, every episode, every token. Changes nothing in them.

    With --review people mark the episodes of a review, without knowing whose they are.
    """
    from workup.core.extras import wanted

    for module in ("starlette", "uvicorn"):
        wanted(module, "view")
    from workup.viewer import ServerAddress, opened, serve, serve_review

    place = ServerAddress(host, port, name or ())
    if review is None:
        if reviewer:
            raise UserError("--reviewer belongs to a review: name it, as in --review reviews/mine")
        serve(opened(runs or (), restricted=restricted), place)
        return
    if runs:
        raise UserError("--review shows its own copies of episodes; leave the runs out")
    serve_review(review, reviewer or (), place, restricted=restricted)
