"""What a base of examinations is built from: tables of statistics, and cases with their results.

A table is CSV, TSV, JSON lines or a JSON array with the columns of `StatisticLine`, or a JSON
object with `markerDB` and `bayesDB`, the layout of the public table of immunohistochemistry. Rows
that do not fit are left out and reported with file and line.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field

from workup.cases import open_source
from workup.cases.exam_terms import common, key, positive, states_normal, without_name
from workup.cases.files import checked, existing, parse_object, read_object
from workup.cases.pieces import Piece, csv_cells, csv_pieces, pieces
from workup.cases.rows import RowErrors
from workup.core.case import Case, Kind, Source
from workup.core.disk import there
from workup.core.errors import CaseError, UserError, unknown
from workup.core.shapes import ClosedModel
from workup.core.text import normalise
from workup.environments.exams.exam_base import Statistic, Writer, writing

FEW = 10_000
"""More cases than this are counted only if their number is given."""

_TESTS = (Kind.LABORATORY, Kind.IMAGING, Kind.PROCEDURE)
_IHC = "bayesDB"
_SHOWN = 5  # notes of a kind that are told


def _listed(value: object) -> object:
    return [part.strip() for part in value.split("|")] if isinstance(value, str) else value


Short = Annotated[str, Field(max_length=300)]
Names = Annotated[list[Short], BeforeValidator(_listed), Field(max_length=50)]


class StatisticLine(ClosedModel):
    """One statistic. `share` is the share of positive results, or `positive` of `n` are.

    In CSV, a list has its parts separated by "|", and an empty cell is as no column.
    """

    disease: Short
    test: Short
    share: float | None = Field(None, ge=0, le=1)
    positive: int | None = Field(None, ge=0)
    n: int | None = Field(None, ge=1, le=10**9)
    reference: str = Field("", max_length=500)
    disease_names: Names = Field([])
    test_names: Names = Field([])
    positive_texts: Names = Field([])
    negative_text: str = Field("", max_length=300)

    def problem(self) -> tuple[str, str] | None:
        """What is wrong with the line as a whole, and in which field; None if nothing is."""
        if (self.share is None) == (self.positive is None):
            return "give either share, or positive and n.", "share"
        if self.positive is not None and (self.n is None or self.positive > self.n):
            return "positive needs n, and is at most n.", "positive"
        for field, name, form in (("disease", self.disease, normalise), ("test", self.test, key)):
            if not form(name):
                return "names nothing: it has no word, or the words of a method alone.", field
        return None

    def row(self) -> Statistic:
        share = self.share if self.share is not None else (self.positive or 0) / (self.n or 1)
        return Statistic(
            self.disease.strip(),
            self.test.strip(),
            share,
            self.n or 0,
            self.reference.strip(),
            tuple(self.disease_names),
            tuple(self.test_names),
            tuple(self.positive_texts),
            self.negative_text.strip(),
        )


@dataclass(frozen=True)
class Built:
    """What became of the sources: the base's manifest, and what a reader should know."""

    manifest: Mapping[str, Any]
    notes: Sequence[str]


def build(
    sources: Sequence[str],
    out: Path,
    *,
    encoder: str = "",
    limit: int | None = None,
    strict: bool = False,
) -> Built:
    """Writes the base of `sources` to the new folder `out`, which appears whole or not at all.

    A source is a file of statistics, or cases as `SCHEME:REST`, of which at most `limit` are
    counted. With an `encoder` (a sentence-transformers model) the nearest disease can be found by
    meaning. With `strict` a bad row is an error. Raises UserError and CaseError.
    """
    notes: list[str] = []
    with writing(out, encoder, sources) as (writer, finish):
        for source in sources:
            notes += _add(writer, source, limit, strict)
        if not writer.count:
            raise UserError(f"{', '.join(sources)}: no statistic to build from")
        notes += writer.notes[:_SHOWN]
        if (more := len(writer.notes) - _SHOWN) > 0:
            notes.append(f"and {more:,} more names that others have")
        return Built(finish(), notes)


