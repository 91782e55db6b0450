"""A suite of benchmarks (MR-16): its figures, its page, and several suites compared.

A suite's folder holds one run folder per benchmark and doctor. Everything here is read from those.
A macro-average is the mean over benchmarks of each benchmark's mean; its interval draws cases
within their benchmark.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from os.path import relpath
from pathlib import Path
from typing import Any

from workup.core.errors import UserError
from workup.core.statistics import LEVEL, RESAMPLES, SHARE, Estimate, macro, paired
from workup.core.text import several
from workup.report import outcomes, tables
from workup.report.meanings import explained
from workup.report.rendering import render
from workup.report.sheets import Sheet
from workup.runs import Outcome, Run, warnings
from workup.runs.estimates import bounds, difference, estimate, value
from workup.runs.files import write_whole
from workup.runs.folder import goes_on
from workup.runs.summary import describe
from workup.runs.words import DASH, plus_minus

KIND = "suite"
EXAM = "exam"  # in the configuration of a suite that is one: what its scorecard tells of it
DOMAINS = ("in-domain", "out-of-domain")
ALL = "all"
METRICS = ("accuracy", "searches")


@dataclass(frozen=True, slots=True)
class EvaluatedBenchmark:
    """One benchmark of a suite: its name, its domain and the source of its cases.

    `tests` says what it tests. It has the patients of `against` under the condition `gap`, or "".
    """

    name: str
    domain: str
    cases: str
    tests: str = ""
    against: str = ""
    gap: str = ""


@dataclass(frozen=True)
class Entrant:
    """Someone who was evaluated on benchmarks of a suite: in which run each, under which label."""

    label: str
    runs: Mapping[str, tuple[Run, str]]
    seed: int
    anchor: bool = False

    @cached_property
    def outcomes(self) -> dict[str, list[Outcome]]:
        """How the episodes went, by benchmark."""
        return {name: run.outcomes(doctor) for name, (run, doctor) in self.runs.items()}

    def level(self, name: str, metric: str) -> Estimate | None:
        """A metric on one benchmark; None where it was not played or not measured."""
        found = estimate(self.outcomes.get(name, []), metric, self.seed)
        return found if found.n else None

    def average(self, names: Sequence[str], metric: str) -> Estimate | None:
        """The macro-average over benchmarks; None where one of them lacks the metric."""
        if not names or any(self.level(name, metric) is None for name in names):
            return None
        if len(names) == 1:
            return self.level(names[0], metric)
        values, cases = self._columns(names, metric)
        classes = [name for name, _ in cases]
        return macro(values, cases, classes, bounds=bounds(metric), seed=self.seed)

    def lead(self, other: Entrant, names: Sequence[str]) -> Estimate | None:
        """The paired difference in accuracy to `other`, averaged over benchmarks.

        None where one of them was not played by both, or they share no judged case there.
        """
        if not names:
            return None
        for name in names:
            mine, its = (
                {o.case_id for o in each.outcomes.get(name, []) if value(o, "accuracy") is not None}
                for each in (self, other)
            )
            if not mine & its:
                return None
        if len(names) == 1:
            ours, theirs = self.outcomes[names[0]], other.outcomes[names[0]]
            return difference(ours, theirs, "accuracy", self.seed)
        first, second = self._columns(names, "accuracy"), other._columns(names, "accuracy")
        classes: dict[Hashable, Hashable] = {case: case[0] for case in (*first[1], *second[1])}
        return paired(first, second, classes=classes, bounds=SHARE, seed=self.seed)

    def _columns(
        self, names: Sequence[str], metric: str
    ) -> tuple[list[float | None], list[tuple[str, str]]]:
        rows = [(name, outcome) for name in names for outcome in self.outcomes[name]]
        return [value(each, metric) for _, each in rows], [(n, each.case_id) for n, each in rows]


@dataclass(frozen=True)
class Table:
    """Entrants on benchmarks: what every table and figure of a suite is made from."""

    benchmarks: Sequence[EvaluatedBenchmark]
    entrants: Sequence[Entrant]

    @property
    def groups(self) -> dict[str, list[str]]:
        """The benchmarks' names by domain, and all of them if there are several domains."""
        found = {
            domain: [each.name for each in self.benchmarks if each.domain == domain]
            for domain in DOMAINS
        }
        kept = {domain: names for domain, names in found.items() if names}
        return {**kept, ALL: [each.name for each in self.benchmarks]} if len(kept) > 1 else kept

    @property
    def lines(self) -> Iterator[tuple[str, str, list[str]]]:
        """(name, domain, the benchmarks it is about) of each line; an average has no domain.

        The averages stand behind the benchmarks of their domain, that of all at the end.
        """
        for domain, names in self.groups.items():
            if domain != ALL:
                yield from ((name, domain, [name]) for name in names)
            yield f"average, {domain}", "", names


