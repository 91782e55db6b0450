"""Phenopackets: published patients with rare diseases as ontology terms (GA4GH, version 1 or 2).

Terms are present or excluded. `phenopackets:FOLDER` reads every `.json` below it, as the
phenopacket store ships them; `phenopackets:FILE` one packet, or JSON lines of packets or of their
short form (`id, sex, age, present, absent, diagnosis, pmid`). With `#all` every case is held out,
with `#diseases` no disease of the test side is trained on.

The diagnosis is the first interpretation's, else the first listed disease that is not excluded. A
present term is a finding under its own label; a hash of the id decides which one opens the
encounter. Excluded terms stand in the record as "Looked for and not found"; one that is present too
is read as present. Packets with fewer than two findings or without a diagnosis are left out and
counted. Interpretations that are unsolved name no diagnosis.

A patient's publications are read from `metaData.externalReferences`, from each feature's
`evidence.reference`, from an id that begins with one (`PMID:27672653-…`), and from the short form's
`pmid`. All patients of one publication are on one side of the split, since they are often
relatives. Patients without any are counted in the notes.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic.alias_generators import to_camel

from workup.cases.files import (
    ALL,
    Line,
    Split,
    checked,
    existing,
    held_out,
    json_lines,
    line_at,
    parse_object,
    read_object,
    view_of,
)
from workup.cases.findings import kind_of
from workup.cases.publications import Groups, publication, published
from workup.cases.rows import Filled, RowErrors, counted, sound
from workup.core.case import Case, Fact, Kind, Source, Truth
from workup.core.errors import CaseError, UserError
from workup.core.lazy import Lazy
from workup.core.leaks import WITHHELD, Mask, other_names
from workup.core.text import digest

EXAMPLE = "phenopackets:~/phenopacket-store"
FIELDS = ("phenotypicFeatures metaData", "present diagnosis pmid")

DISEASES = "diseases"
"""The view in which no disease of the test side is trained on, nor any publication that has one."""

_LEAST = 2  # terms present: one opens the encounter, another can be found
_NUMBER = r"(\d{1,5}(?:\.\d{1,3})?)"
_DURATION = re.compile(
    rf"P(?:{_NUMBER}Y)?(?:{_NUMBER}M)?(?:{_NUMBER}W)?(?:{_NUMBER}D)?(?:T.{{0,20}})?"
)
_SEXES = {"FEMALE": "Female patient", "MALE": "Male patient"}
Sex = Annotated[
    Literal["", "FEMALE", "MALE", "OTHER_SEX", "UNKNOWN_SEX"],
    BeforeValidator(lambda word: word.strip().upper() if isinstance(word, str) else word),
]


class _Packet(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel)


class _Term(_Packet):
    id: str
    label: Filled


class _Subject(_Packet):
    sex: Sex = ""
    time_at_last_encounter: Any = None
    age_at_collection: Any = None  # version 1, as all below
    age_range_at_collection: Any = None
    age: Any = None


class _Reference(_Packet):
    id: str = ""
    reference: str = ""  # its address


class _Evidence(_Packet):
    reference: _Reference = _Reference()


class _Feature(_Packet):
    type: _Term
    excluded: bool = False
    negated: bool = False  # the name of the same in early packets
    evidence: list[_Evidence] = []


class _Disease(_Packet):
    term: _Term
    excluded: bool = False


class _Diagnosis(_Packet):
    disease: _Term | None = None


class _Interpretation(_Packet):
    progress_status: str = ""
    diagnosis: _Diagnosis | None = None


class _MetaData(_Packet):
    external_references: list[_Reference] = []


class _Phenopacket(_Packet):
    id: Filled
    subject: _Subject = _Subject()
    phenotypic_features: list[_Feature] = []
    interpretations: list[_Interpretation] = []
    diseases: list[_Disease] = []
    meta_data: _MetaData = _MetaData()


class _Short(BaseModel):
    """One line of the short form; terms are [id, label] pairs."""

    id: Filled
    sex: Sex | None = None
    age: str | None = None
    present: list[tuple[str, Filled]]
    absent: list[tuple[str, Filled]] = []
    diagnosis: tuple[str, Filled]
    pmid: list[str] = []


class PublishedPatient(BaseModel):
    """A patient of either form: terms without repetition, and the publications (PMID:…)."""

    id: str
    sex: str
    age: str
    present: dict[str, str]  # term id → label
    absent: dict[str, str]
    disease: tuple[str, str] | None
    publications: list[str]
    age_unread: bool = False  # its age is no duration that can be told in words

    @property
    def family(self) -> str:
        """A publication, which keeps relatives on one side of a split; without one, its id."""
        return min(self.publications, default=self.id)


def open(rest: str, split: Split, errors: RowErrors) -> Source:
    """Opens `FOLDER`, `FILE`, or either with `#all` or `#diseases`.

    Raises UserError and CaseError (file, line, field).
    """
    place, view = view_of(rest, "phenopackets", [ALL, DISEASES])
    store = _Store(existing(place))
    positions, belongs, groups = array("Q"), [], Groups()
    counts: Counter[str] = Counter()

    def read(place: _Place) -> tuple[PublishedPatient, int]:
        """A patient, and how often the disease is named; 0 where no case can be made."""
        patient = store.at(place)
        errors.once(patient.id, file=place.file, line=place.line)
        if not _usable(patient):
            return patient, 0
        case, withheld = case_of(patient)
        sound(case, file=place.file, line=place.line)
        return patient, withheld

    for found, (patient, withheld) in errors.read(store.places(), read):
        counts.update(undiagnosed=patient.disease is None)
        if _usable(patient):
            positions.append(found.position)
            belongs.append(patient.family)
            disease = [patient.disease[0]] if view == DISEASES and patient.disease else []
            groups.join((patient.family, *patient.publications, *disease))
            both = len(patient.present.keys() & patient.absent.keys())
            counts.update(both=both, aged=patient.age_unread, absent=len(patient.absent) - both)
            counts.update(cases=1, leaking=bool(withheld))
            counts.update(unpublished=not patient.publications)
        elif patient.disease is not None:
            counts.update(sparse=1)
    if not counts["cases"]:
        least = f"{place} has no phenopacket with a diagnosis and at least {_LEAST} findings."
        raise errors.nothing(UserError(least))
    sides: tuple[array[int], array[int]] = array("Q"), array("Q")
    for position, family in zip(positions, belongs, strict=True):
        sides[view == ALL or held_out(split, groups.of(family))].append(position)
    train, test = (_lazy(store, side) for side in sides)
    name = f"phenopackets:{rest}"
    return Source(name, train, test, notes=_notes(counts, view), undivided=True)


def _usable(patient: PublishedPatient) -> bool:
    return patient.disease is not None and len(patient.present) >= _LEAST


def _notes(counts: Counter[str], view: str) -> tuple[str, ...]:
    return (
        *counted(
            counts,
            {
                "undiagnosed": "{} packets without a diagnosis skipped.",
                "sparse": f"{{}} packets with fewer than {_LEAST} findings skipped.",
                "both": "{} terms are present and excluded in one packet: read as present.",
                "aged": "{} ages left out: none is a duration above 0, as 'P2Y5M' is.",
            },
        ),
        f"Findings are the terms present; the {counts['absent']:,} terms excluded stand in the "
        "record as negatives. Which term opens the encounter is drawn by the case's id.",
        (
            f"{counts['leaking']} of {counts['cases']:,} cases name their disease among the "
            f"findings: '{WITHHELD}' stands there."
        ),
        "Patients of one publication are on one side of the split: they are often relatives.",
        *(
            [
                f"{counts['unpublished']:,} of {counts['cases']:,} patients name no publication: "
                "each is divided by itself, and what their own paper says cannot be left out."
            ]
            if counts["unpublished"]
            else []
        ),
        *(
            ["So are those of one disease, and of publications that share a disease."]
            if view == DISEASES
            else []
        ),
        (
            "Phenopacket store (Monarch Initiative), BSD-3-Clause; terms of the Human Phenotype "
            "Ontology, diseases of OMIM."
        ),
    )


class _Place(NamedTuple):
    """Where a packet is.

    `position` is the number of its file, or the byte offset of its line, whose text is here.
    """

    position: int
    file: Path
    line: int | None = None
    text: str = ""


class _Store:
    """Where packets are: one file each below a folder, or one line each of a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = (
            sorted(path.rglob("*.json"))
            if path.is_dir()
            else [path]
            if path.suffix == ".json"
            else []
        )
        if path.is_dir() and not self.files:
            raise UserError(
                f"no .json file in or below {path}; unpack the release of the phenopacket store "
                "there."
            )
        counts = Counter(file.stem for file in self.files)
        self.names = {
            file: file.stem
            if counts[file.stem] == 1
            else file.relative_to(path).with_suffix("").as_posix()
            for file in self.files
        }

    def places(self) -> Iterator[_Place | CaseError]:
        """Where every packet is; a line that cannot be read comes as its error.

        Raises CaseError.
        """
        for number, file in enumerate(self.files):
            yield _Place(number, file)
        if not self.files:
            for line in json_lines(self.path):
                if isinstance(line, Line):
                    yield _Place(line.offset, self.path, line.number, line.text)
                else:
                    yield line

    def at(self, place: _Place) -> PublishedPatient:
        """The patient there. Raises CaseError."""
        file, line = place.file, place.line
        row = read_object(file) if line is None else parse_object(place.text, file=file, line=line)
        return self._read(row, file, line)

    def patient(self, position: int) -> PublishedPatient:
        if self.files:
            return self._read(read_object(self.files[position]), self.files[position], None)
        return self._read(
            parse_object(line_at(self.path, position), file=self.path, line=None), self.path, None
        )

    def _read(self, row: dict[str, Any], file: Path, line: int | None) -> PublishedPatient:
        if "present" in row:
            short = checked(_Short, row, file=file, line=line)
            papers = (f"PMID:{n}" if n.strip().isdigit() else n for n in short.pmid)
            return PublishedPatient(
                id=short.id,
                sex=short.sex or "",
                age=(age := _age(short.age)),
                age_unread=bool(short.age) and not age,
                present=dict(short.present),
                absent=dict(short.absent),
                disease=short.diagnosis,
                publications=_known(short.id, *papers),
            )
        return _from_packet(
            checked(_Phenopacket, row, file=file, line=line), self.names.get(file, "")
        )


