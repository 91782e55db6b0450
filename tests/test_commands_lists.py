"""What `workup settings`, `sources` and `methods` list is what the models and modules say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import pytest
import typer
from command_line import Call
from pydantic import BaseModel, ValidationError

from workup import cases, methods
from workup.cli import app as cli
from workup.cli.fields import SLIPS, evaluated, settings_of, trained
from workup.doctors import strategies
from workup.runs import settings
from workup.runs.settings import PolicySettings, Settings

# Another policy than the tiny one, which has defaults of its own.
GIVEN = {
    Settings: {"method": "craft", "policy": "p"},
    PolicySettings: {"policy": "p", "cases": "c"},
}
COMMANDS: Any = typer.main.get_command(cli.app)


def every(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(name, pydantic's own field) of every setting, found without the JSON Schema."""
    for name, field in model.model_fields.items():
        options = (field.annotation, *getattr(field.annotation, "__args__", ()))
        inner = [each for each in options if isinstance(each, type) and issubclass(each, BaseModel)]
        several = getattr(field.annotation, "__origin__", None) is dict
        if inner:
            yield from every(inner[0], f"{prefix}{name}.{'NAME.' if several else ''}")
        else:
            yield f"{prefix}{name}", field


def at(value: Any, name: str) -> Any:
    for part in name.split("."):
        value = getattr(value, part)
    return value


@pytest.mark.parametrize("model", [Settings, PolicySettings])
def test_every_setting_is_listed_once_and_says_what_it_means(model: type[BaseModel]) -> None:
    names = [name.removesuffix(".NAME") for name in (each.name for each in settings_of(model))]
    assert names == [name for name, _ in every(model)]
    assert len(set(names)) == len(names) > 30
    assert not [each.name for each in settings_of(model) if not each.sense or not each.range]


@pytest.mark.parametrize("model", [Settings, PolicySettings])
def test_a_default_is_what_one_types_for_it(model: type[BaseModel]) -> None:
    """What is listed as name=default, typed as a word, changes nothing."""
    default = settings.build(model, GIVEN[model])
    typed = [
        each for each in settings_of(model) if each.default is not None and "NAME" not in each.name
    ]
    assert len(typed) > 20
    for each in typed:
        read = settings.build(model, {**settings.read([each.typed]), **GIVEN[model]})
        if not each.name.startswith("lora."):  # there is no adapter unless one is asked for
            assert at(read, each.name) == at(default, each.name), each


def test_the_tiny_policy_has_defaults_of_its_own_and_they_are_listed() -> None:
    tiny, other = (settings.build(Settings, given) for given in ({"method": "m"}, GIVEN[Settings]))
    assert (tiny.sft.steps, tiny.sft.lr, tiny.lr, tiny.steps) == (1500, 4e-3, 1e-3, 1000)
    assert (other.sft.steps, other.sft.lr, other.lr, other.steps) == (200, 2e-3, 3e-4, 500)
    listed = {each.name: each for group in trained().values() for each in group}
    for name in ("sft.steps", "sft.lr", "lr", "steps", "evaluation.cases"):
        assert f"(tiny policy: {at(tiny, name):g})" in listed[name].sense
    given = {"method": "m", "sft": {"steps": 7}}
    chosen = settings.build(Settings, given)
    assert (chosen.sft.steps, chosen.sft.lr, chosen.sft.batch) == (7, 4e-3, 32)
    # What a run folder keeps is whole: read again, nothing in it changes.
    assert settings.build(Settings, other.model_dump(mode="json")) == other


MODELS: list[tuple[str, Any]] = [
    ("", Settings),
    ("", PolicySettings),
    *(("reward.", methods.load(name).settings) for name in methods.names()),
    *(("strategy.", strategies.load(name).settings) for name in strategies.names()),
]


def taken(model: type[BaseModel], name: str, value: object) -> bool:
    """Whether pydantic takes this value for the setting of this name."""
    for part in reversed(name.split(".")):
        value = {part: value}
    values: Any = {**GIVEN.get(model, {}), **value}  # type: ignore[dict-item]
    if "endpoints" in values:
        values["endpoints"]["NAME"] = {"base_url": "http://x", "model": "m"} | values["endpoints"][
            "NAME"
        ]
    try:
        model.model_validate(values)
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize(("prefix", "model"), MODELS)
def test_ranges_are_those_that_are_enforced(prefix: str, model: type[BaseModel]) -> None:
    """A setting at its bound is accepted; one beyond it and a choice not listed are refused."""
    for each in settings_of(model):
        whole = "whole" in each.range
        for word, limit in re.findall(r"(from|to|above|below) (-?[\d.,e+]+)", each.range):
            plain = limit.replace(",", "")
            bound, step = (int(plain), 1) if whole else (float(plain), 1e-6)
            below, beyond = bound - step, bound + step
            assert taken(
                model,
                each.name,
                {"from": bound, "above": beyond, "to": bound, "below": below}[word],
            )
            assert not taken(
                model,
                each.name,
                {"from": below, "above": bound, "to": beyond, "below": bound}[word],
            )
        if re.fullmatch(r"[\w-]+( \| [\w-]+)+", each.range) and each.range != "true | false":
            for choice in each.range.split(" | "):
                assert taken(model, each.name, int(choice) if choice.isdigit() else choice), each
            assert not taken(model, each.name, "nonsense"), each


