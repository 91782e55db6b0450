"""The question sets: official layouts by hand, parts, views, answers, malformed files.

The published files are tested if they are at hand.
"""

from __future__ import annotations

import csv
import io
import json
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from question_layouts import (
    COUNT,
    FOUR,
    LAYOUTS,
    abgcoqa,
    cmb,
    cmb_clin,
    document,
    lines,
    medmcqa,
    medqa,
    medxpertqa,
    mmlu,
    nejmqa,
    pubmedqa,
    rarearena,
    rjua,
    stem,
    table,
)

from workup.cases import jsonl, open_source
from workup.cases.datasets.nejmqa import lettered
from workup.cases.datasets.rjua import diagnoses_of
from workup.cases.files import LINE_LIMIT
from workup.cases.pieces import Piece, csv_cells, csv_pieces, piece_at, pieces
from workup.cases.questions import VIEWS, Dropped, choice, parted
from workup.core.case import Case, Source
from workup.core.errors import CaseError, UserError
from workup.runs.policies.unseen import open_unseen

REAL = Path(__file__).parents[2] / "shared" / "data"
ROWS: dict[str, Callable[..., Any]] = {
    "medqa": medqa,
    "medmcqa": medmcqa,
    "medxpertqa": medxpertqa,
    "cmb": cmb,
    "cmb_clin": cmb_clin,
    "rjua": rjua,
    "rarearena": rarearena,
    "abgcoqa": abgcoqa,
}
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=12)


def opened(scheme: str, folder: Path, view: str = "") -> Source:
    return open_source(f"{scheme}:{LAYOUTS[scheme](folder)}{'#' + view if view else ''}")


def only(scheme: str, path: Path) -> Case:
    source = open_source(f"{scheme}:{path}#all")
    assert len(source.test) == 1
    return source.test[0]


def fields(case: Case) -> tuple[str, str, tuple[str, ...], str]:
    return case.presentation, case.question, case.options, case.truth.diagnosis


# each layout by hand ------------------------------------------------------------------------------


def test_medqa(tmp_path: Path) -> None:
    case = only("medqa", lines(tmp_path / "x.jsonl", [medqa(2)]))
    said = "Patient 2 is a man aged 22 with a cough since Monday."
    assert fields(case) == (said, "What is the most likely diagnosis?", FOUR, "Influenza")
    assert case.truth.extra == {
        "right": ["Influenza"],
        "letters": ["C"],
        "alphabet": ["A", "B", "C", "D"],
    }
    assert case.category == "step1"


def test_medqa_in_chinese_without_metamap(tmp_path: Path) -> None:
    row = {
        "question": "患儿，3岁，发热两天，口腔黏膜可见疱疹。最可能的诊断是（　　）。",
        "options": {"A": "麻疹", "B": "手足口病", "C": "水痘", "D": "风疹", "E": "幼儿急疹"},
        "answer": "手足口病",
        "meta_info": "儿科学",
        "answer_idx": "B",
    }
    case = only("medqa", lines(tmp_path / "x.jsonl", [row]))
    assert (case.presentation, case.question) == (
        "患儿，3岁，发热两天，口腔黏膜可见疱疹。",
        "最可能的诊断是（　　）。",
    )
    assert (case.truth.diagnosis, case.category, len(case.options)) == ("手足口病", "儿科学", 5)


def test_medqa_is_not_what_mediq_made_of_it(tmp_path: Path) -> None:
    row = medqa(0) | {"context": ["A man."], "facts": ["He coughs."]}
    with pytest.raises(UserError, match="open the file as mediq:FILE"):
        open_source(f"medqa:{lines(tmp_path / 'x.jsonl', [row])}")


def test_medmcqa(tmp_path: Path) -> None:
    source = open_source(f"medmcqa:{lines(tmp_path / 'x.jsonl', [medmcqa(0), medmcqa(3)])}#all")
    assert [(case.id, case.truth.diagnosis, case.category) for case in source.test] == [
        ("id-0", "Asthma", "Medicine"),
        ("id-3", "Pulmonary embolism", "Medicine"),
    ]
    assert source.test[0].truth.references == ("Ans. (a) because of the cough.",)
    assert "2 of 2 explanations" in source.notes[0]


def test_mmlu_from_csv_with_quotes_and_line_breaks(tmp_path: Path) -> None:
    path = table(
        tmp_path / "college_medicine_test.csv",
        [mmlu(1), ["A nerve, or", "x", 'y "z"', "", "w", "B"]],
    )
    first, second = open_source(f"mmlu:{path}#all").test
    assert (first.presentation, first.question) == (f'{stem(1)}\nChoose one, "the best".', "")
    assert (first.options, first.truth.diagnosis, first.category) == (
        FOUR,
        "Croup",
        "college_medicine",
    )
    assert second.truth.extra == {"right": ['y "z"'], "letters": ["B"], "alphabet": ["A", "B", "D"]}
    assert first.id.startswith("college_medicine-")


def test_mmlu_from_json_lines_by_letter_and_by_place(tmp_path: Path) -> None:
    by_letter = {
        "subject": "anatomy",
        "id": 7,
        "question": "Which?",
        "options": list(FOUR),
        "answer": "B",
    }
    by_place = {"subject": "anatomy", "question": "Which one?", "choices": list(FOUR), "answer": 3}
    source = open_source(f"mmlu:{lines(tmp_path / 'x.jsonl', [by_letter, by_place])}#all")
    assert [case.truth.diagnosis for case in source.test] == ["Croup", "Pulmonary embolism"]
    assert source.test[0].id == "anatomy-7"


