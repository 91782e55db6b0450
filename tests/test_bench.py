"""The benches are no part of the package: at least they import, so that a renaming is noticed."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

BENCHES = sorted((Path(__file__).parent.parent / "bench").glob("*.py"))


@pytest.mark.parametrize("name", [path.stem for path in BENCHES if not path.stem.startswith("__")])
def test_a_bench_imports(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHES[0].parent.parent))
    import_module(f"bench.{name}")
