"""Corpora, passages, indexes by words, fusion and batching.

They are compared with brute force and bm25s; some processes are killed.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import re
import signal
import subprocess
import sys
import threading
import time
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from waiting import HANG

from workup.core.case import Document, Passage
from workup.core.errors import UserError
from workup.models.worker import computing
from workup.retrieval import bm25, open_retriever, store, words
from workup.retrieval.batching import BatchedRetriever
from workup.retrieval.corpus import Fields, documents, files
from workup.retrieval.fusion import fused, reciprocal_rank
from workup.retrieval.index import Index, IndexSettings, build, damages, manifest
from workup.retrieval.names import PassageIds

DATA = Path(__file__).parents[2] / "shared/data"
real = pytest.mark.skipif(
    not (DATA / "bioasq_7to10_corpus.jsonl").exists(), reason="needs the BioASQ passages"
)
TEXTS = st.text(st.sampled_from("ab.!?;, \n\t。，病人x-é1"), max_size=400)


def lines(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def zipf(count: int, seed: int = 0, vocabulary: int = 500) -> list[Document]:
    rng = np.random.default_rng(seed)
    chosen = (rng.zipf(1.3, (count, 20)) - 1) % vocabulary
    return [
        Document(f"d{i}", f"title{i % 7}", " ".join(f"w{word}" for word in row))
        for i, row in enumerate(chosen)
    ]


# Texts


@given(TEXTS, st.integers(1, 30))
def test_passages_are_the_text_and_none_is_too_long(text: str, limit: int) -> None:
    pieces = words.passages(text, limit)
    assert "".join(pieces) == text
    assert all(words.count(piece) <= limit for piece in pieces)


@given(TEXTS, st.integers(2, 30))
def test_passages_are_half_full(text: str, limit: int) -> None:
    pieces = words.passages(text, limit)
    assert all(words.count(piece) >= limit // 2 for piece in pieces[:-1])


def test_a_passage_ends_where_a_reader_would_pause() -> None:
    text = "One two three. Four five six.\n\nSeven eight nine, ten eleven twelve. End."
    assert words.passages(text, 12) == [
        "One two three. Four five six.\n\n",
        "Seven eight nine, ten eleven twelve. End.",
    ]
    assert words.passages(text, 7) == [
        "One two three. ",
        "Four five six.\n\n",
        "Seven eight nine, ",
        "ten eleven twelve. End.",
    ]
    assert words.passages("病人发热。咳嗽三天。", 8) == ["病人发热。", "咳嗽三天。"]
    assert words.passages("x" * 100, 2) == ["x" * 64, "x" * 36]


@pytest.mark.parametrize(
    "unit", ["a", "a ", "a. ", "\n", "\n ", " ", "。", "病", "-", "a\n\n", ". \n"]
)
def test_cutting_is_linear(unit: str) -> None:
    def seconds(size: int) -> float:
        text = unit * (size // len(unit))
        begun = time.process_time()
        words.passages(text, 256)
        return time.process_time() - begun

    assert seconds(400_000) < 12 * seconds(100_000) + 0.1


@given(st.text())
def test_what_is_searched_can_be_written_and_holds_no_control_characters(text: str) -> None:
    assert words.plain(text + "\ud800").encode()
    assert not any(ord(letter) < 32 and letter not in "\n\t\r" for letter in words.plain(text))
    assert len(words.plain(text)) <= len(text)


@given(st.text(st.sampled_from("aeno \u0301\u0308\u0327éñ한국어が"), max_size=30))
def test_letters_and_marks_are_composed(text: str) -> None:
    """A letter has eight marks at most here; CPython's own normalisation is the oracle."""
    assume(not re.search(r"[\u0301\u0308\u0327]{8}|(^| )[\u0301\u0308\u0327]", text))
    for form in ("NFC", "NFD"):
        written = unicodedata.normalize(form, text)
        assert words.plain(written) == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize("forms", [("NFC", "NFD"), ("NFD", "NFC")])
def test_a_word_is_found_in_either_form_of_unicode(forms: tuple[str, str], tmp_path: Path) -> None:
    written, asked = (unicodedata.normalize(form, "Ménière 난청") for form in forms)  # type: ignore[arg-type]
    corpus = lines(tmp_path / "a.jsonl", [{"text": written}, {"text": "gout"}])
    index = Index.of(document for document, _ in documents(corpus))
    for word in asked.split():
        assert [found.id for found in index.find([words.query(word)], 2)[0]] == ["a:1"]


