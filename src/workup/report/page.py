"""report.html: one run on one page that opens offline, made from the run folder alone.

All transcripts are on pages beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from workup.core.episode import Ending
from workup.core.statistics import RESAMPLES
from workup.metrics.known import metric
from workup.report import (
    calibration,
    curves,
    dynamics,
    leaves,
    meanings,
    outcomes,
    plane,
    scorecard,
    suite,
    tables,
    transcripts,
)
from workup.report.curves import Curve
from workup.report.plane import Plane
from workup.report.rendering import render
from workup.report.tables import Ends, Entries
from workup.report.transcripts import Player
from workup.runs import Run, warnings
from workup.runs.files import write_whole
from workup.runs.rising import learning, told
from workup.runs.settings import flat
from workup.runs.words import TRAINED, adds_up, duration, in_order, size

ENDING_CLASS = dict(zip(Ending, ("e-diagnosed", "e-turns", "e-tokens", "e-failed"), strict=True))


def build(run: Run, *, transcripts: bool = False) -> Path:
    """Writes `run`'s report.html, with all transcripts in `transcripts/` beside it.

    Returns its path. A suite has a page of its own, and the transcripts are its evaluations'.
    Transcripts of restricted cases are left out, and pages that hold them are removed, unless
    `transcripts` asks for them. Raises UserError when the disk refuses.
    """
    if suite.is_suite(run):
        if scorecard.is_exam(run):
            return scorecard.build(run, transcripts=transcripts)
        return suite.build(run)
    restricted = run.restricted
    withheld = restricted and not transcripts
    doctors = [] if withheld else in_order(run.doctors(), run.anchors)
    everyone = [Player(doctor, run, doctor) for doctor in doctors]
    more = leaves.write(run.transcripts, everyone, title(run), run.report.name, private=restricted)
    write_whole(
        run.report,
        render("report.html", **_content(run, withheld), leaves=more),
        private=restricted,
    )
    return run.report


def _content(run: Run, withheld: bool) -> dict[str, Any]:
    entries = tables.entries_of(run)
    ends = Ends.of(entries, run.anchors)
    lines = list(run.metrics())
    metrics, rows = tables.headline(entries, ends)
    compared = tables.paired_of(entries)
    changes = tables.changes(run, ends, compared)
    return {
        "title": title(run),
        "facts": list(_facts(run, lines)),
        "command": run.versions.get("command"),
        "evaluation": run.config.get("kind") == "evaluation",
        "ends": ends,
        "rows": rows,
        "warnings": warnings.lines(entries, dict.fromkeys(entries, run.encounter)),
        "shown": [meanings.explained(name) for name in metrics],
        "glossary": meanings.legend(metrics),
        "changes": changes,
        "verdicts": tables.explained(changes),
        "uncompared": [
            metric(name).title
            for name in compared
            if name not in {change.metric for change in changes}
        ],
        "resamples": RESAMPLES,
        "anchors": [doctor for doctor in entries if doctor in run.anchors],
        **_training(lines, entries, ends),
        "learned": told(learned) if (learned := run.summary.get("learning")) else "",
        "go_on": (learned or {}).get("go_on"),
        **plane.content(
            Plane.of(tables.levels_of(entries), ends, run.summary.get("stopped", {})),
            outcomes.looks(list(entries), ends),
        ),
        **calibration.content(
            entries,
            {doctor: {"": run.outcomes(doctor)} for doctor in entries},
            outcomes.looks(list(entries), ends),
            run.seed,
        ),
        "parts": tables.reward_parts(run, ends),
        **_evaluations(run, entries, ends, lines),
        **_transcripts(run, ends, withheld),
        "calls": tables.calls(run.summary.get("calls") or ()),
        "config": list(flat(run.config)),
        "versions": [(name, value) for name, value in run.versions.items() if value is not None],
        "files": list(_files(run)),
        "workup_version": run.versions.get("workup"),
    }


def title(run: Run) -> str:
    """ "craft on clinic:s", or the evaluated policy's name instead of a method's."""
    who = run.config.get("method") or run.config.get("policy") or run.name
    return f"{who} on {run.config['cases']}" if "cases" in run.config else str(who)


def _facts(run: Run, lines: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """The lines under the title; what the folder does not know is left out."""
    versions, config = run.versions, run.config
    yield "Run", run.name
    for name in ("policy", "seed"):
        if config.get(name) is not None:
            yield name.capitalize(), str(config[name])
    if lines:
        stages = dict.fromkeys(line["stage"] for line in lines)
        yield (
            "Steps",
            ", ".join(
                f"{sum(line['stage'] == stage for line in lines):,} {stage}" for stage in stages
            ),
        )
        yield "Training time", duration(sum(line.get("seconds") or 0 for line in lines))
        if scoring := [line for line in lines if line.get("scoring_seconds")]:
            taken, whole = (
                sum(line[name] for line in scoring) for name in ("scoring_seconds", "seconds")
            )
            yield "Scoring for the reward", f"{100 * taken / whole:.1f} % of the time of its steps"
    yield from (("Note", note) for note in config.get("notes") or ())
    if run.started:
        yield "Started", run.started
    if versions.get("processor"):
        yield "Machine", _machine(versions)


def _machine(versions: Mapping[str, Any]) -> str:
    threads = f", {versions['threads']} used" if versions.get("threads") else ""
    accelerator = f", {versions['accelerator']}" if versions.get("accelerator") else ""
    return f"{versions['processor']} ({versions.get('cpus')} cores{threads}){accelerator}"


def _training(lines: Sequence[Mapping[str, Any]], entries: Entries, ends: Ends) -> dict[str, Any]:
    curve = Curve("policy", curves.reinforced(lines))
    levels = tables.levels_of(entries)
    additive = bool(curve.lines) and all(
        adds_up(line["reward"], line.get("parts") or {}) for line in curve.lines
    )
    return {
        "learning": curves.learning(
            curve, levels, ends, {end: curves.updates_until(lines, end) for end in ends.names}
        ),
        "learning_caption": _learning_caption(
            curve, ends, any(doctor in ends.anchors for doctor in entries)
        ),
        "unfinished": _unfinished(lines, ends),
        "parts_figure": curves.parts(curve, additive),
        "parts_caption": _parts_caption(curve, additive),
        "health": curves.health(lines),
        "dynamics": dynamics.drawn(curve),
        "trends": dynamics.table(curve),
        "together": dynamics.correlations(curve),
        "plain": dynamics.plain,
    }


def _unfinished(lines: Sequence[Mapping[str, Any]], ends: Ends) -> str:
    """That reinforcement stopped and who was evaluated last; "" where it came to its end."""
    last = learning(lines)
    if last is None or ends.after in (None, TRAINED, last.stage):
        return ""
    stage = f" of {last.stage}" if last.stages > 1 else ""
    return (
        f"Reinforcement stopped at update {last.updates:,}{stage} without an evaluation. The last "
        f"evaluation is that of “{ends.after}”, before these updates."
    )


def _learning_caption(curve: Curve, ends: Ends, anchored: bool) -> str:
    smoothed = "Lines: each step's training episodes, not smoothed."
    if curve.window > 1:
        smoothed = (
            f"Thin: each step's training episodes; thick: their mean over {curve.window} steps."
        )
    points = (
        (
            f"Points: evaluation on test cases, {' (hollow) and '.join(ends.names)}, with "
            "95\u00a0% intervals."
        )
        if ends.names
        else ""
    )
    lines = (
        "Horizontal lines: the anchors on the same test cases."
        if anchored
        else "There are no anchors to draw."
    )
    stages = (
        "The line of the reward breaks where a stage begins: stages may pay for different things, "
        "so compare rewards within a stage alone."
        if curve.borders
        else ""
    )
    return " ".join(text for text in (smoothed, stages, points, lines) if text)


def _parts_caption(curve: Curve, additive: bool) -> str:
    how = (
        "its parts, which add up to it, stacked"
        if additive
        else "its parts as the reward names them, which do not simply add up"
    )
    smoothed = f"; all are means over {curve.window} steps" if curve.window > 1 else ""
    return f"The mean reward of the training episodes (line) and {how}{smoothed}."


def _evaluations(
    run: Run, entries: Entries, ends: Ends, lines: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    played = {name: {"": run.outcomes(name)} for name in ends.names}
    found = tables.by_category(played, run.seed)
    rows, curve = tables.endings(entries), Curve("policy", curves.reinforced(lines))
    looks = outcomes.looks(list(entries), ends)
    return {
        "endings": rows,
        "endings_seen": [
            ending
            for ending in Ending
            if any(ending == part[0] for row in rows for part in row.parts)
        ],
        "ending_class": ENDING_CLASS,
        "category_figure": outcomes.by_category(found, looks),
        "category_heading": "disease category" if found.kind == "category" else found.kind,
        "category_caption": category_caption(found),
        "scatter": outcomes.against_accuracy(tables.levels_of(entries), looks, curve),
        "scatter_caption": _scatter_caption(curve),
    }


def category_caption(found: tables.Categories) -> str:
    count = len(found.groups)
    drawn = f"the {outcomes.MOST} commonest of {count}" if count > outcomes.MOST else f"all {count}"
    instead = " (the cases name no category)" if found.kind == "diagnosis" else ""
    return (
        f"By {found.kind}{instead}, {drawn}, commonest first, with the number of cases; lines: "
        "95\u00a0% intervals."
    )


def _scatter_caption(curve: Curve) -> str:
    points = "Each doctor's mean with its interval in both directions."
    path = (
        f" The line is the policy's path through training, means over {curve.wide} steps."
        if curve.lines
        else ""
    )
    return f"{points}{path} Episodes that found nothing have no noise and no critical share."


def _transcripts(run: Run, ends: Ends, withheld: bool) -> dict[str, Any]:
    players = [] if withheld else [Player(doctor, run, doctor) for doctor in ends.names]
    chosen = transcripts.groups([run.outcomes(player.doctor) for player in players])
    meetings = list(transcripts.shown(players, chosen))
    return {
        "groups": chosen,
        "meetings": meetings,
        "withheld": withheld,
        **transcripts.legend(meetings),
    }


def _files(run: Run) -> Iterator[tuple[str, str]]:
    """What lies beside the report; SQLite's temporary -wal and -shm belong to the database."""
    for path in sorted(run.path.iterdir()):
        ours = path in (run.report, run.transcripts)
        if not ours and not path.name.startswith(".") and not path.name.endswith(("-wal", "-shm")):
            inside = (
                [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
            )
            yield (
                path.name + ("/" if path.is_dir() else ""),
                size(sum(file.stat().st_size for file in inside)),
            )
