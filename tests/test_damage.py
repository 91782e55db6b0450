"""Run folders that are damaged, of another program, or made to disturb.

The viewer shows them as damaged and the others as ever; commands refuse them in one line.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import shutil
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import example_run
import pytest
from command_line import Call
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workup.core.errors import UserError
from workup.runs import Run
from workup.runs.files import DEEPEST, LARGEST_JSON, LARGEST_LINES, DamagedError
from workup.runs.packed import PER_BLOCK, TOLD, Connection, likeness, squeezed
from workup.runs.packed import opened as unpacked
from workup.runs.untouched import Untouched
from workup.viewer import opened, pages
from workup.viewer.app import render
from workup.viewer.asking import written
from workup.viewer.shown import ShownRun

COMMANDS = ("compare", "export", "resume", "report")
DEEP = '{"a":' * 5_000 + "1" + "}" * 5_000
HALF = '{"started": "\\ud800"}'  # half a character, which no page can be encoded with
FIGURE = {"mean": 0.5, "low": 0.1, "high": 0.9, "n": 4, "missing": 0}
ENTRY = {"cases": 4, "episodes": 4, "endings": {}, "accuracy": FIGURE}


def summary(**entry: Any) -> str:
    return json.dumps({"doctors": {"trained": {**ENTRY, **entry}}})


def in_place(name: str, text: str | bytes) -> Callable[[Path], None]:
    """Damages a run by writing this in a file's place."""

    def damage(run: Path) -> None:
        content = text.encode() if isinstance(text, str) else text
        (run / name).unlink(missing_ok=True)
        (run / name).write_bytes(content)

    return damage


def pipe(name: str) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        (run / name).unlink()
        os.mkfifo(run / name)

    return damage


def folder(name: str) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        (run / name).unlink()
        (run / name).mkdir()

    return damage


def linked(name: str, to: str) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        (run / name).rename(run.parent / "elsewhere")
        (run / name).symlink_to(to)

    return damage


def huge(name: str, size: int) -> Callable[[Path], None]:
    """A file of zeros that takes no room on the disk."""

    def damage(run: Path) -> None:
        os.truncate(run / name, size)

    return damage


def database(*statements: str) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        with reached(run) as connection:
            for statement in statements:
                connection.execute(statement)

    return damage


@contextmanager
def reached(run: Path) -> Iterator[Connection]:
    """The run's database, which is written at the end."""
    with closing(sqlite3.connect(run / "episodes.sqlite", factory=Connection)) as connection:
        yield connection
        connection.commit()


def part(name: str, change: Callable[[bytes, int], bytes]) -> Callable[[Path], None]:
    """Changes a part of the last block: `change` takes it and an episode's place in the block."""

    def damage(run: Path) -> None:
        with reached(run) as connection:
            block, place = divmod(connection.execute(LAST).fetchone()[0], PER_BLOCK)
            ((whole,),) = connection.execute(f"SELECT {name} FROM blocks WHERE id = {block}")
            new = change(whole, place)
            connection.execute(f"UPDATE blocks SET {name} = ? WHERE id = {block}", (new,))

    return damage


def told(column: str, line: str) -> Callable[[Path], None]:
    """Another line in the place of an episode's scores, parts or measures."""

    def change(whole: bytes, place: int) -> bytes:
        lines = unpacked(whole)
        lines[len(TOLD) * place + TOLD.index(column)] = line
        return squeezed(lines)

    return part("told", change)


def turn(line: str) -> Callable[[Path], None]:
    """Another text in the place of an episode's last turn."""
    return part("said", lambda whole, place: with_text(whole, place, -1, line))


def with_text(whole: bytes, place: int, which: int, line: str) -> bytes:
    """A block's texts with another one in the place of one of an episode's."""
    count, *lines = unpacked(whole)
    own, episodes = [*lines[: int(count)], line], lines[int(count) :]
    numbers, *counts = episodes[place].split(";")
    texts = numbers.split(",")
    texts[which] = str(-len(own))
    episodes[place] = ";".join([",".join(texts), *counts])
    return squeezed([str(len(own)), *own, *episodes])


def body(line: str) -> Callable[[Path], None]:
    """Another line in the place of every case."""

    def damage(run: Path) -> None:
        with reached(run) as connection:
            chunks = connection.execute("SELECT id, lines FROM bodies").fetchall()
            like = likeness(connection)
            for id, lines in chunks:
                how = like if id > 1 else b""
                new = squeezed([line] * len(unpacked(lines, how)), how)
                connection.execute("UPDATE bodies SET lines = ? WHERE id = ?", (new, id))

    return damage