# Corpora

PUBMED = """<?xml version="1.0"?><!DOCTYPE PubmedArticleSet SYSTEM \
"http://x/p.dtd"><PubmedArticleSet>
<PubmedArticle><MedlineCitation><PMID Version="1">11</PMID><Article><ArticleTitle>On <i>E. \
coli</i> in man</ArticleTitle>
<Abstract><AbstractText Label="METHODS">We  <sub>2</sub> counted.</AbstractText><AbstractText \
Label="RESULTS">Many.</AbstractText>
</Abstract></Article></MedlineCitation><PubmedData><ArticleIdList><ArticleId>zz</ArticleId></ArticleIdList></PubmedData></PubmedArticle>
<PubmedArticle><MedlineCitation><PMID>12</PMID>
<Article><ArticleTitle>No abstract</ArticleTitle></Article></MedlineCitation></PubmedArticle>
<DeleteCitation><PMID>9</PMID></DeleteCitation></PubmedArticleSet>"""


def test_four_kinds_of_corpus_read_alike(tmp_path: Path) -> None:
    rows = [
        {"id": "1", "title": "One", "text": "first text"},
        {"id": 2, "title": None, "text": "second\ud800 text"},
    ]
    expected = [Document("1", "One", "first text"), Document("2", "", "second  text")]
    assert [d for d, _ in documents(lines(tmp_path / "a.jsonl", rows))] == expected
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
    assert [d for d, _ in documents(tmp_path / "a.jsonl.gz")] == expected
    pq.write_table(
        pa.table(
            {"id": ["1", "2"], "title": ["One", None], "text": ["first text", "second\x00 text"]}
        ),
        tmp_path / "a.parquet",
    )
    assert [d for d, _ in documents(tmp_path / "a.parquet")] == expected
    (tmp_path / "on_fever.txt").write_text("all of it\nis one")
    assert [d for d, _ in documents(tmp_path / "on_fever.txt")] == [
        Document("on_fever", "on fever", "all of it\nis one")
    ]
    (tmp_path / "pubmed24n0001.xml.gz").write_bytes(gzip.compress(PUBMED.encode()))
    assert [d for d, _ in documents(tmp_path / "pubmed24n0001.xml.gz")] == [
        Document("11", "On E. coli in man", "METHODS: We 2 counted.\nRESULTS: Many."),
        Document("12", "No abstract", ""),
    ]
    assert len(files([tmp_path])) == 5
    (tmp_path / "b.JSONL.GZ").write_bytes((tmp_path / "a.jsonl.gz").read_bytes())
    assert [d for d, _ in documents(tmp_path / "b.JSONL.GZ")] == expected
    (tmp_path / "BOM.TXT").write_text("all", "utf-8-sig")
    assert [d for d, _ in documents(tmp_path / "BOM.TXT")] == [Document("BOM", "BOM", "all")]


