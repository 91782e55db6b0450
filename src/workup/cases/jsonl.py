"""Workup's own case format: one case per line, by `case.schema.json` (see docs/cases.md).

Beside `NAME.jsonl` there may be a `NAME.source.json` with what holds for all cases: the items that
can be asked for, and the closed list of diagnoses. Without it, what the facts are called is found
as free text, and answers are open.

Patients of one publication (`truth.extra.publications`) are on one side of the split, and so are
equal ones, and several questions about one presentation.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    TypeAdapter,
    ValidationInfo,
    field_validator,
    model_validator,
)

from workup.cases.files import (
    LINE_LIMIT,
    Line,
    Split,
    checked,
    lines_of,
    parse_object,
    read_object,
)
from workup.cases.lines import CaseLines
from workup.cases.publications import Groups, publications
from workup.cases.questions import Answer
from workup.cases.rows import Filled, RowErrors
from workup.core.case import LONGEST_ENTITY, MOST_OPTIONS, MOST_STATEMENTS, Case, Item, Kind, Source
from workup.core.disk import whole_file
from workup.core.errors import CaseError, UserError
from workup.core.leaks import Mask
from workup.core.text import digest, normalise

EXAMPLE = "jsonl:cases.jsonl"
FIELDS = ("presentation diagnosis",)

# The pattern says "not blank" in the JSON Schema only. `Filled` makes the check: a pattern's
# error message would not be readable.
_PATTERN: dict[str, JsonValue] = {"pattern": r"\S"}
Name = Annotated[Filled, Field(min_length=1, json_schema_extra=_PATTERN)]
# What is compared by its letters loses blanks at its ends: "Flu " would be another disease.
Trimmed = Annotated[str, AfterValidator(str.strip)]
Term = Annotated[Name, AfterValidator(str.strip)]
Entity = Annotated[Name, Field(max_length=LONGEST_ENTITY)]
_CASES = TypeAdapter(Case)  # the fields of a line are those of a case
DEEPEST = 100  # levels of what a case holds for somebody else
_PHRASES = 5_000  # a file with more distinct findings than this is free text to a tiny policy
_OPENING = 60  # characters from which an opening that comes again is that of one patient


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


def _shallow(value: Any) -> Any:
    """The value. Raises ValueError where it is nested too deep for a writer."""
    level, inner = 0, [value] if isinstance(value, dict | list) else []
    while inner:
        if level == DEEPEST:
            raise ValueError(f"it is nested deeper than {DEEPEST} levels")
        boxes = (each.values() if isinstance(each, dict) else each for each in inner)
        inner = [each for box in boxes for each in box if isinstance(each, dict | list)]
        level += 1
    return value


Shallow = Annotated[JsonValue, BeforeValidator(_shallow)]


class FactLine(_Strict):
    """One finding. An empty `item` is free text: nobody can ask for it by name."""

    id: Term
    text: Name
    item: Trimmed = ""
    kind: Annotated[Kind, Field(strict=False)] = Kind.HISTORY
    weight: Annotated[int, Field(ge=0, le=3)] | None = None


class StatementLine(_Strict):
    """One triple of a reference; `retrieved` if it came from a search."""

    head: Entity
    relation: Entity
    tail: Entity
    retrieved: bool = False


class TruthLine(_Strict):
    """What the policy may not see. `graphs` are those of `references`, one for each, or none."""

    diagnosis: Term
    codes: list[Trimmed] = []
    aliases: list[Trimmed] = []
    differentials: list[Trimmed] = []
    facts: list[FactLine] = []
    record: str = ""
    references: list[str] = []
    graphs: list[Annotated[list[StatementLine], Field(max_length=MOST_STATEMENTS)]] = []
    extra: Shallow = None

    @field_validator("graphs")
    @classmethod
    def _of_each_reference(
        cls, graphs: list[list[StatementLine]], info: ValidationInfo
    ) -> list[list[StatementLine]]:
        references = info.data.get("references")
        if graphs and references is not None and len(graphs) != len(references):
            raise ValueError(
                f"there must be one graph for each reference: {len(references)} references, "
                f"{len(graphs)} graphs"
            )
        return graphs


class ProvenanceLine(_Strict):
    """One step of preparation of a case: what was done, by which model and prompt, on which day.

    `detail` is what else the step found out, for example the grades of its draws.
    """

    step: Name
    model: Name
    version: Name
    date: Name
    detail: Shallow = None


class CaseLine(_Strict):
    """One case.

    `given` are the findings that the presentation already states; ids are unique within the case.

    `restricted` text may be sent to trusted endpoints only.
    """

    id: Term
    presentation: Name
    truth: TruthLine
    question: str = ""
    options: list[Trimmed] = Field(default=[], max_length=MOST_OPTIONS)
    given: list[FactLine] = []
    category: str = ""
    provenance: list[ProvenanceLine] = []
    restricted: bool = False

    @model_validator(mode="after")
    def _distinct(self) -> CaseLine:
        ids = Counter(fact.id for fact in (*self.given, *self.truth.facts))
        if ids and (most := ids.most_common(1)[0])[1] > 1:
            raise ValueError(f"two facts have the id '{most[0]}'")
        return self


class ItemLine(_Strict):
    """Something that can be asked; `question` is its name unless given.

    `synonyms` are further names by which people ask for it; `sex` is the only one that can have it.
    """

    name: Term
    normal: Name
    question: str = ""
    kind: Annotated[Kind, Field(strict=False)] = Kind.HISTORY
    parent: Trimmed | None = None
    cost: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    synonyms: Annotated[list[Term], Field(max_length=500)] = []
    sex: Literal["", "female", "male"] = ""


class _Sidecar(_Strict):
    items: list[ItemLine]
    diagnoses: list[Term] = []


def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of one line; `case.schema.json` is this."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Workup case"}
    return {
        **head,
        **{key: value for key, value in CaseLine.model_json_schema().items() if key != "title"},
    }


def open(rest: str, split: Split, errors: RowErrors) -> Source:
    """Opens `FILE` or `FILE#all`. Raises UserError, and CaseError where no line is a case."""
    file = CaseLines.named("jsonl", rest, split, "cases.jsonl")
    path, seen, together = file.path, _Seen(), _Together(file)
    sidecar = _read_sidecar(path)
    listed = _SidecarNames(sidecar, sidecar_of(path).name)

    def read(row: dict[str, Any], line: int) -> CaseLine:
        seen.restricted |= row.get("restricted") is True  # even where the line is no case
        case = checked(CaseLine, row, file=path, line=line)
        errors.once(case.id, file=path, line=line)
        faults = (*listed.lacking(case), *_unfit_options(case))
        if faults:
            first, *others = (CaseError(what, file=path, line=line, field=f) for f, what in faults)
            first.others = tuple(others)
            raise first
        return case

    for line, case in file.read(errors, read, unique=True):
        again = together.keep(line, case)
        seen.add(case)
        if not case.truth.facts and not case.question:
            silent = "there is no hidden finding, so nothing to ask for."
            field = "truth.facts"
            errors.remark(silent, file=path, line=line.number, field=field, noted=False)
        for field, problem in (*seen.odd(case), *listed.unlisted(case), *again):
            errors.remark(problem, file=path, line=line.number, field=field)
    together.divide()
    if not len(file):
        raise errors.nothing(CaseError("holds no case.", file=path))
    return _source(f"jsonl:{rest}", file, seen, sidecar)


@lru_cache(maxsize=1 << 10)  # many cases have the same few diagnoses
def _named(*names: str) -> Callable[[str], bool]:
    """Whether a text has one of these names, as whole words."""
    mask = Mask(names, family=False)

    def found(text: str) -> bool:
        before = mask.found
        mask(text)
        return mask.found > before

    return found


class _Seen:
    """What the facts of a whole file name, gathered line by line."""

    def __init__(self) -> None:
        self.items: dict[str, Kind] = {}
        self.texts: dict[str, None] = {}
        self.restricted = False

    def odd(self, case: CaseLine) -> Iterator[tuple[str, str]]:
        """Field and remark, where a case tells its diagnosis or has an option twice."""
        truth = case.truth
        named = _named(truth.diagnosis, *truth.aliases)
        if len(set(case.options)) < len(case.options):  # as in published sets
            yield "options", "two options are the same."
        if named(case.presentation):
            yield "presentation", "it names the diagnosis."
        for field, facts in (("given", case.given), ("truth.facts", truth.facts)):
            for place, fact in enumerate(facts):
                if named(f"{fact.item}\n{fact.text}"):
                    yield f"{field}.{place}", "it names the diagnosis."

    def add(self, case: CaseLine) -> None:
        for fact in (*case.given, *case.truth.facts):
            if fact.item:
                self.items.setdefault(fact.item, fact.kind)
            if len(self.texts) <= _PHRASES:
                self.texts[fact.text] = None


class _Together:
    """Keeps cases so that equal ones and those of one publication are on one side of the split."""

    def __init__(self, file: CaseLines) -> None:
        self._file, self._first = file, dict[bytes, str]()  # digest of a patient → its first id
        self._groups, self._published = Groups(), list[tuple[Line, str]]()

    def keep(self, line: Line, case: CaseLine) -> Sequence[tuple[str, str]]:
        """The line is this case. Field and remark where it is an earlier one once more."""
        patient = case.model_dump_json(exclude={"id", "provenance"})
        first = self._first.setdefault(digest(patient), case.id)
        # Of several questions about one patient the opening is the same.
        own = first
        if case.question and len(case.presentation) >= _OPENING:
            own = self._first.setdefault(digest(f"opening {case.presentation}"), first)
        if case.truth.extra and (named := publications(_case(case))):
            self._groups.join(named)
            self._published.append((replace(line, text=""), min(named)))
        else:
            self._file.keep(line, own)
        again = "", "the same patient stands in an earlier row, under another id."
        return [again] if first != case.id else []

    def divide(self) -> None:
        """Keeps what has publications: which of these belong together is known at the end."""
        for line, own in self._published:
            self._file.keep(line, self._groups.of(own))


class _SidecarNames:
    """What the cases of a file may name, where its sidecar lists it."""

    def __init__(self, sidecar: _Sidecar | None, beside: str) -> None:
        items = sidecar.items if sidecar else []
        self._beside, self._items = beside, frozenset(item.name for item in items)
        self._diagnoses = frozenset(sidecar.diagnoses if sidecar else ())
        # names in the form in which requests are compared → the name that is listed
        self._called = {normalise(s): item.name for item in items for s in item.synonyms}
        self._called |= {normalise(item.name): item.name for item in items}
        self._named = {normalise(name): name for name in self._diagnoses}

    def lacking(self, case: CaseLine) -> Iterator[tuple[str, str]]:
        """Field and problem, where a case names what is listed under another name or not at all.

        An item that is not listed is none: it is found as free text (see `unlisted`). Under another
        name it could not be found, since a request means the listed item.
        """
        truth = case.truth
        if self._diagnoses and truth.diagnosis not in self._diagnoses:
            near = self._named.get(normalise(truth.diagnosis), "")
            meant = f" Did you mean '{near}'?" if near else ""
            what = f"'{truth.diagnosis}' is not among the diagnoses of {self._beside}.{meant}"
            yield "truth.diagnosis", what
        for field, facts in (("given", case.given), ("truth.facts", truth.facts)):
            for place, fact in enumerate(facts):
                near = self._called.get(normalise(fact.item), "") if fact.item else ""
                if near and fact.item not in self._items:
                    what = f"{self._beside} has no item '{fact.item}'. Did you mean '{near}'?"
                    yield f"{field}.{place}.item", what

    def unlisted(self, case: CaseLine) -> Iterator[tuple[str, str]]:
        """Field and remark, where the item of a hidden finding is not listed."""
        for place, fact in enumerate(case.truth.facts):
            if self._items and fact.item and fact.item not in self._items:
                what = f"{self._beside} does not list its item: it is found as free text alone."
                yield f"truth.facts.{place}.item", what


def _unfit_options(case: CaseLine) -> Iterator[tuple[str, str]]:
    """Field and problem, where an option is blank, or the truth is none of them."""
    if not case.options:
        return
    if "" in case.options:
        yield "options", "an option is blank."
    extra, name = case.truth.extra, case.truth.diagnosis
    # What the question sets write; another `right` of a user's is none of ours.
    listed = isinstance(extra, dict) and extra.keys() >= Answer.__annotations__.keys()
    told = extra["right"] if isinstance(extra, dict) and listed else None
    if isinstance(told, list):
        missing = [right for right in told if right not in case.options]
    else:
        forms = set(map(normalise, case.options))
        single = normalise(name) in forms
        missing = [] if single else [r for r in name.split("; ") if normalise(r) not in forms]
    if missing:
        yield "options", f"the right answer '{missing[0]}' is none of them."


def _source(name: str, file: CaseLines, seen: _Seen, sidecar: _Sidecar | None) -> Source:
    path = file.path
    if sidecar:
        items = [
            Item(
                each.name,
                each.question or each.name,
                each.normal,
                each.kind,
                each.parent,
                each.cost,
                tuple(each.synonyms),
                sex=each.sex,
            )
            for each in sidecar.items
        ]
    else:
        items = [
            Item(name, name, f"{name}: not recorded.", kind, gathered=True)
            for name, kind in seen.items.items()
        ]
    wording = [phrase for item in items for phrase in (item.name, item.normal)]
    diagnoses = tuple(sidecar.diagnoses) if sidecar else ()
    texts = tuple(seen.texts) if items and len(seen.texts) <= _PHRASES else ()
    train, test = file.cases(lambda row, _: _case(checked(CaseLine, row, file=path)))
    return Source(
        name=name,
        train=train,
        test=test,
        items=tuple(items),
        diagnoses=diagnoses,
        phrases=tuple(dict.fromkeys([*wording, *texts, *diagnoses])),
        notes=()
        if sidecar
        else (f"No {sidecar_of(path).name}: what facts are called is free text; open answers.",),
        restricted=seen.restricted,
        undivided=True,
    )


def sidecar_of(path: Path) -> Path:
    """The file with a file's items and diagnoses, if there is one."""
    return path.with_suffix(".source.json")


