"""Search over document collections: one file per backend, one port.

`open_retriever` turns a word into a Retriever: an index folder, the address of a server, or a
source that brings a library.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from workup.cases import brought
from workup.core.errors import UserError

__all__ = ["FORMS", "JOINED", "SERVERS", "brought", "finder", "local", "open_retriever"]

if TYPE_CHECKING:
    from workup.retrieval.batching import BatchedRetriever
    from workup.retrieval.fusion import Find
    from workup.retrieval.index import Index

FORMS = (
    "an index folder, http://HOST:PORT, clinic:SUBSET, qdrant:ADDRESS#COLLECTION or "
    "opensearch:ADDRESS#INDEX"
)
JOINED = " + "
SERVERS = ("http", "https", "qdrant", "opensearch")


def open_retriever(
    spec: str, *, kind: str = "", seed: int = 0, patient: bool = True
) -> BatchedRetriever:
    """The library that `spec` names, as `finder` has it, for searches that come one by one."""
    from workup.retrieval.batching import BatchedRetriever

    find = finder(spec, kind=kind, seed=seed, patient=patient)
    here = not any(_scheme(one) in SERVERS for one in spec.split(JOINED))
    return BatchedRetriever(find, library=spec, here=here)


def finder(spec: str, *, kind: str = "", seed: int = 0, patient: bool = True) -> Find:
    """The library that `spec` names (see FORMS); several joined by " + " are fused by rank.

    `kind` chooses among an index folder's ways to find ("bm25", "dense", "sparse", "hybrid");
    `seed` is that of a built-in library's documents. With `patient`, a server need not be up yet:
    searches wait for it. Without, a search at an http:// or OpenSearch address that cannot be
    reached is a UserError at once. Raises UserError for what does not exist.
    """
    from workup.retrieval.fusion import fused

    finds = [_find(one.strip(), kind, seed, patient) for one in spec.split(JOINED)]
    return finds[0] if len(finds) == 1 else fused(finds)


def _scheme(spec: str) -> str:
    return spec.strip().partition(":")[0]


def _find(spec: str, kind: str, seed: int, patient: bool) -> Find:
    scheme, rest = _scheme(spec), spec.partition(":")[2]
    if kind and scheme in SERVERS:
        raise _no_kinds(spec, kind)
    if scheme in ("http", "https"):
        from workup.retrieval.remote import Remote

        return Remote(spec, patient=patient).find
    if scheme == "qdrant":
        from workup.retrieval.qdrant import Qdrant

        return Qdrant.open(rest).find
    if scheme == "opensearch":
        from workup.retrieval.opensearch import OpenSearch

        return OpenSearch.open(rest, patient=patient).find
    return local(spec, kind=kind, seed=seed).find


def local(spec: str, *, kind: str = "", seed: int = 0) -> Index:
    """The index in a folder, or of the library that a source brings ("clinic:s").

    The latter is made in memory. Raises UserError.
    """
    from workup.retrieval.index import Index

    if (library := brought(spec)) is not None:
        if kind not in ("", "bm25"):
            raise _no_kinds(spec, kind)
        return Index.of(library.documents(seed))
    if not Path(spec).is_dir():
        raise UserError(f"no library '{spec}': name {FORMS}")
    return Index.open(Path(spec), kind)


def _no_kinds(spec: str, kind: str) -> UserError:
    return UserError(
        f"--kind {kind}: it chooses among the kinds of an index folder, and {spec} is none; leave "
        "it out"
    )
