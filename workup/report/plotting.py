"""matplotlib figures as inline SVG that takes its colours and fonts from the page, so that it follows light and dark."""

from __future__ import annotations

import functools
import hashlib
import io
import re
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec

import matplotlib as mpl
import numpy as np
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from numpy.typing import NDArray

Floats = NDArray[np.float64]
P = ParamSpec("P")

# Stand-ins that no figure uses otherwise; in the SVG each becomes the page's colour of that name.
NAMES = ("ink", "muted", "grid", "paper", "before", "after", "s1", "s2", "s3", "s4", "s5", "s6")
COLOURS = {name: f"#{number:02x}{number:02x}{number:02x}" for number, name in enumerate(NAMES, start=1)}
SERIES = [COLOURS[f"s{number}"] for number in range(1, 7)]
_PAGE = {colour: f"var(--{name})" for name, colour in COLOURS.items()}
STYLE: dict[str, Any] = {
    "font.family": ["DejaVu Sans"],  # ships with matplotlib; the page's own font replaces it
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlecolor": COLOURS["ink"],
    "axes.labelcolor": COLOURS["muted"],
    "axes.labelsize": 8,
    "axes.edgecolor": COLOURS["grid"],
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": COLOURS["grid"],
    "grid.linewidth": 0.6,
    "xtick.color": COLOURS["grid"],
    "ytick.color": COLOURS["grid"],
    "xtick.labelcolor": COLOURS["muted"],
    "ytick.labelcolor": COLOURS["muted"],
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "text.color": COLOURS["ink"],
    "text.parse_math": False,  # names of cases and methods are text, whatever dollar signs they hold
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "figure.facecolor": "none",
    "svg.fonttype": "none",
}


def figure(draw: Callable[P, Figure | None]) -> Callable[P, Markup]:
    """Make a function that draws a Figure return its SVG; an empty string where it returns None (nothing to draw)."""

    @functools.wraps(draw)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Markup:
        with mpl.rc_context({**mpl.rcParamsDefault, **STYLE, "svg.hashsalt": draw.__name__}):
            made = draw(*args, **kwargs)
            return Markup() if made is None else _svg(made)

    return wrapper


def _svg(made: Figure) -> Markup:
    buffer = io.StringIO()
    made.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"#0[0-9a-f](?:0[0-9a-f]){2}\b", lambda match: _PAGE.get(match[0], match[0]), text)
    text = re.sub(r"font: ([^;\"]*?px) 'DejaVu Sans'[^;\"]*", r"font: \1 var(--sans)", text)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1), count=1)
    label = escape(made.get_label() or "")
    return Markup(_own_ids(text).replace("<svg", f'<svg role="img" aria-label="{label}"', 1))


def _own_ids(svg: str) -> str:
    """Ids that no other figure on the page has."""
    prefix = "f" + hashlib.blake2b(svg.encode(), digest_size=4).hexdigest()
    svg = re.sub(r'\bid="([^"]*)"', rf'id="{prefix}\1"', svg)
    return re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}", svg)


def new(label: str, rows: int, columns: int, height: float, **options: Any) -> tuple[Figure, list[Axes]]:
    """A figure as wide as the page (10 inches before scaling) and its axes in reading order; `label` is read aloud."""
    made = Figure(figsize=(10, height), layout=ConstrainedLayoutEngine(h_pad=0.09, w_pad=0.08))
    made.set_label(label)
    axes = made.subplots(rows, columns, squeeze=False, **options)
    return made, list(axes.ravel())


def smooth(values: Sequence[float | None], window: int) -> Floats:
    """The mean of the defined values within a centred window, which narrows at the ends; NaN where there is none."""
    data = np.array([np.nan if value is None else value for value in values], dtype=float)
    known = np.isfinite(data)
    kernel = np.ones(window)
    total = np.convolve(np.where(known, data, 0.0), kernel)
    count = np.convolve(known.astype(float), kernel)
    inner = slice((window - 1) // 2, (window - 1) // 2 + len(data))
    means: Floats = np.divide(total, count, out=np.full(len(total), np.nan), where=count > 0)[inner]
    return means


def thin(count: int, most: int = 400) -> NDArray[np.int64]:
    """Indices of at most `most` of `count` points, evenly spread, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))
