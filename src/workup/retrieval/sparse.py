"""Learned sparse retrieval (SPLADE and its kin): weights over a model's vocabulary, and postings.

Postings are stored in blocks of passages, each an array per file, opened by memory map.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_matrix, csr_matrix, vstack

from workup.core.case import Passage
from workup.core.disk import whole_folder
from workup.retrieval.bm25 import Ranking, indexed
from workup.retrieval.dense import ENCODED, loaded

BLOCK = 50 * ENCODED
"""Passages per block; an interrupted build continues from a block."""


class SparseEncoder:
    """A sentence-transformers SparseEncoder."""

    def __init__(self, name: str) -> None:
        self._model = loaded("SparseEncoder", name)

    def documents(self, texts: Sequence[str]) -> csr_matrix:
        """texts → weights [len(texts), vocabulary]"""
        return _matrix(self._model.encode_document(list(texts), show_progress_bar=False))

    def queries(self, texts: Sequence[str]) -> csr_matrix:
        """texts → weights [len(texts), vocabulary]"""
        return _matrix(self._model.encode_query(list(texts), show_progress_bar=False))


def _matrix(weights: Any) -> csr_matrix:
    together = weights.coalesce().cpu()
    return csr_matrix(
        (together.values().numpy(), together.indices().numpy()),
        shape=tuple(together.shape),
        dtype=np.float32,
    )


def build(
    folder: Path,
    passages: Callable[[int], Iterable[Passage]],
    encoder: SparseEncoder,
    progress: Callable[[int], None] = lambda done: None,
    block: int = BLOCK,
) -> None:
    """Weighs the passages of `passages(start)`, from the first block that `folder` does not hold.

    `passages(start)` yields passages from row `start` on.
    """
    folder.mkdir(parents=True, exist_ok=True)
    number = len(_blocks(folder))
    stream = iter(passages(number * block))
    while texts := [indexed(passage) for passage in islice(stream, block)]:
        parts = []
        for start in range(0, len(texts), ENCODED):
            parts.append(encoder.documents(texts[start : start + ENCODED]))
            progress(number * block + min(start + ENCODED, len(texts)))
        _save(folder / f"{number:06}", vstack(parts).tocsc())
        number += 1


def _save(folder: Path, weights: csc_matrix) -> None:
    """Writes a block, which is there whole or not at all."""
    with whole_folder(folder) as draft:
        np.save(draft / "starts.npy", weights.indptr.astype("<i8"))
        np.save(draft / "rows.npy", weights.indices.astype("<u4"))
        np.save(draft / "weights.npy", weights.data.astype("<f4"))
        np.save(draft / "size.npy", np.asarray(weights.shape[0], "<i8"))


def _blocks(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and path.suffix != ".draft")


class _Postings:
    """One block: word w's passages are rows[starts[w] : starts[w + 1]]."""

    def __init__(self, folder: Path) -> None:
        self.size = int(np.load(folder / "size.npy"))
        self._starts, self._rows, self._weights = (
            np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("starts", "rows", "weights")
        )

    def scores(self, words: NDArray[np.int32], weights: NDArray[np.float32]) -> NDArray[np.float32]:
        """Σ_w query weight · passage weight → [passages of the block]"""
        total = np.zeros(self.size, np.float32)
        for word, weight in zip(words, weights, strict=True):
            place = slice(self._starts[word], self._starts[word + 1])
            # a passage stands once in a word's list
            total[self._rows[place]] += weight * self._weights[place]
        return total


class Sparse:
    """Finds rows by the words that the encoder thinks of."""

    def __init__(self, folder: Path, encoder: SparseEncoder) -> None:
        self._encoder = encoder
        self._blocks = [_Postings(block) for block in _blocks(folder)]

    def find(self, queries: Sequence[str], k: int) -> list[Ranking]:
        """At most `k` rows with a positive score for each query, none for one without a word."""
        if not queries:
            return []
        asked = self._encoder.queries(queries)
        return [
            self._find(asked.indices[start:end], asked.data[start:end], k) if query.strip() else []
            for query, start, end in zip(queries, asked.indptr[:-1], asked.indptr[1:], strict=True)
        ]

    def _find(self, words: NDArray[np.int32], weights: NDArray[np.float32], k: int) -> Ranking:
        found: Ranking = []
        first = 0
        for block in self._blocks:
            scores = block.scores(words, weights)
            best = np.argpartition(-scores, min(k, len(scores) - 1))[:k]
            found += [(first + int(row), float(scores[row])) for row in best if scores[row] > 0]
            first += block.size
        return sorted(found, key=lambda hit: (-hit[1], hit[0]))[:k]
