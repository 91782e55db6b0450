"""`workup exam`: models at fixed stations, and one page on how they did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from workup.cli import complete
from workup.cli.common import CASES, with_way_on
from workup.core.disk import slug, there
from workup.core.errors import BudgetError, FailuresError, UserError

QUICK, STANDARD = "quick", "standard"
THINKING = 1_024  # tokens a turn of an endpoint; weights have the default


def exam(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL... [KEY=VALUE]...",
            help="endpoint:NAME, a run or model folder, a hub id, smollm2, an anchor; then "
            "settings of `workup evaluate`",
            autocompletion=complete.policies,
        ),
    ],
    quick: Annotated[
        bool, typer.Option("--quick", help="few cases at each station, for a first look")
    ] = False,
    standard: Annotated[
        bool, typer.Option("--standard", help="so many cases that intervals are narrow [default]")
    ] = False,
    cases: Annotated[
        str | None,
        typer.Option(help=f"a station of your own: {CASES}", autocompletion=complete.sources),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="the folder with files of stations that need some")
    ] = None,
    station: Annotated[
        list[str] | None, typer.Option(help="these alone; can be given several times")
    ] = None,
    budget: Annotated[
        float | None, typer.Option(min=0, help="money for all calls; it stops before more is spent")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="its folder; the same command goes on [default: runs/exam-…]"),
    ] = None,
    dry: Annotated[
        bool, typer.Option("--dry", help="show calls, price and time, send nothing")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="one JSON object per event, for machines")
    ] = False,
) -> None:
    """Examine models at fixed stations: a scorecard."""
    from workup.report import live
    from workup.runs.settings import read

    if quick and standard:
        raise UserError("--quick and --standard exclude each other; leave one out")
    size = QUICK if quick else STANDARD
    doctors = [word for word in models if "=" not in word or there(word)]
    values = read([word for word in models if word not in doctors])
    values |= {} if budget is None else {"budget": budget}
    asked = asked_for(doctors, size, values, cases, data, station or ())
    folder = out or Path("runs") / slug(f"exam-{size}-{'-'.join(Path(d).name for d in doctors)}")
    with live.show(as_json=as_json) as view:
        (_foretell if dry else sit)(asked, folder, view)


def _foretell(asked: Any, folder: Path, view: Any) -> None:
    """Shows calls, price and time."""
    from workup.loops.evaluation.suites import play
    from workup.runs.folder import is_run

    _tell(asked, view)
    for line in play.foretell(play.Prepared.of(asked)):
        view.note(line)
    if is_run(folder):
        view.note(f"ahead   {folder} exists: what was played there is not asked for again")


def _tell(asked: Any, view: Any) -> None:
    for note in asked.noted["notes"]:
        view.note(f"note    {note}")


def sit(asked: Any, folder: Path, view: Any) -> None:
    """Starts the exam that is `asked_for`, or goes on with it. Raises UserError, BudgetError."""
    from workup.loops.evaluation.suites import play
    from workup.runs.folder import is_run

    _tell(asked, view)
    try:
        if is_run(folder):
            play.resume(folder, view, _changes(folder, asked.noted, asked.values.get("budget")))
        else:
            play.start(asked, folder, view)
    except FailuresError as error:
        raise with_way_on(error, folder) from None
    except BudgetError as error:
        more = f"the same command with a larger --budget goes on ({folder})"
        raise BudgetError(f"{error}; {more}") from None


def asked_for(
    doctors: Sequence[str],
    size: str,
    values: Mapping[str, Any],
    cases: str | None,
    data: Path | None,
    only: Sequence[str],
) -> Any:
    """What is played: the stations of this size, and the user's own cases.

    A named environment is that of the own cases. Raises UserError for settings that stations
    decide, and for what else the user can mend.
    """
    from workup.loops.evaluation.suites import stations
    from workup.loops.evaluation.suites.play import Asked
    from workup.report.scorecard import LEFT_OUT
    from workup.roles.config import Config
    from workup.runs.settings import in_full

    if not doctors:
        raise UserError("workup exam: name a model, as in workup exam endpoint:mine")
    if named := next((key for key in ("cases", "policy", "strategy") if key in values), None):
        raise UserError(f"{named}=… is no setting of an exam: its stations decide it")
    environment = in_full(values.get("environment"))
    values = {key: value for key, value in values.items() if key != "environment"}
    if environment and cases is None:
        raise UserError("environment=… is for your own cases: name them, as in --cases jsonl:FILE")
    own, told = stations.own_station(cases, environment) if cases else (None, [])
    roles = {**Config.find(None).roles, **in_full(values.get("roles"))}
    suite, left = stations.exam(size, data=bool(data), roles=roles, own=own, only=only)
    settled = {key: value for key, value in values.items() if key != "budget"}
    noted = {"version": suite.version, "size": size, "doctors": list(doctors), "cases": cases}
    noted |= {"data": str(data or ""), "only": list(only), "settings": settled}
    noted |= {"notes": [*told, *(f"{LEFT_OUT}, {line}" for line in left)]}
    place = None if data is None else str(data)
    thinking = {"max_tokens": THINKING}
    return Asked(
        "exam",
        *(doctors, values, place),
        partial=True,
        of_endpoints=thinking,
        made=suite,
        noted=noted,
    )


def _changes(folder: Path, noted: Mapping[str, Any], budget: float | None) -> dict[str, Any]:
    """What changes as an interrupted exam goes on. Raises UserError where it is another one."""
    from workup.report.suite import EXAM
    from workup.runs import Run

    with Run.open(folder) as run:
        kept, arms = run.config.get(EXAM), run.config.get("arms", ())
        last = [each["budget"] for each in run.config.get("changed", ()) if "budget" in each][-1:]
    if kept is None or {**kept, "notes": ()} != {**noted, "notes": ()}:
        raise UserError(f"{folder} holds another exam or run; choose another --out")
    before = last or list({arm["settings"]["budget"] for arm in arms})
    if budget is None or before == [budget]:
        return {}
    return {"budget": budget}
