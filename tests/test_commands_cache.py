"""`workup cache` as a user types it."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from workup.cli import app as cli
from workup.core.episode import Message
from workup.core.ports import Reply, Request
from workup.roles.replies import DAY, FILE, Charge, Replies, asked

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    """`workup cache WORDS` in this process: (exit status, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORKUP_CACHE", str(tmp_path / "kept"))
    monkeypatch.setenv("COLUMNS", "160")

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["workup", "cache", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def told(done: tuple[int, str, str]) -> str:
    """The one line that says what is wrong."""
    status, out, err = done
    assert (status, out, err.count("\n")) == (2, "", 1), done
    return err.removeprefix("error: ").strip()


def judged(number: int, role: str = "judge") -> Request:
    return Request(role, "3", (Message("system", "[be] strict"), Message("user", f"题 {number}")))


@pytest.fixture
def filled(tmp_path: Path) -> list[str]:
    """The keys of five answers of a judge and of one patient's, in two runs.

    The judge's were not used for 0, 10, … 40 days.
    """
    replies, keys = Replies(tmp_path / "kept" / FILE), []
    for number in range(6):
        role, model = ("judge", "m [v1] at http://here") if number < 5 else ("patient", "n@1")
        what = asked(model, judged(number, role))
        replies.keep(
            what,
            Reply(f"\x1b[31myes {number}", 100, 10),
            Charge(f"run-{number % 2}", 100, 10, 0.25),
        ).result()
        with replies.transaction() as connection:
            connection.execute(
                "UPDATE replies SET used = used - ? WHERE key = ?",
                (10 * DAY * (number % 5), what.key),
            )
        keys.append(what.key)
    replies.hit("run-1", "judge", "m [v1] at http://here")
    replies.hit(str((tmp_path / "folder").resolve()), "judge", "m [v1] at http://here")
    replies.close()
    return keys


def rows(text: str) -> list[list[str]]:
    """The cells of a printed table, which two spaces or more keep apart."""
    return [
        [cell.strip() for cell in line.split("  ") if cell.strip()]
        for line in text.splitlines()
        if line.strip()
    ]


def test_show_lists_what_is_kept(call: Call, filled: list[str]) -> None:
    status, out, err = call("show")
    table = rows(out)
    assert (status, err) == (0, "")
    assert table[0] == ["role", "model", "answers", "size", "since", "last used"]
    assert [row[:3] for row in table[1:3]] == [
        ["judge", "m [v1] at http://here", "5"],
        ["patient", "n@1", "1"],
    ]
    assert table[3][0].endswith(f"{FILE}: 6 answers, 1.9 KB")


def test_show_tells_one_request_and_its_answer(call: Call, filled: list[str]) -> None:
    status, out, _ = call("show", filled[2][:10])
    assert status == 0
    for line in (
        f"key: {filled[2]}",
        "model: m [v1] at http://here",
        "role: judge",
        "version: 3",
        "prompt_tokens: 100",
    ):
        assert line in out.splitlines()
    assert out.endswith("[system]\n[be] strict\n\n[user]\n题 2\n\n[answer]\n [31myes 2\n")
    assert "a key that begins with 'zz'" in told(call("show", "zz"))


def test_prune_takes_out_what_it_says(call: Call, filled: list[str]) -> None:
    assert call("prune", "--older", "25d", "--dry-run")[1].startswith("would take out 2 answers")
    assert call("prune", "--older", "25d")[1].startswith("took out 2 answers")
    assert call("prune", "--role", "judge", "--model", "m [v1] at http://here", "--older", "2w")[
        1
    ].startswith("took out 1 answer,")
    assert call("prune", "--larger", "1GB")[1].startswith("took out 0 answers, 0 B")
    assert call("prune", "--larger", "0.5kb")[1].startswith("took out 2 answers")
    assert [row[0] for row in rows(call("show")[1])[1:2]] == ["patient"]
    assert [row[1] for row in rows(call("costs")[1])[1:3]] == [
        "3",
        "3",
    ]  # the ledger keeps everything


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "say what to take out"),
        (["--older", "30"], "--older 30: write a time"),
        (["--larger", "2 giga"], "--larger 2 giga: a number and B, KB"),
        (["--role", "juge"], "Did you mean 'judge'?"),
        (["--model", "gpt"], "no model in "),
        (["--older", "1d", "--cache", "nowhere"], "nothing is kept in nowhere/"),
    ],
)
def test_prune_says_what_it_does_not_understand(
    call: Call, filled: list[str], words: list[str], complaint: str
) -> None:
    assert complaint in told(call("prune", *words))
    assert rows(call("show")[1])[1][2] == "5"


