"""What the documentation says can be done, can be done.

Links lead somewhere, commands parse, examples run.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import typer
from pydantic import BaseModel
from safetensors.torch import load_file

import workup
import workup.cases
import workup.methods
from workup import environments
from workup.cases import datasets
from workup.cli import app as cli
from workup.core.errors import UserError
from workup.core.ports import About, Engine, Environment, Lessons, LiveModel, Processes
from workup.core.stages import KeptStage
from workup.doctors import strategies
from workup.environments.consultation import Consultation
from workup.environments.questioning import Questioning
from workup.loops.evaluation.loop import strategy_of
from workup.methods import load
from workup.metrics import extra
from workup.report.live import PlainLive
from workup.runs import settings
from workup.studies.base import task

ROOT = Path(__file__).parents[1]
REFERENCE = ("settings", "measures", "commands", "sources", "methods", "judges", "ports")
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
COMMANDS: Any = typer.main.get_command(cli.app)
SMALL: dict[str, Any] = {
    "steps": 2,
    "batch": 2,
    "group": 2,
    "max_tokens": 8,
    "tiny": {"width": 16, "heads": 2, "layers": 1},
    "sft": {"steps": 2, "batch": 4},
    "evaluation": {"cases": 2, "anchors": False},
    "quiet": True,
}


def fences(page: Path, language: str) -> list[str]:
    return [body for kind, body in FENCE.findall(page.read_text()) if kind == language]


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def command_lines() -> Iterator[tuple[Path, list[str]]]:
    """The words behind `workup` on every line of a plain or shell block that calls it."""
    for page in PAGES:
        blocks = [body for kind in ("", "sh", "bash", "console") for body in fences(page, kind)]
        for line in "\n".join(blocks).splitlines():
            if not re.search(r"(^|/|\s)workup\s+[a-z]", line):
                continue
            # As in a shell, a comment begins behind a blank: clinic:s#renamed holds none.
            words = shlex.split(re.sub(r"\s#.*", "", line))
            at = next((i for i, word in enumerate(words) if Path(word).name == "workup"), None)
            if at is not None:
                yield page, words[at + 1 :]


GUIDE = 30_000  # words in docs/ without results, papers and what is rendered


def test_the_guide_is_short() -> None:
    aside = {"results", "papers", "reference", "site"}
    pages = [page for page in PAGES if page.is_relative_to(ROOT / "docs")]
    kept = [page for page in pages if page.relative_to(ROOT / "docs").parts[0] not in aside]
    words = [re.findall(r"\S*\w\S*", page.read_text(encoding="utf-8")) for page in kept]
    assert 0 < sum(map(len, words)) <= GUIDE


def test_the_guide_of_adapters_types_no_measured_figure() -> None:
    """Such a figure gets old unnoticed; what was measured stands in docs/results."""
    figure = re.compile(r"(?<![\w.])0?\.\d{2,}|\d seconds")
    pages = [*(ROOT / "docs/adapters").glob("*.md")]
    assert len(pages) > 3
    assert not [(page.name, *found) for page in pages if (found := figure.findall(prose(page)))]


def leads_nowhere(page: Path, target: str) -> bool:
    path, _, anchor = target.partition("#")
    there = (page.parent / path).resolve() if path else page
    if not there.exists():
        return True
    return bool(anchor) and anchor not in map(
        slug, re.findall(r"^#+ (.*)$", there.read_text(), re.MULTILINE)
    )


def test_every_relative_link_leads_somewhere() -> None:
    links = [
        (page, target)
        for page in PAGES
        for target in LINK.findall(page.read_text())
        if "://" not in target
    ]
    assert len(links) > 20
    assert not [
        f"{page.relative_to(ROOT)}: {target}"
        for page, target in links
        if leads_nowhere(page, target)
    ]


@pytest.mark.long
@pytest.mark.parametrize(
    ("page", "words"), [pytest.param(page, words, id=page.name) for page, words in command_lines()]
)
def test_every_command_line_parses(
    page: Path, words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(ROOT)
    offer(monkeypatch, tmp_path)
    assert words[0] in COMMANDS.commands, f"{page.name}: no command '{words[0]}'"
    context = COMMANDS.commands[words[0]].make_context(words[0], words[1:])
    given = context.params.get("words") or []
    if words[0] in ("study", "audit"):
        command = context.command.get_command(context, words[1])
        given = command.make_context(words[1], words[2:]).params
        view = PlainLive(StringIO())
        task.commissioned(words[0], words[1], given["words"] or [], given["cases"], view)
    elif words[0] == "train":
        method = load(context.params["method"])
        read = settings.read(given, context.params["config"])
        built = settings.build(settings.Settings, {**read, "method": context.params["method"]})
        settings.build(method.settings, built.own_reward, prefix="reward")
        settings.world(built.environment, method.environment)
    elif words[0] == "evaluate":
        if context.params["suite"]:  # several policies may stand between the settings
            given = [word for word in given if "=" in word]
        built = settings.build(
            settings.PolicySettings, {**settings.read(given), "policy": "p", "cases": "c"}
        )
        settings.world(built.environment, {"name": "consultation"})
        if not context.params["suite"]:  # its strategies may be several
            strategy_of(built)


def test_commands_beside_figures_name_what_the_tiny_policy_is_trained_with() -> None:
    """A default that changes later must not change what they give."""
    decisive = {"steps", "lr", "sft.steps", "sft.lr", "max_tokens", "evaluation.cases"}
    measured = {page: page.read_text().partition("\n## Measured")[2] for page in PAGES}
    measured |= {page: page.read_text() for page in PAGES if page.parent == ROOT / "docs/results"}
    found = [
        (page.name, line, decisive - {word.partition("=")[0] for word in shlex.split(line)})
        for page, text in measured.items()
        for line in re.findall("^workup train .*$", text, re.MULTILINE)
        if "--policy" not in line
    ]
    assert found
    assert [each for each in found if each[2]] == []


def keys(model: type[BaseModel]) -> Iterator[str]:
    """Every setting's name, and with a dot those of the models inside."""
    for name, field in model.model_fields.items():
        yield name
        for option in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(option, type) and issubclass(option, BaseModel):
                yield from (f"{name}.{inner}" for inner in keys(option))


