"""Learning curves of methods side by side: over updates, and over minutes of processor time.

Type `python -m bench.learning METHOD… --out FOLDER [--seeds 100 101] [--jobs 2] [KEY=VALUE …]`.

Every method is trained in its standard set-up (`SETUPS`) with the program's own defaults, and with
the settings that are typed. A run lies in `FOLDER/METHOD-SEED`; the same command goes on where it
was interrupted, and leaves alone what has ended. Seeds from 100 on are for choosing defaults: no
table of results uses them.

`FOLDER/learning.json` has the curves as numbers: means over windows of updates of the accuracy, the
questions, the repeats, the entropy and the reward of the training episodes. `FOLDER/learning.html`
draws them, and has the evaluation of each policy before and after on patients that are held out.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any

from workup.metrics.known import metric
from workup.report.curves import HEIGHT, reinforced
from workup.report.plotting import Drawing, figure, panel, series, series_key, tidy
from workup.report.rendering import render
from workup.report.sheets import Sheet
from workup.runs import Run
from workup.runs.words import DASH, cell
from workup.studies.base.result import Section
from workup.studies.claims.queue import ClaimRun, Queue

LINKED = (
    "--cases clinic:s#renamed,linked environment.refined=findings environment.max_turns=4 "
    "environment.told=record environment.passages=1 environment.queried=3 "
    "environment.open_books=0.2 max_tokens=64"
)
STATEMENTS = (
    "--cases clinic:s#renamed,statements environment.repeated=20 environment.passages=3 "
    "environment.max_turns=3 environment.told=record environment.queried=3 max_tokens=80"
)
PATHOLOGY = "--cases clinic:pathology environment.final=list max_tokens=64"
SETUPS: Mapping[str, str] = {
    **dict.fromkeys(("craft", "outcome"), "--cases clinic:s max_tokens=8"),
    **dict.fromkeys(("promed", "grpo"), "--cases clinic:s max_tokens=16"),
    **dict.fromkeys(("cmig", "search-r1", "autorefine", "igpo"), LINKED),
    **dict.fromkeys(("medr3", "research", "r1-searcher"), STATEMENTS),
    **dict.fromkeys(("evidence-seeking", "binary-list", "single-tau"), PATHOLOGY),
}
"""method → the words of its standard set-up; another method takes the built-in clinic s."""

CURVES = ("accuracy", "questions", "repeats", "entropy", "reward")
WINDOWS = 50  # points of a curve, at most


@dataclass(frozen=True)
class Point:
    """Means over the updates of one window; `update` and `minutes` are at its end.

    The warm start counts in neither: runs share one, and only the first of them trains it.
    """

    update: int
    minutes: float
    values: Mapping[str, float]


@dataclass(frozen=True)
class Learned:
    """One run's curve, and what its policy does with held-out patients before and after.

    `warm_minutes` is the processor time of the stages before reinforcement.
    """

    method: str
    seed: int
    warm_minutes: float
    points: Sequence[Point]
    doctors: Mapping[str, Mapping[str, Any]]

    @property
    def label(self) -> str:
        return f"{self.method} · {self.seed}"


def jobs(
    methods: Sequence[str], seeds: Sequence[int], more: Sequence[str], out: Path
) -> list[ClaimRun]:
    """The runs, seed by seed, so that an interrupted queue has whole seeds."""
    found = []
    for seed in seeds:
        for method in methods:
            words = SETUPS.get(method, "--cases clinic:s")
            typed = (method, *shlex.split(words), f"seed={seed}", *more)
            found.append(ClaimRun(out / f"{method}-{seed}", typed, f"{words} {seed}"))
    return found


def learned(folder: Path) -> Learned:
    """What a run folder says about its learning."""
    with Run.open(folder) as run:
        lines, config, summary = [*run.metrics()], run.config, run.summary
    steps = reinforced(lines)
    warm = sum(map(worked, lines)) - sum(map(worked, steps))
    doctors = (summary or {}).get("doctors", {})
    anchors = (summary or {}).get("anchors", ())
    return Learned(
        str(config["method"]),
        int(config["seed"]),
        warm / 60,
        windows(steps),
        {name: entry for name, entry in doctors.items() if name not in anchors},
    )


def worked(line: Mapping[str, Any]) -> float:
    """The processor time of a step, in seconds."""
    return float(line["processor_seconds"])


def windows(steps: Sequence[Mapping[str, Any]]) -> list[Point]:
    """The curve of a run's reinforced steps; its time begins with the first of them."""
    size = max(1, math.ceil(len(steps) / WINDOWS))
    minutes = [seconds / 60 for seconds in accumulate(map(worked, steps))]
    made = []
    for start in range(0, len(steps), size):
        part = steps[start : start + size]
        found = {name: _known(line.get(name) for line in part) for name in CURVES}
        values = {name: fmean(each) for name, each in found.items() if each}
        last = start + len(part)
        made.append(Point(last, minutes[last - 1], values))
    return made


