"""Writes the pages of docs/reference from the program: `python -m docs.site.reference`.

Everything on these pages is asked of the package itself, by the functions with which the command
line lists it. A test compares the pages with what is rendered here.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

import typer

from workup import cases, engines, environments, methods, prepare
from workup.cases import datasets
from workup.cli import app, fields
from workup.cli.fields import Setting
from workup.core import case, episode, stages
from workup.core import ports as core_ports
from workup.doctors import strategies
from workup.interop import exports
from workup.metrics import calibration, conformal, extra, steps
from workup.metrics import measures as everyday
from workup.metrics.metric import Metric
from workup.models import samplers
from workup.prepare.steps import StepSettings
from workup.report import meanings
from workup.roles import judges as roles_judges
from workup.roles.judges import exact

FOLDER = Path(__file__).parents[1] / "reference"
JUDGEMENTS = {  # module → its exact counterpart
    "diagnosis": exact.ExactJudge,
    "ranking": exact.ExactRanking,
    "answers": exact.ExactAnswer,
    "examinations": exact.ExactExaminations,
    "entailment": exact.ExactEntailment,
}
MADE = "This page is rendered from the program by `make reference`. Do not edit it."


def settings() -> Iterator[str]:
    """Every setting of training and evaluation, with default, range and sense."""
    yield "# Settings"
    yield MADE
    yield (
        "A setting is typed as `KEY=VALUE`. `…` means that a value has to be given. The settings "
        "of a method (`reward.*`), of a strategy and of an environment (`environment.*`) are on "
        "the page of [methods](methods.md). [Settings](../install.md#settings) says how to give "
        "them."
    )
    for title, listed in {**fields.trained(), **fields.evaluated()}.items():
        yield f"## {title[0].upper()}{title[1:]}"
        yield _settings(listed)


def measures() -> Iterator[str]:
    """Every measure with its heading in tables and its meaning."""
    yield "# Measures"
    yield MADE
    yield (
        "[Evaluation](../evaluation.md) says how figures and intervals are made, "
        "[metrics](../metrics.md) how the further measures are computed."
    )
    for title, found in (
        ("Of every episode", everyday.METRICS),
        ("Of probabilities (`evaluation.probabilities`)", calibration.METRICS),
        ("Of a row that stops (`stopping.alpha`)", conformal.METRICS),
        ("Of training steps", steps.METRICS),
    ):
        yield f"## {title}"
        yield _metrics(found)
    yield "## Terms of rewards"
    terms = ((f"`{name}`", meaning) for name, meaning in meanings.TERMS.items())
    yield _table(("term", "meaning"), terms)
    yield "## Taken on request"
    yield "`evaluation.measures=[NAME, NAME:OPTION]` takes these as well."
    for name in extra.names():
        yield f"### {name}"
        yield _module(extra, name)
        yield _metrics(extra.declared(name))
        if roles := sorted(extra.roles([name])):
            yield f"Models may play {_listed(f'`roles.{role}`' for role in roles)}."


def _metrics(declared: Iterable[Metric]) -> str:
    rows = (
        (f"`{each.name}`", each.title, f"{each.range[0]:g} to {each.range[1]:g}", each.meaning)
        for each in declared
    )
    return _table(("measure", "heading", "range", "meaning"), rows)


def commands() -> Iterator[str]:
    """Every command with its arguments and options."""
    yield "# Commands"
    yield MADE
    yield "`workup COMMAND --help` shows the same. `[KEY=VALUE]…` are [settings](settings.md)."
    group: Any = typer.main.get_command(app.app)
    for name, command in group.commands.items():
        yield f"## workup {name}"
        yield _prose(command.help)
        context = typer.Context(command)
        for inner in command.list_commands(context) if hasattr(command, "commands") else ():
            one = command.get_command(context, inner)
            yield f"### workup {name} {inner}"
            yield _prose(one.help)
            yield from _usage(f"workup {name} {inner}", one)
            if hasattr(one, "settings"):  # of a study or an audit
                yield _settings(fields.settings_of(one.settings))
        if not hasattr(command, "commands"):
            yield from _usage(f"workup {name}", command)
    yield "## Formats of workup export"
    for name in exports.names():
        yield f"### {name}"
        yield _module(exports.formats, name)
    yield "## Steps of workup prepare"
    yield "[Preparation](../prepare.md) says what they are for. Every step has these settings:"
    yield _settings(fields.settings_of(StepSettings))
    shared = set(StepSettings.model_fields)
    for name in prepare.names():
        step = prepare.load(name)
        yield f"### {name}"
        yield _module(prepare, name)
        if step.exact:
            yield "`--model exact` does it without a model, where the cases allow it."
        own = [each for each in fields.settings_of(step.settings) if each.name not in shared]
        if own:
            yield _settings(own)


def sources() -> Iterator[str]:
    """Every source of cases with an example."""
    yield "# Sources of cases"
    yield MADE
    yield (
        "`--cases SCHEME:REST` names one. [Cases](../cases.md) says what holds for all of them, "
        "[data sets](../datasets.md) what holds for those that others released."
    )
    for each in cases.schemes():
        yield f"## {each.name}"
        yield _prose(_source(each.name).__doc__)
        yield f"For example `--cases {each.example}`."


def judges() -> Iterator[str]:
    """The five judgements: what a model is asked, and what the exact judge goes by."""
    yield "# Judges"
    yield MADE
    yield "[Judges](../judges.md) says which one to take, and how to measure yours."
    for name, counterpart in JUDGEMENTS.items():
        module = import_module(f"{roles_judges.__name__}.{name}")
        yield f"## {name}"
        yield _prose(module.__doc__)
        yield f"The rubric (`{module.RUBRIC.version}`), as a model reads it:"
        yield "\n".join(f"> {line}  " for line in module.RUBRIC.text.splitlines())
        yield f"### {counterpart.__name__}"
        yield _prose(counterpart.__doc__)


def ports() -> Iterator[str]:
    """The protocols that a part from outside fulfils, and the values that pass through them."""
    yield "# Ports"
    yield MADE
    yield "[Extending](../extending.md) shows how to write a part that fits one of these."
    for module in (case, episode, core_ports, stages, samplers, engines):
        for name, port in vars(module).items():
            if inspect.isclass(port) and port.__module__ == module.__name__:
                yield f"## {name}"
                yield f"`{module.__name__}.{name}`"
                yield _prose(inspect.getdoc(port))
                yield from _members(port)


def methods_() -> Iterator[str]:
    """Methods by paper, strategies and environments, each with its own settings."""
    yield "# Methods, strategies, environments"
    yield MADE
    yield "`workup methods` lists them; `workup settings NAME` shows one with its settings."
    yield "## Methods"
    yield "`workup train NAME` trains one. Under each paper, its own method stands first."
    for names in methods.by_paper().values():
        yield f"### {methods.load(names[0]).paper}"
        rows = ((f"[`{each}`](#{each})", methods.load(each).summary) for each in names)
        yield _table(("method", "what it does"), rows)
    yield "## Strategies"
    yield "`workup evaluate POLICY strategy=NAME` prompts a policy in one of these ways."
    rows = ((f"`{each}`", strategies.load(each).summary) for each in strategies.names())
    yield _table(("strategy", "what it does"), rows)
    yield "## Environments"
    yield "`environment=NAME` is played in place of the one that a method names."
    rows = ((f"`{each}`", environments.load(each).summary) for each in environments.names())
    yield _table(("environment", "what it does"), rows)
    yield "## Settings of methods"
    for names in methods.by_paper().values():
        for name in names:
            yield from _method(name)
    for title, found in (("strategies", strategies), ("environments", environments)):
        yield f"## Settings of {title}"
        for name in found.names():
            own = fields.owner(name)
            yield f"### {name}"
            yield _module(found, name) if found is environments else found.load(name).summary
            yield _settings(own.settings) if own.settings else "It has no settings of its own."


PAGES: Mapping[str, Callable[[], Iterator[str]]] = {
    "settings": settings,
    "measures": measures,
    "commands": commands,
    "sources": sources,
    "methods": methods_,
    "judges": judges,
    "ports": ports,
}


def rendered(page: str) -> str:
    """The text of one page."""
    return "\n\n".join(PAGES[page]()) + "\n"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for page in PAGES:
        (FOLDER / f"{page}.md").write_text(rendered(page), encoding="utf-8")


def _method(name: str) -> Iterator[str]:
    own, method = fields.owner(name), methods.load(name)
    encounter = dict(method.environment)
    played = f"It is trained in the environment `{encounter.pop('name')}`"
    chosen = _listed(f"`environment.{key}={_plain(value)}`" for key, value in encounter.items())
    yield f"### {name}"
    yield _sentence(method.summary)
    yield f"{played}, with {chosen}." if chosen else f"{played}."
    reward = [each for each in own.settings if each.name.startswith("reward.")]
    if reward:
        yield _settings(reward)
    if own.printed:
        yield "`preset=paper` sets what the paper prints:"
        yield _settings(own.printed)


def _source(name: str) -> ModuleType:
    package = datasets if name in {each.name for each in iter_modules(datasets.__path__)} else cases
    return import_module(f"{package.__name__}.{name}")


def _members(port: type) -> Iterator[str]:
    """A table of the members that a class adds to those of its bases, which are named first."""
    bases = [f"`{base.__name__}`" for base in port.__bases__ if getattr(base, "_is_protocol", 0)]
    if bases and bases != ["`Protocol`"]:
        yield f"It has the members of {_listed(bases[:-1])}, and:"
    noted = inspect.get_annotations(port)
    if is_dataclass(port):
        yield f"Fields: {', '.join(f'`{name}: {kind}`' for name, kind in noted.items())}."
        noted = {}
    every = {name: each for name, each in (noted | dict(vars(port))).items() if name[0] != "_"}
    called = {name: each for name, each in every.items() if name in noted or _is_called(each)}
    rows = [
        (f"`{_signature(name, each, noted.get(name))}`", "" if name in noted else _meaning(each))
        for name, each in called.items()
    ]
    if issubclass(port, Enum):
        rows = [(f"`{each.name}`", f"`{each.value}`") for each in port]
    if rows:
        yield _table(("member", "meaning"), rows)


def _is_called(member: Any) -> bool:
    """Whether it is a function or a property, and no default of a field."""
    return inspect.isfunction(member) or isinstance(member, property | classmethod)


def _signature(name: str, member: Any, noted: Any = None) -> str:
    """A function with its types and defaults, an attribute with its type."""
    call = member.fget if isinstance(member, property) else member
    call = call.__func__ if isinstance(call, classmethod) else call
    if not inspect.isfunction(call):
        return f"{name}: {noted}" if noted else name
    found = inspect.signature(call)
    kept = [each for each in found.parameters.values() if each.name not in ("self", "cls")]
    typed = str(found.replace(parameters=kept)).replace("'", "")
    return (
        f"{name}: {found.return_annotation}" if isinstance(member, property) else f"{name}{typed}"
    )


def _meaning(member: Any) -> str:
    return " ".join((inspect.getdoc(member) or "").split()) if member is not None else ""


def _usage(name: str, command: Any) -> Iterator[str]:
    """How a command is typed, and a table of its arguments and options."""
    words = [_argument(each) for each in command.params if each.param_type_name == "argument"]
    yield f"```text\n{' '.join([name, *words, '[OPTIONS]'])}\n```"
    rows = [
        (_typed(each), _default(each), each.help or "")
        for each in command.params
        if each.help and not getattr(each, "hidden", False)
    ]
    if rows:
        yield _table(("argument or option", "default", "meaning"), rows)


def _argument(each: Any) -> str:
    shown: str = each.metavar or each.name.upper()
    if each.required:
        return shown + "..." * (each.nargs == -1 and not each.metavar)
    return shown if shown.startswith("[") else f"[{shown}]"


def _typed(each: Any) -> str:
    if each.param_type_name == "argument":
        return f"`{_argument(each)}`"
    return ", ".join(f"`{option}`" for option in (*each.opts, *each.secondary_opts))


def _default(each: Any) -> str:
    if each.required:
        return "required"
    return "" if each.default in (None, "", False) else f"`{str(each.default).lower()}`"


def _settings(listed: Iterable[Setting]) -> str:
    rows = (
        (
            f"`{each.name}`",
            _value(each.default),
            each.range,
            each.sense,
        )
        for each in listed
    )
    return _table(("setting", "default", "range", "meaning"), rows)


def _value(default: str | None) -> str:
    return "…" if default is None else f"`{default}`" * bool(default)


def _table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of Markdown; a bar within a cell is escaped."""
    heads = list(headings)
    lines = [heads, ["---"] * len(heads), *rows]
    cells = ([text.replace("|", "\\|") for text in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _module(package: ModuleType, name: str) -> str:
    """What the docstring of a module says."""
    return _prose(import_module(f"{package.__name__}.{name.replace('-', '_')}").__doc__)


def _prose(text: str | None) -> str:
    """A docstring's paragraphs and lists; a page of docs/ that it names becomes a link."""
    paragraphs = inspect.cleandoc(text or "").replace("\n- ", "\n\n- ").split("\n\n")
    joined = "\n\n".join(
        f"```text\n{textwrap.dedent(each)}\n```" if each[:4] == " " * 4 else " ".join(each.split())
        for each in paragraphs
    )
    return re.sub(r"docs/(\w+)\.md", r"[\1](../\1.md)", joined)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _listed(words: Iterable[str]) -> str:
    *most, last = [*words] or [""]
    return f"{', '.join(most)} and {last}" if most else last


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    main()
