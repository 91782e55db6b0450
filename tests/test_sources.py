"""The opener, lazy reading, and the look at a source."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib import import_module
from io import StringIO
from itertools import islice
from pathlib import Path

import pytest
from ddxplus_world import patient, write_csv, write_release
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from test_mediq import row as mediq_row
from test_mediq import write as write_mediq

import workup.cases
from workup.cases import jsonl, open_source
from workup.cases.files import existing, held_out, with_ids
from workup.cases.icd import chapter
from workup.cases.look import lines, show
from workup.cases.recognised import kind_of
from workup.core.case import Case, Fact, Source, Truth
from workup.core.errors import CaseError, UserError
from workup.core.lazy import Lazy
from workup.core.text import unsteering
from workup.runs.policies.unseen import open_unseen


def numbered(count: int) -> list[Case]:
    return [Case(str(i), f"Patient {i}.", Truth("Flu" if i % 3 else "Croup")) for i in range(count)]


# the opener ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("jsnl:x", "no case source 'jsnl'. Did you mean 'jsonl:x'"),
        ("medaq:dev.jsonl", "no case source 'medaq'. Did you mean 'medqa:dev.jsonl'"),
        ("meidq:dev.jsonl#all", "no case source 'meidq'. Did you mean 'mediq:dev.jsonl#all'"),
        ("cmb-clin:a.json", "no case source 'cmb-clin'. Did you mean 'cmb_clin:a.json'"),
        ("CMB Clin:a.json", "no case source 'CMB Clin'. Did you mean 'cmb_clin:a.json'"),
        ("MedQA:questions", "no case source 'MedQA'. Did you mean 'medqa:questions'"),
        ("cmb-clin", "no case source 'cmb-clin'. Did you mean 'cmb_clin'"),
        ("files:x", "no case source 'files'"),  # a module here, but no source
        ("clinic", "'clinic' lacks the rest of the source: write it as in 'clinic:s'"),
        ("mediq", "write it as in 'mediq:all_dev_good.jsonl'"),
        ("os:x", "no case source 'os'"),
        ("no/such.jsonl", "there is no no/such.jsonl"),
        ("", "no case source ''"),
        ("jsonl:", "a path is missing"),
        ("mediq:/no/such/folder/f", "no folder"),
    ],
)
def test_a_spec_that_opens_nothing(spec: str, problem: str) -> None:
    with pytest.raises(UserError) as caught:
        open_source(spec)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_look_at_questions_speaks_of_answers() -> None:
    asked = [
        Case(
            str(i),
            "A man.",
            Truth(f"drug {i}"),
            question="Which drug?",
            options=(f"drug {i}", "none"),
        )
        for i in range(3)
    ]
    text = "\n".join(line.plain for line in lines(Source("set", (), tuple(asked)), 0))
    assert "options in each case" in text
    assert "Answers of 3 sampled cases: all different" in text
    assert "none; everything is told at the outset" in text


def test_a_path_alone_gets_its_scheme(tmp_path: Path) -> None:
    file = tmp_path / "cases.jsonl"
    file.write_text("{}")
    with pytest.raises(UserError, match=f"Did you mean 'jsonl:{file}'"):
        open_source(str(file))
    with pytest.raises(UserError, match=f"the kind of its cases before it: SCHEME:{tmp_path} "):
        open_source(str(tmp_path))


def test_a_release_without_its_scheme_is_recognised(spec: str) -> None:
    """By its folder or file as it is opened; and none of its files is taken for another's."""
    scheme, _, place = spec.partition(":")
    if scheme == "clinic":
        return
    with pytest.raises(UserError, match=re.escape(f"Did you mean '{scheme}:{place}'")):
        open_source(place)
    whole = Path(place.partition("#")[0])
    files = [each for each in whole.rglob("*") if each.is_file()] if whole.is_dir() else [whole]
    found = {kind_of(file, workup.cases._sources()) for file in files}
    assert found <= {scheme, ""}
    assert scheme in found or scheme == "mimiciv", "whose files have common names"


def test_what_is_no_release_is_recognised_as_none(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("presentation diagnosis")
    (tmp_path / "own.csv").write_text("name,age\nAnn,7\n")
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "bytes.json").write_bytes(bytes(range(256)))
    for place in (tmp_path, tmp_path / "notes.txt", tmp_path / "own.csv"):
        with pytest.raises(UserError, match="the kind of its cases before it"):
            open_source(str(place))


def test_a_mistyped_path_gets_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "cases.jsonl").write_text("{}")
    with pytest.raises(
        UserError, match=r"no file or folder .*case\.jsonl'\. Did you mean '.*cases\.jsonl'"
    ):
        open_source(f"jsonl:{tmp_path / 'case.jsonl'}")


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "f").touch()
    assert existing("~/f") == tmp_path / "f"


# what every source keeps --------------------------------------------------------------------------


