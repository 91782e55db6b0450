"""Calibration on pages and terminals: a table, and the share right by confidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workup.core.statistics import Estimate
from workup.metrics.calibration import (
    BINS,
    BRIER,
    CONFIDENCE,
    DRAWN,
    ECE,
    EXACT,
    METRICS,
    SCORED,
    STATED,
    SUREST_RIGHT,
    bin_of,
)
from workup.report import meanings
from workup.report.outcomes import Looks
from workup.report.plotting import COLOURS, Drawing, figure, panel, tidy, whiskers
from workup.report.sheets import Sheet
from workup.report.tables import Entries, level
from workup.runs.estimates import Seeds, pooled
from workup.runs.words import DASH, number, plus_minus

HEIGHT, WIDTH = 3.3, 3.6  # inches
HOW = {
    EXACT: "an anchor's own posterior",
    SCORED: "log-probabilities of naming each disease of the closed list",
    DRAWN: "how often each disease was named in repeated conclusions",
    STATED: "as the doctor says, the rest spread evenly over the other diseases",
}
CAPTION = (
    "The share of cases whose most probable disease is the true one, over the probability given to "
    "it, in ten bins of equal width, with 95\u00a0% intervals. On the line confidence is earned; "
    "below it the doctor is too sure."
)
Bins = Mapping[str, list[tuple[Estimate, Estimate]]]  # doctor → (confidence, share right) by bin


def sheet(entries: Entries) -> Sheet | None:
    """A row for each doctor that gave probabilities; None where none did.

    `entries` are those of summary.json.
    """
    rows, hows = [], []
    for doctor, entry in entries.items():
        if level(entry, BRIER.name) is None:
            continue
        found = [level(entry, each.name) for each in METRICS]
        cells = [
            DASH if estimate is None else plus_minus(each.name, estimate)
            for each, estimate in zip(METRICS, found, strict=True)
        ]
        cells.insert(3, number(ECE.name, entry.get("ece_by_chance")))
        first = found[0]
        assert first is not None  # every such doctor has a Brier score
        lacking = [f"{first.n:,} of {first.n + first.missing:,}" if first.missing else ""]
        hows.append(str(entry.get("probabilities") or ""))
        rows.append([doctor, hows[-1], *cells, *lacking])
    if not rows:
        return None
    titles = [each.title for each in METRICS]
    headings = ["", "probabilities", *titles[:3], "by chance", *titles[3:], "readable"]
    kept = len(headings) - (not any(row[-1] for row in rows))
    told = [f"{how}: {HOW[how]}" for how in dict.fromkeys(hows) if how in HOW]
    told.append("by chance: a calibrated doctor with these confidences has a larger ECE in 5 %")
    return Sheet(
        headings[:kept], [row[:kept] for row in rows], "Calibration", "; ".join(told), words=2
    )


def binned(played: Mapping[str, Seeds], seed: int) -> Bins:
    """Each doctor's bins that hold an episode, from the least confident; its outcomes by seed."""
    found = {}
    for doctor, seeds in played.items():
        bins = []
        for place in range(BINS):
            inside = {
                key: [
                    each
                    for each in outcomes
                    if (sure := each.measures.get(CONFIDENCE.name)) is not None
                    and bin_of(sure) == place
                ]
                for key, outcomes in seeds.items()
            }
            if any(inside.values()):
                kept = {key: outcomes for key, outcomes in inside.items() if outcomes}
                confident = pooled(kept, CONFIDENCE.name, seed)
                bins.append((confident, pooled(kept, SUREST_RIGHT.name, seed)))
        if bins:
            found[doctor] = bins
    return found


@figure
def drawn(bins: Bins, looks: Looks) -> Drawing | None:
    """The reliability plot; None where nobody gave probabilities."""
    if not bins:
        return None
    ax = panel("", HEIGHT, WIDTH)
    ax.plot([0, 1], [0, 1], color=COLOURS["muted"], linewidth=1, linestyle=":")
    for doctor, pairs in bins.items():
        style, _ = looks[doctor]
        sure, right = [pair[0].mean for pair in pairs], [pair[1] for pair in pairs]
        means = [each.mean for each in right]
        ax.plot(sure, means, color=style["color"], linewidth=0.9, alpha=0.6)
        made = ax.errorbar(
            sure,
            means,
            yerr=whiskers(right),
            linestyle="",
            linewidth=1.1,
            markersize=4.5,
            **style,
        )
        for bars in made[2]:
            bars.set_alpha(0.45)
    ax.set_xlim(-0.02, 1.02)
    ax.set_ylim(-0.02, 1.02)
    ax.set_xlabel("confidence")
    ax.set_ylabel("share right")
    ax.grid(visible=True, axis="both")
    tidy(ax)
    ax.locator_params(axis="x", integer=False)
    return Drawing("Reliability", [ax], [looks[doctor][1] for doctor in bins])


def content(
    entries: Entries, played: Mapping[str, Seeds], looks: Looks, seed: int
) -> dict[str, Any]:
    """What a page's template shows of it: nothing where nobody gave probabilities."""
    found = sheet(entries)
    if found is None:
        return {"calibration": None}
    return {
        "calibration": found,
        "reliability": drawn(binned(played, seed), looks),
        "reliability_caption": CAPTION,
        "calibration_meanings": meanings.legend(each.name for each in METRICS),
    }
