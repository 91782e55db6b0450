"""What all question sets share: official parts, the answer's shape, the split of a stem.

One source may have several files. A question set is a module that says how one record becomes cases
(`Read`), and declares the rest (`QuestionSet`).
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypedDict
from unicodedata import normalize

import numpy as np

from workup.cases.files import (
    ALL,
    M,
    Split,
    checked,
    existing,
    held_out,
    parse_object,
    words_of,
)
from workup.cases.pieces import Piece, piece_at, pieces
from workup.cases.rows import RowErrors, sound
from workup.core.case import MOST_OPTIONS, Case, Source, Truth
from workup.core.errors import CaseError, UserError
from workup.core.lazy import Lazy
from workup.core.leaks import WITHHELD
from workup.core.text import digest

SPLIT = "split"
PARTS = ("train", "dev", "test")
VIEWS = (ALL, SPLIT, *PARTS)
SHOWN = 4  # patterns of file names that an error lists
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_ROLES = {"training": "train", "val": "dev", "valid": "dev", "validation": "dev"} | {
    part: part for part in PARTS
}
_TESTED = "the same patient or text is tested on"
_AGAIN = "repeats an earlier one (the same id; the same text, where a set has no ids)"


class Answer(TypedDict):
    """`Truth.extra` of a question: the right answers one by one, for comparing sets (PM-16).

    `right` are their texts, in the order of the options. `letters` are their letters, and
    `alphabet` has the letter of each of `Case.options`; both are empty for open answers. Plain
    JSON, so that the case format keeps it.
    """

    right: list[str]
    letters: list[str]
    alphabet: list[str]


@dataclass(frozen=True, slots=True)
class File:
    """One file of a set and the official part that its name says, "" where it says none."""

    path: Path
    part: str = ""


@dataclass(frozen=True, slots=True)
class CaseRow:
    """One case of a record.

    Rows of one `group` stay on one side of a split; `part` overrules the file's.
    """

    case: Case
    group: str = ""
    part: str = ""
    masked: bool = False


@dataclass(frozen=True, slots=True)
class Dropped:
    """A record that is no case, and why.

    `meant` says that the set itself is so: answers that are not published, questions about images.
    Such records are counted by their reason. Any other dropped record is a row that is left out
    (`RowErrors`).
    """

    reason: str
    meant: bool = False


Rows = Sequence[CaseRow | Dropped | CaseError]
Read = Callable[[Piece, File], Rows]


@dataclass(frozen=True, slots=True)
class Spec:
    """A spec in its parts: the source's name, what to open, which view, and settings after `#`."""

    name: str
    place: str
    view: str
    settings: frozenset[str]
    split: Split


def asked(scheme: str, rest: str, split: Split, settings: Sequence[str] = ()) -> Spec:
    """Takes `PLACE#VIEW`, `PLACE#SETTING` or `PLACE#SETTING,VIEW` apart.

    Several parts may be tested on together, as in `PLACE#dev,test`. Raises UserError for what is
    not known.
    """
    place, words = words_of(rest, scheme, (*VIEWS, *settings))
    views = [word for word in words if word in VIEWS]
    several = len(views) > 1 and not set(views) <= set(PARTS)
    if several or len(set(words)) < len(words):
        raise UserError(
            f"'{scheme}:{rest}' asks for several views; one is possible, as in "
            f"'{scheme}:{place}#{views[0]}', or several parts, as in '{scheme}:{place}#dev,test'."
        )
    chosen = frozenset(word for word in words if word in settings)
    return Spec(f"{scheme}:{rest}", place, ",".join(views), chosen, split)


def files_of(path: Path, patterns: Sequence[str], roles: dict[str, str] | None) -> list[File]:
    """The files of a set: the one named, or the matching ones of a folder.

    Test before dev before train.
    A word of the file's name says its part (train, dev, val, test, and those of `roles`). In a
    folder with named parts, other files are left out: they hold the whole set once more. Raises
    UserError if there is none.
    """
    if not path.is_dir():
        return [File(path, _part(path, roles))]
    found = sorted({file for pattern in patterns for file in path.glob(pattern) if file.is_file()})
    if not found:
        some = f"{' or '.join(patterns[:SHOWN])}{' …' if len(patterns) > SHOWN else ''}"
        inside = sorted(folder.name for folder in path.iterdir() if folder.is_dir())
        near = f" Did you mean '{path / inside[0]}'?" if inside else ""
        raise UserError(f"{path} holds no file {some}.{near}")
    files = [File(file, _part(file, roles)) for file in found]
    named = [file for file in files if file.part] or files
    return sorted(named, key=lambda file: (-PARTS.index(file.part) if file.part else 0, file.path))


