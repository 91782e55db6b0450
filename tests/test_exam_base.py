"""Bases of examinations: what is read, what is refused, what comes back, and what damage does."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from command_line import Call
from hypothesis import given, settings
from hypothesis import strategies as st

from workup.cases.clinic.pathology import markers, open_pathology, rates, tumours
from workup.cases.exam_terms import key
from workup.cases.jsonl import write
from workup.core.case import Case, Fact, Kind, Truth
from workup.core.errors import CaseError, UserError
from workup.environments.exams.exam_base import ExamBase, Statistic, damages
from workup.environments.exams.exam_sources import Counted, build

COLUMNS = "disease,test,positive,n,share,reference,disease_names,test_names"


def table(folder: Path, *rows: str, columns: str = COLUMNS) -> str:
    path = folder / "table.csv"
    path.write_text("\n".join((columns, *rows)) + "\n", encoding="utf-8")
    return str(path)


def built(folder: Path, *rows: str, columns: str = COLUMNS) -> tuple[ExamBase, Sequence[str]]:
    made = build([table(folder, *rows, columns=columns)], folder / "base")
    return ExamBase.open(str(folder / "base")), made.notes


def share(base: ExamBase, disease: str, test: str) -> float | None:
    exam = base.test(key(test))
    found = base.share(base.disease([disease]), exam) if exam else None
    return found.share if found else None


def test_a_table_is_read_by_every_name(tmp_path: Path) -> None:
    base, notes = built(
        tmp_path,
        "stromal tumor,CD117,95,100,,Smith 2001,GIST|gastrointestinal stromal tumor,c-KIT|KIT",
        "stromal tumor,DOG1,,,0.97,,,",
    )
    assert notes == []
    for disease in ("stromal tumor", "gist", "Gastrointestinal stromal tumor"):
        for test in ("CD117", "CD-117", "c-kit", "KIT immunostain"):
            assert share(base, disease, test) == 0.95
    assert share(base, "GIST", "DOG1") == 0.97
    assert share(base, "GIST", "CD20") is None
    assert share(base, "melanoma", "DOG1") is None
    assert [(s.test, s.n, s.reference) for s in base.shares("GIST")] == [
        ("CD117", 100, "Smith 2001"),
        ("DOG1", 0, ""),
    ]


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from("xy"), st.integers(0, 9)), max_size=12
    )
)
@settings(max_examples=50)
def test_counts_are_pooled(rows: list[tuple[str, str, int]]) -> None:
    pooled: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for disease, test, hits in rows:
        pooled[disease, test][0] += hits
        pooled[disease, test][1] += 9
    base = ExamBase.of(
        "it", (Statistic(f"d {d}", f"t{t}", hits / 9, 9, "r") for d, t, hits in rows)
    )
    for (disease, test), (hits, n) in pooled.items():
        (found,) = [s for s in base.shares(f"d {disease}") if s.test == f"t{test}"]
        assert found.share == pytest.approx(hits / n)
        assert (found.n, found.reference) == (n, "r")


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("GIST,CD117,3,2,,,,", "field 'positive': positive needs n, and is at most n"),
        ("GIST,CD117,3,,,,,", "field 'positive': positive needs n"),
        ("GIST,CD117,1,2,0.5,,,", "field 'share': give either share, or positive and n"),
        ("GIST,CD117,,,,,,", "field 'share': give either share"),
        ("GIST,CD117,,,1.5,,,", "field 'share': input should be less than or equal to 1"),
        ("GIST,immunostain,,,0.5,,,", "field 'test': names nothing"),
        (",CD117,,,0.5,,,", "field 'disease': field required"),
        ("GIST,CD117,,,nan,,,", "field 'share'"),
        ("GIST,CD117", "has 2 cells, and the first line names 8 columns"),
        (f"GIST,{'x' * 301},,,0.5,,,", "at most 300 char"),
        ("ok,CD20,,,0.4,,,", "stands in an earlier row too"),
    ],
)
def test_bad_rows_are_left_out_with_their_line(tmp_path: Path, row: str, problem: str) -> None:
    base, notes = built(tmp_path, "ok,CD20,,,0.5,,,", row)
    assert share(base, "ok", "CD20") == 0.5
    assert notes[0].endswith("1 of 2 rows were left out")
    assert "table.csv, line 3" in notes[1]
    assert problem in notes[1]
    with pytest.raises(CaseError, match=r"table\.csv, line 3"):
        build([table(tmp_path, "ok,CD20,,,0.5,,,", row)], tmp_path / "strict", strict=True)
    assert not (tmp_path / "strict").exists()


def test_a_column_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no column 'testt'\. Did you mean 'test'"):
        built(tmp_path, "a,b", columns="disease,testt")
    with pytest.raises(UserError, match="no statistic to build from"):
        built(tmp_path)


def test_a_name_that_two_tests_claim_stays_with_the_first(tmp_path: Path) -> None:
    base, notes = built(tmp_path, "GIST,actin,,,0.5,,,SMA", "GIST,alpha actin,,,0.25,,,SMA|HHF35")
    assert share(base, "GIST", "SMA") == 0.5
    assert share(base, "GIST", "HHF35") == 0.25
    assert notes == ["'sma' is a name of 'actin'; as a name of 'alpha actin' it is left out"]


@pytest.mark.parametrize("suffix", ["jsonl", "json", "tsv"])
def test_other_layouts_say_the_same(tmp_path: Path, suffix: str) -> None:
    rows = [
        {"disease": "GIST", "test": "CD117", "share": 0.9, "test_names": ["KIT"]},
        {"disease": "GIST", "test": "CD34", "positive": 7, "n": 10},
    ]
    text = {
        "jsonl": "".join(json.dumps(row) + "\n" for row in rows),
        "json": json.dumps(rows),
        "tsv": "disease\ttest\tshare\tpositive\tn\ttest_names\n"
        "GIST\tCD117\t0.9\t\t\tKIT\nGIST\tCD34\t\t7\t10\t\n",
    }[suffix]
    (tmp_path / f"t.{suffix}").write_text(text)
    assert build([str(tmp_path / f"t.{suffix}")], tmp_path / "base").notes == []
    base = ExamBase.open(str(tmp_path / "base"))
    assert (share(base, "GIST", "kit"), share(base, "GIST", "CD34")) == (0.9, 0.7)


def test_the_public_layout_is_read(tmp_path: Path) -> None:
    document = {
        "markerDB": {"TTF1": {"display": "TTF-1", "aliases": ["nkx2-1"], "site": "x"}},
        "bayesDB": [
            {"name": "Adenocarcinoma Polmonare", "prior": 1, "markers": {"TTF1": {"s": 0.8}}},
            {"name": "Seminoma", "prior": 1, "markers": {"TTF1": {"s": 7}}},
        ],
    }
    (tmp_path / "ihc.json").write_text(json.dumps(document))
    made = build([str(tmp_path / "ihc.json")], tmp_path / "base")
    base = ExamBase.open(str(tmp_path / "base"))
    assert share(base, "lung adenocarcinoma", "thyroid transcription factor 1") == 0.8
    assert share(base, "adenocarcinoma polmonare", "NKX2-1") == 0.8
    assert "bayesDB.1" in made.notes[1]


def test_the_wing_s_base_is_its_table() -> None:
    base = ExamBase.open("clinic")
    for tumour, shares in zip(tumours(), rates(), strict=True):
        for name in (tumour.name, *tumour.synonyms):
            assert base.disease([name]) == tumour.name
        found = {each.test: each.share for each in base.shares(tumour.name)}
        assert found == {m.name: s for m, s in zip(markers(), shares, strict=True)}


def test_counts_over_the_wing_s_cases_are_those_of_its_records() -> None:
    source = open_pathology()
    counted = Counted.of(source, 200)
    made = {(row.disease, row.test): row for row in counted.rows()}
    by_hand: defaultdict[tuple[str, str], list[bool]] = defaultdict(list)
    for case in source.train[:200]:
        for marker in markers():
            by_hand[case.truth.diagnosis, marker.name].append(
                marker.negative not in case.truth.record
            )
    assert {place: row.n for place, row in made.items()} == {
        place: len(seen) for place, seen in by_hand.items()
    }
    assert all(row.share == np.mean(by_hand[place]) for place, row in made.items())
    with pytest.raises(UserError, match="--limit"):
        Counted.of(source)


def test_extracted_reports_are_counted_by_their_words(tmp_path: Path) -> None:
    def case(number: int, *results: str) -> Case:
        facts = tuple(
            Fact(f"t{k}", text.partition(":")[0], text, Kind.LABORATORY)
            for k, text in enumerate(results)
        )
        return Case(f"c{number}", "A lump.", Truth("GIST", facts=facts))

    cases = [
        case(1, "CD117: positive, diffuse", "S-100: negative"),
        case(2, "CD-117: （+）", "S100: about half of the cells"),
        case(3, "c-KIT: no staining", "S100: -"),
    ]
    write(cases, tmp_path / "cases.jsonl")
    made = build([f"jsonl:{tmp_path / 'cases.jsonl'}#all"], tmp_path / "base")
    base = ExamBase.open(str(tmp_path / "base"))
    assert share(base, "GIST", "CD117") == pytest.approx(2 / 3)
    assert share(base, "GIST", "S100") == 0.0
    assert any("1 results are neither" in note for note in made.notes)


def test_restricted_cases_are_not_counted(tmp_path: Path) -> None:
    write([Case("c", "A lump.", Truth("GIST"))], tmp_path / "cases.jsonl", restricted=True)
    with pytest.raises(UserError, match="restricted"):
        build([f"jsonl:{tmp_path / 'cases.jsonl'}#all"], tmp_path / "base")
    assert not (tmp_path / "base").exists()


def test_a_file_that_was_cut_off_is_told(tmp_path: Path) -> None:
    built(tmp_path, "GIST,CD117,,,0.9,,,")
    folder = tmp_path / "base"
    whole = (folder / "exams.sqlite").read_bytes()
    (folder / "exams.sqlite").write_bytes(whole[:5000])
    with pytest.raises(UserError, match=r"exams\.sqlite: 5,000 bytes instead of .* build the base"):
        ExamBase.open(str(folder))
    assert damages(folder) == [f"exams.sqlite: 5,000 bytes instead of {len(whole):,}"]
    (folder / "exams.sqlite").write_bytes(random.Random(0).randbytes(len(whole)))
    with pytest.raises(UserError, match="damaged"):
        share(ExamBase.open(str(folder)), "GIST", "CD117")
    assert damages(folder) == ["exams.sqlite: its checksum is another"]
    text = (folder / "exams.json").read_text()
    for cut in (text[:30], text.replace('"format": 1', '"format": 2'), "[]", '{"format": 1}'):
        (folder / "exams.json").write_text(cut)
        with pytest.raises(UserError, match="build the base anew"):
            ExamBase.open(str(folder))
    with pytest.raises(UserError, match="is no base of examinations"):
        ExamBase.open(str(tmp_path))


def test_a_killed_build_leaves_nothing(tmp_path: Path) -> None:
    """Killed as it writes: no folder, and the same command then makes it."""
    source = "clinic:pathology"
    code = (
        "import os, signal\n"
        "from pathlib import Path\n"
        "from workup.environments.exams import exam_base, exam_sources\n"
        "exam_base._finish = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"exam_sources.build(['{source}'], Path('base'), limit=20)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False)
    assert done.returncode == -9
    assert not (tmp_path / "base").exists()
    build([source], tmp_path / "base", limit=20)
    assert len(ExamBase.open(str(tmp_path / "base")).tests) == len(markers())
    assert [path.name for path in tmp_path.iterdir()] == ["base"]


def test_the_commands(call: Call, tmp_path: Path) -> None:
    path = table(tmp_path, "GIST,CD117,95,100,,,,", "GIST,DOG1,,,7,,,")
    status, shown, told = call("index", "build", path, "--kind", "exams", "--out", "base")
    assert (status, shown) == (0, "base: 1 statistic of 1 examination in 1 disease\n")
    assert "1 of 2 rows were left out" in told
    assert "line 3, field 'share'" in told
    assert call("index", "check", "base")[1] == "base: whole, 1 statistic\n"
    status, _, told = call("index", "build", path, "--kind", "exams", "--out", "base")
    assert (status, told) == (2, "error: base exists; choose another --out, or delete it\n")
    kinds = ("--kind", "exams", "--kind", "bm25")
    status, _, told = call("index", "build", path, *kinds, "--out", "other")
    assert status == 2
    assert "no other kind beside it" in told
    (tmp_path / "base" / "exams.sqlite").write_bytes(b"")
    status, shown, told = call("index", "check", "base")
    assert status == 2
    assert shown.startswith("exams.sqlite: 0 bytes instead of")
    assert len(told.splitlines()) == 1
