"""matplotlib figures as inline SVG in the page's own colours and fonts, light and dark.

A drawing is one SVG per panel, so that the page can put panels side by side or below each other.
"""

from __future__ import annotations

import functools
import hashlib
import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec

import matplotlib as mpl
import numpy as np
from markupsafe import Markup, escape
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from numpy.typing import NDArray

from workup.core.statistics import Estimate

Floats = NDArray[np.float64]
P = ParamSpec("P")

# Placeholder colours that no figure uses; in the SVG each becomes the page's colour of that name.
NAMES = ("ink", "muted", "grid", "paper", "before", "after", "s1", "s2", "s3", "s4", "s5", "s6")
COLOURS = {
    name: f"#{number:02x}{number:02x}{number:02x}" for number, name in enumerate(NAMES, start=1)
}
SERIES = [COLOURS[f"s{number}"] for number in range(1, 7)]
# matplotlib's name → how a key on the page writes it
MARKERS = dict(zip("osD^vP", "●■◆▲▼✚", strict=True))
HATCHES = dict(zip(("", "////", "...."), ("■", "▨", "▦"), strict=True))  # pattern → the same
DASHES = dict(zip(("-", "--", ":"), ("━━", "╍╍", "┉┉"), strict=True))  # line style → the same
_PAGE = {colour: f"var(--{name})" for name, colour in COLOURS.items()}
GROWTH = 1.65  # pixels on the page for a point of a figure, at most
FALLBACKS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Droid Sans Fallback",
    "Microsoft YaHei",
    "SimHei",
    "PingFang SC",
    "Hiragino Sans GB",
    "Arial Unicode MS",
)
"""Fonts with the Chinese, Japanese and Korean characters that matplotlib's own font lacks."""

STYLE: dict[str, Any] = {
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
    "axes.formatter.limits": (-4, 6),
    "axes.formatter.useoffset": False,
    "grid.color": COLOURS["grid"],
    "grid.linewidth": 0.6,
    "xtick.color": COLOURS["grid"],
    "ytick.color": COLOURS["grid"],
    "xtick.labelcolor": COLOURS["muted"],
    "ytick.labelcolor": COLOURS["muted"],
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "text.color": COLOURS["ink"],
    # Names of cases and methods are text, whatever dollar signs they hold.
    "text.parse_math": False,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "figure.facecolor": "none",
    "svg.fonttype": "none",
    "hatch.linewidth": 1.2,
}


@dataclass(frozen=True, slots=True)
class Key:
    """One line of a drawing's legend: a symbol in a colour of `COLOURS`, and its meaning."""

    name: str
    colour: str
    symbol: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """Panels that belong together; `label` is read aloud, with the panel's title."""

    label: str
    panels: Sequence[Axes]
    keys: Sequence[Key] = ()


def panel(title: str, height: float, width: float = 3.3) -> Axes:
    """A panel of its own; width and height are inches before the page scales it.

    3.3 is a third of the page, or a telephone's width.
    """
    made = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(h_pad=0.06, w_pad=0.06))
    ax = made.subplots()
    ax.set_title(title)
    return ax


def series(number: int) -> dict[str, Any]:
    """The look of the curve numbered `number`.

    The colours come in turn, then the same colours dashed, then dotted.
    """
    turn = number // len(SERIES) % len(DASHES)
    return {"color": SERIES[number % len(SERIES)], "linestyle": list(DASHES)[turn]}


def series_key(name: str, number: int) -> Key:
    look = series(number)
    return Key(name, look["color"], DASHES[look["linestyle"]])


def fill(number: int) -> dict[str, Any]:
    """The look of the area numbered `number`.

    The colours come in turn, then the same colours hatched, then dotted.
    """
    turn = number // len(SERIES) % len(HATCHES)
    look = {"facecolor": SERIES[number % len(SERIES)], "edgecolor": COLOURS["paper"]}
    return {**look, "alpha": 0.75, "hatch": list(HATCHES)[turn]}


def fill_key(name: str, number: int) -> Key:
    look = fill(number)
    return Key(name, look["facecolor"], HATCHES[look["hatch"]])


