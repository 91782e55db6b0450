"""verl's checkpoint of adapters as a model folder that any loader reads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from workup.core.disk import whole_folder
from workup.core.errors import UserError
from workup.engines.verl import checkpoints

MERGED = "merged"  # a checkpoint's folder of merged weights, beside verl's own folders


def whole_policy(checkpoint: Path, lora: Mapping[str, Any] | None) -> Path:
    """The model folder of a checkpoint; adapters are merged into the weights once, and kept.

    `lora` are the settings that the adapters were trained with. Beside its workers' shards verl
    writes the gathered weights, base and adapters, by peft's names; they are merged by peft, in
    this process's memory. Raises UserError where they do not fit the settings.
    """
    plain = checkpoints.policy(checkpoint)
    if lora is None:
        return plain
    target = plain.parent / MERGED
    if not target.exists():
        made = _merged(plain, lora)
        with whole_folder(target) as draft:
            for path in plain.iterdir():
                if not path.name.startswith("model"):  # tokenizer and generation settings
                    shutil.copy(path, draft)
            made.save_pretrained(draft)
    return target


def _merged(plain: Path, lora: Mapping[str, Any]) -> Any:
    targets = lora["targets"] if isinstance(lora["targets"], str) else list(lora["targets"])
    config = LoraConfig(
        r=lora["r"], lora_alpha=lora["alpha"], target_modules=targets, task_type="CAUSAL_LM"
    )
    with torch.device("meta"):  # the weights are read, not drawn
        shape = AutoConfig.from_pretrained(plain, trust_remote_code=False)
        base = AutoModelForCausalLM.from_config(shape, trust_remote_code=False)
        model = get_peft_model(base, config)
    found: dict[str, torch.Tensor] = {}
    for path in sorted(plain.glob("*.safetensors")):
        found |= load_file(path)
    missing, unknown = model.load_state_dict(found, strict=False, assign=True)
    base.tie_weights()
    tied = {name for name, weight in model.named_parameters() if weight.is_meta} if missing else ()
    if unknown or tied:
        raise UserError(
            f"{plain}: its adapters are not those of the run's lora settings "
            f"{json.dumps(dict(lora))}: {sorted([*unknown, *tied])[:2]}; resume with the settings "
            "that the run began with"
        )
    return model.merge_and_unload()
