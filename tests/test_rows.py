"""Rows that are no cases: each is reported with its place and takes no other with it.

This holds in every layout.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_sources import LAYOUTS

from workup.cases import open_source, problems
from workup.cases.files import LINE_LIMIT, line_at, lines_of, parse_json, raw_lines, read_object
from workup.cases.pieces import (
    CsvRecord,
    Piece,
    csv_pieces,
    csv_records,
    piece_at,
    pieces,
)
from workup.cases.rows import RowErrors
from workup.core.case import Case, Source
from workup.core.errors import CaseError, UserError

# Which file of a layout is damaged, and the number of the row in it (from 0; of a table, behind its
# header).
DAMAGED = {
    "abgcoqa": ("coqa_abg_test.json", 3),
    "agentclinic": ("agentclinic_medqa.jsonl", 3),
    "cmb": ("CMB-Exam/CMB-train/CMB-train-merge.json", 3),
    "cmb_clin": ("CMB-Clin-qa.json", 3),
    "ddxplus": ("p.csv", 2),
    "jsonl": ("c.jsonl", 3),
    "medmcqa": ("train.json", 3),
    "medqa": ("train.jsonl", 3),
    "medxpertqa": ("test.jsonl", 3),
    "mediq": ("m.jsonl", 3),
    "mimiccdm": ("cdm/history_of_present_illness.csv", 3),
    "mimiciv": ("mimic/hosp/labevents.csv.gz", 0),
    "mmlu": ("test/anatomy_test.csv", 3),
    "nejmqa": ("psychiatry.csv", 3),
    "phenobrain": ("phenobrain.json", 3),
    "phenopackets": ("store/G0/phenopackets/p3.json", 0),
    "pubmedqa": ("ori_pqal.json", 3),
    "rarearena": ("RDS.json", 3),
    "rjua": ("RJUA_train.json", 3),
}


def damage(path: Path, row: int) -> None:
    """Puts something in the place of a row that no reader takes for one, and leaves the others."""
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
    if text.startswith("{") and path.name.startswith("p3"):
        text = text[: len(text) // 2]
    elif path.name.startswith("coqa"):
        document = json.loads(text)
        document["data"][row] = "no object"
        text = json.dumps(document)
    elif path.name.startswith("ori_pqal"):
        document = json.loads(text)
        document[list(document)[row]] = 5
        text = json.dumps(document, indent=1)
    elif text.startswith("["):
        rows = json.loads(text)
        rows[row] = {"nothing": "of this set"}
        text = json.dumps(rows, indent=1)
    elif ".csv" in path.name:
        lines = list(csv.reader(io.StringIO(text, newline="")))
        headless = path.name.startswith("anatomy")
        lines[row + (not headless)] = ["x", "y"]
        out = io.StringIO(newline="")
        csv.writer(out).writerows(lines)
        text = out.getvalue()
    else:
        lines_ = text.splitlines()
        lines_[row] = lines_[row][: len(lines_[row]) // 2]
        text = "\n".join(lines_)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


@pytest.fixture(params=sorted(set(LAYOUTS) - {"clinic"}))
def damaged(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, list[Case], Path]:
    """A source with one bad row, the cases that it had before, and the file."""
    monkeypatch.setenv("WORKUP_CACHE", str(tmp_path / "cache"))
    spec = f"{request.param}:{LAYOUTS[request.param](tmp_path)}"
    before = cases(open_source(spec))
    name, row = DAMAGED[request.param]
    damage(tmp_path / name, row)
    return spec, before, tmp_path / name


def cases(source: Source) -> list[Case]:
    """All but simulated training patients."""
    some = source.train if len(source.train) < 10_000 else ()
    return [*some, *source.test]


def test_a_bad_row_takes_no_other_with_it(damaged: tuple[str, list[Case], Path]) -> None:
    spec, before, _ = damaged
    source = open_source(spec)
    after = {case.id: case for case in cases(source)}
    told = source.notes[-1]
    assert "rows left out" in told
    assert told.startswith("1 of ")
    assert told.endswith("--validate`.")
    assert "\n" not in told
    if spec.startswith("mimiciv"):  # a row there is one value of a case
        assert set(after) == {case.id for case in before}
        return
    gone = [case.id for case in before if case.id not in after]
    assert len(gone) == (2 if spec.startswith("cmb_clin") else 1)
    same = [
        case for case in before if case.id in after and not spec.startswith(("ddxplus", "mimiccdm"))
    ]
    assert all(
        after[case.id] == case for case in same
    )  # their ids, too, do not depend on the bad row


def test_every_bad_row_is_listed_with_its_place(damaged: tuple[str, list[Case], Path]) -> None:
    spec, _, file = damaged
    found: list[CaseError] = []
    assert problems(spec, found.append) == len(found) > 0
    assert {error.file for error in found} == {str(file)}
    assert all("\n" not in str(error) for error in found)
    assert spec.startswith("phenopackets") or all(error.line for error in found)
    assert problems(spec, lambda error: None) == len(
        found
    )  # an index that is there already tells the same


def test_strictly_the_first_bad_row_is_the_error(damaged: tuple[str, list[Case], Path]) -> None:
    spec, _, file = damaged
    first: list[CaseError] = []
    problems(spec, first.append)
    with pytest.raises(CaseError) as caught:
        open_source(spec, strict=True)
    assert (caught.value.file, caught.value.line, caught.value.field) == (
        str(file),
        first[0].line,
        first[0].field,
    )


# the account of rows ------------------------------------------------------------------------------


def flag(numbers: set[int], file: Path = Path("f")) -> Callable[[int], int]:
    def make(row: int) -> int:
        if row in numbers:
            raise CaseError("is bad.", file=file, line=row, got="a secret")
        return row

    return make


@given(st.lists(st.booleans(), max_size=30))
def test_bad_rows_are_those_that_are_counted(bad: list[bool]) -> None:
    wrong = {number for number, is_bad in enumerate(bad) if is_bad}
    errors = RowErrors()
    kept = [row for row, _ in errors.read(range(len(bad)), flag(wrong))]
    assert kept == [number for number in range(len(bad)) if number not in wrong]
    assert (errors.rows, errors.left_out) == (len(bad), len(wrong))
    assert [error.line for error in errors.first] == sorted(wrong)[:5]
    assert len(errors.notes("x:f")) == bool(wrong)
    assert "secret" not in "".join(errors.notes("x:f"))  # what a file holds stays out of notes


def test_a_note_names_the_file_where_the_source_has_several() -> None:
    errors = RowErrors()
    list(errors.read([1, 2], flag({2}, Path("folder/a.jsonl"))))
    assert errors.notes("x:folder") == (
        "1 of 2 rows left out: a.jsonl, line 2: is bad. See `workup cases x:folder --validate`.",
    )
    assert errors.notes("x:folder/a.jsonl")[0].startswith("1 of 2 rows left out: line 2: is bad.")


def test_an_id_stands_once() -> None:
    errors = RowErrors()
    errors.once("a", file=Path("f"))
    errors.once("b", file=Path("f"))
    for id, problem in ((" a\t", "earlier row"), ("", "is blank"), (" \u3000", "is blank")):
        with pytest.raises(CaseError, match=f"field 'id': .*{problem}"):
            errors.once(id, file=Path("f"))


# records of CSV files -----------------------------------------------------------------------------


def records(text: bytes, path: Path) -> list[list[str] | int | None]:
    """The cells of every record, or the line of its error."""
    lines = raw_lines(io.BytesIO(text).readline, path)
    return [
        one.cells if isinstance(one, CsvRecord) else one.line for one in csv_records(lines, path)
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'a,b\n"c,d\ne,f\ng,h\n', [["a", "b"], 2, ["e", "f"], ["g", "h"]]),
        (b'"c,d\ne,"f"\ng,h\n', [1, ["e", "f"], ["g", "h"]]),
        (b'a,"b\nc"\nd\n', [["a", "b\nc"], ["d"]]),
        (b'a,"b\n\xff c"\nd\n', [2, ["d"]]),  # one record on two lines, one of which is not UTF-8
        (b"a,b\r\nc,d\r\n", [["a", "b"], ["c", "d"]]),
        (b"\xef\xbb\xbfa\n\n , \n,\nb", [["a"], [" ", " "], ["b"]]),
        (b"a\n" + b"x" * (LINE_LIMIT + 5) + b"\nb\n", [["a"], 2, ["b"]]),
        (b'a\n"' + b"x,\n" * (LINE_LIMIT // 3) + b"\nb\n", None),
    ],
)
def test_records_that_are_none_leave_the_others(
    tmp_path: Path, text: bytes, expected: list[object] | None
) -> None:
    found = records(text, tmp_path / "x.csv")
    if expected is None:  # an unpaired mark before a third of a million lines
        assert found[:2] == [["a"], 2]
        assert found[-1] == ["b"]
        assert len(found) == 3 + LINE_LIMIT // 3 - 1
    else:
        assert found == expected


@pytest.mark.long
@pytest.mark.parametrize("line", [b'a","\n', b'"\n', b'"""\n', b'"a""\n', b'x,"y"z\n'])
def test_unpaired_marks_cost_linear_time(tmp_path: Path, line: bytes) -> None:
    def seconds(count: int) -> float:
        begun = time.process_time()
        records(line * count, tmp_path / "x.csv")
        return time.process_time() - begun

    few = min(seconds(20_000) for _ in range(3))
    assert min(seconds(160_000) for _ in range(2)) < 8 * 4 * max(few, 0.02)