def test_export_and_import_pass_answers_on(call: Call, filled: list[str], tmp_path: Path) -> None:
    assert call("export", "set.jsonl", "--role", "judge")[:2] == (0, "set.jsonl: 5 answers\n")
    lines = [json.loads(line) for line in (tmp_path / "set.jsonl").read_text().splitlines()]
    assert {line["request"]["messages"][1]["content"] for line in lines} == {
        f"题 {i}" for i in range(5)
    }
    assert call("import", "set.jsonl", "--cache", "other")[:2] == (0, "5 of 5 answers are new\n")
    assert call("import", "set.jsonl")[:2] == (0, "0 of 5 answers are new\n")
    assert filled[3] in call("show", filled[3], "--cache", "other")[1]
    (tmp_path / "set.jsonl").write_text("{}\n")
    assert told(call("import", "set.jsonl")) == "set.jsonl, line 1, field 'request': Field required"
    assert "cannot read nothing.jsonl" in told(call("import", "nothing.jsonl"))
    folder = ". is a folder; name a file that `workup cache export` wrote"
    assert told(call("import", ".", "--cache", "new")) == folder
    (tmp_path / "set.jsonl").write_text("")
    empty = "set.jsonl is empty; `workup cache export FILE` writes one with answers"
    assert told(call("import", "set.jsonl", "--cache", "new")) == empty
    assert not (tmp_path / "new").exists()
    assert "no/such/set.jsonl: there is no folder no/such" in told(
        call("export", "no/such/set.jsonl")
    )


def test_costs_are_listed_by_run_and_by_role(call: Call, filled: list[str], tmp_path: Path) -> None:
    table = rows(call("costs")[1])
    assert table == [
        ["run", "calls", "from cache", "tokens read", "written", "cost"],
        ["run-0", "3", "0", "300", "30", "0.7500"],
        ["run-1", "3", "1", "300", "30", "0.7500"],
        ["folder", "0", "1", "0", "0", "0.0000"],
        ["6", "2", "600", "60", "1.5000"],
    ]
    table = rows(call("costs", "--run", "run-1")[1])
    assert table[1:3] == [
        ["judge · m [v1] at http://here", "2", "1", "200", "20", "0.5000"],
        ["patient · n@1", "1", "0", "100", "10", "0.2500"],
    ]
    assert rows(call("costs", "--run", "folder")[1])[1][1:3] == ["0", "1"]
    assert "Did you mean 'run-1'?" in told(call("costs", "--run", "run-11"))
    for number, name in enumerate(("made", "silent")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(f"account: run-{number * 7}\n...\n")
    assert (
        rows(call("costs", "--run", "made")[1])[1:] == rows(call("costs", "--run", "run-0")[1])[1:]
    )
    assert "silent has called no model" in told(call("costs", "--run", "silent"))


def test_a_models_name_cannot_steer_the_terminal(call: Call, tmp_path: Path) -> None:
    evil = "\x1b[31m\x9b2J\u202eevil"
    replies = Replies(tmp_path / "kept" / FILE)
    what = asked(evil, judged(1, f"judge{evil}"))
    replies.keep(what, Reply("yes", 1, 1), Charge(f"run{evil}", 1, 1, 0.25)).result()
    replies.close()
    for words in (("show",), ("costs",), ("costs", "--run", f"run{evil}")):
        shown = call(*words)[1]
        assert "evil" in shown
        assert not set(shown) & set("\x1b\x9b\u202e")


def test_runs_are_listed_by_their_folders(call: Call, filled: list[str], tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "kept" / FILE) as before:
        before.execute("DROP TABLE names")  # a file of before has none
    replies = Replies(tmp_path / "kept" / FILE)
    assert replies.names() == {}
    for folder in ("elsewhere", "runs/craft"):
        replies.name(
            "run-0", str(tmp_path / folder)
        )  # a folder that was moved goes by its present place
    replies.name("run-1", "/far/away")
    replies.close()
    assert [row[0] for row in rows(call("costs")[1])[1:4]] == ["runs/craft", "/far/away", "folder"]
    by_account = rows(call("costs", "--run", "run-0")[1])
    assert rows(call("costs", "--run", "runs/craft")[1])[1:] == by_account[1:], (
        "by the folder, though it is gone"
    )
    assert "Did you mean 'runs/craft'?" in told(call("costs", "--run", "runs/crafty"))
    replies = Replies(tmp_path / "kept" / FILE)
    replies.name(
        "run-1", str(tmp_path / "runs/craft")
    )  # the folder was deleted and a new run made there
    replies.close()
    assert [row[0] for row in rows(call("costs")[1])[1:3]] == [
        "runs/craft (run-0)",
        "runs/craft (run-1)",
    ]
    latest = rows(call("costs", "--run", "run-1")[1])
    assert rows(call("costs", "--run", "runs/craft")[1])[1:] == latest[1:]


def test_an_empty_cache_is_no_error_of_ours(call: Call) -> None:
    for words in (["show"], ["costs"], ["export", "x.jsonl"]):
        assert told(call(*words)).startswith("nothing is kept in ")