def _part(path: Path, roles: dict[str, str] | None) -> str:
    words = re.split(r"[^a-z]+", path.stem.lower())
    known = _ROLES | (roles or {})
    return next((known[word] for word in reversed(words) if word in known), "")


@dataclass
class _Index:
    """Where every case is, in arrays: a few bytes per case, however large the files are."""

    file: array[int] = field(default_factory=lambda: array("H"))
    offset: array[int] = field(default_factory=lambda: array("Q"))
    length: array[int] = field(default_factory=lambda: array("L"))
    which: array[int] = field(default_factory=lambda: array("H"))
    part: array[int] = field(default_factory=lambda: array("b"))
    held: array[int] = field(default_factory=lambda: array("b"))
    masked: array[int] = field(default_factory=lambda: array("b"))
    digest: array[int] = field(default_factory=lambda: array("Q"))
    group: array[int] = field(default_factory=lambda: array("Q"))
    text: array[int] = field(default_factory=lambda: array("Q"))
    dropped: Counter[str] = field(default_factory=Counter)

    def add(self, piece: Piece, number: int, part: str, rows: Rows, split: Split) -> None:
        for which, row in enumerate(rows):
            if not isinstance(row, CaseRow):
                self.dropped.update([row.reason] if isinstance(row, Dropped) and row.meant else [])
                continue
            own = row.part or part
            self.file.append(number)
            self.offset.append(piece.offset)
            self.length.append(piece.length)
            self.which.append(which)
            self.part.append(PARTS.index(own) if own else -1)
            group = row.group or row.case.id
            self.held.append(held_out(split, group))
            self.masked.append(row.masked)
            self.digest.append(int.from_bytes(digest(row.case.id)))
            self.group.append(int.from_bytes(digest(group)))
            said = f"{row.case.presentation}\n{row.case.question}"
            self.text.append(int.from_bytes(digest(said)))

    def sides(self, view: str) -> tuple[np.ndarray, np.ndarray]:
        """The entries to train on and those to test on, each id once.

        The first entry counts, so a test row is preferred to a training row. No group and no text
        is on both sides: of one that is tested on, nothing is trained on.
        """
        _, first = np.unique(np.frombuffer(self.digest, np.uint64), return_index=True)
        kept = np.sort(first)
        if again := len(self.digest) - len(kept):
            self.dropped[_AGAIN] = again
        part, held = (np.frombuffer(column, np.int8)[kept] for column in (self.part, self.held))
        train, test = _sides(view, part, held == 1)
        group, text = (np.frombuffer(column, np.uint64)[kept] for column in (self.group, self.text))
        tested = train & (np.isin(group, group[test]) | np.isin(text, text[test]))
        if tested.any():
            self.dropped[_TESTED] = int(tested.sum())
        return kept[train & ~tested], kept[test]

    @property
    def official(self) -> int | None:
        """The part that the authors hold out, test before dev; None if there is neither."""
        return _official(np.frombuffer(self.part, np.int8))


