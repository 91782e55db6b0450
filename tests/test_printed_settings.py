"""`preset=paper`: every method declares what its paper prints, and a run takes it in one word."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import Call

import workup
from workup import methods
from workup.cli.fields import owner
from workup.core.errors import UserError
from workup.methods import craft
from workup.runs import Run, settings
from workup.runs.settings import Settings, flat, world

CMIG = (
    "cmig",
    "search-r1",
    "igpo",
    *(f"autorefine{kind}" for kind in ("", "-embedding", "-icdtree", "-hardsearch", "-harddoc")),
)
RANKED = ("evidence-seeking", "no-examination-reward", "no-hack-detection", "no-hack-penalty")
EVIDENCE = (*RANKED, "binary-list", "single-tau", "direct-diagnosis")

ITEMS: Mapping[str, list[tuple[tuple[str, ...], dict[str, Any]]]] = {
    "CM-2": [
        (("cmig",), {"environment.subqueries": 3}),
        # T_max = 3 searches and the diagnosis, 2,048 tokens in all
        (CMIG, {"environment.max_turns": 1 + 3, "max_tokens": 2048 // 4}),
    ],
    "CM-5": [(("cmig",), {"reward.scorer": "reference"})],
    "CM-6": [(("cmig",), {"reward.w_d": 1, "reward.alpha_d": 1, "reward.order": 2})],
    "CM-7": [(("cmig",), {"reward.w_r": 0.1})],
    "CM-8": [(CMIG, {"reward.w_f": 1})],
    "CM-10": [(CMIG, {"reward.composition": "nonlinear"})],
    "CM-11": [
        (("cmig",), {"reward.granularity": "sequence"}),
        (("igpo",), {"reward.granularity": "turn"}),
    ],
    "CM-12": [
        (CMIG, {"reward.normalise": "group_std", "beta": 0.001, "epsilon": 0.2, "group": 4}),
        (CMIG, {"batch": 64, "lr": 6e-7, "loss_type": "grpo"}),
    ],
    "CM-14": [
        (CMIG[3:], {"reward.w_p": 0.1}),
        (("igpo",), {"reward.scorer": "policy"}),
        (("autorefine-embedding",), {"reward.threshold": 0.6}),
    ],
    "CR-8": [(("craft",), {"reward.variant": "crit"})],
    "CR-10": [(("craft", "outcome"), {"reward.normalise": "group_std", "loss_type": "grpo"})],
    "ES-1": [(EVIDENCE[:-1], {"environment.max_turns": 2})],
    "ES-2": [
        (("direct-diagnosis",), {"environment.max_turns": 1, "environment.told": "record"}),
    ],
    "ES-4": [
        (EVIDENCE, {"reward.malformed": 0.5}),
        (("evidence-seeking", "single-tau", "binary-list"), {"reward.hack": 0.3}),
    ],
    "ES-5": [
        (RANKED, {"reward.tau": 0.8, "reward.tau_informed": 1.5}),
        (("single-tau",), {"reward.tau": 0.8}),
        (("evidence-seeking",), {"reward.rank": "ranked"}),
    ],
    "ES-7": [(("evidence-seeking", "no-hack-penalty", "binary-list"), {"reward.bonus": 0.1})],
    "ES-12": [
        (
            ("verified-sft", "demonstrated"),
            {"lora.r": 8, "lora.alpha": 16, "tuning.lr": 5e-5, "tuning.epochs": 15},
        ),
        (("verified-sft", "demonstrated"), {"tuning.lr_schedule": "cosine", "bf16": True}),
    ],
    # A train batch of 16 episodes is 4 of each of 4 cases; 959 cases, 30 times.
    "ES-13": [
        (EVIDENCE, {"group": 4, "batch": 16 // 4, "lr": 5e-7, "beta": 0.001, "max_tokens": 4096}),
        (EVIDENCE, {"steps": -(-959 * 30 // 4)}),
    ],
    "MR-1": [(("medr3", "research", "r1-searcher", "reference-sft"), {"environment.passages": 5})],
    "MR-3": [(("medr3",), {"reward.partly": 1 / 2})],
    "MR-4": [(("medr3",), {"reward.longest": "shorter"})],
    "MR-5": [(("medr3",), {"reward.least": 3})],
    "MR-8": [(("medr3",), {"reward.recipe": "1>2>3"})],
    "MR-12": [(("reference-sft",), {"reward.references": 5})],
    "MR-14": [
        (("medr3", "research", "r1-searcher"), {"group": 16, "batch": 256, "lr": 1e-6}),
        (("medr3",), {"steps": 41, "concurrency": 64 * 16}),
        (("research",), {"steps": 3 * 41}),
        (("reference-sft",), {"tuning.lr": 2e-5, "tuning.warmup": 0.03}),
        (("reference-sft",), {"tuning.lr_schedule": "cosine"}),
    ],
    "PM-1": [
        (("promed", "grpo", "dpo", "sft", "sft-gt", "dialogt"), {"environment.max_turns": 11}),
    ],
    "PM-4": [(("promed",), {"reward.truncation": "literal", "reward.antithetic": False})],
    "PM-6": [(("promed",), {"reward.process": "sig", "reward.model_aware": True})],
    "PM-8": [
        (("promed",), {"reward.search_alpha": 2, "reward.search_beta": 1}),
        (("promed",), {"reward.exploration": 2.2, "reward.width": 8, "reward.iterations": 5}),
        (("promed",), {"reward.depth": 10, "reward.expand": 1}),
    ],
    "PM-10": [(("promed",), {"reward.shares": "printed"})],
    "PM-11": [
        (("promed",), {"reward.credit": "token", "reward.alpha": 4, "reward.beta": 2}),
        (("promed",), {"reward.handed": 1 / (1 + 3)}),
        (("promed", "grpo"), {"lora.r": 8, "steps": 200, "batch": 1, "group": 4}),
    ],
    "PM-13": [(("sft",), {"reward.samples": 5}), (("dpo",), {"dpo.lr": 5e-6, "dpo.batch": 64})],
}
"""What the items say, typed from their pages and not from the code: methods and values."""


def resolved(method: str, **values: Any) -> dict[str, Any]:
    """All settings of a run of the method, by their names, as its folder would record them."""
    own = methods.load(method)
    read = settings.build(Settings, {"method": method, "policy": "model", **values})
    reward = settings.build(own.settings, read.own_reward, prefix="reward").model_dump(mode="json")
    environment = world(read.environment, own.environment).config
    whole = read.model_dump(mode="json")
    return dict(flat({**whole, "reward": reward, "environment": environment}))


@pytest.mark.parametrize("name", methods.names())
def test_every_method_declares_what_its_paper_prints(name: str) -> None:
    """Each printed setting exists, is taken with the preset, and nothing else changes."""
    declared = methods.printed(methods.load(name))
    assert declared is not None, "a method without a paper declares {}"
    printed = dict(flat(declared))
    usual, chosen = resolved(name), resolved(name, preset="paper")
    assert {key: chosen[key] for key in printed} == printed
    changed = {key for key in chosen if chosen[key] != usual.get(key)} - {"preset"}
    # A mapping that is null without the preset, as `lora` is, has further members with it.
    heads = {key.partition(".")[0] for key in printed}
    assert all(key in printed or key.partition(".")[0] in heads for key in changed)


@pytest.mark.long
@pytest.mark.parametrize("name", methods.names())
def test_the_command_shows_what_is_printed(name: str, call: Call) -> None:
    status, shown, _ = call("settings", name)
    assert status == 0
    table = shown.partition("preset=paper")[2]
    for each in owner(name).printed:
        assert f"  {each.typed} " in table
    names = {each.name for each in owner(name).printed}
    assert names == set(dict(flat(methods.printed(methods.load(name)) or {})))


@pytest.mark.parametrize("item", ITEMS)
def test_what_an_item_names_is_what_is_printed(item: str) -> None:
    for several, values in ITEMS[item]:
        for name in several:
            printed = dict(flat(methods.printed(methods.load(name)) or {}))
            assert {key: printed.get(key) for key in values} == values, name


def test_the_items_speak_of_methods_that_exist() -> None:
    held = {name for each in ITEMS.values() for several, _ in each for name in several}
    assert {"cmig", "craft", "evidence-seeking", "medr3", "promed"} <= held <= set(methods.names())


def test_what_is_given_stays() -> None:
    chosen = resolved(
        "promed",
        preset="paper",
        lr=1e-4,
        reward={"alpha": 1.0},
        environment={"persona": "any"},
        lora={"alpha": 32},
    )
    assert (chosen["lr"], chosen["reward.alpha"], chosen["reward.beta"]) == (1e-4, 1, 2)
    assert (chosen["lora.r"], chosen["lora.alpha"]) == (8, 32)
    assert (chosen["environment.persona"], chosen["environment.max_turns"]) == ("any", 11)
    assert resolved("promed", preset="paper", lora=None)["lora"] is None


def test_the_papers_encounter_is_left_out_of_another_one() -> None:
    assert resolved("craft", preset="paper", environment="questioning")["environment.name"] == (
        "questioning"
    )
    given = {"name": "reasoning", "passages": 2}
    chosen = resolved("cmig", preset="paper", environment=given)
    assert (chosen["environment.passages"], chosen["environment.max_turns"]) == (2, 10)
    assert "environment.subqueries" not in chosen


@pytest.mark.parametrize("given", [["questioning"], 3])
def test_an_environment_of_another_kind_is_refused_as_without_the_preset(given: object) -> None:
    for preset in ("paper", "workup"):
        with pytest.raises(UserError, match="environment"):
            resolved("cmig", preset=preset, environment=given)


def test_the_tiny_policy_takes_what_is_printed_before_its_own() -> None:
    read = settings.build(Settings, {"method": "cmig", "preset": "paper"})
    assert (read.policy, read.lr, read.steps, read.sft.steps) == ("tiny", 6e-7, 180, 1500)


def test_what_a_run_kept_is_read_again_whole() -> None:
    for name in methods.names():
        read = settings.build(Settings, {"method": name, "preset": "paper", "steps": 7})
        again = settings.build(Settings, read.model_dump(mode="json"))
        assert again == read


def test_a_method_without_printed_settings_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = ("paper", "summary", "settings", "environment", "stages")
    bare = SimpleNamespace(**{part: getattr(craft.method, part) for part in parts})
    monkeypatch.setattr(settings.methods, "load", lambda name: bare)
    with pytest.raises(UserError, match="'craft' declares no printed settings: leave out preset"):
        settings.build(Settings, {"method": "craft", "preset": "paper"})


@pytest.mark.long
def test_a_run_records_what_was_printed_and_what_was_not_kept(tmp_path: Path, call: Call) -> None:
    small: dict[str, Any] = {"steps": 1, "batch": 2, "group": 2, "sft": {"steps": 1}}
    run = workup.train(
        "outcome",
        out=tmp_path / "run",
        quiet=True,
        cases="clinic:xs",
        preset="paper",
        reward={"normalise": "none"},
        evaluation={"cases": 2, "anchors": False, "untrained": False},
        **small,
    )
    kept = dict(flat(run.settings))
    assert (kept["preset"], kept["reward.penalty"], kept["reward.normalise"]) == (
        "paper",
        0,
        "none",
    )
    (note,) = [note for note in Run.open(tmp_path / "run").config["notes"] if "preset" in note]
    assert note == (
        "preset=paper: as printed, but for reward.normalise='none' (printed: 'group_std')"
    )
    status, _, told = call("train", "craft", "reward=paper", "--out", str(tmp_path / "x"))
    assert status == 2
    assert "type preset=paper" in told
    assert not (tmp_path / "x").exists()


def test_a_role_that_the_printed_reward_needs_is_asked_for_at_once(
    tmp_path: Path, call: Call
) -> None:
    """U_t is written by the doctor and checked by another model, as printed."""
    told = ("train", "promed", "preset=paper", "--cases", "clinic:xs", "--out", tmp_path / "run")
    status, _, refused = call(*map(str, told))
    assert status == 2
    assert "name one with roles.checker=endpoint:NAME" in refused
    assert not (tmp_path / "run").exists()
