"""Pages from our templates, which open offline and hold no script."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


def render(template: str, **content: Any) -> str:
    """A page from one of our templates; all text is escaped."""
    return _templates().get_template(template).render(style=_style(), **content)


@cache
def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("workup.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def _style() -> Markup:
    return Markup(
        resources.files("workup.report").joinpath("templates/style.css").read_text(encoding="utf-8")
    )