def test_mmlu_reads_the_medical_subjects_of_a_release(tmp_path: Path) -> None:
    source = opened("mmlu", tmp_path)
    assert (len(source.train), len(source.test)) == (0, COUNT)
    assert {case.category for case in source.test} == {"anatomy"}
    assert len(opened("mmlu", tmp_path, "dev").test) == 5


def test_pubmedqa(tmp_path: Path) -> None:
    source = opened("pubmedqa", tmp_path)
    assert (len(source.train), len(source.test)) == (COUNT // 2, COUNT // 2)
    case = source.test[1]
    assert case.id == "1002"
    assert fields(case) == (
        "BACKGROUND: Tea is old.\nMETHODS: We gave it to 12 people.",
        "Does tea number 2 help?",
        ("yes", "no", "maybe"),
        "maybe",
    )
    assert case.truth.references == ("It may.",)
    assert all(int(case.id) % 2 for case in source.train)


def test_pubmedqa_disagreeing_with_its_ground_truth(tmp_path: Path) -> None:
    LAYOUTS["pubmedqa"](tmp_path)
    document(tmp_path / "test_ground_truth.json", {"1000": "no"})
    with pytest.raises(CaseError, match=r"'yes' here, 'no' in .*test_ground_truth"):
        open_source(f"pubmedqa:{tmp_path}", strict=True)
    left = open_source(f"pubmedqa:{tmp_path}#all")
    assert len(left.test) == COUNT - 1
    assert f"1 of {COUNT} rows left out: ori_pqal.json, line 2, field '1000'" in left.notes[-1]


def test_pubmedqa_as_lines(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "x.jsonl", [pubmedqa(0, pmid="5"), pubmedqa(1, pmid="6", final_decision=None)]
    )
    source = open_source(f"pubmedqa:{path}#all")
    assert [case.id for case in source.test] == ["5"]
    assert source.notes[0] == "1 dropped: it has no final decision."
    lines(path, [pubmedqa(0)])
    with pytest.raises(CaseError, match="line 1, field 'pmid': there is no PubMed id"):
        open_source(f"pubmedqa:{path}")


def test_medxpertqa_in_both_published_forms(tmp_path: Path) -> None:
    options = [{"letter": letter, "content": f"Treatment {letter}"} for letter in "ABCDEFGHIJ"]
    rows = [
        medxpertqa(1),
        medxpertqa(1, id="Text-b", options=options, label=["B"]),
        medxpertqa(2, id="MM-1", images=["a.jpeg"]),
    ]
    source = open_source(f"medxpertqa:{lines(tmp_path / 'x.jsonl', rows)}#all")
    one, other = source.test
    assert fields(one) == fields(other)
    assert one.truth.diagnosis == "Treatment B"
    assert "Answer Choices" not in one.presentation + one.question
    assert len(one.options) == 10
    assert source.notes[0] == "1 dropped: it shows an image."


def test_cmb_with_several_right_options(tmp_path: Path) -> None:
    case = only("cmb", document(tmp_path / "x.json", [cmb(0)]))
    assert fields(case) == (
        "患者男，20岁，咳嗽三天。",
        "应首先考虑（多项选择题）",
        ("哮喘", "流感", "肺炎", "肺栓塞"),
        "哮喘; 流感; 肺栓塞",
    )
    assert case.truth.extra == {
        "right": ["哮喘", "流感", "肺栓塞"],
        "letters": list("ABD"),
        "alphabet": list("ABCD"),
    }
    assert only("cmb", document(tmp_path / "y.json", [cmb(1)])).question == "应首先考虑"


@pytest.mark.parametrize("answer", ["D8", "一般用于退热", "E", "AE", ""])
def test_cmb_drops_what_is_no_answer(tmp_path: Path, answer: str) -> None:
    path = lines(tmp_path / "x.jsonl", [cmb(0, answer=answer), cmb(1)])
    source = open_source(f"cmb:{path}#all")
    assert len(source.test) == 1
    assert source.notes[-1].startswith("1 of 2 rows left out: line 1: it")


def test_cmb_takes_the_test_answers_from_their_own_file(tmp_path: Path) -> None:
    source = opened("cmb", tmp_path)
    assert (len(source.train), len(source.test)) == (COUNT, COUNT)
    assert source.test[0].id == "test-0"
    assert [len(case.truth.extra["right"]) for case in source.test[:6]] == [1, 3, 1, 1, 3, 1]
    assert source.train[0].id.startswith("train-")
    (tmp_path / "CMB-test-choice-answer.json").unlink()
    without = open_source(f"cmb:{tmp_path / 'CMB-Exam'}")
    assert (len(without.train), len(without.test)) == (
        COUNT,
        4,
    )  # the val part takes the place of the test part
    assert without.notes[0].startswith(
        f"{COUNT} dropped: its answer stands in CMB-test-choice-answer.json"
    )


def test_cmb_clin_asks_every_question_of_a_patient_on_one_side(tmp_path: Path) -> None:
    source = opened("cmb_clin", tmp_path)
    assert len(source.train) + len(source.test) == 2 * COUNT
    patients = [
        {case.id.partition("-")[0] for case in side} for side in (source.train, source.test)
    ]
    assert not patients[0] & patients[1]
    case = opened("cmb_clin", tmp_path, "all").test[1]
    assert (case.id, case.question, case.truth.diagnosis, case.category) == (
        "0-2",
        "简述治疗原则。",
        "第0例：抗感染。",
        "呼吸疾病",
    )
    assert "肺炎" not in case.presentation


@pytest.mark.parametrize(
    "pairs",
    [
        [
            {"question": "诊断？", "answers": ["肺炎", "肺部感染"]},
            {"question": "治疗？", "answer": "抗感染"},
        ],
        {"question": ["诊断？", "治疗？"], "answers": [["肺炎", "肺部感染"], "抗感染"]},
    ],
)
def test_cmb_clin_reads_lists_of_answers(tmp_path: Path, pairs: Any) -> None:
    cases = open_source(
        f"cmb_clin:{lines(tmp_path / 'x.jsonl', [cmb_clin(7, QA_pairs=pairs)])}#all"
    ).test
    assert [(case.id, case.question, case.truth.diagnosis) for case in cases] == [
        ("7-1", "诊断？", "肺炎"),
        ("7-2", "治疗？", "抗感染"),
    ]
    assert [case.truth.aliases for case in cases] == [("肺部感染",), ()]
    assert cases[0].truth.extra["right"] == ["肺炎"]


def test_cmb_clin_reads_questions_without_pairs(tmp_path: Path) -> None:
    stem = "现病史：病人，男，40岁，发热三天，咳嗽两天，无胸痛。最可能的诊断是什么？"
    rows = [
        {"question": stem, "answers": ["肺炎"]},
        {"id": 3, "question": "诊断？", "answers": "肺炎", "description": "病人发热。"},
        {"question": stem.replace("诊断", "治疗"), "answers": ["抗感染"]},
        {"question": stem, "answers": []},
    ]
    source = open_source(f"cmb_clin:{lines(tmp_path / 'x.jsonl', rows)}#all")
    told = "现病史：病人，男，40岁，发热三天，咳嗽两天，无胸痛。"
    assert [(case.presentation, case.question, case.truth.diagnosis) for case in source.test] == [
        (told, "最可能的诊断是什么？", "肺炎"),
        ("病人发热。", "诊断？", "肺炎"),
        (told, "最可能的治疗是什么？", "抗感染"),
    ]
    first, second, third = (case.id for case in source.test)
    assert (second, first.partition("-")[0]) == (
        "3",
        third.partition("-")[0],
    )  # one patient, one side of a split
    assert "1 of 4 rows left out: line 4, field 'answers'" in source.notes[-1]


def test_a_bad_pair_takes_no_other_with_it(tmp_path: Path) -> None:
    good = cmb_clin(0)["QA_pairs"]
    rows = [
        cmb_clin(
            0, QA_pairs=[good[0], {"question": "诊断？"}, {"question": " ", "answer": "x"}, good[1]]
        ),
        cmb_clin(1, description=" "),
        cmb_clin(2, QA_pairs=[]),
        cmb_clin(3, QA_pairs={"question": ["诊断？"], "answer": []}),
    ]
    source = open_source(f"cmb_clin:{lines(tmp_path / 'x.jsonl', rows)}#all")
    assert [case.id for case in source.test] == ["0-1", "0-4"]
    assert source.notes[-1].startswith(
        "6 of 8 rows left out: line 1, field 'QA_pairs.1.answer': field required; line 1, field "
        "'QA_pairs.2.question': is blank; line 2: it has no description; line 3: it has no "
        "question; …"
    )


def test_rjua_withholds_what_the_patient_already_knows(tmp_path: Path) -> None:
    asked = [rjua(1), rjua(2, question="医生，我尿痛。怎么办？")]
    source = open_source(f"rjua:{lines(tmp_path / 'x.jsonl', asked)}#all")
    case = source.test[0]
    assert fields(case) == (
        "医生您好，我41岁，最近尿频。外院说有[name withheld]。",
        "请问怎么治疗？",
        (),
        "膀胱结石（多发，小）; 尿路感染",
    )
    assert case.truth.extra["right"] == ["膀胱结石（多发，小）", "尿路感染"]
    assert source.notes[0].startswith("1 named their diagnosis")


def test_rarearena_tasks_splits_and_leaks(tmp_path: Path) -> None:
    source = opened("rarearena", tmp_path)
    assert (len(source.train), len(source.test)) == (2 * COUNT, 2 * COUNT)
    assert {case.id for case in source.test} == {
        f"{task}-{100 + i}-1" for task in ("RDS", "RDC") for i in range(COUNT)
    }
    case = next(case for case in source.test if case.id == "RDC-100-1")
    assert case.presentation == (
        "A girl aged 100 has blue nails. Her uncle had [name withheld] too.\nStripes in the biopsy."
    )
    assert (case.truth.diagnosis, case.truth.codes) == ("zebra disease", ("ORPHA:12345",))
    assert case.truth.aliases == ("Striped horse syndrome",)
    assert any(note.startswith(f"{4 * COUNT} named their diagnosis") for note in source.notes)


def test_rarearena_patients_of_both_tasks_stay_together(tmp_path: Path) -> None:
    source = opened("rarearena", tmp_path, "split")
    patients = [
        {case.id.partition("-")[2] for case in side} for side in (source.train, source.test)
    ]
    assert not patients[0] & patients[1]
    assert all(patients)


def test_rarearena_trains_on_no_patient_that_is_tested_on(tmp_path: Path) -> None:
    """Patient 2 of the training part is tested on in the other task, under another id."""
    folder = Path(LAYOUTS["rarearena"](tmp_path))
    extra = rarearena(2, test_results="Stripes in the biopsy.")
    with (folder / "RDC_benchmark.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(extra) + "\n")
    source = open_source(f"rarearena:{folder}")
    trained, tested = ([case.id for case in side] for side in (source.train, source.test))
    assert "RDC-2-1" in tested
    assert sorted(trained) == sorted(
        f"{task}-{i}-1" for task in ("RDS", "RDC") for i in range(COUNT) if i != 2
    )
    assert "1 dropped: the same patient or text is tested on." in source.notes
    assert (
        "1 dropped: repeats an earlier one (the same id; the same text, where a set has no ids)."
        in source.notes
    )
    [parts] = [note for note in source.notes if note.startswith("Official parts")]
    assert "not used here" not in parts


def test_nejmqa_takes_options_out_of_the_question(tmp_path: Path) -> None:
    source = opened("nejmqa", tmp_path, "all")
    case = source.test[1]
    assert fields(case) == (
        "Patient 1 is a man aged 21 with a cough since Monday.",
        "What is the most likely diagnosis?",
        FOUR,
        "Croup",
    )
    assert {case.category for case in source.test} == {"general_surgery", "psychiatry"}


def test_nejmqa_with_several_answers_and_without_options(tmp_path: Path) -> None:
    rows = [["question", "answer"], [nejmqa(0)[1], "A, C"], ["No options?", "A"]]
    source = open_source(f"nejmqa:{table(tmp_path / 'obgyn.csv', rows)}#all")
    assert [case.truth.diagnosis for case in source.test] == ["Asthma; Influenza"]
    assert (
        "1 of 2 rows left out: line 7: its options cannot be told from the question."
        in source.notes[-1]
    )


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([["query", "answer"]], "the header names no column 'question', only query, answer"),
        ([["question", "answer"], ["only one"]], "line 2: the header has 2 columns, this row 1"),
    ],
)
def test_nejmqa_with_another_table(tmp_path: Path, rows: list[list[str]], problem: str) -> None:
    path = table(tmp_path / "x.csv", [*rows, ["a", "b"]])
    with pytest.raises(CaseError, match=problem):
        open_source(f"nejmqa:{path}")


