"""`workup audit`: how far the models in supporting roles can be trusted."""

from __future__ import annotations

import typer

app = typer.Typer(add_completion=False, rich_markup_mode=None, help="Measure how far to trust the models in supporting roles.")


@app.callback()
def audit() -> None:
    """Measure how far to trust the models in supporting roles."""