@settings(deadline=None)
@given(st.binary(max_size=60) | st.text(st.sampled_from('ab,"\n\r'), max_size=60).map(str.encode))
def test_whatever_a_table_holds_is_read_or_told(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes
) -> None:
    path = tmp_path_factory.mktemp("t") / "x.csv"
    path.write_bytes(raw)
    if raw.startswith((b"PK\x03\x04", b"\x1f\x8b", b"PAR1", b"\xff\xfe", b"\xfe\xff")):
        with pytest.raises(CaseError, match="this is "):
            list(csv_pieces(path))
        return
    for piece in csv_pieces(path):
        assert (
            isinstance(piece, CaseError)
            or piece_at(path, piece.offset, piece.length).text == piece.text
        )


# members of JSON documents ------------------------------------------------------------------------

GOOD = '{"a": 1}'


@pytest.mark.parametrize(
    ("text", "kept", "lines"),
    [
        (f"[{GOOD},\noops,\n{GOOD}]", 2, [2]),
        (f'[{GOOD},\n"}}",\n[{GOOD}],\n{GOOD}]', 2, [2, 3]),
        (f"[{GOOD}\n{GOOD},\n{GOOD}]", 2, [2]),
        (f"[{GOOD},\n]", 1, [2]),
        (f'[{GOOD},\n{{"a": "cut here', 1, [2]),
        (f"[{GOOD},\n{GOOD}", 2, [2]),
        (f"[{GOOD}]\n{GOOD}", 1, [2]),
        ('{"x": ' + GOOD + ',\n"y": 5,\n"z": ' + GOOD + "}", 2, [2]),
        ('{"x": ' + GOOD + ',\n"\\ud83d": ' + GOOD + "}", 1, [2]),
        ("[" + GOOD + ',\n{"b": "' + "x" * LINE_LIMIT + '"},\n' + GOOD + "]", 2, [2]),
    ],
)
def test_members_that_are_none_leave_the_others(
    tmp_path: Path, text: str, kept: int, lines: list[int]
) -> None:
    (tmp_path / "x.json").write_text(text, encoding="utf-8")
    found = list(pieces(tmp_path / "x.json"))
    good = [one for one in found if isinstance(one, Piece)]
    assert [json.loads(one.text) for one in good] == [{"a": 1}] * kept
    assert [one.line for one in found if isinstance(one, CaseError)] == lines