def cut_off(whole: bytes, place: int) -> bytes:
    return whole[:-3]


def another(*statements: str) -> Callable[[Path], None]:
    """Another database in the place of the run's."""

    def damage(run: Path) -> None:
        (run / "episodes.sqlite").unlink()
        database(*statements)(run)

    return damage


ENDLESS = (
    "CREATE VIEW episodes AS WITH RECURSIVE more(rowid) AS "
    "(SELECT 1 UNION ALL SELECT rowid + 1 FROM more) SELECT * FROM more"
)
# name → (how a run is damaged, a part of the reason)
OPENED: dict[str, tuple[Callable[[Path], None], str]] = {
    "summary cut off": (in_place("summary.json", '{"doctors": {"tr'), "this file is damaged"),
    "summary a list": (in_place("summary.json", "[]"), "it holds no JSON object"),
    "summary deep": (in_place("summary.json", DEEP), f"nested deeper than {DEEPEST} levels"),
    "summary huge": (huge("summary.json", LARGEST_JSON + 1), "bytes, where at most"),
    "summary a pipe": (pipe("summary.json"), "it is a pipe, not a file"),
    "summary a folder": (folder("summary.json"), "it is a folder, not a file"),
    "summary elsewhere": (linked("summary.json", "../elsewhere"), "leads out of its folder"),
    "summary nowhere": (linked("summary.json", "nothing"), "a link to nothing"),
    "doctors a list": (in_place("summary.json", '{"doctors": [1]}'), "field 'doctors'"),
    "an entry a number": (in_place("summary.json", '{"doctors": {"a": 5}}'), "field 'doctors.a'"),
    "cases a text": (in_place("summary.json", summary(cases="4")), "field 'doctors.trained.cases'"),
    "a mean a text": (
        in_place("summary.json", summary(accuracy={**FIGURE, "mean": "x"})),
        "field 'doctors.trained.accuracy.mean",
    ),
    "a figure without n": (
        in_place("summary.json", summary(noise={"mean": 1.0})),
        "field 'doctors.trained.noise.low'",
    ),
    "not a number": (in_place("summary.json", summary(accuracy={"mean": float("nan")})), "NaN"),
    "repeats a text": (
        in_place("summary.json", summary(repeats_accuracy={"each": "x", "mean": 1.0, "sd": 0.0})),
        "field 'doctors.trained.repeats_accuracy.each'",
    ),
    "a chance a list": (in_place("summary.json", summary(ece_by_chance=[1])), "ece_by_chance"),
    "a speed a text": (
        in_place("summary.json", '{"episodes_per_second": {"trained": "x"}}'),
        "field 'episodes_per_second.trained",
    ),
    "calls without a role": (in_place("summary.json", '{"calls": [{}]}'), "field 'calls.0.role'"),
    "versions half a character": (in_place("versions.json", HALF), "this file is damaged"),
    "versions a pipe": (pipe("versions.json"), "it is a pipe"),
    "config a pipe": (pipe("config.yaml"), "it is a pipe"),
    "config a folder": (folder("config.yaml"), "it is a folder"),
    "config elsewhere": (linked("config.yaml", "../elsewhere"), "leads out of its folder"),
    "config deep": (in_place("config.yaml", "a: " + "[" * 60 + "]" * 60), "nested deeper than"),
    "config no YAML": (in_place("config.yaml", "a: ["), "not readable as YAML"),
    "seed a text": (in_place("config.yaml", "seed: x\nsplit: 0\n..."), "field 'seed'"),
    "anchors a number": (in_place("config.yaml", "anchors: 3\nsplit: 0\n..."), "field 'anchors'"),
    "a part a number": (in_place("config.yaml", "parts: [1]\nsplit: 0\n..."), "field 'parts.0'"),
    "parts a number": (in_place("config.yaml", "parts: 5\nsplit: 0\n..."), "field 'parts'"),
    "a part elsewhere": (
        in_place("config.yaml", "parts: [../../../x/2]\nsplit: 0\n..."),
        "field 'parts.0'",
    ),
    "a history of numbers": (
        in_place("config.yaml", "trained_before: [1]\nsplit: 0\n..."),
        "field 'trained_before.0'",
    ),
    "a history with another field": (
        in_place("config.yaml", "trained_before: [{run: a, cases: b, split: 0, c: 1}]\n..."),
        "field 'trained_before.0.c'",
    ),
    "a suite without arms": (in_place("config.yaml", "kind: suite\nsplit: 0\n..."), "field 'suite"),
    "database a text": (in_place("episodes.sqlite", "hello\n" * 99), "it is no SQLite file"),
    "database a pipe": (pipe("episodes.sqlite"), "it is a pipe"),
    "database a folder": (folder("episodes.sqlite"), "it is a folder"),
    "database elsewhere": (linked("episodes.sqlite", "../elsewhere"), "leads out of its folder"),
    "another database": (another("CREATE TABLE notes (a)"), "it has no table"),
    "a column is missing": (
        database("ALTER TABLE blocks RENAME COLUMN said TO sentences"),
        "it has no table 'blocks' as we write it",
    ),
    "a column that is computed": (
        database("DROP TABLE bodies", "CREATE TABLE bodies (id, lines AS (zeroblob(900000000)))"),
        "it has no table 'bodies' as we write it",
    ),
    "a table that is computed": (
        database("DROP TABLE kept", "CREATE VIEW kept AS SELECT 1 AS id"),
        "it has no table 'kept' as we write it",
    ),
    "a view without end": (
        database("DROP VIEW episodes", ENDLESS),
        "it has no view 'episodes' as we write it",
    ),
    "a view is missing": (database("DROP VIEW cases"), "it has no view 'cases'"),
    "another format": (database("PRAGMA user_version = 1"), "written by another workup"),
}
# Found when steps are read.
LINES: dict[str, tuple[Callable[[Path], None], str]] = {
    "metrics a pipe": (pipe("metrics.jsonl"), "it is a pipe"),
    "metrics huge": (huge("metrics.jsonl", LARGEST_LINES + 1), "bytes, where at most"),
    "a line without end": (in_place("metrics.jsonl", b'{"stage": "' + 2**20 * b"a"), "line 1"),
    "a reward a text": (
        in_place("metrics.jsonl", '{"stage": "a", "step": 1, "reward": "x"}\n'),
        "its 'reward' is no number",
    ),
    "an accuracy a text": (
        in_place("metrics.jsonl", '{"stage": "a", "step": 1, "accuracy": "x"}\n'),
        "its 'accuracy' is no number",
    ),
    "parts a list": (
        in_place("metrics.jsonl", '{"stage": "a", "step": 1, "parts": [1]}\n'),
        "its 'parts' is no mapping",
    ),
    "a line deep": (in_place("metrics.jsonl", f"{DEEP}\n"), "nested deeper than"),
}
LAST = "SELECT MAX(rowid) FROM listed WHERE doctor = 'trained'"
TURN = '["","ask",[],0,"",[],[],false,false,[],true]'
WHERE = f"WHERE id = ({LAST})"
# Found when episodes are read.
ROWS: dict[str, tuple[Callable[[Path], None], str]] = {
    "an ending": (database("UPDATE endings SET name = 'gone'"), "its 'ending'"),
    "questions": (database(f"UPDATE kept SET questions = 'many' {WHERE}"), "its 'questions'"),
    "a total": (database(f"UPDATE kept SET total = 'x' {WHERE}"), "its 'total'"),
    "measures no JSON": (told("measures", "{"), "Expecting"),
    "measures deep": (told("measures", "[" * 200_000), "nested too deeply"),
    "measures a list": (told("measures", "[1]"), "'measures'"),
    "a measure a text": (told("measures", '{"noise": "x"}'), "'noise' is no number"),
    "no UTF-8": (
        database("UPDATE people SET diagnosis = CAST(X'ff' AS TEXT)"),
        "it is damaged",
    ),
    "scores cut off": (part("told", cut_off), "it is damaged"),
    "scores no bytes": (database("UPDATE blocks SET told = 7"), "it is damaged"),
}
PAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "turns no JSON": (turn("x]\t1\t"), "Expecting value"),
    "turns deep": (turn(f"{'[' * 200_000}\t1\t"), "nested too deeply"),
    "turns of another shape": (turn("[1]\t1\t"), "an episode is damaged"),
    "texts cut off": (part("said", cut_off), "it is damaged"),
    "a text that is not there": (
        part("said", lambda whole, place: squeezed(["0", *["-1,-2;0;0"] * (place + 1)])),
        "it is damaged",
    ),
    "a token no number": (turn(f"{TURN}\t1,x\t"), "it is damaged"),
    "a token of more than 32 bits": (turn(f"{TURN}\t{2**40}\t"), "it is damaged"),
    "too few log-probabilities": (
        part("logprobs", lambda whole, place: 4 * zlib.compress(b"")),
        "log-probabilities",
    ),
    "log-probabilities cut off": (part("logprobs", cut_off), "it is damaged"),
    "a case's body": (body("{}"), "an episode is damaged"),
    "a case no JSON": (body("{"), "Expecting"),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole made-up run, of which each test damages a copy."""
    path = tmp_path_factory.mktemp("runs") / "sound"
    with example_run.make(path, steps=6, cases=6, samples=1) as run:
        (run.path / "summary.json").write_text(summary())
    return path


def copies(sound: Path, at: Path, damage: Callable[[Path], None]) -> tuple[Path, Path]:
    """(a sound run, a damaged one) in the folder `at`."""
    good, bad = Path(shutil.copytree(sound, at / "good")), Path(shutil.copytree(sound, at / "bad"))
    damage(bad)
    return good, bad


def looked_at(shown: ShownRun) -> list[str]:
    """Every page of a run; raises UserError for one that cannot be shown."""
    shown.columns.catch_up(60)
    made = [
        render("run.html", **pages.overview(shown)),
        render("episodes.html", **pages.episodes(shown, {"sort": "return"})),
        render("episodes.html", **pages.episodes(shown, {"text": "fever"})),
    ]
    for row in shown.columns.rows("SELECT * FROM columns"):
        key = (row["phase"], row["doctor"], row["stage"], row["step"], row["case_id"])
        for view in pages.VIEWS:
            query = {"episode": written((*key, row["sample"])), "view": view}
            made.append(render("episode.html", **pages.episode(shown, query)))
    return made


def rows(shown: dict[str, ShownRun]) -> dict[str, Any]:
    content = pages.runs(shown)
    assert render("runs.html", **content)
    return {row["name"]: row for row in content["rows"]}


@pytest.mark.long
@pytest.mark.parametrize("name", [*OPENED, *LINES])
def test_a_damaged_run_takes_no_other_away(name: str, sound: Path, tmp_path: Path) -> None:
    damage, why = {**OPENED, **LINES}[name]
    good, bad = copies(sound, tmp_path, damage)
    shown = opened([bad, good], restricted=False)
    found = rows(shown)
    assert why in found["bad"]["damage"]
    assert "\n" not in found["bad"]["damage"]
    assert not found["good"]["damage"]
    assert found["good"]["accuracy"] == ".50"
    looked_at(shown["good"])
    with pytest.raises(DamagedError, match=r".") as told:
        looked_at(shown["bad"])
    assert why in str(told.value)


@pytest.mark.long
@pytest.mark.parametrize("name", [*ROWS, *PAGES])
def test_a_damaged_episode_is_named_and_stays_so(name: str, sound: Path, tmp_path: Path) -> None:
    """It is not read again and again, and no page says "0 episodes" meanwhile."""
    damage, why = {**ROWS, **PAGES}[name]
    good, bad = copies(sound, tmp_path, damage)
    shown = opened([bad, good], restricted=False)
    for _ in range(2):
        with pytest.raises(DamagedError) as told:
            looked_at(shown["bad"])
        assert why in str(told.value)
    if name in ROWS:
        assert why in rows(shown)["bad"]["damage"]
    case = example_run.case(0).id
    found = pages.case(shown, "good", {"case": case}, ())
    assert {row["run"] for row in found["rows"]} == {"good"} | ({"bad"} if name in PAGES else set())


@pytest.mark.long
@pytest.mark.parametrize("name", [*OPENED, *LINES, *ROWS, *PAGES])
def test_commands_refuse_a_damaged_run_in_one_line(
    name: str, sound: Path, call: Call, tmp_path: Path
) -> None:
    damage, why = {**OPENED, **LINES, **ROWS, **PAGES}[name]
    copies(sound, tmp_path, damage)
    words = {
        "compare": ("compare", "good", "bad"),
        "export": ("export", "bad", "--as", "jsonl"),
        "resume": ("resume", "bad"),
        "report": ("report", "bad"),
    }
    asked = {
        **dict.fromkeys(OPENED, COMMANDS),
        **dict.fromkeys(LINES, ("compare", "report")),
        **dict.fromkeys(ROWS, ("compare", "report")),
        **dict.fromkeys(PAGES, ("export", "report")),
    }
    for command in asked[name]:
        status, _, told = call(*words[command])
        (line,) = told.splitlines()
        assert (status, line.startswith("error: ")) == (2, True), line
        assert why in line
    assert not (tmp_path / "exports").exists() or not list((tmp_path / "exports").iterdir())


@pytest.mark.parametrize("name", OPENED)
def test_a_damaged_run_is_not_opened(name: str, sound: Path, tmp_path: Path) -> None:
    damage, why = OPENED[name]
    _, bad = copies(sound, tmp_path, damage)
    with pytest.raises(DamagedError, match=re.escape(why)):
        Run.open(bad, Untouched)


@pytest.mark.parametrize("name", [*LINES, *ROWS])
def test_a_damaged_line_or_row_is_named(name: str, sound: Path, tmp_path: Path) -> None:
    damage, why = {**LINES, **ROWS}[name]
    _, bad = copies(sound, tmp_path, damage)
    with Run.open(bad, Untouched) as run, pytest.raises(DamagedError, match=re.escape(why)):
        list(run.metrics()) and run.outcomes("trained")


def test_a_run_is_shown_again_when_it_is_whole_again(sound: Path, tmp_path: Path) -> None:
    _, bad = copies(sound, tmp_path, in_place("summary.json", "{"))
    shown = opened([bad], restricted=False)
    assert rows(shown)["bad"]["damage"]
    shutil.copy(sound / "summary.json", bad / "summary.json")
    assert not rows(shown)["bad"]["damage"]
    shutil.copy(sound / "episodes.sqlite", bad / "kept")
    in_place("episodes.sqlite", "no database")(bad)
    assert rows(shown)["bad"]["damage"]
    (bad / "kept").rename(bad / "episodes.sqlite")
    assert not rows(shown)["bad"]["damage"]
    looked_at(shown["bad"])


def test_a_run_whose_settings_could_not_be_read_stays_closed(sound: Path, tmp_path: Path) -> None:
    """They may have said that its cases are restricted."""
    _, bad = copies(sound, tmp_path, in_place("config.yaml", "a: ["))
    shown = opened([bad], restricted=False)
    (bad / "config.yaml").write_text("restricted: true\n...\n")
    with pytest.raises(DamagedError):
        looked_at(shown["bad"])


def test_an_empty_database_is_a_run_without_episodes(sound: Path, tmp_path: Path) -> None:
    _, bad = copies(sound, tmp_path, in_place("episodes.sqlite", b""))
    assert not rows(opened([bad], restricted=False))["bad"]["damage"]
    with Run.open(bad) as run:
        assert not run.episodes()
        run.write([example_run.record(0, "trained", 0, 0)])
        assert len(run.episodes()) == 1


def test_a_command_to_type_has_the_whole_path(sound: Path, tmp_path: Path) -> None:
    """In a folder of any name."""
    run = Path(shutil.copytree(sound, tmp_path / "my run's; ls"))
    in_place("summary.json", "[]")(run)
    with pytest.raises(DamagedError) as told:
        Run.open(run, Untouched)
    assert shlex.split(str(told.value).split("`")[1]) == ["rm", str(run / "summary.json")]
    in_place("summary.json", "{}")(run)
    in_place("metrics.jsonl", "[]\n")(run)
    with Run.open(run, Untouched) as opened_run, pytest.raises(DamagedError) as told:
        list(opened_run.metrics())
    typed = shlex.split(str(told.value).split("`")[1])
    assert typed == ["sed", "-i", "1d", str(run / "metrics.jsonl")]


@pytest.fixture
def half(sound: Path, tmp_path: Path) -> Path:
    """A copy of a run that was open: it has a log and lacks the log's index."""
    good, _ = copies(sound, tmp_path, lambda run: None)
    with Run.open(good) as run:
        run.write([replace(example_run.record(0, "trained", 0, 0), doctor="another")])
        return Path(
            shutil.copytree(good, tmp_path / "half", ignore=shutil.ignore_patterns("*-shm"))
        )


