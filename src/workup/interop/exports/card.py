"""The data card of an export: README.md, as Hugging Face's `datasets` reads it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import yaml

from workup.interop.exports import Written

_UNQUOTED = re.compile(r"[`|\s\x00-\x1f\x7f]+")
_TABLES = (".parquet", ".jsonl")


@dataclass(frozen=True)
class Origin:
    """Where the rows come from: a name, facts by their label, and sentences to know before use."""

    name: str
    facts: Mapping[str, str]
    notes: tuple[str, ...]
    restricted: bool
    command: str


def text(origin: Origin, summary: str, written: Written) -> str:
    """The card in Markdown with its YAML header. What comes from a run or a file is quoted."""
    restricted = (
        "The cases are restricted: a data-use agreement forbids passing this text on. Keep the "
        "folder to yourself, and do not upload it."
    )
    before_use = [
        *([restricted] if origin.restricted else []),
        "It is no medical device. Nothing here says how to treat a person.",
        *map(quoted, origin.notes),
        *written.notes,
    ]
    parts = [
        f"---\n{yaml.safe_dump(_header(origin, written), sort_keys=False, allow_unicode=True)}---",
        f"# {quoted(origin.name)}: {summary.replace('|', ' ')}",
        "\n".join(f"- {label}: {quoted(value)}" for label, value in origin.facts.items()),
        f"Made by workup {metadata.version('workup')}{':' if origin.command else '.'}",
        *([f"```\n{_UNQUOTED.sub(' ', origin.command)}\n```"] if origin.command else []),
        _table("file", "rows", {name: f"{n:,}" for name, n in written.rows.items()}),
        *([_table("column", "what it holds", written.columns)] if written.columns else []),
        *([_table("measure", "what it is", written.measures)] if written.measures else []),
        "## Before you use it",
        "\n".join(f"- {note}" for note in before_use),
    ]
    return "\n\n".join(parts) + "\n"


def quoted(value: str) -> str:
    """`value` as code: nothing in it is Markdown, and it stays on its line."""
    return f"`{_UNQUOTED.sub(' ', value).strip()}`"


def _header(origin: Origin, written: Written) -> dict[str, Any]:
    files = [name for name in written.rows if name.endswith(_TABLES)]
    split = "test" if any(name.startswith("test.") for name in files) else "train"
    data = [{"split": split, "path": name} for name in files]
    configs = [{"config_name": "default", "data_files": data}]
    return {
        "pretty_name": origin.name,
        "tags": ["workup", "medical", *(["restricted"] if origin.restricted else [])],
        **({"configs": configs} if files else {}),
    }


def _table(left: str, right: str, rows: Mapping[str, str]) -> str:
    lines = [f"| {quoted(name)} | {sense} |" for name, sense in rows.items()]
    return "\n".join((f"| {left} | {right} |", "| --- | --- |", *lines))
