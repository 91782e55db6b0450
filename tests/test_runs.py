"""The run folder: what goes in comes out, whatever happens in between."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from array import array
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workup.core.case import Case, Fact, Kind, Passage, Truth
from workup.core.episode import (
    Action,
    Completion,
    Ending,
    Episode,
    Message,
    Observation,
    Part,
    Score,
    Turn,
)
from workup.core.errors import UserError, WorkupError
from workup.runs import Record, Run, folder, versions
from workup.runs.packed import opened
from workup.runs.record import flat, turns_of
from workup.runs.store import EpisodeStore
from workup.runs.untouched import Untouched

CONFIG = {
    "method": "craft",
    "cases": "clinic:s",
    "seed": 3,
    "reward": {"alpha": 1.0},
    "list": [1, 2],
}

text = st.text(st.characters(codec="utf-8"), max_size=12)
numbers = st.floats(-1e6, 1e6)
singles = st.floats(-1e6, 1e6, width=32)
messages = st.lists(st.builds(Message, st.sampled_from(["system", "user"]), text), max_size=3).map(
    tuple
)
facts = st.lists(
    st.builds(Fact, text, text, text, st.sampled_from(list(Kind)), st.none() | st.integers(0, 3)),
    max_size=3,
).map(tuple)
truths = st.builds(
    Truth,
    text,
    codes=st.tuples(text),
    aliases=st.tuples(text, text),
    differentials=st.tuples(text),
    facts=facts,
    record=text,
    references=st.just(()),
)
cases = st.builds(Case, text, text, truths, text, st.tuples(text), facts, text)


passages = st.builds(Passage, text, text, text)


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    ids = draw(st.lists(st.integers(0, 2**31 - 1), max_size=4))
    logprobs = draw(st.lists(singles, min_size=len(ids), max_size=len(ids)))
    completion = Completion(draw(text), tuple(ids), tuple(logprobs), draw(st.booleans()))
    named = st.lists(text, max_size=2).map(tuple)
    parts = draw(st.lists(st.builds(Part, text, named), max_size=2))
    action = Action(draw(text), draw(named), draw(st.integers(0, 5)), tuple(parts))
    found = draw(st.none() | st.lists(passages, max_size=3).map(tuple))
    # Some are shown as they are and in their order, as a library's are; some are not.
    shown = draw(st.permutations([*(each.whole for each in found or ()), "[1] ", ""]))
    reply = (*draw(messages), Message("user", draw(st.sampled_from(["", " ", "\n"])).join(shown)))
    observation = Observation(
        reply,
        draw(named),
        draw(text),
        draw(st.booleans()),
        draw(named),
        draw(st.booleans()),
        found,
    )
    return Turn(
        tuple(draw(st.lists(st.integers(0, 9), max_size=4))), completion, action, observation
    )


@st.composite
def records(draw: st.DrawFn, case: st.SearchStrategy[Case] = cases) -> Record:
    past = tuple(draw(st.lists(turns(), max_size=3)))
    episode = Episode(
        draw(case), draw(messages), past, draw(st.sampled_from(list(Ending))), draw(text)
    )
    tokens = sum(len(turn.prompt_tokens) + len(turn.completion.tokens) for turn in past)
    return Record(
        draw(text),
        episode,
        draw(st.sampled_from(["train", "eval"])),
        draw(text),
        draw(st.integers(0, 9)),
        draw(st.integers(0, 9)),
        draw(st.none() | st.booleans()),
        draw(
            st.none()
            | st.builds(
                Score,
                st.lists(numbers, max_size=3).map(tuple),
                st.dictionaries(text, numbers, max_size=2),
            )
        ),
        draw(st.dictionaries(text, st.none() | numbers, max_size=2)),
        draw(st.just(()) | st.lists(singles, min_size=tokens, max_size=tokens).map(tuple)),
    )


def simple(step: int = 1, sample: int = 0, **changes: object) -> Record:
    case = Case("a", "It hurts.", Truth("gout"))
    turn = Turn(
        (1, 2),
        Completion("<ask>fever</ask>", (3,), (-0.5,)),
        Action("ask", ("fever",)),
        Observation(),
    )
    episode = Episode(case, (Message("user", "It hurts."),), (turn,), Ending.DIAGNOSED)
    record = Record(
        "policy", episode, "train", "craft", step, sample, True, Score((1.0,), {"acc": 1.0})
    )
    return replace(record, **changes)  # type: ignore[arg-type]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path / "run", CONFIG, versions({"seed": 3}, "workup train craft"))


@pytest.mark.long
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(records(), max_size=4, unique_by=lambda record: record.episode.case.id))
def test_what_goes_in_comes_out(
    tmp_path_factory: pytest.TempPathFactory, batch: list[Record]
) -> None:
    with Run.create(tmp_path_factory.mktemp("run"), CONFIG, {}) as run:
        run.write(batch)
        assert sorted(run.episodes(), key=lambda record: record.key) == sorted(
            batch, key=lambda record: record.key
        )


def test_what_an_observation_says_besides_its_text_is_kept(run: Run) -> None:
    (turn,) = simple().episode.turns
    for number, how in enumerate(({"understood": False}, {"understood_by": "synonym"}, {})):
        seen = Observation(item="x", sources=("record", "none"), **how)
        whole = replace(simple().episode, turns=(replace(turn, observation=seen),))
        run.write([simple(sample=number, episode=whole)])
        assert [*run.episodes()][-1].episode.turns[0].observation == seen


def test_passages_are_kept_as_places_in_the_reply(run: Run) -> None:
    """Texts that the reply shows in this order stand nowhere else; the others are written down."""
    (turn,) = simple().episode.turns
    found = [Passage(f"p{n}", f"{n} {'x' * 5_000}", "a title") for n in range(3)]
    shown = "\n".join(f"[{n}] {each.whole}" for n, each in enumerate(found, 1))
    hidden = Passage("q", "not shown")
    for passages, room in (((), 2), ((*found, hidden), 100), ((found[2], found[0]), 5_100)):
        seen = replace(turn, observation=Observation((Message("user", shown),), passages=passages))
        run.write([simple(episode=replace(simple().episode, turns=(seen,)))])
        (record,) = run.episodes()
        assert record.episode.turns == (seen,)
        (row,) = run._store.query("SELECT turns FROM episodes")
        (told,) = turns_of(row["turns"])
        assert len(str(told["passages"])) <= room


@pytest.mark.long
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_what_is_told_again_comes_out_again(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Steps that share openings and turns, in one session or several, whole or replaced."""
    some = data.draw(st.lists(turns(), min_size=1, max_size=3))
    opening = data.draw(messages)
    folder = tmp_path_factory.mktemp("run")
    run, expected = Run.create(folder, CONFIG, {}), {}
    for step in data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=6)):
        batch = []
        for sample in range(data.draw(st.integers(1, 3))):
            past = tuple(data.draw(st.lists(st.sampled_from(some), max_size=4)))
            case = Case(data.draw(st.sampled_from("ab")), "It hurts.", Truth("gout"))
            episode = Episode(case, opening, past, Ending.DIAGNOSED)
            count = len(flat(episode)[0])
            weights = data.draw(st.sampled_from([(), (0.5,) * count]))
            batch.append(simple(step, sample, episode=episode, advantages=weights))
        run.write(batch)
        expected |= {record.key: record for record in batch}
        if data.draw(st.booleans()):
            run.close()
            run = Run.open(folder)
    in_order = [expected[key] for key in sorted(expected)]
    assert list(run.episodes()) == in_order
    for store in (run.store, Untouched(folder / "episodes.sqlite")):
        assert list(store.read({})) == in_order
        query = (
            "SELECT tokens, mask, logprobs, advantages FROM episodes ORDER BY step, case_id, sample"
        )
        for row, record in zip(store.query(query), in_order, strict=True):
            tokens, mask, logprobs = flat(record.episode)
            assert array("i", row["tokens"]).tolist() == tokens
            assert row["mask"] == bytes(mask)
            assert array("f", row["logprobs"]).tolist() == logprobs
            assert array("f", row["advantages"]).tolist() == list(record.advantages)
    run.close()


