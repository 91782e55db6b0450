"""Our own format: what is written comes back, and a malformed file's error says where.

The schema and the reader agree.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import workup.cases.jsonl as format_
from workup.cases import open_source, problems
from workup.cases.files import LINE_LIMIT, held_out
from workup.cases.jsonl import CaseLine, ProvenanceLine, line_of, provenances, schema, write
from workup.core.case import Case, Fact, Item, Kind, Source, Truth
from workup.core.episode import Action
from workup.core.errors import CaseError, UserError
from workup.environments.consultation import Consultation

SCHEMA = json.loads(
    (Path(format_.__file__).parent / "case.schema.json").read_text(encoding="utf-8")
)
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

text = st.text(max_size=20)
name = st.text(min_size=1, max_size=12).filter(str.strip)
term = name.map(str.strip)  # what is compared by its letters is read without blanks at its ends
texts = st.lists(text, max_size=3).map(tuple)
terms = st.lists(text.map(str.strip), max_size=3).map(tuple)
kinds = st.sampled_from(list(Kind))
facts = st.lists(
    st.builds(
        Fact,
        id=term,
        item=text.map(str.strip),
        text=name,
        kind=kinds,
        weight=st.none() | st.integers(0, 3),
    ),
    max_size=5,
    unique_by=lambda fact: fact.id,
).map(tuple)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(text, inner, max_size=2),
    max_leaves=4,
)
truths = st.builds(
    Truth,
    diagnosis=term,
    codes=terms,
    aliases=terms,
    differentials=terms,
    facts=facts,
    record=text,
    references=texts,
    extra=values,
)


def choosing(case: Case) -> Case:
    """Among the options is the truth; each stands there once."""
    options = dict.fromkeys([*filter(None, case.options), case.truth.diagnosis])
    return replace(case, options=tuple(options) if case.options else ())


cases = st.builds(
    Case, id=term, presentation=name, truth=truths, question=text, options=terms, category=text
).map(choosing)
files = st.lists(cases, min_size=1, max_size=4, unique_by=lambda case: case.id)
relaxed = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

LINE = {"id": "1", "presentation": "A man coughs.", "truth": {"diagnosis": "Flu"}}


def opened(rest: object, split: int = 0, *, strict: bool = False) -> Source:
    return open_source(f"jsonl:{rest}", split=split, strict=strict)


def listed(path: Path) -> list[CaseError]:
    found: list[CaseError] = []
    assert problems(f"jsonl:{path}", found.append) == len(found)
    return found


def file(folder: Path, *lines: object) -> Path:
    path = folder / "c.jsonl"
    path.write_text(
        "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines),
        encoding="utf-8",
    )
    return path


@relaxed
@given(files)
def test_what_is_written_comes_back(tmp_path: Path, made: list[Case]) -> None:
    path = tmp_path / "c.jsonl"
    assert write(made, path) == len(made)
    assert list(opened(f"{path}#all").test) == made
    assert listed(path) == []
    for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
        VALIDATOR.validate(json.loads(line))


@relaxed
@given(files)
def test_given_facts_come_back_too(tmp_path: Path, made: list[Case]) -> None:
    moved = [
        replace(
            case, given=case.truth.facts[:2], truth=replace(case.truth, facts=case.truth.facts[2:])
        )
        for case in made
    ]
    write(moved, tmp_path / "c.jsonl")
    assert list(opened(f"{tmp_path / 'c.jsonl'}#all").test) == moved


def test_the_shipped_schema_is_the_reader_s() -> None:
    assert schema() == SCHEMA
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


junk = st.sampled_from(
    [
        None,
        1,
        -1,
        4,
        2.5,
        "",
        " ",
        "\u3000\n",
        "x",
        True,
        [],
        ["x"],
        [1],
        {},
        {"id": "a", "text": "b"},
        "test",
    ]
)
paths = st.sampled_from(
    [
        ("id",),
        ("presentation",),
        ("truth",),
        ("options",),
        ("given",),
        ("category",),
        ("colour",),
        ("restricted",),
    ]
    + [("provenance",)]
    + [("provenance", 0, key) for key in ("step", "model", "version", "date", "detail", "colour")]
    + [("truth", key) for key in ("diagnosis", "codes", "facts", "record", "extra", "colour")]
    + [("truth", "facts", 0, key) for key in ("id", "item", "text", "kind", "weight", "colour")]
)


@settings(max_examples=200, deadline=None)
@given(paths, junk, st.booleans())
def test_schema_and_reader_accept_the_same_lines(
    path: tuple[Any, ...], value: object, remove: bool
) -> None:
    steps = [{"step": "facts", "model": "m", "version": "1", "date": "2026-01-02"}]
    truth = {"diagnosis": "Flu", "facts": [{"id": "f", "item": "i", "text": "t"}]}
    line: Any = json.loads(json.dumps(LINE | {"truth": truth, "provenance": steps}))
    target = line
    for key in path[:-1]:
        target = target[key]
    if remove:
        target.pop(path[-1], None)
    else:
        target[path[-1]] = value
    try:
        CaseLine.model_validate(line)
        accepted = True
    except ValueError:
        accepted = False
    assert accepted == VALIDATOR.is_valid(line)


@pytest.mark.parametrize(
    ("lines", "number", "field", "problem"),
    [
        (["[1]"], 1, None, "not a list"),
        (["3"], 1, None, "not a number"),
        ([LINE, "{"], 2, None, "not JSON"),
        ([LINE, '{"id": ' + "[" * 100_000], 2, None, "not JSON"),
        (
            [LINE, {**LINE, "id": "2", "colour": 1}],
            2,
            "colour",
            r"is no field; data of your own .* 'truth\.extra'",
        ),
        ([LINE, {**LINE, "id": "2", "presentatoin": ""}], 2, "presentatoin", "mean 'presentation'"),
        ([{"id": "1", "presentation": "x"}], 1, "truth", "required"),
        ([{**LINE, "truth": {"diagnosis": ""}}], 1, "truth.diagnosis", "is blank"),
        (
            [{**LINE, "given": [{"id": "a", "text": "b", "weight": 4}]}],
            1,
            "given.0.weight",
            "less than or equal to 3",
        ),
        (
            [{**LINE, "given": [{"id": "a", "text": "b", "kind": "guess"}]}],
            1,
            "given.0.kind",
            "'ask'",
        ),
        ([{**LINE, "given": [{"id": "a", "text": "b"}] * 2}], 1, None, "two facts have the id 'a'"),
        ([LINE, "", {**LINE, "id": "2"}, LINE], 4, "id", "stands in an earlier row too"),
        (['{"id": "' + "x" * LINE_LIMIT + '"}', LINE], 1, None, "longer than 1,000,000 bytes"),
    ],
)
def test_a_malformed_line_is_named(
    tmp_path: Path, lines: list[Any], number: int, field: str | None, problem: str
) -> None:
    path = file(tmp_path, *lines)
    with pytest.raises(CaseError, match=problem) as caught:
        opened(path, strict=True)
    assert (caught.value.line, caught.value.field) == (number, field)
    assert [str(p) for p in listed(path)] == [str(caught.value)]


def test_every_problem_is_listed_and_the_reading_goes_on(tmp_path: Path) -> None:
    path = file(
        tmp_path, "3", "x" * (3 * LINE_LIMIT), {**LINE, "id": 1, "options": "A"}, LINE, LINE, "{"
    )
    found = [(problem.line, problem.field) for problem in listed(path)]
    assert found == [(1, None), (2, None), (3, "id"), (3, "options"), (5, "id"), (6, None)]


def test_every_repetition_is_listed_in_order(tmp_path: Path) -> None:
    assert [problem.line for problem in listed(file(tmp_path, *([LINE] * 50)))] == list(
        range(2, 51)
    )


@pytest.mark.parametrize("text", [b"", b"\n \r\n", b"\xef\xbb\xbf"])
def test_an_empty_file(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "c.jsonl").write_bytes(text)
    with pytest.raises(CaseError, match="holds no case"):
        opened(tmp_path / "c.jsonl")


def test_bad_utf8_is_placed(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_bytes(json.dumps(LINE).encode() + b"\n{\xff}\n")
    with pytest.raises(CaseError, match="byte 2 of this line is not UTF-8") as caught:
        opened(tmp_path / "c.jsonl", strict=True)
    assert caught.value.line == 2


@pytest.mark.parametrize("depth", [99, 100, 254, 5_000])
def test_what_is_nested_too_deep_for_a_writer_is_refused(tmp_path: Path, depth: int) -> None:
    inner = "[" * (depth - 1) + "]" * (depth - 1)  # within one object
    line = f'{{"id":"a","presentation":"x","truth":{{"diagnosis":"flu","extra":{{"k":{inner}}}}}}}'
    (file := tmp_path / "c.jsonl").write_text(line)
    if depth <= 100:
        assert line_of(open_source(f"jsonl:{file}#all").test[0])
    else:
        with pytest.raises(CaseError, match="deep") as caught:
            open_source(f"jsonl:{file}#all")
        assert len(str(caught.value)) < 400


def test_windows_files_read_the_same(tmp_path: Path) -> None:
    lines = [json.dumps({**LINE, "id": str(i)}) for i in range(20)]
    path = file(tmp_path, *lines)
    expected = list(opened(path).train)
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    assert list(opened(path).train) == expected


def test_items_come_from_the_facts_or_from_the_sidecar(tmp_path: Path) -> None:
    hidden = (
        Fact("a", "cough", "Coughs."),
        Fact("b", "x-ray", "Shadow.", Kind.IMAGING),
        Fact("c", "", "Is tired."),
    )
    case = Case("1", "A man.", Truth("Flu", facts=hidden))
    path = tmp_path / "c.jsonl"
    write([case], path)
    named = opened(f"{path}#all")
    assert [(item.name, item.kind) for item in named.items] == [
        ("cough", Kind.HISTORY),
        ("x-ray", Kind.IMAGING),
    ]
    assert list(named.diagnoses) == []
    assert {"cough", "x-ray", "Coughs.", "Shadow."} <= set(named.phrases)
    assert "No c.source.json" in named.notes[0]
    items = (
        Item("cough", "Do you cough?", "No cough."),
        Item("sputum", "Sputum?", "None.", parent="cough", cost=2.0),
    )
    write([case], path, items=items, diagnoses=["Flu", "Croup"])
    told = opened(f"{path}#all")
    assert told.items == items
    assert told.diagnoses == ("Flu", "Croup")
    assert {"No cough.", "Croup"} <= set(told.phrases)


def test_cases_of_free_text_have_no_items_and_no_phrases(tmp_path: Path) -> None:
    write(
        [Case("1", "A man.", Truth("Flu", facts=(Fact("c", "", "Is tired."),)))],
        tmp_path / "c.jsonl",
    )
    source = opened(f"{tmp_path / 'c.jsonl'}#all")
    assert not source.items
    assert not source.phrases


@pytest.mark.parametrize(
    ("items", "problem"),
    [
        ([{"name": "a", "normal": "No."}] * 2, "two items have the same name"),
        ([{"name": "a", "normal": "No.", "parent": "b"}], "the parent 'b' of 'a'"),
        (
            [{"name": "a", "normal": "No."}, {"name": "A", "normal": "No."}],
            r"'items\.1\.name': two items have the same name: 'a', 'A'",
        ),
        (
            [
                {"name": "a", "normal": "No.", "synonyms": ["B"]},
                {"name": "b", "normal": "No."},
            ],
            r"'items\.0\.synonyms\.0': 'B' is also a name of the item 'b'",
        ),
        (
            [
                {"name": "a", "normal": "No.", "parent": "b"},
                {"name": "b", "normal": "No.", "parent": "c"},
                {"name": "c", "normal": "No.", "parent": "b"},
            ],
            "'b' is above itself",
        ),
        ([{"name": "a", "normal": "No.", "parent": "a"}], r"'items\.0\.parent': 'a' is above"),
        ([{"name": "a"}], "required"),
        ([{"name": "a", "normal": "No.", "cost": float("inf")}], "Infinity is no number"),
        ([{"name": "a", "normal": "No.", "cost": -1}], "field 'items.0.cost'"),
    ],
)
def test_a_malformed_sidecar(tmp_path: Path, items: list[Any], problem: str) -> None:
    path = file(tmp_path, LINE)
    (tmp_path / "c.source.json").write_text(json.dumps({"items": items}))
    with pytest.raises(CaseError, match=problem):
        opened(path)


def test_diagnoses_stand_once_and_hold_every_truth(tmp_path: Path) -> None:
    path, beside = file(tmp_path, LINE), tmp_path / "c.source.json"
    beside.write_text('{"items": [], "diagnoses": ["Flu", "Cold", "flu"]}')
    with pytest.raises(CaseError, match=r"field 'diagnoses\.2': 'flu' stands there twice"):
        opened(path)
    beside.write_text('{"items": [], "diagnoses": ["flu", "Cold"]}')
    [problem] = listed(path)
    assert (problem.line, problem.field) == (1, "truth.diagnosis")
    assert "'Flu' is not among the diagnoses of c.source.json" in problem.problem
    assert "Did you mean 'flu'?" in problem.problem
    beside.write_text('{"items": [], "diagnoses": ["Flu", "Cold"]}')
    assert not listed(path)


def test_items_of_findings_are_those_of_the_sidecar(tmp_path: Path) -> None:
    """Else who asks for "fever" is told the listed item's normal answer."""
    hidden = [
        {"id": "a", "text": "Fever.", "item": "fever"},
        {"id": "b", "text": "Hot.", "item": "Temp"},
        {"id": "c", "text": "Rash.", "item": "rash"},
        {"id": "d", "text": "Tired.", "item": ""},
    ]
    case = {**LINE, "truth": {"diagnosis": "Flu", "facts": hidden}}
    path = file(tmp_path, LINE, {**case, "id": "2"})
    items = [{"name": "Fever", "normal": "No fever.", "synonyms": ["temp"]}]
    (tmp_path / "c.source.json").write_text(json.dumps({"items": items}))
    found = listed(path)
    assert [(p.line, p.field) for p in found] == [
        (2, "truth.facts.0.item"),
        (2, "truth.facts.1.item"),
    ]
    assert "c.source.json has no item 'fever'. Did you mean 'Fever'?" in found[0].problem
    hidden[0]["item"] = hidden[1]["item"] = "Fever"
    remarks: list[CaseError] = []
    path = file(tmp_path, case)
    assert problems(f"jsonl:{path}", lambda error: pytest.fail(f"{error}"), remarks.append) == 0
    assert [(r.field, "does not list its item" in r.problem) for r in remarks] == [
        ("truth.facts.2.item", True)
    ]