def _lazy(store: _Store, side: array[int]) -> Lazy[Case]:
    return Lazy(len(side), lambda i: case_of(store.patient(side[i]))[0])


def _from_packet(packet: _Phenopacket, name: str) -> PublishedPatient:
    terms = [(f.type.id, f.type.label, f.excluded or f.negated) for f in packet.phenotypic_features]
    evidence = [e.reference for f in packet.phenotypic_features for e in f.evidence]
    references = [*packet.meta_data.external_references, *evidence]
    id, who = name or packet.id, packet.subject
    collected = who.age_at_collection, who.age_range_at_collection
    ages = (who.time_at_last_encounter, *collected, who.age)
    return PublishedPatient(
        id=id,
        sex=who.sex,
        age=(age := next(filter(None, map(_age_of, ages)), "")),
        age_unread=not age and any(ages),
        present={term: label for term, label, excluded in terms if not excluded},
        absent={term: label for term, label, excluded in terms if excluded},
        disease=_disease(packet),
        publications=_known(
            Path(id).name,
            packet.id,
            *(text for each in references for text in (each.id, each.reference)),
        ),
    )


def _known(*texts: str) -> list[str]:
    """The publications that ids and references begin with, each once."""
    return [*dict.fromkeys(filter(None, map(publication, texts)))]


