"""The benches are no part of the package: at least they import, so that a renaming is noticed."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from workup import methods as methods_of
from workup.runs import Run, settings
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


def _asked(out: Path, **more: Any) -> Any:
    learning = import_module("bench.gpu.learning")
    sets = {"ddxplus": "ddxplus:d", "mediq": "mediq:m.jsonl"}
    return learning, learning.Asked(sets, "library", 2, out, **more)


@pytest.mark.parametrize("quick", [False, True])
def test_every_run_of_the_learning_curves_has_settings_that_exist(
    quick: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCHES[0].parent.parent))
    learning, asked = _asked(tmp_path, quick=quick)
    methods = set()
    for job in (job for jobs in learning.chains(asked) for job in jobs):
        method, *words = job.words
        methods.add(method)
        options = {
            words[place]: words[place + 1] for place in range(len(words)) if words[place][0] == "-"
        }
        values = settings.read([word for word in words if "=" in word], None)
        values |= {"method": method, "cases": options["--cases"]}
        build(Settings, values)
        reward = methods_of.load(method).settings
        build(reward, values.get("reward") or {}, prefix="reward")
    assert methods == {"craft", "outcome", "dialogt", "grpo", "promed", "cmig"}


def test_the_queue_goes_on_where_it_was_and_says_what_did_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCHES[0].parent.parent))
    learning, asked = _asked(tmp_path)
    said: list[list[str]] = []

    def call(words: Sequence[str]) -> int:
        said.append(list(words))
        if "craft-1" in words[-1]:
            return 1
        if words[0] == "train":
            folder = Path(words[words.index("--out") + 1])
            run = Run.create(folder, {"method": words[1]}, {})
            if "outcome-0" not in folder.name:
                run.write_summary({"doctors": {}})
            run.close()
        elif words[0] == "resume":
            with Run.open(words[1]) as run:
                run.write_summary({"doctors": {}})
        return 0

    failed = learning.queue(asked, call, at_once=1)
    assert failed == [str(tmp_path / "ddxplus" / "craft-1")]
    trained = [words[-1] for words in said if words[0] == "train"]
    # Each start comes before what goes on from it.
    for words in said:
        if "--policy" in words and words[words.index("--policy") + 1] != "smollm2":
            start = words[words.index("--policy") + 1]
            assert trained.index(start) < trained.index(words[-1])
    assert [words[0] for words in said[-2:]] == ["compare", "compare"]
    said.clear()
    assert learning.queue(asked, call, at_once=1) == failed
    again = [words[:2] for words in said if words[0] != "compare"]
    assert again == [["resume", str(tmp_path / "ddxplus" / "outcome-0")], ["train", "craft"]]
