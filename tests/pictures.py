"""Reports without their pictures, which take matplotlib longer than a short run takes."""

from __future__ import annotations

from markupsafe import Markup
from matplotlib.axes import Axes


def blank(ax: Axes, label: str, name: str) -> Markup:
    """In place of the drawn panel: its place on the page, and what is read aloud."""
    title = ax.get_title(loc="left")
    return Markup('<svg role="img" aria-label="{}"></svg>').format(f"{label}: {title}")
