"""A release of the Human Phenotype Ontology, small and made by hand, and patients to go with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TERMS = """format-version: 1.2
data-version: hp/releases/2020-02-20

[Term]
id: HP:0000001
name: All

[Term]
id: HP:0000118
name: Phenotypic abnormality
is_a: HP:0000001 ! All

[Term]
id: HP:0000005
name: Mode of inheritance
is_a: HP:0000001 ! All

[Term]
id: HP:0000006
name: Autosomal dominant inheritance
is_a: HP:0000005 ! Mode of inheritance

[Term]
id: HP:0000010
name: Skin sign
synonym: "Sign of the skin" EXACT layperson []
synonym: "Skin signs" EXACT plural_form []
synonym: "Related sign" RELATED []
is_a: HP:0000118 ! Phenotypic abnormality

[Term]
id: HP:0000011
name: Red spot
alt_id: HP:0000911
is_a: HP:0000010 ! Skin sign

[Term]
id: HP:0000012
name: Blue spot
is_a: HP:0000010 {source="x"} ! Skin sign

[Term]
id: HP:0000020
name: Seizure
is_a: HP:0000118 ! Phenotypic abnormality

[Term]
id: HP:0000021
name: Focal seizure
is_a: HP:0000020 ! Seizure

[Term]
id: HP:0000800
name: obsolete Old seizure
is_obsolete: true
replaced_by: HP:0000021

[Term]
id: HP:0000801
name: obsolete Forgotten
is_obsolete: true

[Typedef]
id: part_of
name: part of
"""

COLUMNS = (
    "database_id",
    "disease_name",
    "qualifier",
    "hpo_id",
    "reference",
    "evidence",
    "onset",
    "frequency",
    "sex",
    "modifier",
    "aspect",
    "biocuration",
)

# disease, name, qualifier, term, reference, frequency, aspect
ROWS: tuple[tuple[str, ...], ...] = (
    ("OMIM:1", "Spotted fever 1", "", "HP:0000011", "PMID:10", "3/4", "P"),
    ("OMIM:1", "Spotted fever 1", "", "HP:0000021", "PMID:10;PMID:11", "HP:0040282", "P"),
    ("OMIM:1", "Spotted fever 1", "", "HP:0000012", "OMIM:1", "0/4", "P"),
    ("OMIM:1", "spotted fever 1", "", "HP:0000006", "OMIM:1", "", "I"),
    ("OMIM:2", "Blue disease", "", "HP:0000012", "PMID:20", "", "P"),
    ("OMIM:2", "Blue disease", "NOT", "HP:0000020", "PMID:20", "", "P"),
    ("OMIM:3", "Twin syndrome", "", "HP:0000020", "PMID:30", "45%", "P"),
    ("OMIM:4", "Twin syndrome", "", "HP:0000911", "PMID:40", "1/1", "P"),
    ("OMIM:4", "Spotted fever 1", "", "HP:0000800", "PMID:40", "", "P"),
    ("OMIM:4", "Twin syndrome", "", "HP:0000801", "PMID:40", "", "P"),
    ("OMIM:4", "Twin syndrome", "", "HP:0000010", "PMID:41", "", "P"),
    ("ORPHA:9", "Elsewhere", "", "HP:0000020", "ORPHA:9", "", "P"),
)


def release(
    folder: Path,
    rows: Sequence[Sequence[str]] = ROWS,
    *,
    columns: Sequence[str] = COLUMNS,
    terms: str = TERMS,
) -> Path:
    """The folder of a release with these rows."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hp.obo").write_text(terms, encoding="utf-8")
    lines = ["#description: made by hand", "#version: 2020-02-21", "\t".join(columns)]
    for disease, name, qualifier, term, reference, frequency, aspect in rows:
        cells = {
            "database_id": disease,
            "disease_name": name,
            "qualifier": qualifier,
            "hpo_id": term,
            "reference": reference,
            "frequency": frequency,
            "aspect": aspect,
        }
        lines.append("\t".join(cells.get(column, "") for column in columns))
    (folder / "phenotype.hpoa").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def patient(
    id: str, disease: tuple[str, str], *terms: str, absent: Sequence[str] = (), pmid: str = ""
) -> dict[str, Any]:
    """A line of the phenopackets' short form; a term is called after its id."""
    return {
        "id": id,
        "sex": "MALE",
        "age": "P3Y",
        "present": [[term, NAMES.get(term, term)] for term in terms],
        "absent": [[term, NAMES.get(term, term)] for term in absent],
        "diagnosis": list(disease),
        "pmid": [pmid] if pmid else [],
    }


NAMES = {
    "HP:0000010": "Skin sign",
    "HP:0000011": "Red spot",
    "HP:0000012": "Blue spot",
    "HP:0000020": "Seizure",
    "HP:0000021": "Focal seizure",
}


def patients(path: Path, *rows: dict[str, Any]) -> str:
    """The source of these patients, all held out."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return f"phenopackets:{path}#all"
