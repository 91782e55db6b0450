"""Large files read lazily: byte offsets instead of rows, one line at a time, with limits.

Every reader of a line-based file (DDXPlus, mediQ, our own) goes through here, so that byte order
marks, Windows line ends, bad UTF-8 and absurdly long lines mean the same thing everywhere. What
cannot be read of one row is that row's error (see `workup.cases.rows`), and the next row follows.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from io import BufferedReader
from itertools import count
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from workup.core.case import Case, Source
from workup.core.errors import CaseError, UserError, nearest, unknown
from workup.core.lazy import Lazy
from workup.core.shapes import siblings
from workup.core.text import digest

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")

Split = int | str
"""Which cases are held out: those of a numbered split (a fifth), or those of a fold ("2/5")."""

ALL = "all"  # the view of a source that holds every case out
LINE_LIMIT = 1_000_000  # bytes in one line; a case is a few kilobytes
DOCUMENT_LIMIT = 64_000_000  # bytes in one JSON document that is read whole
_JSON = {
    list: "list",
    str: "text",
    int: "number",
    float: "number",
    bool: "truth value",
    type(None): "null",
}
BOM = b"\xef\xbb\xbf"
# First bytes of files that are not text, and what to do with such a file.
_NO_TEXT = {
    b"PK\x03\x04": "a zip archive; unpack it and give the file inside",
    b"\x1f\x8b": "a gzip archive; unpack it and give the file inside",
    b"PAR1": "a Parquet file; `python -c 'import json, pyarrow.parquet as p; "
    '[print(json.dumps(row, default=str)) for row in p.read_table("FILE").to_pylist()]\' '
    "> LINES.jsonl` makes lines of it",
    b"\xff\xfe": "UTF-16; save it as UTF-8",
    b"\xfe\xff": "UTF-16; save it as UTF-8",
}
_ARRAY = re.compile(r"\[\s*\{")
_DELIMITER = re.compile(r"[,;\t|]")
_LOOKED_AT = 20  # lines after the first in which a table has no JSON
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # how JSON writes one
# a string, or a number that is none in JSON
_ENDLESS = re.compile(r'"(?:[^"\\]++|\\.)*+"|(NaN|-?Infinity)', re.DOTALL)
_HELD_OUT_IN = 5  # one group in five is held out


@dataclass(frozen=True, slots=True)
class Line:
    """One non-blank line: its byte offset, its number from 1, its text without the line end."""

    offset: int
    number: int
    text: str


class Raw(NamedTuple):
    """One line of a CSV file with its end: its offset, its number (from 1), its text, its bytes.

    Bytes that are not UTF-8 are replaced in the text, and `error` says so.
    """

    offset: int
    number: int
    text: str
    length: int
    error: CaseError | None = None


def existing(place: str) -> Path:
    """The path that the user typed, `~` expanded.

    Raises UserError, with the nearest neighbour, if it does not exist.
    """
    if not place:
        raise UserError("a path is missing after the colon, as in 'jsonl:cases.jsonl'.")
    try:
        path = Path(place).expanduser()
        if path.exists():
            return path
        folder = path.parent
        names = [file.name for file in folder.iterdir()] if folder.is_dir() else []
    except (
        OSError,
        RuntimeError,
    ) as error:  # RuntimeError: a home that does not exist, as in ~nobody
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"'{place}' cannot be read ({reason}).") from error
    near = get_close_matches(path.name, names, n=1)
    missing = "" if folder.is_dir() else f" There is no folder {folder}."
    hint = f" Did you mean '{folder / near[0]}'?" if near else missing
    raise UserError(f"no file or folder '{place}'.{hint}")


def scan(path: Path, *, whole: bool = False) -> Iterator[Line]:
    """Every non-blank line of `path`, in order, holding one line at a time. Raises CaseError.

    With `whole` the blanks at its ends stay: of a table with tabs the first or last cell may be
    empty.
    """
    for line in lines_of(path, whole=whole):
        if isinstance(line, CaseError):
            raise line
        yield line


def cells(line: Line, path: Path, *, tabs: bool) -> list[str]:
    """The cells of a line of a table, with tabs or commas. Raises CaseError (file, line)."""
    if "\r" in line.text:
        problem = "a carriage return within a line; save the file with line ends of Unix."
        raise CaseError(problem, file=path, line=line.number)
    try:
        return line.text.split("\t") if tabs else next(csv.reader([line.text]))
    except csv.Error as error:
        problem = f"cannot be divided into cells ({error})."
        raise CaseError(problem, file=path, line=line.number) from error


def lines_of(path: Path, *, whole: bool = False) -> Iterator[Line | CaseError]:
    """As `scan`, but yields the error of a line that is too long or not UTF-8, and goes on."""
    with reading(path) as file:
        for raw in raw_lines(file.readline, path):
            if raw.error is not None:
                yield raw.error
            elif text := _plain(raw.text):
                yield Line(raw.offset, raw.number, raw.text.rstrip("\r\n") if whole else text)


def raw_lines(readline: Callable[[int], bytes], path: Path) -> Iterator[Raw]:
    """Every line of an open file; of one that is too long, the beginning. Raises OSError."""
    offset = 0
    for number in count(1):
        raw = readline(LINE_LIMIT + 1)
        if not raw:
            return
        start = len(BOM) if number == 1 and raw.startswith(BOM) else 0
        try:
            yield Raw(offset + start, number, text_of(raw[start:], path, number), len(raw))
        except CaseError as error:
            replaced = raw[start:].decode("utf-8", "replace")
            yield Raw(offset + start, number, replaced, len(raw), error)
        offset += len(raw)
        # to the end of a line that is too long
        while len(raw) > LINE_LIMIT and not raw.endswith(b"\n"):
            raw = readline(LINE_LIMIT + 1)
            offset += len(raw)


def json_lines(path: Path) -> Iterator[Line | CaseError]:
    """As `lines_of`, for a file with one JSON object per line.

    Raises CaseError for a file that as a whole is something else: a table (CSV), an array, objects
    spread over several lines. Each of its lines would be an error of its own.
    """
    with reading(path) as file:
        head = file.read(LINE_LIMIT).removeprefix(BOM).decode("utf-8", "replace").lstrip()
    if kind := _other_layout(head):
        raise CaseError(f"{kind} Here each line is one JSON object {{…}}.", file=path)
    yield from lines_of(path)


def _other_layout(head: str) -> str:
    """What a file that begins with `head` is instead of JSON lines; "" where it may be these."""
    first, _, rest = head.partition("\n")
    if "\0" in head:
        return "this is no text in UTF-8."
    if _ARRAY.match(head):
        return "this is a JSON array; `jq -c '.[]' FILE > LINES.jsonl` makes lines of it."
    if first.startswith("{"):
        try:
            _, end = json.JSONDecoder().raw_decode(head)
        except (ValueError, RecursionError):
            return ""
        spread = "\n" in head[:end]
        several = "a JSON object spread over several lines"
        return f"this is {several}; `jq -c . FILE > LINES.jsonl` makes one of it." if spread else ""
    lines = [first, *rest.split("\n", _LOOKED_AT)[:_LOOKED_AT]]
    table = _DELIMITER.search(first) and not any(line.startswith(("{", "[")) for line in lines)
    return "this is a table (CSV)." if table else ""


def line_at(path: Path, offset: int) -> str:
    """The text of the line that starts at byte `offset`, as `scan` gave it.

    Raises CaseError if the file has gone.
    """
    return _plain(text_of(bytes_at(path, offset), path, None))


def bytes_at(path: Path, offset: int, length: int = 0) -> bytes:
    """The bytes at `offset` of a file that was read before. Raises CaseError.

    A `length` of 0 reaches to the end of the line.
    """
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(length) if length else file.readline(LINE_LIMIT + 1)
    except OSError as error:
        raise _refused(path, error) from error


def _refused(path: Path, error: OSError) -> CaseError:
    return CaseError(f"cannot be read ({error.strerror or error}).", file=path)


@contextmanager
def reading(path: Path) -> Iterator[BufferedReader]:
    """The file's bytes, from the beginning.

    Raises CaseError where the system refuses a part of them, and for what is no file of text: a
    folder, a pipe (its bytes can be read once, and a case is read when it is asked for), an
    archive, UTF-16.
    """
    try:
        mode = path.stat().st_mode
        if not S_ISREG(mode):
            kind = "a folder" if S_ISDIR(mode) else "a pipe or a device; save it as a file"
            raise CaseError(f"is {kind}, and one file is needed.", file=path)
        with path.open("rb") as file:
            if found := next(
                (name for head, name in _NO_TEXT.items() if file.peek(4).startswith(head)), ""
            ):
                raise CaseError(f"this is {found}.", file=path)
            yield file
    except OSError as error:
        raise _refused(path, error) from error


def _plain(text: str) -> str:
    return text.removeprefix("\ufeff").strip("\r\n\t ")


def text_of(raw: bytes, path: Path, number: int | None) -> str:
    """The text of one line or record. Raises CaseError if it is too long, or not UTF-8."""
    if len(raw) > LINE_LIMIT:
        raise CaseError(f"this line is longer than {LINE_LIMIT:,} bytes.", file=path, line=number)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        problem = f"byte {error.start + 1} of this line is not UTF-8 (save the file as UTF-8)."
        raise CaseError(problem, file=path, line=number) from error


def parse_json(text: str, *, file: Path, line: int | None = None, unique: bool = False) -> Any:
    """The JSON value in `text`.

    Raises CaseError, also where it is nested too deeply for the parser, for NaN and Infinity, and
    where a text in it holds a lone surrogate: half of a character, which no file and no tokenizer
    can take. With `unique` also for a key that stands twice in an object, where JSON's readers take
    the last.
    """
    twice: list[str] = []

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            twice.extend(key for key, count in Counter(k for k, _ in pairs).items() if count > 1)
        return made

    def endless(name: str) -> float:
        at = next(found.start() for found in _ENDLESS.finditer(text) if found[1])
        raise json.JSONDecodeError(f"{name} is no number (write null)", text, at)

    try:
        value = json.loads(text, object_pairs_hook=once if unique else None, parse_constant=endless)
        halved = _halved(value) if _SURROGATE.search(text) else None
    except json.JSONDecodeError as error:
        where = line if line is not None else error.lineno
        problem = f"not JSON: {error.msg.removesuffix(' at')} at column {error.colno}."
        raise CaseError(problem, file=file, line=where) from error
    except (RecursionError, ValueError) as error:
        raise CaseError(
            f"not JSON that can be read here: {error}.", file=file, line=line
        ) from error
    if twice:
        problem = "stands twice in one object; which of the two holds?"
        raise CaseError(problem, file=file, line=line, field=twice[0])
    if halved is not None:
        problem = "holds half of a character (a lone surrogate, \\ud800 to \\udfff)."
        raise CaseError(problem, file=file, line=line, field=halved or None)
    return value


def _halved(value: object, field: str = "") -> str | None:
    """The first field below `value` whose name or text holds a lone surrogate, or None.

    "" means `value` itself.
    """
    if isinstance(value, str):
        return field if any("\ud800" <= letter <= "\udfff" for letter in value) else None
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for name, below in inner:
        if _halved(str(name)) is not None:
            return field
        if (found := _halved(below, f"{field}.{name}".removeprefix("."))) is not None:
            return found
    return None


def parse_object(
    text: str, *, file: Path, line: int | None, unique: bool = False
) -> dict[str, Any]:
    """The JSON object in one line. Raises CaseError for anything else, and as `parse_json`."""
    value = parse_json(text, file=file, line=line, unique=unique)
    if not isinstance(value, dict):
        raise CaseError(
            f"each line is one JSON object {{…}}, not a {_JSON[type(value)]}.", file=file, line=line
        )
    return value


def read_object(path: Path, *, unique: bool = False) -> dict[str, Any]:
    """The JSON object in a file that is read whole. Raises CaseError, and as `parse_json`."""
    with reading(path) as file:
        raw = file.read(DOCUMENT_LIMIT + 1)
    if len(raw) > DOCUMENT_LIMIT:
        raise CaseError(f"this file is larger than {DOCUMENT_LIMIT:,} bytes.", file=path)
    try:
        value = parse_json(raw.decode("utf-8-sig"), file=path, unique=unique)
    except UnicodeDecodeError as error:
        raise CaseError(f"byte {error.start + 1} is not UTF-8.", file=path) from error
    if not isinstance(value, dict):
        raise CaseError(
            f"the file is one JSON object {{…}}, not a {_JSON[type(value)]}.", file=path
        )
    return value


def checked(
    model: type[M], value: object, *, file: Path, line: int | None = None, within: str = ""
) -> M:
    """`value` as a pydantic model.

    Raises CaseError for the first field that does not fit; its `others` are the rest.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first, *others = (
            _invalid(detail, file, line, within, _field_hint(detail, model))
            for detail in error.errors(include_url=False)
        )
        first.others = tuple(others)
        raise first from error


