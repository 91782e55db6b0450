"""Corpora as streams of documents: JSON Lines, Parquet, plain text, PubMed's baseline XML.

One document is in memory at a time.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from xml.etree import ElementTree

from workup.core.case import Document
from workup.core.errors import UserError
from workup.core.extras import wanted
from workup.retrieval.words import plain

LARGEST = 64 * 2**20
"""Bytes that one document may have: what bounds the memory of a build."""

READ_AT_ONCE = 512
"""Rows of a Parquet file that are in memory at once."""


@dataclass(frozen=True, slots=True)
class Fields:
    """The names of the three parts of a document in JSON Lines and Parquet.

    The first name that a row has counts. `contents` with a quoted title in its first line, as
    Search-R1 writes it, is split.
    """

    id: tuple[str, ...] = ("id", "_id", "docid", "pmid")
    title: tuple[str, ...] = ("title",)
    text: tuple[str, ...] = ("text", "contents", "content")


Read = Callable[[Path, Fields], Iterator[tuple[Document, int]]]


def files(corpora: Sequence[Path]) -> list[Path]:
    """The files to read: those named, and in a named folder all of a known kind, by name.

    Raises UserError for others.
    """
    found: list[Path] = []
    for corpus in corpora:
        if not corpus.exists():
            raise UserError(
                f"no corpus {corpus}: name a file ({', '.join(READERS)}) or a folder of such files"
            )
        if corpus.is_dir():
            found += [
                path for path in sorted(corpus.rglob("*")) if path.is_file() and _reader(path)
            ]
        elif _reader(corpus):
            found.append(corpus)
        else:
            raise UserError(
                f"{corpus}: not a kind of corpus that we read; known are {', '.join(READERS)}"
            )
    if not found:
        raise UserError(
            f"{', '.join(map(str, corpora))}: no file that we read; known are {', '.join(READERS)}"
        )
    return found


def documents(file: Path, fields: Fields = Fields()) -> Iterator[tuple[Document, int]]:
    """A file's documents in order, each with the number of bytes read so far.

    The last one has all bytes. Documents with neither title nor text are included, because
    documents are counted. Raises UserError with file and line for what cannot be read.
    """
    reader = _reader(file)
    if reader is None:
        raise UserError(
            f"{file}: not a kind of corpus that we read; known are {', '.join(READERS)}"
        )
    try:
        for document, place in reader(file, fields):
            yield Document(plain(document.id), plain(document.title), plain(document.text)), place
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise UserError(f"{file}: cannot be read: {error}") from error


def _reader(file: Path) -> Read | None:
    return next(
        (reader for ending, reader in READERS.items() if file.name.lower().endswith(ending)), None
    )


def _open(file: Path, raw: IO[bytes]) -> IO[bytes]:
    return gzip.GzipFile(fileobj=raw) if file.suffix.lower() == ".gz" else raw  # type: ignore[return-value]


def _json_lines(file: Path, fields: Fields) -> Iterator[tuple[Document, int]]:
    with file.open("rb") as raw:
        lines, number = _open(file, raw), 0
        while line := lines.readline(LARGEST + 1):
            number += 1
            if len(line) > LARGEST:
                raise UserError(
                    f"{file}, line {number}: longer than {LARGEST // 2**20} MiB; split this "
                    "document"
                )
            if line.strip():
                yield _document(_row(line, file, number), fields, file, number), raw.tell()


def _row(line: bytes, file: Path, number: int) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}, line {number}: no JSON ({error})") from error
    if not isinstance(row, dict):
        raise UserError(
            f"{file}, line {number}: a {type(row).__name__}; write one object with id, title and "
            "text per line"
        )
    return row


def _document(row: Mapping[str, Any], fields: Fields, file: Path, number: int) -> Document:
    """The document of a row; `number` names a row without an id.

    It counts lines in JSON Lines and rows in Parquet, from 1.
    """
    title, text, identity = (
        _first(row, names, file, number) for names in (fields.title, fields.text, fields.id)
    )
    if text is None:
        raise _missing("text", fields.text, row, file, number)
    if number == 1 and fields.title != Fields().title and not any(n in row for n in fields.title):
        raise _missing("title", fields.title, row, file, number)
    if title is None:
        title, text = _quoted(text)
    return Document(identity or f"{file.stem}:{number}", title, text)


def _missing(
    what: str, names: Sequence[str], row: Mapping[str, Any], file: Path, number: int
) -> UserError:
    return UserError(
        f"{file}, line {number}: no field {' or '.join(names)}; it has "
        f"{', '.join(map(str, row))[:200]}; name the one that is meant: --{what}-field NAME"
    )


def _first(row: Mapping[str, Any], names: Sequence[str], file: Path, number: int) -> str | None:
    name = next((name for name in names if row.get(name) is not None), None)
    if name is None:
        return None
    if not isinstance(value := row[name], str | int | float):
        raise UserError(
            f"{file}, line {number}: its field {name} is a {type(value).__name__}; write one text"
        )
    return str(value)


def _quoted(contents: str) -> tuple[str, str]:
    first, _, rest = contents.partition("\n")
    is_title = len(first) > 1 and first[0] == first[-1] == '"'
    return (first[1:-1], rest) if is_title else ("", contents)


def _parquet(file: Path, fields: Fields) -> Iterator[tuple[Document, int]]:
    pa, pq = wanted("pyarrow"), wanted("pyarrow.parquet")
    size, number = file.stat().st_size, 0
    try:
        table = pq.ParquetFile(file)
        names = table.schema_arrow.names
        columns = [name for name in names if name in {*fields.id, *fields.title, *fields.text}]
        needed = [fields.text, *([fields.title] if fields.title != Fields().title else [])]
        if any(not {*meant} & {*columns} for meant in needed):
            columns = names  # the first row is refused, and the message names all that it has
        for batch in table.iter_batches(batch_size=READ_AT_ONCE, columns=columns):
            for row in batch.to_pylist():
                number += 1
                yield _document(row, fields, file, number), size * number // table.metadata.num_rows
    except pa.ArrowInvalid as error:
        raise UserError(f"{file}: no readable Parquet: {str(error).splitlines()[0]}") from error


def _text(file: Path, fields: Fields) -> Iterator[tuple[Document, int]]:
    """One document, called after its file; `fields` mean nothing here."""
    with file.open("rb") as raw:
        body = _open(file, raw).read(LARGEST + 1)
    if len(body) > LARGEST:
        raise UserError(f"{file}: longer than {LARGEST // 2**20} MiB; split it into several files")
    name = re.sub(r"\.txt(\.gz)?$", "", file.name, flags=re.IGNORECASE)
    yield Document(name, name.replace("_", " "), body.decode("utf-8-sig")), file.stat().st_size


def _pubmed(file: Path, fields: Fields) -> Iterator[tuple[Document, int]]:
    """The articles of one file of PubMed's baseline or its updates; deletions are skipped."""
    with file.open("rb") as raw:
        try:
            events = iter(ElementTree.iterparse(_open(file, raw), events=("start", "end")))
            _, root = next(events)
            if not root.tag.startswith("Pubmed"):
                raise UserError(
                    f"{file}: its <{root.tag[:80]}> holds no PubmedArticle, and of XML only "
                    "PubMed's own files are read; take its texts out as .txt or .jsonl"
                )
            for event, element in events:
                if event == "end" and element.tag == "PubmedArticle":
                    yield _article(element), raw.tell()
                    root.clear()
        # LookupError and ValueError: an encoding that Python does not know
        except (ElementTree.ParseError, LookupError, ValueError) as error:
            raise UserError(f"{file}: no well-formed XML: {error}") from error


def _article(element: ElementTree.Element) -> Document:
    sections: list[str] = []
    for section in element.iterfind("MedlineCitation/Article/Abstract/AbstractText"):
        # "METHODS: We …" in a structured abstract; marked-up words are part of the sentence.
        label, text = section.get("Label", ""), " ".join("".join(section.itertext()).split())
        sections.append(f"{label}: {text}" if label and text else text)
    title = element.find("MedlineCitation/Article/ArticleTitle")
    return Document(
        element.findtext("MedlineCitation/PMID", "").strip(),
        "" if title is None else "".join(title.itertext()).strip(),
        "\n".join(sections),
    )


READERS: Mapping[str, Read] = {
    ".jsonl": _json_lines,
    ".jsonl.gz": _json_lines,
    ".parquet": _parquet,
    ".txt": _text,
    ".txt.gz": _text,
    ".xml": _pubmed,
    ".xml.gz": _pubmed,
}