def test_abgcoqa_keeps_the_questions_back(tmp_path: Path) -> None:
    source = opened("abgcoqa", tmp_path)
    assert (len(source.train), len(source.test)) == (COUNT, COUNT)
    unclear, clear = source.test[:2]
    assert unclear.presentation == "There were a cat and 200 dogs.\n\nQ: Who was there?\nA: a cat"
    assert (unclear.question, unclear.truth.diagnosis, unclear.category) == (
        "Which colour?",
        "grey",
        "ambiguous",
    )
    assert unclear.truth.extra == {
        "ambiguous": True,
        "clarifications": [
            {
                "question": "Do you mean the cat?",
                "replies": ["Yes", "No, the dog"],
                "answers": [["grey", "light grey"], ["brown"]],
            }
        ],
    }
    assert (clear.category, clear.truth.extra) == (
        "non_ambiguous",
        {"ambiguous": False, "clarifications": []},
    )


# parts and views ----------------------------------------------------------------------------------


def ids(cases: Any) -> set[str]:
    return {case.id for case in cases}


def test_official_parts_are_kept(tmp_path: Path) -> None:
    source = opened("medqa", tmp_path)
    assert (len(source.train), len(source.test)) == (COUNT, COUNT)
    parts = {view: ids(opened("medqa", tmp_path, view).test) for view in ("train", "dev", "test")}
    assert ids(source.train) == parts["train"]
    assert ids(source.test) == parts["test"]
    assert not any(
        len(opened("medqa", tmp_path, view).train) for view in ("train", "dev", "test", "all")
    )
    everything = opened("medqa", tmp_path, "all")
    assert ids(everything.test) == parts["train"] | parts["dev"] | parts["test"]
    anew = opened("medqa", tmp_path, "split")
    assert ids(anew.train) | ids(anew.test) == ids(everything.test)
    assert not ids(anew.train) & ids(anew.test)
    assert 3 <= len(anew.test) <= 30