def test_a_text_that_comes_back_is_written_once(run: Run) -> None:
    words = [f"<ask>{'word ' * 20}{number}</ask>" for number in range(40)]
    (turn,) = simple().episode.turns

    def played(number: int) -> Episode:
        said = Completion(words[number], (3,), (-0.5,))
        return replace(simple().episode, turns=(replace(turn, completion=said),))

    for step in range(1, 9):
        run.write([simple(step, k, episode=played(k)) for k in range(40)])
    run.close()
    with closing(sqlite3.connect(run.path / "episodes.sqlite")) as store:
        own = [opened(said) for (said,) in store.execute("SELECT said FROM blocks ORDER BY id")]
        shared = [opened(texts) for (texts,) in store.execute("SELECT texts FROM shared")]
    assert [int(lines[0]) for lines in own] == [41] + 7 * [0]
    assert len(shared) == 1, "in the second step, and never again"
    assert sorted(set(shared[0])) == sorted(shared[0])
    assert len(shared[0]) == 41
    told = [record.episode.turns[0].completion.text for record in run.episodes(step=8)]
    assert told == words


@pytest.mark.parametrize("name", ["told", "said", "logprobs", "advantages"])
def test_a_damaged_block_is_one_clear_line(run: Run, name: str) -> None:
    run.write([simple(advantages=(0.0, 0.0, 0.25))])
    with run.store.transaction() as store:
        (whole,) = store.execute(f"SELECT {name} FROM blocks").fetchone()
        store.execute(f"UPDATE blocks SET {name} = ?", (whole[:-3],))
    run.close()
    for each in (Run.open(run.path), Run.open(run.path, Untouched)):
        with pytest.raises(UserError, match=r"episodes.sqlite: it is damaged") as caught:
            list(each.episodes())
        assert "\n" not in str(caught.value)
        assert len(each.episodes()) == 1, "lists read what is whole"
        each.close()


