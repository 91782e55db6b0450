"""Pictures of measured figures, drawn from `results/*.json` into `docs/images`.

python -m docs.site.pictures
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from docs.site.results import KEPT, ROOT
from matplotlib.figure import Figure

IMAGES = ROOT / "docs/images"
NUMBER = re.compile(r"-?\d*\.\d+|-?\d+")
INKS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9")
PLACES = ("top-1", "top-3", "top-10")
RANKED = (  # result, table, row → what the picture calls it
    ("rare-gpt4o", 0, {0: "GPT-4o", 1: "ours, all annotations", 2: "ours, own paper out"}),
    ("rare-lirical", 0, {0: "Exomiser"}),
    ("rare-lirical", 5, {0: "GPT-4", 1: "ours, all annotations", 2: "ours, own paper out"}),
)


def tables(name: str) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = json.loads((KEPT / f"{name}.json").read_text())["tables"]
    return found


def estimate(cell: str) -> tuple[float, float, float]:
    """(mean, low, high) of "0.62 [0.55, 0.69]"; both ends are the mean where none are written."""
    mean, *ends = (float(each) for each in NUMBER.findall(cell))
    low, high = ends or (mean, mean)
    return mean, low, high


def whiskers(points: Sequence[tuple[float, float, float]]) -> list[list[float]]:
    return [[m - low for m, low, _ in points], [high - m for m, _, high in points]]


def literature() -> Figure:
    """Published rankings beside ours on the same patients, with and without the own paper."""
    drawn = Figure(figsize=(9, 2.8), layout="constrained")
    names, rows = [], []
    for result, place, kept in RANKED:
        for row, called in kept.items():
            patients = "store" if result == "rare-gpt4o" else "LIRICAL"
            names.append(f"{patients}: {called}")
            rows.append(tables(result)[place]["rows"][row][1:])
    for number, (ax, title) in enumerate(
        zip(drawn.subplots(1, 3, sharey=True), PLACES, strict=True)
    ):
        points = [estimate(row[number]) for row in rows]
        for y, point in enumerate(points):
            ink = INKS[0] if "ours" in names[y] else INKS[1]
            x, ends = point[0], whiskers([point])
            ax.errorbar(x, y, xerr=ends, fmt="o", color=ink, capsize=3, markersize=5)
        ax.axhline(2.5, color="#cccccc", linewidth=0.8)
        ax.set(title=title, xlim=(0, 1), yticks=range(len(names)), yticklabels=names)
        ax.grid(axis="x", color="#e5e5e5")
    drawn.axes[0].invert_yaxis()
    return drawn


def questions() -> Figure:
    """The share of patients whose disease is among the first, over the number of questions."""
    drawn = Figure(figsize=(9, 3.4), layout="constrained")
    for ax, table in zip(
        drawn.subplots(1, 3, sharey=True), tables("rare-questions")[:3], strict=True
    ):
        asked = [int(each) for each in table["headings"][1:]]
        for row, ink in zip(table["rows"], INKS, strict=False):
            points = [estimate(cell) for cell in row[1:]]
            means = [mean for mean, _, _ in points]
            ax.errorbar(
                asked, means, yerr=whiskers(points), color=ink, marker="o", capsize=3, label=row[0]
            )
        ax.set(title=table["title"], xlabel="questions", ylim=(0, 1), xticks=asked)
        ax.grid(color="#e5e5e5")
    drawn.legend(*drawn.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return drawn


def main() -> None:
    for name, drawn in {"rare": literature(), "rare-questions": questions()}.items():
        drawn.savefig(IMAGES / f"{name}.png", dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main()
