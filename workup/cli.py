"""The `workup` command: words in, one call of the library each, errors in one line.

Everything heavy is imported inside the commands: `workup --help` must answer at once.
"""

from __future__ import annotations

import os
import secrets
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer

from workup.commands import audit, cache, index, prepare, serve, study
from workup.errors import BudgetError, UserError, WorkupError

INTERRUPTED = 130

SOURCES = "SCHEME:REST, as in clinic:s, ddxplus:PATH[#simulated], mediq:FILE, jsonl:FILE (docs/datasets.md lists all)"

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="Train and evaluate language models that seek evidence before they diagnose. A test bench, no medical device.",
)
SettingsWords = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="settings, for example steps=200")]
Out = Annotated[Path | None, typer.Option("--out", help="the run folder, new or empty [default: runs/NAME]")]
Config = Annotated[Path | None, typer.Option("--config", help="a YAML file of settings")]
Json = Annotated[bool, typer.Option("--json", help="one JSON object per event, for machines")]


def main() -> None:
    """Runs the command line. Exit status: 0 done, 2 the user's mistake, 1 a failure of ours, 130 after Ctrl-C."""
    # Tiny models are slower on contended cores with several threads; whoever has free ones sets threads=N.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # package.module:attribute may name a module in the working directory.
    sys.path.append(str(Path.cwd()))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        status = app(sys.argv[1:] or ["--help"], standalone_mode=False)
    except typer.Exit as done:
        status = done.exit_code
    except typer.Abort:
        status = INTERRUPTED
    except KeyboardInterrupt:
        status = INTERRUPTED
    except WorkupError as error:
        print(f"error: {error}", file=sys.stderr)
        status = error.exit_status
    except Exception as error:
        status = _unexpected(error)
    sys.exit(status if isinstance(status, int) else 0)


def _unexpected(error: Exception) -> int:
    # Typer carries its own copy of click, whose errors have no public base class; this method is what they share.
    if hasattr(error, "format_message"):
        context = getattr(error, "ctx", None)
        hint = f" (see {context.command_path} --help)" if context else ""
        print(f"error: {error.format_message()}{hint}", file=sys.stderr)
        return 2
    traceback.print_exception(error)
    print("error: this is a defect of workup; please report it with the lines above", file=sys.stderr)
    return 1


@app.command()
def train(
    method: Annotated[str, typer.Argument(help="a method's name (`workup methods`), or package.module:attribute")],
    words: SettingsWords = None,
    cases: Annotated[str | None, typer.Option(help=SOURCES)] = None,
    policy: Annotated[str | None, typer.Option(help="tiny, a model folder, a run folder, or a hub id")] = None,
    out: Out = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Train a policy: warm start, reinforcement, evaluation, report."""
    from workup import live, settings, training

    given = {"method": method, **_given(cases=cases, policy=policy)}
    read = settings.build(settings.Settings, settings.furnished({**settings.read(words or (), config), **given}))
    out = out or _free(f"{method.split(':')[-1]}-{read.cases}")
    with live.show(as_json=as_json) as view:
        _resumable(lambda: training.start(read, out, view), out)


@app.command()
def resume(run: Annotated[Path, typer.Argument(help="the folder of an interrupted run")], as_json: Json = False) -> None:
    """Go on with an interrupted run, training or evaluation."""
    from workup import api, live

    with live.show(as_json=as_json) as view:
        _resumable(lambda: api.go_on(run, view), run)


@app.command()
def evaluate(
    policy: Annotated[str, typer.Argument(help="a run or model folder, a hub id, endpoint:NAME, or an anchor ('random doctor')")],
    cases: Annotated[str, typer.Option(help=SOURCES)],
    words: SettingsWords = None,
    repeats: Annotated[int | None, typer.Option(min=1, help="episodes per case; the SD over them is told")] = None,
    out: Out = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Evaluate a policy on cases it has not seen."""
    from workup import evaluation, live, settings

    values = {**settings.read(words or (), config), "policy": policy, "cases": cases}
    if repeats is not None:
        values["evaluation"] = {**values.get("evaluation", {}), "samples": repeats}
    read = settings.build(settings.PolicySettings, settings.furnished(values))
    out = out or _free(f"evaluate-{Path(policy).name}-{cases}")
    with live.show(as_json=as_json) as view:
        _resumable(lambda: evaluation.start(read, out, view), out)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="run folders")],
    transcripts: Annotated[bool, typer.Option("--transcripts", help="show transcripts of restricted cases too")] = False,
) -> None:
    """Write report.html anew for each run."""
    from workup.report import build
    from workup.runs import Run

    for path in runs:
        print(build(Run.open(path), transcripts=transcripts))


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="two or more run folders; differences are to the first")],
    html: Annotated[Path | None, typer.Option(help="also write a page with curves")] = None,
) -> None:
    """One table of several runs, with intervals and paired differences."""
    from workup.report import compare
    from workup.runs import Run

    if len(runs) < 2:
        raise UserError("compare needs two runs or more: workup compare RUN RUN")
    compare([Run.open(path) for path in runs], html)


