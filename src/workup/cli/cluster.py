"""`workup cluster --dry`: what a run on many machines would be, without a GPU and without verl."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from workup.core.errors import UserError
from workup.core.stages import SearchStage, Stage
from workup.loops.training.plan import Plan
from workup.runs.folder import CHECKPOINTS
from workup.runs.policies import resolve
from workup.runs.settings import Settings

LATE = ("tuning", "dpo")  # how many steps these take depends on what was kept


def described(settings: Settings, out: Path) -> str:
    """The command that trains, and verl's configuration of each stage as YAML documents.

    They hold what differs from verl's defaults. Raises UserError for what `workup cluster` would
    refuse. Where verl is installed it checks the configurations as well; the text says whether it
    did.
    """
    stages = Plan.of(settings, account="dry").stages
    found = list(_stages(settings, stages, out.resolve() / CHECKPOINTS))
    words = [word for word in sys.argv[1:] if word != "--dry"]
    lines = [
        f"# {_checked([keys for _, keys in found])}",
        f"# start it on the first node: {shlex.join(['workup', *words])}",
    ]
    for title, keys in found:
        lines += ["---", f"# {title}", OmegaConf.to_yaml(_nested(keys)).rstrip()]
    return "\n".join(lines)


def _stages(
    settings: Settings, stages: Sequence[Stage], folder: Path
) -> Iterator[tuple[str, dict[str, Any]]]:
    """What is said of each stage that changes weights, and its keys."""
    from workup.engines.verl import mapping

    values, model = settings.model_dump(), resolve(settings.policy).weights()
    begun = [stage for stage in stages if not isinstance(stage, SearchStage)]
    for number, stage in enumerate(begun, start=1):
        if stage not in mapping.trained(values, stages):
            continue
        kind = mapping.rates(stage)
        place = folder / f"{number}-{kind.replace('tuning', 'sft') or 'grpo'}"
        title, steps = f"stage '{stage.name}'", settings.steps
        if kind:
            steps = settings.sft.steps if kind == "sft" else 1
            late = "; its steps are counted when it begins" if kind in LATE else ""
            title += f", which samples nothing{late}"
            keys = mapping.learning(values, kind, steps, model, place)
        else:
            keys = mapping.configuration(values, model, place)
        yield title, keys
        model = f"{place}/global_step_{'…' if kind in LATE else steps}/actor/huggingface"


def _checked(every: Sequence[dict[str, Any]]) -> str:
    from workup.engines.verl.present import check_libraries

    try:
        check_libraries()
    except UserError as error:
        return f"not checked by verl: {error}"
    from workup.engines.verl.cluster import composed

    for keys in every:
        composed(keys)
    return "checked by verl: it has all of these keys and accepts their values"


def _nested(keys: dict[str, Any]) -> Any:
    made = OmegaConf.create()
    for key, value in keys.items():
        OmegaConf.update(made, key, value, force_add=True)
    return made
