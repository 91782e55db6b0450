"""Small files in the official layouts of the clinical data sets, in words of our own.

The contract test opens them.

`LAYOUTS` maps a scheme to a function that writes its files into a folder and returns the rest of
the spec.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

# AgentClinic


def station(**change: Any) -> dict[str, Any]:
    return {
        "OSCE_Examination": {
            "Objective_for_Doctor": "Find out why the toe hurts and swells.",
            "Patient_Actor": {
                "Demographics": "50-year-old man",
                "History": "The toe hurts since last night. He ate lobster; his brother has gout.",
                "Symptoms": {
                    "Primary_Symptom": "Toe pain.",
                    "Secondary_Symptoms": ["Swelling", "No fever"],
                },
                "Past_Medical_History": "High blood pressure.",
                "Current_Medications": ["Thiazide", "Aspirin"],
                "Social_History": {"Alcohol_Use": "Beer daily", "Occupation": "Not specified"},
                "Review_of_Systems": "Denies chills.",
            },
            "Physical_Examination_Findings": {
                "Vital_Signs": {"Heart_Rate": "80 bpm", "Afebrile": True},
                "Foot_Examination": {
                    "Inspection": "Red and swollen. Warm.",
                    "Palpation": "Not performed.",
                },
            },
            "Test_Results": {
                "Blood_Tests": {"Uric_Acid": "9 mg/dL", "CRP": None},
                "Joint_Aspiration": {"Findings": "Needles, as in gout."},
                "X-ray_Foot": {"Findings": "Soft tissue swelling."},
            },
            "Correct_Diagnosis": "Gout",
        }
        | change
    }


def picture(**change: Any) -> dict[str, Any]:
    return {
        "image_url": "https://example.org/1.png",
        "question": (
            "A girl of 9 has a rash. It itches at night. A skin biopsy shows mites. What is the "
            "diagnosis?"
        ),
        "answers": [{"text": "Eczema", "correct": False}, {"text": "Scabies", "correct": True}],
        "patient_info": "You are a girl of 9 and scratch; nobody said scabies.",
        "physical_exams": "Biopsy: mites.",
    } | change


def written(path: Path, *rows: Any) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


# phenopackets


def packet(id: str = "p1", **change: Any) -> dict[str, Any]:
    return {
        "id": id,
        "subject": {
            "id": "S",
            "sex": "FEMALE",
            "timeAtLastEncounter": {"age": {"iso8601duration": "P2Y5M"}},
        },
        "phenotypicFeatures": [
            {"type": {"id": "HP:1", "label": "Stiff skin"}},
            {"type": {"id": "HP:2", "label": "Cataract"}, "excluded": True},
            {"type": {"id": "HP:3", "label": "Elevated serum ferritin"}},
            {"type": {"id": "HP:1", "label": "Stiff skin"}},
        ],
        "interpretations": [
            {"diagnosis": {"disease": {"id": "OMIM:184900", "label": "Stiff man syndrome 1"}}}
        ],
        "metaData": {"externalReferences": [{"id": "PMID:7", "reference": "x"}]},
    } | change


def referring(*ids: str) -> list[dict[str, Any]]:
    """Features, each with the reference of this id as its evidence."""
    return [
        {
            "type": {"id": f"HP:{n}", "label": f"Sign {n}"},
            "evidence": [{"evidenceCode": {"id": "ECO:0000033"}, "reference": {"id": id}}],
        }
        for n, id in enumerate(ids)
    ]


def stored(folder: Path, *packets: dict[str, Any]) -> str:
    for number, one in enumerate(packets):
        path = folder / f"G{number % 3}" / "phenopackets" / f"{one['id']}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(one, indent=1), encoding="utf-8")
    return str(folder)


# tables as PhysioNet writes them


def table(
    path: Path, header: str, lines: Iterable[Sequence[object]], *, zipped: bool = False
) -> None:
    """A CSV file as PhysioNet writes them; the columns that nobody reads are there too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    opener = gzip.open if zipped else open
    with opener(f"{path}.gz" if zipped else path, "wt", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header.split(","))
        writer.writerows(lines)


