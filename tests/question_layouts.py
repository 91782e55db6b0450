"""Small files in the official layouts of the question sets, in words of our own.

The contract test opens them.

`LAYOUTS` maps a scheme to a function that writes its files into a folder and returns the rest of
the spec.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Layout = Callable[[Path], str]
COUNT = 24  # rows a file: enough that one in five is held out
FOUR = ("Asthma", "Croup", "Influenza", "Pulmonary embolism")


def lines(path: Path, rows: Sequence[Any]) -> Path:
    """JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8"
    )
    return path


def document(path: Path, value: Any) -> Path:
    """One JSON document, indented as the published ones are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=False, indent=4), encoding="utf-8")
    return path


def table(path: Path, rows: Sequence[Sequence[str]]) -> Path:
    """CSV with minimal quoting."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def stem(i: int) -> str:
    return (
        f"Patient {i} is a man aged {20 + i} with a cough since Monday. What is the most likely "
        "diagnosis?"
    )


def medqa(i: int, **change: Any) -> dict[str, Any]:
    options = dict(zip("ABCD", FOUR, strict=True))
    right = "ABCD"[i % 4]
    return {
        "question": stem(i),
        "answer": options[right],
        "options": options,
        "meta_info": "step1",
        "answer_idx": right,
        "metamap_phrases": ["cough"],
    } | change


def medmcqa(i: int, **change: Any) -> dict[str, Any]:
    texts = dict(zip(("opa", "opb", "opc", "opd"), FOUR, strict=True))
    told = {
        "id": f"id-{i}",
        "question": stem(i),
        "exp": f"Ans. ({'abcd'[i % 4]}) because of the cough.",
        "cop": i % 4 + 1,
    }
    return {
        **told,
        **texts,
        "subject_name": "Medicine",
        "topic_name": None,
        "choice_type": "single",
    } | change


def mmlu(i: int) -> list[str]:
    return [stem(i) + '\nChoose one, "the best".', *FOUR, "ABCD"[i % 4]]


def pubmedqa(i: int, **change: Any) -> dict[str, Any]:
    return {
        "QUESTION": f"Does tea number {i} help?",
        "CONTEXTS": ["Tea is old.", f"We gave it to {i + 10} people."],
        "LABELS": ["BACKGROUND", "METHODS"],
        "MESHES": ["Tea"],
        "YEAR": "2001",
        "final_decision": ("yes", "no", "maybe")[i % 3],
        "LONG_ANSWER": "It may.",
    } | change


def medxpertqa(i: int, **change: Any) -> dict[str, Any]:
    options = {letter: f"Treatment {letter}" for letter in "ABCDEFGHIJ"}
    choices = " ".join(f"({letter}) {text}" for letter, text in options.items())
    return {
        "id": f"Text-{i}",
        "question": f"{stem(i)}\nAnswer Choices: {choices}",
        "options": options,
        "label": "ABCDEFGHIJ"[i % 10],
        "medical_task": "Treatment",
        "body_system": "Respiratory",
        "question_type": "Reasoning",
    } | change


def cmb(i: int, **change: Any) -> dict[str, Any]:
    several = i % 3 == 0
    return {
        "exam_type": "医师考试",
        "exam_class": "执业医师",
        "exam_subject": "内科",
        "question": f"患者男，{20 + i}岁，咳嗽三天。应首先考虑",
        "answer": "ABD" if several else "C",
        "question_type": "多项选择题" if several else "单项选择题",
        "option": {"A": "哮喘", "B": "流感", "C": "肺炎", "D": "肺栓塞", "E": ""},
    } | change


def cmb_clin(i: int, **change: Any) -> dict[str, Any]:
    return {
        "id": str(i),
        "title": "呼吸疾病 案例分析-肺炎",
        "description": f"现病史\n病人，男，{40 + i}岁，发热三天。",
        "QA_pairs": [
            {"question": "简述诊断。", "answer": f"第{i}例诊断：肺炎。"},
            {"question": "简述治疗原则。", "solution": f"第{i}例：抗感染。"},
        ],
    } | change


def rjua(i: int, **change: Any) -> dict[str, Any]:
    return {
        "id": str(i),
        "question": f"医生您好，我{40 + i}岁，最近尿频。外院说有膀胱结石。请问怎么治疗？",
        "context": "Context：多喝水。",
        "answer": "您好，考虑膀胱结石。",
        "disease": "膀胱结石（多发，小）、尿路感染",
        "advice": "手术",
    } | change


def rarearena(i: int, **change: Any) -> dict[str, Any]:
    return {
        "_id": f"{i}-1",
        "case_report": f"A girl aged {i} has blue nails. Her uncle had Zebra disease too.",
        "diagnosis": "zebra disease",
        "Orpha_name": "Striped horse syndrome",
        "Orpha_id": "12345",
        "age": [[i, "year"]],
        "gender": "F",
        "pub_date": "2020",
    } | change


def nejmqa(i: int) -> list[str]:
    options = "\n".join(f"{letter}. {text}" for letter, text in zip("ABCD", FOUR, strict=True))
    return [str(i), f"{stem(i)}\n{options}", "ABCD"[i % 4]]


