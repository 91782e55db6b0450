"""The settings of older runs in the present form: the one place that knows the older ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# The anchors of runs that do not name theirs, from the lowest to the highest.
ANCHORS = (
    *("random doctor", "told information", "random searcher", "ideal searcher"),
    *("greedy information", *(f"list of {length}" for length in (1, 2, 3, 5, 10))),
    "full information",
)
# What stood beside an evaluation's settings, or among a method's own, and belongs to the encounter.
_ALWAYS = ("max_turns", "share", "persona", "index")
_MARKED = "least"  # a setting of every method that marks answers, and of no other
_LIBRARY = ("told", "subqueries", "passages", "passage_tokens")


def translated(config: Mapping[str, Any]) -> dict[str, Any]:
    """`config` with the settings of its encounter under `environment`; a newer one as it is.

    Example: {"method": "craft", "reward": {"alpha": 1.0, "max_turns": 6}} is
    {"method": "craft", "environment": {"max_turns": 6}, "reward": {"alpha": 1.0}}; the name is the
    method's to say. Rules that were no settings yet are named: `marking` was "printed".
    """
    found = _moved(config)
    reward = found.get("reward")
    if isinstance(reward, Mapping) and _MARKED in reward:
        found["reward"] = {"marking": "printed", **reward}
    return found


def _moved(config: Mapping[str, Any]) -> dict[str, Any]:
    """`config` with the settings of its encounter under `environment`."""
    if isinstance(config.get("environment"), Mapping):
        return dict(config)
    if "method" in config:
        return _training(config)
    if "environment" not in config:
        return dict(config)
    found = {} if config["environment"] is None else {"name": config["environment"]}
    found |= {key: config[key] for key in _ALWAYS if config.get(key) is not None}
    kept = {key: value for key, value in config.items() if key not in _ALWAYS}
    return {**kept, "environment": found}


def _training(config: Mapping[str, Any]) -> dict[str, Any]:
    reward = config.get("reward")
    if not isinstance(reward, Mapping):  # a file that was cut off, which `Run.open` reports
        return dict(config)
    # Only methods of the library had `index`; `told` is a setting of another method's own as well.
    moved = (*_ALWAYS, *(_LIBRARY if "index" in reward else ()))
    found = {key: reward[key] for key in moved if key in reward}
    if not found:
        return dict(config)
    kept = {key: value for key, value in reward.items() if key not in moved}
    before = {key: value for key, value in config.items() if key != "reward"}
    return {**before, "environment": found, "reward": kept}