def test_a_block_that_would_fill_the_memory_is_refused(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workup.runs.packed.LARGEST", 10_000)
    run.write([simple(1, k) for k in range(2_000)])
    with pytest.raises(UserError, match="it is damaged"):
        list(run.episodes())


def test_config_and_versions_are_what_was_given(run: Run) -> None:
    assert yaml.safe_load((run.path / "config.yaml").read_text()) == CONFIG
    again = Run.open(run.path)
    assert again.config == CONFIG
    assert again.versions["seeds"] == {"seed": 3}
    assert again.versions["python"] == ".".join(map(str, sys.version_info[:3]))
    assert again.name == "run"


def test_numbers_are_bytes_and_lists_need_no_program_of_ours(run: Run) -> None:
    run.write([simple(advantages=(0.0, 0.0, 0.25))])
    (row,) = run.store.query("SELECT tokens, mask, logprobs, advantages FROM episodes")
    with closing(sqlite3.connect(run.path / "episodes.sqlite")) as plain:
        listed = plain.execute("SELECT stage, step, case_id, ending, correct, total FROM listed")
        assert listed.fetchall() == [("craft", 1, "a", "diagnosed", 1, 1.0)]
    assert array("i", row[0]).tolist() == [1, 2, 3]
    assert list(row[1]) == [0, 0, 1]
    assert array("f", row[2]).tolist() == [0.0, 0.0, -0.5]
    assert array("f", row[3]).tolist() == [0.0, 0.0, 0.25]


def test_a_step_run_again_replaces_its_episodes(run: Run) -> None:
    run.write([simple(1, sample) for sample in range(4)])
    run.write([simple(1, sample, correct=False) for sample in range(4)])
    assert [record.correct for record in run.episodes()] == [False] * 4


def test_two_episodes_with_one_key_are_refused(run: Run) -> None:
    with pytest.raises(WorkupError, match="same case and sample"):
        run.write([simple(), simple()])
    assert len(run.episodes()) == 0


def test_a_reward_that_is_no_number_names_the_case(run: Run) -> None:
    with pytest.raises(WorkupError, match=r"case a.*no finite number"):
        run.write([simple(0), simple(1, score=Score((float("nan"),)))])
    assert len(run.episodes()) == 0


def test_advantages_must_fit_the_tokens(run: Run) -> None:
    with pytest.raises(WorkupError, match="2 advantages for 3 tokens"):
        run.write([simple(advantages=(0.0, 1.0))])


def test_filters_slices_and_counts(run: Run) -> None:
    run.write([simple(step, sample, correct=sample == 0) for step in (1, 2) for sample in range(3)])
    steps = [(record.step, record.sample) for record in run.episodes()]
    assert steps == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]
    assert [(record.step, record.sample) for record in run.episodes()[4:0:-2]] == steps[4:0:-2]
    assert run.episodes()[-1].key == run.episodes()[5].key
    assert len(run.episodes(step=2, correct=True)) == 1
    assert len(run.episodes(case="a", diagnosis="gout", ending=Ending.DIAGNOSED)) == 6
    with pytest.raises(IndexError):
        run.episodes(step=9)[0]
    with pytest.raises(UserError, match=r"no column 'stepp'. Did you mean 'step'"):
        run.episodes(stepp=1)


