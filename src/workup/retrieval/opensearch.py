"""BM25 in OpenSearch (or Elasticsearch) over HTTP, for corpora too large for one machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

from workup.core.case import Passage
from workup.core.errors import RolloutError, UserError
from workup.retrieval import words
from workup.retrieval.bm25 import K1, B, indexed
from workup.retrieval.calls import DEADLINE, Caller

KEY = "WORKUP_OPENSEARCH_KEY"
"""The environment variable with user:password."""

AT_ONCE = 1000
"""Passages in one request."""

MOST_WORDS = 500
"""The most words of a query that are sent.

OpenSearch refuses more than 1,024 clauses, and a hyphenated word becomes several clauses."""


class OpenSearch:
    """One index of an OpenSearch cluster."""

    def __init__(self, caller: Caller, name: str) -> None:
        self._caller, self._name = caller, name

    @classmethod
    def open(cls, address: str, deadline: float = DEADLINE, *, patient: bool = True) -> OpenSearch:
        """The index at `address` (URL#INDEX). Raises UserError without the name of an index.

        The environment variable WORKUP_OPENSEARCH_KEY may hold user:password. `patient` is as for
        `Caller`.
        """
        url, _, name = address.partition("#")
        if not name or not name.replace("-", "").replace("_", "").isalnum() or name != name.lower():
            raise UserError(
                f"opensearch:{url} lacks the name of an index; type "
                "opensearch:https://HOST:9200#NAME, in lower case"
            )
        return cls(Caller(url, deadline, key_env=KEY, patient=patient), name)

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """The best `k` passages for each query. Raises RolloutError."""
        lines: list[dict[str, Any]] = []
        for query in queries:
            match = {"match": {"body": {"query": words.first(query, MOST_WORDS)}}}
            lines += [{}, {"size": k, "query": match, "_source": ["id", "title", "text"]}]
        answers = self._send("_msearch", lines)["responses"]
        return [_passages(answer) for answer in answers]

    def push(
        self,
        passages: Callable[[int], Iterable[Passage]],
        language: str = "english",
        progress: Callable[[int], None] = lambda done: None,
        *,
        k1: float = K1,
        b: float = B,
    ) -> int:
        """Sends the passages of `passages(start)`, from the first row that the index lacks.

        Creates the index if there is none; its k1 and b can be chosen. Returns how many it holds.
        Raises RolloutError.
        """
        done = self._create(language, k1, b)
        stream = iter(passages(done))
        while batch := list(islice(stream, AT_ONCE)):
            lines: list[dict[str, Any]] = []
            for row, passage in enumerate(batch, done):
                lines.append({"index": {"_id": str(row)}})
                lines.append(
                    {
                        "id": passage.id,
                        "title": passage.title,
                        "text": passage.text,
                        "body": indexed(passage),
                    }
                )
            answer = self._send("_bulk", lines)
            if answer["errors"]:
                refused = next(
                    item["index"]["error"] for item in answer["items"] if "error" in item["index"]
                )
                raise RolloutError(
                    f"{self._caller.url} refused a passage: {json.dumps(refused)[:300]}"
                )
            done += len(batch)
            progress(done)
        self._caller.call(f"/{self._name}/_refresh")
        return done

    def _create(self, language: str, k1: float, b: float) -> int:
        """Creates the index if there is none; returns how many passages it holds.

        Passages are sent in order, so this is the row of the first one that is missing.
        """
        names = self._caller.call("/_cat/indices?format=json&h=index", method="GET")
        if self._name in {row["index"] for row in names}:
            self._caller.call(f"/{self._name}/_refresh")
            return int(self._caller.call(f"/{self._name}/_count", method="GET")["count"])
        field = {
            "type": "text",
            "analyzer": "standard" if language == "none" else language,
            "similarity": "ours",
        }
        kept = {"type": "keyword", "index": False, "doc_values": False}
        shape = {
            "settings": {"index": {"similarity": {"ours": {"type": "BM25", "k1": k1, "b": b}}}},
            "mappings": {
                "properties": {"body": field, "id": kept, "title": kept, "text": kept},
                "_source": {"excludes": ["body"]},
            },
        }
        self._caller.call(f"/{self._name}", json.dumps(shape).encode(), method="PUT")
        return 0

    def _send(self, what: str, lines: Iterable[dict[str, Any]]) -> Any:
        body = "".join(json.dumps(line) + "\n" for line in lines).encode()
        return self._caller.call(f"/{self._name}/{what}", body, kind="application/x-ndjson")


def _passages(answer: dict[str, Any]) -> list[Passage]:
    if "error" in answer:
        raise RolloutError(f"OpenSearch refused a query: {json.dumps(answer['error'])[:300]}")
    found = []
    for hit in answer["hits"]["hits"]:
        source = hit["_source"]
        found.append(Passage(source["id"], source["text"], source["title"], float(hit["_score"])))
    return found