def _read_sidecar(path: Path) -> _Sidecar | None:
    beside = sidecar_of(path)
    if not beside.is_file():
        return None
    sidecar = checked(_Sidecar, read_object(beside, unique=True), file=beside)
    for field, problem in (*_shared_names(sidecar), *_unfit_parents(sidecar.items)):
        raise CaseError(problem, file=beside, field=field)
    return sidecar


def _shared_names(sidecar: _Sidecar) -> Iterator[tuple[str, str]]:
    """Field and problem, where two items have a name, or a diagnosis stands twice.

    A synonym of one item is no other's name. One that several items have is asked back.
    """
    items, places = sidecar.items, dict[str, int]()
    for place, item in enumerate(items):
        if (other := places.setdefault(item.name.casefold(), place)) != place:
            what = f"two items have the same name: '{items[other].name}', '{item.name}'."
            yield f"items.{place}.name", what
    for place, item in enumerate(items):
        for number, synonym in enumerate(item.synonyms):
            if (other := places.get(synonym.casefold(), place)) != place:
                what = f"'{synonym}' is also a name of the item '{items[other].name}'."
                yield f"items.{place}.synonyms.{number}", what
    seen: set[str] = set()
    for place, name in enumerate(map(str.casefold, sidecar.diagnoses)):
        if name in seen:
            yield f"diagnoses.{place}", f"'{sidecar.diagnoses[place]}' stands there twice."
        seen.add(name)


