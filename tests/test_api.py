"""A notebook user's way: train, look, evaluate, go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from workup.cli import api
from workup.core.errors import UserError


@pytest.mark.long
def test_ten_lines_of_a_notebook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORKUP_CACHE", str(tmp_path / "cache"))
    run = api.train(
        "craft",
        cases="clinic:xs",
        out=tmp_path / "run",
        quiet=True,
        steps=2,
        batch=2,
        group=2,
        max_tokens=8,
        tiny={"width": 32},
        sft={"steps": 10, "lr": 0.01},
        evaluation={"cases": 6},
        reward={"alpha": 2},
    )
    assert capsys.readouterr().out == ""
    accuracy = run.summary["doctors"]["trained"]["accuracy"]
    assert 0 <= accuracy["low"] <= accuracy["mean"] <= accuracy["high"] <= 1
    assert [line["step"] for line in run.metrics() if line["stage"] == "grpo"] == [1, 2]
    run.episodes(phase="eval", doctor="trained")[0].show()
    assert "unwell" in (shown := capsys.readouterr().out) or len(shown) > 50
    looked = api.evaluate(
        run.path,
        cases="clinic:s",
        out=tmp_path / "looked",
        quiet=True,
        max_tokens=8,
        evaluation={"cases": 5},
    )
    assert "random doctor" in looked.summary["doctors"]
    assert api.open_run(tmp_path / "run").summary == run.summary
    assert api.resume(tmp_path / "run").summary == run.summary
    assert run.export_parquet(tmp_path / "episodes.parquet") == len(run.episodes()) == 2 * 4 + 6 * 6


def test_mistakes_are_told_in_the_command_lines_words(tmp_path: Path) -> None:
    for values, said in (
        ({"method": "crfat"}, "Did you mean 'craft'"),
        ({"stesp": 2}, "Did you mean 'steps'"),
        ({"reward": {"alhpa": 2}}, "Did you mean 'reward.alpha'"),
        ({"steps": "many"}, "setting 'steps'"),
    ):
        with pytest.raises(UserError, match=said):
            api.train(
                **{"method": "craft", "cases": "clinic:xs", "out": tmp_path / "run", **values}
            )
    with pytest.raises(UserError, match="does not exist"):
        api.open_run(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