def _sides(view: str, part: np.ndarray, held: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which cases to train on and which to test on, as masks; see docs/datasets.md."""
    none = np.zeros(len(part), bool)
    if view == ALL:
        return none, ~none
    if parts := _parts(view):
        return none, np.isin(part, parts)
    official = _official(part)
    if view == SPLIT or official is None:
        return ~held, held
    return part == PARTS.index("train"), part == official


def _parts(view: str) -> list[int]:
    """The parts that a view names, as places in `PARTS`; none if it is no view of parts."""
    return [PARTS.index(word) for word in view.split(",") if word in PARTS]


def _official(part: np.ndarray) -> int | None:
    codes = (PARTS.index("test"), PARTS.index("dev"))
    return next((code for code in codes if (part == code).any()), None)


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """A question set as a declaration: called as a source's `open`, it opens `FOLDER` or `FILE`.

    A view may follow, as in `#VIEW`, and words of `settings`. `patterns` are the names of the set's
    files, and `roles` say which words of a name stand for an official part (`files_of`). Where a
    folder has the file `whole`, it alone is read. `read` makes cases of a record. `prepare` looks
    at the files before that; it returns what `read` takes as its first argument, and notes.
    Calling it raises UserError and CaseError (file, line, field).
    """

    name: str
    patterns: Sequence[str]
    read: Callable[..., Rows]  # (piece, file), or (what was prepared, piece, file)
    notes: Sequence[str]
    pieces: Callable[[Path], Iterator[Piece | CaseError]] = pieces
    roles: dict[str, str] | None = None
    whole: str = ""
    settings: Sequence[str] = ()
    prepare: Callable[[Spec, Sequence[File], RowErrors], tuple[Any, Sequence[str]]] | None = None

    def __call__(self, rest: str, split: Split, errors: RowErrors) -> Source:
        request = asked(self.name, rest, split, self.settings)
        place = existing(request.place)
        whole = self.whole and (place / self.whole).is_file()
        patterns = [self.whole] if whole else self.patterns
        files = files_of(place, patterns, self.roles)
        read, notes = self.read, self.notes
        if self.prepare is not None:
            known, found = self.prepare(request, files, errors)
            read, notes = partial(read, known), (*found, *notes)
        index = self._index(request.split, files, read, errors)
        train, test = index.sides(request.view)
        if not len(train) and not len(test):
            why = "; ".join(f"{text} ({count:,})" for text, count in index.dropped.most_common(2))
            lacks = _parts(request.view) and index.digest
            what = f"no {request.view} part" if lacks else "no usable question"
            problem = f"{request.place} has {what}{': ' + why if why else ''}."
            raise errors.nothing(UserError(problem))
        return Source(
            request.name,
            _cases(files, index, train, read),
            _cases(files, index, test, read),
            notes=(*_remarks(index, request, len(train) + len(test)), *notes),
            undivided=request.view != SPLIT and index.official is None,
        )

    def _index(self, split: Split, files: Sequence[File], read: Read, errors: RowErrors) -> _Index:
        """Where the cases of all records are; reads each record once."""
        index = _Index()
        for number, file in enumerate(files):
            for piece, rows in errors.read(self.pieces(file.path), partial(_checked, read, file)):
                errors.rows += len(rows) - 1
                for row in rows:
                    if isinstance(row, CaseError):
                        errors.add(row)
                index.add(piece, number, file.part, rows, split)
        return index


def _checked(read: Read, file: File, piece: Piece) -> Rows:
    """The cases of a record; a row of which no case can be made is an error with its place.

    Raises CaseError.
    """

    def check(row: CaseRow | Dropped | CaseError) -> CaseRow | Dropped | CaseError:
        if isinstance(row, Dropped) and not row.meant:
            return CaseError(f"{row.reason}.", file=file.path, line=piece.line)
        if isinstance(row, CaseRow):
            try:
                sound(row.case, file=file.path, line=piece.line)
            except CaseError as error:
                return error
        return row

    return [check(row) for row in read(piece, file)]


def _remarks(index: _Index, request: Spec, used: int) -> Iterator[str]:
    for reason, count in index.dropped.most_common():
        yield f"{count:,} dropped: {reason}."
    if masked := sum(index.masked):
        yield (
            f"{masked:,} named their diagnosis in the presentation; it is withheld there, as "
            f"{WITHHELD}."
        )
    present = [part for code, part in enumerate(PARTS) if code in set(index.part)]
    if present and request.view != SPLIT:
        rest = len(index.digest) - used - index.dropped[_AGAIN] - index.dropped[_TESTED]
        left = f"; {rest:,} in parts that are not used here" if rest else ""
        yield (
            f"Official parts: {', '.join(present)}{left}. `#PART` opens one for testing, "
            f"`#{SPLIT}` splits anew."
        )


def _cases(files: Sequence[File], index: _Index, entries: np.ndarray, read: Read) -> Lazy[Case]:
    def make(i: int) -> Case:
        entry = int(entries[i])
        file = files[index.file[entry]]
        rows = read(piece_at(file.path, index.offset[entry], index.length[entry]), file)
        row = rows[index.which[entry]] if index.which[entry] < len(rows) else None
        if not isinstance(row, CaseRow):
            raise CaseError("has changed since it was opened.", file=file.path)
        return row.case

    return Lazy(len(entries), make)


# making a case ------------------------------------------------------------------------------------


def parsed(model: type[M], piece: Piece, file: File) -> M:
    """The record as `model`. Raises CaseError (file, line, field)."""
    return checked(model, row_of(piece, file), file=file.path, line=piece.line)


def row_of(piece: Piece, file: File) -> dict[str, Any]:
    """The JSON object of a record. Raises CaseError."""
    return parse_object(piece.text, file=file.path, line=piece.line)


def content_id(*texts: str) -> str:
    """A stable id where a set has none: 16 hexadecimal digits of the texts' hash."""
    return digest("\n".join(texts)).hex()


def choice(options: dict[str, str], right: str) -> tuple[tuple[str, ...], Truth] | Dropped:
    """The options that have a text, and the truth for the letters in `right` ("D", "ABD", "A, B").

    The diagnosis is the right option's text, or the texts of all, in the options' order, joined by
    "; ".
    """
    shown = {letter: text.strip() for letter, text in options.items() if text.strip()}
    letters = set(re.sub(r"[\s,;、]+", "", normalize("NFKC", right).upper()))
    if not letters:
        return Dropped("it has no answer")
    if len(shown) < 2:
        return Dropped("fewer than two of its options have a text")
    if len(shown) > MOST_OPTIONS:
        return Dropped(f"it has more than {MOST_OPTIONS} options")
    if not letters <= set(shown):
        return Dropped("its answer is none of the options' letters")
    chosen = [letter for letter in shown if letter in letters]
    extra = Answer(right=[shown[letter] for letter in chosen], letters=chosen, alphabet=list(shown))
    return tuple(shown.values()), Truth("; ".join(extra["right"]), extra=extra)


def question(
    id: str, stem: str, options: dict[str, str], right: str, **rest: Any
) -> CaseRow | Dropped:
    """A multiple-choice question as a case.

    `rest` are further fields of `Case`; `references` are explanations of the answer.
    """
    if not stem.strip():
        return Dropped("it has no question")
    made = choice(options, right)
    if isinstance(made, Dropped):
        return made
    shown, truth = made
    presentation, asks = parted(stem)
    truth = replace(truth, references=tuple(filter(None, rest.pop("references", ()))))
    return CaseRow(Case(id, presentation, truth, asks, shown, **rest))


def open_answer(names: Sequence[str], **rest: Any) -> Truth:
    """The truth of an open question with one right name or more."""
    return Truth("; ".join(names), extra=Answer(right=list(names), letters=[], alphabet=[]), **rest)


# the question within a stem -----------------------------------------------------------------------

_ENDS = re.compile(
    r"""(?<=[.!?])["')\]]*\s+(?=["'(\[]?[A-Z0-9_])|(?<=[。！？])["”’）]*\s*(?=\S)|(?<!\n)\n++(?=\S)"""
)
_ABBREVIATION = re.compile(r"(?:^|[\s(])(?:[A-Z]|Drs?|Mrs?|Ms|St|vs|No|Fig|approx|e\.g|i\.e)\.\s*$")
_DESCRIPTION = (
    24  # characters from which what precedes a Chinese comma describes a patient, not a topic
)
_ASKS = re.compile(
    r"""[?？]["'”’)\]]*$|[^.!。！;；"”]$|[(（]\s*+[)）]|__|(?:是|为|包括|选用?)[。.]$|^请问|谢谢[您你]?[。！]?$"""
)


def parted(stem: str) -> tuple[str, str]:
    """A stem as (presentation, question): its last sentences, as far as they ask, are the question.

    A sentence asks if it ends with a question mark or without a full stop (to be completed), has a
    blank to fill in, or says please or thanks in Chinese. Where all of them ask, a Chinese one is
    parted at the last comma of the first, if a description stands before it. Otherwise there is
    nothing to part: the whole stem is the presentation, the question empty.
    """
    text = stem.strip()
    ends = (
        found
        for found in _ENDS.finditer(text)
        if not _ABBREVIATION.search(text, max(0, found.start() - 8), found.start())
    )
    starts = [0, *(found.end() for found in ends)]
    at = len(starts)
    while at and _ASKS.search(
        text[starts[at - 1] : starts[at] if at < len(starts) else None].rstrip()
    ):
        at -= 1
    if at == len(starts):
        return text, ""
    begin = starts[at] or text.rfind("，", 0, starts[1] if len(starts) > 1 else None) + 1
    if not starts[at] and begin <= _DESCRIPTION:
        return text, ""
    return text[:begin].rstrip().rstrip("，"), text[begin:]
