"""The plane of evidence seeking: first on every page, and every point where its figures are."""

from __future__ import annotations

import io
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
from matplotlib.axes import Axes
from rich.console import Console

import workup
from workup.core.statistics import Estimate
from workup.report import compare, outcomes, plane, plotting, tables
from workup.report.plane import Plane
from workup.report.tables import Ends
from workup.runs import Run

pytestmark = [pytest.mark.long, pytest.mark.drawn, pytest.mark.usefixtures("shared_cache")]

SHORT: dict[str, Any] = {
    "tiny": {"width": 16},
    "sft": {"steps": 2, "batch": 4},
    **{"steps": 1, "batch": 2, "group": 2, "max_tokens": 8},
    "environment": {"max_turns": 4},
    "evaluation": {"cases": 6, "untrained": False},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, shared_cache: None) -> list[Run]:
    """Two methods, the first with two seeds."""
    folder = tmp_path_factory.mktemp("runs")
    return [
        workup.train(
            method,
            cases="clinic:xs",
            out=folder / f"{method}-{seed}",
            seed=seed,
            quiet=True,
            **SHORT,
        )
        for method, seed in (("craft", 0), ("craft", 1), ("outcome", 0))
    ]


def drawn(page: str) -> list[str]:
    """What is read aloud of every picture, in their order."""
    return re.findall(r'<svg role="img" aria-label="([^"]*)"', page)


def keys(page: str) -> list[str]:
    """The legend of the first picture."""
    (first, *_) = re.findall(r'<p class="keys">(.*?)</p>', page, re.DOTALL)
    return re.findall(r"</b>(.*?)</span>", first)


def test_a_report_begins_with_it(runs: list[Run]) -> None:
    page = runs[0].report.read_text(encoding="utf-8")
    assert drawn(page)[0] == "Accuracy over questions"
    assert page.index("<h2>Accuracy over questions</h2>") < page.index("<h2>Result</h2>")
    assert keys(page) == ["warm start", "trained", "hollow: an exact reader"]
    first = page[page.index("<svg") : page.index("</svg>")]
    assert [word for word in ("full", "greedy", "random") if f">{word}</text>" in first] == [
        *("full", "greedy", "random")
    ]
    assert "lost in reading. The way up to the greedy curve is lost in asking." in page


def test_compare_begins_with_all_runs(runs: list[Run], tmp_path: Path) -> None:
    """Runs of several seeds are one point, as everywhere on the page."""
    compare(runs, tmp_path / "both.html", Console(file=io.StringIO()))
    page = (tmp_path / "both.html").read_text(encoding="utf-8")
    assert drawn(page)[0] == "Accuracy over questions"
    assert page.index("<h2>Accuracy over questions</h2>") < page.index("<h2>Result</h2>")
    assert keys(page) == ["craft", "outcome-0", "craft: warm start", "hollow: an exact reader"]


def test_the_evaluated_episodes_alone_are_read(runs: list[Run]) -> None:
    for run in runs:
        assert set(run.summary["stopped"]) == {"random doctor", "greedy information"}
        assert all(len(curve) == 4 for curve in run.summary["stopped"].values())
        played = run.episodes(phase="eval")
        assert all(record.measures["exact_reader"] in (0, 1) for record in played)
        assert not any("exact_reader" in record.measures for record in run.episodes(phase="train"))


def axes_of(run: Run, monkeypatch: pytest.MonkeyPatch) -> tuple[Axes, Plane]:
    """The panel as matplotlib has it, and what was to be drawn."""
    seen: list[Axes] = []
    svg = plotting._svg
    monkeypatch.setattr(plotting, "_svg", lambda ax, *rest: (seen.append(ax), svg(ax, *rest))[1])
    entries = tables.entries_of(run)
    ends = Ends.of(entries, run.anchors)
    found = Plane.of(tables.levels_of(entries), ends, run.summary.get("stopped", {}))
    assert plane.drawn(found, outcomes.looks(list(entries), ends))
    plt.close("all")
    return seen[0], found


def test_every_point_is_where_its_figures_are(
    runs: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    ax, found = axes_of(runs[0], monkeypatch)
    doctors, stopped = runs[0].summary["doctors"], runs[0].summary["stopped"]
    lines = [line.get_xydata().tolist() for line in ax.lines]  # type: ignore[union-attr]
    for label, curve in stopped.items():
        points = [[stop["questions"], stop["accuracy"]["mean"]] for stop in curve]
        assert points in lines, label
    (level,) = found.levels.values()
    assert level == Estimate.from_json(doctors["full information"]["accuracy"])
    assert list(found.policies) == ["warm start", "trained"]
    for label in found.policies:
        asked = doctors[label]["questions"]["mean"]
        own, read = (doctors[label][name]["mean"] for name in ("accuracy", "exact_reader"))
        assert [[asked, own]] in lines
        assert own == read or [[asked, own], [asked, read]] in lines


def test_names_beside_the_panel_do_not_run_together(
    runs: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    ax, _ = axes_of(runs[0], monkeypatch)
    boxes = sorted((text.get_window_extent() for text in ax.texts), key=lambda box: box.y0)
    assert len(boxes) == 3
    assert all(below.y1 <= above.y0 + 1 for below, above in pairwise(boxes))


def estimates(**means: float) -> dict[str, Estimate]:
    return {name: Estimate(mean, mean, mean, 10) for name, mean in means.items()}


def test_without_curves_doctors_are_points() -> None:
    """A library has no exact reader; anchors that ask or search are points there."""
    levels = {
        "random searcher": estimates(accuracy=0.3, questions=4.0, searches=4.0),
        "mine": estimates(accuracy=0.5, questions=2.0, searches=2.0),
        "full information": estimates(accuracy=0.9),
    }
    ends = Ends(None, "mine", ("random searcher", "full information"))
    found = Plane.of(levels, ends, {})
    assert (list(found.policies), list(found.anchors)) == (["mine"], ["random searcher"])
    assert (list(found.levels), found.actions) == (
        ["full information"],
        "actions before the diagnosis",
    )
    assert found.tells
    assert "further left takes fewer actions before the diagnosis. The line" in found.caption
    assert "hollow" not in found.caption


def test_where_nobody_asks_more_than_others_nothing_is_drawn() -> None:
    levels = {
        "told information": estimates(accuracy=0.3, questions=0.0),
        "mine": estimates(accuracy=0.5, questions=0.0),
        "full information": estimates(accuracy=0.9),
    }
    ends = Ends(None, "mine", ("told information", "full information"))
    found = Plane.of(levels, ends, {})
    assert not found.tells
    assert plane.drawn(found, outcomes.looks(list(levels), ends)) == ""


def test_who_had_the_record_or_no_training_is_no_policy_of_it() -> None:
    both = estimates(accuracy=0.5, questions=2.0, exact_reader=0.6)
    names = ("untrained", "warm start", "trained", "trained, bayes concludes")
    levels = dict.fromkeys((*names, "bayes, oracle context"), both)
    found = Plane.of(levels, Ends("warm start", "trained"), {})
    assert list(found.policies) == list(names[1:])
    found = Plane.of({"untrained": both, "trained": both}, Ends("untrained", "trained"), {})
    assert list(found.policies) == ["untrained", "trained"]
