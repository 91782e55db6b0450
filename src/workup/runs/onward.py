"""The command that trains on from where a run ended: a new run, with the same settings.

It begins with the run's policy and repeats its last reinforcement stage, with as many updates
again. Its learning rate falls to 0, because one that stays takes away some of what was learned: a
constant rate begins where it was and falls from there, one that had fallen begins at half its peak.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from workup import methods
from workup.core.errors import UserError
from workup.engines.settings import LoraSettings
from workup.roles.config import Config
from workup.runs.folder import Run, named
from workup.runs.settings import ENVIRONMENT, Settings, build, flat, read, world
from workup.runs.words import WARM_START

OPTIONS = ("method", "cases", "policy")  # typed in another form than key=value
NAMED = f"{ENVIRONMENT}.name"
BEHIND = ("tiny", "sft", "warm_start")  # how a policy begins; this one has begun


def command(run: Run, stage: str) -> str:
    """`workup train …` as a shell reads it, with the settings that are not the defaults.

    `stage` is the reinforcement stage that is repeated. Paths stand as the run has them, so they
    hold in the folder in which it was started.
    """
    target = _target(run, stage)
    usual = dict(flat(_usual(target)))
    words = [
        f"{ENVIRONMENT if name == NAMED else name}={typed(value)}"
        for name, value in flat(target)
        if name not in OPTIONS and (name not in usual or usual[name] != value)
    ]
    head = ["workup", "train", target["method"], "--policy", target["policy"]]
    return shlex.join([*head, "--cases", target["cases"], *words, "--out", str(_next(run.path))])


def typed(value: Any) -> str:
    """A setting's value as `settings.read` understands it; "3" as a text is in quotes."""
    if isinstance(value, str) and _understood(value) == value:
        return value
    plain = json.dumps(value, ensure_ascii=False)
    return "".join(each if each.isprintable() else f"\\U{ord(each):08x}" for each in plain)


def _understood(text: str) -> Any:
    try:
        return read([f"name={text}"])["name"]
    except UserError:
        return None


def _target(run: Run, stage: str) -> dict[str, Any]:
    """The settings of the new run, nested, but for those that say how a policy begins."""
    given = {name: value for name, value in run.settings.items() if name not in BEHIND}
    others = {line["stage"] for line in run.metrics()} - {stage, WARM_START}
    falling = given["lr_schedule"] != "constant"
    changes = {
        "policy": str(run.path),
        "begin": stage if others else given["begin"],
        "lr": given["lr"] / 2 if falling else given["lr"],
        "lr_schedule": given["lr_schedule"] if falling else "linear",
    }
    if given["folds"] is not None:
        del given["split"]  # each fold is one
    return {**given, **changes}


def _usual(target: Mapping[str, Any]) -> dict[str, Any]:
    """What the settings of `target` are where only method, cases, policy and preset are named.

    Of what `workup.yaml` defines it has what `target` uses.
    """
    method, found = methods.load(target["method"]), Config.find(None)
    named = {name: target[name] for name in (*OPTIONS, "preset")}
    own = build(Settings, {**named, ENVIRONMENT: {"name": target[ENVIRONMENT]["name"]}})
    of = build(method.settings, own.reward, prefix="reward")
    defined = {name: each for name, each in found.endpoints.items() if name in target["endpoints"]}
    lora = LoraSettings().model_dump(mode="json", exclude={"r"}) if target["lora"] else None
    return {
        **own.model_dump(mode="json"),
        **{"preset": "workup", "roles": found.roles, "budget": found.budget, "lora": lora},
        "endpoints": {name: each.model_dump(mode="json") for name, each in defined.items()},
        "reward": of.model_dump(mode="json"),
        ENVIRONMENT: {
            **world(own.environment, method.environment).config,
            "name": method.environment["name"],
        },
    }


def _next(path: Path) -> Path:
    """The first of RUN-on, RUN-on-2, … that does not exist; that of RUN-on is RUN-on-2."""
    path = named(path)
    stem = re.sub(r"-on(-\d+)?$", "", path.name)
    names = (f"{stem}-on{'' if number == 1 else f'-{number}'}" for number in count(1))
    return next(each for each in map(path.with_name, names) if not each.exists())
