"""The `workup` command: words in, one call of the library each, errors in one line.

Everything heavy is imported inside the commands: `workup --help` must answer at once.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from workup.cli import (
    cache,
    claims,
    complete,
    export,
    index,
    lists,
    prepare,
    review,
    scorecard,
    serve,
    study,
    view,
)
from workup.cli.common import (
    CASES,
    EvaluateHelp,
    Source,
    Strict,
    TrainHelp,
    with_way_on,
    write_figures,
)
from workup.core.disk import there
from workup.core.errors import BudgetError, FailuresError, UserError, WorkupError
from workup.core.extras import explained
from workup.core.text import several, unsteering

INTERRUPTED = 130
LONGEST_ERROR = 2_000  # characters of a message: a file's name or value may be of any length
NO_OPTIONS: Mapping[str, str] = {}

app = typer.Typer(
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    help=(
        "Train and evaluate language models that seek evidence before they diagnose. A test "
        "bench, no medical device."
    ),
)
SettingsWords = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="settings, for example steps=200 (`workup settings` lists all)",
        autocompletion=complete.settings,
    ),
]
Out = Annotated[
    Path | None, typer.Option("--out", help="the run folder, new or empty [default: runs/NAME]")
]
Config = Annotated[Path | None, typer.Option("--config", help="a YAML file of settings")]
Json = Annotated[bool, typer.Option("--json", help="one JSON object per event, for machines")]


def main() -> None:
    """Runs the command line.

    Exit status: 0 done, 2 the user's mistake, 1 a failure of ours, 130 after Ctrl-C or SIGTERM.
    """
    # A scheduler's SIGTERM is an interruption: what others have been started for is ended too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Tiny models are slower with several threads on busy cores; threads=N is for free cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # package.module:attribute may name a module in the working directory.
    sys.path.append(str(Path.cwd()))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    # Otherwise the hub's library would send the name of this program to the hub.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    if not sys.warnoptions:
        # What a library will rename one day concerns its callers, not who types a command.
        warnings.simplefilter("ignore", FutureWarning)
    try:
        with explained():
            status = app(sys.argv[1:] or ["--help"], prog_name="workup", standalone_mode=False)
    except typer.Exit as done:
        status = done.exit_code
    except typer.Abort:
        status = INTERRUPTED
    except KeyboardInterrupt:
        status = INTERRUPTED
    except WorkupError as error:
        _tell(str(error))
        status = error.exit_status
    except Exception as error:
        status = _unexpected(error)
    sys.exit(status if isinstance(status, int) else 0)


def _unexpected(error: Exception) -> int:
    # a group without a command: its message is its help
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error)
        return 2
    # Typer has its own copy of click, whose errors have no public base class. They share this
    # method.
    from workup.cli import mistakes

    if hasattr(error, "format_message"):
        _tell(mistakes.line(error))
        return 2
    if (told := mistakes.out_of_memory(error)) is not None:
        _tell(told)
        return 1
    traceback.print_exception(error)
    if (told := mistakes.in_own_code(error)) is not None:
        _tell(told)
        return 2
    _tell("this is a defect of workup; please report it with the lines above")
    return 1


def _tell(problem: str) -> None:
    whole = len(problem) <= LONGEST_ERROR
    shown = problem if whole else f"{problem[:LONGEST_ERROR]} … ({len(problem):,} characters)"
    print(f"error: {unsteering(shown)}", file=sys.stderr)


def _tell_version(asked: bool) -> None:
    if asked:
        print(f"workup {metadata.version('workup')}")
        raise typer.Exit


@app.callback()
def workup(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_tell_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """The options that stand before any command."""


@app.command(cls=TrainHelp)
def train(
    method: Annotated[
        str,
        typer.Argument(
            help="a method's name (`workup methods`), or package.module:attribute",
            autocompletion=complete.methods,
        ),
    ],
    words: SettingsWords = None,
    cases: Annotated[str | None, typer.Option(help=CASES, autocompletion=complete.sources)] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="tiny, smollm2, a model folder, a run folder, or a hub id",
            autocompletion=complete.policies,
        ),
    ] = None,
    out: Out = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Train a policy: warm start, reinforcement, evaluation, report."""
    from workup.loops.training import folds as training
    from workup.report import live
    from workup.runs import settings

    given = {"method": method, **_given(cases=cases, policy=policy)}
    _refuse_idle(words, given)
    read = settings.with_user_config(
        settings.Settings, {**settings.read(words or (), config), **given}
    )
    out = out or _free(f"{method.split(':')[-1]}-{read.cases}")
    with live.show(as_json=as_json) as view:
        _resumable(lambda: training.start(read, out, view), out)


