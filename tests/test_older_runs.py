"""Runs that were made before the encounter had settings of its own are read in today's words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from workup import methods
from workup.core.errors import UserError
from workup.loops.evaluation.loop import encounter
from workup.runs import Run
from workup.runs.older import translated
from workup.runs.settings import PolicySettings, Settings, build, world


@pytest.mark.parametrize(
    ("config", "environment", "reward"),
    [
        (
            {"method": "craft", "reward": {"alpha": 1.0, "max_turns": 6}},
            {"max_turns": 6},
            {"alpha": 1.0},
        ),
        (
            {"method": "promed", "reward": {"max_turns": 5, "share": None, "persona": "INTJ"}},
            {"max_turns": 5, "share": None, "persona": "INTJ"},
            {},
        ),
        (
            {"method": "cmig", "reward": {"index": "x", "told": "record", "subqueries": 3}},
            {"index": "x", "told": "record", "subqueries": 3},
            {},
        ),
        (
            {"method": "sft-gt", "reward": {"told": "partial", "max_turns": 5}},
            {"max_turns": 5},
            {"told": "partial"},
        ),
    ],
)
def test_what_a_method_was_told_of_its_encounter_moves(
    config: dict[str, Any], environment: dict[str, Any], reward: dict[str, Any]
) -> None:
    found = translated(config)
    assert (found["environment"], found["reward"]) == (environment, reward)
    assert translated(found) == found
    method = methods.load(config["method"])
    build(method.settings, found["reward"], prefix="reward")
    chosen = world(found["environment"], method.environment)
    assert chosen.name == method.environment["name"]
    assert {key: chosen.config[key] for key in environment} == environment


@pytest.mark.parametrize("name", ["medr3", "research", "r1-searcher"])
def test_answers_were_marked_as_printed(name: str) -> None:
    """A run that goes on is paid as it was before `marking` was a setting, and a newer one too."""
    method = methods.load(name)
    now = method.settings().model_dump(mode="json")
    before = {key: value for key, value in now.items() if key != "marking"}
    for reward, marking in ((before, "printed"), (now, "strict")):
        found = translated({"method": name, "environment": {"max_turns": 6}, "reward": reward})
        assert translated(found) == found
        assert build(method.settings, found["reward"], prefix="reward").marking == marking
    for other in ("craft", "cmig", "evidence-seeking"):
        kept = methods.load(other).settings().model_dump(mode="json")
        config = {"method": other, "environment": {}, "reward": kept}
        assert translated(config) == config


def test_what_an_evaluation_was_told_moves() -> None:
    before = {"policy": "p", "cases": "c", "conclude": None}
    old = {"environment": "questioning", "share": 0.5, "persona": None, "index": None}
    found = translated({**before, **old, "max_turns": 11})
    assert found == {
        **before,
        "environment": {"name": "questioning", "share": 0.5, "max_turns": 11},
    }
    assert build(PolicySettings, found).environment["share"] == 0.5
    nothing = dict.fromkeys((*old, "max_turns"))
    assert translated({**before, **nothing}) == {**before, "environment": {}}
    assert translated({"kind": "study"}) == {"kind": "study"}


def test_a_run_folder_of_before_is_evaluated_in_the_encounter_it_was_trained_in(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.yaml").write_text(
        yaml.safe_dump({"method": "promed", "reward": {"max_turns": 5, "share": 0.5}})
    )
    (tmp_path / "versions.json").write_text("{}")
    assert Run.open(tmp_path).settings["reward"] == {}
    given = {"policy": str(tmp_path), "cases": "clinic:xs"}
    trained = encounter(PolicySettings(**given))
    assert (trained.name, trained.settings.max_turns, trained.settings.share) == (
        "questioning",
        5,
        0.5,
    )
    other = encounter(PolicySettings(**given, environment="consultation"))
    assert (other.name, other.settings.max_turns, other.settings.share) == ("consultation", 5, 0.5)
    longer = encounter(PolicySettings(**given, environment={"max_turns": 7}))
    assert (longer.name, longer.settings.max_turns) == ("questioning", 7)


@pytest.mark.parametrize("word", ["max_turns", "index", "share", "persona", "told"])
def test_the_words_of_before_are_answered_with_those_of_today(word: str) -> None:
    said = f"'reward.{word}' is a setting of the environment: write environment.{word}=…"
    with pytest.raises(UserError, match=said):
        build(methods.load("craft").settings, {word: 1}, prefix="reward")
    own = {Settings: {"method": "craft"}, PolicySettings: {"policy": "p", "cases": "c"}}
    for model, given in own.items():
        said = f"'{word}' is a setting of the environment: write environment.{word}=…"
        with pytest.raises(UserError, match=f"^{said}$"):
            build(model, {**given, word: 1})
