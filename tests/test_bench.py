"""The benches are no part of the package: at least they import, so that a renaming is noticed."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

from workup import methods as methods_of
from workup.runs import settings
from workup.runs.settings import Settings, build

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


def test_the_set_ups_of_the_learning_curves_are_of_methods_that_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCHES[0].parent.parent))
    learning = import_module("bench.learning")
    for job in learning.jobs([*learning.SETUPS], [100], ["steps=2"], tmp_path):
        method, option, cases, *words = job.words
        assert (option, job.out.name) == ("--cases", f"{method}-100")
        values = settings.read(words, None) | {"method": method, "cases": cases}
        assert build(Settings, values).steps == 2
        assert methods_of.load(method)


def test_settings_may_stand_behind_the_options_as_its_help_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCHES[0].parent.parent))
    learning = import_module("bench.learning")
    asked: list[object] = []
    monkeypatch.setattr(learning.Queue, "run", lambda self, jobs, told: asked.extend(jobs))
    words = ["craft", "--out", str(tmp_path), "--seeds", "1", "2", "--jobs", "2", "steps=3"]
    monkeypatch.setattr(sys, "argv", ["learning", *words])
    learning.main()
    assert [job.out.name for job in asked] == ["craft-1", "craft-2"]  # type: ignore[attr-defined]
    assert all("steps=3" in job.words for job in asked)  # type: ignore[attr-defined]


def test_a_window_of_a_learning_curve_is_a_mean_and_its_time_begins_with_reinforcement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(BENCHES[0].parent.parent))
    learning = import_module("bench.learning")
    steps = [
        {"reward": 0.5, "accuracy": float(k % 2), "processor_seconds": 30.0} for k in range(100)
    ]
    steps[0]["accuracy"] = None
    first, *_, last = points = learning.windows(steps)
    assert len(points) == learning.WINDOWS
    assert (first.update, first.minutes) == (2, 1.0)
    assert first.values == {"accuracy": 1.0, "reward": 0.5}
    assert (last.update, last.minutes, last.values["accuracy"]) == (100, 50.0, 0.5)