def is_suite(run: Run) -> bool:
    """Whether a folder holds a suite."""
    return run.config.get("kind") == KIND


def opened(run: Run, prefix: str = "") -> Table:
    """The suite in `run`, as far as it was played; labels begin with `prefix`."""
    benchmarks = [EvaluatedBenchmark(**each) for each in run.config["benchmarks"]]
    played: dict[str, dict[str, tuple[Run, str]]] = {}
    exact: dict[str, dict[str, tuple[Run, str]]] = {}
    order: dict[str, None] = {}  # anchors from the lowest to the highest, benchmark by benchmark
    named = {arm["doctor"] for arm in run.config["arms"]}
    for arm in run.config["arms"]:
        own = played.setdefault(arm["doctor"], {})
        path = run.path / arm["folder"]
        if not (path / "config.yaml").is_file():
            continue
        inner = Run.open(path)
        doctors = inner.doctors()
        if arm["played_as"] in doctors:
            own[arm["benchmark"]] = inner, arm["played_as"]
        for doctor in doctors:
            if doctor in inner.anchors and doctor not in named:
                exact.setdefault(doctor, {})[arm["benchmark"]] = inner, doctor
        order |= dict.fromkeys(inner.anchors)
    seed, anchors = run.seed, [name for name in order if name in exact]
    entrants = [Entrant(f"{prefix}{label}", runs, seed) for label, runs in played.items()]
    return Table(
        benchmarks, [*entrants, *(Entrant(name, exact[name], seed, True) for name in anchors)]
    )


# --- summary.json ---------------------------------------------------------------------------------


def summarise(run: Run, *, seconds: float) -> dict[str, Any]:
    """Computes summary.json of a suite from its evaluations, writes it, and returns it.

    `doctors` has for each entrant `benchmarks` (an entry as in an evaluation's summary.json for
    each), `averages` by domain, and `lead`: its paired differences in accuracy to the first one.
    """
    config = run.config
    summary = {
        **{"name": run.name, "kind": KIND, "suite": config["suite"], "seed": run.seed},
        **{"seconds": round(seconds, 3), "level": LEVEL, "left_out": config["left_out"]},
        **figures(opened(run)),
    }
    # What models in supporting roles were asked: the last evaluation's account is the suite's.
    counted = [
        Run.open(run.path / arm["folder"]).summary.get("calls", ())
        for arm in config["arms"]
        if (run.path / arm["folder"] / "config.yaml").is_file()
    ]
    calls = max(
        counted, key=lambda rows: sum(row["calls"] + row["hits"] for row in rows), default=()
    )
    if calls:
        summary["calls"] = list(calls)
    run.write_summary(summary)
    return summary


def figures(table: Table) -> dict[str, Any]:
    """The figures of everyone on everything, as JSON values."""
    return {
        "benchmarks": [asdict(each) for each in table.benchmarks],
        "doctors": {each.label: _entry(table, each) for each in table.entrants},
        "anchors": [each.label for each in table.entrants if each.anchor],
    }


def _entry(table: Table, entrant: Entrant) -> dict[str, Any]:
    first = table.entrants[0]
    own = {name: describe(run, doctor) for name, (run, doctor) in entrant.runs.items()}
    averages = {
        f"average, {group}": {
            metric: found.as_json()
            for metric in METRICS
            if (found := entrant.average(names, metric)) is not None
        }
        for group, names in table.groups.items()
    }
    lead = {
        name: found.as_json()
        for name, _, names in table.lines
        if entrant is not first
        and not entrant.anchor
        and (found := entrant.lead(first, names)) is not None
    }
    return {"benchmarks": own, "averages": averages, **({"lead": lead} if lead else {})}


# --- tables ---------------------------------------------------------------------------------------

Line = tuple[str, str, list[Estimate | None]]  # name, domain ("" for an average), one per doctor


def lines(found: Mapping[str, Any], metric: str) -> list[Line]:
    """A metric on each benchmark and on average, from `figures`."""
    doctors = list(found["doctors"].values())
    domains = {each["name"]: each["domain"] for each in found["benchmarks"]}
    names = dict.fromkeys(name for each in doctors for name in each["averages"])
    made: list[Line] = []
    for average in names:
        own = [name for name, domain in domains.items() if average == f"average, {domain}"]
        made += [
            (name, domains[name], [_level(each["benchmarks"], name, metric) for each in doctors])
            for name in own
        ]
        made.append((average, "", [_level(each["averages"], average, metric) for each in doctors]))
    return made