@app.command(cls=TrainHelp)
def cluster(
    method: Annotated[str, typer.Argument(help="a method's name", autocompletion=complete.methods)],
    words: SettingsWords = None,
    cases: Annotated[str | None, typer.Option(help=CASES, autocompletion=complete.sources)] = None,
    policy: Annotated[
        str | None, typer.Option(help="a model folder, a run folder, or a hub id")
    ] = None,
    nodes: Annotated[int, typer.Option(help="machines in the Ray cluster", min=1)] = 1,
    gpus_per_node: Annotated[int, typer.Option(help="GPUs of each machine", min=1)] = 8,
    out: Out = None,
    config: Config = None,
    dry: Annotated[
        bool, typer.Option("--dry", help="check, print verl's configuration, start nothing")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train on many machines, with verl."""
    from workup.cli import cluster as many
    from workup.loops.training import loop as training
    from workup.report import live
    from workup.runs import settings

    place = {"nodes": nodes, "gpus_per_node": gpus_per_node}
    given = {"method": method, "engine": "verl", **_given(cases=cases, policy=policy)}
    _refuse_idle(words, given | {f"verl.{name}": count for name, count in place.items()})
    typed = settings.merge(settings.read(words or (), config), {**given, "verl": place})
    read = settings.with_user_config(settings.Settings, typed)
    out = out or _free(f"{method.split(':')[-1]}-{read.cases}")
    if dry:
        print(many.described(read, out))
        return
    with live.show(as_json=as_json) as view:
        _resumable(lambda: training.start(read, out, view), out)


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(help="the folder of an interrupted run")],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="settings that may change, as in budget=5"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Go on with an interrupted run, training or evaluation."""
    from workup.cli import api
    from workup.report import live
    from workup.runs import settings

    changes = settings.read(words or ())
    with live.show(as_json=as_json) as view:
        _resumable(lambda: api.go_on(run, view, changes), run)


@app.command(cls=EvaluateHelp)
def evaluate(
    policy: Annotated[
        str,
        typer.Argument(
            help=(
                "smollm2, a run or model folder, a hub id, endpoint:NAME, or an anchor ('random "
                "doctor')"
            ),
            autocompletion=complete.policies,
        ),
    ],
    words: SettingsWords = None,
    cases: Annotated[
        str | None,
        typer.Option(help=f"{CASES} [default: those of the run]", autocompletion=complete.sources),
    ] = None,
    suite: Annotated[
        str | None,
        typer.Option(
            help="benchmarks instead of --cases: medr3, clinic, or a YAML file; then several "
            "policies may be named, and several strategies, as in strategy=naive,rag",
            autocompletion=complete.suites,
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="the folder that holds the suite's files")
    ] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="leave out benchmarks whose files are missing")
    ] = False,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="episodes per case; the SD over them is told")
    ] = None,
    out: Out = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Evaluate a policy on cases it has not seen, or on a suite."""
    from workup.loops.evaluation import folds, loop
    from workup.report import live
    from workup.runs import settings

    more = [word for word in words or () if "=" not in word] if suite is not None else []
    settled = [word for word in words or () if word not in more]
    _refuse_idle(settled, _given(policy=policy, cases=cases, **{"evaluation.samples": repeats}))
    values = {**settings.read(settled, config), **_given(cases=cases)}
    if repeats is not None:
        values = settings.merge(values, {"evaluation": {"samples": repeats}})
    if suite is not None:
        asked = _asked(suite, [policy, *more], values, data, partial=partial)
        _play_suite(asked, out or _free(f"{Path(suite).stem}-{Path(policy).name}"), as_json)
        return
    if data is not None or partial:
        raise UserError("--data and --partial belong to a suite: name one, as in --suite medr3")
    read, notes = loop.completed({**values, "policy": policy})
    out = out or _free(f"evaluate-{Path(policy).name}-{read.cases}")
    with live.show(as_json=as_json) as view:
        for note in notes:
            view.note(note)
        _resumable(lambda: folds.start(read, out, view), out)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="run folders")],
    transcripts: Annotated[
        bool, typer.Option("--transcripts", help="show transcripts of restricted cases too")
    ] = False,
) -> None:
    """Write report.html anew for each run."""
    from workup.report import build
    from workup.runs import Run

    for path in runs:
        print(build(Run.open(path), transcripts=transcripts))


@app.command()
def merge(
    policy: Annotated[str, typer.Argument(help="a run that trained adapters, or their folder")],
    folder: Annotated[Path, typer.Argument(help="the model folder to write")],
) -> None:
    """Write a run's policy with its adapters merged into it."""
    from workup.models.weights import write_merged
    from workup.runs.policies import resolve

    place = resolve(policy).weights()
    if folder.exists():
        raise UserError(f"{folder} exists already; name a new folder")
    write_merged(place, folder)
    print(folder)


