"""Pages from our templates, which open offline and hold no script."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from workup.report.meanings import explained


def render(template: str, **content: Any) -> str:
    """A page from one of our templates; all text is escaped."""
    return _templates().get_template(template).render(style=_style(), **content)


@cache
def _templates() -> Environment:
    return environment("workup.report")


def environment(*packages: str) -> Environment:
    """What renders the templates of these packages; the first that has a name counts."""
    made = Environment(
        loader=ChoiceLoader([PackageLoader(package) for package in packages]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"explained": explained, "coded": coded}
    return made


def coded(text: str) -> Markup:
    """A text as HTML: what stands between backquotes is code.

    >>> coded("see `workup play` <1>")
    Markup('see <code>workup play</code> &lt;1&gt;')
    """
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


@cache
def _style() -> Markup:
    return Markup(
        resources.files("workup.report").joinpath("templates/style.css").read_text(encoding="utf-8")
    )
