"""Cross-validation: every case is tested once, by a policy that was not trained on it."""

from __future__ import annotations

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from clinical_layouts import packet, referring, written
from command_line import TINIEST, Call, forked
from hypothesis import given
from hypothesis import strategies as st

import workup
from workup.cases import jsonl, open_source
from workup.cases.files import held_out
from workup.cases.publications import publications
from workup.core.errors import UserError
from workup.loops.evaluation.folds import _mean_steps as mean_steps
from workup.loops.training import folds, loop
from workup.runs import Record, Run
from workup.runs.estimates import estimate
from workup.runs.files import DamagedError
from workup.runs.onward import command
from workup.runs.policies import resolve
from workup.runs.rising import told
from workup.runs.settings import PolicySettings, Settings, build

CASES = 10
SMALL: dict[str, Any] = {
    **TINIEST,
    "evaluation": {"anchors": False},
}

pytestmark = pytest.mark.usefixtures("shared_cache")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small file of one's own."""
    clinic = open_source("clinic:xs")
    path = tmp_path_factory.mktemp("own") / "mine.jsonl"
    made = (replace(case, id=f"p{n}") for n, case in enumerate(clinic.test[:CASES]))
    jsonl.write(made, path, items=clinic.items, diagnoses=clinic.diagnoses)
    return f"jsonl:{path}"