def _unfit_parents(items: Sequence[ItemLine]) -> Iterator[tuple[str, str]]:
    """Field and problem, where a parent is no item, or an item is above itself."""
    over, sound = {item.name: item.parent for item in items}, set[str]()
    for place, item in enumerate(items):
        way: dict[str, None] = {}
        name: str | None = item.name
        while name is not None and name not in sound:
            if name in way:
                yield f"items.{place}.parent", f"'{name}' is above itself: {' < '.join(way)}."
                break
            way[name] = None
            if (parent := over[name]) is not None and parent not in over:
                yield f"items.{place}.parent", f"the parent '{parent}' of '{name}' is no item."
                break
            name = parent
        sound |= way.keys()


def _case(line: CaseLine) -> Case:
    return _CASES.validate_python(line.model_dump(exclude={"provenance", "restricted"}))


def provenances(path: Path) -> dict[str, tuple[ProvenanceLine, ...]]:
    """The provenance of every case that has any, by id; a line that is no case has none.

    Raises CaseError.
    """
    found: dict[str, tuple[ProvenanceLine, ...]] = {}

    def read(line: Line) -> CaseLine | None:
        if '"provenance"' not in line.text:  # most files have none, and parsing is what costs
            return None
        return checked(CaseLine, parse_object(line.text, file=path, line=line.number), file=path)

    for _, case in RowErrors().read(lines_of(path), read):
        if case is not None and case.provenance:
            found.setdefault(case.id, tuple(case.provenance))
    return found