def test_outcomes_are_those_of_the_last_evaluation(run: Run) -> None:
    run.write([simple(5, phase="eval", doctor="trained", correct=False)])
    run.write([simple(0, phase="eval", doctor="random doctor", stage="")])
    run.write([simple(10, phase="eval", doctor="trained", measures={"noise": None})])
    run.write([simple(11)])
    assert run.doctors() == ["random doctor", "trained"]
    (outcome,) = run.outcomes("trained")
    assert outcome.correct is True
    assert outcome.measures == {"noise": None}
    assert outcome.parts == {"acc": 1.0}
    assert (outcome.total, outcome.questions, outcome.diagnosis) == (1.0, 1, "gout")
    assert run.outcomes("nobody") == []


def test_a_failed_episode_that_is_played_again_keeps_the_order_of_doctors(run: Run) -> None:
    first = [simple(0, k, phase="eval", doctor="one", stage="") for k in (1, 2)]
    run.write(first)
    run.write([simple(0, 1, phase="eval", doctor="two", stage="")])
    run.write(first[:1])
    assert run.doctors() == ["one", "two"]


def test_parquet_holds_every_episode(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workup.runs.parquet._ROWS", 4)
    measures = {"noise": None, "coverage": 0.5}
    run.write(
        [simple(1, sample, measures=measures, advantages=(0.0, 0.0, 0.25)) for sample in range(10)]
    )
    assert run.export_parquet(run.path / "episodes.parquet") == 10
    file = pq.ParquetFile(run.path / "episodes.parquet")
    assert file.num_row_groups == 3
    rows = file.read().to_pylist()
    assert [row["sample"] for row in rows] == list(range(10))
    row = rows[0]
    assert (row["case"], row["diagnosis"], row["return"], row["correct"]) == (
        "a",
        "gout",
        1.0,
        True,
    )
    assert row["measures"] == [{"name": n, "value": v} for n, v in measures.items()]
    assert row["turns"][0]["score"] == 1.0
    assert row["turns"][0]["content"] == ["fever"]
    assert (row["tokens"], row["mask"]) == ([1, 2, 3], [False, False, True])
    assert (row["logprobs"], row["advantages"]) == ([0.0, 0.0, -0.5], [0.0, 0.0, 0.25])
    assert not list(run.path.glob(".*partial"))
    with pytest.raises(UserError, match=r"nowhere/episodes.parquet"):
        run.export_parquet(run.path / "nowhere" / "episodes.parquet")


# ---- crashes and resuming


def fill(run: Run) -> None:
    run.write([simple(0, phase="eval", doctor="random doctor", stage="")])
    for stage in ("warm start", "craft", "late"):
        for step in (1, 2, 3):
            run.write([simple(step, stage=stage)])
            run.log({"stage": stage, "step": step, "reward": 0.5})
        run.write([simple(3, stage=stage, phase="eval", doctor=stage)])


@pytest.mark.parametrize(
    ("stage", "step", "kept"),
    [
        ("late", 3, ["warm start"] * 3 + ["craft"] * 3 + ["late"] * 3),
        ("craft", 3, ["warm start"] * 3 + ["craft"] * 3 + ["late"] * 3),
        ("craft", 2, ["warm start"] * 3 + ["craft"] * 2),
        ("craft", 0, ["warm start"] * 3),
        ("warm start", 0, []),
    ],
)
def test_truncation_forgets_what_will_be_done_again(
    run: Run, stage: str, step: int, kept: list[str]
) -> None:
    fill(run)
    run.truncate_after(stage, step)
    assert [line["stage"] for line in run.metrics()] == kept
    order = {"warm start": 0, "craft": 1, "late": 2}
    assert sorted((r.stage for r in run.episodes(phase="train")), key=order.__getitem__) == kept
    evaluated = ["random doctor"] + [
        stage for stage in dict.fromkeys(kept) if kept.count(stage) == 3
    ]
    assert run.doctors() == evaluated


def test_truncation_drops_episodes_whose_metrics_were_never_written(run: Run) -> None:
    fill(run)
    run.write([simple(4, stage="late"), simple(1, stage="after")])
    run.truncate_after("late", 3)
    assert {(record.stage, record.step) for record in run.episodes(phase="train")} == {
        (stage, step) for stage in ("warm start", "craft", "late") for step in (1, 2, 3)
    }


def test_truncation_before_anything_was_written(run: Run) -> None:
    run.truncate_after("craft", 0)
    assert list(run.metrics()) == []


def test_a_half_written_line_never_counts_and_is_repaired(run: Run) -> None:
    run.log({"stage": "craft", "step": 1, "loss": float("nan")})
    whole = (run.path / "metrics.jsonl").read_bytes()
    for size in range(1, len(whole)):
        (run.path / "metrics.jsonl").write_bytes(whole + whole[:size])
        again = Run.open(run.path)
        assert len(list(again.metrics())) == 1
        again.log({"stage": "craft", "step": 2})
        assert [line["step"] for line in again.metrics()] == [1, 2]
    assert json.loads(whole)["loss"] is None


WRITER = """
import sys
sys.path.insert(0, {tests!r})
from test_runs import simple
from workup.runs import Run
run = Run.open({path!r})
for step in range(1, 10_000):
    run.write([simple(step, sample) for sample in range(16)])
    run.log({{"stage": "craft", "step": step}})
    print(step, flush=True)
"""


@pytest.mark.long
@pytest.mark.parametrize("after", [3, 40])
def test_a_killed_writer_leaves_whole_steps(run: Run, after: int) -> None:
    script = WRITER.format(tests=str(Path(__file__).parent), path=str(run.path))
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        for line in process.stdout:
            if int(line) >= after:
                process.send_signal(signal.SIGKILL)
                break
    steps = [line["step"] for line in run.metrics()]
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) >= after
    counts = {step: len(run.episodes(step=step)) for step in range(1, len(steps) + 2)}
    assert all(counts[step] == 16 for step in steps)
    assert counts[len(steps) + 1] in (0, 16)
    run.truncate_after("craft", len(steps))
    assert len(run.episodes()) == 16 * len(steps)