def test_dev_takes_the_place_of_a_test_part_that_cannot_be_used(tmp_path: Path) -> None:
    source = opened("medmcqa", tmp_path)  # its test answers are not published
    assert ids(source.test) == {f"id-{100 + i}" for i in range(COUNT)}
    assert source.notes[0] == f"{COUNT} dropped: its answer is not published."
    with pytest.raises(UserError, match="has no test part"):
        opened("medmcqa", tmp_path, "test")


def test_a_file_of_an_official_test_part_is_not_trained_on(tmp_path: Path) -> None:
    path = lines(tmp_path / "phrases_no_exclude_test.jsonl", [medqa(i) for i in range(40)])
    assert (len(open_source(f"medqa:{path}").train), len(open_source(f"medqa:{path}").test)) == (
        0,
        40,
    )
    train = lines(tmp_path / "phrases_no_exclude_train.jsonl", [medqa(i) for i in range(40)])
    source = open_source(f"medqa:{train}")
    assert len(source.train) + len(source.test) == 40
    assert source.train
    assert source.test


def test_a_set_with_an_official_test_part_is_no_single_set(tmp_path: Path) -> None:
    for name in ("train", "test"):
        lines(tmp_path / f"{name}.jsonl", [medqa(i + 20 * (name == "test")) for i in range(20)])
    assert not open_source(f"medqa:{tmp_path}").undivided
    assert not open_source(f"medqa:{tmp_path}#split").undivided
    assert open_source(f"medqa:{tmp_path / 'train.jsonl'}").undivided
    source, split = open_unseen(f"medqa:{tmp_path}", [])
    assert (len(source.test), split) == (20, 0)
    assert ids(source.test) == ids(open_source(f"medqa:{tmp_path}#test").test)


def test_what_stands_in_test_and_train_is_only_tested(tmp_path: Path) -> None:
    lines(tmp_path / "train.jsonl", [medqa(i) for i in range(5)])
    lines(tmp_path / "test.jsonl", [medqa(i) for i in (0, 0, 7)])
    source = open_source(f"medqa:{tmp_path}")
    assert len(source.test) == 2
    assert len(source.train) == 4
    assert source.notes[0].startswith("2 dropped: repeats an earlier one")