# files that nobody prepared -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "scheme", ["jsonl", "mediq", "medqa", "mmlu", "phenopackets", "phenobrain", "agentclinic"]
)
@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("pipe", "is a pipe or a device; save it as a file"),
        ("failing", r"cannot be read \(Input/output error\)"),
        ("utf16", "this is UTF-16; save it as UTF-8"),
        ("gzip", "this is a gzip archive; unpack it"),
        ("zip", "this is a zip archive; unpack it"),
        ("parquet", r"this is a Parquet file; `python -c .* > LINES.jsonl` makes lines of it"),
        ("latin", "is not UTF-8|not JSON|is no list"),
        ("empty", "no|empty"),
        ("zeros", "no|not|6 cells"),
    ],
)
def test_a_file_that_is_no_text_is_one_line(
    tmp_path: Path, scheme: str, kind: str, problem: str
) -> None:
    path = tmp_path / ("x.csv" if scheme == "mmlu" else "x.jsonl")
    made(path, kind)
    with pytest.raises(UserError, match=problem) as caught:
        open_source(f"{scheme}:{path}")
    assert "\n" not in str(caught.value)


def made(path: Path, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(path)
    elif (
        kind == "failing"
    ):  # opens, and fails at the first byte: this process's memory at address 0
        path.symlink_to("/proc/self/mem")
    else:
        texts = {
            "utf16": '{"id": "ä"}\n'.encode("utf-16"),
            "gzip": gzip.compress(b'{"id": "x"}\n'),
            "zip": b"PK\x03\x04 and more\n",
            "parquet": b"PAR1\x15\x04,\x15\n,PAR1",
            "latin": '{"id": "Kardiom\xfcopathie"}\n'.encode("latin-1"),
            "empty": b"",
            "zeros": b"\0" * 400 + b"\n",
        }
        path.write_bytes(texts[kind])


def test_what_fails_under_way_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.symlink_to("/proc/self/mem")
    for read in (
        lambda: list(lines_of(path)),
        lambda: line_at(path, 0),
        lambda: read_object(path),
        lambda: list(pieces(path)),
    ):
        with pytest.raises(CaseError, match=r"cannot be read|is empty"):
            read()


def test_a_home_that_does_not_exist() -> None:
    with pytest.raises(UserError, match="'~nobody-of-this-name/x' cannot be read"):
        open_source("mediq:~nobody-of-this-name/x")


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (r'{"a": {"b": ["x", "\ud83d"]}}', "a.b.1"),
        (r'{"a": {"\uDC00": 1}}', "a"),
        (r'"\ud83dx"', None),
    ],
)
def test_half_a_character_is_named(text: str, field: str | None) -> None:
    with pytest.raises(CaseError, match="half of a character") as caught:
        parse_json(text, file=Path("f"), line=3)
    assert (caught.value.line, caught.value.field) == (3, field)


@pytest.mark.parametrize("name", ["NaN", "Infinity", "-Infinity"])
def test_a_number_without_end_is_refused_where_it_stands(name: str) -> None:
    text = f'{{"a": "NaN",\n"b": [1, {name}]}}'
    with pytest.raises(CaseError, match=f"{name} is no number .write null. at column 10") as caught:
        parse_json(text, file=Path("x"))
    assert caught.value.line == 2
    with pytest.raises(CaseError, match="line 7: not JSON: "):
        parse_json(text, file=Path("x"), line=7)


def test_what_is_told_can_be_printed(tmp_path: Path) -> None:
    """A Python literal may hold half of a character, and so may the name of a file."""
    error = CaseError("no evidence '\ud83d'.", file=tmp_path / "\udcff.csv", line=2, got="\udc00")
    assert str(error).isprintable()
    str(error).encode()
    errors = RowErrors(each=lambda error: None)
    errors.add(error)
    errors.notes("x")[0].encode()


@given(st.text(max_size=8))
def test_whole_characters_are_read(text: str) -> None:
    assert parse_json(json.dumps(text), file=Path("f")) == text
