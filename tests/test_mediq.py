"""mediQ: rows to cases, the line between what is given and what is hidden, malformed files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workup.cases import open_source
from workup.core.case import Case, Source
from workup.core.errors import CaseError, UserError
from workup.environments.consultation import Consultation

REAL = Path(__file__).parents[2] / "shared" / "data" / "mediq_dev.jsonl"
real = pytest.mark.skipif(not REAL.is_file(), reason="the released file is not here")


def row(number: int = 0, **change: Any) -> dict[str, Any]:
    return {
        "id": number,
        "question": " What is the most likely diagnosis? ",
        "context": [
            "A 40-year-old man presents with chest pain and no fever.",
            "His pulse is 110/min.",
            "He smokes.",
        ],
        "options": {"A": "Asthma", "B": "Pulmonary embolism"},
        "answer": "Pulmonary embolism",
        "answer_idx": "B",
        "facts": [
            "1. Patient is a 40-year-old man.",
            "2. He has chest pains.",
            "3) He has fever and chest pain at night.",
            "- Examination:",
            "  - His pulse is 110/min.",
            "4. He smokes.",
            "5. He smokes.",
        ],
        "patient": {"specialties": ["Cardiology", "Surgery"]},
    } | change


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return path


def opened(rest: object, split: int = 0, *, strict: bool = False) -> Source:
    return open_source(f"mediq:{rest}", split=split, strict=strict)


def only(path: Path) -> Case:
    return opened(f"{path}#all").test[0]


def test_one_row_by_hand(tmp_path: Path) -> None:
    case = only(write(tmp_path / "m.jsonl", row(7)))
    assert case.id == "7"
    assert case.presentation == "A 40-year-old man presents with chest pain and no fever."
    assert [fact.text for fact in case.given] == [
        "Patient is a 40-year-old man.",
        "He has chest pains.",
    ]
    assert [fact.text for fact in case.truth.facts] == [
        "He has fever and chest pain at night.",
        "His pulse is 110/min.",
        "He smokes.",
    ]
    assert case.truth.diagnosis == "Pulmonary embolism"
    assert case.truth.aliases == ()
    assert (case.question, case.options) == (
        "What is the most likely diagnosis?",
        ("Asthma", "Pulmonary embolism"),
    )
    assert case.truth.record.count("\n") == 2
    assert case.category == "Cardiology"


def test_a_fact_may_begin_with_a_number(tmp_path: Path) -> None:
    case = only(
        write(
            tmp_path / "m.jsonl",
            row(facts=["0.9% saline was given.", "2. 1.5 hours passed.", "3)Gait is slow."]),
        )
    )
    assert [fact.text for fact in case.truth.facts] == [
        "0.9% saline was given.",
        "1.5 hours passed.",
        "Gait is slow.",
    ]


def test_what_the_presentation_denies_or_only_half_says_stays_hidden(tmp_path: Path) -> None:
    facts = ["He has no cough.", "He is 41 years old.", "His chest pain radiates.", "He is a man."]
    case = only(write(tmp_path / "m.jsonl", row(facts=facts)))
    assert [fact.text for fact in case.given] == ["He is a man."]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1),
        min_size=1,
        max_size=8,
    )
)
def test_given_and_hidden_facts_part_all_facts(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    numbered = [f"{i}. x{text}" for i, text in enumerate(texts, start=1)]
    case = only(write(tmp_path_factory.mktemp("m") / "m.jsonl", row(facts=numbered)))
    found = [fact.text for fact in (*case.given, *case.truth.facts)]
    expected = {f"x{text}".strip() for text in texts if not f"x{text}".strip().endswith(":")}
    assert sorted(found) == sorted(expected)
    assert len({fact.id for fact in (*case.given, *case.truth.facts)}) == len(found)


def test_rows_without_facts_are_skipped_and_counted(tmp_path: Path) -> None:
    bare = row(1)
    del bare["facts"]
    source = opened(
        f"{write(tmp_path / 'm.jsonl', bare, row(2, facts=[]), row(3, context=[]), row(4))}#all"
    )
    assert [case.id for case in source.test] == ["4"]
    assert source.notes[0].startswith("3 rows without facts")


def test_the_split_is_by_id_and_seed(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", *(row(i) for i in range(400)))
    source = opened(path)
    train, test = {case.id for case in source.train}, {case.id for case in source.test}
    assert train | test == {str(i) for i in range(400)}
    assert not train & test
    assert 50 < len(test) < 110
    assert test != {case.id for case in opened(path, 1).test}
    write(path, *(row(i) for i in reversed(range(400))))
    assert test == {case.id for case in opened(path).test}


@pytest.mark.parametrize(
    ("change", "field", "problem"),
    [
        ({"answer": "Asthma"}, None, "is not the option"),
        ({"context": "text"}, "context", "valid list"),
        ({"facts": [1]}, "facts.0", "valid string"),
        ({"options": ["A"]}, "options", "valid dictionary"),
        ({"id": None}, "id", "valid"),
    ],
)
def test_a_malformed_row_names_line_and_field(
    tmp_path: Path, change: dict[str, Any], field: str | None, problem: str
) -> None:
    path = write(tmp_path / "m.jsonl", row(), row(1, **change))
    with pytest.raises(CaseError, match=problem) as caught:
        opened(path, strict=True)
    assert caught.value.line == 2
    assert (caught.value.field or "").startswith(field or "")


def test_rows_that_are_no_cases_are_left_out_and_told(tmp_path: Path) -> None:
    """In 4 of 140 rows the answer is not the option of its letter: 136 cases and a note."""
    wrong = {7, 31, 80, 139}
    rows = [row(i, answer="Asthma") if i in wrong else row(i) for i in range(140)]
    path = write(tmp_path / "m.jsonl", *rows)
    source = opened(f"{path}#all")
    assert [case.id for case in source.test] == [str(i) for i in range(140) if i not in wrong]
    named = "lines 8, 32, 81, 140: 'answer' is not the option that 'answer_idx' names"
    assert (
        source.notes[-1]
        == f"4 of 140 rows left out: {named}. See `workup cases 'mediq:{path}#all' --validate`."
    )
    with pytest.raises(CaseError, match=r"m\.jsonl, line 8: 'answer' is not"):
        opened(path, strict=True)


def test_a_note_names_five_rows(tmp_path: Path) -> None:
    broken = [row(i, answer="x") if i % 2 else row(i, question=3) for i in range(1, 8)]
    note = opened(write(tmp_path / "m.jsonl", row(0), *broken)).notes[-1]
    assert note.startswith("7 of 8 rows left out: lines 2, 4, 6: 'answer' is not ")
    assert "names; lines 3, 5, field 'question': input should be a valid string; …. See" in note


def test_where_no_row_is_a_case_the_first_says_why(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", row(0, answer="x"), row(1, id=None))
    with pytest.raises(
        CaseError, match=r"m\.jsonl, line 1: 'answer' is not .* \(None of 2 rows is a case\.\)"
    ):
        opened(path)


def test_blanks_are_no_difference(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.jsonl",
        row(1, answer=" Pulmonary embolism", answer_idx="B "),
        row(" 1 ", answer="Asthma", answer_idx="A"),
    )
    source = opened(f"{path}#all")
    assert [(case.id, case.truth.diagnosis) for case in source.test] == [
        ("1", "Pulmonary embolism")
    ]
    assert "line 2, field 'id': stands in an earlier row too" in source.notes[-1]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"id": "  "}, "needs its id"),
        ({"context": [" ", "He smokes."]}, "needs its presentation"),
        ({"options": {"A": "x", "B": " "}, "answer": ""}, "needs its diagnosis"),
        ({"id": 0}, "stands in an earlier row too"),
        ({"question": "What is it? \ud83d"}, "field 'question': holds half of a character"),
    ],
)
def test_what_is_blank_or_twice_there_is_no_case(
    tmp_path: Path, change: dict[str, Any], problem: str
) -> None:
    source = opened(f"{write(tmp_path / 'm.jsonl', row(), row(1, **change), row(2))}#all")
    assert [case.id for case in source.test] == ["0", "2"]
    assert source.notes[-1].startswith("1 of 3 rows left out: line 2")
    assert problem in source.notes[-1]


@pytest.mark.parametrize(
    ("text", "problem"), [("", "no row"), ("[1]\n", "JSON object"), ("{\n", "not JSON")]
)
def test_a_file_of_something_else(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "m.jsonl").write_text(text)
    with pytest.raises(UserError, match=problem):
        opened(tmp_path / "m.jsonl")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a folder"):
        opened(tmp_path)


@real
def test_the_released_file() -> None:
    source = opened(f"{REAL}#all")
    assert (len(source.train), len(source.test)) == (0, 1_269)
    assert source.notes[0] == "3 rows without facts or context skipped."
    raw = {str(r["id"]): r for r in map(json.loads, REAL.read_text(encoding="utf-8").splitlines())}
    environment = Consultation(source.items)
    given_counts = []
    for case in source.test:
        assert case.truth.diagnosis == raw[case.id]["answer"] in case.options
        assert len(case.options) == 4
        assert not any(re.match(r"\d+[.)] ", fact.text) for fact in case.truth.facts)
        assert environment.open(case)
        given_counts.append(len(case.given))
    assert 1 <= sorted(given_counts)[len(given_counts) // 2] <= 3