@pytest.mark.parametrize(
    ("options", "diagnosis", "right", "problem"),
    [
        (["A", "B"], "Flu", None, "the right answer 'Flu' is none of them"),
        (["Flu", " "], "Flu", None, "an option is blank"),
        (["Flu", "Cold", "Gout"], "Flu; Cold", None, ""),
        (["Flu", "Cold", "Gout"], "Flu; Croup", None, "'Croup' is none"),
        (["Flu", "Cold", "Gout"], "Flu; Cold", ["Flu", "Cold"], ""),
        (["Flu", "Cold", "Gout"], "Flu", ["Flu", "cold"], "'cold' is none"),
        (["the flu.", "Cold"], "Flu", None, ""),
        ([*map(str, range(26)), "Flu"], "Flu", None, "at most 26 items"),
        ([], "Flu", None, ""),
    ],
)
def test_the_truth_is_among_the_options(
    tmp_path: Path, options: list[str], diagnosis: str, right: list[str] | None, problem: str
) -> None:
    extra = {"right": right, "letters": [], "alphabet": []} if right else {"right": ["mine"]}
    truth = {"diagnosis": diagnosis, "extra": extra}
    found = listed(file(tmp_path, {**LINE, "truth": truth, "options": options}))
    assert [(p.line, p.field) for p in found] == ([(1, "options")] if problem else [])
    assert all(problem in p.problem for p in found)