def _field_hint(detail: ErrorDetails, model: type[BaseModel]) -> str:
    """What to write in place of an unknown field; "" for another mistake, or without advice."""
    if detail["type"] != "extra_forbidden":
        return ""
    where = [str(part) for part in detail["loc"]]
    known = [name.rpartition(".")[2] for name in siblings(model, where)]
    if near := nearest(where[-1], known):
        return f"did you mean '{near}'?"
    return "data of your own can stand in 'truth.extra'" if "truth" in model.model_fields else ""


def _invalid(
    detail: ErrorDetails, file: Path, line: int | None, within: str, hint: str
) -> CaseError:
    field = ".".join(filter(None, [within, *map(str, detail["loc"])]))
    got = "" if detail["type"] == "missing" else str(detail["input"])[:60]
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "extra_forbidden":
        message = "; ".join(filter(None, ["is no field", hint]))
    problem = f"{message[:1].lower()}{message[1:]}."
    return CaseError(problem, file=file, line=line, field=field or None, got=got)


def view_of(rest: str, scheme: str, views: Sequence[str]) -> tuple[str, str]:
    """Splits `PLACE#VIEW` of a source's spec; the view is "" where none is asked for.

    Raises UserError for a view that is not among `views`.
    """
    place, _, view = rest.partition("#")
    if view and view not in views:
        raise unknown(f"view of {scheme}", view, views, more=f"as in '{scheme}:{place}#{views[0]}'")
    return place, view