@app.command()
def cases(
    source: Annotated[str, typer.Argument(help=SOURCES)],
    show: Annotated[int, typer.Option("--show", "-n", min=0, help="how many whole cases to show")] = 2,
    seed: Annotated[int, typer.Option(help="which ones")] = 0,
    validate: Annotated[bool, typer.Option("--validate", help="check every line of a jsonl file, and nothing else")] = False,
    export: Annotated[Path | None, typer.Option(help="write the test cases as a jsonl file")] = None,
) -> None:
    """Look at cases as a person would, or check a file of them."""
    from workup.cases import jsonl, look, open_source

    if validate:
        _validate(source)
        return
    opened = open_source(source, seed=seed)
    if export is not None:
        jsonl.write(opened.test, export, items=opened.items, diagnoses=opened.diagnoses, restricted=opened.restricted)
        print(export)
        return
    from rich.console import Console

    look.show(opened, Console(highlight=False), n=show, seed=seed)


def _validate(source: str) -> None:
    from workup.cases import jsonl

    path = Path(source.removeprefix("jsonl:"))
    problems = list(jsonl.validate(path))
    for problem in problems:
        print(problem)
    if problems:
        raise UserError(f"{path}: {len(problems)} problem{'s' if len(problems) > 1 else ''}")
    print(f"{path}: valid")


@app.command()
def play(
    source: Annotated[str, typer.Argument(help=SOURCES)],
    against: Annotated[Path | None, typer.Option(help="a run whose policy gets the same patient")] = None,
    case: Annotated[int | None, typer.Option(help="which test case [default: a random one]")] = None,
    seed: Annotated[int, typer.Option(help="of the source's split and of the others' draws")] = 0,
) -> None:
    """Be the doctor; at the end see what you missed and what others asked."""
    from workup.cases import open_source
    from workup.play import play

    opened = open_source(source, seed=seed)
    rival, turns = None, 10
    if against is not None:
        from workup.evaluation import as_trained, open_policy
        from workup.settings import PolicySettings

        settings = as_trained(PolicySettings(policy=str(against), cases=source))
        rival, turns = open_policy(settings, str(against)), settings.max_turns or 10
    index = secrets.randbelow(len(opened.test)) if case is None and len(opened.test) else case
    play(opened, index=index, seed=seed, against=rival, max_turns=turns)


@app.command()
def methods(name: Annotated[str | None, typer.Argument(help="one of them, with all its settings")] = None) -> None:
    """List the methods (for `train`) and the strategies (for `evaluate`); with a name, its settings."""
    from workup import methods, strategies

    if name is None:
        _overview("workup train NAME", {each: methods.load(each).summary for each in methods.names()})
        _overview("workup evaluate POLICY strategy=NAME", {each: strategies.load(each).summary for each in strategies.names()})
        return
    if name in strategies.names():
        strategy = strategies.load(name)
        _describe(f"strategy={name}: {strategy.summary}", strategy.Settings, "plan", strategy.paper)
        return
    method = methods.load(name)
    _describe(f"{name}: {method.summary}", method.settings, "reward", method.paper)


def _overview(heading: str, summaries: dict[str, str]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, show_header=False, title=heading, title_justify="left", title_style="bold")
    for name, summary in summaries.items():
        table.add_row(f"  {name}", summary)
    Console(highlight=False).print(table, "")


def _describe(title: str, settings: Any, prefix: str, paper: str) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, show_header=False)
    table.add_column(no_wrap=True)
    for key, field in settings.model_fields.items():
        table.add_row(f"  {prefix}.{key}={escape(str(field.default))}", field.description or "")
    console = Console(highlight=False)
    console.print(f"[bold]{escape(title)}[/bold]\n[dim]{escape(paper)}[/dim]\n")
    if table.rows:
        console.print(table)


# Behind the commands above, so that help lists what a new user needs first.
app.command()(prepare.prepare)
app.add_typer(audit.app, name="audit")
app.add_typer(cache.app, name="cache")
app.add_typer(index.app, name="index")
app.add_typer(serve.app, name="serve")
app.add_typer(study.app, name="study")


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _free(name: str) -> Path:
    """runs/NAME, or the first runs/NAME-2, -3, … that does not exist."""
    slug = "".join(c if c.isalnum() or c in "-." else "-" for c in name).strip("-")[-80:].strip("-")
    candidates = (Path("runs") / (slug + (f"-{k}" if k > 1 else "")) for k in range(1, 10_000))
    return next(path for path in candidates if not path.exists())


def _resumable(work: Any, out: Path) -> None:
    """Says how to go on after Ctrl-C and after a budget that is spent."""
    try:
        work()
    except BudgetError as error:
        raise BudgetError(f"{error}: set budget: in {out / 'config.yaml'}, then type `workup resume {out}`") from None
    except KeyboardInterrupt:
        if (out / "config.yaml").exists():
            print(f"\nstopped; everything is saved. Go on with:  workup resume {out}", file=sys.stderr)
        raise
