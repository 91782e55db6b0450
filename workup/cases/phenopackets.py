"""Phenopackets: published patients with rare diseases as ontology terms, present and excluded (GA4GH, version 1 or 2).

`phenopackets:FOLDER` reads every `.json` below it, as the phenopacket store ships them; `phenopackets:FILE` one packet, or
JSON lines of packets or of their short form (`id, sex, age, present, absent, diagnosis, pmid`). `#all` behind it holds every
case out. See docs/datasets.md.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from workup.case import Case, Fact, FixedSource, Kind, Source, Truth
from workup.cases.files import ALL, Lazy, checked, existing, held_out, line_at, parse_object, read_object, scan, view_of
from workup.cases.findings import kind_of
from workup.cases.leaks import WITHHELD, Mask, other_names
from workup.errors import CaseError, UserError

_LEAST = 2  # terms present: one opens the encounter, another can be found
_DURATION = re.compile(r"P(?:(\d{1,3})Y)?(?:(\d{1,4})M)?(?:(\d{1,4})W)?(?:(\d{1,5})D)?(?:T.{0,20})?")
_SEXES = {"FEMALE": "Female patient", "MALE": "Male patient"}


class _Packet(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel)


class _Term(_Packet):
    id: str
    label: str = Field(min_length=1)


class _Age(_Packet):
    duration: str = Field("", alias="iso8601duration")


class _Time(_Packet):
    age: _Age | str | None = None
    ontology_class: _Term | None = None


class _Subject(_Packet):
    sex: str = ""
    time_at_last_encounter: _Time | None = None
    age_at_collection: _Age | str | None = None  # version 1
    age: _Age | str | None = None  # version 1


class _Feature(_Packet):
    type: _Term
    excluded: bool = False
    negated: bool = False  # the name of the same in early packets


class _Disease(_Packet):
    term: _Term
    excluded: bool = False


class _Diagnosis(_Packet):
    disease: _Term | None = None


class _Interpretation(_Packet):
    diagnosis: _Diagnosis | None = None


class _Reference(_Packet):
    id: str = ""


class _MetaData(_Packet):
    external_references: list[_Reference] = []


class _Phenopacket(_Packet):
    id: str = Field(min_length=1)
    subject: _Subject = _Subject()
    phenotypic_features: list[_Feature] = []
    interpretations: list[_Interpretation] = []
    diseases: list[_Disease] = []
    meta_data: _MetaData = _MetaData()


class _Short(BaseModel):
    """One line of the short form; terms are [id, label] pairs."""

    id: str = Field(min_length=1)
    sex: str | None = None
    age: str | None = None
    present: list[tuple[str, str]]
    absent: list[tuple[str, str]] = []
    diagnosis: tuple[str, str]
    pmid: list[str] = []


class _Patient(BaseModel):
    """Either form, read: terms without repetition, and what keeps relatives together (the publication)."""

    id: str
    sex: str
    age: str
    present: dict[str, str]  # term id → label
    absent: dict[str, str]
    disease: tuple[str, str] | None
    family: str


def open(rest: str, seed: int) -> Source:
    """Opens `FOLDER`, `FILE`, or either with `#all`. Raises UserError and CaseError (file, line, field)."""
    place, view = view_of(rest, "phenopackets", [ALL])
    store = _Store(existing(place))
    sides: tuple[array[int], array[int]] = array("Q"), array("Q")
    counts: Counter[str] = Counter()
    for position, patient in store.patients():
        usable = patient.disease is not None and len(patient.present) >= _LEAST
        counts.update(undiagnosed=patient.disease is None, sparse=patient.disease is not None and not usable)
        if usable:
            sides[view == ALL or held_out(seed, patient.family)].append(position)
            withheld = _read(patient)[1]
            counts.update(cases=1, leaking=bool(withheld), absent=len(patient.absent))
    if not counts["cases"]:
        raise UserError(f"{place} has no phenopacket with a diagnosis and at least {_LEAST} findings.")
    train, test = (_lazy(store, side) for side in sides)
    return FixedSource(f"phenopackets:{rest}", train, test, notes=_notes(counts))


def _notes(counts: Counter[str]) -> tuple[str, ...]:
    return (
        *([f"{counts['undiagnosed']:,} packets without a diagnosis skipped."] if counts["undiagnosed"] else []),
        *([f"{counts['sparse']:,} packets with fewer than {_LEAST} findings skipped."] if counts["sparse"] else []),
        f"Findings are the terms present; the {counts['absent']:,} terms excluded stand in the record as negatives. Which term "
        "opens the encounter is drawn by the case's id.",
        f"{counts['leaking']} of {counts['cases']:,} cases name their disease among the findings: '{WITHHELD}' stands there.",
        "Patients of one publication are on one side of the split: they are often relatives.",
        "Phenopacket store (Monarch Initiative), BSD-3-Clause; terms of the Human Phenotype Ontology, diseases of OMIM.",
    )


class _Store:
    """Where packets are: one file each below a folder, or one line each of a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = sorted(path.rglob("*.json")) if path.is_dir() else [path] if path.suffix == ".json" else []
        if path.is_dir() and not self.files:
            raise UserError(f"no .json file in or below {path}; unpack the release of the phenopacket store there.")
        self.names = _names(path, self.files)

    def patients(self) -> Iterator[tuple[int, _Patient]]:
        """Every patient with its position: the number of its file, or the byte offset of its line. Raises CaseError."""
        seen: dict[bytes, str] = {}  # digest of an id → where it stands
        for position, where, row, line in self._packets():
            patient = self._read(row, where, line)
            digest = blake2b(patient.id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
            here = where.name if line is None else f"line {line}"
            if digest in seen:
                raise CaseError(f"the id '{patient.id}' stands in {seen[digest]} too.", file=where, line=line, field="id")
            seen[digest] = here
            yield position, patient

    def _packets(self) -> Iterator[tuple[int, Path, dict[str, Any], int | None]]:
        for number, file in enumerate(self.files):
            yield number, file, read_object(file), None
        if not self.files:
            for line in scan(self.path):
                yield line.offset, self.path, parse_object(line.text, file=self.path, line=line.number), line.number

    def patient(self, position: int) -> _Patient:
        if self.files:
            return self._read(read_object(self.files[position]), self.files[position], None)
        return self._read(parse_object(line_at(self.path, position), file=self.path, line=None), self.path, None)

    def _read(self, row: dict[str, Any], file: Path, line: int | None) -> _Patient:
        if "present" in row:
            return _from_short(checked(_Short, row, file=file, line=line))
        return _from_packet(checked(_Phenopacket, row, file=file, line=line), self.names.get(file, ""))


def _names(folder: Path, files: Sequence[Path]) -> dict[Path, str]:
    """What each patient is called: the file's name, with its folders where two files share it. Ids inside ("proband") repeat."""
    counts = Counter(file.stem for file in files)
    return {file: file.stem if counts[file.stem] == 1 else file.relative_to(folder).with_suffix("").as_posix() for file in files}


def _lazy(store: _Store, side: array[int]) -> Lazy:
    return Lazy(len(side), lambda i: _read(store.patient(side[i]))[0])


def _from_short(row: _Short) -> _Patient:
    return _Patient(
        id=row.id,
        sex=row.sex or "",
        age=_age(row.age or ""),
        present=dict(row.present),
        absent=dict(row.absent),
        disease=row.diagnosis,
        family=min(row.pmid, default=row.id),
    )


def _from_packet(packet: _Phenopacket, name: str) -> _Patient:
    terms = [(f.type.id, f.type.label, f.excluded or f.negated) for f in packet.phenotypic_features]
    publications = [r.id for r in packet.meta_data.external_references if r.id.startswith("PMID:")]
    id = name or packet.id
    return _Patient(
        id=id,
        sex=packet.subject.sex,
        age=_age_of(packet.subject),
        present={term: label for term, label, excluded in terms if not excluded},
        absent={term: label for term, label, excluded in terms if excluded},
        disease=_disease(packet),
        family=min(publications, default=id),
    )


def _disease(packet: _Phenopacket) -> tuple[str, str] | None:
    """The first disease that an interpretation names, else the first that is listed and not excluded."""
    interpreted = [i.diagnosis.disease for i in packet.interpretations if i.diagnosis and i.diagnosis.disease]
    terms = [*interpreted, *(disease.term for disease in packet.diseases if not disease.excluded)]
    return (terms[0].id, terms[0].label) if terms else None


def _age_of(subject: _Subject) -> str:
    time = subject.time_at_last_encounter
    if time is not None and time.ontology_class is not None:
        return time.ontology_class.label.lower()
    told = [time.age if time else None, subject.age_at_collection, subject.age]
    texts = [age.duration if isinstance(age, _Age) else age for age in told if age]
    return next((age for text in texts if (age := _age(text))), "")


def _age(duration: str) -> str:
    """An ISO 8601 duration in words: "P2Y5M" as "2 years 5 months"; "" for what is none."""
    found = _DURATION.fullmatch(duration)
    parts = zip(found.groups() if found else (), ("year", "month", "week", "day"), strict=False)
    return " ".join(f"{int(n)} {unit}{'s' * (int(n) != 1)}" for n, unit in parts if n and int(n))


def _read(patient: _Patient) -> tuple[Case, int]:
    """The case, and how often its disease was named. One term, drawn by the id, opens the encounter."""
    assert patient.disease is not None
    code, name = patient.disease
    mask = Mask([name], family=False)
    facts = [_fact(term, mask(label)) for term, label in patient.present.items()]
    opening = facts[_draw(patient.id, len(facts))]
    hidden = tuple(fact for fact in facts if fact is not opening)
    sex = _SEXES.get(patient.sex, "Patient")
    person = f"{sex}{f', aged {patient.age}' if patient.age[:1].isdigit() else f' ({patient.age})' if patient.age else ''}."
    presentation = f"{person} {opening.text}"
    truth = Truth(
        diagnosis=name,
        codes=(code,),
        aliases=other_names(name),
        facts=hidden,
        record=_record(presentation, hidden, {term: mask(label) for term, label in patient.absent.items()}),
    )
    return Case(patient.id, presentation, truth, given=(opening,)), mask.found


def _fact(term: str, label: str) -> Fact:
    return Fact(term, label, f"{label}.", kind_of(label, Kind.EXAMINATION))


def _record(presentation: str, hidden: Sequence[Fact], absent: Mapping[str, str]) -> str:
    excluded = [f"Looked for and not found: {label}." for label in absent.values()]
    return "\n".join([presentation, *(fact.text for fact in hidden), *excluded])


def _draw(id: str, count: int) -> int:
    return int.from_bytes(blake2b(id.encode("utf-8", "surrogatepass"), digest_size=8).digest()) % count
