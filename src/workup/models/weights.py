"""Weights of transformers, from a folder or from the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from workup.core.disk import whole_folder
from workup.core.errors import UserError
from workup.models import lora
from workup.models.hub import opened, weights

logging.disable_progress_bar()  # a run has its own view


def load(path: str | Path, *, dtype: str = "float32", device: str | None = None) -> tuple[Any, Any]:
    """Model and tokenizer from a folder or a hub id.

    Adapters are merged into their base model, in the precision that they were trained in. Raises
    UserError when there is nothing of the kind, and where the base model of adapters is missing or
    another one.
    """
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")

    def make(place: str) -> tuple[Any, Any]:
        lora.refuse_circle(place)
        base = lora.base_of(place)
        tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=False)
        if base is not None:
            whole, _ = load(lora.place_of(base, place), dtype=base.dtype or dtype, device=where)
            return _cast(lora.merged(whole, place), getattr(torch, dtype)).eval(), tokenizer
        model = _whole(place, dtype)
        return model.to(where).eval(), tokenizer

    return opened(str(path), make)


def _whole(place: str, dtype: str) -> Any:
    """The model of a folder or a hub id. Raises UserError where weights of it are missing.

    Transformers draws what is missing, or of another shape, and goes on.
    """
    spoken = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        model, told = AutoModelForCausalLM.from_pretrained(
            place,
            dtype=getattr(torch, dtype),
            trust_remote_code=False,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    finally:
        logging.set_verbosity(spoken)
    if other := sorted(told["mismatched_keys"]):
        name, found, wanted = other[0]
        raise UserError(
            f"{place}: {name} has the shape {list(found)}, and by config.json {list(wanted)}; "
            f"{len(other)} weights have another shape"
        )
    if missing := sorted(told["missing_keys"]):
        raise UserError(
            f"{place} lacks {len(missing)} weights of the model that its config.json describes, "
            f"such as {missing[0]}"
        )
    return model


def write_merged(place: str, folder: Path) -> None:
    """Writes the model of a folder of adapters as one model folder, which appears whole.

    Raises UserError for a folder without adapters, where the disk refuses, and what `load` raises.
    """
    base = lora.base_of(weights(place))
    if base is None:
        raise UserError(f"{place} holds whole weights; there is nothing to merge")
    model, tokenizer = load(place, dtype=base.dtype or "float32", device="cpu")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with whole_folder(folder) as draft:
            model.save_pretrained(draft)
            tokenizer.save_pretrained(draft)
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot write {folder}: {error}") from error


def _cast(model: Any, dtype: torch.dtype) -> Any:
    """The model with parameters of this precision; rotary frequencies stay exact."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    model.config.dtype = dtype
    return model