def test_the_bytes_read_end_at_the_size_of_the_file(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", [{"text": f"t{i}"} for i in range(100)])
    places = [place for _, place in documents(path)]
    assert places == sorted(places)
    assert places[-1] == path.stat().st_size


def test_names_of_fields_and_search_r1s_contents(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "a.jsonl",
        [{"question": "Q", "answer": "A"}, {"id": "7", "contents": '"T"\nbody "x"'}],
    )
    assert next(documents(path, Fields(title=("question",), text=("answer",))))[0] == Document(
        "a:1", "Q", "A"
    )
    assert [d for d, _ in documents(path, Fields(text=("answer", "contents")))][1] == Document(
        "7", "T", 'body "x"'
    )


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", b'{"text": "x"}\n{"text": ', "a.jsonl, line 2: no JSON"),
        ("a.jsonl", b"[1]\n", "line 1: a list"),
        ("a.jsonl", b'{"body": 1}\n', "no field text or contents"),
        ("a.jsonl", b'{"text": "\xff"}\n', "no JSON"),
        ("a.jsonl", b"[" * 100_000, "no JSON"),
        ("a.jsonl.gz", b"no gzip", "cannot be read"),
        ("a.jsonl.gz", gzip.compress(b'{"text": "x"}\n' * 999, mtime=0)[:-20], "cannot be read"),
        ("a.parquet", b"PAR0", "no readable Parquet"),
        ("a.xml", b"<PubmedArticleSet><PubmedArticle>", "no well-formed XML"),
        ("a.xml", b"", "no well-formed XML"),
        ("a.txt", b"\xff\xfe", "cannot be read"),
        ("a.pdf", b"", "not a kind of corpus"),
        ("a.jsonl.gz", gzip.compress(b"", mtime=0)[:10] + b"\xff" * 99, "a.jsonl.gz: cannot be"),
        ("a.xml", b'<?xml version="1.0" encoding="foo"?><PubmedArticleSet/>', "unknown encoding"),
        ("a.xml", b'<?xml version="1.0" encoding="gbk"?><PubmedArticleSet/>', "multi-byte"),
        ("a.xml", b"<article><p>x</p></article>", "a.xml: its <article> holds no PubmedArticle"),
        ("a.jsonl", b'{"text": ["a", "b"]}\n', "line 1: its field text is a list"),
        ("a.jsonl", b'{"text": "a", "title": {}}\n', "line 1: its field title is a dict"),
    ],
)
def test_a_broken_corpus_is_named(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=said) as raised:
        list(documents(tmp_path / name))
    assert "\n" not in str(raised.value)


def test_a_misspelt_field_of_titles_is_refused_and_a_missing_title_is_none(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    table = tmp_path / "b.parquet"
    pq.write_table(pa.table({"name": ["T"], "text": ["x"], "body": ["y"]}), table)
    for fields in (Fields(title=("nmae",)), Fields(text=("txet",))):
        with pytest.raises(UserError, match=r"no field (nmae|txet); it has name, text, body;"):
            list(documents(table, fields))
    path.write_text('{"name": "T", "text": "x"}\n{"text": "y"}\n')
    with pytest.raises(UserError, match=r"line 1: no field nmae; it has name, text"):
        list(documents(path, Fields(title=("nmae",))))
    assert [d.title for d, _ in documents(path, Fields(title=("name",)))] == ["T", ""]


# By words


def scored(query: str, corpus: Sequence[Sequence[str]], terms: Sequence[str]) -> list[float]:
    """BM25 as its equation says, with nothing clever."""
    mean = sum(map(len, corpus)) / len(corpus)
    totals = []
    for tokens in corpus:
        counts, total = Counter(tokens), 0.0
        for term in terms:
            having = sum(term in other for other in corpus)
            idf = math.log(1 + (len(corpus) - having + 0.5) / (having + 0.5))
            norm = counts[term] + bm25.K1 * (1 - bm25.B + bm25.B * len(tokens) / mean)
            total += idf * counts[term] * (bm25.K1 + 1) / norm
        totals.append(total)
    return totals


@pytest.mark.parametrize("query", ["w1 w3 w40", "w2 w2 w7 title3", "w0", "w499 w498 w497 w400"])
def test_scores_are_those_of_the_equation(query: str) -> None:
    corpus = zipf(300)
    read = bm25.analyzer("english")
    found = Index.of(corpus).find([query], 300)[0]
    expected = scored(
        query, [read.analyze(f"{d.title}\n{d.text}") for d in corpus], read.analyze(query)
    )
    assert {p.id for p in found} == {
        d.id for d, score in zip(corpus, expected, strict=True) if score > 0
    }
    by_id = {d.id: score for d, score in zip(corpus, expected, strict=True)}
    assert [p.score for p in found] == pytest.approx([by_id[p.id] for p in found], rel=1e-4)


NASTY = [
    "",
    " ",
    "the of and",
    "?",
    "\x00\x1b[0m",
    "\ud800",
    'a AND (b OR "',
    "title:w1",
    "w1^9 w2~ -w3 +w4 *",
    "\\",
    "[w1 TO w9]",
    "{" * 5000,
    "w1 " * 3400,
    "x" * 10_000,
    "w" * 10**6,
    " ".join(f"w{i}" for i in range(2500)),
    "词语",
    "<think>w1</think>",
    "\u202ew1",
]


def test_equal_passages_come_in_their_order_whatever_the_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bm25, "BATCH", 7)  # a segment each, which are merged as it pleases tantivy
    same = [Passage(f"p{row}", "w1 w2" if row % 3 else "w1 w1 w2") for row in range(100)]
    bm25.build(tmp_path, lambda start: iter(same[start:]), "english")
    library = bm25.Bm25.open(tmp_path, "english")
    best = [row for row in range(100) if row % 3 == 0]
    order = [*best, *(row for row in range(100) if row % 3)]
    for k in (1, 5, 34, 40, 100, 200):
        assert [row for row, _ in library.find(["w1"], k)[0]] == order[:k]