def test_relatives_and_equal_patients_are_on_one_side(tmp_path: Path) -> None:
    """Sixty publications of four patients, who name two of three; sixty patients stand thrice."""
    rows, families = list[dict[str, Any]](), dict[str, int]()
    for n in range(60):
        for one, other in ((0, 1), (1, 2), (2, 0), (1, 0)):
            own = {"publications": [f"PMID:{n}{one}", f"PMID:{n}{other}"], "excluded": []}
            truth = {"diagnosis": "Flu", "extra": own}
            rows.append({**LINE, "presentation": f"{len(rows)}", "truth": truth})
            families[f"{len(rows)}"] = n
        for _ in range(3):
            rows.append({**LINE, "presentation": f"again {n}"})
            families[f"{len(rows)}"] = 100 + n
    path = file(tmp_path, *({**row, "id": f"{n}"} for n, row in enumerate(rows, start=1)))
    source = opened(path)
    train, test = ({families[case.id] for case in side} for side in (source.train, source.test))
    assert len(source.train) + len(source.test) == 420
    assert not train & test
    assert all(any(n < 100 for n in side) for side in (train, test))
    assert all(any(n >= 100 for n in side) for side in (train, test))
    assert [int(case.id) for case in opened(f"{path}#all").test] == [*range(1, 421)]