def test_a_text_that_is_tested_on_is_not_trained_on_under_another_id(tmp_path: Path) -> None:
    rows = [
        {"subject": f"s{i // 40}", "id": i, "question": stem(i % 40), "options": list(FOUR)}
        for i in range(80)
    ]
    source = open_source(f"mmlu:{lines(tmp_path / 'x.jsonl', [{**r, 'answer': 1} for r in rows])}")
    trained, tested = ({case.presentation for case in side} for side in (source.train, source.test))
    assert tested
    assert not trained & tested
    assert any("the same patient or text is tested on" in note for note in source.notes)


def test_questions_about_one_patient_stay_together_in_our_own_format(tmp_path: Path) -> None:
    asked = opened("cmb_clin", tmp_path, "all").test
    cases = [
        replace(case, presentation=f"{i // 2}{case.presentation}" * 4)
        for i, case in enumerate(asked)
    ]
    path = tmp_path / "ours.jsonl"
    path.write_text("".join(f"{jsonl.line_of(case)}\n" for case in cases), encoding="utf-8")
    source = open_source(f"jsonl:{path}")
    sides = [{case.presentation for case in side} for side in (source.train, source.test)]
    assert len(source.train) + len(source.test) == len(cases) == 2 * len(sides[0] | sides[1])
    assert not sides[0] & sides[1]


@pytest.mark.parametrize(
    ("tail", "problem"),
    [
        ("#tset", "no view of medqa 'tset'. Did you mean 'test'?"),
        ("#all,test", "asks for several views"),
        ("#all,all", "asks for several views"),
        ("#zero-based", "no view of medqa 'zero-based'"),
    ],
)
def test_a_view_that_is_none(tmp_path: Path, tail: str, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        open_source(f"medqa:{LAYOUTS['medqa'](tmp_path)}{tail}")


def test_several_parts_are_tested_on_together(tmp_path: Path) -> None:
    spec = f"medqa:{LAYOUTS['medqa'](tmp_path)}"
    parts = [ids(open_source(f"{spec}#{part}").test) for part in ("dev", "test")]
    source = open_source(f"{spec}#dev,test")
    assert ids(source.test) == parts[0] | parts[1] != parts[1]
    assert not source.train


@pytest.mark.parametrize("scheme", sorted(LAYOUTS))
def test_every_view_of_every_set(scheme: str, tmp_path: Path) -> None:
    spec = f"{scheme}:{LAYOUTS[scheme](tmp_path)}"
    everything = ids(open_source(f"{spec}#all").test)
    for view in VIEWS:
        with suppress(UserError):  # a part that the set does not have
            source = open_source(f"{spec}#{view}")
            assert source.test
            assert ids(source.train) | ids(source.test) <= everything
            assert not ids(source.train) & ids(source.test)
            assert bool(source.train) == (view == "split")


@pytest.mark.parametrize("scheme", sorted(LAYOUTS))
def test_every_set_can_be_exported_and_read_back(scheme: str, tmp_path: Path) -> None:
    source = opened(scheme, tmp_path, "all")
    path = tmp_path / "exported.jsonl"
    jsonl.write(source.test, path)
    assert list(open_source(f"jsonl:{path}#all").test) == list(source.test)


# MedMCQA: from which number the right option is counted -------------------------------------------


def plain(*cops: int | None) -> list[dict[str, Any]]:
    return [medmcqa(i, cop=cop, exp=None) for i, cop in enumerate(cops)]


@pytest.mark.parametrize(
    ("cops", "tail", "right"),
    [
        ((1, 4), "", ["Asthma", "Pulmonary embolism"]),
        ((0, 3), "", ["Asthma", "Pulmonary embolism"]),
        ((0, -1, None), "", ["Asthma"]),
        ((1, 2), "#one-based", ["Asthma", "Croup"]),
        ((1, 2), "#zero-based", ["Croup", "Influenza"]),
        ((1, 2), "#zero-based,all", ["Croup", "Influenza"]),
    ],
)
def test_medmcqa_counts_as_its_values_or_the_user_say(
    tmp_path: Path, cops: tuple[int, ...], tail: str, right: list[str]
) -> None:
    path = lines(tmp_path / "x.jsonl", plain(*cops))
    source = open_source(f"medmcqa:{path}{tail}")
    cases = sorted([*source.train, *source.test], key=lambda case: case.id)
    assert [case.truth.diagnosis for case in cases] == right


@pytest.mark.parametrize(
    ("cops", "tail", "problem"),
    [
        ((1, 2, 3), "", "may count from 0 or from 1; say it"),
        ((0, 4), "", "count neither from 0 nor from 1"),
        ((1, 4), "#zero-based", "do not count as '#zero-based' says"),
        ((1, 2), "#zero-based,one-based", "do not count as"),
        ((7,), "", "count neither"),
    ],
)
def test_medmcqa_is_never_guessed(
    tmp_path: Path, cops: tuple[int, ...], tail: str, problem: str
) -> None:
    path = lines(tmp_path / "x.jsonl", plain(*cops))
    with pytest.raises(UserError, match=problem):
        open_source(f"medmcqa:{path}{tail}")


def test_medmcqa_explanations_speak_against_a_wrong_setting(tmp_path: Path) -> None:
    rows = [medmcqa(i, cop=i + 1, exp=f"Answer- {'ABC'[i]}. Because.") for i in range(3)]
    path = lines(tmp_path / "x.jsonl", rows)
    assert len(open_source(f"medmcqa:{path}#one-based,all").test) == 3
    with pytest.raises(
        UserError, match="3 explanations name another option than 'cop' counted from 0"
    ):
        open_source(f"medmcqa:{path}#zero-based,all")


# stems, options, answers --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stem", "presentation", "question"),
    [
        ("He is ill. What now?", "He is ill.", "What now?"),
        ("He is ill. Is it flu? What now?", "He is ill.", "Is it flu? What now?"),
        ("What now?", "What now?", ""),
        (
            "He took 0.5 mg. The most likely diagnosis is",
            "He took 0.5 mg.",
            "The most likely diagnosis is",
        ),
        (
            "He saw Dr. Who. Temp 38.5°C. The cause is:",
            "He saw Dr. Who. Temp 38.5°C.",
            "The cause is:",
        ),
        ("Growth of S. Aureus was seen. What now?", "Growth of S. Aureus was seen.", "What now?"),
        ("Is he ill? He is.", "Is he ill? He is.", ""),
        ("He is ill.\nWhat now?", "He is ill.", "What now?"),
        ("He is ill. ____ is the cause.", "He is ill.", "____ is the cause."),
        ("男，30岁。咳嗽三天。最可能的诊断是", "男，30岁。咳嗽三天。", "最可能的诊断是"),
        ("男，30岁。最可能的诊断是（　）。", "男，30岁。", "最可能的诊断是（　）。"),
        ("尿频三年。请问我的治疗方案。谢谢。", "尿频三年。", "请问我的治疗方案。谢谢。"),
        (
            "女，34岁，滑跌，右小腿出现疼痛，肿胀，稍有外旋畸形，首先考虑",
            "女，34岁，滑跌，右小腿出现疼痛，肿胀，稍有外旋畸形",
            "首先考虑",
        ),
        ("关于肺炎，错误的是", "关于肺炎，错误的是", ""),
        ("", "", ""),
    ],
)
def test_stems_are_parted_before_the_question(stem: str, presentation: str, question: str) -> None:
    assert parted(stem) == (presentation, question)