@pytest.mark.parametrize(
    ("language", "stopped"),
    [
        ("french", "à même étaient"),
        ("german", "für über während können"),
        ("spanish", "más también está"),
        ("swedish", "för är på när"),
    ],
)
def test_stop_words_are_left_out_where_they_have_accents(language: str, stopped: str) -> None:
    assert list(bm25.analyzer(language).analyze(f"{stopped} thorax")) == ["thorax"]


@pytest.mark.parametrize("size", [0, 1, 50])
def test_any_text_is_a_query_for_any_size_of_corpus(size: int) -> None:
    library = BatchedRetriever(Index.of(zipf(size)).find)

    async def ask() -> list[Sequence[Passage]]:
        return await asyncio.gather(*(library.search(query, 3) for query in NASTY))

    found = asyncio.run(ask())
    assert all(len(passages) <= min(size, 3) for passages in found)
    assert not any(found[:6])
    assert bool(found[8]) == (size > 0)


@settings(max_examples=50)
@given(st.text(max_size=200), st.integers(-1, 5))
def test_no_text_raises(text: str, k: int) -> None:
    assert len(asyncio.run(CLINIC.search(text, k))) <= max(k, 0)


CLINIC = open_retriever("clinic:xs")


def test_the_clinics_library_is_searched_without_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workup.cases.clinic.library import library

    monkeypatch.chdir(tmp_path)
    shelf = {document.id: document for document in library("s", 3)}
    found = asyncio.run(
        open_retriever("clinic:s", seed=3).search("systematic review of acute appendicitis", 3)
    )
    assert found[0].text == shelf[found[0].id].text
    assert shelf[found[0].id].disease == "acute appendicitis"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "spec",
    [
        "clinic:nowhere",
        "no/such/folder",
        "qdrant:x",
        "opensearch:http://h",
        "http://u:p@h",
        "opensearch:ftp://h#a",
    ],
)
def test_a_library_that_does_not_exist_is_said(spec: str) -> None:
    with pytest.raises(UserError) as raised:
        open_retriever(spec)
    assert "u:p" not in str(raised.value)


@pytest.mark.long
@real
def test_as_good_as_bm25s_on_real_judgements() -> None:
    import bm25s  # type: ignore[import-not-found]

    from workup.retrieval.quality import measure, read

    corpus = [document for document, _ in documents(DATA / "bioasq_7to10_corpus.jsonl")]
    judged = read(DATA / "bioasq_7to10_queries.jsonl")[::4]
    cut = bm25.analyzer("english")
    theirs = bm25s.BM25(k1=bm25.K1, b=bm25.B, method="lucene")
    theirs.index(
        [cut.analyze(bm25.indexed(Passage("", d.text, d.title))) for d in corpus],
        show_progress=False,
    )

    def find(queries: Sequence[str], k: int) -> list[list[Passage]]:
        rows, _ = theirs.retrieve(
            [cut.analyze(query) or [""] for query in queries], k=k, show_progress=False
        )
        return [[Passage(corpus[row].id, "") for row in one] for one in rows]

    ours = measure(Index.of(corpus, tokens=100_000).find, judged)["nDCG@10"]
    other = measure(find, judged)["nDCG@10"]
    assert np.mean(ours) > 0.7
    assert abs(np.mean(ours) - np.mean(other)) < 0.01