def words_of(rest: str, scheme: str, known: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Splits `PLACE#WORD,WORD` of a source's spec.

    Raises UserError for a word that is not among `known`.
    """
    place, _, behind = rest.partition("#")
    words = tuple(word.strip() for word in behind.split(",") if word.strip())
    for word in words:
        if word not in known:
            raise unknown(
                f"view of {scheme}", word, known, more=f"as in '{scheme}:{place}#{known[0]}'"
            )
    return place, words


def held_out(split: Split, key: str) -> bool:
    """Whether the group of cases named `key` is on the test side of `split`.

    Of a number one group in five is. It is a hash of number and key, so a key keeps its side when
    rows are added or moved. Two numbers hold out two independently drawn fifths, which may overlap.
    A fold holds out its own part: a hash of the key alone, so that the folds of n are disjoint and
    every group is in one of them.
    """
    number, _, of = str(split).partition("/")
    place = int.from_bytes(digest(f"{'folds' if of else split}\n{key}"))
    return place % int(of) == int(number) - 1 if of else place % _HELD_OUT_IN == 0


def numbered(split: Split, name: str) -> int:
    """`split` as a number. Raises UserError for a fold, which the source `name` has none of."""
    if isinstance(split, int):
        return split
    raise UserError(
        f"{name} is divided already (by its makers, or for a model of its cases), so there are no "
        "folds of it: leave folds=… out, or number the split, as in split=1"
    )


def evenly_spaced(cases: Sequence[T], most: int) -> Sequence[T]:
    """At most `most` of `cases`, evenly spaced, because a file may be sorted by diagnosis."""
    count = min(len(cases), most)
    return Lazy(count, lambda place: cases[place * len(cases) // count])


def with_ids(cases: Sequence[Case], ids: Container[str]) -> Iterator[Case]:
    """The cases of `cases` with one of `ids`, in order."""
    id_of: Callable[[int], str] = getattr(cases, "id_of", None) or (lambda index: cases[index].id)
    return (cases[index] for index in range(len(cases)) if id_of(index) in ids)


def every_case(source: Source) -> Source:
    """`source` with all its cases on the test side, as the view `#all` of a file has them."""
    train, test = source.train, source.test

    def case(index: int) -> Case:
        return train[index] if index < len(train) else test[index - len(train)]

    return replace(source, train=(), test=Lazy(len(train) + len(test), case))