# ---- the user's mistakes and the machine's


def test_a_folder_with_a_run_is_not_written_over(run: Run) -> None:
    with pytest.raises(UserError, match=f"{run.path} already holds a run.*workup resume.*--out"):
        Run.create(run.path, CONFIG, {})


def test_a_name_that_no_disk_takes_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot write .*xxx"):
        folder.free(tmp_path / ("x" * 300))


def test_of_two_that_begin_at_once_one_makes_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one begins after the folder was found free, and before anything is written."""
    place, real, begun = tmp_path / "run", folder.free, []

    def late(path: Path) -> None:
        real(path)
        if not begun:
            begun.append(path)
            Run.create(path, {"cases": "first"}, {}).close()

    monkeypatch.setattr(folder, "free", late)
    with pytest.raises(UserError, match="already holds a run"):
        Run.create(place, {"cases": "second"}, {})
    with Run.open(place) as run:
        assert run.config["cases"] == "first"


def test_a_folder_with_other_things_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("…")
    with pytest.raises(UserError, match=r"is not empty and holds no run.*--out"):
        Run.create(tmp_path, CONFIG, {})
    with pytest.raises(UserError, match=r"is a file.*--out"):
        Run.create(tmp_path / "thesis.tex", CONFIG, {})
    with pytest.raises(UserError, match="is a file, not a folder"):
        Run.create(tmp_path / "thesis.tex" / "run", CONFIG, {})
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_misspelt_run_gets_the_nearest_name(run: Run) -> None:
    with pytest.raises(UserError, match=f"rum does not exist. Did you mean '{run.path}'"):
        Run.open(run.path.parent / "rum")
    (run.path.parent / "other").mkdir()
    with pytest.raises(UserError, match=r"other is no run folder.*config.yaml.*Runs there: "):
        Run.open(run.path.parent / "other")
    with pytest.raises(UserError, match=r"is no run folder .*; it holds runs\. Name one of them: "):
        Run.open(run.path.parent)


LIMITED = """
import resource, sys
sys.path.insert(0, {tests!r})
from test_runs import simple
from workup.core.errors import UserError
from workup.runs import Run
run = Run.open({path!r})
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
try:
    for step in range(1, 10_000):
        run.write([simple(step, sample) for sample in range(16)])
        run.log({{"stage": "craft", "step": step, "padding": "x" * {padding}}})
        run.write_summary({{"step": step, "padding": "x" * {padding}}})