def _ddxplus(folder: Path) -> str:
    write_release(folder)
    evidences = (["E_1"], ["E_1", "E_7"], ["E_1", "E_8"], ["E_1", "E_9"])
    write_csv(folder / "p.csv", [patient(evidences=chosen) for chosen in evidences])
    return f"{folder / 'p.csv'}#simulated"


def _mediq(folder: Path) -> str:
    return str(write_mediq(folder / "m.jsonl", *(mediq_row(i) for i in range(30))))


def _jsonl(folder: Path) -> str:
    jsonl.write(numbered(30), folder / "c.jsonl")
    return str(folder / "c.jsonl")


LAYOUTS: dict[str, Callable[[Path], str]] = {
    "clinic": lambda folder: "xs",
    "ddxplus": _ddxplus,
    "mediq": _mediq,
    "jsonl": _jsonl,
}
for module in sorted(
    Path(__file__).parent.glob("*_layouts.py")
):  # one file per family of sources, found by its name
    LAYOUTS |= import_module(module.stem).LAYOUTS


def test_every_scheme_has_a_small_file_of_its_layout() -> None:
    schemes = {each.name for each in workup.cases.schemes()}
    assert schemes == set(LAYOUTS)


@pytest.fixture(params=sorted(LAYOUTS))
def spec(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("WORKUP_CACHE", str(tmp_path / "cache"))
    return f"{request.param}:{LAYOUTS[request.param](tmp_path)}"


def test_a_source_keeps_its_name_and_says_what_it_is(spec: str) -> None:
    source = open_source(spec, split=3)
    assert source.name == spec
    assert isinstance(source.restricted, bool)
    assert all(note and "\n" not in note for note in source.notes)
    assert len(set(source.phrases)) == len(source.phrases)
    assert shown(source).count("hidden:") == min(2, len(source.test) or len(source.train))


def test_a_source_has_cases_that_can_be_played(spec: str) -> None:
    source = open_source(spec, split=3)
    cases = [*source.train[:50], *source.test[:50]]
    assert cases
    assert len({case.id for case in cases}) == len(cases)
    for case in cases:
        assert case.id
        assert case.presentation.strip()
        assert case.truth.diagnosis
        assert all(option.strip() for option in case.options)
        assert not source.diagnoses or case.truth.diagnosis in source.diagnoses


def test_a_source_is_the_same_every_time(spec: str) -> None:
    one, other = open_source(spec, split=3), open_source(spec, split=3)
    for mine, yours in ((one.train, other.train), (one.test, other.test)):
        assert len(mine) == len(yours)
        assert mine[:20] == yours[:20]
        assert list(reversed(mine[:20])) == [mine[i] for i in reversed(range(min(20, len(mine))))]


def test_the_number_of_the_split_is_all_that_divides_a_source(spec: str) -> None:
    """Each number holds out cases of its own; what came as one set can be had whole."""
    sources = [open_source(spec, split=split) for split in (0, 1)]
    for source in sources:
        for side in (source.train, source.test):
            some = [side[index] for index in range(min(40, len(side)))]
            sought = {case.id for case in some[::3]}
            assert list(islice(with_ids(side, sought), len(some[::3]))) == some[::3]
    whole, split = open_unseen(spec, [])
    if not sources[0].undivided:
        assert split == 0
        assert whole.test[:40] == sources[0].test[:40]
        return
    assert split is None
    assert len(whole.train) == 0
    assert len(sources[0].test) < len(whole.test)
    for source in sources:
        assert ids(whole.test) == ids(source.train) | ids(source.test)
    assert ids(sources[0].test) != ids(sources[1].test)


def ids(cases: Sequence[Case]) -> set[str]:
    return {cases[index].id for index in range(len(cases))}


def test_which_sources_came_undivided(spec: str) -> None:
    """Not those with an official test part, with tables made from the training side, or made."""
    source = open_source(spec)
    official = any(note.startswith("Official parts: ") for note in source.notes)
    assert source.undivided != (official or source.knowledge is not None)


def test_a_source_of_files_refuses_what_is_not_there(spec: str, tmp_path: Path) -> None:
    scheme = spec.partition(":")[0]
    with pytest.raises(UserError) as caught:
        open_source(f"{scheme}:{tmp_path / 'no' / 'such' / 'place'}")
    assert "\n" not in str(caught.value)


# lazy reading -------------------------------------------------------------------------------------


@given(st.integers(0, 20), st.slices(20), st.integers(-25, 25))
def test_lazy_cases_index_like_a_list(size: int, part: slice, index: int) -> None:
    eager = numbered(size)
    lazy = Lazy(size, eager.__getitem__, keep=2)
    assert lazy[part] == eager[part]
    assert list(lazy) == eager
    assert list(reversed(lazy)) == eager[::-1]
    if -size <= index < size:
        assert lazy[index] == eager[index]
    else:
        with pytest.raises(IndexError):
            lazy[index]


def test_lazy_cases_are_made_when_indexed_and_kept_for_a_while() -> None:
    made: list[int] = []

    def make(i: int) -> Case:
        made.append(i)
        return numbered(i + 1)[i]

    lazy = Lazy(10**9, make, keep=2)
    assert [lazy[i].id for i in (5, 5, 6, 7, 5)] == ["5", "5", "6", "7", "5"]
    assert made == [5, 6, 7, 5]


@settings(max_examples=20)
@given(st.integers(0, 2**63))
def test_one_in_five_is_held_out(split: int) -> None:
    share = sum(held_out(split, f"key {i}") for i in range(2_000)) / 2_000
    assert abs(share - 0.2) < 6 * (0.16 / 2_000) ** 0.5


def test_held_out_is_the_same_everywhere() -> None:
    """A frozen answer.

    A change of the hash would move cases between the splits of published results.
    """
    assert [i for i in range(12) if held_out(0, str(i))] == [5, 7]


def test_a_file_that_vanished_is_no_empty_case(tmp_path: Path) -> None:
    jsonl.write(numbered(300), tmp_path / "c.jsonl")
    source = open_source(f"jsonl:{tmp_path / 'c.jsonl'}#all")
    (tmp_path / "c.jsonl").unlink()
    with pytest.raises(CaseError, match="cannot be read"):
        source.test[0]


# families -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "family"),
    [
        ("A15", "infectious"),
        ("B57", "infectious"),
        ("D49.9", "neoplasms"),
        ("D86", "blood and immune"),
        ("H59", "eye"),
        ("H66.90", "ear"),
        ("J17", "respiratory"),
        ("T78.0", "injury and poisoning"),
        ("Z99.2", "health status"),
        ("", ""),
    ],
)
def test_icd_chapters(code: str, family: str) -> None:
    assert chapter(code) == family


