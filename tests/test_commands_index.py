"""`workup index` and `workup serve` as a user types them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pytest_httpserver import HTTPServer
from serving import free_port
from typer.testing import CliRunner
from waiting import HANG
from werkzeug import Request, Response

from workup.cli.index import app
from workup.core import extras
from workup.core.case import Passage
from workup.core.errors import UserError


def run(*words: object) -> str:
    """What a command prints; raises what it raises."""
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    rows = [
        {"question": f"About gout {i}", "answer": f"Urate number{i} in [joints]."}
        for i in range(30)
    ]
    path = tmp_path / "notes.jsonl"
    path.write_text(
        "".join(json.dumps(row) + "\n" for row in [*rows, {"question": "", "answer": ""}])
    )
    return path


@pytest.fixture
def folder(corpus: Path, tmp_path: Path) -> Path:
    said = run(
        "build",
        corpus,
        "--out",
        tmp_path / "index",
        "--title-field",
        "question",
        "--text-field",
        "answer",
    )
    assert "30 passages (1 empty documents left out)" in said
    return tmp_path / "index"


def test_build_search_and_check(folder: Path) -> None:
    assert "Urate number7 in [joints]." in run("search", folder, "number7", "-k", 1)
    assert "nothing found" in run("search", folder, "the of")
    assert "whole, 30 passages" in run("check", folder)
    (folder / "passages.jsonl").write_bytes(b"x" * (folder / "passages.jsonl").stat().st_size)
    with pytest.raises(UserError, match="1 damaged file;"):
        run("check", folder)


def test_the_built_in_library_is_searched_by_name() -> None:
    assert "appendicitis" in run("search", "clinic:s", "acute appendicitis", "-k", 1)


def test_a_document_cannot_steer_the_terminal(tmp_path: Path) -> None:
    evil = "\x1b[31m\x9b2J\u202efever"
    row = {"id": f"1{evil}", "title": evil, "text": f"Fever {evil}"}
    (tmp_path / "evil.jsonl").write_text(json.dumps(row) + "\n")
    run("build", tmp_path / "evil.jsonl", "--out", tmp_path / "index", "--title-field", "title")
    shown = run("search", tmp_path / "index", "fever")
    assert shown.count("fever") == 3
    assert not set(shown) & set("\x1b\x9b\u202e")


def test_no_seed_is_below_0() -> None:
    result = CliRunner().invoke(app, ["search", "clinic:xs", "fever", "--seed", "-1"])
    assert result.exit_code == 2
    assert "greater than or equal to 0" in result.output


def test_quality_is_measured_by_hand(folder: Path, tmp_path: Path) -> None:
    """One query answered at rank 1, one never, one without a judgement."""
    judged = [
        {"id": 1, "query": "number3", "relevant": ["notes:4"]},
        {"id": 2, "query": "number5", "relevant": ["notes:1", "notes:2"]},
        {"id": 3, "query": "number6", "relevant": []},
    ]
    (tmp_path / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in judged))
    said = run("evaluate", folder, tmp_path / "queries.jsonl", "--out", tmp_path / "kept.json")
    kept = json.loads((tmp_path / "kept.json").read_text())
    # Wilson for 1 of 2: centre ½, half √(1/8 + z²/16) · z / (1 + z²/2) with z = 1.96
    assert kept["tables"][0]["rows"] == [
        ["index", name, "0.500", "0.095 to 0.905", "2"] for name in ("nDCG@10", "Recall@5", "MRR")
    ]
    assert {"command", "made"} < {*kept}
    shown = [line.split() for line in said.splitlines()]
    assert ["index", "MRR", "0.500", "0.095", "to", "0.905", "2"] in shown


@pytest.mark.parametrize("library", ["clinic:xs", "http://127.0.0.1:9", "clinic:xs + http://h"])
def test_only_a_folder_has_kinds(library: str, tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text('{"id": 1, "query": "x", "relevant": ["d"]}\n')
    for words in (("search", library, "fever"), ("evaluate", library, tmp_path / "q.jsonl")):
        with pytest.raises(UserError, match=r"--kind dense: it chooses .* is none"):
            run(*words, "--kind", "dense")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"query": "x"}', ", line 1: a line is {'id'"),
        (b'{"id": 1, "query": "x", "relevant": "d3"}', ", line 1: a line is {'id'"),
        (b'{"id": 1, "query": "x", "relevant": []}', ": no query has a relevant document"),
        (b'{"id": 1, "query": "x\xff", "relevant": ["d"]}', r", line 1: byte 22 .* not UTF-8"),
        (b'{"id": ' + b"[" * 100_000, ", line 1: not JSON"),
    ],
)
def test_judgements_that_are_none_are_one_line(line: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "queries.jsonl").write_bytes(line + b"\n")
    with pytest.raises(UserError, match=rf"queries\.jsonl{said}") as caught:
        run("evaluate", "clinic:xs", tmp_path / "queries.jsonl")
    assert "\n" not in str(caught.value)


def test_a_documents_own_id_may_end_like_a_passages(tmp_path: Path) -> None:
    from workup.retrieval.quality import measure, read

    ids = ["a#1", "b@0a1b2c3d", "c"]
    rows = [{"id": n, "query": f"x\u2028{name}", "relevant": [name]} for n, name in enumerate(ids)]
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    (tmp_path / "queries.jsonl").write_text("".join(lines))
    found = [[Passage(name, "x", "", 1.0)] for name in ("a#1", "b@0a1b2c3d", "c#7@0a1b2c3d")]
    measured = measure(lambda queries, k: found, read(tmp_path / "queries.jsonl"))
    assert measured["MRR"] == [1.0, 1.0, 1.0]


def test_repeated_ids_are_told_and_judged_by_their_own_name(tmp_path: Path) -> None:
    """Three rows are called 7; the judged one is the second.

    Joined with another library it counts too.
    """
    rows = [
        {"id": "7", "text": text}
        for text in ("gout of the toe", "fever and chills", "gout of the toe", "a rash")
    ]
    (tmp_path / "notes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = run("build", tmp_path / "notes.jsonl", "--out", tmp_path / "index")
    assert (
        "3 passages (1 repeated documents left out; 2 documents whose id another had are "
        "called ID~2"
    ) in said
    judged = {"id": 1, "query": "fever", "relevant": ["7~2"]}
    (tmp_path / "queries.jsonl").write_text(json.dumps(judged) + "\n")
    for library in (tmp_path / "index", f"{tmp_path / 'index'} + clinic:xs"):
        said = run("evaluate", library, tmp_path / "queries.jsonl")
        found = [row.split() for row in said.replace("│", " ").splitlines() if "MRR" in row]
        assert [row[row.index("MRR") + 1] for row in found] == ["1.000"], said


def test_measures_by_hand() -> None:
    from workup.retrieval.quality import document, ndcg, recall, reciprocal

    ranking, relevant = ["a", "x", "b", "y", "z", "c"], frozenset("abcd")
    assert ndcg(ranking, relevant) == pytest.approx(
        (1 + 1 / 2 + 0.3562072) / (1 + 0.6309298 + 0.5 + 0.4306766)
    )
    assert recall(ranking, relevant) == 0.5
    assert reciprocal(["x", "b"], relevant) == 0.5
    assert reciprocal(["x"], relevant) == ndcg(["x"], relevant) == 0.0
    names = {
        "12#0": "12",
        "12": "12",
        "a#b#3": "a#b",
        "a#b": "a#b",
        "12~2#0": "12~2",
        "12#0@0a1b2c3d": "12",
    }
    assert {name: document(name) for name in names} == names


@given(st.lists(st.integers(0, 15), unique=True), st.sets(st.integers(0, 17), min_size=1))
@example([], {0})
@example(list(range(16)), {12})
@example(list(range(16)), {16, 17})
@example(list(range(16)), set(range(18)))
def test_measures_beside_scikit_learn(found: list[int], relevant: set[int]) -> None:
    """scikit-learn takes scores: a document found at rank r gets 40 - r, one not found gets 0.

    Ten documents that are not relevant get 1: they keep those not found out of the first ten.
    With one relevant document, label_ranking_average_precision_score is 1 / its rank; the
    reciprocal rank is the largest of these.
    """
    from sklearn import metrics

    from workup.retrieval.quality import ndcg, recall, reciprocal

    ranking, wanted = [str(one) for one in found], frozenset(map(str, relevant))
    scores = np.array([0.0] * 18 + [1.0] * 10)
    scores[found] = 40.0 - np.arange(1, len(found) + 1)
    truth = np.isin(np.arange(28), list(relevant))
    assert ndcg(ranking, wanted) == pytest.approx(metrics.ndcg_score([truth], [scores], k=10))
    first = np.isin(np.arange(28), found[:5])
    assert recall(ranking, wanted) == pytest.approx(metrics.recall_score(truth, first))
    of_one = metrics.label_ranking_average_precision_score
    shares = [of_one([np.arange(28) == one], [scores]) for one in relevant.intersection(found)]
    assert reciprocal(ranking, wanted) == pytest.approx(max(shares, default=0.0))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--kind", "dense"], "needs --encoder"),
        (["--kind", "sparse"], "needs --sparse-encoder"),
        (["--kind", "bm52"], r"no kind 'bm52'\. Did you mean 'bm25'"),
        (["--language", "klingon"], "klingon"),
        (["--text-field", "body"], "no field body"),
    ],
)
def test_mistakes_are_said_in_one_line(
    corpus: Path, tmp_path: Path, words: list[str], said: str
) -> None:
    with pytest.raises(UserError, match=said) as raised:
        run("build", corpus, "--out", tmp_path / "x", *words)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "said"), [("x\n", "line 1: no JSON"), ('{"a": 1}\n', "no field text")]
)
def test_a_refused_corpus_leaves_no_half_built_index(tmp_path: Path, text: str, said: str) -> None:
    bad, good = tmp_path / "bad.jsonl", tmp_path / "good.jsonl"
    bad.write_text(text)
    good.write_text('{"id": "1", "text": "fever"}\n')
    with pytest.raises(UserError, match=said):
        run("build", bad, "--out", tmp_path / "x")
    assert not (tmp_path / "x").exists()
    assert "1 passage" in run("build", good, "--out", tmp_path / "x")


@pytest.mark.parametrize("kind", ["bm25", "exams"])
def test_a_refused_build_leaves_no_folder_that_it_has_made(tmp_path: Path, kind: str) -> None:
    (bad := tmp_path / "bad.jsonl").write_text("x\n")
    (there := tmp_path / "there").mkdir()
    with pytest.raises(UserError):
        run("build", bad, "--kind", kind, "--out", there / "new" / "indexes" / "x")
    assert there.is_dir()
    assert not any(there.iterdir())


def test_push_needs_a_target_that_exists(folder: Path) -> None:
    with pytest.raises(UserError, match="is no target"):
        run("push", folder, "elastic:x")
    with pytest.raises(UserError, match="no dense index"):
        run("push", folder, "qdrant::memory:#x")


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name, name=name.partition(".")[0])

    monkeypatch.setattr(extras, "import_module", missing)
    said = re.escape(f"starlette is not installed; type: {extras.install('retrieval')}")
    with pytest.raises(UserError, match=said):
        extras.wanted("starlette.routing")


OFFLINE = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


@pytest.mark.parametrize("command", ["search", "evaluate"])
@pytest.mark.parametrize(
    "form", ["http://{}", "clinic:xs + http://{}", "opensearch:http://{}#notes"]
)
@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
def test_a_server_that_cannot_be_reached_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str, form: str, host: str
) -> None:
    """Were it waited for, this would take five minutes and end in a RolloutError."""
    for name in OFFLINE:
        monkeypatch.delenv(name, raising=False)
    judged = {"id": 1, "query": "fever", "relevant": ["7"]}
    (tmp_path / "queries.jsonl").write_text(json.dumps(judged) + "\n")
    asked = "fever" if command == "search" else tmp_path / "queries.jsonl"
    place = f"{host}:{free_port()}"
    with pytest.raises(UserError, match=f"no library can be reached at http://{place}: ") as told:
        run(command, form.format(place), asked)
    assert "\n" not in str(told.value)
    assert "workup serve retrieval" in str(told.value)


def test_a_server_that_is_slow_is_named_before_it_answers(tmp_path: Path) -> None:
    said = threading.Event()

    def slowly(request: Request) -> Response:
        assert said.wait(HANG)
        return Response(json.dumps({"result": [[]]}))

    with HTTPServer(threaded=True) as server:
        server.expect_request("/retrieve").respond_with_handler(slowly)
        url = server.url_for("").rstrip("/")
        words = [sys.executable, "-c", "from workup.cli.index import app; app()"]
        asking = subprocess.Popen(
            [*words, "search", url, "fever"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert asking.stderr is not None
        assert asking.stderr.readline() == f"asking {url}, for 300 s at most\n"
        said.set()
        out, _ = asking.communicate(timeout=HANG)
    assert (asking.returncode, out) == (0, "nothing found\n")