def test_other_cases_are_divided_by_their_ids(tmp_path: Path) -> None:
    rows = [{**LINE, "id": f"{n}", "presentation": f"{n}"} for n in range(100)]
    source = opened(file(tmp_path, *rows), split=3)
    assert [case.id for case in source.test] == [f"{n}" for n in range(100) if held_out(3, f"{n}")]


@dataclass(frozen=True)
class Board:
    squares: int = 64


def test_what_the_format_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"truth\.extra \(Board\) is no JSON value"):
        write([Case("1", "x", Truth("Flu", extra=Board()))], tmp_path / "c.jsonl")
    with pytest.raises(UserError, match="longer than a line"):
        write([Case("1", "x" * LINE_LIMIT, Truth("Flu"))], tmp_path / "c.jsonl")


def test_a_failed_writing_leaves_both_files_as_they_were(tmp_path: Path) -> None:
    path, case = tmp_path / "c.jsonl", Case("1", "x", Truth("Flu"))
    write([case, case], path, diagnoses=["Flu"])
    before = {each: each.read_bytes() for each in tmp_path.iterdir()}
    assert len(before) == 2
    with pytest.raises(UserError, match="longer than a line"):
        write([case, Case("2", "x" * LINE_LIMIT, Truth("Flu"))], path, diagnoses=["Cold"])
    with pytest.raises(
        UserError, match=r"c\.source\.json would be taken for the items of c\.jsonl"
    ):
        write([case], path)
    assert {each: each.read_bytes() for each in tmp_path.iterdir()} == before
    (tmp_path / "d.source.json").mkdir()
    with pytest.raises(UserError, match=r"d\.source\.json: cannot be written \(it is no file\)"):
        write([case], tmp_path / "d.jsonl", diagnoses=["Flu"])
    assert not (tmp_path / "d.jsonl").exists()
    (tmp_path / "link.jsonl").symlink_to("other.jsonl")
    assert write([case], tmp_path / "link.jsonl") == 1
    assert (tmp_path / "link.jsonl").is_symlink(), "its file is written"


