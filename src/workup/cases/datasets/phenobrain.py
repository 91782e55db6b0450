"""PhenoBrain's public test set: patients with rare diseases as ontology terms, without any text.

`phenobrain:FILE` reads its JSON, a list of `[[HPO terms], [codes of the disease]]`; with `#all`
every case is held out. Codes are of OMIM, Orphanet and others, and several may stand for one
disease; the first one names it. The file has no names, so that findings and diseases are called
by their ids: it is there to be ranked (`workup study rare`). A hash of the place in the file
decides which finding opens the encounter. Patients of one disease are on one side of the split. No
publication is known of any patient.
"""

from __future__ import annotations

from pydantic import BaseModel, Field

from workup.cases.datasets.phenopackets import PublishedPatient, case_of
from workup.cases.files import ALL, Split, checked, existing, held_out, parse_json, view_of
from workup.cases.rows import RowErrors, sound
from workup.core.case import Case, Source
from workup.core.errors import CaseError, UserError

EXAMPLE = "phenobrain:phenobrain_public.json"
FILES = ("phenobrain*.json",)

_LEAST = 2  # terms: one opens the encounter, another can be found
_MOST = 50_000_000  # bytes of the file


class _PhenoBrain(BaseModel):
    rows: list[tuple[list[str], list[str]]] = Field(max_length=100_000)


def open(rest: str, split: Split, errors: RowErrors) -> Source:
    """Opens `FILE` or `FILE#all`. Raises UserError and CaseError (file, field)."""
    place, view = view_of(rest, "phenobrain", [ALL])
    path = existing(place)
    if path.is_dir() or path.stat().st_size > _MOST:
        raise UserError(f"{path} is no file of PhenoBrain's: name its JSON file")
    read = parse_json(path.read_text(encoding="utf-8", errors="replace"), file=path)
    if not isinstance(read, list):
        raise CaseError("is no list of [[terms], [codes]].", file=path)
    rows = checked(_PhenoBrain, {"rows": read}, file=path, line=None).rows
    sides: tuple[list[Case], list[Case]] = ([], [])
    skipped = 0
    for number, (terms, codes) in enumerate(rows, 1):
        present = dict(zip(terms, terms, strict=True))
        if len(present) < _LEAST or not codes:
            skipped += 1
            continue
        patient = PublishedPatient(
            id=f"{path.stem}-{number}",
            sex="",
            age="",
            present=present,
            absent={},
            disease=(codes[0], codes[0]),
            publications=[],
        )
        case, _ = case_of(patient, codes)
        sides[view == ALL or held_out(split, codes[0])].append(sound(case, file=path))
    if not any(sides):
        raise errors.nothing(UserError(f"{place} has no patient with at least {_LEAST} findings."))
    notes = (
        f"{skipped:,} patients with fewer than {_LEAST} findings skipped.",
        "Findings and diseases are called by their ids: the file has no names.",
        "No publication is known of any patient: what their own paper says cannot be left out.",
        "PhenoBrain's public test set, Apache-2.0; terms of the Human Phenotype Ontology.",
    )
    return Source(f"phenobrain:{rest}", *sides, notes=notes, undivided=True)