def _level(entry: Mapping[str, Any], name: str, metric: str) -> Estimate | None:
    level = tables.level(entry.get(name, {}), metric)
    return level if level is not None and level.n else None


def leads(found: Mapping[str, Any]) -> Sheet | None:
    """By how much everyone leads the first doctor on each line; None without anyone else."""
    doctors = {label: each["lead"] for label, each in found["doctors"].items() if "lead" in each}
    if not doctors:
        return None
    told = partial(tables.gap_text, "accuracy", starred=True)
    rows = [
        [name, *(told(tables.level(lead, name)) for lead in doctors.values())]
        for name, _, _ in lines(found, "accuracy")
    ]
    title = f"difference in accuracy to {next(iter(found['doctors']))}, paired by case"
    return Sheet(
        ["", *doctors],
        rows,
        title,
        "*: the interval leaves out 0",
        styles={place: "bold" for place, row in enumerate(rows) if row[0].startswith("average")},
    )


def sheets(found: Mapping[str, Any]) -> list[Sheet]:
    """What a terminal shows of `figures`: accuracy, searches and leads, line by line."""
    made = []
    for metric, title in (("accuracy", "accuracy"), ("searches", "searches per episode")):
        rows = lines(found, metric)
        if any(each is not None for _, _, cells in rows for each in cells):
            shown = [[name, *(_text(metric, each) for each in cells)] for name, _, cells in rows]
            note = ""
            if metric == "accuracy":
                sizes = [f"{name} {_count(cells):,}" for name, domain, cells in rows if domain]
                note = f"n: {', '.join(sizes)} · ± half of the 95 % interval by case, [ ] its ends"
            bold = {place: "bold" for place, (_, domain, _) in enumerate(rows) if not domain}
            made.append(Sheet(["", *found["doctors"]], shown, title, note, styles=bold))
    ahead = leads(found)
    return [*made, ahead] if ahead else made


def warned(found: Mapping[str, Any]) -> list[str]:
    """The warnings (`runs.warnings`) about everyone on each benchmark, from `figures`."""
    return warnings.lines(
        {
            f"{label} on {benchmark}": own
            for label, entry in found["doctors"].items()
            for benchmark, own in entry["benchmarks"].items()
        }
    )


def _text(metric: str, found: Estimate | None) -> str:
    return DASH if found is None else plus_minus(metric, found)


def _count(cells: Sequence[Estimate | None]) -> int:
    """How many episodes were judged, at most, of one doctor."""
    return max((each.n for each in cells if each is not None), default=0)


# --- the page -------------------------------------------------------------------------------------


def build(run: Run) -> Path:
    """Writes report.html of the suite in `run`, and returns its path.

    It holds no text of any case: transcripts are in the reports of the evaluations. Raises
    UserError when the disk refuses.
    """
    config = run.config
    summary = run.summary
    left_out = [f"Left out, for want of its files: {name}." for name in config["left_out"]]
    whole = all((run.path / arm["folder"] / "summary.json").is_file() for arm in config["arms"])
    unfinished = [] if whole else [f"Not finished: {goes_on(run.path)} goes on."]
    content = _content(opened(run), run.path)
    facts = {
        "Run": run.name,
        "Suite": str(config["suite"]),
        "Benchmarks": str(len(config["benchmarks"])),
        "Seed": str(run.seed),
        "Started": run.started,
    }
    content |= {
        "title": f"{config['about'] or config['suite']}",
        "facts": [(name, text) for name, text in facts.items() if text],
        "command": run.versions.get("command"),
        "notes": [*unfinished, *left_out],
        "calls": tables.calls(summary.get("calls") or ()),
        "workup_version": run.versions.get("workup"),
    }
    write_whole(run.report, render("suite.html", **content), private=bool(config.get("restricted")))
    return run.report


def _content(table: Table, base: Path) -> dict[str, Any]:
    """What page and comparison share; links lead from `base`."""
    found = figures(table)
    return {
        "warnings": warned(found),
        "heads": list(found["doctors"]),
        "accuracy": _rows(found, "accuracy"),
        "searches": _rows(found, "searches"),
        "leads": leads(found),
        "figure": _figure(found),
        "details": [_detail(table, each, base) for each in table.benchmarks],
        "resamples": RESAMPLES,
    }


