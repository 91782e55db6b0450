"""Writes a checkpoint of adapters by verl's own FSDP checkpoint manager, on one process.

`verl_adapters.py MODEL CHECKPOINT EXPECTED` trains nothing: it draws adapters, shards the model,
saves it, and writes what peft itself merges to EXPECTED.
"""

from __future__ import annotations

import copy
import os
import sys
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM, AutoTokenizer
from verl.trainer.config import CheckpointConfig
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager


def main(place: str, checkpoint: str, expected: str) -> None:
    store = distributed.FileStore(str(Path(expected).with_suffix(".store")), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    how = LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, target_modules="all-linear")
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(place), how)
    torch.manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(0, 0.1)
    torch.save(copy.deepcopy(model).merge_and_unload().state_dict(), expected)
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    contents = ["model", "optimizer", "extra", "hf_model"]
    FSDPCheckpointManager(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters()),
        processing_class=AutoTokenizer.from_pretrained(place),
        checkpoint_config=CheckpointConfig(save_contents=contents, load_contents=contents[:3]),
    ).save_checkpoint(str(Path(checkpoint) / "actor"), global_step=1)


if __name__ == "__main__":
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    main(*sys.argv[1:])
