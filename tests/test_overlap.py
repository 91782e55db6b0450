"""Test cases that equal a training case are counted, whatever their ids are."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import Call
from hypothesis import given
from hypothesis import strategies as st

from workup.cases import jsonl, overlap
from workup.core.case import Case, Fact, Source, Truth

texts = st.sampled_from(["a", "b"])
findings = st.lists(st.builds(Fact, id=texts, item=texts, text=texts), max_size=2)
patients = st.builds(
    Case,
    id=st.text(max_size=2),
    presentation=texts,
    truth=st.builds(Truth, diagnosis=texts, facts=findings.map(tuple)),
    given=findings.map(tuple),
)


def equal(one: Case, other: Case) -> bool:
    """The same patient, by a comparison of its own."""

    def told(case: Case) -> list[tuple[str, str]]:
        return sorted((f.item, f.text) for f in (*case.given, *case.truth.facts))

    return (
        one.presentation == other.presentation
        and one.truth.diagnosis == other.truth.diagnosis
        and told(one) == told(other)
    )


@given(st.lists(patients, max_size=6), st.lists(patients, max_size=6))
def test_the_count_is_that_of_comparing_all_pairs(train: list[Case], test: list[Case]) -> None:
    found = overlap.overlap(Source("x", train, test))
    known = sum(any(equal(one, other) for other in train) for one in test)
    assert found == overlap.Overlap(known, len(test), len(train))


def test_the_command_counts_them(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = (Fact("f", "fever", "I have a fever."), Fact("c", "cough", "I cough."))
    case = Case("", "A man.", Truth("Flu", facts=facts))
    turned = replace(case, truth=replace(case.truth, facts=facts[::-1]))
    # Their records differ, so that a file of them is divided case by case.
    records = [replace((turned if n % 2 else case).truth, record=f"Note {n}.") for n in range(40)]
    cases = [replace(case, id=f"p{n}", truth=truth) for n, truth in enumerate(records)]
    jsonl.write(cases, tmp_path / "mine.jsonl")
    source = f"jsonl:{tmp_path / 'mine.jsonl'}"
    status, shown, _ = call("cases", source, "--overlap")
    tested = int(shown.split(" of ")[1].split()[0])
    assert status == 0
    told = f"{tested} of {tested} test cases equal one of {40 - tested} training cases"
    assert shown.startswith(f"{source}: {told}")
    monkeypatch.setattr(overlap, "MOST_TESTED", 3)
    file = tmp_path / "overlap.json"
    assert "3 of 3 test cases" in call("cases", source, "--overlap", "--out", str(file))[1]
    kept = json.loads(file.read_text())
    assert kept["tables"][0]["rows"] == [[source, "3", str(40 - tested), "3"]]
    assert {"command", "made"} < {*kept}
    status, _, refused = call("cases", source, "--out", str(file))
    assert status == 2
    assert "type --overlap too" in refused