def test_nobody_else_reads_restricted_cases(tmp_path: Path) -> None:
    write([Case("1", "x", Truth("Flu"))], tmp_path / "c.jsonl", diagnoses=["Flu"], restricted=True)
    assert [each.stat().st_mode & 0o777 for each in tmp_path.iterdir()] == [0o600, 0o600]


steps = st.builds(ProvenanceLine, step=name, model=name, version=name, date=name, detail=values)


@relaxed
@given(cases, st.lists(steps, max_size=2), st.booleans())
def test_provenance_and_restriction_come_back(
    tmp_path: Path, case: Case, made: list[ProvenanceLine], restricted: bool
) -> None:
    line = line_of(case, made, restricted=restricted)
    VALIDATOR.validate(json.loads(line))
    other = line_of(Case(f"{case.id}+", "x", Truth("Flu")))
    (tmp_path / "c.jsonl").write_text(f"{line}\n{other}\n", encoding="utf-8")
    assert provenances(tmp_path / "c.jsonl") == ({case.id: tuple(made)} if made else {})
    source = opened(f"{tmp_path / 'c.jsonl'}#all")
    assert source.restricted is restricted, "one restricted case makes the whole file restricted"
    assert source.test[0] == case


def test_a_restricted_source_stays_restricted_when_exported(tmp_path: Path) -> None:
    write([Case("1", "x", Truth("Flu"))], tmp_path / "c.jsonl", restricted=True)
    assert opened(tmp_path / "c.jsonl").restricted


