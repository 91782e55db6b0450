"""`workup cluster --dry`: what a run on many machines would be, without a GPU and without verl."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from workup import policies
from workup.errors import UserError
from workup.runs.folder import CHECKPOINTS
from workup.settings import Settings
from workup.training.loop import Plan


def described(settings: Settings, out: Path) -> str:
    """The command that trains, and verl's configuration as YAML: what differs from its defaults.

    Raises UserError for what `workup cluster` would refuse. Where verl is installed it checks the
    configuration as well; the text says whether it did.
    """
    from workup.engines.verl import mapping

    Plan.of(settings, account="dry")
    place = policies.path(settings.policy)
    keys = mapping.configuration(
        settings.model_dump(), place, out.resolve() / CHECKPOINTS / "1-grpo"
    )
    words = [word for word in sys.argv[1:] if word != "--dry"]
    return "\n".join(
        [
            f"# {_checked(keys)}",
            f"# start it on the first node: {shlex.join(['workup', *words])}",
            OmegaConf.to_yaml(_nested(keys)).rstrip(),
        ]
    )


def _checked(keys: dict[str, Any]) -> str:
    from workup.engines.verl.present import check_libraries

    try:
        check_libraries()
    except UserError as error:
        return f"not checked by verl: {error}"
    from workup.engines.verl.cluster import composed

    composed(keys)
    return "checked by verl: it has all of these keys and accepts their values"


def _nested(keys: dict[str, Any]) -> Any:
    made = OmegaConf.create()
    for key, value in keys.items():
        OmegaConf.update(made, key, value, force_add=True)
    return made