@given(st.text(st.sampled_from("aB1 .?!。？，：\n（）\"'_谢请问是"), max_size=60))
def test_parting_loses_nothing_but_blanks_and_a_comma(stem: str) -> None:
    presentation, question = parted(stem)
    glued = "".join((presentation + question).split())
    whole = "".join(stem.split())
    assert glued.replace("，", "") == whole.replace("，", "")
    assert bool(presentation) == bool(whole.strip("，")) or not question
    assert parted(stem) == parted(stem.strip())


@pytest.mark.parametrize(
    "text",
    [
        "?" * 50_000,
        ". A" * 20_000,
        '."' * 30_000,
        "（" * 50_000,
        " " * 50_000 + "x",
        "_" * 50_000,
        "A. " * 20_000,
        "a" + "\n" * 50_000 + " b",
        "x," * 30_000,
        "（" * 50_000 + "x,",
    ],
)
def test_parting_takes_linear_time(text: str) -> None:
    begun = time.thread_time()
    parted(text)
    lettered(text)
    diagnoses_of(text)
    assert time.thread_time() - begun < 5


@given(
    st.lists(TEXT, min_size=1, max_size=8),
    st.sets(st.integers(0, 9), max_size=5),
    st.sampled_from(["", ",", "、", " ; "]),
)
def test_choices_keep_the_options_order(texts: list[str], right: set[int], between: str) -> None:
    options = dict(zip("ABCDEFGH", texts, strict=False))
    letters = between.join("ABCDEFGHIJ"[i] for i in sorted(right, reverse=True))
    made = choice(options, letters)
    filled = {letter: text.strip() for letter, text in options.items() if text.strip()}
    chosen = ["ABCDEFGHIJ"[i] for i in sorted(right)]
    if not chosen or len(filled) < 2 or not set(chosen) <= set(filled):
        assert isinstance(made, Dropped)
    else:
        assert not isinstance(made, Dropped)
        shown, truth = made
        assert shown == tuple(filled.values())
        assert truth.extra == {
            "right": [filled[letter] for letter in chosen],
            "letters": chosen,
            "alphabet": list(filled),
        }
        assert truth.diagnosis == "; ".join(truth.extra["right"])


@pytest.mark.parametrize(
    ("text", "stem", "options"),
    [
        ("Why?\nA. One\nB. Two", "Why?", {"A": "One", "B": "Two"}),
        ("Why? A) One B) Two C) Three", "Why?", {"A": "One", "B": "Two", "C": "Three"}),
        (
            "Vitamin A. Why?\nA. Hepatitis A. virus\nB. Two\nC. Three",
            "Vitamin A. Why?",
            {"A": "Hepatitis A. virus", "B": "Two", "C": "Three"},
        ),
        (
            "Why?\nA. CT\nB. MRI C. US D. Nothing",
            "Why?",
            {"A": "CT", "B": "MRI", "C": "US", "D": "Nothing"},
        ),
        ("Vitamin A. deficit? A. x B. y", "Vitamin A. deficit?", {"A": "x", "B": "y"}),
        *(
            (text, text, {})
            for text in (
                "Why? A. Give vitamin B. Then C. B. y C. z D. w",
                "Why? A. Hepatitis B. virus B. y C. z",
                "Why?\nA. x\nB. y C. vitamin C. D. z",
                "Why? A. Give B. vitamin A. C. x D. y",
            )
        ),
        (
            "Why? A. E. coli B. x C. y D. z E. w",
            "Why?",
            {"A": "E. coli", "B": "x", "C": "y", "D": "z", "E": "w"},
        ),
        (
            "Why?\nA. x\nB. vitamin B. 12\nC. z\nD. E. coli",
            "Why?",
            {"A": "x", "B": "vitamin B. 12", "C": "z", "D": "E. coli"},
        ),
        ("No marks", "No marks", {}),
        ("Only A. one", "Only A. one", {}),
    ],
)
def test_lettered_options(text: str, stem: str, options: dict[str, str]) -> None:
    assert lettered(text) == (stem, options)