def _rows(found: Mapping[str, Any], metric: str) -> list[tables.DoctorRow]:
    """One row for each line; none where nobody has the metric."""
    rows = lines(found, metric)
    known = [each for _, _, cells in rows for each in cells if each is not None]
    if not known:
        return []
    top = tables.top(metric, known)
    return [
        tables.DoctorRow(
            name,
            "" if domain else "after",
            f"{domain}, {several(_count(cells), 'episode')}" if domain else "",
            [tables.Cell(_text(metric, each), "", tables.bar(each, top)) for each in cells],
        )
        for name, domain, cells in rows
    ]


def _figure(found: Mapping[str, Any]) -> Any:
    """Every benchmark a row, everyone who played all of them a point with its interval."""
    rows = [(name, cells) for name, domain, cells in lines(found, "accuracy") if domain]
    columns = {
        doctor: [cells[place] for _, cells in rows] for place, doctor in enumerate(found["doctors"])
    }
    shown = {
        doctor: [each for each in column if each is not None]
        for doctor, column in columns.items()
        if None not in column
    }
    if not rows or not shown:
        return None
    sizes = {name: _count(cells) for name, cells in rows}
    drawn = tables.Categories("benchmark", sizes, shown)
    ends = tables.Ends(None, None, tuple(found["anchors"]))
    return outcomes.by_category(drawn, outcomes.looks(list(shown), ends))


@dataclass(frozen=True)
class Detail:
    """One benchmark with every measure that an evaluation's report shows."""

    name: str
    domain: str
    cases: str
    pages: list[tuple[str, str]]
    shown: Sequence[str]
    rows: list[tables.DoctorRow]


def _detail(table: Table, benchmark: EvaluatedBenchmark, base: Path) -> Detail:
    played = [each for each in table.entrants if benchmark.name in each.runs]
    entries = {each.label: describe(*each.runs[benchmark.name]) for each in played}
    anchors = tuple(each.label for each in played if each.anchor)
    shown, rows = tables.headline(entries, tables.Ends(None, None, anchors))
    pages = [
        (each.label, Path(relpath(each.runs[benchmark.name][0].report, base)).as_posix())
        for each in played
        if not each.anchor
    ]
    heads = [explained(metric) for metric in shown]
    return Detail(benchmark.name, benchmark.domain, benchmark.cases, pages, heads, rows)


# --- several suites -------------------------------------------------------------------------------


def beside(runs: Sequence[Run], alike: Callable[[Run, Run], bool]) -> tuple[Table, list[str]]:
    """Several suites as one table, and what a reader has to know of it.

    Its benchmarks are those of the first suite that all others have by the same name on the same
    cases (`alike` says whether two evaluations are). Anchors are the first suite's. Raises
    UserError where no benchmark is left.
    """
    names = [run.name for run in runs]
    labels = [run.name if names.count(run.name) == 1 else str(run.path) for run in runs]
    own = [opened(run, f"{label}: ") for run, label in zip(runs, labels, strict=True)]

    def both_played(benchmark: EvaluatedBenchmark, other: Table) -> bool:
        mine, theirs = (
            [each.runs[benchmark.name][0] for each in t.entrants if benchmark.name in each.runs]
            for t in (own[0], other)
        )
        return bool(mine and theirs) and alike(mine[0], theirs[0])

    kept = [each for each in own[0].benchmarks if all(both_played(each, t) for t in own[1:])]
    if not kept:
        raise UserError(
            f"{' and '.join(str(run.path) for run in runs)} have no benchmark in common: the same "
            "name, on the same cases"
        )
    left = dict.fromkeys(
        each.name for t in own for each in t.benchmarks if each.name not in {k.name for k in kept}
    )
    notes = [f"not compared, since not all of them have it on the same cases: {n}" for n in left]
    entrants = [each for t in own for each in t.entrants if not each.anchor]
    exact = [each for each in own[0].entrants if each.anchor]
    return Table(kept, [*entrants, *exact]), notes


def page_beside(
    table: Table, notes: Sequence[str], html: Path, title: str, *, private: bool = False
) -> None:
    """The comparison as an offline page, its owner's alone where it is `private`.

    Raises UserError when the disk refuses.
    """
    content = _content(table, html.parent)
    head: dict[str, Any] = {
        "title": title,
        "facts": [],
        "command": "",
        "calls": None,
        "workup_version": "",
    }
    text = render("suite.html", **content, **head, notes=list(notes))
    write_whole(html, text, private=private)