def write(
    cases: Iterable[Case],
    path: Path,
    *,
    items: Sequence[Item] = (),
    diagnoses: Sequence[str] = (),
    restricted: bool = False,
) -> int:
    """Writes cases, and the sidecar if there are items or diagnoses; returns how many cases.

    Where it fails, the files stay as they were. No other user may read those of `restricted` cases.
    Raises UserError for a path that cannot be written, for a sidecar that is there and would be
    taken for this file's, and for a case that the format cannot hold: `truth.extra` that is no JSON
    value, a line over the limit.
    """
    count = 0

    def lines() -> Iterator[str]:
        nonlocal count
        if not (items or diagnoses):
            no_sidecar(path)
        for case in cases:
            yield line_of(case, restricted=restricted)
            count += 1
        write_sidecar(path, items, diagnoses, private=restricted)

    write_lines(path, lines(), private=restricted)
    return count


def write_sidecar(
    path: Path, items: Sequence[Item], diagnoses: Sequence[str], *, private: bool = False
) -> None:
    """Writes what holds for all cases of `path` beside it; writes nothing if there is nothing.

    Raises UserError as `write_lines` does.
    """
    if items or diagnoses:
        told = [{**asdict(item), "gathered": None} for item in items]  # who is listed is not
        sidecar = {"items": _sparse(tuple(told)), "diagnoses": list(diagnoses)}
        text = json.dumps(sidecar, ensure_ascii=False, indent=1)
        write_lines(sidecar_of(path), [text], private=private)


