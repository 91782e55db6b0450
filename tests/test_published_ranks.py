"""Published ranks beside ours: tables and PhEval folders, ids that differ, paired figures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import Call
from hpo_world import patient, patients, release
from test_rare_rankers import BLUE, FIT, FOCAL, RED

from workup.cases import open_source
from workup.cases.publications import without_publication
from workup.core.errors import CaseError, UserError
from workup.retrieval.hpo import RATIO
from workup.studies.base.beside import OUT, WITH, banded, compared, hit
from workup.studies.base.published import PublishedRanks, read
from workup.studies.rare import ALL, OWN, ranked

SPOT, TWIN = ("OMIM:1", "Spotted fever 1"), ("OMIM:4", "Twin syndrome")
DATA = Path(__file__).parents[2] / "shared/data"


def spec(tmp_path: Path) -> str:
    return patients(
        tmp_path / "p.jsonl",
        patient("a-1", SPOT, RED, FOCAL, pmid="PMID:10"),
        patient("PMID:7-b:2", TWIN, RED, FOCAL, pmid="PMID:99"),
        patient("c", SPOT, FIT, FOCAL, pmid="PMID:99"),
        patient("gone", ("OMIM:77", "Nowhere"), RED, FIT, pmid="PMID:98"),
        patient("blue", ("OMIM:2", "Blue disease"), BLUE, FIT, pmid="PMID:20"),
        patient("unpublished", SPOT, RED, FIT),
    )


def table(tmp_path: Path, text: str, name: str = "t.tsv") -> str:
    (tmp_path / name).write_text(text)
    return str(tmp_path / name)


ROWS = {"PMID:8-a:1": 2, "b_2": 1, "c": 0, "gone": 3, "blue": 1, "unpublished": 1}


def test_tables_are_read_whatever_divides_them(tmp_path: Path) -> None:
    cases = open_source(spec(tmp_path)).test
    cells = [(id, str(rank or "")) for id, rank in ROWS.items()]
    expected = {"a-1": 2, "PMID:7-b:2": 1, "c": 0, "gone": 3, "blue": 1, "unpublished": 1}
    tabs = table(tmp_path, "\n".join(map("\t".join, [("case_id", "rank"), *cells])))
    commas = table(tmp_path, "\n".join(f"x,{r},{c}" for c, r in [("case_id", "rank"), *cells]))
    rows = [json.dumps({"case_id": c, "rank": int(r) if r else None}) for c, r in cells]
    lines = table(tmp_path, "\n".join(rows), "t.jsonl")
    for place in (tabs, commas, lines):
        assert read(place, cases) == PublishedRanks("t", expected)


def test_an_id_that_fits_two_rows_fits_none(tmp_path: Path) -> None:
    cases = open_source(spec(tmp_path)).test
    place = table(tmp_path, "case_id\trank\nPMID:1-a-1\t1\nPMID:2-a-1\t2\nc\t4\n")
    assert read(place, cases).ranks == {"c": 4}
    assert without_publication("PMID:12") == "PMID:12"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("case\trank\nc\t1\n", r"line 2: no column 'case_id'"),
        ("case_id\trank\nc\t1.5\n", r"line 2, field 'rank': is no rank"),
        ("case_id\trank\nc\t1\nc\t2\n", r"line 3: a second rank"),
        ("case_id\trank\nc\t1\t2\n", r"line 2: it has 3 cells"),
        ("case_id\trank\nc\n", r"line 2: it has 1 cells"),
        ("case_id,rank\rc,1\r", r"line 1: a carriage return"),
        ("case_id\trank\rc\t1\r", r"line 1: a carriage return"),
        (f"case_id,rank\n{'c' * 140_000},1\n", r"line 2: cannot be divided into cells"),
    ],
)
def test_a_table_that_cannot_be_read_is_named(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(CaseError, match=problem):
        read(table(tmp_path, text), open_source(spec(tmp_path)).test)


def test_first_and_last_cells_may_be_empty(tmp_path: Path) -> None:
    cases = open_source(spec(tmp_path)).test
    place = table(tmp_path, "model\tcase_id\trank\n\tc\t3\n\tblue\t\nm\tgone\t0\n")
    assert read(place, cases).ranks == {"c": 3, "blue": 0, "gone": 0}
    place = table(tmp_path, "case_id\trank\nc\t3.0\nblue\tNA\n")
    assert read(place, cases).ranks == {"c": 3, "blue": 0}


def test_a_table_says_how_many_of_its_cases_are_used(tmp_path: Path) -> None:
    cases = open_source(spec(tmp_path)).test
    found = read(table(tmp_path, "case_id\trank\nc\t1\nelse\t2\nother\t3\n"), cases)
    assert found == PublishedRanks("t", {"c": 1}, ("t: 1 of its 3 cases are these patients.",))


def test_a_table_of_others_is_refused(tmp_path: Path) -> None:
    cases = open_source(spec(tmp_path)).test
    with pytest.raises(UserError, match="none of its 1 cases"):
        read(table(tmp_path, "case_id\trank\nz\t1\n"), cases)
    with pytest.raises(UserError, match="is no folder of PhEval's results"):
        read(str(tmp_path), cases)


def test_folders_of_pheval_are_read(tmp_path: Path) -> None:
    pyarrow, parquet = (pytest.importorskip(f"pyarrow{part}") for part in ("", ".parquet"))
    cases = open_source(spec(tmp_path)).test
    folder = tmp_path / "run" / "pheval_disease_results"
    folder.mkdir(parents=True)
    rows = {
        "rank": [1, 2, 3],
        "score": [3.0, 2.0, 1.0],
        "disease_identifier": ["OMIM:4", "OMIM:1", "OMIM:1"],
        "true_positive": [False, True, True],
    }
    parquet.write_table(pyarrow.table(rows), folder / "a-1-disease_result.parquet")
    missed = {**rows, "rank": [1, 2, 0], "true_positive": [False, False, True]}
    parquet.write_table(pyarrow.table(missed), folder / "c-disease_result.parquet")
    (folder / "b_2-pheval_disease_result.tsv").write_text(
        "rank\tscore\tdisease_name\tdisease_identifier\n1\t2\tx\tOMIM:1\n2\t1\ty\tOMIM:4\n"
    )
    expected = {"a-1": 2, "c": 0, "PMID:7-b:2": 2}
    assert read(str(tmp_path / "run"), cases).ranks == expected
    assert read(str(folder), cases).ranks == expected
    (folder / "gone-disease_result.parquet").write_text("no parquet")
    with pytest.raises(CaseError, match="is no Parquet file"):
        read(str(folder), cases)


def result(folder: Path, case: str, text: str, ending: str = "tsv") -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{case}-disease_result.{ending}").write_text(text)


def test_files_of_pheval_are_those_of_their_ids(tmp_path: Path) -> None:
    """Two ids that differ by their publication alone, each with its own truth."""
    rows = [patient("PMID_1_1", SPOT, RED, FIT), patient("PMID_2_1", TWIN, RED, FIT)]
    cases = open_source(patients(tmp_path / "q.jsonl", *rows)).test
    folder = tmp_path / "exomiser_13.3"
    for id in ("PMID_1_1", "PMID_2_1"):
        result(folder, id, "rank\tdisease_identifier\n1\tOMIM:4\n2\tOMIM:1\n")
    assert read(str(folder), cases) == PublishedRanks(
        "exomiser_13.3", {"PMID_1_1": 2, "PMID_2_1": 1}
    )
    result(folder, "PMID_2_1", "rank\tdisease_identifier\n")
    result(folder, "elsewhere", "of no case: not read")
    assert read(str(folder), cases) == PublishedRanks(
        "exomiser_13.3",
        {"PMID_1_1": 2, "PMID_2_1": 0},
        (
            "exomiser_13.3: 2 of its 3 cases are these patients.",
            "exomiser_13.3: 1 files rank nothing at all; their patients are missed.",
        ),
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("place\ttrue_positive\n1\tTrue\n", "line 2: no column 'rank'"),
        ("rank\tdisease\n1\tOMIM:1\n", "line 2: no column 'disease_identifier'"),
        ("rank\ttrue_positive\n1\tFalse\n2\tyes\n", "line 3, field 'true_positive': is neither"),
        ("rank\ttrue_positive\n1\t\n", "is neither true nor false"),
        ("rank\ttrue_positive\none\tTRUE\n", "is no rank"),
    ],
)
def test_a_result_of_pheval_that_cannot_be_read_is_no_miss(
    tmp_path: Path, text: str, problem: str
) -> None:
    result(tmp_path / "run", "c", text)
    with pytest.raises(CaseError, match=problem):
        read(str(tmp_path / "run"), open_source(spec(tmp_path)).test)


def test_two_results_of_one_case_are_refused(tmp_path: Path) -> None:
    for ending in ("parquet", "tsv"):
        result(tmp_path / "run", "c", "rank\ttrue_positive\n1\tTrue\n", ending)
    with pytest.raises(CaseError, match=r"second result of the case of c-disease_result\.parquet"):
        read(str(tmp_path / "run"), open_source(spec(tmp_path)).test)


def test_two_tables_of_one_name_are_refused(tmp_path: Path) -> None:
    source = open_source(spec(tmp_path))
    twice = [PublishedRanks("t", {"c": 1}), PublishedRanks("t", {"a-1": 2})]
    with pytest.raises(UserError, match="2 tables are called 't'"):
        compared(source, "nowhere", twice, 10, 0, lambda total: lambda: None)


def test_every_table_has_its_patients(tmp_path: Path) -> None:
    """`n` of each; one whose disease has no code is in the group of its publication."""
    folder = release(tmp_path / "hpo")
    source = open_source(spec(tmp_path))
    uncoded = [
        replace(each, truth=replace(each.truth, codes=())) if each.id == "c" else each
        for each in source.test
    ]
    source = replace(source, test=uncoded)
    few, many = PublishedRanks("few", {"blue": 1}), {"a-1": 1, "PMID:7-b:2": 1, "c": 1, "gone": 1}
    tables = [few, PublishedRanks("many", many)]
    found = compared(source, str(folder), tables, 1, 0, lambda total: lambda: None)
    assert {each.case for each in found.cases} == {"blue", "a-1"}
    every = compared(source, str(folder), tables, 9, 0, lambda total: lambda: None)
    groups = {each.case: each.group for each in every.cases}
    assert groups["c"] == groups["PMID:7-b:2"] != groups["a-1"]


def test_the_figures_of_a_table_are_of_its_own_patients(tmp_path: Path) -> None:
    """Another table may draw more patients of this one, and they are not evenly spaced in it."""
    folder = release(tmp_path / "hpo")
    source = open_source(spec(tmp_path))
    wide = PublishedRanks("wide", dict.fromkeys(("a-1", "PMID:7-b:2", "c", "gone", "blue"), 2))
    narrow = PublishedRanks("narrow", {"c": 1, "blue": 1})

    def of(*tables: PublishedRanks) -> set[str]:
        found = compared(source, str(folder), tables, 2, 0, lambda total: lambda: None)
        return {each.case for each in found.of("wide")}

    assert of(wide) == of(wide, narrow)
    assert len(of(wide)) == 2


def test_findings_that_the_release_lacks_are_counted(tmp_path: Path) -> None:
    folder = release(tmp_path / "hpo")
    rows = [patient("a", SPOT, RED, "HP:7", pmid="PMID:99"), patient("b", SPOT, RED, FIT)]
    source = open_source(patients(tmp_path / "q.jsonl", *rows))
    beside = compared(
        source, str(folder), [PublishedRanks("t", {"a": 1})], 9, 0, lambda total: lambda: None
    )
    assert any(note.startswith("1 of 2 findings are no abnormality") for note in beside.notes())
    alone = ranked(source, str(folder), 9, 0, lambda: None)
    assert any(note.startswith("1 of 4 findings are no abnormality") for note in alone.notes())


def test_ranks_are_the_studys_and_differences_are_counts(tmp_path: Path) -> None:
    folder = release(tmp_path / "hpo")
    source = open_source(spec(tmp_path))
    ids = ("a-1", "PMID:7-b:2", "c", "gone", "blue", "unpublished")
    theirs = PublishedRanks("t", dict(zip(ids, (2, 1, 0, 3, 1, 1), strict=True)))
    found = compared(source, str(folder), [theirs], 10, 0, lambda total: lambda: None)
    assert found.untold == 1
    ranks = {each.case: each.ranks for each in found.cases}
    assert {*ranks} == {"a-1", "PMID:7-b:2", "c", "gone", "blue"}
    own = ranked(source, str(folder), 10, 0, lambda: None)
    for each in own.placed:
        if each.case in ranks:
            assert ranks[each.case][WITH] == each.ranks[ALL, RATIO].exact
            assert ranks[each.case][OUT] == each.ranks[OWN, RATIO].exact
    assert ranks["gone"] == {"t": 3, WITH: 0, OUT: 0}
    assert (ranks["blue"][WITH], ranks["blue"][OUT]) == (1, 0)  # only its own paper describes it
    for k in (1, 3, 10):
        ours = [float(0 < each[OUT] <= k) for each in ranks.values()]
        them = [float(0 < each["t"] <= k) for each in ranks.values()]
        gap = found.gap(found.of("t"), OUT, "t", k)
        assert gap.mean == pytest.approx(sum(ours) / 5 - sum(them) / 5)
        assert gap.low < gap.mean < gap.high
        right = found._right(found.of("t"), "t", k)
        assert sum(share.mean for share in right.values()) == pytest.approx(1)
        assert right["both"].mean == sum(a * b for a, b in zip(ours, them, strict=True)) / 5
    same = found.gap(found.of("t"), "t", "t", 1)
    assert same.low < same.mean == 0 < same.high  # no difference was seen: none is still bounded
    # SPOT ties a-1 to c, the paper ties c to its patient of TWIN
    groups = {each.case: each.group for each in found.cases}
    assert groups["a-1"] == groups["c"] == groups["PMID:7-b:2"]
    assert len({*groups.values()}) == 3
    bands = banded(found.cases, (1, 2, 4), lambda each: each.findings)
    assert {name: len(cases) for name, cases in bands.items()} == {"1": 0, "2–3": 5, "4+": 0}
    assert hit(found.cases[0], "t", 1) == 0 < hit(found.cases[0], "t", 3)


@pytest.mark.long
def test_the_command_takes_several_tables(tmp_path: Path, call: Call) -> None:
    folder = release(tmp_path / "hpo")
    one = table(tmp_path, "case_id\trank\nc\t1\nblue\t2\n", "one.tsv")
    two = table(tmp_path, "case_id,rank\nc,\nblue,2\n", "two.csv")
    words = ("study", "rare", f"cases={spec(tmp_path)}", f"release={folder}")
    status, shown, _ = call(*words, f"against={one},{two}", "--out", tmp_path / "s")
    assert status == 0
    numbers = json.loads((tmp_path / "s" / "rare.json").read_text())
    assert {*numbers["compared"]} == {"one", "two"}
    assert numbers["compared"]["two"]["top"]["two"]["3"]["mean"] == 0.5
    assert "2 patients" in shown
    assert "Beside one" in (tmp_path / "s" / "rare.html").read_text()
    again = (*words, "--out", tmp_path / "again")
    assert call(*again, f"against={one}, {two}")[0] == 0, "blanks around a comma"
    status, _, told = call(*words, f"against={one},", "--out", tmp_path / "comma")
    assert status == 2
    assert "a comma stands between two entries, and one is empty" in " ".join(told.split())
    unknown = table(tmp_path, "case_id\trank\nunpublished\t1\n", "u.tsv")
    status, _, told = call(*words, f"against={unknown}", "--out", tmp_path / "u")
    assert status == 2
    assert "no publication is known" in told
    assert not (tmp_path / "u").exists()


@pytest.mark.parametrize(
    ("place", "cases", "top"),
    [
        ("exomiser_lirical.tsv", "lirical/phenopackets", (0.278, 0.553)),
        ("gpt4_lirical.tsv", "lirical/phenopackets", (0.148, 0.236)),
    ],
)
def test_published_figures_come_back(place: str, cases: str, top: tuple[float, float]) -> None:
    """Half of the published patients are at hand, so the figures are near and not equal."""
    if not (DATA / "published_ranks" / place).exists():
        pytest.skip("the published ranks are not at hand")
    source = open_source(f"phenopackets:{DATA / cases}#all")
    ranks = read(str(DATA / "published_ranks" / place), source.test).ranks
    assert len(ranks) == 175  # ten have fewer than two findings
    for k, expected in zip((1, 10), top, strict=True):
        share = sum(0 < rank <= k for rank in ranks.values()) / 175
        assert share == pytest.approx(expected, abs=0.06)
