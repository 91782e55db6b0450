"""Questions about terms: the record's answers, what they are expected to tell, and who asks."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import Call
from handmade import Script
from handmade import play as rolled_out
from hpo_world import TERMS as TERMS_FILE
from hpo_world import patient, patients, release
from hypothesis import given, settings
from hypothesis import strategies as st
from test_rare_rankers import ABOVE, BLUE, FIT, FOCAL, RED, SKIN, TERMS

from workup.cases import open_source
from workup.core.case import Case, Source
from workup.core.episode import Action, Batch, Score, Scores, Turn
from workup.core.errors import UserError
from workup.core.ports import Doctor, Instruments, Sampling
from workup.core.stages import GrpoStage
from workup.environments import inquiry
from workup.environments.base.encounter import GREEDY
from workup.environments.base.term_patient import NO, NOT_RECORDED
from workup.methods.base.exact_gain import paid_by_gain
from workup.retrieval.hpo import RATIO
from workup.retrieval.hpo.asking import NOISE, AskedTerms, TermQuestions, answer, τ
from workup.retrieval.hpo.library import build
from workup.retrieval.hpo.phenotypes import LikelihoodRatio, PatientFindings, Profiles
from workup.retrieval.hpo.release import HpoRelease
from workup.retrieval.index import IndexSettings
from workup.rl.credit import zscore
from workup.roles.judges.exact import ExactJudge
from workup.studies import rare_questions
from workup.studies.rare_questions import ALL, DOCTORS, ONE, RANDOM, TOLD

SPOT = ("OMIM:1", "Spotted fever 1")
# disease → stated term → share of patients, of ROWS in hpo_world; OMIM:1 without PMID:10
STATED = {
    "OMIM:1": {RED: 0.7, FOCAL: 0.545},
    "OMIM:2": {BLUE: 0.5},
    "OMIM:3": {FIT: 0.45},
    "OMIM:4": {RED: 0.75, FOCAL: 0.5, SKIN: 0.5},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return release(tmp_path_factory.mktemp("hpo") / "release")


@pytest.fixture(scope="module")
def opened(folder: Path) -> HpoRelease:
    return HpoRelease.open(str(folder))


@pytest.fixture(scope="module")
def questions(opened: HpoRelease) -> TermQuestions:
    return TermQuestions(LikelihoodRatio(Profiles(opened)))


def one(tmp_path: Path, *terms: str, absent: tuple[str, ...] = (), pmid: str = "PMID:99") -> Case:
    row = patient("a", SPOT, *terms, absent=absent, pmid=pmid)
    return open_source(patients(tmp_path / "one.jsonl", row)).test[0]


def test_a_record_says_yes_no_or_nothing(tmp_path: Path, opened: HpoRelease) -> None:
    case = one(tmp_path, RED, FIT, absent=(BLUE,))
    said = {term: answer(opened.ontology, case, term) for term in ABOVE}
    ids = {term: {fact.id for fact in each.facts} for term, each in said.items()}
    assert ids == {SKIN: {RED}, RED: {RED}, FIT: {FIT}, BLUE: set(), FOCAL: set()}
    assert {term for term, each in said.items() if each.denied} == {BLUE}  # FOCAL is not recorded
    other = one(tmp_path, RED, BLUE, absent=(FIT,))
    assert answer(opened.ontology, other, FOCAL).denied  # no seizure at all
    assert not answer(opened.ontology, one(tmp_path, RED, BLUE, absent=(FOCAL,)), FIT).denied


@settings(deadline=None)
@given(TERMS, st.sets(st.sampled_from([*ABOVE]), max_size=2), st.booleans(), st.integers(0, 2))
def test_gains_are_their_formula(
    questions: TermQuestions, present: list[str], settled: set[str], own: bool, most: int
) -> None:
    """The oracle sums over every disease and every kind of a term, row by row."""
    stated = {**STATED, "OMIM:1": {FOCAL: 0.545}} if own else STATED
    findings = PatientFindings(tuple(present), own=frozenset({"PMID:10"} if own else ()))
    scores = τ * questions.ratio.scores(findings)
    weights = [math.exp(score - max(scores)) for score in scores]
    belief = [weight / sum(weights) for weight in weights]
    known = {above for term in present for above in ABOVE[term]} | settled
    nats, counts = {}, {}
    for term in ABOVE:
        base = (0.5 + sum(each.get(term, 0) for each in stated.values())) / 5
        q = [(1 - NOISE) * each.get(term, 0) + NOISE * base for each in stated.values()]
        mean = sum(p * x for p, x in zip(belief, q, strict=True))
        open_ = term not in known
        nats[term] = open_ * sum(p * x * math.log(x / mean) for p, x in zip(belief, q, strict=True))
        counts[term] = open_ * mean
    column = questions.profiles.column
    found = questions.gains(AskedTerms(findings, frozenset(column[t] for t in settled)), most)
    for term in ABOVE:
        kinds = [kind for kind, above in ABOVE.items() if term in above]
        gain, count = sum(nats[kind] for kind in kinds), sum(counts[kind] for kind in kinds)
        factor = min(1.0, most / count) if most and count else 1.0
        expected = 0.0 if term in settled else gain * factor
        assert found[column[term]] == pytest.approx(expected, abs=1e-9)
        assert questions.kinds(column[term]) == {column[kind] for kind in kinds}


def world_of(tmp_path: Path, folder: Path, **more: object) -> tuple[inquiry.Inquiry, Case]:
    build([str(folder)], tmp_path / "index", IndexSettings())
    row = patient("a", SPOT, SKIN, FOCAL, absent=(BLUE,), pmid="PMID:10")
    source = open_source(patients(tmp_path / "p.jsonl", row))
    how = {"index": str(tmp_path / "index"), "terms": str(folder), "max_turns": 4, **more}
    return inquiry.open(source, inquiry.Settings.model_validate(how)), source.test[0]


def played(world: inquiry.Inquiry, doctor: Doctor, case: Case) -> list[Turn]:
    async def play() -> list[Turn]:
        past: list[Turn] = []
        while not past or not past[-1].observation.done:
            act = await doctor.act(case, world.open(case), past, Sampling((), 64))
            action = world.read(act.completion.text)
            seen = await world.answer(case, past, action)
            past.append(Turn((), act.completion, action, seen))
        return past

    return asyncio.run(play())


@pytest.mark.parametrize(
    ("asked", "text", "evidence", "item", "understood"),
    [
        ("Seizure", "Focal seizure.", (FOCAL,), "Seizure", True),
        ("do you have a sign of the skin?", "Skin sign.", (SKIN,), "Skin sign", True),
        ("Blue spot", NO, (), "Blue spot", True),
        ("Red spot", NOT_RECORDED, (), "Red spot", False),
        ("a blue spot or warts?", f"Blue spot. {NO}", (), "Blue spot", True),
        ("is there a red spot", f"Red spot. {NOT_RECORDED}", (), "Red spot", False),
        ("Phenotypic abnormality", "", (), "", False),
    ],
)
def test_terms_are_asked_for_in_words(
    tmp_path: Path,
    folder: Path,
    asked: str,
    text: str,
    evidence: tuple[str, ...],
    item: str,
    understood: bool,
) -> None:
    world, case = world_of(tmp_path, folder)
    seen = asyncio.run(world.answer(case, (), Action("ask", (asked,))))
    assert (seen.evidence, seen.item, seen.understood) == (evidence, item, understood)
    assert seen.messages[0].content.startswith(text)


def test_doctors_ask_for_terms(tmp_path: Path, folder: Path) -> None:
    world, case = world_of(tmp_path, folder)
    source = open_source(f"phenopackets:{tmp_path / 'p.jsonl'}#all")
    doctors = world.anchors(source, 0)
    assert [*doctors][-3:] == [RATIO, "random doctor", GREEDY]
    turns = played(world, doctors[GREEDY], case)
    asked = [turn.action.content[0] for turn in turns[:-1]]
    # Both top terms first, and of what they leave open nothing but what is settled is left.
    assert {*asked} <= {"Skin sign", "Seizure", "Focal seizure", "Red spot", "Blue spot"}
    assert len(asked) == len({*asked})
    assert turns[-1].action.kind == "diagnose"
    told = {id for turn in turns for id in turn.observation.evidence}
    assert told | {case.given[0].id} == {SKIN, FOCAL}
    rounds = played(world, doctors["random doctor"], case)
    assert rounds == played(world, doctors["random doctor"], case)
    plain, _ = world_of(tmp_path / "plain", folder, terms="")
    assert GREEDY not in plain.anchors(source, 0)


def paid(world: inquiry.Inquiry, case: Case) -> Score:
    """What the ideal credit pays an episode of ASKS."""
    script = Script(*(world.write(*each) for each in ASKS))
    source = Source("own", [case], [case], phrases=())
    (stage,) = paid_by_gain([GrpoStage("grpo", score_nothing, zscore())], source, world)
    assert isinstance(stage, GrpoStage)
    assert not stage.alone, "its credit compares the episodes of a group"
    stage.fits(case)
    ((score,),) = asyncio.run(
        stage.reward(((rolled_out(script, world, case),),), Instruments(ExactJudge()))
    )
    return score


async def score_nothing(batch: Batch, instruments: Instruments) -> Scores:
    return [[Score.at_end(episode, 0.0) for episode in group] for group in batch]


ASKS = (("ask", "Skin sign"), ("ask", "Seizure"), ("diagnose", SPOT[1]))


def test_ideal_credit_pays_a_question_by_the_rankers_belief(
    tmp_path: Path, folder: Path, questions: TermQuestions
) -> None:
    world, case = world_of(tmp_path, folder)
    score = paid(world, case)

    def log_p(*terms: str) -> float:
        findings = PatientFindings(terms, own=frozenset({"PMID:10"}))
        weights = [math.exp(τ * each) for each in questions.ratio.scores(findings)]
        return math.log(weights[questions.profiles.row[SPOT[0]]] / sum(weights))

    known = {case.given[0].id}
    Φ = [log_p(*known), log_p(*known, SKIN), log_p(SKIN, FOCAL)]
    assert score.turns == pytest.approx((Φ[1] - Φ[0], Φ[2] - Φ[1], 1.0), abs=1e-12)
    assert abs(Φ[2] - Φ[0]) > 0.01
    assert score.parts["gain"] == pytest.approx(Φ[2] - Φ[0])


def test_ideal_credit_is_0_for_a_disease_that_only_the_own_paper_describes(
    tmp_path: Path, folder: Path
) -> None:
    world, case = world_of(tmp_path, folder)
    unknown = replace(case, truth=replace(case.truth, codes=("OMIM:999",)))
    assert paid(world, unknown).turns[:2] == (0.0, 0.0)
    plain, _ = world_of(tmp_path / "plain", folder, terms="")
    with pytest.raises(UserError, match="needs a model of the cases"):
        paid(plain, case)


TWIN_TERM = "\n[Term]\nid: HP:0000013\nname: Red spot\nis_a: HP:0000010 ! Skin sign\n"


@pytest.mark.parametrize("first", [True, False])
def test_of_two_terms_with_one_name_the_first_is_asked_for(tmp_path: Path, first: bool) -> None:
    """A disease has the first of them or the other, which has no name of its own."""
    sign = ("OMIM:1", "Spotted fever 1", "", RED if first else "HP:0000013", "OMIM:1", "1/2", "P")
    other = ("OMIM:2", "Blue disease", "", FIT, "OMIM:2", "1/9", "P")
    folder = release(tmp_path / "hpo", [sign, other], terms=TERMS_FILE + TWIN_TERM)
    world, case = world_of(tmp_path, folder)
    rankings = world._rankings
    questions, columns = rankings.questions()
    assert columns["Red spot"] == questions.profiles.column[RED]
    settled = frozenset(columns[name] for name in ("Skin sign", "Blue spot", "Focal seizure"))
    name = rankings.telling(case, (), (), settled, own_paper=True)
    assert name == ("Red spot" if first else "Seizure")
    seen = asyncio.run(world.answer(case, (), Action("ask", ("Red spot",))))
    assert seen.item == "Red spot"


def test_what_the_patient_does_not_understand_is_asked_once(tmp_path: Path, folder: Path) -> None:
    """The patient's release has fewer terms than that of the index."""
    terms = TERMS_FILE.replace("Skin sign", "Xanthoma").replace("Sign of the skin", "Plaque")
    fewer = release(tmp_path / "fewer", terms=terms)
    world, case = world_of(tmp_path, folder, terms=str(fewer), max_turns=6)
    source = open_source(f"phenopackets:{tmp_path / 'p.jsonl'}#all")
    for label in (GREEDY, "random doctor"):
        turns = played(world, world.anchors(source, 0)[label], case)
        asked = [turn.action.content[0] for turn in turns if turn.action.kind == "ask"]
        assert len(asked) == len({*asked}), label
        assert "Skin sign" in asked


