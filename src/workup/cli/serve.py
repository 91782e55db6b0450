"""`workup serve`: what other programs may call over HTTP."""

from __future__ import annotations

from typing import Annotated

import typer

from workup.cli.common import group

app = group("Serve a library over HTTP.")


@app.callback()
def serve() -> None:
    """Serve a library over HTTP."""


@app.command()
def retrieval(
    library: Annotated[str, typer.Argument(help="an index folder, or clinic:SUBSET")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one")] = 8000,
    host: Annotated[
        str, typer.Option(help="0.0.0.0 lets other machines in: anybody there may then search")
    ] = "127.0.0.1",
    kind: Annotated[
        str,
        typer.Option(
            help="bm25, dense, sparse or hybrid [default: hybrid where there are several]"
        ),
    ] = "",
    topk: Annotated[
        int, typer.Option(min=1, help="passages per query for a request that does not say")
    ] = 3,
    name: Annotated[
        list[str] | None,
        typer.Option(
            help="what else clients may call it; addresses and this machine's name always do"
        ),
    ] = None,
    requests: Annotated[
        int, typer.Option(min=1, help="requests at once; more are told to come back")
    ] = 256,
) -> None:
    """Serve a library's passages as Search-R1's /retrieve does.

    /healthz, /readyz and /metrics report its state.
    """
    from workup.retrieval import local
    from workup.retrieval.server import Limits
    from workup.retrieval.server import serve as listen

    limits = Limits(default_topk=topk, requests=requests)
    listen(lambda: local(library, kind=kind), host, port, limits, name or ())