except UserError as error:
    print(error)
    sys.exit(2)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("limit", "padding", "file"),
    [
        (900_000, 1, "episodes.sqlite"),
        (2_000_000, 900_000, "metrics.jsonl"),
        (900_000, 1_000_000, "metrics.jsonl"),
    ],
)
def test_a_full_disk_is_one_clear_line(run: Run, limit: int, padding: int, file: str) -> None:
    """The kernel's file-size limit stands for a full disk.

    The same write fails in the same place.
    """
    run.write([simple(0)])
    script = LIMITED.format(
        tests=str(Path(__file__).parent), path=str(run.path), limit=limit, padding=padding
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert file in done.stdout
    assert "full; free some space" in done.stdout
    assert done.stdout.count("\n") == 1
    steps = [line["step"] for line in run.metrics()]
    assert steps == list(range(1, len(steps) + 1))
    run.log({"stage": "craft", "step": len(steps) + 1})
    assert len(list(run.metrics())) == len(steps) + 1


def test_a_failed_replacement_leaves_the_old_file(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.write_summary({"steps": 1})

    def refuse(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(UserError, match=r"summary.json: the disk is full"):
        run.write_summary({"steps": 2})
    assert run.summary == {"steps": 1}
    assert not list(run.path.glob(".summary*"))


def test_a_read_only_database_is_one_clear_line(run: Run) -> None:
    run.write([simple()])
    run.close()
    run._store._connection = sqlite3.connect(
        f"file:{run.path}/episodes.sqlite?mode=ro", uri=True, isolation_level=None
    )
    with pytest.raises(UserError, match="read-only; choose a writable folder with --out"):
        run.write([simple(2)])


@pytest.mark.skipif(
    not Path("/sys/kernel").is_dir(), reason="needs a folder that not even root may write"
)
def test_a_read_only_place_is_one_clear_line() -> None:
    with pytest.raises(
        UserError,
        match=r"cannot write /sys/run: the folder is read-only; choose a writable one with --out",
    ):
        Run.create("/sys/run", CONFIG, {})


def test_a_finished_run_can_be_read_where_nothing_can_be_written(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.write([simple()])
    run.close()
    monkeypatch.setattr(os, "access", lambda *_: False)
    with Run.open(run.path) as sealed:
        assert len(sealed.episodes()) == 1
        assert {path.name for path in run.path.iterdir()} == {
            "config.yaml",
            "versions.json",
            "episodes.sqlite",
            ".lock",
        }
        with pytest.raises(UserError, match="read-only"):
            sealed.write([simple(2)])


def test_a_damaged_database_is_one_clear_line(run: Run) -> None:
    (run.path / "episodes.sqlite").write_text(
        "this is no database, though it is long enough to be taken for one" * 20
    )
    with pytest.raises(UserError, match=r"episodes.sqlite: it is no SQLite file"):
        list(run.episodes())


@pytest.mark.parametrize("format", [99, 2])
def test_another_format_is_refused(run: Run, format: int) -> None:
    run.write([simple()])
    run._store._open().execute(f"PRAGMA user_version = {format}")
    run.close()
    there = rf"another workup \(format {format}, this one reads 3\)"
    for store in (EpisodeStore, Untouched):
        with pytest.raises(UserError, match=there) as told:
            Run.open(run.path, store)
        assert "\n" not in str(told.value)
        with pytest.raises(UserError, match=there):
            list(store(run.path / "episodes.sqlite").read({}))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("nonsense", "not JSON"),
        ("{}", "it has no 'stage'"),
        ("[]", "no JSON object"),
        ('{"stage": "a", "step": "2"}', "it has no 'step'"),
    ],
)
def test_a_damaged_metrics_line_is_named(line: str, why: str, run: Run) -> None:
    (run.path / "metrics.jsonl").write_text('{"stage": "a", "step": 1}\n' + line + "\n")
    with pytest.raises(UserError, match=r"metrics.jsonl, line 2: this line is damaged \(" + why):
        list(run.metrics())


def test_two_trainers_do_not_share_a_run(run: Run) -> None:
    with (
        run.alone(),
        pytest.raises(UserError, match="another process is training"),
        Run.open(run.path).alone(),
    ):
        pass
    with Run.open(run.path).alone():
        pass


HOLDER = """
import os, sys
from workup.runs import Run
with Run.open({path!r}).alone():
    if os.fork() == 0:  # the worker says it, once it has let go of its copy
        print("held", flush=True)
    sys.stdin.read()  # both wait here: the process, and the worker that it has forked
"""


def test_a_killed_process_holds_no_lock_even_if_a_worker_of_it_lives_on(run: Run) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER.format(path=str(run.path))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin
    assert process.stdout
    assert process.stdout.readline() == "held\n"
    with pytest.raises(UserError, match="another process is training"), run.alone():
        pass
    process.kill()
    process.wait()
    with run.alone():
        process.stdin.close()  # only now does the worker end
        assert process.stdout.read() == ""


def test_a_run_killed_while_it_was_made_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for name in ("versions.json", ".config.yaml.x7"):
        (tmp_path / "run" / name).write_text("{")
    assert Run.create(tmp_path / "run", CONFIG, versions({"seed": 3})).config == CONFIG