@app.command()
def compare(
    runs: Annotated[
        list[Path], typer.Argument(help="two or more run folders; differences are to the first")
    ],
    html: Annotated[
        Path | None, typer.Option(help="also write a page, with figures and transcripts")
    ] = None,
    transcripts: Annotated[
        bool, typer.Option("--transcripts", help="show transcripts of restricted cases too")
    ] = False,
    apart: Annotated[
        bool, typer.Option("--apart", help="do not pool runs that differ by their seed alone")
    ] = False,
    measure: Annotated[
        str | None,
        typer.Option(help="show this measure seed by seed [default: accuracy]"),
    ] = None,
    doctor: Annotated[
        str | None,
        typer.Option(
            help="compare this evaluated row of every run, such as 'bayes concludes' "
            "[default: the trained policy]"
        ),
    ] = None,
    json: Annotated[Path | None, typer.Option(help="also write all figures as JSON")] = None,
) -> None:
    """Compare runs, pooled over seeds: intervals and differences."""
    from workup.report import Compared, compare
    from workup.runs import Run

    if len(runs) < 2:
        raise UserError("compare needs two runs or more: workup compare RUN RUN")
    opened = [Run.open(path) for path in runs]
    chosen: Compared = {"apart": apart, "measure": measure, "doctor": doctor}
    compare(opened, html, transcripts=transcripts, json=json, **chosen)


