"""BM25 in OpenSearch (or Elasticsearch) over HTTP, for corpora too large for one machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any

from workup.core.case import Passage
from workup.core.errors import RolloutError, UserError
from workup.retrieval import words
from workup.retrieval.bm25 import K1, B, indexed
from workup.retrieval.calls import DEADLINE, PASSING, Caller, PassingError

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
        answer = self._send("_msearch", lines)
        try:
            told = zip(queries, answer["responses"], strict=True)
            return [_passages(one) for _, one in told]
        except (LookupError, TypeError, ValueError) as error:
            raise self._strange("_msearch", error) from error

    def push(
        self,
        passages: Callable[[int], Iterable[Passage]],
        language: str = "english",
        progress: Callable[[int], None] = lambda done: None,
        *,
        k1: float = K1,
        b: float = B,
        corpus: str = "",
    ) -> int:
        """Sends the passages of `passages(start)`, from the first batch that the index lacks.

        Creates the index if there is none; its k1 and b can be chosen. Returns how many it holds.
        `corpus` is the digest of the passages' file. Raises UserError for an index of another
        corpus or language, and RolloutError.
        """
        # The last batch may have holes, where rows were refused. A row that comes twice is one.
        done = self._create(k1, b, {"corpus": corpus, "language": language}) // AT_ONCE * AT_ONCE
        stream = iter(passages(done))
        while batch := list(islice(stream, AT_ONCE)):
            rows = {
                str(row): {
                    "id": passage.id,
                    "title": passage.title,
                    "text": passage.text,
                    "body": indexed(passage),
                }
                for row, passage in enumerate(batch, done)
            }
            self._caller.retried(partial(self._store, rows))
            done += len(batch)
            progress(done)
        if (held := self._count()) != done:
            raise RolloutError(
                f"{self._caller.url} holds {held:,} passages under the name '{self._name}', and "
                f"{done:,} were sent; delete that index, and push again"
            )
        return done

    def _store(self, rows: dict[str, dict[str, Any]]) -> None:
        """Sends the rows by their ids, and takes out of `rows` those that are stored.

        Raises PassingError where a refusal of the rest may pass, else RolloutError.
        """
        lines = [line for id, row in rows.items() for line in ({"index": {"_id": id}}, row)]
        try:
            answers = [item["index"] for item in self._send("_bulk", lines)["items"]]
            told = list(zip(list(rows), answers, strict=True))
        except (LookupError, TypeError, ValueError) as error:
            raise self._strange("_bulk", error) from error
        refusals = []
        for id, answer in told:
            if "error" not in answer:
                del rows[id]
            elif answer.get("status") in PASSING:
                refusals.append(answer["error"])
            else:
                reason = json.dumps(answer["error"])[:300]
                raise RolloutError(f"{self._caller.url} refused a passage: {reason}")
        if refusals:
            raise PassingError(f"refused passages: {json.dumps(refusals[0])[:300]}")

    def _count(self) -> int:
        """How many passages the index holds."""
        self._caller.call(f"/{self._name}/_refresh")
        return int(self._caller.call(f"/{self._name}/_count", method="GET")["count"])

    def _create(self, k1: float, b: float, made: dict[str, str]) -> int:
        """Creates the index, made of `made`, if there is none; returns how many passages it holds.

        Passages are sent in order, so all batches before the last one are complete.
        """
        language = made["language"]
        names = self._caller.call("/_cat/indices?format=json&h=index", method="GET")
        if self._name in {row["index"] for row in names}:
            read = self._caller.call(f"/{self._name}/_mapping", method="GET")[self._name]
            if read["mappings"].get("_meta") != made:
                raise UserError(
                    f"the index '{self._name}' of {self._caller.url} holds other passages; choose "
                    "another name, or delete it there"
                )
            return self._count()
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
                "_meta": made,
            },
        }
        self._caller.call(f"/{self._name}", json.dumps(shape).encode(), method="PUT")
        return 0

    def _strange(self, what: str, error: Exception) -> RolloutError:
        return RolloutError(
            f"{self._caller.url} does not answer {what} as OpenSearch does: {error!r:.100}"
        )

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
