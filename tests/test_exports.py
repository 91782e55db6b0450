"""`workup export`: every format of runs and cases, read back with the libraries it is for."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import example_run
import pyarrow.parquet as pq
import pytest
import yaml
from command_line import Call
from engine_world import model, tokenizer

from workup.cases import open_source
from workup.cases.jsonl import write
from workup.core.case import Case, Fact, Truth
from workup.core.episode import Ending, Episode, Score
from workup.core.errors import UserError
from workup.interop import exports
from workup.interop.exports import material
from workup.interop.exports.writing import export
from workup.runs import Record, Run, packed, parquet, versions
from workup.runs import store as stored

HOSTILE = "../../../etc/`|pass\nwd\x00<b>\\..\\x%2E"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "mine"
    example_run.make(path, steps=2, cases=6).close()
    return path


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "mine"))


def written(path: Path, name: str, out: Path, *words: str, **options: Any) -> Path:
    found = material.chosen(path, words)
    return export(found, exports.load(name), out, **options).folder


def table(folder: Path) -> list[dict[str, Any]]:
    (file,) = folder.glob("*.parquet")
    return list(pq.read_table(file).to_pylist())


def header(folder: Path) -> dict[str, Any]:
    _, head, _ = (folder / "README.md").read_text().split("---\n", 2)
    return dict(yaml.safe_load(head))


@pytest.mark.parametrize("name", exports.names())
@pytest.mark.parametrize("kind", ["run", "cases"])
def test_every_format_writes_a_whole_folder_with_a_card(
    name: str, kind: str, run: Path, tmp_path: Path
) -> None:
    if name == "inspect":
        pytest.importorskip(
            "inspect_ai", reason="it asks for older libraries: docs/dependencies.md"
        )
    form, out = exports.load(name), tmp_path / "out"
    found = material.chosen(run, ()) if kind == "run" else material.drawn("clinic:xs", most=5)
    if kind not in form.takes:
        with pytest.raises(UserError, match=f"--as {name} is made from"):
            export(found, form, out)
        assert not out.exists()
        return
    made = export(found, form, out, command="workup export")
    assert {file.name for file in out.iterdir()} >= {"README.md", *made.written.rows}
    assert sum(made.written.rows.values()) > 0
    for config in header(out).get("configs", []):
        for data in config["data_files"]:
            assert (out / data["path"]).is_file()
    for file in out.glob("*.parquet"):
        assert set(pq.read_schema(file).names) == set(made.written.columns)
        assert pq.read_metadata(file).num_rows == made.written.rows[file.name]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["mine", "out"]


@pytest.mark.parametrize("name", ["parquet", "jsonl", "chat", "preference", "tokens"])
def test_hugging_faces_datasets_read_the_folder(name: str, run: Path, tmp_path: Path) -> None:
    import datasets

    out = written(run, name, tmp_path / "out")
    read = datasets.load_dataset(str(out), split="train", cache_dir=str(tmp_path / "hf"))
    (count,) = {
        int(line.split("|")[2].replace(",", ""))
        for line in (out / "README.md").read_text().splitlines()
        if line.startswith(("| `train", "| `episodes"))
    }
    assert len(read) == count


def test_conversations_are_what_was_said(run: Path, tmp_path: Path) -> None:
    rows = table(written(run, "chat", tmp_path / "chat", "doctor=trained"))
    records = list(Run.open(run).episodes(doctor="trained"))
    assert len(rows) == len(records)
    for row, record in zip(rows, records, strict=True):
        said = [message.content for message in record.episode.opening]
        for turn in record.episode.turns:
            said += [turn.completion.text, *(m.content for m in turn.observation.messages)]
        got = [message["content"] for message in row["messages"]]
        assert got == said[: len(got)]
        assert row["messages"][-1] == {
            "role": "assistant",
            "content": record.episode.turns[-1].completion.text,
        }
        assert (row["case"], row["correct"]) == (record.episode.case.id, record.correct)


def test_prompts_and_completions_make_up_the_conversations(run: Path, tmp_path: Path) -> None:
    chats = table(written(run, "chat", tmp_path / "chat"))
    rows = iter(table(written(run, "prompt-completion", tmp_path / "pairs")))
    for chat in chats:
        spoken = [k for k, each in enumerate(chat["messages"]) if each["role"] == "assistant"]
        for number, k in enumerate(spoken, 1):
            row = next(rows)
            assert row["prompt"] + row["completion"] == chat["messages"][: k + 1]
            assert row["turn"] == number
    assert next(rows, None) is None


def test_a_pair_parts_at_the_first_difference(run: Path, tmp_path: Path) -> None:
    rows = table(written(run, "preference", tmp_path / "out"))
    assert rows
    store = Run.open(run)
    for row in rows:
        group = store.episodes(doctor=row["doctor"], case=row["case"])
        totals = [r.score.total for r in group if r.score]
        assert row["chosen_return"] == max(totals) > min(totals) == row["rejected_return"]
        assert row["chosen"] != row["rejected"]
        assert [m["role"] for m in row["chosen"] + row["rejected"]] == ["assistant"] * 2
        begun = [m["content"] for m in row["prompt"] + row["chosen"]]
        best = next(r for r in group if r.score and r.score.total == row["chosen_return"])
        said = [m.content for m in best.episode.opening]
        for turn in best.episode.turns:
            said += [turn.completion.text, *(m.content for m in turn.observation.messages)]
        assert begun == said[: len(begun)]


def test_the_pairs_of_a_search_stage_are_those_it_kept(tmp_path: Path) -> None:
    records = [
        replace(example_run.record(case, "trained", sample, seed), phase=phase, doctor="policy")
        for case in range(4)
        for sample in range(2)
        for phase, seed in (("chosen", 1), ("rejected", 2))
        if (case, sample, phase) != (2, 1, "rejected")  # one has no partner
    ]
    with Run.create(tmp_path / "run", {"method": "x", "cases": "clinic:s"}, {}) as run:
        run.write(records)
    rows = table(written(tmp_path / "run", "preference", tmp_path / "out"))
    kept = {(r.episode.case.id, r.sample): r for r in records if r.phase == "chosen"}
    others = {(r.episode.case.id, r.sample): r for r in records if r.phase == "rejected"}
    parted = {
        key
        for key in kept.keys() & others.keys()
        if kept[key].episode.turns[0].completion.text
        != others[key].episode.turns[0].completion.text
    }
    assert parted <= {(row["case"], row["sample"]) for row in rows} <= kept.keys() & others.keys()
    for row in rows:
        record = kept[row["case"], row["sample"]]
        assert record.score is not None
        assert row["chosen_return"] == record.score.total


def test_token_ids_are_those_that_were_sampled_and_trl_learns_them(
    run: Path, tmp_path: Path
) -> None:
    import datasets
    from trl import SFTConfig, SFTTrainer

    out = written(run, "tokens", tmp_path / "out", "doctor=trained")
    rows, records = table(out), list(Run.open(run).episodes(doctor="trained"))
    for row, record in zip(rows, records, strict=True):
        ids = [i for t in record.episode.turns for i in (*t.prompt_tokens, *t.completion.tokens)]
        own = [p for t in record.episode.turns for p in t.completion.logprobs]
        masked = [p for p, m in zip(row["logprobs"], row["assistant_masks"], strict=True) if m]
        assert row["input_ids"] == ids
        assert masked == pytest.approx(own)
    settings = SFTConfig(
        output_dir=str(tmp_path / "sft"), report_to=[], use_cpu=True, assistant_only_loss=False
    )
    data = datasets.load_dataset(str(out), split="train", cache_dir=str(tmp_path / "hf"))
    trainer = SFTTrainer(model(), settings, train_dataset=data, processing_class=tokenizer())
    for learned, row in zip(trainer.train_dataset, rows, strict=True):
        pairs = zip(row["input_ids"], row["assistant_masks"], strict=True)
        assert learned["labels"] == [token if own else -100 for token, own in pairs]


def test_episodes_as_lines_and_as_parquet_are_the_same(run: Path, tmp_path: Path) -> None:
    rows = table(written(run, "parquet", tmp_path / "parquet"))
    lines = (written(run, "jsonl", tmp_path / "jsonl") / "episodes.jsonl").read_text().splitlines()
    assert [row["turns"] for row in rows] == [json.loads(line)["turns"] for line in lines]
    assert {row["doctor"] for row in rows} == set(Run.open(run).doctors())


def test_cases_as_lines_come_back_equal(tmp_path: Path) -> None:
    out = export(material.drawn("clinic:xs", most=7), exports.load("jsonl"), tmp_path / "out")
    again = open_source(f"jsonl:{out.folder / 'test.jsonl'}#all")
    source, drawn = open_source("clinic:xs"), material.drawn("clinic:xs", most=7)
    plain = [replace(c, truth=replace(c.truth, extra=None)) for c in drawn.cases]
    back = [replace(c, truth=replace(c.truth, extra=None)) for c in (*again.train, *again.test)]
    assert sorted(back, key=lambda c: c.id) == sorted(plain, key=lambda c: c.id)
    assert [item.name for item in again.items] == [item.name for item in source.items]


def test_items_that_were_gathered_are_gathered_again(tmp_path: Path) -> None:
    """A file without a sidecar may write an item in two ways; as a sidecar that is refused."""
    items = [
        Case(str(k), "P", Truth("flu", facts=(Fact("f", item, "T"),)))
        for k, item in enumerate(("Cough", "cough", "fever"))
    ]
    write(items, tmp_path / "mine.jsonl")
    spec = f"jsonl:{tmp_path / 'mine.jsonl'}#all"
    side = "test" if len(open_source(spec).test) else "train"
    out = export(material.drawn(spec, side=side), exports.load("jsonl"), tmp_path / "out")
    assert [path.suffix for path in out.folder.glob("*.json*")] == [".jsonl"]
    again = open_source(f"jsonl:{out.folder / f'{side}.jsonl'}#all")
    assert len([*again.train, *again.test]) == 3


@pytest.fixture(scope="module")
def lengths(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Runs of 40, 100 and 400 episodes, two of each case, in blocks of some 20 episodes."""
    found = {count: tmp_path_factory.mktemp("lengths") / "run" for count in (40, 100, 400)}
    with pytest.MonkeyPatch.context() as smaller:
        smaller.setattr(packed, "FULL", 30_000)
        for count, path in found.items():
            with Run.create(path, {"method": "x"}, {}) as run:
                run.write(
                    example_run.record(case, "trained", sample, 0)
                    for case in range(count // 2)
                    for sample in range(2)
                )
    return found


@pytest.mark.long
@pytest.mark.parametrize("name", [n for n in exports.names() if "run" in exports.load(n).takes])
def test_an_export_holds_a_bounded_part_in_memory(
    name: str, lengths: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "inspect":
        pytest.importorskip("inspect_ai", reason="it asks for older libraries than ours")
    monkeypatch.setattr(parquet, "_ROWS", 20)
    monkeypatch.setattr(packed, "HELD", 10_000)  # otherwise a run of 400 is held as a whole
    monkeypatch.setattr(stored, "_FETCHED", 20)

    def peak(count: int, time: int = 0) -> int:
        tracemalloc.start()
        written(lengths[count], name, tmp_path / f"{count}-{time}")
        _, highest = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return highest

    peak(40)  # what is imported once
    shorter = peak(100)
    # The least of three, since an earlier test's thread may take memory during one of them.
    assert min(peak(400, time) for time in range(3)) < 1.5 * shorter


def test_failed_episodes_are_in_no_set(tmp_path: Path) -> None:
    records = [
        replace(example_run.record(case, "trained", 0, seed), phase=phase, doctor="policy")
        for case in range(4)
        for phase, seed in (("chosen", 1), ("rejected", 2))
    ]
    failed = [
        replace(
            each,
            score=None,
            correct=None,
            episode=replace(each.episode, ending=Ending.FAILED, reason="the judge gave up"),
        )
        if each.phase == "rejected"
        else each
        for each in records
    ]
    for name, kept in (("whole", records), ("half", failed)):
        with Run.create(tmp_path / name, {"method": "x"}, {}) as run:
            run.write(kept)
    assert table(written(tmp_path / "whole", "preference", tmp_path / "pairs"))
    with pytest.raises(UserError, match="no pair can be made"):
        written(tmp_path / "half", "preference", tmp_path / "none")
    for name in ("chat", "prompt-completion"):
        with pytest.raises(UserError, match="all of these episodes failed"):
            written(tmp_path / "half", name, tmp_path / "none", "phase=rejected")
        card = written(tmp_path / "half", name, tmp_path / name) / "README.md"
        assert "4 episodes that failed are left out." in card.read_text()
    assert not (tmp_path / "none").exists()


def test_a_card_shows_no_empty_code(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", {"method": "x", "cases": ""}, {}) as run:
        run.write([example_run.record(0, "trained", 0, 0)])
    out = written(tmp_path / "run", "chat", tmp_path / "out")
    assert "``" not in (out / "README.md").read_text()


def test_restricted_cases_are_refused_and_kept_for_oneself(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", {"cases": "x"}, {}, restricted=True) as run:
        run.write([example_run.record(0, "trained", 0, 0)])
    with pytest.raises(UserError, match=r"restricted.*--restricted"):
        written(tmp_path / "run", "chat", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    out = written(tmp_path / "run", "chat", tmp_path / "out", restricted=True)
    assert out.stat().st_mode & 0o777 == 0o700
    assert "do not upload" in (out / "README.md").read_text()
    line = '{"id": "a", "presentation": "p", "truth": {"diagnosis": "d"}, "restricted": true}\n'
    (tmp_path / "cases.jsonl").write_text(line)
    cases = material.drawn(f"jsonl:{tmp_path / 'cases.jsonl'}#all")
    with pytest.raises(UserError, match="restricted"):
        export(cases, exports.load("parquet"), tmp_path / "cases")


def test_what_fails_leaves_nothing(run: Path, tmp_path: Path, monkeypatch: Any) -> None:
    def broken(*_: Any, **__: Any) -> Iterator[Record]:
        yield example_run.record(0, "trained", 0, 0)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(material.Chosen, "records", broken)
    for name in ("parquet", "jsonl", "chat"):
        with pytest.raises(UserError, match="the disk is full"):
            written(run, name, tmp_path / "out")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["mine"]


KILLED = """
import os, signal, sys
from pathlib import Path
from workup.interop import exports
from workup.interop.exports import material
from workup.interop.exports.formats import parquet
from workup.interop.exports.writing import export
def killed(*_):
    os.kill(os.getpid(), signal.SIGKILL)
parquet.of_run = killed
export(material.chosen(Path(sys.argv[1]), ()), exports.load("parquet"), Path(sys.argv[2]))
"""


@pytest.mark.long
def test_what_a_killed_export_left_is_gone_after_the_next(run: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-c", KILLED, str(run), str(tmp_path / "out")]
    assert subprocess.run(words, check=False).returncode == -signal.SIGKILL
    assert [each.name for each in tmp_path.iterdir() if each.suffix == ".draft"]
    assert table(written(run, "parquet", tmp_path / "out"))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["mine", "out"]


@pytest.mark.long
def test_mistakes_are_one_line(call: Call, run: Path, tmp_path: Path) -> None:
    Run.create(tmp_path / "empty", {"cases": "x", "method": "craft"}, {}).close()
    folders = ("runs/doc/MMLU", "runs/doc/CMB")
    arm = {"doctor": "doc", "played_as": "doc", "benchmark": "MMLU", "settings": {}}
    own = {"left_out": [], "benchmarks": [], "arms": [arm | {"folder": each} for each in folders]}
    Run.create(tmp_path / "suite", {"kind": "suite", "suite": "two", **own}, {}).close()
    shutil.copytree(run, tmp_path / "suite" / folders[0])  # the other one has not begun
    with Run.create(tmp_path / "single", {"cases": "x"}, versions({})) as single:
        single.write([example_run.ceiling(k) for k in range(3)])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note").write_text("mine")
    for words, said in {
        ("mine", "--as", "parqet"): "Did you mean 'parquet'",
        ("mines", "--as", "chat"): "Did you mean 'mine'",
        ("suite", "--as", "chat"): "export one of its evaluations (suite/runs/doc/MMLU)",
        ("empty", "--as", "chat"): "holds no episode yet",
        ("single", "--as", "preference"): "two of one case",
        ("single", "--as", "tokens"): "has token ids",
        ("mine", "--as", "chat", "doctor=nobody"): "random doctor",
        ("mine", "--as", "chat", "dotcor=x"): "Did you mean 'doctor'",
        ("mine", "--as", "chat", "step=two"): "whole number",
        ("mine", "--as", "chat", "correct=maybe"): "true, false",
        ("mine", "--as", "chat", "trained"): "column=value",
        ("mine", "--as", "chat", "doctor=trained", "doctor=x"): "named twice",
        ("mine", "--as", "chat", "--out", "full"): "not empty",
        ("mine", "--as", "chat", "--out", "full/note"): "no folder",
        ("clinic:xs", "--as", "chat"): "jsonl, parquet",
        ("clinic:xs", "--as", "parquet", "phase=train"): "no run",
        ("clinic:xs", "--as", "parquet", "--of", "dev"): "no side 'dev'",
    }.items():
        status, out, err = call("export", *words)
        assert (status, out) == (2, "")
        assert said in err
        assert err.startswith("error: ")
        assert len(err.splitlines()) == 1
    assert not list(tmp_path.glob("exports/*"))
    assert (tmp_path / "full" / "note").read_text() == "mine"
    assert call("export", "mine", "--as", "chat")[0] == 0
    assert (tmp_path / "exports" / "mine-chat" / "train.parquet").is_file()
    assert "not empty" in call("export", "mine", "--as", "chat")[2]


def hostile() -> Record:
    record = example_run.record(0, "trained", 0, 0)
    case = replace(record.episode.case, id=HOSTILE.replace("\x00", "\x01"))
    return replace(record, doctor=HOSTILE, episode=replace(record.episode, case=case))


def test_hostile_names_stay_names(tmp_path: Path) -> None:
    path = tmp_path / "-`x`|..y"
    with Run.create(path, {"cases": HOSTILE, "method": "<b>`"}, {}) as run:
        run.write([hostile()])
    out = written(path, "chat", tmp_path / "out")
    card = (out / "README.md").read_text()
    assert header(out)["pretty_name"] == path.name
    assert all(line.count("`") % 2 == 0 for line in card.splitlines() if "```" not in line)
    assert table(out)[0]["doctor"] == HOSTILE
    assert sorted(each.name for each in out.iterdir()) == ["README.md", "train.parquet"]


def test_inspect_reads_the_logs(run: Path, tmp_path: Path) -> None:
    log = pytest.importorskip("inspect_ai.log", reason="it asks for older libraries than ours")
    failed = Episode(example_run.case(99), (), (), Ending.FAILED, "the judge gave up")
    with Run.open(run) as opened:
        opened.write([hostile(), Record("failing", failed)])
    out = written(run, "inspect", tmp_path / "logs")
    listed = log.list_eval_logs(str(out))
    assert len(listed) == len(Run.open(run).doctors())
    by_model = {}
    for info in listed:
        read = log.read_eval_log(info.name)
        by_model[read.eval.model] = read
        assert len(log.read_eval_log_sample_summaries(info.name)) == read.results.total_samples
    for doctor in Run.open(run).doctors():
        read, records = by_model[f"workup/{doctor}"], Run.open(run).episodes(doctor=doctor)
        samples = {(s.metadata["case"], s.epoch): s for s in read.samples}
        assert len(samples) == len(records)
        assert read.eval.dataset.samples == len({case for case, _ in samples})
        for record in records:
            same(samples[record.episode.case.id, record.sample + 1], record)
        if doctor == "failing":
            continue
        right = [record.correct for record in records if record.correct is not None]
        assert read.results.scores[0].metrics["accuracy"].value == sum(right) / len(right)
    assert sorted(each.suffix for each in out.iterdir()) == [".eval"] * len(listed) + [".md"]


def same(sample: Any, record: Record) -> None:
    """The log's sample says what the record says."""
    turns = record.episode.turns
    spoken = [m.text for m in sample.messages if m.role == "assistant"]
    assert spoken == [turn.completion.text for turn in turns]
    assert sample.target == record.episode.case.truth.diagnosis
    assert (sample.error is None) == (record.episode.ending is not Ending.FAILED)
    if record.correct is not None:
        assert sample.scores["diagnosis"].value == ("C" if record.correct else "I")
    if record.score is not None:
        assert Score(tuple(sample.scores["reward"].metadata["turns"])).total == record.score.total