def _add(writer: Writer, source: str, limit: int | None, strict: bool) -> list[str]:
    colon = ":" in source
    if colon and not there(source):
        opened = open_source(source, strict=strict)
        if opened.restricted:
            raise UserError(
                f"{source} is restricted: a statistic of few patients can tell about one of them; "
                "count them yourself, and build from the table"
            )
        counted = Counted.of(opened, limit)
        for row in counted.rows():
            writer.add(row)
        return [*opened.notes, *counted.notes]

    def write(placed: PlacedStatistic) -> None:
        if problem := writer.add(placed.row):
            raise CaseError(f"{problem}.", file=placed.file, line=placed.line)

    errors = RowErrors(strict=strict)
    for _ in errors.read(lines(existing(source)), write):
        pass
    return [*_left_out(source, errors)]


@dataclass(frozen=True)
class PlacedStatistic:
    """A statistic and where it stands."""

    row: Statistic
    file: Path
    line: int | None


def _left_out(source: str, errors: RowErrors) -> Iterator[str]:
    if errors.left_out:
        yield f"{source}: {errors.left_out:,} of {errors.rows:,} rows were left out"
        yield from (f"left out: {error}" for error in errors.first)


def lines(path: Path) -> Iterator[PlacedStatistic | CaseError]:
    """The statistics of a file; a row that is none comes as its error. Raises CaseError."""
    if path.suffix == ".json":
        with path.open("rb") as file:
            an_object = file.read(100).lstrip().startswith(b"{")
        if an_object and _IHC in read_object(path):
            yield from _ihc(path)
            return
    read = _table(path) if path.suffix in (".csv", ".tsv") else _objects(path)
    for value, line in read:
        try:
            if isinstance(value, CaseError):
                raise value
            made = checked(StatisticLine, value, file=path, line=line)
            if wrong := made.problem():
                raise CaseError(wrong[0], file=path, line=line, field=wrong[1])
            yield PlacedStatistic(made.row(), path, line)
        except CaseError as error:
            yield error


def _objects(path: Path) -> Iterator[tuple[dict[str, Any] | CaseError, int | None]]:
    for piece in pieces(path):
        if isinstance(piece, CaseError):
            yield piece, piece.line
            continue
        try:
            yield parse_object(piece.text, file=path, line=piece.line), piece.line
        except CaseError as error:
            yield error, piece.line


def _table(path: Path) -> Iterator[tuple[dict[str, str] | CaseError, int | None]]:
    columns: list[str] = []
    for piece in _separated(path):
        if isinstance(piece, CaseError):
            yield piece, piece.line
            continue
        cells, line = piece
        if not columns:
            columns = _columns(cells, path)
        elif len(cells) != len(columns):
            problem = f"has {len(cells)} cells, and the first line names {len(columns)} columns."
            yield CaseError(problem, file=path, line=line), line
        else:
            yield {name: cell for name, cell in zip(columns, cells, strict=True) if cell}, line


def _separated(path: Path) -> Iterator[tuple[list[str], int | None] | CaseError]:
    for piece in csv_pieces(path):
        if isinstance(piece, Piece):
            text = piece.text.removeprefix("\ufeff")
            cells = text.rstrip("\r\n").split("\t") if path.suffix == ".tsv" else csv_cells(text)
            yield [cell.strip() for cell in cells], piece.line
        else:
            yield piece


def _columns(cells: Sequence[str], path: Path) -> list[str]:
    columns = [cell.lower() for cell in cells]
    for column in columns:
        if column not in StatisticLine.model_fields:
            hint = f"in {path}, line 1"
            raise unknown("column", column, StatisticLine.model_fields, more=hint)
    if missing := [name for name in ("disease", "test") if name not in columns]:
        raise CaseError(f"there is no column '{missing[0]}'.", file=path, line=1)
    if len({*columns}) < len(columns):
        raise CaseError("two columns have the same name.", file=path, line=1)
    return columns


# --- the public table of immunohistochemistry ---


class _Marker(BaseModel):
    display: Short
    aliases: list[Short] = []


class _Rates(BaseModel):
    s: float = Field(ge=0, le=1)


class _Tumour(BaseModel):
    name: Short
    markers: dict[str, _Rates]