# records of a file --------------------------------------------------------------------------------

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.lists(st.dictionaries(TEXT, JSON, max_size=3), max_size=5)


def read(path: Path, under: str = "") -> list[tuple[str, Any]]:
    """What `pieces` finds, each record read once more by its place."""
    found = [piece for piece in pieces(path, under=under) if isinstance(piece, Piece)]
    for piece in found:
        again = piece_at(path, piece.offset, piece.length)
        assert (again.text, again.key) == (piece.text, piece.key)
    return [(piece.key, json.loads(piece.text)) for piece in found]


@given(OBJECTS, st.sampled_from([None, 0, 4]), st.booleans(), st.booleans())
def test_arrays_are_walked_as_the_parser_reads_them(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[Any],
    indent: int | None,
    ascii: bool,
    mark: bool,
) -> None:
    path = tmp_path_factory.mktemp("p") / "x.json"
    path.write_text(
        json.dumps(rows, indent=indent, ensure_ascii=ascii),
        encoding="utf-8-sig" if mark else "utf-8",
    )
    assert read(path) == [("", row) for row in rows]
    path.write_text(
        json.dumps({"n": [{"m": 1}], "data": rows, "z": {}}, indent=indent, ensure_ascii=ascii),
        encoding="utf-8",
    )
    assert read(path, "data") == [("", row) for row in rows]


@given(
    st.dictionaries(
        TEXT.filter(bool), st.dictionaries(TEXT, JSON, max_size=3), min_size=1, max_size=5
    ),
    st.sampled_from([None, 4]),
)
def test_members_are_walked_with_their_names(
    tmp_path_factory: pytest.TempPathFactory, rows: dict[str, Any], indent: int | None
) -> None:
    path = tmp_path_factory.mktemp("p") / "x.json"
    path.write_text(json.dumps(rows, indent=indent), encoding="utf-8")
    assert read(path) == list(rows.items())


@given(
    st.lists(
        st.lists(st.text(st.sampled_from('ab ",\n\r:{}é'), max_size=8), min_size=2, max_size=3),
        max_size=6,
    )
)
def test_csv_records_are_those_of_the_library(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]]
) -> None:
    path = tmp_path_factory.mktemp("p") / "x.csv"
    buffer = io.StringIO()
    csv.writer(buffer).writerows(rows)
    path.write_bytes(buffer.getvalue().encode())
    expected = [row for row in csv.reader(io.StringIO(buffer.getvalue(), newline="")) if any(row)]
    found = [piece for piece in csv_pieces(path) if isinstance(piece, Piece)]
    assert [csv_cells(piece.text) for piece in found] == expected
    assert [
        csv_cells(piece_at(path, piece.offset, piece.length).text) for piece in found
    ] == expected


def test_only_line_feeds_end_a_csv_record(tmp_path: Path) -> None:
    row = [f"a{sign}b" for sign in "\v\f\x1c\x1d\x1e\x85\u2028\u2029"]
    (tmp_path / "x.csv").write_text(",".join(row) + "\n", encoding="utf-8")
    [piece] = csv_pieces(tmp_path / "x.csv")
    assert isinstance(piece, Piece)
    assert csv_cells(piece.text) == row