# Folders


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [{"id": d.id, "title": d.title, "text": f"{d.text}.\n{d.text}"} for d in zipf(3000)]
    rows[17:17] = [
        {"id": "empty", "title": "", "text": " "},
        {"id": "titled", "title": "lonely", "text": ""},
    ]
    again = [{**rows[i], "text": f"other{i} text"} for i in range(40, 2000, 40)]
    rows[2500:2500] = [*again, *rows[100:120], *again[:5], {**rows[80], "text": "a third text"}]
    return lines(tmp_path_factory.mktemp("corpus") / "zipf.jsonl", rows)


@pytest.fixture(scope="module")
def folder(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("index") / "whole"
    build([corpus], out, IndexSettings(tokens=30))
    return out


def test_a_folder_finds_what_memory_finds(folder: Path, corpus: Path) -> None:
    opened, held = Index.open(folder), Index.of((d for d, _ in documents(corpus)), tokens=30)
    queries = ["w1 w5", "w40 w41 title3", "lonely", "empty"]
    assert list(opened.passages) == list(held.passages)
    assert opened.find(queries, 5) == held.find(queries, 5)
    assert opened.find(["lonely"], 5)[0][0] == Passage(
        "titled", "", "lonely", opened.find(["lonely"], 1)[0][0].score
    )
    counted = {name: manifest(folder)[name] for name in ("empty", "repeated", "numbered")}
    assert counted == {"empty": 1, "repeated": 25, "numbered": 50}
    assert len(opened) == 6_051
    with pytest.raises(IndexError):
        opened.passages[6_051]


def test_a_stream_starts_anywhere(folder: Path) -> None:
    passages = list(store.PassageStore(folder))
    assert list(store.stream(folder)) == passages
    assert list(store.stream(folder, 5_990)) == passages[5_990:]
    assert not list(store.stream(folder, len(passages)))
    assert not list(store.stream(folder, len(passages) + 7))


BUILD = """
import sys
from pathlib import Path
from workup.retrieval import bm25, store
from workup.retrieval.index import IndexSettings, build
store.EVERY = bm25.BATCH = 500
heard = []
def told(stage, done, total):
    print(stage, done, total, flush=True)
    heard.append(stage)
    if heard.count(sys.argv[3]) == int(sys.argv[4]):
        sys.stdin.readline()
build([Path(sys.argv[1])], Path(sys.argv[2]), IndexSettings(tokens=30), told)
"""


Halted = tuple[subprocess.Popen[str], list[str]]


@contextmanager
def halted(corpus: Path, out: Path, stage: str, reports: int) -> Iterator[Halted]:
    """A build that stands still, `reports` reports into a stage, and what it said."""
    command = [sys.executable, "-c", BUILD, str(corpus), str(out), stage, str(reports)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdout is not None
        heard: list[str] = []
        while sum(line.startswith(stage) for line in heard) < reports:
            heard.append(child.stdout.readline())
            assert heard[-1], heard
        yield child, heard


def killed(corpus: Path, out: Path, stage: str, reports: int) -> list[str]:
    """What a build says until it is killed, `reports` reports into a stage."""
    with halted(corpus, out, stage, reports) as (child, heard):
        child.kill()
    assert child.returncode == -signal.SIGKILL
    return heard


@pytest.mark.long
def test_a_killed_build_goes_on_and_ends_the_same(
    corpus: Path, folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "killed"
    killed(corpus, out, "passages", 3)
    with pytest.raises(UserError, match="half built"):
        Index.open(out)
    (out / "passages.jsonl").open("ab").write(b'{"id": "half a li')
    again = killed(corpus, out, "passages", 2)
    assert int(again[0].split()[1]) > 0.3 * corpus.stat().st_size
    killed(corpus, out, "bm25", 4)
    with pytest.raises(UserError, match="other files or settings"):
        build([corpus], out, IndexSettings(tokens=31))
    heard: list[tuple[str, int, int]] = []
    build([corpus], out, IndexSettings(tokens=30), lambda *report: heard.append(report))
    assert [report for report in heard if report[0] == "passages"] == []
    for name in ("passages.jsonl", "passages.places"):
        assert (out / name).read_bytes() == (folder / name).read_bytes()
    assert not damages(out)
    queries = [f"w{i} w{2 * i}" for i in range(1, 60)]
    scores = [
        [[p.score for p in found] for found in Index.open(path).find(queries, 5)]
        for path in (out, folder)
    ]
    assert scores[0] == scores[1]


def test_what_is_no_index_or_another_is_left_alone(
    folder: Path, corpus: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="finished index"):
        build([corpus], folder, IndexSettings())
    (tmp_path / "letter").write_text("dear")
    with pytest.raises(UserError, match="something else"):
        build([corpus], tmp_path, IndexSettings())
    with pytest.raises(UserError, match="is no index"):
        Index.open(tmp_path)
    with pytest.raises(UserError, match=r"no kind of index 'bm52'\. Did you mean 'bm25'"):
        Index.open(folder, "bm52")


def test_one_folder_is_built_by_one_process(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with halted(corpus, out, "passages", 1) as (first, _):
        with pytest.raises(UserError, match="another process is building"):
            build([corpus], out, IndexSettings(tokens=30))
        first.communicate("go on\n")
    assert not damages(out)


def test_many_processes_search_one_folder(folder: Path) -> None:
    code = (
        "import sys, pathlib; from workup.retrieval.index import Index; index = "
        "Index.open(pathlib.Path(sys.argv[1]))\n"
    )
    code += "print(index.find(['w1 w5'], 3))"
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    said = {child.communicate()[0] for child in children}
    assert said == {f"{Index.open(folder).find(['w1 w5'], 3)}\n"}


@pytest.fixture
def copy(corpus: Path, tmp_path: Path) -> Path:
    small = lines(
        tmp_path / "s.jsonl", [json.loads(line) for line in corpus.read_text().splitlines()[:300]]
    )
    build([small], tmp_path / "copy", IndexSettings())
    return tmp_path / "copy"


def test_every_damaged_file_is_found_and_named(copy: Path) -> None:
    for name in manifest(copy)["files"]:
        path = copy / name
        whole = path.read_bytes()
        place = len(whole) // 2
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert damages(copy) == [f"{name}: its checksum is another"]
        path.write_bytes(whole[:-1])
        with pytest.raises(UserError, match=f"{path.name}: "):
            Index.open(copy)
        path.unlink()
        assert damages(copy) == [f"{name}: missing"]
        path.write_bytes(whole)
    assert not damages(copy)


@pytest.mark.parametrize("name", ["manifest.json", "passages.jsonl", "bm25"])
def test_a_damaged_index_is_an_error_of_one_line(copy: Path, name: str) -> None:
    """Opening or searching raises a UserError of one line, and never crashes.

    The file has as many bytes as before, but other ones.
    """
    paths = (
        [path for path in (copy / name).rglob("*") if path.is_file()]
        if name == "bm25"
        else [copy / name]
    )
    for path in paths:
        path.write_bytes(b"\xff" * path.stat().st_size)
    with pytest.raises(UserError) as raised:
        Index.open(copy).find(["w1 w2"], 3)
    assert "\n" not in str(raised.value)


def test_opening_a_manifest_of_another_version(copy: Path) -> None:
    value = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps({**value, "format": 99}))
    with pytest.raises(UserError, match="format 99"):
        manifest(copy)


@pytest.mark.parametrize(
    "rows", [[], [{"id": "1", "text": " "}, {"id": "2", "title": "", "text": "\x00"}]]
)
def test_a_corpus_without_a_word_is_refused(rows: list[dict[str, str]], tmp_path: Path) -> None:
    empty = len(rows)
    with pytest.raises(UserError, match=rf"none\.jsonl: .*{empty} of {empty} documents are empty"):
        build([lines(tmp_path / "none.jsonl", rows)], tmp_path / "out", IndexSettings())
    assert not (tmp_path / "out").exists()


def test_an_index_without_a_passage_is_not_opened(copy: Path) -> None:
    value = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps({**value, "passages": 0}))
    with pytest.raises(UserError, match="holds no passage"):
        Index.open(copy)


# Ids

IDS = st.sampled_from(["a", "a#0", "a#1", "a~2", "a~2#0", "a~3", "b"])
SAID = st.sampled_from(["", "x", "y", "one two three.", "one two four.", "x\n\ny z"])


def called(rows: Sequence[Document], limit: int) -> list[Passage]:
    """The passages of `rows` as the rule says it, with everything in memory and nothing clever."""
    given: dict[str, tuple[str, ...]] = {}
    more: set[tuple[str, tuple[str, ...]]] = set()
    found: list[Passage] = []
    for row in rows:
        pieces = [piece.strip() for piece in words.passages(row.text, limit) if piece.strip()]
        pieces = pieces or ([""] if row.title else [])
        what = (row.title, *pieces)
        if not pieces or given.get(row.id) == what or (row.id, what) in more:
            continue
        more |= {(row.id, what)} if row.id in given else set()
        for number in range(1, 1000):
            name = row.id if number == 1 else f"{row.id}~{number}"
            ids = [name, *(f"{name}#{k}" for k in range(len(pieces)) if len(pieces) > 1)]
            says = [what, *((row.title, piece) for piece in pieces)]
            taken = next((place for place, id in enumerate(ids) if id in given), None)
            given |= dict(list(zip(ids, says, strict=False))[:taken])
            if taken is None:
                break
        found += [Passage(*one, row.title) for one in zip(ids[1:] or ids, pieces, strict=True)]
    return found


@given(st.lists(st.builds(Document, IDS, st.sampled_from(["", "T"]), SAID), max_size=12))
def test_no_two_passages_share_an_id_and_a_repeated_row_is_one_passage(
    rows: list[Document],
) -> None:
    names = PassageIds()
    cut = [passage for row in rows for passage in store.cut(row, 3, names)]
    names.close()
    assert len({passage.id for passage in cut}) == len(cut)
    assert cut == called(rows, 3)
    # Nothing that any row says is lost, and nothing is added.
    assert {(p.title, p.text) for p in cut} == {
        (p.title, p.text) for row in rows for p in called([row], 3)
    }


def test_many_rows_of_one_id_take_as_long_as_many_rows() -> None:
    """The written records are counted: each row is named once, without trying all numbers."""
    names = PassageIds()
    for row in range(2000):
        assert names.give("same", "", [f"text {row}"]) == ["same" if not row else f"same~{row + 1}"]
    assert names.counts["numbered"] == 1999
    names.close()


@pytest.mark.skipif(not (DATA / "medquad_passages.jsonl").exists(), reason="needs MedQuAD")
def test_every_row_of_medquad_comes_back_as_itself() -> None:
    """15,809 rows have 11,714 ids between them."""
    fields = Fields(title=("question",), text=("answer",))
    rows = [document for document, _ in documents(DATA / "medquad_passages.jsonl", fields)]
    names = PassageIds()
    passages = [passage for row in rows for passage in store.cut(row, 10**6, names)]
    names.close()
    assert len({row.id for row in rows}) < len(rows)
    assert len({passage.id for passage in passages}) == len(passages)
    said = Counter((row.title, row.text.strip()) for row in rows)
    assert Counter((passage.title, passage.text) for passage in passages) == said


# Together


@given(
    st.lists(st.permutations(range(8)).map(lambda order: order[:5]), min_size=1, max_size=3),
    st.integers(1, 9),
)
def test_fusion_is_its_formula(rankings: list[list[int]], k: int) -> None:
    expected = {
        key: sum(1 / (61 + ranking.index(key)) for ranking in rankings if key in ranking)
        for key in range(8)
    }
    found = reciprocal_rank(rankings, k)
    assert len(found) == min(k, len(set().union(*rankings)))
    assert [score for _, score in found] == pytest.approx(
        sorted(expected.values(), reverse=True)[: len(found)]
    )
    assert all(score == pytest.approx(expected[key]) for key, score in found)


def test_the_same_passages_of_two_libraries_are_fused() -> None:
    one, other = Index.of(zipf(40)), Index.of(zipf(60)[20:])
    both = fused([one.find, other.find])(["w1 w4"], 100)[0]
    found = [library.find(["w1 w4"], 100)[0] for library in (one, other)]
    assert {p.id.partition("@")[0] for p in both} == {p.id for ranking in found for p in ranking}
    assert len({p.id for p in both}) == len(both)


def test_passages_of_one_id_in_two_libraries_are_not_mixed_up() -> None:
    """Both call their passages d0 to d39, and say other things in them."""
    one, other = Index.of(zipf(40, seed=1)), Index.of(zipf(40, seed=2))
    query = "w1 w2 w3 w4"
    found = [library.find([query], 100)[0] for library in (one, other)]
    both = fused([one.find, other.find])([query], 100)[0]
    assert len(both) == len(found[0]) + len(found[1]) > 60
    assert Counter((p.id.partition("@")[0], p.text) for p in both) == Counter(
        (p.id, p.text) for ranking in found for p in ranking
    )
    assert len({p.id for p in both}) == len(both)
    # A passage has the same name whichever library found it, and whatever it was found with.
    alone = fused([other.find, lambda queries, k: [[] for _ in queries]])([query], 100)[0]
    named = {p.text: p.id for p in both}
    assert all(named[p.text] == p.id for p in alone)


class Noting:
    """Notes what is asked at once; fails for batches with a given query."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.threads: set[int] = set()

    def __call__(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        self.batches.append(list(queries))
        self.threads.add(threading.get_ident())
        if "bad" in queries:
            raise OSError("away")
        return [[Passage(f"{query}{i}", "") for i in range(k)] for query in queries]


def test_searches_at_the_same_time_share_a_call_and_get_their_own_answers() -> None:
    noting = Noting()
    library = BatchedRetriever(noting, most=50)

    async def ask() -> list[Sequence[Passage]]:
        return await asyncio.gather(*(library.search(f"q{i}", i % 3) for i in range(120)))

    for _ in range(2):  # one loop after another
        for i, found in enumerate(asyncio.run(ask())):
            assert [p.id for p in found] == [f"q{i}{rank}" for rank in range(i % 3)]
    assert list(map(len, noting.batches)) == [50, 30, 50, 30]
    assert threading.get_ident() not in noting.threads


@pytest.mark.parametrize("here", [True, False])
@pytest.mark.parametrize("sampling", [True, False])
def test_only_an_own_index_answers_in_the_loop_where_a_policy_samples(
    here: bool, sampling: bool
) -> None:
    noting = Noting()
    library = BatchedRetriever(noting, here=here)

    async def ask() -> Sequence[Passage]:
        if sampling:
            computing.add(asyncio.get_running_loop())
        return await library.search("q", 1)

    assert [p.id for p in asyncio.run(ask())] == ["q0"]
    assert (threading.get_ident() in noting.threads) == (here and sampling)


@pytest.mark.parametrize("sampling", [True, False])
def test_a_short_search_is_answered_in_the_loop(sampling: bool) -> None:
    noting = Noting()
    library = BatchedRetriever(noting, short=True)

    async def ask() -> Sequence[Sequence[Passage]]:
        if sampling:
            computing.add(asyncio.get_running_loop())
        return await asyncio.gather(*(library.search(name, 2) for name in ("a", "b")))

    assert [[p.id for p in found] for found in asyncio.run(ask())] == [["a0", "a1"], ["b0", "b1"]]
    assert noting.threads == {threading.get_ident()}
    # Where a policy samples, searches share a batch as those of other libraries do.
    assert list(map(len, noting.batches)) == ([2] if sampling else [1, 1])


def test_a_library_that_answers_too_few_queries_is_an_error() -> None:
    library = BatchedRetriever(lambda queries, k: [[] for _ in queries[1:]])

    async def ask() -> list[Any]:
        searches = [library.search(name, 1) for name in ("a", "b")]
        return await asyncio.gather(*searches, return_exceptions=True)

    assert [str(one) for one in asyncio.run(ask())] == ["the library answered 1 of 2 queries"] * 2


def test_an_error_is_that_of_its_batch_alone() -> None:
    library = BatchedRetriever(Noting(), most=2)

    async def ask() -> list[Any]:
        names = ["a", "b", "bad", "c", "d"]
        return await asyncio.gather(
            *(library.search(name, 1) for name in names), return_exceptions=True
        )

    found = asyncio.run(ask())
    assert [isinstance(one, OSError) for one in found] == [False, False, True, True, False]


def test_a_search_that_nobody_waits_for_holds_nobody_up() -> None:
    away, answered = threading.Event(), threading.Event()

    def answer(queries: Sequence[str], k: int) -> list[list[Passage]]:
        away.wait(HANG)
        answered.set()
        return [[] for _ in queries]

    library = BatchedRetriever(answer)

    async def ask() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(library.search("x", 1), 0.05)

    asyncio.run(ask())
    assert not answered.is_set()
    away.set()
