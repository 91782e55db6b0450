"""The quality of a ranking, by judgements of relevance: nDCG@10, Recall@5, reciprocal rank."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workup.cases.files import parse_object, scan
from workup.core.case import Passage
from workup.core.errors import UserError
from workup.retrieval import words

DEPTH = 100
"""Passages asked for per query: enough for 10 documents if several are from one document."""

_PIECE = re.compile(r"(?:#\d+)?(?:@[0-9a-f]{8})?$")


@dataclass(frozen=True, slots=True)
class Judged:
    """A query, and the ids of the documents that answer it."""

    id: str
    query: str
    relevant: frozenset[str]


def read(file: Path) -> list[Judged]:
    """Queries from JSON Lines with `id`, `query` and `relevant` (a list of document ids).

    Raises UserError.
    """
    if not file.is_file():
        raise UserError(f"no file {file} of judged queries")
    judged = [
        _judged(parse_object(line.text, file=file, line=line.number), file, line.number)
        for line in scan(file)
    ]
    if not any(one.relevant for one in judged):
        raise UserError(f"{file}: no query has a relevant document; nothing can be measured")
    return judged


def _judged(row: Mapping[str, Any], file: Path, number: int) -> Judged:
    relevant = row.get("relevant")
    if "id" not in row or not isinstance(row.get("query"), str) or not isinstance(relevant, list):
        raise UserError(
            f"{file}, line {number}: a line is {{'id': …, 'query': …, 'relevant': [document ids]}}"
        )
    return Judged(
        str(row["id"]), row["query"], frozenset(words.plain(str(name)) for name in relevant)
    )


def document(passage: str, named: Container[str] = ()) -> str:
    """The document that a passage is of, by its id; in joined libraries "@" and a digest end it.

    An id that is `named` as a document's is one as it stands.
    """
    return passage if passage in named else _PIECE.sub("", passage)


def ranked(found: Iterable[Passage], named: Container[str] = ()) -> list[str]:
    """The documents in the order of their best passages; `named` are known documents."""
    return list(dict.fromkeys(document(passage.id, named) for passage in found))


def ndcg(ranking: Sequence[str], relevant: frozenset[str], k: int = 10) -> float:
    """Σ_{i≤k, relevant} 1 / log2(i + 1), over the same sum of a perfect ranking; in [0, 1]."""
    gain = sum(
        1 / math.log2(rank + 1) for rank, name in enumerate(ranking[:k], 1) if name in relevant
    )
    return gain / sum(1 / math.log2(rank + 1) for rank in range(1, min(k, len(relevant)) + 1))


def recall(ranking: Sequence[str], relevant: frozenset[str], k: int = 5) -> float:
    """The share of the relevant documents that are among the first `k`."""
    return len(relevant.intersection(ranking[:k])) / len(relevant)


def reciprocal(ranking: Sequence[str], relevant: frozenset[str]) -> float:
    """1 / the rank of the first relevant document, 0 when none was found."""
    return next((1 / rank for rank, name in enumerate(ranking, 1) if name in relevant), 0.0)


MEASURES: Mapping[str, Callable[[Sequence[str], frozenset[str]], float]] = {
    "nDCG@10": ndcg,
    "Recall@5": recall,
    "MRR": reciprocal,
}


def measure(
    find: Callable[[Sequence[str], int], Sequence[Sequence[Passage]]], judged: Sequence[Judged]
) -> dict[str, list[float]]:
    """Each measure's value for each query that has a relevant document, in order."""
    asked = [one for one in judged if one.relevant]
    values: dict[str, list[float]] = {name: [] for name in MEASURES}
    for start in range(0, len(asked), 64):
        batch = asked[start : start + 64]
        for one, found in zip(
            batch, find([words.query(each.query) for each in batch], DEPTH), strict=True
        ):
            for name, of in MEASURES.items():
                values[name].append(of(ranked(found, one.relevant), one.relevant))
    return values
