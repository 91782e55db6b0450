"""The rows of a source that are no cases: left out and counted, each with its place and reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Annotated, TypeVar

from pydantic import AfterValidator

from workup.core.case import Case
from workup.core.errors import CaseError, UserError, printable
from workup.core.text import digest

R = TypeVar("R")
T = TypeVar("T")


def _filled(text: str) -> str:
    if not text.strip():
        raise ValueError("is blank")
    return text


Filled = Annotated[str, AfterValidator(_filled)]  # a text that is more than blanks

NAMED = 5  # rows that a note names; `workup cases SOURCE --validate` lists all


class RowErrors:
    """Keeps account of one source's rows while it is opened.

    A row that is no case is left out and counted. With `strict` its error is raised instead.
    `each` is called with every problem as it is found; a row may have several. `remarked` is called
    with what is odd about a row that is a case.
    """

    def __init__(
        self,
        *,
        strict: bool = False,
        each: Callable[[CaseError], None] = lambda error: None,
        remarked: Callable[[CaseError], None] = lambda remark: None,
    ) -> None:
        self.strict, self.each, self.remarked = strict, each, remarked
        self.rows = self.left_out = 0
        self.odd: dict[str, set[int]] = {}  # remark → the lines that the notes count
        self.first: list[CaseError] = []  # an error of each of the first rows left out
        self._ids: set[int] = set()  # digests of 64 bits

    def read(self, found: Iterable[R | CaseError], make: Callable[[R], T]) -> Iterator[tuple[R, T]]:
        """The results of `make` for every row; a row for which it raises CaseError is left out."""
        for row in found:
            self.rows += 1
            try:
                if isinstance(row, CaseError):
                    raise row
                made = make(row)
            except CaseError as error:
                self.add(error)
            else:
                yield row, made

    def add(self, error: CaseError) -> None:
        """Leaves a row out. Raises its error if rows are strictly read."""
        if self.strict:
            raise error
        self.left_out += 1
        if len(self.first) < NAMED:
            self.first.append(error)
        for problem in (error, *error.others):
            self.each(problem)

    def remark(
        self, problem: str, *, file: Path, line: int, field: str, noted: bool = True
    ) -> None:
        """Tells what is odd about a row that is a case; with `noted` the notes count it too."""
        if noted:
            self.odd.setdefault(problem, set()).add(line)
        self.remarked(CaseError(problem, file=file, line=line, field=field or None))

    def once(self, id: str, *, file: Path, line: int | None = None) -> None:
        """Raises CaseError if `id` is blank or was seen before; blanks around it are ignored."""
        plain = id.strip()
        if not plain:
            raise CaseError("is blank.", file=file, line=line, field="id")
        mark = int.from_bytes(digest(plain))
        if mark in self._ids:
            problem = "stands in an earlier row too; ids must be unique."
            raise CaseError(problem, file=file, line=line, field="id", got=plain[:60])
        self._ids.add(mark)

    def nothing(self, otherwise: UserError) -> UserError:
        """The error of a source without a case: what its first bad row lacks.

        It is `otherwise` if no row was left out.
        """
        if not self.first:
            return otherwise
        first = self.first[0]
        count = f" (None of {self.rows:,} rows is a case.)" if self.rows > 1 else ""
        return CaseError(first.problem + count, file=first.file, line=first.line, field=first.field)

    def notes(self, spec: str, *, listed: bool = True) -> tuple[str, ...]:
        """Notes on the source `spec`: a line for each remark, and one on the rows left out.

        It says how many there are, and why the first ones are left out. `listed` says that `workup
        cases` can list them all.
        """
        see = f" See `workup cases {quote(printable(spec))} --validate`." if listed else ""
        odd = [f"{len(lines):,} of {self.rows:,} rows: {p}{see}" for p, lines in self.odd.items()]
        if not self.left_out:
            return (*odd,)
        places: dict[tuple[str, str, str], list[int]] = {}  # file, field and problem → lines
        for error in self.first:
            place = (error.file, error.field or "", error.problem.removesuffix("."))
            places.setdefault(place, []).extend([] if error.line is None else [error.line])
        named = "; ".join(_described(*place, lines, spec) for place, lines in places.items())
        more = "; …" if self.left_out > len(self.first) else ""
        count = f"{self.left_out:,} of {self.rows:,} rows left out"
        return (*odd, f"{count}: {named}{more}.{see}")


def counted(counts: Mapping[str, int], texts: Mapping[str, str]) -> Iterator[str]:
    """The notes of `texts` whose count is not 0, with the count in the place of {}."""
    return (text.format(f"{counts[what]:,}") for what, text in texts.items() if counts[what])


def _described(file: str, field: str, problem: str, lines: Sequence[int], spec: str) -> str:
    """Places and their problem, without the path if `spec` has it."""
    places = (
        "" if file in spec else printable(Path(file).name),
        f"line{'s' if len(set(lines)) > 1 else ''} {', '.join(map(str, dict.fromkeys(lines)))}"
        if lines
        else "",
        f"field '{field}'" if field else "",
    )
    where = ", ".join(filter(None, places))
    return f"{where}: {problem}" if where else problem


def sound(case: Case, *, file: Path, line: int | None = None) -> Case:
    """The case itself.

    Raises CaseError if its id, presentation or diagnosis is blank, or no text that a file can hold.
    """
    texts = {"id": case.id, "presentation": case.presentation, "diagnosis": case.truth.diagnosis}
    for name, text in texts.items():
        if not text.strip():
            raise CaseError(f"a case needs its {name}, which is blank here.", file=file, line=line)
        # as in the name of a file that is not UTF-8
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise CaseError(
                f"the {name} of a case holds half of a character.", file=file, line=line
            )
    return case
