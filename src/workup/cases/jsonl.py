"""Workup's own case format: one case per line, by `case.schema.json` (see docs/cases.md).

Beside `NAME.jsonl` there may be a `NAME.source.json` with what holds for all cases: the items that
can be asked for, and the closed list of diagnoses. Without it, the items are those that the facts
name, and answers are open.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
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
from workup.cases.rows import Filled, RowErrors
from workup.core.case import (
    LONGEST_ENTITY,
    MOST_STATEMENTS,
    Case,
    Fact,
    Item,
    Kind,
    Source,
    Statement,
    Truth,
)
from workup.core.disk import whole_file
from workup.core.errors import CaseError, UserError
from workup.core.leaks import Mask

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
_PHRASES = 5_000  # a file with more distinct findings than this is free text to a tiny policy


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


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
    extra: JsonValue = None

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
    detail: JsonValue = None


class CaseLine(_Strict):
    """One case.

    `given` are the findings that the presentation already states; ids are unique within the case.

    `restricted` text may be sent to trusted endpoints only.
    """

    id: Term
    presentation: Name
    truth: TruthLine
    question: str = ""
    options: list[Trimmed] = []
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

    `synonyms` are further names by which people ask for it.
    """

    name: Term
    normal: Name
    question: str = ""
    kind: Annotated[Kind, Field(strict=False)] = Kind.HISTORY
    parent: Trimmed | None = None
    cost: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    synonyms: Annotated[list[Term], Field(max_length=100)] = []


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
    path, seen = file.path, _Seen()

    def read(row: dict[str, Any], line: int) -> CaseLine:
        seen.restricted |= row.get("restricted") is True  # even where the line is no case
        case = checked(CaseLine, row, file=path, line=line)
        errors.once(case.id, file=path, line=line)
        return case

    for line, case in file.read(errors, read, unique=True):
        file.keep(line, case.id)
        seen.add(case)
        if not case.truth.facts and not case.question:
            silent = "there is no hidden finding, so nothing to ask for."
            field = "truth.facts"
            errors.remark(silent, file=path, line=line.number, field=field, noted=False)
        for field, problem in seen.odd(case):
            errors.remark(problem, file=path, line=line.number, field=field)
    if not len(file):
        raise errors.nothing(CaseError("holds no case.", file=path))
    return _source(f"jsonl:{rest}", file, seen)


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
        self._patients: set[bytes] = set()

    def odd(self, case: CaseLine) -> Iterator[tuple[str, str]]:
        """Field and remark, where a case tells its diagnosis or is an earlier one once more."""
        truth = case.truth
        named = _named(truth.diagnosis, *truth.aliases)
        if named(case.presentation):
            yield "presentation", "it names the diagnosis."
        for field, facts in (("given", case.given), ("truth.facts", truth.facts)):
            for place, fact in enumerate(facts):
                if named(f"{fact.item}\n{fact.text}"):
                    yield f"{field}.{place}", "it names the diagnosis."
        patient = case.model_dump_json(exclude={"id", "provenance"})
        digest = blake2b(patient.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        if digest in self._patients:
            yield "", "the same patient stands in an earlier row, under another id."
        self._patients.add(digest)

    def add(self, case: CaseLine) -> None:
        for fact in (*case.given, *case.truth.facts):
            if fact.item:
                self.items.setdefault(fact.item, fact.kind)
            if len(self.texts) <= _PHRASES:
                self.texts[fact.text] = None


def _source(name: str, file: CaseLines, seen: _Seen) -> Source:
    path = file.path
    sidecar = _read_sidecar(path)
    items = [_item(item) for item in sidecar.items] if sidecar else _named_items(seen)
    diagnoses = tuple(sidecar.diagnoses) if sidecar else ()
    texts = tuple(seen.texts) if items and len(seen.texts) <= _PHRASES else ()
    train, test = file.cases(lambda row, _: _case(checked(CaseLine, row, file=path)))
    return Source(
        name=name,
        train=train,
        test=test,
        items=tuple(items),
        diagnoses=diagnoses,
        phrases=_phrases(items, diagnoses, texts),
        notes=()
        if sidecar
        else (f"No {sidecar_of(path).name}: items are those that facts name, answers are open.",),
        restricted=seen.restricted,
        undivided=True,
    )


def _phrases(
    items: Sequence[Item], diagnoses: Sequence[str], texts: Sequence[str]
) -> tuple[str, ...]:
    wording = [phrase for item in items for phrase in (item.name, item.normal)]
    return tuple(dict.fromkeys([*wording, *texts, *diagnoses]))


def sidecar_of(path: Path) -> Path:
    """The file with a file's items and diagnoses, if there is one."""
    return path.with_suffix(".source.json")


def _read_sidecar(path: Path) -> _Sidecar | None:
    beside = sidecar_of(path)
    if not beside.is_file():
        return None
    sidecar = checked(_Sidecar, read_object(beside, unique=True), file=beside)
    names = {item.name for item in sidecar.items}
    if len(names) < len(sidecar.items):
        raise CaseError("two items have the same name.", file=beside, field="items")
    if orphan := next(
        (item for item in sidecar.items if item.parent is not None and item.parent not in names),
        None,
    ):
        raise CaseError(
            f"the parent '{orphan.parent}' of '{orphan.name}' is no item.",
            file=beside,
            field="items",
        )
    return sidecar


def _named_items(seen: _Seen) -> list[Item]:
    return [Item(name, name, f"{name}: not recorded.", kind) for name, kind in seen.items.items()]


def _item(item: ItemLine) -> Item:
    question, synonyms = item.question or item.name, tuple(item.synonyms)
    return Item(item.name, question, item.normal, item.kind, item.parent, item.cost, synonyms)


def _fact(fact: FactLine) -> Fact:
    return Fact(fact.id, fact.item, fact.text, fact.kind, fact.weight)


def _statement(line: StatementLine) -> Statement:
    return Statement(line.head, line.relation, line.tail, line.retrieved)


def _case(line: CaseLine) -> Case:
    truth = line.truth
    hidden = Truth(
        diagnosis=truth.diagnosis,
        codes=tuple(truth.codes),
        aliases=tuple(truth.aliases),
        differentials=tuple(truth.differentials),
        facts=tuple(map(_fact, truth.facts)),
        record=truth.record,
        references=tuple(truth.references),
        graphs=tuple(tuple(map(_statement, graph)) for graph in truth.graphs),
        extra=truth.extra,
    )
    given = tuple(map(_fact, line.given))
    return Case(
        line.id, line.presentation, hidden, line.question, tuple(line.options), given, line.category
    )


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
        sidecar = {"items": [_sparse(asdict(item)) for item in items], "diagnoses": list(diagnoses)}
        text = json.dumps(sidecar, ensure_ascii=False, indent=1)
        write_lines(sidecar_of(path), [text], private=private)


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
