"""`workup index` and `workup serve` as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from workup import extras
from workup.commands.index import app
from workup.errors import UserError


def run(*words: object) -> str:
    """What a command prints; raises what it raises."""
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    rows = [{"question": f"About gout {i}", "answer": f"Urate number{i} in [joints]."} for i in range(30)]
    path = tmp_path / "notes.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"question": "", "answer": ""}]))
    return path


@pytest.fixture
def folder(corpus: Path, tmp_path: Path) -> Path:
    said = run("build", corpus, "--out", tmp_path / "index", "--title-field", "question", "--text-field", "answer")
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


def test_quality_is_measured_by_hand(folder: Path, tmp_path: Path) -> None:
    """One query answered at rank 1, one never, one without a judgement."""
    judged = [
        {"id": 1, "query": "number3", "relevant": ["notes:4"]},
        {"id": 2, "query": "number5", "relevant": ["notes:1", "notes:2"]},
        {"id": 3, "query": "number6", "relevant": []},
    ]
    (tmp_path / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in judged))
    said = run("evaluate", folder, tmp_path / "queries.jsonl")
    rows = [line.split() for line in said.replace("│", " ").splitlines()[3:-1]]
    assert rows == [["index", name, "0.500", "0.000", "to", "1.000", "2"] for name in ("nDCG@10", "Recall@5", "MRR")]
    (tmp_path / "queries.jsonl").write_text('{"query": "x"}\n')
    with pytest.raises(UserError, match=r"queries\.jsonl, line 1"):
        run("evaluate", folder, tmp_path / "queries.jsonl")


def test_measures_by_hand() -> None:
    from workup.retrieval.quality import document, ndcg, recall, reciprocal

    ranking, relevant = ["a", "x", "b", "y", "z", "c"], frozenset("abcd")
    assert ndcg(ranking, relevant) == pytest.approx((1 + 1 / 2 + 0.3562072) / (1 + 0.6309298 + 0.5 + 0.4306766))
    assert recall(ranking, relevant) == 0.5
    assert reciprocal(["x", "b"], relevant) == 0.5
    assert reciprocal(["x"], relevant) == ndcg(["x"], relevant) == 0.0
    assert [document(name) for name in ("12#0", "12", "a#b#3", "a#b")] == ["12", "12", "a#b", "a#b"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--kind", "dense"], "needs encoder"),
        (["--kind", "bm52"], "--kind 'bm52'"),
        (["--language", "klingon"], "klingon"),
        (["--text-field", "body"], "no field body"),
    ],
)
def test_mistakes_are_said_in_one_line(corpus: Path, tmp_path: Path, words: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said) as raised:
        run("build", corpus, "--out", tmp_path / "x", *words)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("text", "said"), [("x\n", "line 1: no JSON"), ('{"a": 1}\n', "no field text")])
def test_a_refused_corpus_leaves_no_half_built_index(tmp_path: Path, text: str, said: str) -> None:
    bad, good = tmp_path / "bad.jsonl", tmp_path / "good.jsonl"
    bad.write_text(text)
    good.write_text('{"id": "1", "text": "fever"}\n')
    with pytest.raises(UserError, match=said):
        run("build", bad, "--out", tmp_path / "x")
    assert list((tmp_path / "x").iterdir()) == []
    assert "1 passages" in run("build", good, "--out", tmp_path / "x")


def test_push_needs_a_target_that_exists(folder: Path) -> None:
    with pytest.raises(UserError, match="is no target"):
        run("push", folder, "elastic:x")
    with pytest.raises(UserError, match="no dense index"):
        run("push", folder, "qdrant::memory:#x")


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name, name=name.partition(".")[0])

    monkeypatch.setattr(extras, "import_module", missing)
    with pytest.raises(UserError, match=r"starlette is not installed; type: pip install 'workup\[retrieval\]'"):
        extras.wanted("starlette.routing")
