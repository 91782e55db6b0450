"""A base of examinations: how often an examination is positive in a disease (RAGES, ES-9).

A base is a folder: one SQLite file, opened where it lies and read row by row, and a manifest that
is written last and has the file's checksum. `workup.environments.exams.exam_sources` reads what it
is built from. The pathology wing has a base in memory, made from its own tables.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from workup.cases.catalogue import built_in
from workup.cases.exam_terms import key, synonyms
from workup.core.disk import new_parents, there, whole_folder
from workup.core.errors import UserError
from workup.core.text import normalise
from workup.retrieval import manifest as manifests
from workup.retrieval.dense import Encoder

MANIFEST, TABLES, VECTORS = "exams.json", "exams.sqlite", "diseases.f16"
FORMAT = 1
CLINIC = "clinic"
"""The name of the pathology wing's own base."""

_SCHEMA = """
CREATE TABLE disease (id INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE disease_name (form TEXT PRIMARY KEY, disease INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE test (id INTEGER PRIMARY KEY, name TEXT NOT NULL, wordings TEXT NOT NULL);
CREATE TABLE test_name (key TEXT PRIMARY KEY, test INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE share (disease INTEGER, test INTEGER, share REAL, n INTEGER, reference TEXT,
                    PRIMARY KEY (disease, test)) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Statistic:
    """One statistic to build from: `share` of `n` patients with `disease` are positive in `test`.

    `share` is within [0, 1]; `n` is 0 where nobody says. The others are further names, and how a
    result is worded: each sentence of `positives` is equally likely.
    """

    disease: str
    test: str
    share: float
    n: int = 0
    reference: str = ""
    disease_names: tuple[str, ...] = ()
    test_names: tuple[str, ...] = ()
    positives: tuple[str, ...] = ()
    negative: str = ""


@dataclass(frozen=True, slots=True)
class Exam:
    """An examination of a base, and the sentences of its results; empty where it has none."""

    id: int
    name: str
    positives: tuple[str, ...]
    negative: str


@dataclass(frozen=True, slots=True)
class PositiveShare:
    """How often `test` is positive in a disease, from how many patients (0: not told), and where.

    `share` is within [0, 1].
    """

    test: str
    share: float
    n: int
    reference: str


class ExamBase:
    """Statistics of examinations by disease; look-ups take microseconds.

    `name` is where it comes from. Raises UserError for a file that is damaged, where it is read.
    """

    def __init__(
        self,
        name: str,
        tables: sqlite3.Connection,
        vectors: NDArray[np.float16] | None = None,
        encoder: str = "",
    ) -> None:
        self.name, self._tables, self._vectors, self._encoder = name, tables, vectors, encoder
        self.nearest = lru_cache(maxsize=1 << 14)(self._nearest)
        self.test = lru_cache(maxsize=1 << 14)(self._test)

    @classmethod
    def open(cls, place: str) -> ExamBase:
        """The base of a folder, or CLINIC.

        Compares the files' sizes with the manifest. Raises UserError.
        """
        if place == CLINIC:
            return clinic_base()
        folder = there(place) or Path(place)
        read = manifest(folder)
        manifests.opened(folder, "base", read["files"])
        vectors = None
        if read["encoder"]:
            flat = np.memmap(folder / VECTORS, "<f2", "r")
            vectors = flat.reshape(read["diseases"], -1)
        uri = f"file:{quote(str((folder / TABLES).resolve()))}?mode=ro&immutable=1"
        tables = sqlite3.connect(uri, uri=True, check_same_thread=False)
        return cls(str(folder), tables, vectors, read["encoder"])

    @classmethod
    def of(cls, name: str, rows: Iterable[Statistic]) -> ExamBase:
        """A base in memory. Raises ValueError where a disease and a test come twice."""
        tables = sqlite3.connect(":memory:", check_same_thread=False)
        writer = Writer(tables)
        for row in rows:
            if problem := writer.add(row):
                raise ValueError(problem)
        return cls(name, tables)

    @property
    def embedded(self) -> bool:
        """Whether the base was built with an encoder, so that the nearest disease can be found."""
        return self._vectors is not None

    def disease(self, names: Sequence[str]) -> str:
        """The disease that has one of `names`, the first that is known; "" if there is none."""
        for name in names:
            if row := self._one(
                "SELECT name FROM disease JOIN disease_name ON id = disease WHERE form = ?",
                normalise(name),
            ):
                return str(row[0])
        return ""

    def _nearest(self, name: str) -> tuple[str, float]:
        """The disease whose name is nearest to `name` by the encoder, and the cosine, in [−1, 1].

        Raises UserError for a base without embeddings.
        """
        if self._vectors is None:
            raise UserError(
                f"{self.name} was built without an encoder, so it finds diseases by their names "
                "alone: build it with --encoder MODEL, or set nearest=exact"
            )
        asked = _opened(self._encoder).documents([name])[0]
        scores = np.asarray(self._vectors, np.float32) @ asked
        best = int(np.argmax(scores))
        row = self._one("SELECT name FROM disease WHERE id = ?", best)
        return (str(row[0]) if row else ""), float(scores[best])

    def _test(self, named: str) -> Exam | None:
        """The examination of this `key`, or of a synonym's; None if the base has none."""
        for each in (named, *synonyms(named)):
            if row := self._one(
                "SELECT id, name, wordings FROM test JOIN test_name ON id = test WHERE key = ?",
                each,
            ):
                wordings = json.loads(row[2])
                return Exam(int(row[0]), str(row[1]), tuple(wordings[1:]), wordings[0])
        return None

    def share(self, disease: str, test: Exam) -> PositiveShare | None:
        """The statistic of a test in a disease (its name as `disease` gives it); None if none."""
        row = self._one(
            "SELECT share, n, reference FROM share JOIN disease_name USING (disease) "
            "WHERE form = ? AND test = ?",
            normalise(disease),
            test.id,
        )
        return PositiveShare(test.name, float(row[0]), int(row[1]), str(row[2])) if row else None

    def shares(self, disease: str) -> list[PositiveShare]:
        """All statistics of a disease, in the order of the tests."""
        query = (
            "SELECT test.name, share, n, reference FROM share JOIN disease_name USING (disease) "
            "JOIN test ON test.id = share.test WHERE form = ? ORDER BY test.id"
        )
        return [PositiveShare(*row) for row in self._all(query, normalise(disease))]

    @property
    def diseases(self) -> list[str]:
        """The names of its diseases, in the order in which they came."""
        return [str(name) for (name,) in self._all("SELECT name FROM disease ORDER BY id")]

    @property
    def disease_names(self) -> list[str]:
        """All names of its diseases in normal form, sorted."""
        return [str(form) for (form,) in self._all("SELECT form FROM disease_name ORDER BY form")]

    @property
    def tests(self) -> list[str]:
        """The names of its examinations, in the order in which they came."""
        return [str(name) for (name,) in self._all("SELECT name FROM test ORDER BY id")]

    def _one(self, query: str, *values: object) -> tuple[Any, ...] | None:
        return next(iter(self._all(query, *values)), None)

    def _all(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        try:
            return self._tables.execute(query, values).fetchall()
        except sqlite3.DatabaseError as error:
            raise UserError(
                f"{self.name}: damaged ({error}); `workup index check {self.name}` tells more"
            ) from error


class Writer:
    """Fills the tables of a base, row by row."""

    def __init__(self, tables: sqlite3.Connection) -> None:
        self._tables = tables
        tables.executescript(_SCHEMA)
        self.notes: list[str] = []  # names that two things claim
        self.count = 0  # rows that were added

    def add(self, row: Statistic) -> str:
        """Adds a statistic; returns why it cannot be added, or "".

        Counts of one disease and test from several references are pooled, where each tells its n.
        """
        disease = self._disease(row)
        test = self._test(row)
        before = self._tables.execute(
            "SELECT share, n, reference FROM share WHERE disease = ? AND test = ?", (disease, test)
        ).fetchone()
        share, n, reference = row.share, row.n, row.reference
        if before is not None:
            if not (before[1] and n):
                return (
                    f"'{row.test}' in '{row.disease}' stands in an earlier row too; shares are "
                    "pooled only where each row tells its n"
                )
            share = (before[0] * before[1] + share * n) / (before[1] + n)
            n += before[1]
            references = [text for text in (before[2], reference) if text]
            reference = "; ".join(dict.fromkeys(references))
        self._tables.execute(
            "INSERT OR REPLACE INTO share VALUES (?, ?, ?, ?, ?)",
            (disease, test, share, n, reference),
        )
        self.count += 1
        return ""

    def _disease(self, row: Statistic) -> int:
        names = (row.disease, *row.disease_names)
        forms = [form for form in dict.fromkeys(map(normalise, names)) if form]
        return self._thing("disease", "form", forms[:1], forms, row.disease, ())

    def _test(self, row: Statistic) -> int:
        keys = [each for each in dict.fromkeys(map(key, (row.test, *row.test_names))) if each]
        wordings = json.dumps([row.negative, *row.positives], ensure_ascii=False)
        return self._thing("test", "key", synonyms(keys[0]), keys, row.test, (wordings,))

    def _thing(
        self,
        table: str,
        column: str,
        own_forms: Sequence[str],
        forms: Sequence[str],
        name: str,
        more: tuple[str, ...],
    ) -> int:
        """The id of the disease or test that has one of `own_forms`; a new one, if none has.

        Of all `forms`, one that another disease or test has is left to it, and noted.
        """
        find = f"SELECT {table} FROM {table}_name WHERE {column} = ?"
        known = (self._tables.execute(find, (form,)).fetchone() for form in own_forms)
        own = next(filter(None, known), None)
        if own is None:
            count = self._tables.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            marks = ", ".join("?" * (2 + len(more)))
            self._tables.execute(f"INSERT INTO {table} VALUES ({marks})", (count, name, *more))
        id = count if own is None else int(own[0])
        for form in forms:
            other = self._tables.execute(find, (form,)).fetchone()
            if other is None:
                self._tables.execute(f"INSERT INTO {table}_name VALUES (?, ?)", (form, id))
            elif other[0] != id:
                self._note(table, form, int(other[0]), name)
        return id

    def _note(self, table: str, form: str, other: int, name: str) -> None:
        query = f"SELECT name FROM {table} WHERE id = ?"
        has = self._tables.execute(query, (other,)).fetchone()[0]
        note = f"'{form}' is a name of '{has}'; as a name of '{name}' it is left out"
        if note not in self.notes:
            self.notes.append(note)


@cache
def clinic_base() -> ExamBase:
    """The pathology wing's own statistics: exact, and worded as its records are."""
    known = built_in()
    wordings = {
        each.name: tuple(fact.text for fact in each.positives) for each in known.examinations
    }
    return ExamBase.of(
        CLINIC,
        (
            Statistic(
                entry.name,
                test.name,
                entry.shares[test.name],
                reference="the pathology wing's tables",
                disease_names=entry.names[1:],
                test_names=test.synonyms,
                positives=wordings[test.name],
                negative=test.negative,
            )
            for entry in known.entries
            if entry.shares
            for test in known.examinations
        ),
    )


@cache
def _opened(encoder: str) -> Encoder:
    return Encoder(encoder)


@contextmanager
def writing(
    out: Path, encoder: str, sources: Sequence[str]
) -> Iterator[tuple[Writer, Callable[[], dict[str, Any]]]]:
    """A writer of the base at `out`, and what finishes it: it returns the manifest.

    The folder appears whole when the block ends after that, or not at all. Raises UserError for an
    `out` that exists, and when the disk refuses.
    """
    if out.exists():
        raise UserError(f"{out} exists; choose another --out, or delete it")
    try:
        with new_parents(out), whole_folder(out) as draft:
            tables = sqlite3.connect(draft / TABLES)
            try:
                writer = Writer(tables)
                yield writer, lambda: _finish(draft, tables, encoder, sources)
            finally:
                tables.close()
    except (OSError, sqlite3.OperationalError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot write {out}: {reason}") from error


def _finish(
    draft: Path, tables: sqlite3.Connection, encoder: str, sources: Sequence[str]
) -> dict[str, Any]:
    tables.commit()
    names = [name for (name,) in tables.execute("SELECT name FROM disease ORDER BY id")]
    if encoder:
        _opened(encoder).documents(names).astype("<f2").tofile(draft / VECTORS)
    counts = {
        f"{table}s": tables.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        for table in ("disease", "test", "share")
    }
    tables.close()
    made = {
        "format": FORMAT,
        "encoder": encoder,
        "sources": list(sources),
        **counts,
        "files": manifests.entries(draft, sorted(path.name for path in draft.iterdir())),
    }
    (draft / MANIFEST).write_text(json.dumps(made, ensure_ascii=False, indent=1), encoding="utf-8")
    return made


def manifest(folder: Path) -> dict[str, Any]:
    """What a base says of itself. Raises UserError when there is none, or one we do not read."""
    path = folder / MANIFEST
    if not path.exists():
        raise UserError(
            f"{folder} is no base of examinations; `workup index build TABLE --kind exams --out "
            f"{folder}` makes one"
        )

    def sound(read: dict[str, Any]) -> dict[str, Any]:
        wanted = {TABLES, VECTORS} if read["encoder"] else {TABLES}
        if not isinstance(read["diseases"], int) or {*read["files"]} != wanted:
            raise ValueError("its list of files is not complete")
        return read

    return manifests.read(path, "base", FORMAT, sound)


def damages(folder: Path) -> list[str]:
    """What differs from the manifest, by file, in words; none when all checksums hold."""
    return manifests.damages(folder, manifest(folder)["files"])