CDM_HEADERS = {
    "history_of_present_illness": "hadm_id,hpi",
    "physical_examination": "hadm_id,pe",
    "laboratory_tests": "hadm_id,itemid,valuestr,ref_range_lower,ref_range_upper",
    "microbiology": "hadm_id,test_itemid,valuestr,spec_itemid",
    "radiology_reports": "hadm_id,note_id,modality,region,exam_name,text",
    "discharge_diagnosis": "hadm_id,discharge_diagnosis",
    "discharge_procedures": "hadm_id,discharge_procedure",
    "icd_diagnosis": "hadm_id,icd_diagnosis",
    "icd_procedures": "hadm_id,icd_code,icd_title,icd_version",
    "lab_test_mapping": "itemid,label,fluid,category,count,corresponding_ids",
}
DISEASES = ("appendicitis", "cholecystitis", "diverticulitis", "pancreatitis")
HISTORY = (
    "A ___ year old man comes with belly pain since\nyesterday. He had pancreatitis before.\n"
    "Past Medical History: Gallstones. Hypertension.\nSocial History: Drinks."
)


def cdm(folder: Path, count: int = 8, groups: Any = None, **change: Any) -> Path:
    """`count` admissions, two to a patient, the diseases in turn."""
    hadms = [2_000 + i for i in range(count)]
    tables: dict[str, Any] = {
        "history_of_present_illness": [(h, HISTORY) for h in hadms],
        "physical_examination": [
            (h, "VS: 37.5, 90. Abd: Soft. Tender on the right, as in appendicitis.") for h in hadms
        ],
        "laboratory_tests": [
            (h, i, v, lo, hi)
            for h in hadms
            for i, v, lo, hi in ((501, "900 IU/L", 0, 60.0), (502, "5", "", ""))
        ],
        "microbiology": [(h, 900, "NO GROWTH.", 700) for h in hadms],
        "radiology_reports": [
            (
                h,
                f"{10 + i // 2}-RR-{i}",
                "CT",
                "Abdomen",
                "CT ABD",
                "Fat stranding.\nConsistent with acute pancreatitis.",
            )
            for i, h in enumerate(hadms)
        ],
        "discharge_diagnosis": [(h, "Acute pancreatitis") for h in hadms],
        "discharge_procedures": [(h, "Removal of the gallbladder") for h in hadms],
        "icd_diagnosis": [(h, "Pancreatitis") for h in hadms],
        "icd_procedures": [(h, "0FT4", "Resection of gallbladder", 10) for h in hadms],
        "lab_test_mapping": [
            ("501.0", "Lipase", "Blood", "Chemistry", 5, "[501]"),
            ("502", "Lactate", "", "", 5, "[502]"),
            ("", "Serum lipase", "", "", "", "[501]"),
            ("900", "Blood culture", "", "", "", "[900]"),
        ],
    } | change
    for name, lines in tables.items():
        table(folder / f"{name}.csv", CDM_HEADERS[name], lines)
    turns = {disease: hadms[place::4] for place, disease in enumerate(DISEASES)}
    (folder / "pathology_ids.json").write_text(json.dumps(groups or turns))
    return folder


IV_HEADERS = {
    "hosp/patients": "subject_id,gender,anchor_age,anchor_year,anchor_year_group,dod",
    "hosp/admissions": "subject_id,hadm_id,admittime,dischtime,deathtime,admission_type,"
    "admit_provider_id,admission_location,discharge_location,insurance,language,marital_status,"
    "race,edregtime,edouttime,hospital_expire_flag",
    "hosp/diagnoses_icd": "subject_id,hadm_id,seq_num,icd_code,icd_version",
    "hosp/d_icd_diagnoses": "icd_code,icd_version,long_title",
    "hosp/d_labitems": "itemid,label,fluid,category",
    "hosp/labevents": "labevent_id,subject_id,hadm_id,specimen_id,itemid,order_provider_id,"
    "charttime,storetime,value,valuenum,valueuom,ref_range_lower,ref_range_upper,flag,priority,"
    "comments",
    "note/discharge": "note_id,subject_id,hadm_id,note_type,note_seq,charttime,storetime,text",
}
SUMMARY = """Name: ___  Unit No: ___

Chief Complaint:
Short of breath

History of Present Illness:
The patient could not climb stairs for a week. She almost
expired at home.

Family History:
Her father died young.

Physical Exam:
Lungs: wet.
DISCHARGE EXAM:
Lungs: dry.

Brief Hospital Course:
She was pronounced dead on the third day.

Discharge Disposition:
Expired
"""


