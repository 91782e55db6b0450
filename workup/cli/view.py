"""`workup view`: a local page on run folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


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
) -> None:
    """Look at runs in a browser: curves, every episode, every token. Changes nothing in them."""
    from workup.extras import wanted

    for module in ("starlette", "uvicorn"):
        wanted(module, "view")
    from workup.viewer import opened, serve

    serve(opened(runs or (), restricted=restricted), host, port, name or ())