def _known(values: Iterable[Any]) -> list[float]:
    return [float(value) for value in values if isinstance(value, int | float)]


@figure
def drawn(runs: Sequence[Learned], by_update: bool) -> Drawing | None:
    """One panel for each number of `CURVES` that somebody has, a line for each run."""
    panels = []
    for name in CURVES:
        known = [
            (number, [point for point in run.points if name in point.values])
            for number, run in enumerate(runs)
        ]
        if not any(points for _, points in known):
            continue
        ax = panel(metric(name).title, HEIGHT)
        for number, points in known:
            across = [point.update if by_update else point.minutes for point in points]
            ax.plot(across, [point.values[name] for point in points], **series(number))
        tidy(ax)
        ax.set_xlabel("update" if by_update else "minutes of processor time")
        panels.append(ax)
    keys = [series_key(run.label, number) for number, run in enumerate(runs)]
    label = "Learning curves over " + ("updates" if by_update else "processor time")
    return Drawing(label, panels, keys) if panels else None


def sheet(runs: Sequence[Learned]) -> Sheet:
    """Each evaluated policy of each run, with what the training cost."""
    names = ("accuracy", "questions", "critical", "repeats")
    rows = []
    for run in runs:
        before = f"{run.warm_minutes:.1f}" if run.warm_minutes else DASH
        after = f"{run.points[-1].minutes:.1f}" if run.points else DASH
        for doctor, entry in run.doctors.items():
            figures = [cell(doctor, entry, name) for name in names]
            rows.append([run.label, doctor, *figures, before, after])
    headings = [
        "run",
        "policy",
        *(metric(name).title for name in names),
        "earlier stages, min",
        "reinforced, min",
    ]
    return Sheet(headings, rows, words=2)


def page(runs: Sequence[Learned], command: str) -> str:
    """The page of all runs."""
    sections = [
        Section("Over updates", [], lambda: drawn(runs, True)),
        Section("Over processor time", [], lambda: drawn(runs, False)),
        Section("Held-out patients", [sheet(runs)]),
    ]
    return render(
        "study.html",
        title="Learning curves",
        question="How fast do policies learn, and when does learning stop?",
        facts={"runs": str(len(runs))},
        sections=sections,
        remarks=[
            "A point is a mean over the training episodes of a window of updates. The warm start "
            "comes before the first point and is not counted in its time; a dash in the table "
            "stands where a run took one that an earlier run had trained."
        ],
        command=command,
        name="learning",
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.learning", description=__doc__)
    parser.add_argument("words", nargs="+", metavar="METHOD | KEY=VALUE")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--seeds", type=int, nargs="+", default=[100])
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    arguments = parser.parse_intermixed_args()
    methods = [word for word in arguments.words if "=" not in word]
    more = [word for word in arguments.words if "=" in word]
    if not methods:
        parser.error("say which methods to train (`workup methods` lists them)")
    asked = jobs(methods, arguments.seeds, more, arguments.out)
    queue = Queue(arguments.jobs)
    queue.run(asked, lambda job: print(queue.failed.get(job, job.out), flush=True))
    runs = [learned(job.out) for job in asked if job.ended]
    if runs:
        report(runs, arguments.out, " ".join(["python -m bench.learning", *sys.argv[1:]]))
    if queue.failed:
        names = ", ".join(job.name for job in queue.failed)
        sys.exit(f"these runs did not end: {names}; the same command goes on with them")


def report(runs: Sequence[Learned], out: Path, command: str) -> None:
    """Writes learning.json and learning.html."""
    curves = [
        {
            "method": run.method,
            "seed": run.seed,
            "warm_minutes": run.warm_minutes,
            "points": [
                {"update": point.update, "minutes": point.minutes, **point.values}
                for point in run.points
            ],
            "doctors": run.doctors,
        }
        for run in runs
    ]
    (out / "learning.json").write_text(json.dumps({"command": command, "runs": curves}, indent=1))
    (out / "learning.html").write_text(page(runs, command), encoding="utf-8")
    print(out / "learning.html")


if __name__ == "__main__":
    main()