def admission(subject: int, hadm: int, start: str, end: str, died: int = 0) -> tuple[object, ...]:
    nothing = [""] * 9
    return (subject, hadm, f"{start} 10:00:00", f"{end} 12:00:00", "", "EW EMER.", *nothing, died)


def value(
    hadm: object, item: int, time: str, text: str = "1.2", unit: str = "mg/dL"
) -> tuple[object, ...]:
    return (1, 1, hadm, 1, item, "", time, time, text, text, unit, "0.5", "1.1", "", "", "")


STAYS = [
    admission(1, 101, "2150-01-01", "2150-01-05"),
    admission(1, 102, "2150-01-20", "2150-01-22"),  # 15 days later
    admission(1, 103, "2150-06-01", "2150-06-04", died=1),  # months later
    admission(2, 201, "2160-03-01", "2160-03-02"),
    admission(3, 301, "2170-01-01", "2170-01-09"),
    admission(3, 302, "2170-01-05", "2170-01-07"),  # inside the other one
    admission(4, 401, "2180-01-01", "2180-01-09"),  # with nothing on file
]


def iv(folder: Path, *, zipped: bool = True, noted: bool = True, **change: Any) -> Path:
    tables: dict[str, Any] = {
        "hosp/patients": [
            (1, "F", 60, 2149, "", ""),
            (2, "M", 91, 2160, "", ""),
            (3, "M", 30, 2170, "", ""),
            (4, "F", 50, 2180, "", ""),
        ],
        "hosp/admissions": list(reversed(STAYS)),
        "hosp/diagnoses_icd": [
            (1, h, s, c, 10) for h in (101, 103) for s, c in ((2, "I10"), (1, "I50"))
        ],
        "hosp/d_icd_diagnoses": [
            ("I10", 9, "Other"),
            ("I10", 10, "High blood pressure"),
            ("I50", 10, "Heart failure"),
        ],
        "hosp/d_labitems": [
            (7, "Creatinine", "Blood", "Chemistry"),
            (8, "Sodium", "Blood", ""),
            (9, "Lactate", "", ""),
        ],
        "hosp/labevents": [
            *(
                value(h, i, f"{d} 13:00:00")
                for h, d in ((103, "2150-06-01"), (201, "2160-03-01"), (302, "2170-01-05"))
                for i in (7, 8)
            ),
            value(103, 7, "2150-06-01 11:00:00", "1.0"),  # earlier, though later in the file
            value(103, 7, "2150-06-02 11:00:00", "3.0"),
            value(103, 9, "2150-06-02 10:00:01", "9.0", ""),  # a second after the first day
            value(102, 8, "2150-01-20 13:00:00", "140", "mEq/L"),
            value("", 7, "2150-06-02 11:00:00"),
            value(103, 8, "2150-06-02 11:00:00", "___"),
        ],
        "note/discharge": [("1-DS-1", 1, h, "DS", 1, "", "", SUMMARY) for h in (101, 103)]
        + [("1-DS-9", 1, "", "DS", 9, "", "", "x")],
    } | {key.replace("__", "/"): lines for key, lines in change.items()}
    for name, lines in tables.items():
        if noted or not name.startswith("note"):
            table(folder / f"{name}.csv", IV_HEADERS[name], lines, zipped=zipped)
    return folder


def _stations(folder: Path) -> str:
    return written(folder / "agentclinic_medqa.jsonl", *(station() for _ in range(24)))


def _packets(folder: Path) -> str:
    return stored(folder / "store", *(packet(f"p{i}", metaData={}) for i in range(24)))


def _phenobrain(folder: Path) -> str:
    """40 patients with three terms and two codes each."""
    rows = [
        [[f"HP:{number}", "HP:900", f"HP:{1000 + number}"], [f"OMIM:{number}", f"ORPHA:{number}"]]
        for number in range(1, 41)
    ]
    path = folder / "phenobrain.json"
    path.write_text(json.dumps(rows), encoding="utf-8")
    return str(path)


LAYOUTS: dict[str, Callable[[Path], str]] = {
    "agentclinic": _stations,
    "phenobrain": _phenobrain,
    "phenopackets": _packets,
    "mimiccdm": lambda folder: str(cdm(folder / "cdm", 40)),
    "mimiciv": lambda folder: f"{iv(folder / 'mimic')}#outcome",
}