@pytest.fixture(scope="module")
def crossed(own: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A cross-validation of two folds."""
    out = tmp_path_factory.mktemp("crossed") / "mine"
    return workup.train("outcome", cases=own, folds=2, out=out, **SMALL)


def played(run: Run, doctor: str = "trained") -> dict[str, tuple[str, bool | None]]:
    """case → what was said in the evaluation, and the verdict."""
    return {
        record.episode.case.id: (
            "".join(turn.completion.text for turn in record.episode.turns),
            record.correct,
        )
        for record in run.evaluated(doctor)
    }


# what folds are -----------------------------------------------------------------------------------


@given(st.text(), st.integers(2, 12))
def test_each_group_is_in_one_fold(key: str, n: int) -> None:
    assert sum(held_out(f"{k}/{n}", key) for k in range(1, n + 1)) == 1


def test_folds_are_about_equal_and_numbered_splits_are_what_they_were() -> None:
    sizes = [sum(held_out(f"{k}/5", f"{i}") for i in range(2_000)) for k in range(1, 6)]
    assert sum(sizes) == 2_000
    assert all(320 < size < 480 for size in sizes)
    assert [i for i in range(12) if held_out(0, str(i))] == [5, 7]


def test_a_publication_is_in_one_fold(tmp_path: Path) -> None:
    rows = [
        packet(f"p{n}", metaData={}, phenotypicFeatures=referring(*[f"PMID:{n // 4}"] * 2))
        for n in range(80)
    ]
    spec = "phenopackets:" + written(tmp_path / "p.jsonl", *rows)
    seen: list[set[str]] = []
    count = 0
    for fold in ("1/3", "2/3", "3/3"):
        source = open_source(spec, split=fold)
        seen.append({own for case in source.test for own in publications(case)})
        assert not seen[-1] & {own for case in source.train for own in publications(case)}
        count += len(source.test)
    assert count == 80
    assert len(set().union(*seen)) == sum(map(len, seen)) == 20


@pytest.mark.parametrize("spec", ["clinic:s", "clinic:pathology", "clinic:s#renamed"])
def test_cases_that_are_drawn_have_no_folds(spec: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"clinic:.* is divided already"):
        workup.train("outcome", cases=spec, folds=3, out=tmp_path / "r", **SMALL)
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("value", "kept"), [(3, 3), ("3", 3), ("2/5", "2/5"), ("02/5", "2/5"), (None, None)]
)
def test_a_split_is_a_number_or_a_fold(value: object, kept: object) -> None:
    settings = build(PolicySettings, {"policy": "x", "cases": "y", "split": value})
    assert settings.split == kept
    assert json.loads(settings.model_dump_json())["split"] == kept


@pytest.mark.parametrize(
    "value", ["6/5", "0/5", "1/1", "x", "1/", "-1", -1, "1/2/3", "1/0", 1.5, True, [1]]
)
def test_what_is_no_split_is_refused_in_one_line(value: object) -> None:
    why = "(a split is a number|there is no fold|there are 2 folds or more)"
    with pytest.raises(UserError, match=f"^setting 'split': {why}.*, not ") as caught:
        build(Settings, {"method": "craft", "split": value})
    assert "\n" not in str(caught.value)


# training -----------------------------------------------------------------------------------------


@pytest.mark.long
def test_every_case_is_tested_once_by_a_policy_that_did_not_know_it(crossed: Run, own: str) -> None:
    ids = {f"p{n}" for n in range(CASES)}
    records: list[Record] = list(crossed.evaluated("trained"))
    assert sorted(record.episode.case.id for record in records) == sorted(ids)
    tested: list[str] = []
    for split, folder in crossed.parts.items():
        with Run.open(crossed.path / folder) as fold:
            theirs = set(played(fold))
            trained = {record.episode.case.id for record in fold.episodes(phase="train")}
            assert not theirs & trained
            assert theirs == {case.id for case in open_source(own, split=split).test}
            assert fold.config["split"] == split
            tested += theirs
    assert sorted(tested) == sorted(ids)


@pytest.mark.long
def test_its_figures_are_those_of_all_folds_together(crossed: Run) -> None:
    parts = [Run.open(crossed.path / folder) for folder in crossed.parts.values()]
    for doctor in ("untrained", "warm start", "trained"):
        outcomes = [each for part in parts for each in part.outcomes(doctor)]
        outcomes.sort(key=lambda each: each.case_id)
        assert crossed.outcomes(doctor) == outcomes
        found = crossed.summary["doctors"][doctor]
        assert found["cases"] == found["questions"]["n"] == CASES
        assert found["questions"]["mean"] == pytest.approx(fmean(o.questions for o in outcomes))
        assert found["accuracy"] == estimate(outcomes, "accuracy", 0).as_json()
    assert crossed.summary["steps"] == parts[0].summary["steps"]
    assert "2 folds: 10 of 10 cases are tested, each once" in crossed.config["notes"][-1]
    pages = [*(crossed.path / "transcripts").glob("*.html"), crossed.report]
    told = "".join(page.read_text() for page in pages)
    assert all(f"p{n}" in told for n in range(CASES))


def test_its_steps_are_the_mean_of_those_of_the_folds(crossed: Run) -> None:
    logged = [list(Run.open(crossed.path / folder).metrics()) for folder in crossed.parts.values()]
    ours = list(crossed.metrics())
    assert [(line["stage"], line["step"]) for line in ours] == [
        (line["stage"], line["step"]) for line in logged[0]
    ]
    for line, theirs in zip(ours, zip(*logged, strict=True), strict=True):
        assert line["seconds"] == pytest.approx(sum(each["seconds"] for each in theirs))
        for name in ("loss", "reward"):
            known = [each[name] for each in theirs if each.get(name) is not None]
            assert line.get(name) == (pytest.approx(fmean(known)) if known else None)
    last, theirs = ours[-1]["parts"], [lines[-1]["parts"] for lines in logged]
    assert last == {name: pytest.approx(fmean(p[name] for p in theirs)) for name in last}


def test_it_says_how_the_training_of_each_fold_ended(crossed: Run) -> None:
    entry = crossed.summary["learning"]
    each = {split: Run.open(crossed.path / part) for split, part in crossed.parts.items()}
    assert entry["folds"] == {split: run.summary["learning"] for split, run in each.items()}
    assert [fold["updates"] for fold in entry["folds"].values()] == [2, 2]
    assert told(entry).endswith("; fold by fold: 2 too short to tell")


@pytest.mark.long
def test_the_command_that_goes_on_goes_on_fold_by_fold(crossed: Run) -> None:
    line = shlex.split(command(crossed, "grpo"))
    done = forked(*line[1:], cwd=crossed.path.parent)
    assert done.returncode == 0, done.stderr[-2000:]
    with Run.open(line[-1]) as after:
        assert after.parts == crossed.parts
        assert played(after).keys() == played(crossed).keys()
        for part in after.parts.values():
            before = Run.open(after.path / part).config["trained_before"]
            assert [one["run"] for one in before] == [str(crossed.path / part)]


@pytest.mark.long
def test_a_fold_by_itself_is_the_same_run(crossed: Run, own: str, tmp_path: Path) -> None:
    alone = workup.train("outcome", cases=own, split="2/2", out=tmp_path / "alone", **SMALL)
    inside = Run.open(crossed.path / "folds" / "2")
    assert played(alone) == played(inside)
    assert resolve(str(inside.path)).history[0].split == "2/2"


@pytest.mark.long
def test_an_interrupted_cross_validation_goes_on(
    crossed: Run, own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, begun = loop.start, []

    def start(settings: Settings, *rest: Any) -> Run:
        begun.append(settings.split)
        if len(begun) == 2:
            raise KeyboardInterrupt
        return real(settings, *rest)

    monkeypatch.setattr(loop, "start", start)
    out = tmp_path / "mine"
    with pytest.raises(KeyboardInterrupt):
        workup.train("outcome", cases=own, folds=2, out=out, **SMALL)
    assert not Run.open(out).summary
    first = (out / "folds" / "1" / "policy" / "model.safetensors").stat().st_mtime_ns
    workup.resume(out)
    assert begun == ["1/2", "2/2", "2/2"]
    assert (out / "folds" / "1" / "policy" / "model.safetensors").stat().st_mtime_ns == first
    assert played(Run.open(out)) == played(crossed)
    workup.resume(out)  # once more changes nothing
    assert played(Run.open(out)) == played(crossed)


@pytest.mark.long
@pytest.mark.parametrize("name", ["seconds", "steps"])
def test_a_fold_that_lacks_a_figure_is_damaged(crossed: Run, tmp_path: Path, name: str) -> None:
    whole = tmp_path / "whole"
    shutil.copytree(crossed.path, whole)
    (whole / "summary.json").unlink()
    summary = whole / "folds" / "1" / "summary.json"
    values = json.loads(summary.read_text())
    summary.write_text(json.dumps({each: values[each] for each in values if each != name}))
    with pytest.raises(DamagedError, match=f"summary.json: its '{name}' is no number"):
        workup.resume(whole)


@pytest.mark.long
def test_a_change_that_no_fold_takes_is_not_written(crossed: Run, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    shutil.copytree(crossed.path, whole)
    evaluated = workup.evaluate(crossed.path, out=tmp_path / "played", quiet=True).path
    for path in (whole, evaluated):
        before = (path / "config.yaml").read_text()
        for changes, said in (
            ({"seed": 7}, "'seed' cannot change"),
            ({"stepz": 3}, "no setting 'stepz'"),
            ({"concurrency": 0}, "setting 'concurrency': "),
        ):
            with pytest.raises(UserError, match=said):
                workup.resume(path, **changes)
            assert (path / "config.yaml").read_text() == before
        assert workup.resume(path, max_failed=0.5).config["max_failed"] == 0.5


def test_steps_of_folds_count_what_a_fold_lacks_as_none() -> None:
    lines = [
        {"stage": "a", "step": 1, "endings": {"diagnosed": 4}, "parts": {"acc": 0.5, "gain": 1.0}},
        {"stage": "a", "step": 1, "endings": {"diagnosed": 2, "failed": 2}, "parts": {"acc": 1.0}},
    ]
    (mean,) = mean_steps([[line] for line in lines])
    assert mean["endings"] == {"diagnosed": 3, "failed": 1}
    assert mean["parts"] == {"acc": 0.75, "gain": 0.5}


@pytest.mark.long
def test_folds_without_a_case_are_left_out_and_told(tmp_path: Path) -> None:
    clinic = open_source("clinic:xs")
    path = tmp_path / "few.jsonl"
    made = (replace(case, id=f"p{n}") for n, case in enumerate(clinic.test[:2]))
    jsonl.write(made, path, items=clinic.items, diagnoses=clinic.diagnoses)
    run = workup.train("outcome", cases=f"jsonl:{path}", folds=20, out=tmp_path / "r", **SMALL)
    assert len(played(run)) == 2
    assert f"{20 - len(run.parts)} of 20 folds hold no case" in run.config["notes"][-1]
    one = tmp_path / "one.jsonl"
    jsonl.write(clinic.test[:1], one, items=clinic.items)
    with pytest.raises(UserError, match="its 1 cases are all in one of 4 folds"):
        workup.train("outcome", cases=f"jsonl:{one}", folds=4, out=tmp_path / "s", **SMALL)


@pytest.mark.long
def test_few_test_cases_are_told_of_folds(own: str, tmp_path: Path, call: Call) -> None:
    words = ("steps=1", "sft.steps=1", "batch=1", "group=2", "max_tokens=8", "tiny.width=16")
    status, shown, told = call("train", "outcome", "--cases", own, *words, "--out", "r")
    assert status == 0, told
    assert "folds=5 trains five times, so that every case is tested once" in shown
    status, _, told = call("train", "outcome", "--cases", own, "folds=3", "split=1", "--out", "s")
    assert (status, "leave split=… out" in told) == (2, True)


# what it is read by -------------------------------------------------------------------------------


@pytest.mark.long
def test_its_policies_are_evaluated_each_on_its_own_fold(
    crossed: Run, own: str, tmp_path: Path
) -> None:
    again = workup.evaluate(crossed.path, out=tmp_path / "again", quiet=True)
    trained = played(crossed)
    assert played(again, "mine") == trained  # the same keys: (seed, case, sample)
    greedy = workup.evaluate(
        crossed.path, folds=2, out=tmp_path / "g", evaluation={"temperature": 0}, quiet=True
    )
    assert set(played(greedy, "mine")) == set(trained)
    workup.resume(greedy.path)
    for words, problem in (
        ({"folds": 4}, "has 2 folds, not 4"),
        ({"split": 0}, "plays its own fold"),
        ({"cases": "clinic:xs"}, r"for other cases name one of them, as in .*folds/1"),
    ):
        with pytest.raises(UserError, match=problem):
            workup.evaluate(crossed.path, out=tmp_path / "x", quiet=True, **words)
    one = crossed.path / "folds" / "1"
    with pytest.raises(UserError, match="is no cross-validation"):
        workup.evaluate(one, folds=3, out=tmp_path / "x", quiet=True)
    elsewhere = workup.evaluate(
        one, cases="clinic:xs", out=tmp_path / "e", evaluation={"cases": 2}, quiet=True
    )
    assert elsewhere.settings["split"] == 0
    with pytest.raises(UserError, match=r"a cross-validation with 2 policies: name one"):
        workup.train("outcome", cases=own, policy=str(crossed.path), out=tmp_path / "x", **SMALL)
    assert not (tmp_path / "x").exists()


def test_an_evaluation_goes_on_with_the_same_weights_alone(
    crossed: Run, own: str, tmp_path: Path
) -> None:
    weights = tmp_path / "weights"
    shutil.copytree(crossed.path / "folds" / "1" / "policy", weights)
    run = workup.evaluate(weights, cases=own, out=tmp_path / "w", quiet=True)
    file = weights / "model.safetensors"
    before = file.read_bytes()
    file.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    config = (run.path / "config.yaml").read_text()
    with pytest.raises(UserError, match=r"played with other weights: policy was weights@\w+ and "):
        workup.resume(run.path, budget=3)
    assert (run.path / "config.yaml").read_text() == config
    file.write_bytes(before)
    assert workup.resume(run.path).summary["doctors"] == run.summary["doctors"]


@pytest.mark.long
def test_it_is_compared_as_one_run_with_all_cases(crossed: Run, own: str, tmp_path: Path) -> None:
    other = workup.train("outcome", cases=own, folds=2, seed=1, out=tmp_path / "o", **SMALL)
    (both,) = workup.compare([crossed.path, other.path])["groups"].values()
    assert both["seeds"] == ["0", "1"]
    assert both["cases"] == CASES
    assert both["questions"]["n"] == CASES
    by_seed = [run.summary["doctors"]["trained"]["questions"]["mean"] for run in (crossed, other)]
    assert list(both["questions"]["by_seed"].values()) == pytest.approx(by_seed)
    assert both["questions"]["mean"] == pytest.approx(fmean(by_seed))
    # Who was not trained on the file plays all of it: the same patients, so they are paired.
    model = crossed.path / "folds" / "1" / "policy"
    weights = tmp_path / "weights"
    weights.symlink_to(model)
    whole = workup.evaluate(weights, cases=own, out=tmp_path / "w", quiet=True)
    beside = workup.compare([whole.path, crossed.path])
    assert beside["groups"]["mine"]["lead"]["questions"]["n"] == CASES


@pytest.mark.long
def test_a_cross_validation_goes_on_from_another_fold_by_fold(
    crossed: Run, own: str, tmp_path: Path
) -> None:
    how = {**SMALL, "warm_start": False}
    run = workup.train(
        "outcome", cases=own, folds=2, policy=str(crossed.path), out=tmp_path / "n", **how
    )
    for split, folder in run.parts.items():
        before = resolve(str(run.path / folder)).history
        assert [(Path(one.run).parent.parent.name, one.split) for one in before] == [
            ("n", split),
            ("mine", split),
        ]
    with pytest.raises(UserError, match=r"mine has 2 folds: type folds=2$"):
        workup.train("outcome", cases=own, folds=3, policy=str(crossed.path), out=tmp_path / "x")
    start = Run.open(run.path / "folds" / "2").outcomes("untrained")
    assert start == Run.open(crossed.path / "folds" / "2").outcomes("trained")


def test_a_run_that_is_named_by_a_dot_has_the_name_of_its_folder(
    crossed: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is called as from elsewhere, in tables and in the command that goes on."""
    inner = crossed.path / "folds" / "2"
    for place, name in ((crossed.path, "."), (inner, "."), (inner, ".."), (inner / "policy", "..")):
        monkeypatch.chdir(place)
        assert resolve(name).label == ("folds" if (place, name) == (inner, "..") else "mine")
    monkeypatch.chdir(crossed.path)
    with Run.open(".") as here, Run.open(crossed.path) as there:
        assert shlex.split(command(here, "grpo"))[-1] == shlex.split(command(there, "grpo"))[-1]


def test_settings_name_folds(call: Call) -> None:
    assert "train once for each of so many folds" in " ".join(call("settings", "folds")[1].split())
    assert folds.start is workup.cli.api.training.start
