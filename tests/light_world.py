"""What must work where neither torch nor pyarrow nor statsmodels is installed, as commands."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from serving import serving
from waiting import HANG

HEAVY = ("torch", "transformers", "trl", "peft", "accelerate", "huggingface_hub", "datasets")
ABSENT = (*HEAVY, "safetensors", "tokenizers", "pyarrow", "pandas", "statsmodels")
Command = Callable[[str], "subprocess.CompletedProcess[str]"]  # its words, as they are typed

DONE = (
    "evaluate endpoint:doc --cases clinic:xs --out one evaluation.cases=6",
    "evaluate endpoint:doc --cases clinic:xs --out two evaluation.cases=6 environment.max_turns=3",
    "evaluate endpoint:doc --cases clinic:xs --out found evaluation.cases=4 "
    "environment.name=library",
    "report one",
    "compare one two --html both.html --json both.json",
    "review make one --cases 2 --out marks",
    "export one --as jsonl --out episodes",
    "export clinic:xs --as jsonl --most 3 --out cases",
    "export --help",
    "cases clinic:xs -n 1",
    "methods",
    "settings craft",
    "sources",
)
"""Each is done, in this order, in one folder."""

REFUSED = {
    "train craft --cases clinic:xs --out trained": "train",
    "evaluate untrained --cases clinic:xs --out untrained": "train",
    "export one --as parquet --out tables": "parquet",
    "export one --as chat --out chats": "parquet",
}
"""Each is told in one line which extra it needs, and writes nothing."""


def doctor(body: dict[str, Any]) -> str:
    """A model that asks once, then guesses."""
    said = [message for message in body["messages"] if message["role"] == "assistant"]
    return "<diagnose>migraine</diagnose>" if said else "<ask>fever</ask>"


def walk(command: Command, folder: Path) -> None:
    """Runs every command in `folder`, in which each of them is run."""
    with serving(doctor) as server:
        endpoint = {"base_url": server.url, "model": "m"}
        (folder / "workup.yaml").write_text(json.dumps({"endpoints": {"doc": endpoint}}))
        for words in DONE:
            done = command(words)
            assert done.returncode == 0, (words, done.stderr)
    doctors = json.loads((folder / "one/summary.json").read_text())["doctors"]
    assert {"random doctor", "full information"} <= doctors.keys()
    assert "<svg" in (folder / "one/report.html").read_text(encoding="utf-8")
    assert "one" in (folder / "both.html").read_text(encoding="utf-8")
    before = sorted(folder.iterdir())
    for words, extra in REFUSED.items():
        done = command(words)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), (words, done.stderr)
        said = re.fullmatch(r"error: (\w+) is not installed; type: (.*)\n", done.stderr)
        assert said is not None, (words, done.stderr)
        assert said[1] in ABSENT, (words, done.stderr)
        place = shlex.split(said[2])[-1].partition(" @ ")[0]  # workup[train] @ file:…, or a clone
        assert place.endswith(f"[{extra}]"), (words, done.stderr)
        assert sorted(folder.iterdir()) == before


def run(
    words: Sequence[str], typed: str, folder: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    """The program `words` with what is typed behind it; fails where it hangs."""
    try:
        return subprocess.run(
            [*words, *shlex.split(typed)],
            cwd=folder,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=HANG,
        )
    except subprocess.TimeoutExpired:
        pytest.fail(f"hangs: {typed}")
