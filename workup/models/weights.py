"""Weights of transformers, from a folder or from the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from workup.models.hub import opened

logging.disable_progress_bar()  # a run has its own view


def load(path: str | Path, *, dtype: str = "float32", device: str | None = None) -> tuple[Any, Any]:
    """Model and tokenizer from a folder or a hub id.

    Raises UserError when there is nothing of the kind.
    """
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")

    def make(place: str) -> tuple[Any, Any]:
        tokenizer = AutoTokenizer.from_pretrained(place)
        model = AutoModelForCausalLM.from_pretrained(place, dtype=getattr(torch, dtype))
        return model.to(where).eval(), tokenizer

    return opened(str(path), make)