def test_commands_named_in_a_sentence_exist() -> None:
    named = [
        (page.name, name) for page in PAGES for name in re.findall(r"`workup ([a-z]+)", prose(page))
    ]
    assert len(named) > 5
    assert not [(page, name) for page, name in named if name not in COMMANDS.commands]


def test_settings_named_in_a_sentence_exist() -> None:
    rewards = {
        name for method in workup.methods.names() for name in load(method).settings.model_fields
    }
    known = {
        *keys(settings.Settings),
        *keys(settings.PolicySettings),
        *rewards,
        *(f"reward.{name}" for name in rewards),
        *(f"environment.{name}" for name in environments.settings()),
    }
    known |= {
        f"strategy.{key}"
        for name in strategies.names()
        for key in strategies.load(name).settings.model_fields
    }
    known |= {
        key
        for room in get_args(task.Room)
        for name in task.names(room)
        for key in task.load(room, name).settings.model_fields
    }
    known |= {
        f"roles.{role}"
        for role in (
            *extra.roles(extra.names()),
            *Consultation(()).role_names,
            *Questioning(Consultation(())).role_names,
        )
    }
    known |= {
        "key",
        "a.b",
        "quiet",
        "merged",
        "reward.kappa",
    }  # placeholders, Python keywords, and the example method's own
    named = [
        (page.name, key)
        for page in PAGES
        for key in re.findall(r"`([a-z_]+(?:\.[a-z_]+)*)=[^`]*`", prose(page))
    ]
    assert len(named) > 10
    assert not [(page, key) for page, key in named if key not in known]


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text())


@pytest.mark.long
def test_the_examples_of_the_python_page_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORKUP_CACHE", str(tmp_path / "cache"))
    blocks = fences(ROOT / "docs/python.md", "python")
    assert len(blocks) > 5
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), namespace)
    assert (tmp_path / "runs/mine/report.html").exists()


