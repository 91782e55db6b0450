"""Dense retrieval in Qdrant, on a server or in its local mode, for corpora beyond one machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workup.core.case import Passage
from workup.core.errors import RolloutError, UserError
from workup.core.extras import wanted
from workup.retrieval.dense import Encoder

AT_ONCE = 256
"""Passages in one request."""

TIMEOUT = 30
"""Seconds that a call to a server may take."""


def connect(address: str) -> Any:
    """A client for http(s)://HOST:PORT, for a folder, or for ":memory:" (Qdrant's local mode).

    Raises UserError where no server answers within TIMEOUT, and for a folder that is in use or
    cannot be read.
    """
    client = wanted("qdrant_client").QdrantClient
    if address == ":memory:":
        return client(":memory:")
    if not address.startswith(("http://", "https://")):
        try:
            return client(path=address)
        except (RuntimeError, OSError, ValueError) as error:
            raise UserError(
                f"Qdrant's folder {address} cannot be opened: {_reason(error)}; one process at a "
                "time may open a folder, and a server takes many: qdrant:http://HOST:6333#NAME"
            ) from error
    try:
        # With a server that is away, the check of versions would only warn and continue.
        remote = client(url=address, timeout=TIMEOUT, check_compatibility=False)
        remote.get_collections()
    except Exception as error:  # the client raises its own errors and those of two transports
        place = re.sub("//.*@", "//…@", address)
        raise UserError(
            f"no Qdrant server answers at {place}: {_reason(error)}; start it, or type the address "
            "of one, as in qdrant:http://HOST:6333#NAME"
        ) from error
    return remote


def _reason(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


class Qdrant:
    """One collection.

    It knows the name of the encoder that made its vectors, and queries are encoded with that one.
    Raises UserError for a collection that does not exist, or does not name its encoder.
    """

    def __init__(self, client: Any, collection: str) -> None:
        self._client, self._collection = client, collection
        self._models = wanted("qdrant_client").models
        if not client.collection_exists(collection):
            raise UserError(
                f"Qdrant has no collection '{collection}'; `workup index push` makes one"
            )
        metadata = client.get_collection(collection).config.metadata or {}
        if "encoder" not in metadata:
            raise UserError(
                f"Qdrant's collection '{collection}' does not say which encoder made it; `workup "
                "index push` does"
            )
        self._encoder = Encoder(metadata["encoder"])

    @classmethod
    def open(cls, address: str) -> Qdrant:
        """The collection at `address`: URL#COLLECTION or FOLDER#COLLECTION."""
        return cls(*parts(address))

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """The `k` nearest passages for each query. Raises RolloutError when the server gives up."""
        asked = self._encoder.queries(queries).tolist()
        requests = [
            self._models.QueryRequest(query=vector, limit=k, with_payload=True) for vector in asked
        ]
        try:
            answers = self._client.query_batch_points(self._collection, requests)
        except Exception as error:  # the client raises its own errors and those of two transports
            raise RolloutError(f"Qdrant gave no answer: {_reason(error)}") from error
        return [
            [Passage(score=point.score, **point.payload) for point in answer.points]
            for answer in answers
        ]


def parts(address: str) -> tuple[Any, str]:
    """The client and the collection that an address names. Raises UserError."""
    place, _, collection = address.rpartition("#")
    if not place:
        raise UserError(
            f"qdrant:{address} lacks the name of a collection; type qdrant:http://HOST:6333#NAME"
        )
    return connect(place), collection


def push(
    client: Any,
    collection: str,
    passages: Callable[[int], Iterable[Passage]],
    vectors: NDArray[np.float16],
    encoder: str,
    progress: Callable[[int], None] = lambda done: None,
    corpus: str = "",
) -> int:
    """Sends the passages of `passages(start)`, from the first missing, with their `vectors`.

    Vectors are [passages, dimension]. Creates the collection if there is none. Returns how many it
    holds. `corpus` is the digest of the passages' file. Raises UserError for a collection of
    another corpus or encoder.
    """
    made = {"encoder": encoder, "corpus": corpus}
    models = wanted("qdrant_client").models
    if not client.collection_exists(collection):
        shape = models.VectorParams(
            size=vectors.shape[1], distance=models.Distance.COSINE, on_disk=True
        )
        client.create_collection(collection, vectors_config=shape, metadata=made)
    elif client.get_collection(collection).config.metadata != made:
        raise UserError(
            f"Qdrant's collection '{collection}' holds another index; choose another name, or "
            "delete it there"
        )
    done = int(client.count(collection, exact=True).count)
    for batch in _batches(passages(done)):
        payload = [
            {"id": passage.id, "title": passage.title, "text": passage.text} for passage in batch
        ]
        rows = range(done, done + len(batch))
        client.upload_collection(
            collection,
            np.asarray(vectors[rows.start : rows.stop], np.float32),
            payload,
            ids=rows,
            wait=True,
        )
        done = rows.stop
        progress(done)
    return done


def _batches(passages: Iterable[Passage]) -> Iterator[list[Passage]]:
    stream = iter(passages)
    while batch := list(islice(stream, AT_ONCE)):
        yield batch
