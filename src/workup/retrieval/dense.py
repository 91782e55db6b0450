"""Dense retrieval: sentence-transformers embeddings, cosine similarity, exact or by FAISS.

The embeddings are in one file, in half precision, in the order of the passages. Exact search reads
it by memory map in blocks. A FAISS index of compressed codes is made from that file on request.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workup.core.case import Passage
from workup.core.disk import there
from workup.core.errors import UserError
from workup.core.extras import wanted
from workup.models.hub import opened
from workup.retrieval.bm25 import Ranking, indexed

VECTORS, CODES = "vectors.f16", "codes.faiss"
EXACT = "Flat"
"""The name that FAISS's factory has for no compression at all."""

ENCODED = 1024
"""Passages between two points from which an interrupted build continues."""

BLOCK = 65_536
"""Vectors in memory at once."""

SAMPLE = 200_000
"""Vectors that train a compressed index; FAISS wants 39 or more for each of its clusters."""

PROBES = 32
"""Lists of an inverted file that a query reads."""

Vectors = NDArray[np.float32]


class Encoder:
    """A sentence-transformers model, with its prompts for queries and documents; unit vectors."""

    def __init__(self, name: str) -> None:
        self._model = loaded("SentenceTransformer", name)
        self.dimension = int(self._model.get_embedding_dimension())

    def documents(self, texts: Sequence[str]) -> Vectors:
        """texts → [len(texts), dimension]"""
        return np.asarray(
            self._model.encode_document(
                list(texts), normalize_embeddings=True, show_progress_bar=False
            ),
            np.float32,
        )

    def queries(self, texts: Sequence[str]) -> Vectors:
        """texts → [len(texts), dimension]"""
        return np.asarray(
            self._model.encode_query(
                list(texts), normalize_embeddings=True, show_progress_bar=False
            ),
            np.float32,
        )


@cache
def loaded(kind: str, name: str) -> Any:
    """A sentence-transformers model from a folder or the hub. Raises UserError.

    Its class is "SentenceTransformer" or "SparseEncoder".
    """
    made = getattr(wanted("sentence_transformers"), kind)
    # The library takes a bare name for one of its own models.
    full = name if "/" in name or there(name) else f"sentence-transformers/{name}"
    make = partial(made, trust_remote_code=False)
    return opened(full, make, forms="a folder of an encoder or a hub id")


def build(
    folder: Path,
    passages: Callable[[int], Iterable[Passage]],
    encoder: Encoder,
    factory: str = EXACT,
    progress: Callable[[int], None] = lambda done: None,
) -> None:
    """Embeds the passages of `passages(start)`, from the first row that `folder` does not hold."""
    folder.mkdir(parents=True, exist_ok=True)
    width = 2 * encoder.dimension
    path = folder / VECTORS
    path.touch()
    with path.open("r+b") as file:
        done = path.stat().st_size // width
        file.truncate(done * width)
        file.seek(done * width)
        for batch in _batches(passages(done)):
            encoder.documents(batch).astype("<f2").tofile(file)
            file.flush()
            os.fsync(file.fileno())
            done += len(batch)
            progress(done)
    if factory != EXACT:
        _compress(folder, encoder.dimension, factory)


def _batches(passages: Iterable[Passage]) -> Iterable[list[str]]:
    stream = iter(passages)
    while batch := [indexed(passage) for passage in islice(stream, ENCODED)]:
        yield batch


def empty_codes(dimension: int, factory: str) -> Any:
    """FAISS's index of that name, without a vector. Raises UserError where it makes none."""
    faiss = wanted("faiss")
    try:
        return faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise UserError(
            f"FAISS makes no index '{factory}' of vectors with {dimension} components: "
            f"{str(error).splitlines()[-1]}"
        ) from error


def _compress(folder: Path, dimension: int, factory: str) -> None:
    faiss = wanted("faiss")
    embedded, codes = vectors(folder, dimension), empty_codes(dimension, factory)
    try:
        chosen = np.sort(np.random.default_rng(0).permutation(len(embedded))[:SAMPLE])
        codes.train(np.asarray(embedded[chosen], np.float32))
    except RuntimeError as error:
        raise UserError(
            f"FAISS makes no index '{factory}' of {len(embedded)} vectors: "
            f"{str(error).splitlines()[-1]}"
        ) from error
    for start in range(0, len(embedded), BLOCK):
        codes.add(np.asarray(embedded[start : start + BLOCK], np.float32))
    faiss.write_index(codes, str(folder / CODES))


def vectors(folder: Path, dimension: int) -> NDArray[np.float16]:
    """The embeddings that `build` wrote, by memory map: [passages, dimension]."""
    path = folder / VECTORS
    if not path.stat().st_size:
        return np.empty((0, dimension), "<f2")
    return np.memmap(path, "<f2", "r").reshape(-1, dimension)


class Dense:
    """Finds rows by the meaning of a query as the encoder sees it."""

    def __init__(self, folder: Path, encoder: Encoder) -> None:
        self._faiss = wanted("faiss")
        self._encoder = encoder
        self.vectors = vectors(folder, encoder.dimension)
        self._codes = self._open_codes(folder / CODES) if (folder / CODES).exists() else None

    def _open_codes(self, path: Path) -> Any:
        codes = self._faiss.read_index(
            str(path), self._faiss.IO_FLAG_MMAP | self._faiss.IO_FLAG_READ_ONLY
        )
        if (lists := self._faiss.try_extract_index_ivf(codes)) is not None:
            lists.nprobe = PROBES
        return codes

    def find(self, queries: Sequence[str], k: int) -> list[Ranking]:
        """The `k` nearest rows for each query, none for one without a word."""
        k = min(k, len(self.vectors))
        if not k or not queries:
            return [[] for _ in queries]
        asked = self._encoder.queries(queries)
        scores, rows = (
            self._codes.search(asked, k) if self._codes is not None else self._exact(asked, k)
        )
        return [
            [(int(row), float(score)) for row, score in zip(*found, strict=True) if row >= 0]
            if query.strip()
            else []
            for query, *found in zip(queries, rows, scores, strict=True)
        ]

    def _exact(self, asked: Vectors, k: int) -> tuple[Vectors, NDArray[np.int64]]:
        """[queries, k] scores and rows, block by block.

        Memory stays that of one block, whatever the corpus.
        """
        scores = np.empty((len(asked), 0), np.float32)
        rows = np.empty((len(asked), 0), np.int64)
        for start in range(0, len(self.vectors), BLOCK):
            block = np.asarray(self.vectors[start : start + BLOCK], np.float32)
            near, places = self._faiss.knn(
                asked, block, min(k, len(block)), metric=self._faiss.METRIC_INNER_PRODUCT
            )
            scores, rows = np.hstack([scores, near]), np.hstack([rows, places + start])
            best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
            scores, rows = np.take_along_axis(scores, best, 1), np.take_along_axis(rows, best, 1)
        return scores, rows