def _ihc(path: Path) -> Iterator[PlacedStatistic | CaseError]:
    """The statistics of the public table: a marker's sensitivity `s` is its share of positives."""
    document = read_object(path)
    tumours, listed = document[_IHC], document.get("markerDB", {})
    if not isinstance(tumours, list) or not isinstance(listed, dict):
        raise CaseError(f"markerDB is no object, or {_IHC} no list.", file=path)
    for place, value in enumerate(tumours):
        try:
            tumour = checked(_Tumour, value, file=path, within=f"{_IHC}.{place}")
            for code, found in tumour.markers.items():
                marker = checked(
                    _Marker, listed.get(code, {"display": code}), file=path, within=code
                )
                yield PlacedStatistic(_ihc_row(tumour.name, code, marker, found.s), path, None)
        except CaseError as error:
            yield error


def _ihc_row(tumour: str, code: str, marker: _Marker, share: float) -> Statistic:
    names = (code, marker.display, *marker.aliases)
    own = next((name for each in names if (name := common(key(each)))), marker.display)
    english = _english().get(normalise(tumour), tumour)
    return Statistic(
        english,
        own,
        share,
        reference="table of immunohistochemistry",
        disease_names=(tumour,),
        test_names=names,
    )


@cache
def _english() -> Mapping[str, str]:
    with Path(__file__).with_name("ihc_names.csv").open(encoding="utf-8", newline="") as file:
        return {normalise(row["name"]): row["english"] for row in csv.DictReader(file)}


# --- cases with results ---


class Counted:
    """Positive and all results by diagnosis and examination, counted over cases."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.cases = self.unread = 0
        self._counts: dict[tuple[str, str], list[int]] = {}
        self._names: dict[str, tuple[str, ...]] = {}

    @classmethod
    def of(cls, source: Source, limit: int | None = None) -> Counted:
        """Counts the training cases, or the test cases where there are no others.

        Raises UserError for many cases without a limit.
        """
        cases = source.train if len(source.train) else source.test
        if limit is None and len(cases) > FEW:
            raise UserError(
                f"{source.name} has {len(cases):,} cases: say how many to count, as in --limit "
                f"{FEW}"
            )
        counted = cls(source.name)
        for case in islice(cases, limit):
            counted.add(case, source)
        return counted

    def add(self, case: Case, source: Source) -> None:
        """Counts what a case's record tells.

        The words of a result decide. Where they do not say, a finding is positive if the source's
        records are complete, so that a listed item without a finding is normal. Such an item is
        negative there, and where the record states its normal answer.
        """
        self.cases += 1
        self._names[case.truth.diagnosis] = case.truth.aliases
        closed = source.knowledge is not None
        items = {item.name for item in source.items}
        seen = set()
        for fact in case.truth.facts:
            if fact.kind not in _TESTS or not key(fact.item):
                continue
            says = positive(without_name(fact.text, (fact.item,)))
            if says is None and closed and fact.item in items:
                says = True
            if says is None:
                self.unread += 1
            elif (fact.item, says) not in seen:
                seen.add((fact.item, says))
                self._count(case, fact.item, says)
        reported = {fact.item for fact in case.all_facts}
        for item in source.items:
            normal = closed or states_normal(case, item)
            if item.kind in _TESTS and item.name not in reported and normal:
                self._count(case, item.name, False)

    def _count(self, case: Case, test: str, says: bool) -> None:
        counts = self._counts.setdefault((case.truth.diagnosis, test), [0, 0])
        counts[0] += says
        counts[1] += 1

    def rows(self) -> Iterator[Statistic]:
        """The counts as statistics."""
        for (disease, test), (hits, n) in self._counts.items():
            names = self._names[disease]
            yield Statistic(disease, test, hits / n, n, self.name, disease_names=names)

    @property
    def notes(self) -> list[str]:
        """What the counts leave out."""
        unread = f"{self.unread:,} results are neither positive nor negative by their words"
        told = [f"{self.name}: {self.cases:,} cases counted"]
        return [*told, *([f"{self.name}: {unread}, and were left out"] if self.unread else [])]