def _disease(packet: _Phenopacket) -> tuple[str, str] | None:
    """The first disease that an interpretation names, else the first listed and not excluded."""
    interpreted = [
        i.diagnosis.disease
        for i in packet.interpretations
        if i.diagnosis and i.diagnosis.disease and i.progress_status != "UNSOLVED"
    ]
    terms = [*interpreted, *(disease.term for disease in packet.diseases if not disease.excluded)]
    return (terms[0].id, terms[0].label) if terms else None


def _age_of(time: object) -> str:
    """A time of either version in words; "" where it is no age."""
    match time:
        case {"ontologyClass": {"label": str(label)}}:
            return label.strip().lower()
        case {"gestationalAge": {"weeks": int(weeks), **more}}:
            age = _age(f"P{weeks}W{more.get('days') or 0}D")
            return age and f"{age} of gestation"
        case {"start": start, "end": end} | {"ageRange": {"start": start, "end": end}}:
            ends = _age(start), _age(end)
            return " to ".join(ends) if all(ends) else ""
        case {"age": age}:
            return _age(age)
    return _age(time)


def _age(duration: object) -> str:
    """An ISO 8601 duration in words: "P2Y5M" as "2 years 5 months"; "" for anything else.

    It may stand by itself, or in an age of version 1 or 2.
    """
    match duration:
        case {"iso8601duration": text} | {"age": text}:
            duration = text
    found = _DURATION.fullmatch(duration) if isinstance(duration, str) else None
    numbers = [float(number or 0) for number in found.groups()] if found else []
    parts = zip(numbers, ("year", "month", "week", "day"), strict=False)
    return " ".join(f"{n:g} {unit}{'s' * (n != 1)}" for n, unit in parts if n)


def case_of(patient: PublishedPatient, codes: Sequence[str] = ()) -> tuple[Case, int]:
    """The case, and how often its disease was named.

    One term, drawn by the id, opens the encounter. `codes` are all that name the disease, by
    default its one id.
    """
    assert patient.disease is not None
    code, name = patient.disease
    mask = Mask([name], family=False)
    facts = [
        Fact(term, label, f"{label}.", kind_of(label, Kind.EXAMINATION))
        for term, label in ((term, mask(label)) for term, label in patient.present.items())
    ]
    absent = {t: mask(label) for t, label in patient.absent.items() if t not in patient.present}
    opening = facts[int.from_bytes(digest(patient.id)) % len(facts)]
    hidden = tuple(fact for fact in facts if fact is not opening)
    sex = _SEXES.get(patient.sex, "Patient")
    aged = f", aged {patient.age}" if patient.age[:1].isdigit() else f" ({patient.age})"
    person = f"{sex}{aged if patient.age else ''}."
    presentation = f"{person} {opening.text}"
    excluded = [f"Looked for and not found: {label}." for label in absent.values()]
    truth = Truth(
        diagnosis=name,
        codes=tuple(codes) or (code,),
        aliases=other_names(name),
        facts=hidden,
        record="\n".join([presentation, *(fact.text for fact in hidden), *excluded]),
        extra=published(patient.publications, absent),
    )
    return Case(patient.id, presentation, truth, given=(opening,)), mask.found
