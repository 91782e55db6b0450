"""A DDXPlus release small enough to check by hand, in the English coding (E_nn, V_nn)."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FIELDS = ["AGE", "DIFFERENTIAL_DIAGNOSIS", "SEX", "PATHOLOGY", "EVIDENCES", "INITIAL_EVIDENCE"]
REAL = Path(__file__).parents[2] / "shared" / "data" / "ddxplus"


def _evidence(
    code: str, question: str, kind: str = "B", above: str = "", values: Any = (), default: Any = 0
) -> dict[str, Any]:
    return {
        "name": code,
        "code_question": above or code,
        "question_fr": "…",
        "question_en": question,
        "is_antecedent": False,
        "default_value": default,
        "value_meaning": {k: {"fr": "…", "en": v} for k, v in values}
        if isinstance(values, list)
        else {},
        "possible-values": [k for k, _ in values] if isinstance(values, list) else list(values),
        "data_type": kind,
    }


EVIDENCES = [
    _evidence("E_1", "Do you have a fever?"),
    _evidence("E_2", "Do you have pain somewhere?"),
    _evidence(
        "E_3",
        "Where is the pain?",
        "M",
        "E_2",
        [("V_1", "nowhere"), ("V_2", "forehead"), ("V_3", "chest(R)")],
        "V_1",
    ),
    _evidence("E_4", "How intense is the pain?", "C", "E_2", range(11)),
    _evidence(
        "E_5",
        "What color is the rash?",
        "C",
        "",
        [("V_4", "NA"), ("V_5", "red"), ("V_6", "pink")],
        "V_4",
    ),
    _evidence(
        "E_6",
        "Have you traveled out of the country?",
        "C",
        "",
        [("V_7", "N"), ("V_8", "Europe")],
        "V_7",
    ),
    _evidence("E_7", "Do you smoke?"),
    _evidence("E_8", "Do you smoke?"),
    _evidence("E_9", "Do you have diabetes?", above="e10, e11"),
]
CONDITIONS = {
    "Flu": ("Grippe", "j11.1", ["E_1", "E_2", "E_3", "E_4"], ["E_6", "E_9"]),
    "Croup": ("Laryngite", "J05.0", ["E_1", "E_5"], ["E_6", "E_7"]),
    "Pneumonia": ("Pneumonie", "j17, j18", ["E_1", "E_2", "E_3", "E_4", "E_5"], ["E_6", "E_8"]),
}


def conditions() -> dict[str, Any]:
    return {
        name: {
            "condition_name": name,
            "cond-name-fr": french,
            "cond-name-eng": name,
            "icd10-id": code,
            "symptoms": {key: {} for key in symptoms},
            "antecedents": {key: {} for key in antecedents},
            "severity": 3,
        }
        for name, (french, code, symptoms, antecedents) in CONDITIONS.items()
    }


def patient(
    pathology: str = "Flu",
    evidences: Sequence[str] = ("E_1",),
    initial: str = "E_1",
    age: object = 50,
    sex: str = "F",
) -> dict[str, Any]:
    """One row as the release has it: lists written as Python literals."""
    ranked = [[pathology, 0.7], ["Croup" if pathology != "Croup" else "Flu", 0.3]]
    values = [age, str(ranked), sex, pathology, str(list(evidences)), initial]
    return dict(zip(FIELDS, values, strict=True))


def write_release(folder: Path) -> None:
    entries = {entry["name"]: entry for entry in EVIDENCES}
    (folder / "release_evidences.json").write_text(json.dumps(entries), encoding="utf-8")
    (folder / "release_conditions.json").write_text(json.dumps(conditions()), encoding="utf-8")


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(rows)
    return path