def test_a_release_that_changes_is_read_anew(tmp_path: Path, folder: Path) -> None:
    for name in ("Seizure", "Convulsion"):
        terms = TERMS_FILE.replace("name: Seizure", f"name: {name}")
        changing = release(tmp_path / "changing", terms=terms)
        shutil.rmtree(tmp_path / "index", ignore_errors=True)
        world, case = world_of(tmp_path, folder, terms=str(changing))
        assert asyncio.run(world.answer(case, (), Action("ask", (name,)))).item == name


def test_where_nothing_is_annotated_nothing_is_asked(questions: TermQuestions) -> None:
    every = [f"PMID:{n}" for n in (10, 11, 20, 30, 40, 41)]
    nothing = PatientFindings((RED,), own=frozenset((*every, "OMIM:1")))
    assert questions.belief(nothing).tolist() == [0.25] * 4
    assert questions.best(AskedTerms(nothing)) is None


def test_the_own_paper_chooses_no_question(questions: TermQuestions) -> None:
    own = PatientFindings((), own=frozenset({"PMID:10", "PMID:11", "PMID:40"}))
    with_it, without = (questions.gains(AskedTerms(each)) for each in (PatientFindings(()), own))
    red = questions.profiles.column[RED]
    assert with_it[red] > 0
    assert without[red] == pytest.approx(0, abs=1e-12)  # nobody else has a red spot


