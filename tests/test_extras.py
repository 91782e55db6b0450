"""What is said where a library is missing: a command that installs it, wherever Workup is from."""

from __future__ import annotations

import json
import re
import shlex
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from workup.core import extras

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
KNOWN = PROJECT["optional-dependencies"]


@pytest.mark.parametrize("extra", sorted({*extras.EXTRAS.values(), "view"}))
def test_in_a_clone_the_command_names_the_clone(extra: str) -> None:
    words = shlex.split(extras.install(extra))
    assert words[:5] == [sys.executable, "-m", "pip", "install", "-e"]
    place, _, named = words[5].removesuffix("]").rpartition("[")
    assert (Path(place), named) == (ROOT, extra)
    assert extra in KNOWN


@pytest.mark.long
@pytest.mark.parametrize("library", sorted(extras.EXTRAS))
def test_the_extra_brings_the_library(library: str) -> None:
    wanted = list(KNOWN[extras.EXTRAS[library]])
    names = {re.split(r"[\[>=]", each)[0] for each in wanted}
    distributions = metadata.packages_distributions().get(library)
    if distributions is None:
        pytest.skip(f"{library} is not installed here")
    assert names & {each.lower().replace("_", "-") for each in distributions}


@pytest.mark.parametrize(
    ("told", "wanted"),
    [
        (None, "workup[view]"),
        ({"url": "file:///a/b", "dir_info": {}}, "workup[view] @ file:///a/b"),
        (
            {"url": "https://host/w.git", "vcs_info": {"vcs": "git", "commit_id": "0"}},
            "workup[view] @ git+https://host/w.git",
        ),
    ],
)
def test_elsewhere_it_names_what_was_installed(
    told: dict[str, object] | None,
    wanted: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """pip writes down where a package came from, unless it came from an index (PEP 610)."""
    monkeypatch.setattr(extras, "__file__", str(tmp_path / "site-packages/workup/core/extras.py"))
    info = tmp_path / "workup-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: workup\nVersion: 0.1.0\n")
    if told is not None:
        (info / "direct_url.json").write_text(json.dumps(told))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert shlex.split(extras.install("view"))[4:] == [wanted]