def points(number: int) -> dict[str, Any]:
    """The look of the points numbered `number`: no two of the first thirty-six are alike."""
    turn = (number + number // len(SERIES)) % len(MARKERS)
    return {"color": SERIES[number % len(SERIES)], "marker": list(MARKERS)[turn]}


def points_key(name: str, number: int) -> Key:
    look = points(number)
    return Key(name, look["color"], MARKERS[look["marker"]])


def tidy(ax: Axes, ticks: int = 5) -> None:
    """So few ticks that their labels stay apart in a narrow panel."""
    ax.margins(x=0.03)
    ax.locator_params(axis="y", nbins=ticks)
    ax.locator_params(axis="x", nbins=ticks, integer=True)


def figure(draw: Callable[P, Drawing | None]) -> Callable[P, Markup]:
    """Makes a function that returns a drawing return its HTML; "" if it returns None."""

    @functools.wraps(draw)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Markup:
        style = {
            **mpl.rcParamsDefault,
            **STYLE,
            "font.family": families(),
            "svg.hashsalt": draw.__name__,
        }
        with mpl.rc_context(style), warnings.catch_warnings():
            # matplotlib only measures the text; the letters are the browser's, which has its fonts.
            warnings.filterwarnings(
                "ignore", message=r"(Glyph \d+|Matplotlib currently does not support)"
            )
            made = draw(*args, **kwargs)
            return Markup() if made is None else _html(made, draw.__name__)

    return wrapper


@functools.cache
def families() -> list[str]:
    """matplotlib's own font, and the first installed one that has what it lacks."""
    installed = {font.name for font in font_manager.fontManager.ttflist}
    return ["DejaVu Sans", *[name for name in FALLBACKS if name in installed][:1]]


def _html(made: Drawing, name: str) -> Markup:
    svgs = [_svg(ax, made.label, f"{name} {number}") for number, ax in enumerate(made.panels)]
    keys = [
        Markup('<span class="key"><b style="color:{}">{}</b>{}</span>').format(
            _PAGE[key.colour], key.symbol, key.name
        )
        for key in made.keys
    ]
    legend = Markup('<p class="keys">{}</p>').format(Markup().join(keys)) if keys else Markup()
    return Markup('<div class="panels">{}</div>{}').format(Markup().join(svgs), legend)


def _svg(ax: Axes, label: str, name: str) -> Markup:
    buffer = io.StringIO()
    drawn = ax.get_figure(root=True)
    assert drawn is not None
    untold = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    drawn.savefig(buffer, format="svg", metadata=untold)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # Without width and height the figure keeps its proportions at any width. Its maximal width
    # is that at which its letters have the size of the page's.
    width = float(re.findall(r'<svg[^>]*? width="([\d.]+)pt"', text)[0])
    text = re.sub(
        r'(<svg[^>]*?) width="[^"]*"',
        r"\1",
        re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1),
        count=1,
    )
    title = ax.get_title(loc="left")
    aloud = escape(f"{label}: {title}" if title else label)
    head = f'<svg role="img" aria-label="{aloud}" style="max-width:{width * GROWTH:.0f}px"'
    return Markup(_for_the_page(text, name).replace("<svg", head, 1))


def _for_the_page(svg: str, name: str) -> str:
    """`svg` with the page's colours and font, and with ids that no other figure on it has.

    Only tags are rewritten: what stands between them is text, which may look like one of these.
    """
    prefix = "f" + hashlib.blake2b((name + svg).encode(), digest_size=4).hexdigest()

    def rewritten(found: re.Match[str]) -> str:
        tag = re.sub(
            r"#0[0-9a-f](?:0[0-9a-f]){2}\b", lambda match: _PAGE.get(match[0], match[0]), found[0]
        )
        # Versions of matplotlib differ: "font: 8px 'DejaVu Sans'" or "font-family: 'DejaVu Sans'".
        tag = re.sub(r"(font(?:-family)?: [^;'\"]*)'DejaVu Sans'[^;\"]*", r"\1var(--sans)", tag)
        tag = re.sub(r'\bid="([^"]*)"', rf'id="{prefix}\1"', tag)
        return re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}", tag)

    return re.sub(r"<[^>]*>", rewritten, svg)


def whiskers(found: Sequence[Estimate]) -> Floats:
    """[2, n]: how far each interval reaches below and above its mean; 0 without an interval."""
    ends = np.array([(each.mean - each.low, each.high - each.mean) for each in found], dtype=float)
    sides: Floats = np.clip(np.nan_to_num(ends.reshape(-1, 2).T), 0, None)
    return sides


def row_points(
    ax: Axes, rows: Sequence[float], found: Sequence[Estimate], look: Mapping[str, Any]
) -> None:
    """A point with its interval in each row, which is a height on the vertical axis."""
    means = [each.mean for each in found]
    ax.errorbar(
        means,
        rows,
        xerr=whiskers(found),
        linestyle="",
        linewidth=1.2,
        capsize=2,
        markersize=4.8,
        **look,
    )


def rowed(ax: Axes, names: Sequence[str]) -> None:
    """The vertical axis as rows with these names, the first on top; lines go along the other."""
    ax.grid(visible=True, axis="x")
    ax.grid(visible=False, axis="y")
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)


def smooth(values: Sequence[float | None], window: int) -> Floats:
    """The mean of the defined values within a centred window, which is narrower at the ends.

    NaN if there is none.
    """
    data = np.array([np.nan if value is None else value for value in values], dtype=float)
    known = np.isfinite(data)
    kernel = np.ones(window)
    total = np.convolve(np.where(known, data, 0.0), kernel)
    count = np.convolve(known.astype(float), kernel)
    inner = slice((window - 1) // 2, (window - 1) // 2 + len(data))
    means: Floats = np.divide(total, count, out=np.full(len(total), np.nan), where=count > 0)[inner]
    return means


def thin(count: int, most: int = 400) -> NDArray[np.int64]:
    """Indices of at most `most` of `count` points, evenly spread, with the first and the last."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))