# the look -----------------------------------------------------------------------------------------


def shown(source: Source, n: int = 2) -> str:
    console = Console(file=StringIO(), width=300)
    show(source, console, n=n)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


@settings(max_examples=50, deadline=None)
@given(
    st.text(
        st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp", "Cf", "Mn"]),
        min_size=1,
        max_size=30,
    )
)
def test_hostile_text_is_shown_as_it_is(text: str) -> None:
    case = Case(
        "x",
        text,
        Truth("[bold]Flu[/nothing]", facts=(Fact("f", "", text, weight=3),)),
        options=(text,),
    )
    source = Source("[red]", [case], [case], notes=[text])
    plain = "\n".join(line.plain for line in lines(source, 1))
    assert plain.count(unsteering(text)) >= 4
    assert "[bold]Flu[/nothing]" in plain


def test_a_case_cannot_steer_the_terminal_in_the_look() -> None:
    evil = "\x1b[31m\x9b2J\u202eevil"
    truth = Truth(evil, (evil,), (evil,), facts=(Fact("f", "f", evil, weight=3),))
    case = Case(evil, evil, truth, question=evil, options=(evil,), category=evil)
    text = shown(Source(evil, [case], [case], notes=[evil]))
    assert text.count("evil") >= 8
    assert not set(text) & set("\x1b\x9b\u202e")


def test_the_look_counts_and_shows_whole_cases() -> None:
    source = Source("list", numbered(90), numbered(5), diagnoses=("Flu", "Croup"))
    text = shown(source)
    assert "90 cases to train on, 5 to test on" in text
    assert "Flu    66.7%" in text
    assert "Croup  33.3%" in text
    assert text.count("hidden:") == 2
    assert "hidden:" not in shown(source, n=0)
    assert shown(source) == shown(source)


def test_the_look_keeps_columns_under_paragraphs_and_wide_letters() -> None:
    paragraph = "A long answer.\n" * 40
    names = ["Flu", "\u80ba\u708e", paragraph]
    cases = [Case(str(i), "Line one.\nLine two.", Truth(names[i % 3])) for i in range(9)]
    text = shown(Source("list", [], cases))
    rows = [line for line in text.splitlines() if "█" in line]
    assert len({cell_len(row.partition(" 33.3%")[0]) for row in rows}) == 1
    assert len(rows) == 3
    assert max(map(cell_len, rows)) < 110
    assert "\n  Line one.\n  Line two.\n" in text


def test_the_look_at_a_source_that_only_tests() -> None:
    assert "2 different" in shown(Source("list", [], numbered(5)))


def test_the_look_uses_labels_where_there_are_some(tmp_path: Path) -> None:
    write_release(tmp_path)
    finer = [
        ["E_1", *(f"E_{k}" for k in (2, 7, 8, 9) if number >> k & 1)] for number in range(1024)
    ]
    write_csv(
        tmp_path / "p.csv",
        [patient("Croup" if i % 4 else "Flu", e) for i in range(4) for e in finer],
    )
    text = "\n".join(line.plain for line in lines(open_source(f"ddxplus:{tmp_path}"), 1))
    assert "of training cases, 2 different" in text
    assert "75.0%" in text
    assert "criticality" in text