@given(st.text(st.sampled_from('{}[]",:\\ \na1'), max_size=40))
def test_broken_documents_are_errors_or_sound(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.mktemp("p") / "x.json"
    path.write_text(text, encoding="utf-8")
    with suppress(CaseError):
        for number, piece in enumerate(pieces(path)):
            assert isinstance(piece, CaseError) or piece.text
            assert number <= len(text)


def test_a_string_that_never_ends_costs_linear_time(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('[{"a": "' + '\\"' * 500_000)
    begun = time.thread_time()
    [problem] = pieces(path)
    assert "does not end" in str(problem)
    assert time.thread_time() - begun < 3


def test_a_large_document_is_not_held(tmp_path: Path) -> None:
    path = document(
        tmp_path / "CMB-train-merge.json", [cmb(i, explanation="很" * 300) for i in range(1_500)]
    )
    tracemalloc.start()
    source = open_source(f"cmb:{path}#all")
    assert source.test[1_499].truth.references
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert path.stat().st_size > 2_000_000
    assert held < 500_000


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_file_of_one_row_is_one_row(tmp_path: Path, end: str) -> None:
    """Not a document of members, though an object stands first in it."""
    row = medqa(1)
    first = {"options": row.pop("options")} | row
    (tmp_path / "one.jsonl").write_text(json.dumps(first) + end)
    assert read(tmp_path / "one.jsonl") == [("", first)]
    assert len(open_source(f"medqa:{tmp_path / 'one.jsonl'}#all").test) == 1
    members = {"a": {"x": 1}, "b": {"x": 2}}
    (tmp_path / "two.jsonl").write_text(json.dumps(members) + end)
    assert read(tmp_path / "two.jsonl") == list(members.items())


# malformed files ----------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("scheme", sorted(ROWS))
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty|no usable question"),
        (" \n\n", "no usable question"),
        ("[]", "no usable question"),
        ("[1]", "JSON object"),
        ('{"id": ', "not JSON|does not end"),
        ('[{"id": "x"', "does not end"),
        ("null\n", "each line is one JSON object"),
        ('{"nothing": 1}\n', "field"),
        ("{}\n{}\n", "field"),
        ("\ufeff{}\r\n", "field"),
        ("[" * 100_000, "JSON"),
        ('{"a": ' * 50_000, "JSON"),
        ('{"id": "' + "x" * LINE_LIMIT + '"}\n{}', "longer than"),
    ],
)
def test_files_of_something_else(scheme: str, text: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=problem) as caught:
        open_source(f"{scheme}:{path}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("scheme", sorted(ROWS))
def test_a_field_of_the_wrong_kind_is_named_with_its_line(scheme: str, tmp_path: Path) -> None:
    sound = ROWS[scheme](0)
    required = {
        "question",
        "options",
        "option",
        "description",
        "QA_pairs",
        "disease",
        "case_report",
        "story",
        "target_turn",
    }
    for name in required & set(sound):
        path = lines(tmp_path / "x.jsonl", [ROWS[scheme](1), sound | {name: 5}])
        with pytest.raises(CaseError, match="got '5'") as caught:
            open_source(
                f"{scheme}:{path}{'#one-based' if scheme == 'medmcqa' else ''}", strict=True
            )
        assert caught.value.line == 2
        assert (caught.value.field or "").split(".")[0] == name
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("scheme", sorted(ROWS))
def test_byte_order_mark_and_windows_line_ends_change_nothing(scheme: str, tmp_path: Path) -> None:
    rows = [ROWS[scheme](i) for i in range(8)]
    plain = lines(tmp_path / "a.jsonl", rows)
    marked = tmp_path / "b.jsonl"
    marked.write_bytes(b"\xef\xbb\xbf" + plain.read_bytes().replace(b"\n", b"\r\n"))
    as_array = document(tmp_path / "c.json", rows)
    first, second, third = (
        list(open_source(f"{scheme}:{path}#all").test) for path in (plain, marked, as_array)
    )
    assert first == second == third
    assert first


@pytest.mark.parametrize("scheme", sorted(LAYOUTS))
def test_a_folder_without_its_files(scheme: str, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    with pytest.raises(UserError, match=r"holds no file .* Did you mean '.*inner'\?") as caught:
        open_source(f"{scheme}:{tmp_path}")
    assert "\n" not in str(caught.value)


def test_mmlu_rows_of_another_width(tmp_path: Path) -> None:
    path = table(tmp_path / "anatomy_test.csv", [mmlu(0), ["Why?", "a", "b", "A"]])
    with pytest.raises(
        CaseError, match="line 3: a row is question, A, B, C, D, answer: 6 cells, not 4"
    ):
        open_source(f"mmlu:{path}", strict=True)


def test_a_quote_that_never_ends(tmp_path: Path) -> None:
    path = tmp_path / "anatomy_test.csv"
    path.write_text('"Why,a,b,c,d,A\n' * 3, encoding="utf-8")
    with pytest.raises(CaseError, match="not CSV"):
        open_source(f"mmlu:{path}")


def test_medqa_with_an_answer_that_is_not_its_letter(tmp_path: Path) -> None:
    with pytest.raises(CaseError, match="'answer' is not the option"):
        open_source(f"medqa:{lines(tmp_path / 'x.jsonl', [medqa(0, answer_idx='B')])}")


def test_a_file_that_changed_or_vanished_is_no_other_case(tmp_path: Path) -> None:
    path = document(tmp_path / "x.json", [cmb(i) for i in range(300)])
    source = open_source(f"cmb:{path}#all")
    path.write_text(path.read_text(encoding="utf-8").replace('"ABD"', '"XYZ"'), encoding="utf-8")
    with pytest.raises(CaseError, match="has changed"):
        source.test[0]
    path.unlink()
    with pytest.raises(CaseError, match="cannot be read"):
        source.test[1]


# the published files ------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    ("scheme", "file", "count", "note"),
    [
        (
            "medmcqa",
            "medmcqa_dev.jsonl",
            4_183,
            "'cop' counts from 1; 1,077 of 1,077 explanations that begin with a letter agree.",
        ),
        ("mmlu", "mmlu_medical.jsonl", 1_089, "MMLU, MIT licence"),
        ("pubmedqa", "pubmedqa_500.jsonl", 500, "PubMedQA, MIT licence"),
        ("cmb", "cmb_exam_4000.jsonl", 3_992, "8 of 4,000 rows left out"),
        ("rjua", "rjua_213.jsonl", 213, "50 named their diagnosis"),
        ("abgcoqa", "abgcoqa_val_free.jsonl", 418, "The passages are no medicine"),
    ],
)
def test_published_files(scheme: str, file: str, count: int, note: str) -> None:
    if not (REAL / file).is_file():
        pytest.skip("the published file is not here")
    source = open_source(f"{scheme}:{REAL / file}#all")
    assert (len(source.train), len(source.test)) == (0, count)
    assert any(said.startswith(note) for said in source.notes)
    cases = list(source.test)
    assert len(ids(cases)) == count
    for case in cases:
        assert case.presentation.strip()
        assert case.truth.diagnosis
        assert not case.options or set(case.truth.extra["right"]) <= set(case.options)


def test_the_published_records_are_the_parsed_ones() -> None:
    path = REAL / "cmb_exam_4000.jsonl"
    if not path.is_file():
        pytest.skip("the published file is not here")
    raw = {
        str(row["id"]): row
        for row in map(json.loads, path.read_text(encoding="utf-8").splitlines())
    }
    several = 0
    for case in open_source(f"cmb:{path}#all").test:
        row = raw[case.id]
        assert "".join(case.truth.extra["letters"]) == row["answer"]
        assert case.truth.extra["right"] == [
            row["option"][letter].strip() for letter in row["answer"]
        ]
        several += len(case.truth.extra["right"]) > 1
    assert several > 300
