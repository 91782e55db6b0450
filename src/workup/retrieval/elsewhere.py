"""An index's passages sent to a search engine elsewhere."""

from __future__ import annotations

from pathlib import Path

from workup.core.errors import UserError
from workup.retrieval import dense, opensearch, qdrant, store
from workup.retrieval.index import IndexSettings, Progress, manifest


def push(folder: Path, target: str, progress: Progress = lambda stage, done, total: None) -> int:
    """Sends the passages of the index in `folder` to a Qdrant or OpenSearch server.

    `target` is "qdrant:ADDRESS#COLLECTION" or "opensearch:ADDRESS#INDEX". Passages from an
    interrupted call are not sent again. Returns how many are there now. Raises UserError for
    another target, for one that holds another index, and for Qdrant without a dense index to take
    the vectors from.
    """
    read = manifest(folder)
    settings: IndexSettings = read["settings"]
    scheme, _, address = target.partition(":")
    corpus = read["files"][store.LINES]["sha256"]

    def advance(done: int) -> None:
        progress("push", done, read["passages"])

    if scheme == "opensearch":
        return opensearch.OpenSearch.open(address).push(
            lambda start: store.stream(folder, start), settings.language, advance, corpus=corpus
        )
    if scheme != "qdrant":
        raise UserError(
            f"'{target}' is no target; type qdrant:ADDRESS#COLLECTION or opensearch:ADDRESS#INDEX"
        )
    if "dense" not in settings.kinds:
        raise UserError(
            f"{folder} has no dense index, whose vectors Qdrant needs; build one with --kind dense"
        )
    vectors = dense.vectors(folder / "dense", dense.Encoder(settings.encoder).dimension)
    client, collection = qdrant.parts(address)
    return qdrant.push(
        client,
        collection,
        lambda start: store.stream(folder, start),
        vectors,
        settings.encoder,
        advance,
        corpus,
    )