def abgcoqa(i: int, **change: Any) -> dict[str, Any]:
    ambiguous = i % 2 == 0
    back = {
        "question": "Do you mean the cat?",
        "answers": [
            {"clr_ans": "Yes", "org_ans": "grey", "org_ans_2": "grey", "org_ans_3": "light grey"},
            {"clr_ans": "No, the dog", "org_ans": "brown"},
        ],
    }
    return {
        "id": f"passage{i}|3|2",
        "story": f"There were a cat and {i} dogs.",
        "target_turn": {
            "turn_id": 3,
            "question": "Which colour?",
            "answer": "grey",
            "rationale": "a cat",
            "span_start": 0,
        },
        "history_turns": [
            {"turn_id": 2, "question": "Who was there?", "answer": "a cat", "rationale": "a cat"}
        ],
        "ambiguity": "ambiguous" if ambiguous else "non_ambiguous",
        "clarification_turn": back if ambiguous else {},
        "source": "mctest",
    } | change


def _medqa(folder: Path) -> str:
    for number, part in enumerate(("train", "dev", "test")):
        lines(folder / f"{part}.jsonl", [medqa(100 * number + i) for i in range(COUNT)])
    lines(
        folder / "US_qbank.jsonl",
        [medqa(100 * number + i) for number in range(3) for i in range(COUNT)],
    )
    return str(folder)


def _medmcqa(folder: Path) -> str:
    for part, first in (("train", 0), ("dev", 100)):
        lines(folder / f"{part}.json", [medmcqa(first + i) for i in range(COUNT)])
    lines(
        folder / "test.json",
        [
            {k: v for k, v in medmcqa(200 + i).items() if k not in ("cop", "exp")}
            for i in range(COUNT)
        ],
    )
    return str(folder)


def _mmlu(folder: Path) -> str:
    table(folder / "test" / "anatomy_test.csv", [mmlu(i) for i in range(COUNT)])
    table(folder / "dev" / "anatomy_dev.csv", [mmlu(100 + i) for i in range(5)])
    table(folder / "test" / "philosophy_test.csv", [mmlu(i) for i in range(COUNT)])
    return str(folder)


def _pubmedqa(folder: Path) -> str:
    rows = {str(1000 + i): pubmedqa(i) for i in range(COUNT)}
    document(folder / "ori_pqal.json", rows)
    document(
        folder / "test_ground_truth.json",
        {key: rows[key]["final_decision"] for key in list(rows)[::2]},
    )
    return str(folder)


def _medxpertqa(folder: Path) -> str:
    lines(folder / "dev.jsonl", [medxpertqa(i) for i in range(3)])
    lines(folder / "test.jsonl", [medxpertqa(100 + i) for i in range(COUNT)])
    return str(folder)


def _cmb(folder: Path) -> str:
    document(folder / "CMB-Exam/CMB-train/CMB-train-merge.json", [cmb(i) for i in range(COUNT)])
    document(
        folder / "CMB-Exam/CMB-val/CMB-val-merge.json",
        [cmb(100 + i, id=i, explanation="因为。") for i in range(4)],
    )
    asked = [{k: v for k, v in cmb(200 + i, id=i).items() if k != "answer"} for i in range(COUNT)]
    document(folder / "CMB-Exam/CMB-test/CMB-test-choice-question-merge.json", asked)
    document(
        folder / "CMB-test-choice-answer.json",
        [{"id": i, "answer": cmb(200 + i)["answer"]} for i in range(COUNT)],
    )
    return str(folder / "CMB-Exam")


def _cmb_clin(folder: Path) -> str:
    return str(document(folder / "CMB-Clin-qa.json", [cmb_clin(i) for i in range(COUNT)]))


def _rjua(folder: Path) -> str:
    for number, part in enumerate(("train", "valid", "test")):
        lines(folder / f"RJUA_{part}.json", [rjua(100 * number + i) for i in range(COUNT)])
    return str(folder)


def _rarearena(folder: Path) -> str:
    lines(folder / "RDS.json", [rarearena(i) for i in range(COUNT)])
    lines(
        folder / "RDC.json",
        [rarearena(i, test_results="Stripes in the biopsy.") for i in range(COUNT)],
    )
    lines(folder / "RDS_benchmark.jsonl", [rarearena(100 + i) for i in range(COUNT)])
    lines(
        folder / "RDC_benchmark.jsonl",
        [rarearena(100 + i, test_results="Stripes in the biopsy.") for i in range(COUNT)],
    )
    document(folder / "orphanet_hypernym.json", {"1": ["2"]})
    return str(folder)


def _nejmqa(folder: Path) -> str:
    for number, name in enumerate(("general_surgery", "psychiatry")):
        table(
            folder / f"{name}.csv",
            [["", "question", "answer"], *(nejmqa(100 * number + i) for i in range(COUNT))],
        )
    return str(folder)


def _abgcoqa(folder: Path) -> str:
    for number, part in enumerate(("train", "val", "test")):
        rows = [abgcoqa(100 * number + i) for i in range(COUNT)]
        document(folder / f"coqa_abg_{part}.json", {"version": "1.0", "data": rows})
    return str(folder)


LAYOUTS: dict[str, Layout] = {
    "medqa": _medqa,
    "medmcqa": _medmcqa,
    "mmlu": _mmlu,
    "pubmedqa": _pubmedqa,
    "medxpertqa": _medxpertqa,
    "cmb": _cmb,
    "cmb_clin": _cmb_clin,
    "rjua": _rjua,
    "rarearena": _rarearena,
    "nejmqa": _nejmqa,
    "abgcoqa": _abgcoqa,
}
