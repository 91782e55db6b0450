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


@pytest.mark.parametrize(
    ("words", "told"),
    [(["--quick", "smapling"], "there is no 'smapling'"), ([], "there is no GPU")],
)
def test_mistakes_of_the_bench_on_a_gpu_are_told(
    words: list[str],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(str(BENCHES[0].parent.parent))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["bench.gpu", *words])
    with pytest.raises(SystemExit, match="2"):
        import_module("bench.gpu.__main__").main()
    assert told in capsys.readouterr().err