@app.command()
def cases(
    source: Source,
    show: Annotated[
        int, typer.Option("--show", "-n", min=0, help="how many whole cases to show")
    ] = 2,
    seed: Annotated[int, typer.Option(min=0, help="which ones are shown or drawn")] = 0,
    split: Annotated[int, typer.Option(min=0, help="which fifth is held out")] = 0,
    validate: Annotated[
        bool,
        typer.Option(
            "--validate", help="list every row that is no case or looks odd, and nothing else"
        ),
    ] = False,
    overlap: Annotated[
        bool, typer.Option("--overlap", help="count test cases that equal a training case")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="a file for what --overlap counts too, as JSON")
    ] = None,
    strict: Strict = False,
    export: Annotated[
        Path | None, typer.Option(help="write the test cases as a jsonl file")
    ] = None,
    of: Annotated[str, typer.Option(help="which side --export writes: test or train")] = "test",
    sample: Annotated[
        int | None, typer.Option(min=1, help="write so many, drawn uniformly over the diagnoses")
    ] = None,
    restricted: Annotated[
        bool, typer.Option("--restricted", help="write restricted cases too, for you alone")
    ] = False,
) -> None:
    """Look at cases, check a file of them, or write some."""
    from workup.cases import look, open_source

    if export is not None and (validate or overlap):
        asked = "--validate" if validate else "--overlap"
        raise UserError(f"{asked} and --export exclude each other: type one command for each")
    if out is not None and not overlap:
        raise UserError("--out is a file for what --overlap counts: type --overlap too")
    if validate:
        _validate(source)
        return
    opened = open_source(source, split=split, strict=strict)
    if overlap:
        _tell_overlap(opened, out)
        return
    if export is not None:
        if opened.restricted and not restricted:
            raise UserError(
                f"{opened.name}: its cases are restricted, and their text may not be passed on; "
                "--restricted writes a file for you alone"
            )
        _export(opened, export, of, sample, seed)
        return
    if sample is not None:
        raise UserError("--sample writes cases to a file: say which, as in --export sample.jsonl")
    from rich.console import Console

    look.show(opened, Console(highlight=False), n=show, seed=seed)


def _export(opened: Any, path: Path, side: str, size: int | None, seed: int) -> None:
    from workup.cases import jsonl
    from workup.cases.balance import taken

    place = Path(opened.name.partition(":")[2].partition("#")[0]).expanduser()
    beside = jsonl.sidecar_of(place) if place.is_file() else place
    if path.is_file() and path.resolve() in (place.resolve(), beside.resolve()):
        raise UserError(f"--export {path} is the source itself; choose another name")
    chosen = taken(opened, side, size, seed)
    about = {"items": opened.items, "diagnoses": opened.diagnoses, "restricted": opened.restricted}
    jsonl.write(chosen, path, **about)
    print(path)
    print(*opened.notes, sep="\n", file=sys.stderr)


def _validate(source: str) -> None:
    from workup.cases import problems

    file = there(source)
    known = file is not None and file.is_file()
    spec = f"jsonl:{source}" if ":" not in source or known else source
    remarks: list[str] = []
    count = problems(spec, print, lambda remark: remarks.append(f"{remark}"))
    for remark in remarks:
        print(f"remark: {remark}")
    if count:
        raise UserError(f"{source}: {several(count, 'problem')}")
    told = f", {several(len(remarks), 'remark')}" if remarks else ""
    print(f"{source}: valid{told}")


def _tell_overlap(opened: Any, out: Path | None) -> None:
    from rich.console import Console
    from rich.progress import Progress

    from workup.cases import overlap
    from workup.report.sheets import Sheet

    with Progress(console=Console(stderr=True), transient=True) as progress:
        size = min(len(opened.train), overlap.MOST_TRAINED)
        task = progress.add_task("cases", total=size + min(len(opened.test), overlap.MOST_TESTED))
        found = overlap.overlap(opened, lambda: progress.advance(task))
    print(f"{opened.name}: {found}")
    if out is not None:
        row = (opened.name, *(f"{n:,}" for n in (found.tested, found.trained, found.equal)))
        headings = ("source", "test cases", "training cases", "test cases that equal one of these")
        write_figures(out, Sheet(headings, [row]))