def test_the_study_counts_what_is_known(tmp_path: Path, folder: Path, call: Call) -> None:
    rows = [
        patient(f"p{n}", disease, RED, BLUE, FOCAL, absent=(), pmid="PMID:99")
        for n, disease in enumerate([SPOT, ("OMIM:4", "Twin syndrome")])
    ]
    rows.append(patient("few", SPOT, RED, FIT, pmid="PMID:99"))
    rows.append(patient("unpublished", SPOT, RED, BLUE, FOCAL))
    spec = patients(tmp_path / "p.jsonl", *rows)
    how = rare_questions.Settings(cases=spec, release=str(folder), questions=3, least=3)
    found = rare_questions.asked(open_source(spec), how, lambda total: lambda: None)
    assert found.left_out == 2
    assert {each.case for each in found.patients} == {"p0", "p1"}
    for each in found.patients:
        assert {*each.known} == {*DOCTORS}
        assert each.known[TOLD] == (1, 2, 3, 3)
        assert each.known[ALL] == (3, 3, 3, 3)
        assert each.known[rare_questions.GREEDY][-1] == 3
        assert all(np.diff(each.known[ONE]) <= 1)
        assert all(np.diff(each.known[RANDOM]) >= 0)
        assert each.ranks[TOLD][-1] == each.ranks[ALL][-1] == each.ranks[rare_questions.GREEDY][-1]
    words = ("study", "rare-questions", f"cases={spec}", f"release={folder}", "least=3")
    status, _, _ = call(*words, "questions=3", "--out", tmp_path / "s")
    assert status == 0
    numbers = json.loads((tmp_path / "s" / "rare-questions.json").read_text())
    hits = [each.ranks[ALL][0] <= 1 for each in found.patients]
    assert numbers["tops"][ALL]["1"][0]["mean"] == sum(hits) / 2
    with pytest.raises(UserError, match="no patient has 9 findings"):
        rare_questions.asked(
            open_source(spec), how.model_copy(update={"least": 9}), lambda total: lambda: None
        )