def keeps_sidecar(source: Source) -> bool:
    """Whether the source has items or diagnoses of its own, not gathered from a file's facts.

    Gathered ones are gathered again by who reads the file; as a sidecar they can be refused.
    """
    return bool(source.diagnoses or [item for item in source.items if not item.gathered])


def no_sidecar(path: Path) -> None:
    """Raises UserError where a sidecar lies beside `path`: it would be read with what is written.

    Nothing removes it, since it may be written by hand.
    """
    if (beside := sidecar_of(path)).exists():
        raise UserError(
            f"{beside} would be taken for the items of {path.name}: remove it, or choose another "
            "name"
        )


def write_lines(path: Path, lines: Iterable[str], *, private: bool = False) -> None:
    """A file of these lines, which is there whole or not at all; a link's file is replaced.

    With `private` no other user may read it. Raises UserError for a folder or a pipe in its place,
    and when the disk refuses.
    """
    try:
        if path.exists() and not path.is_file():
            raise OSError("it is no file")
        with (
            whole_file(path.resolve(), private=private) as draft,
            draft.open("w", encoding="utf-8", newline="\n") as file,
        ):
            file.writelines(f"{line}\n" for line in lines)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error})") from error


def line_of(
    case: Case, provenance: Sequence[ProvenanceLine] = (), *, restricted: bool = False
) -> str:
    """One line of the format, without its end.

    Raises UserError for a case that the format cannot hold.
    """
    extra, plain = case.truth.extra, asdict(replace(case, truth=replace(case.truth, extra=None)))
    line = _sparse(plain)
    if provenance:
        line["provenance"] = [entry.model_dump(exclude_none=True) for entry in provenance]
    if restricted:
        line["restricted"] = True
    try:
        if extra is not None:
            line["truth"]["extra"] = json.loads(json.dumps(extra, allow_nan=False))
    except (TypeError, ValueError) as error:
        kind = type(extra).__name__
        raise UserError(
            f"case '{case.id}' cannot be written: its truth.extra ({kind}) is no JSON value."
        ) from error
    text = json.dumps(line, ensure_ascii=False)
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise UserError(
            f"case {case.id!r} cannot be written: it holds half a character (a lone surrogate)."
        ) from error
    if size >= LINE_LIMIT:
        raise UserError(f"case '{case.id}' is longer than a line of {LINE_LIMIT:,} bytes.")
    return text


def _sparse(value: Any) -> Any:
    """Without what is empty: the defaults of the format."""
    if isinstance(value, dict):
        return {key: _sparse(inner) for key, inner in value.items() if inner not in ("", None, ())}
    return [_sparse(inner) for inner in value] if isinstance(value, tuple) else value