def test_a_log_that_goes_while_it_is_copied_is_no_error(
    half: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, log = shutil.copy, half / "episodes.sqlite-wal"

    def gone(file: Path, to: Path) -> str:
        log.unlink(missing_ok=True)
        return str(copy(file, to))

    with Run.open(half, Untouched) as run:
        assert log.exists()
        assert run.doctors()[-1] == "another"
        monkeypatch.setattr(shutil, "copy", gone)
        assert "another" not in run.doctors()  # it stood in the log


def test_a_log_that_cannot_be_copied_is_one_line(
    half: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: Path, to: Path) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copy", full)
    with Run.open(half, Untouched) as run, pytest.raises(UserError) as told:
        run.doctors()
    assert "cannot be opened (No space left on device); see to the rights" in str(told.value)
    assert "\n" not in str(told.value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
FILES = ("summary.json", "metrics.jsonl", "versions.json")


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The keys that lead to every part of a JSON value."""
    pairs: Any = ()
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
    return [at, *(place for key, each in pairs for place in places(each, (*at, key)))]


def changed(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    if not at:
        return new
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    made = {key: changed(each, at[1:], new) if key == at[0] else each for key, each in pairs}
    return made if isinstance(value, dict) else list(made.values())


@pytest.mark.long
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(FILES), st.data())
def test_whatever_json_says_pages_are_shown_or_say_what_is_damaged(
    sound: Path, name: str, data: st.DataObject
) -> None:
    file = sound.parent / "any" / name
    if not file.parent.exists():
        shutil.copytree(sound, file.parent)
    lines = (sound / name).read_text().splitlines() if name == "metrics.jsonl" else []
    before = json.loads(lines[-1] if lines else (sound / name).read_text())
    at = data.draw(st.sampled_from(places(before)))
    new = json.dumps(changed(before, at, data.draw(json_values)))
    try:
        file.write_text("\n".join([*lines[:-1], new]) + "\n")
        shown = opened([file.parent], restricted=False)
        rows(shown)
        with suppress(DamagedError):
            render("run.html", **pages.overview(shown["any"]))
    finally:
        shutil.copy(sound / name, file)


sqlite_values = (
    st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.binary(max_size=9)
) | json_values.map(lambda value: json.dumps(value, ensure_ascii=False, default=str))
COLUMNS = [
    *(("kept", name) for name in ("person", "sample", "ending", "reason", "correct")),
    *(("kept", name) for name in ("questions", "total")),
    *(("blocks", name) for name in ("phase", "doctor", "stage", "step")),
    *(("blocks", name) for name in ("told", "said", "logprobs", "advantages")),
    *(("people", name) for name in ("name", "diagnosis", "category")),
    *(("endings", "name"), ("bodies", "lines")),
]
LINES_OF = [("blocks", "told"), ("blocks", "said"), ("bodies", "lines")]


@pytest.mark.long
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(COLUMNS), sqlite_values)
def test_whatever_a_database_holds_pages_are_shown_or_say_what_is_damaged(
    sound: Path, column: tuple[str, str], value: Any
) -> None:
    table, name = column
    looked_at_with(sound, table, name, lambda held: value)


@pytest.mark.long
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(LINES_OF), json_values | st.text(max_size=9), st.data())
def test_whatever_a_block_holds_pages_are_shown_or_say_what_is_damaged(
    sound: Path, column: tuple[str, str], value: Any, data: st.DataObject
) -> None:
    """One field of one line is another one."""

    def change(held: Any) -> bytes:
        lines = unpacked(held)
        at = data.draw(st.integers(0, len(lines) - 1))
        fields = re.split(r"([\t;])", lines[at])
        fields[data.draw(st.integers(0, len(fields) - 1))] = (
            value if isinstance(value, str) else json.dumps(value, default=str)
        )
        lines[at] = "".join(fields)
        return squeezed(lines)

    looked_at_with(sound, *column, change)


def looked_at_with(sound: Path, table: str, name: str, change: Callable[[Any], Any]) -> None:
    """Every page of a run of one episode, in which one value is another one."""
    path = sound.parent / "rows"
    if not path.exists():
        path.mkdir()
        with Run.create(path / "any", {"cases": "clinic:s", "split": 0}, {}) as run:
            run.write([example_run.record(0, "trained", 0, 0)])
    kept = (path / "any" / "episodes.sqlite").read_bytes()
    try:
        with reached(path / "any") as connection:
            ((held,),) = connection.execute(f"SELECT {name} FROM {table}")
            connection.execute(f"UPDATE {table} SET {name} = ?", (change(held),))
        shown = opened([path / "any"], restricted=False)
        rows(shown)
        with suppress(DamagedError):
            looked_at(shown["any"])
    finally:
        for end in ("-wal", "-shm"):
            (path / "any" / f"episodes.sqlite{end}").unlink(missing_ok=True)
        (path / "any" / "episodes.sqlite").write_bytes(kept)