def offer(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Puts the examples of extending.md where their headings say.

    They are a measure, a method's folder and the files of two sources; modules outside are in
    examples/.
    """
    measure, questions = fences(ROOT / "docs/extending.md", "python")
    source, method = ((ROOT / f"examples/{name}.py").read_text() for name in ("colds", "finders"))
    for name, text in (
        ("methods/finders/__init__.py", method),
        ("methods/finders/README.md", "# Finders\n"),
        ("extra/soon.py", measure),
        ("cases/colds.py", source),
        ("datasets/quiz.py", questions),
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(
        workup.methods, "__path__", [*workup.methods.__path__, str(folder / "methods")]
    )
    monkeypatch.setattr(extra, "__path__", [*extra.__path__, str(folder / "extra")])
    monkeypatch.setattr(workup.cases, "__path__", [*workup.cases.__path__, str(folder / "cases")])
    monkeypatch.setattr(datasets, "__path__", [*datasets.__path__, str(folder / "datasets")])
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.syspath_prepend(str(ROOT / "examples"))


@pytest.fixture
def extended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORKUP_CACHE", str(tmp_path / "cache"))
    offer(monkeypatch, tmp_path)
    return tmp_path


def test_the_example_measure_is_taken_in_an_evaluation(extended: Path) -> None:
    from handmade import CASES, Script, opened, play

    script = Script("<ask>sputum</ask>", "<examine>crackles</examine>", "<diagnose>Flu</diagnose>")
    episode = play(script, opened(load("outcome")), CASES[1])

    def taken(spec: str) -> object:
        (measure,) = extra.open_measures([spec], [episode.case])
        return asyncio.run(extra.take([measure], episode, False))[1]

    assert taken("soon") == {"first_critical": 2}
    assert taken("soon:2") == {"first_critical": 1}
    assert taken("soon:4") == {"first_critical": None}
    evaluation = {"cases": 4, "anchors": False, "measures": ["soon"]}
    run = workup.evaluate(
        "random doctor", cases="clinic:s", out="run", evaluation=evaluation, quiet=True
    )
    (figures,) = run.summary["doctors"].values()
    values = [record.measures["first_critical"] for record in run.episodes()]
    known = [value for value in values if value is not None]
    assert figures["first_critical"]["mean"] == pytest.approx(sum(known) / len(known))


def test_the_example_method_keeps_the_contract(extended: Path) -> None:
    from handmade import opened
    from test_methods_contract import (
        check_reinforcement,
        groups,
        test_settings_are_described_and_closed,
    )
    from workup.methods.finders import method  # type: ignore[import-not-found]

    test_settings_are_described_and_closed("finders")
    environment = opened(method)
    _, reinforce = method.stages(method.settings(), environment)
    check_reinforcement(reinforce, groups(environment))


def test_the_example_method_pays_a_finding_once_and_to_its_turn(extended: Path) -> None:
    from handmade import CASES, Script, opened, play
    from workup.methods.finders import method, score

    environment = opened(method)
    told = Script(
        "<examine>crackles</examine>",
        "<examine>crackles</examine>",
        "<ask>sputum</ask>",
        "<diagnose>Flu</diagnose>",
    )
    episode = play(told, environment, CASES[1])
    assert score(episode, 1.0, method.settings(kappa=0.3)).turns == pytest.approx(
        (0.3, 0.0, 0.2, 1.0)
    )


def test_the_example_of_stages_keeps_the_contract(extended: Path) -> None:
    from handmade import opened
    from test_methods_contract import check_exploration

    from workup.core.stages import SearchStage

    method = load("best_of_four:method")
    environment = opened(method)
    _, explore, rehearse = method.stages(method.settings(), environment)
    assert isinstance(explore, SearchStage)
    assert rehearse == KeptStage("imitation", of=explore.name)
    check_exploration(explore, environment)


def test_the_example_source_opens(extended: Path) -> None:
    source = workup.open_source("colds:50", split=3)
    assert (len(source.train), len(source.test)) == (50, 10)
    again = workup.open_source("colds:50", split=3)
    assert [source.train[i] for i in range(50)] == [again.train[i] for i in range(50)]
    assert {source.train[i].truth.diagnosis for i in range(50)} == set(source.diagnoses)
    with pytest.raises(UserError, match="Did you mean 'colds:50'"):
        workup.open_source("cold:50")


def test_the_example_method_trains_on_the_example_source(extended: Path) -> None:
    assert "finders" in workup.methods.names()
    run = workup.train("finders", cases="colds:50", out="run", reward={"kappa": 0.3}, **SMALL)
    assert run.config["reward"]["kappa"] == 0.3
    assert all(
        set(record.score.parts) == {"found", "acc", "malformed"}
        for record in run.episodes(phase="train")
        if record.score
    )


def test_the_example_environment_refuses_and_trains_from_outside(extended: Path) -> None:
    from handmade import CASES, Script, opened, play

    own = {"name": "scarce:Scarce"}
    asked = ["<test>lipase</test>"] * 4
    episode = play(
        Script(*asked, "<diagnose>Flu</diagnose>"),
        opened(load("outcome"), **own),
        CASES[2],
    )
    assert [bool(turn.observation.evidence) for turn in episode.turns] == [
        True,
        True,
        True,
        False,
        False,
    ]
    plain, troubled = (opened(load("outcome"), **own, dose=dose, closed=True) for dose in (0, 1))
    consulted = opened(load("outcome"), dose=1, closed=True)
    script = Script("<ask>fever</ask>", "<ask>shoe size</ask>", "<diagnose>Flu</diagnose>")
    one, two, three = (play(script, each, CASES[2]) for each in (plain, troubled, consulted))
    assert one.turns != two.turns == three.turns, "a setting of the consultation has no effect"
    own["granted"] = 2
    run = workup.train("outcome", cases="clinic:xs", out="run", environment=own, **SMALL)
    assert run.config["environment"]["granted"] == 2


QUESTIONS = (
    {"stem": "A man has a cough. What is it?", "options": ["A cold", "Gout"], "right": 0},
    {"stem": "A woman has a sore toe. What is it?", "options": ["A cold", "Gout"], "right": 1},
    {"stem": "A child has a rash. What is it?", "options": ["Measles", "Gout"], "right": None},
    {"stem": "A man sneezes. What is it?", "options": ["A cold", "Gout"], "right": 2},
    {"stem": "A man sleeps. What is it?", "options": "none"},
)


def test_the_example_question_set_opens_and_tells_what_is_no_question(extended: Path) -> None:
    for name, rows in (("train", QUESTIONS[1:]), ("test", QUESTIONS[:1])):
        lines = "".join(f"{json.dumps(row)}\n" for row in rows)
        path = extended / "set" / f"{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text(lines)
    source = workup.open_source("quiz:set")
    assert [len(source.train), len(source.test)] == [1, 1]
    case = source.train[0]
    assert (case.presentation, case.question) == ("A woman has a sore toe.", "What is it?")
    assert (case.options, case.truth.diagnosis) == (("A cold", "Gout"), "Gout")
    assert any("1 dropped: its answer is not published" in note for note in source.notes)
    (left,) = [note for note in source.notes if "left out" in note]
    assert left.startswith("2 of 5 rows left out")
    assert "line 3: 'right' is no place of an option" in left
    assert "line 4, field 'options'" in left


@pytest.mark.long
def test_the_example_sampler_draws_what_the_local_one_draws(extended: Path) -> None:
    runs = [
        workup.train("craft", cases="clinic:xs", out=name, sampler=name, **SMALL)
        for name in ("plain:sampler", "local")
    ]
    assert runs[0].config["sampler"] == "plain:sampler"
    plain, local = (
        [
            (turn.completion, turn.prompt_tokens)
            for record in run.episodes()
            for turn in record.episode.turns
        ]
        for run in runs
    )
    assert len(plain) == len(local) > 4
    for (mine, read), (theirs, also) in zip(plain, local, strict=True):
        assert (mine.text, mine.tokens, mine.truncated, read) == (
            theirs.text,
            theirs.tokens,
            theirs.truncated,
            also,
        )
        assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)


@pytest.mark.long
def test_the_example_engine_trains_the_last_layer_alone(extended: Path) -> None:
    two = {"width": 16, "heads": 2, "layers": 2}
    before = workup.train("outcome", cases="clinic:xs", out="before", **{**SMALL, "tiny": two})
    own = {**SMALL, "engine": "last_layer:engine", "warm_start": True}
    after = workup.train("outcome", cases="clinic:xs", out="after", policy="before", **own)
    start, end = (load_file(run.policy / "model.safetensors") for run in (before, after))
    moved = {name for name in start if not torch.equal(start[name], end[name])}
    assert moved
    assert all(".layers.1." in name for name in moved)
    with pytest.raises(UserError, match=r"leave out lora\.r"):
        workup.train("outcome", cases="clinic:xs", out="no", lora={"r": 2}, **own)


@pytest.mark.parametrize(
    ("ports", "name", "after"),
    [
        ((Environment, About, Lessons), "extending", "Only what is played has to be written"),
        ((Engine,), "reference/ports", "\n## Engine\n"),
        ((LiveModel,), "reference/ports", "\n## LiveModel\n"),
        ((Processes,), "reference/ports", "\n## Processes\n"),
    ],
)
def test_every_member_of_a_port_is_in_its_table(
    ports: tuple[type, ...], name: str, after: str
) -> None:
    from test_ports import members

    page = (ROOT / f"docs/{name}.md").read_text()
    table = page.partition(after)[2].partition("\n|")[2].partition("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)[(`:]", row)}
    own = {"role_names", "with_models"}  # what an environment has in place of its sides
    sides = {"about", "lessons", "roles"} if Environment in ports else set()
    assert named - own == set().union(*map(members, ports)) - sides


@pytest.mark.parametrize("page", REFERENCE)
def test_the_reference_is_what_the_program_says(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    reference = import_module("docs.site.reference")
    written = (ROOT / f"docs/reference/{page}.md").read_text(encoding="utf-8")
    assert written == reference.rendered(page), "the page is out of date; type: make reference"


def test_every_page_of_the_reference_is_compared() -> None:
    written = {page.stem for page in (ROOT / "docs/reference").glob("*.md")}
    assert written == {"README", *REFERENCE}


def test_make_help_is_in_two_columns() -> None:
    told = subprocess.run(
        ["make", "--no-print-directory", "help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = told.stdout.splitlines()
    assert len(lines) > 5
    starts = {re.match(r"\S+ +(?=\S)", line).end() for line in lines}  # type: ignore[union-attr]
    assert len(starts) == 1, told.stdout


def test_make_targets_named_in_the_documentation_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        name
        for page in PAGES
        for name in re.findall(r"(?:^|`)make ([a-z]+)", page.read_text(), re.MULTILINE)
    }
    assert {"demo", "test"} <= named <= targets


INSTALLS = re.compile(r"([^\s`(]*pip) install ([^`\n]*)")


def installs() -> Iterator[tuple[str, str, str]]:
    """Page, program and words of every `pip install` in the documentation and in messages."""
    for page in [*PAGES, *(ROOT / "src").rglob("*.py")]:
        for pip, words in INSTALLS.findall(page.read_text()):
            yield page.name, pip, words.partition("&&")[0]


def test_what_pip_is_told_to_install_exists() -> None:
    """No package index has Workup: its extras are installed from the clone."""
    found = list(installs())
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    known = {f".[{extra}]" for extra in extras["optional-dependencies"]}
    named = {word for _, _, words in found for word in re.findall(r"-e '?([^'\s]+)'?", words)}
    assert len(named) > 8
    folders = {name for name in named if (ROOT / name / "pyproject.toml").is_file()}
    assert named - folders <= known
    assert not [each for each in found if re.search(r"workup(\[|\s|$)", each[2])]
    assert not [each for each in found if "-e" in each[2] and not each[1].startswith(".venv")]


def test_the_documentation_names_no_place_of_ours() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("no checkout")
    pages = [ROOT / name for name in listed.stdout.split()]
    assert not [
        page.name
        for page in pages
        if re.search(r"(?<![\w.~])/(?:work|home|root|tmp)/", page.read_text())
    ]