def test_the_documented_example_is_a_case() -> None:
    page = (Path(__file__).parents[1] / "docs" / "start.md").read_text(encoding="utf-8")
    example = page.split("```json\n")[1].split("```")[0]
    VALIDATOR.validate(json.loads(example))
    CaseLine.model_validate(json.loads(example))


# what a file of one's own is told about -----------------------------------------------------------


ROWS = [{**LINE, "id": f"{number}"} for number in range(400)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (json.dumps(ROWS), "this is a JSON array; `jq -c '.[^`]*' FILE > LINES.jsonl`"),
        (json.dumps(ROWS, indent=1), "this is a JSON array"),
        ("\n".join(json.dumps(row, indent=2) for row in ROWS), "spread over several lines"),
        (json.dumps(LINE, indent=2), "`jq -c . FILE > LINES.jsonl`"),
        ("id,presentation,diagnosis\n" + "1,A man coughs.,Flu\n" * 400, r"this is a table \(CSV\)"),
        ("id;presentation\r\n" + "1;A man\r\n" * 3, r"this is a table \(CSV\)"),
        ("PK\x03\x04\0;,;\0", r"this is no text in UTF-8\."),
    ],
)
def test_a_file_of_another_layout_is_told_in_one_line(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "c.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    with pytest.raises(CaseError, match=told) as caught:
        opened(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(CaseError, match=told):
        problems(f"jsonl:{path}", lambda error: pytest.fail(f"{error}"))
    if shutil.which("jq") and (command := re.search(r"`(jq .*) FILE", str(caught.value))):
        lines = subprocess.run(
            [*shlex.split(command[1]), str(path)], capture_output=True, text=True, check=True
        )
        path.write_text(lines.stdout, encoding="utf-8")
        assert len(opened(f"{path}#all").test) in (1, 400)


def test_lines_of_which_one_is_bad_are_still_read_one_by_one(tmp_path: Path) -> None:
    path = file(tmp_path, '{"id": "0", "presen', "a, b, c", *ROWS[1:4])
    assert [problem.line for problem in listed(path)] == [1, 2]
    assert len(opened(f"{path}#all").test) == 3


def test_names_lose_blanks_at_their_ends_and_texts_do_not(tmp_path: Path) -> None:
    facts = [{"id": " f ", "item": "cough\t", "text": " I cough. "}]
    truth = {"diagnosis": "Flu ", "aliases": [" Grippe"], "codes": ["J11 "], "facts": facts}
    path = file(tmp_path, {**LINE, "id": "1 ", "presentation": " A man. ", "truth": truth})
    items = [{"name": "cough ", "normal": "No. "}, {"name": "fever", "normal": "No."}]
    (tmp_path / "c.source.json").write_text(json.dumps({"items": items, "diagnoses": ["Flu  "]}))
    source = opened(f"{path}#all")
    [case] = source.test
    assert (case.id, case.truth.diagnosis) == ("1", "Flu") == ("1", *source.diagnoses)
    assert (case.truth.aliases, case.truth.codes) == (("Grippe",), ("J11",))
    assert case.truth.facts == (Fact("f", "cough", " I cough. "),)
    assert [item.name for item in source.items] == ["cough", "fever"]
    assert (case.presentation, source.items[0].normal) == (" A man. ", "No. ")


@pytest.mark.parametrize(
    ("line", "twice"),
    [
        (
            '{"id": "1", "presentation": "a", "presentation": "b", "truth": {"diagnosis": "x"}}',
            "presentation",
        ),
        (
            '{"id": "1", "presentation": "a", "truth": {"diagnosis": "x", "diagnosis": "x"}}',
            "diagnosis",
        ),
    ],
)
def test_a_key_that_stands_twice_is_told(tmp_path: Path, line: str, twice: str) -> None:
    [problem] = listed(file(tmp_path, line, {**LINE, "id": "2"}))
    assert (problem.line, problem.field) == (1, twice)
    assert "stands twice" in problem.problem
    (tmp_path / "c.source.json").write_text('{"items": [], "items": []}')
    with pytest.raises(CaseError, match="field 'items': stands twice"):
        opened(file(tmp_path, LINE))


def test_what_is_odd_about_a_case_is_told_and_the_case_is_kept(tmp_path: Path) -> None:
    hidden = [{"id": "f", "item": "cough", "text": "He coughs."}]
    leak = [*hidden, {"id": "g", "item": "", "text": "Known grippe, it says."}]
    flu = {"diagnosis": "Flu", "aliases": ["Grippe"]}
    path = file(
        tmp_path,
        {**LINE, "id": "1", "truth": {**flu, "facts": hidden}},
        {**LINE, "id": "2", "presentation": "Has the Flu.", "truth": {**flu, "facts": hidden}},
        {**LINE, "id": "3", "truth": {**flu, "facts": leak}},
        {**LINE, "id": "4", "truth": flu},
        {**LINE, "id": "5", "truth": {**flu, "facts": hidden}},
        {**LINE, "id": "6", "truth": {"diagnosis": "Fluid", "facts": hidden}},
        {**LINE, "id": "7", "truth": flu, "question": "Which disease?"},
        {**LINE, "id": "8", "question": "Which?", "options": ["Flu", "Flu ", "Cold"]},
    )
    remarks: list[CaseError] = []
    assert problems(f"jsonl:{path}", lambda error: pytest.fail(f"{error}"), remarks.append) == 0
    assert [(remark.line, remark.field) for remark in remarks] == [
        (2, "presentation"),
        (3, "truth.facts.1"),
        (4, "truth.facts"),
        (5, None),
        (8, "options"),
    ]
    source = opened(f"{path}#all")
    assert len(source.test) == 8
    told = [note for note in source.notes if "--validate" in note]
    assert told[0].startswith("2 of 8 rows: it names the diagnosis.")
    assert told[1].startswith("1 of 8 rows: the same patient stands in an earlier row")
    assert told[2].startswith("1 of 8 rows: two options are the same.")
    assert len(told) == 3


def test_a_synonym_that_two_items_have_is_asked_back(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    case = Case("a", "A man.", Truth("gout", facts=(Fact("f", "dizzy spells", "Yes."),)))
    several = [
        Item(name, name, f"No {name}.", synonyms=("dizziness", *map(str, range(200))))
        for name in ("dizzy spells", "vertigo")
    ]
    write([case], path, items=several)
    source = open_source(f"jsonl:{path}#all")
    seen = Consultation(source.items).reply(source.test[0], Action("ask", ("dizziness",)))
    assert "dizzy spells, vertigo" in seen.messages[0].content
    assert not seen.understood


def test_what_facts_are_called_without_a_sidecar_is_found_as_free_text(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    hidden = {"a": ("Vital signs, blood pressure", "BP 180/110."), "b": ("fever", "No fever.")}
    with path.open("w", encoding="utf-8") as file:
        for name, (item, text) in hidden.items():
            fact = {"id": "f", "text": text, "item": item}
            truth = {"diagnosis": "gout", "facts": [fact]}
            file.write(json.dumps({"id": name, "presentation": name, "truth": truth}) + "\n")
    source = open_source(f"jsonl:{path}")
    record = Consultation(source.items, source.diagnoses)
    answers = {
        (case.id, asked): record.reply(case, Action("ask", (asked,)))
        for case in (*source.train, *source.test)
        for asked in ("what is the blood pressure", "Fever", "Vital signs, blood pressure")
    }
    understood = {asked for asked, answer in answers.items() if answer.understood}
    assert understood == {
        ("a", "what is the blood pressure"),
        ("a", "Vital signs, blood pressure"),
        ("b", "Fever"),
    }
    assert all(bool(answers[each].evidence) for each in understood)
    assert not format_.keeps_sidecar(source)