def test_the_ranges_tell_every_bound_that_there_is() -> None:
    """The same the other way round: what the models bound is in what is listed.

    Bounds that catch slips alone are not: they would stand behind every number.
    """
    words = {"ge": "from", "gt": "above", "le": "to", "lt": "below"}
    for prefix, model in MODELS:
        listed = {
            each.name.removesuffix(".NAME"): each.range for each in settings_of(model, prefix)
        }
        for name, field in every(model, prefix):
            for bound in field.metadata:
                for attribute, word in words.items():
                    if (limit := getattr(bound, attribute, None)) not in (None, *SLIPS):
                        assert f"{word} {limit:{'g' if limit < 1e6 else ','}}" in listed[name], name


@pytest.mark.long
def test_settings_are_listed_searched_and_hinted_at(call: Call) -> None:
    status, out, _ = call("settings")
    assert status == 0
    for group in (trained(), evaluated()):
        for each in (each for several in group.values() for each in several):
            assert re.search(
                rf"^ +{re.escape(each.typed)}  .*{re.escape(f'[{each.range}]')}", out, re.MULTILINE
            ), each
    status, out, _ = call("settings", "EPS")
    names = re.findall(r"^ +([\w.]+)=", out, re.MULTILINE)
    assert (status, set(names)) == (
        0,
        {"epsilon", "epsilon_high", "reward.epsilon", *(n for n in names if "steps" in n)},
    )
    assert {"steps", "sft.steps"} <= {
        *re.findall(r"^ +([\w.]+)=", call("settings", "steps")[1], re.MULTILINE)
    }
    assert "promed" in out, "it says whose setting it is"
    assert "reward.variant=crit" in call("settings", "craft")[1]
    assert "strategy.threshold=" in call("settings", "mediq")[1]
    sft = call("settings", "sft")[1]
    assert "reward.samples=" in sft, "the method of this name"
    assert "sft.steps=" in sft, "and the settings of this name"
    assert (
        call("settings", "stesp")[2]
        == "error: no setting 'stesp'. Did you mean 'steps'? (`workup settings` lists all)\n"
    )
    assert "Did you mean 'craft'?" in call("settings", "crfat")[2]


def test_every_heading_stands_for_something(call: Call) -> None:
    groups = trained()
    assert all(groups.values())
    assert sum(map(len, groups.values())) == len([*settings_of(Settings)])
    assert "Everything that decides a training run" in groups
    assert any(heading.startswith("sft: ") for heading in groups)


def test_what_evaluate_has_of_its_own_is_listed() -> None:
    (only,) = evaluated().values()
    names = {each.name for each in only}
    assert {"strategy", "conclude", "max_tokens", "policy"} <= names
    assert not {"budget", "evaluation.cases", "threads"} & names


def test_sources_are_discovered_each_with_a_line_and_an_example(call: Call) -> None:
    status, out, _ = call("sources")
    assert status == 0
    found = cases.schemes()
    assert {"clinic", "ddxplus", "jsonl", "mediq", "medqa", "mimiciv"} <= {
        each.name for each in found
    }
    for each in found:
        assert re.search(rf"^{each.name}: \S.{{20,}}$", out, re.MULTILINE), each
        assert each.example.startswith(f"{each.name}:")
        assert each.example != f"{each.name}:FILE", "the module names no example of its own"
        assert f"--cases {each.example}\n" in out
    assert (
        call("cases", "clinic")[2]
        == "error: 'clinic' lacks the rest of the source: write it as in 'clinic:s'\n"
    )
    assert "Did you mean 'clinic:s'? (`workup sources` lists all)" in call("cases", "klinic:s")[2]


def leaves(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield words
    if hasattr(command, "list_commands"):
        context = typer.Context(command)
        for name in command.list_commands(context):
            yield from leaves(command.get_command(context, name), (*words, name))


@pytest.mark.long
@pytest.mark.parametrize("words", leaves(COMMANDS), ids=" ".join)
def test_every_help_fits_eighty_columns_and_cuts_nothing(
    words: tuple[str, ...], call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    status, out, _ = call(*words, "-h")
    assert (status, out) == call(*words, "--help")[:2]
    assert status == 0
    assert out.startswith("Usage: workup")
    assert not [line for line in out.splitlines() if len(line) > 80]
    assert not [
        line
        for line in out.splitlines()
        if line.endswith("...") and "Usage" not in line and "]..." not in line
    ]


def test_help_of_train_and_evaluate_ends_with_common_settings(call: Call) -> None:
    for command, model in (("train", Settings), ("evaluate", PolicySettings)):
        tail = call(command, "--help")[1].partition("Common settings")[2]
        listed = {each.typed for each in settings_of(model)}
        shown = re.findall(r"^  (\S+=\S*)", tail, re.MULTILINE)
        assert len(shown) >= 8
        assert {*shown} <= listed
        assert "workup settings" in tail


def test_the_version_is_told(call: Call) -> None:
    assert call("--version") == (0, f"workup {metadata.version('workup')}\n", "")


def test_a_group_without_a_command_shows_its_help(call: Call) -> None:
    for name in ("audit", "cache", "index", "serve", "study"):
        status, out, err = call(name)
        assert (status, err) == (2, "")
        assert out.startswith(f"Usage: workup {name}")
