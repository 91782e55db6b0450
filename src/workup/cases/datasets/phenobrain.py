"""PhenoBrain's public test set: patients with rare diseases as ontology terms, without any text.

`phenobrain:FILE` reads its JSON, a list of `[[HPO terms], [codes of the disease]]`; with `#all`
every case is held out. Codes are of OMIM, Orphanet and others, and several may stand for one
disease; the first one names it. The file has no names, so that findings and diseases are called
by their ids: it is there to be ranked (`workup study rare`). A hash of the place in the file
decides which finding opens the encounter. Patients of one disease are on one side of the split. No
publication is known of any patient.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from workup.cases.datasets.phenopackets import PublishedPatient, case_of
from workup.cases.files import (
    ALL,
    Split,
    checked,
    existing,
    held_out,
    parse_json,
    reading,
    view_of,
)
from workup.cases.publications import Groups
from workup.cases.rows import RowErrors, counted, sound
from workup.core.case import Case, Source
from workup.core.errors import CaseError, UserError

EXAMPLE = "phenobrain:phenobrain_public.json"
FILES = ("phenobrain*.json",)

_LEAST = 2  # terms: one opens the encounter, another can be found
_MOST = 50_000_000  # bytes of the file
_BETWEEN = " \t\r\n,"  # what stands between two rows


class _Patient(BaseModel):
    """A row of the file."""

    row: tuple[list[str], list[str]]


def open(rest: str, split: Split, errors: RowErrors) -> Source:
    """Opens `FILE` or `FILE#all`. Raises UserError and CaseError (file, line, field)."""
    place, view = view_of(rest, "phenobrain", [ALL])
    path = existing(place)
    if path.is_dir() or path.stat().st_size > _MOST:
        raise UserError(f"{path} is no file of PhenoBrain's: name its JSON file")
    sides: tuple[list[Case], list[Case]] = ([], [])
    cases, groups, skipped, changed = list[Case](), Groups(), 0, Counter[str]()

    def read(found: tuple[int, Any]) -> Case | None:
        """A patient's case; None with too little for one."""
        line, row = found
        written = checked(_Patient, {"row": row}, file=path, line=line).row
        terms, codes = ([*filter(None, map(str.strip, words))] for words in written)
        changed.update(
            blank=len(written[0]) + len(written[1]) - len(terms) - len(codes),
            stripped=sum(word != word.strip() != "" for words in written for word in words),
        )
        present = dict(zip(terms, terms, strict=True))
        if len(present) < _LEAST or not codes:
            return None
        patient = PublishedPatient(
            id=f"{path.stem}-{errors.rows}",
            sex="",
            age="",
            present=present,
            absent={},
            disease=(codes[0], codes[0]),
            publications=[],
        )
        return sound(case_of(patient, codes)[0], file=path, line=line)

    for _, case in errors.read(_rows(path), read):
        if case is None:
            skipped += 1
        else:
            cases.append(case)
            groups.join(case.truth.codes)
    for case in cases:
        disease = groups.of(case.truth.codes[0])
        sides[view == ALL or held_out(split, disease)].append(case)
    if not cases:
        raise errors.nothing(UserError(f"{place} has no patient with at least {_LEAST} findings."))
    notes = (
        f"{skipped:,} patients with fewer than {_LEAST} findings skipped.",
        *counted(
            changed,
            {
                "blank": "{} terms or codes left out: they are blank.",
                "stripped": "{} terms or codes had blanks at their ends, which are dropped.",
            },
        ),
        "Findings and diseases are called by their ids: the file has no names.",
        "No publication is known of any patient: what their own paper says cannot be left out.",
        "PhenoBrain's public test set, Apache-2.0; terms of the Human Phenotype Ontology.",
    )
    return Source(f"phenobrain:{rest}", *sides, notes=notes, undivided=True)


def _rows(path: Path) -> Iterator[tuple[int, Any]]:
    """(line, value) of every row of the file's list. Raises CaseError for another file."""
    with reading(path) as file:
        text = file.read(_MOST + 1).decode("utf-8-sig", errors="replace")
    if not isinstance(parse_json(text, file=path), list):
        raise CaseError("is no list of [[terms], [codes]].", file=path)
    decode, line, before = json.JSONDecoder().raw_decode, 1, 0
    at = text.index("[") + 1
    while text[at] != "]":
        if text[at] in _BETWEEN:
            at += 1
            continue
        line, before = line + text.count("\n", before, at), at
        value, at = decode(text, at)
        yield line, value