@app.command()
def play(
    source: Source,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="the encounter, as in environment.max_turns=6"
        ),
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="a run whose policy gets the same patient")
    ] = None,
    case: Annotated[
        int | None, typer.Option(help="which test case [default: a random one]")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="of the others' draws")] = 0,
    split: Annotated[int | None, typer.Option(min=0, help="whose held-out cases")] = None,
) -> None:
    """Be the doctor; see what you missed and what others asked."""
    from workup.cli.play import play
    from workup.loops.evaluation.loop import as_trained, encounter, open_model
    from workup.rl.rollout import TokenDoctor
    from workup.runs import Run
    from workup.runs.folder import is_run
    from workup.runs.policies import resolve
    from workup.runs.policies.unseen import open_unseen
    from workup.runs.settings import PolicySettings, build, read

    if is_run(Path(source)):
        known = Run.open(source).config.get("cases")
        raise UserError(f"{source} is a run: type workup play {known} --against {source}")
    options = {"seed": "--seed", "split": "--split", "policy": "--against"}
    _refuse_idle(words, {"cases": source}, options)
    policy = resolve(str(against) if against else "random doctor")
    opened, _ = open_unseen(source, [policy], split)
    given = build(PolicySettings, {**read(words or ()), "policy": policy.name, "cases": source})
    rival = None
    if against is not None:
        rival = TokenDoctor(open_model(as_trained(given, policy), policy).policy)
    index = secrets.randbelow(len(opened.test)) if case is None and len(opened.test) else case
    world = encounter(given, policy).open(opened)
    play(opened, index=index, seed=seed, against=rival, environment=world)


app.command()(view.view)
app.command(cls=export.ExportHelp)(export.export)
app.command()(lists.methods)
app.command()(lists.settings)
app.command()(lists.sources)
app.command()(claims.claims)
app.command()(scorecard.exam)
# Other commands come last, so that help lists first what a new user needs.
app.command()(prepare.prepare)
app.add_typer(study.audits, name="audit")
app.add_typer(cache.app, name="cache")
app.add_typer(index.app, name="index")
app.add_typer(review.app, name="review")
app.add_typer(serve.app, name="serve")
app.add_typer(study.studies, name="study")


def _asked(
    suite: str, doctors: list[str], values: dict[str, Any], data: str | None, *, partial: bool
) -> Any:
    from workup.loops.evaluation.suites.play import Asked

    if "cases" in values:
        raise UserError("--suite and --cases exclude each other: a suite names its cases itself")
    return Asked(suite, doctors, values, data, partial)


def _play_suite(asked: Any, out: Path, as_json: bool) -> None:
    from workup.loops.evaluation.suites import play
    from workup.report import live

    with live.show(as_json=as_json) as view:
        _resumable(lambda: play.start(asked, out, view), out)


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _refuse_idle(
    words: Sequence[str] | None, given: Mapping[str, Any], options: Mapping[str, str] = NO_OPTIONS
) -> None:
    """Raises UserError for a typed setting that is `given` already, or is typed as an option."""
    for word in words or ():
        name, equals, value = word.partition("=")
        if equals and name in given:
            raise UserError(f"'{word}' would change nothing: it is {given[name]} already")
        if equals and name in options:
            raise UserError(f"'{word}' would change nothing: type {options[name]} {value}")


def _free(name: str) -> Path:
    """runs/NAME, or the first runs/NAME-2, -3, … that does not exist."""
    slug = "".join(c if c.isalnum() or c in "-." else "-" for c in name).strip("-")[-80:].strip("-")
    candidates = (Path("runs") / (slug + (f"-{k}" if k > 1 else "")) for k in range(1, 10_000))
    return next(path for path in candidates if not path.exists())


def _resumable(work: Any, out: Path) -> None:
    """Says how to go on after Ctrl-C, after a budget that is spent, and after many failures."""
    try:
        work()
    except FailuresError as error:
        raise with_way_on(error, out) from None
    except BudgetError as error:
        raise BudgetError(f"{error}: type `workup resume {quote(str(out))} budget=MORE`") from None
    except KeyboardInterrupt:
        if (out / "config.yaml").exists():
            going = f"workup resume {quote(str(out))}"
            print(f"\nstopped; everything is saved. Go on with:  {going}", file=sys.stderr)
        raise
