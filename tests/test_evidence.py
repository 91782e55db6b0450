"""Evidence-seeking diagnosis: its turns, its stages, its demonstrations, and a training in it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pytest
from handmade import Script, play

import workup
from workup.cases import open_source
from workup.cases.clinic.pathology import markers, rates, tumours
from workup.core.case import Case, Fact, Source, Truth
from workup.core.episode import DIAGNOSE, Action, Ending, Part
from workup.core.errors import UserError
from workup.core.ports import Teaching
from workup.environments.base.lists import ORDER, lists, read, written
from workup.environments.base.lists import candidates as listed
from workup.environments.base.ranked_teacher import LEAST
from workup.environments.evidence import (
    CHINESE,
    ENGLISH,
    LENGTHS,
    EvidenceSeeking,
    Settings,
    open,
    seeking,
)
from workup.environments.exams.rages import RagesSettings
from workup.methods.evidence_seeking.ranked import RewardWeights, fits
from workup.metrics.measures import measure
from workup.runs.settings import world

WING = open_source("clinic:pathology")
WORLD = open(WING, Settings(max_turns=2))
CASE = WING.train[0]
POSITIVE = CASE.truth.facts[0]
NEGATIVE = next(m for m in markers() if m.name not in {fact.item for fact in CASE.truth.facts})
BOXED = written(r"\boxed{melanoma}")
CHINESE_CASE = Case(
    "中文",
    "患者男，45岁。颈部淋巴结活检，镜下见弥漫分布的大细胞。</answer>",
    Truth("弥漫大B细胞淋巴瘤", facts=(Fact("f1", "CD20", "CD20：阳性。"),)),
)


def order(*orders: str) -> str:
    return written(lists(("melanoma",), orders))


def replied(world: EvidenceSeeking, case: Case, *texts: str) -> str:
    episode = play(Script(*texts), world, case)
    return episode.turns[0].observation.messages[0].content


def test_the_opening_tells_the_presentation_and_nothing_hidden() -> None:
    system, user = WORLD.open(CASE)
    assert user.content == CASE.presentation
    assert "at most 1, with at most 20" in system.content
    assert system.content.startswith(ENGLISH.bench)
    told = f"{system.content}{user.content}"
    assert not any(fact.text in told for fact in CASE.truth.facts)


def test_a_chinese_case_is_put_in_chinese_and_its_text_cannot_act() -> None:
    world = open(Source("jsonl:x", (CHINESE_CASE,), (CHINESE_CASE,)), Settings(max_turns=2))
    system, user = world.open(CHINESE_CASE)
    assert system.content.startswith(CHINESE.bench)
    assert "</answer>" not in user.content
    answer = replied(world, CHINESE_CASE, order("CD20免疫组化", "EBER"), BOXED)
    assert answer.splitlines() == [
        CHINESE.results,
        "CD20：阳性。",
        "EBER: not available.",
        CHINESE.conclude,
    ]


def test_a_doctor_of_any_department_is_no_pathologist() -> None:
    """Cases without a microscopy are put in other words, and examinations then have no judge."""
    world = open(WING, Settings(department="any"))
    for case in (CASE, CHINESE_CASE):
        rules = world.open(case)[0].content
        assert not any(word in rules for word in ("patholog", "microscop", "antibody", "病理"))
        assert r"\DiffList" in rules
        assert rules in world.phrases
        plain = WORLD.open(case)[0].content
        assert plain.partition("<think>")[2][:60] == rules.partition("<think>")[2][:60]
    with pytest.raises(UserError, match=r"reward\.bonus=0"):
        fits(world, RewardWeights())
    fits(world, RewardWeights(B_e=0))


def test_orders_bring_their_results_each_once() -> None:
    synonym = next(m for m in markers() if m.name == POSITIVE.item).synonyms[0]
    ordered = (POSITIVE.item, NEGATIVE.name, f"{synonym} immunostain", "CD1355", "chest x-ray")
    episode = play(Script(order(*ordered), BOXED), WORLD, CASE)
    seen = episode.turns[0].observation
    assert seen.messages[0].content.splitlines() == [
        ENGLISH.results,
        POSITIVE.text,
        NEGATIVE.negative,
        "CD1355: not available.",
        "chest x-ray: not available.",
        ENGLISH.conclude,
    ]
    assert seen.evidence == (POSITIVE.id,)
    assert WORLD.examined(episode.turns[0]) == tuple(sorted((POSITIVE.item, NEGATIVE.name)))
    assert episode.ending is Ending.DIAGNOSED


def test_what_is_ordered_in_a_bracket_is_carried_out() -> None:
    answer = replied(
        WORLD, CASE, order(f"Immunohistochemistry (e.g., {NEGATIVE.name}, EMA)"), BOXED
    )
    assert NEGATIVE.negative in answer


@pytest.mark.parametrize(
    ("ordered", "items"),
    [
        ("TTF1", ("TTF-1",)),
        ("ER/PR", ("ER", "PR")),
        ("CK7/CK20 immunostain", ("CK20", "CK7")),
        ("CK5/6", ("CK5/6",)),
        ("KIT", ("CD117",)),
        ("BRAF", ("BRAF V600E mutation",)),
        ("HER2 FISH", ()),
        ("BCL6 rearrangement", ()),
        ("p53 mutation", ()),
        ("CD20 flow cytometry", ()),
        ("serum PSA", ()),
        ("BRAF mutation V600E by PCR", ("BRAF V600E mutation",)),
    ],
)
def test_which_examination_an_order_names(ordered: str, items: tuple[str, ...]) -> None:
    episode = play(Script(order(ordered), BOXED), WORLD, CASE)
    assert WORLD.examined(episode.turns[0]) == items
    told = episode.turns[0].observation.messages[0].content
    assert ("not available" in told) == (not items)


def test_orders_reach_what_the_record_holds_beside_the_listed_items() -> None:
    facts = (
        Fact("f1", "Blood work, hemoglobin", "Hemoglobin is 9 g/dL."),
        Fact("f2", "Imaging, abdominal ultrasound", "A stone in the gallbladder."),
        Fact("f3", "Vital signs, heart rate", "110 per minute."),
    )
    case = Case("free", "A woman with belly pain.", Truth("cholecystitis", facts=facts))
    world = open(Source("jsonl:x", (case,), (case,)), Settings(max_turns=2, department="any"))
    for ordered, fact in zip(
        ("hemoglobin", "ultrasound of the abdomen", "heart rate"), facts, strict=True
    ):
        assert fact.text in replied(world, case, order(ordered), BOXED)
    assert "not available" in replied(world, case, order("lipase"), BOXED)
    both = replied(world, case, order("heart rate and ultrasound of the abdomen, lipase"), BOXED)
    assert all(text in both for text in (facts[1].text, facts[2].text, "lipase: not available."))


def test_several_examinations_in_one_order_are_each_carried_out() -> None:
    source = open_source("clinic:s", split=0)
    world = open(source, Settings(max_turns=2, department="any"))
    episode = play(Script(order("ECG and troponin", "troponin, MRI"), BOXED), world, source.test[0])
    assert world.examined(episode.turns[0]) == ("electrocardiogram", "serum troponin")
    *_, last, _ = episode.turns[0].observation.messages[0].content.splitlines()
    assert last == "MRI: not available."
    named = asyncio.run(world.examinations(source.test[0], ["ECG and troponin"], 0))
    assert named == {"ECG and troponin": {"electrocardiogram", "serum troponin"}}


def test_the_reasons_of_an_order_are_not_carried_out() -> None:
    source = open_source("clinic:s", split=0)
    world = open(source, Settings(max_turns=2, department="any"))
    script = Script(order("chest x-ray for cough and fever"), BOXED)
    episode = play(script, world, source.test[0])
    assert world.examined(episode.turns[0]) == ("chest radiograph",)


def test_an_order_that_two_free_facts_fit_brings_the_best() -> None:
    facts = (
        Fact("f1", "Blood work, hemoglobin", "The complete blood count shows a hemoglobin of 9."),
        Fact("f2", "Blood work, leukocytes", "The complete blood count shows 12 leukocytes."),
    )
    case = Case("free", "A woman with belly pain.", Truth("cholecystitis", facts=facts))
    world = open(Source("jsonl:x", (case,), (case,)), Settings(max_turns=2, department="any"))
    told = replied(world, case, order("complete blood count"), BOXED)
    assert [fact.text in told for fact in facts] == [True, False]


@pytest.mark.parametrize("ordered", ["flu test", "hepatitis test", "lupus antibodies"])
def test_a_listed_synonym_may_name_a_disease(ordered: str) -> None:
    source = open_source("clinic:full")
    world = open(source, Settings(max_turns=2, department="any"))
    (item,) = (item for item in source.items if ordered in item.synonyms)
    episode = play(Script(order(ordered), BOXED), world, source.test[3])
    assert world.examined(episode.turns[0]) == (item.name,)
    asked = ordered.split(maxsplit=1)[0]  # the disease itself is still refused
    assert "names a disease" in replied(world, source.test[3], order(f"{asked} present"), BOXED)


def test_a_result_counts_though_its_order_names_a_disease_too() -> None:
    world = open(WING, Settings(max_turns=3))
    played = play(Script(order("S100 and melanoma"), order("melanoma"), BOXED), world, CASE)
    first, second = (turn.observation for turn in played.turns[:2])
    assert first.sources == ("record", "refused")
    assert second.sources == ("refused",)
    assert world.examined(played.turns[0]) == ("S100",)
    assert not second.item
    assert [world.informed(played, place) for place in range(3)] == [False, True, True]


OTHERS = (
    *("HER2 SISH", "GFAP mRNA", "GFAP western blot", "S100 ELISA", "KIT exon 11", "PSA level"),
    *("TMPRSS2-ERG", "SSTR2A PET", "CD4 count", "FISH: BCL2, BCL6", "FISH (HER2)", "CSF: GFAP"),
    *("flow cytometry (CD3, CD20)", "CD3 and CD20 by flow cytometry", "serum AFP and PSA"),
    *("no S100", "GFAP not needed", "GFAP (no need)", "cancel S100", "all stains but S100"),
    *("smoking history", "sex hormones", "blood specimen", "triglycerides (TG)", "PR interval"),
    *("left coronary artery (LCA)", "pregnancy kit", "chromogranin B", "BRAF fusion"),
    *("germline KRAS mutation", "EGFR T790M mutation", "CK7 CK20 CDX2 TTF-1", "CK7/20"),
)


@pytest.mark.parametrize("ordered", OTHERS)
def test_what_only_holds_the_name_of_an_examination_is_another_order(ordered: str) -> None:
    played = play(Script(order(f"{{{ordered}}}"), BOXED), WORLD, CASE)
    seen = played.turns[0].observation
    assert (seen.item, seen.evidence, set(seen.sources)) == ("", (), {"none"})
    named = asyncio.run(WORLD.examinations(CASE, played.turns[0].action.content, 0))
    markers_named = {marker.name for marker in markers()}
    assert markers_named.isdisjoint(chain.from_iterable(named.values()))


@pytest.mark.parametrize("said", ["none needed", "no further tests", "No more stains.", "nothing"])
def test_an_order_of_nothing_is_none(said: str) -> None:
    assert read(order(said)).content == ()


def test_what_has_no_result_was_not_examined() -> None:
    no_record = Settings(max_turns=2, rages=RagesSettings(sources=()))
    played = play(Script(order("S100"), BOXED), open(WING, no_record), CASE)
    assert played.turns[0].observation.sources == ("none",)
    assert not WORLD.examined(played.turns[0])
    assert not WORLD.informed(played, 1)


def test_a_question_about_a_relative_brings_nothing_of_the_patient() -> None:
    facts = (Fact("f", "fever", "fever: for a week."), Fact("c", "cough", "cough: dry."))
    case = Case("c", "A man of 40.", Truth("flu", facts=facts))
    world = open(Source("jsonl:x", (case,), (case,)), Settings(max_turns=2, department="any"))
    played = play(Script(order("does your mother have fever or cough"), BOXED), world, case)
    assert not played.turns[0].observation.evidence
    played = play(Script(order("fever or cough"), BOXED), world, case)
    assert set(played.turns[0].observation.evidence) == {"f", "c"}


def test_no_more_is_carried_out_than_can_be() -> None:
    world = open(WING, Settings(max_turns=2, orders=2))
    answer = replied(world, CASE, order("CD3", "CD5", "CD20"), BOXED).splitlines()
    assert len(answer) == 5
    assert answer[-2:] == [ENGLISH.most, ENGLISH.conclude]


@pytest.mark.parametrize(
    "named",
    [
        "CD3 and CD5 and CD20 and CD10",
        "{CD3, CD5, CD20, CD10}",
        "IHC panel (CD3, CD5, CD20, CD10)",
        "CD3, CD5 and CD20 and CD10",
    ],
)
def test_an_order_of_many_counts_as_many(named: str) -> None:
    world = open(WING, Settings(max_turns=2, orders=2))
    played = play(Script(order(named), BOXED), world, CASE)
    seen = played.turns[0].observation
    assert world.examined(played.turns[0]) == ("CD3", "CD5")
    assert len(seen.sources) == 2
    assert seen.messages[0].content.splitlines()[-2] == ENGLISH.most
    paid = asyncio.run(world.examinations(CASE, played.turns[0].action.content, 0))
    assert set(chain.from_iterable(paid.values())) == {"CD3", "CD5"}


def test_every_examination_of_a_turn_has_its_price() -> None:
    played = play(Script(order("CD3", "CD5", "CD1355"), BOXED), WORLD, CASE)

    def cost(prices: dict[str, float]) -> float | None:
        return measure(played, False, WORLD, costs=prices)["cost"]

    assert cost({"CD3": 10.0, "CD5": 20.0, "": 4.0}) == 34
    assert cost({}) == 3


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (order(), ENGLISH.nothing),
        ("nonsense", ENGLISH.unreadable),
        (written(r"\DiffList{melanoma}"), ENGLISH.nothing),
    ],
)
def test_a_turn_without_an_order_is_answered_too(text: str, line: str) -> None:
    assert replied(WORLD, CASE, text, BOXED) == f"{line}\n{ENGLISH.conclude}"


def test_nothing_is_carried_out_in_the_last_turn() -> None:
    episode = play(Script(order(POSITIVE.item)), WORLD, CASE)
    assert episode.ending is Ending.OUT_OF_TURNS
    assert episode.turns[1].observation.evidence == ()
    assert episode.turns[1].observation.messages[0].content == ENGLISH.conclude


def test_stages_offer_one_kind_of_examination_after_the_other() -> None:
    stages = ("Immunohistochemistry", "Molecular test")
    world = open(WING, Settings(max_turns=3, stages=stages))
    assert world.open(CASE)[1].content.endswith("\nWhat can be ordered now: Immunohistochemistry.")
    episode = play(
        Script(
            order("CD3", "EGFR mutation", "CD3 and EGFR mutation", "CD1355"),
            order("EGFR mutation"),
            BOXED,
        ),
        world,
        CASE,
    )
    first, second = (turn.observation.messages[0].content for turn in episode.turns[:2])
    later = [
        f"{name}: {ENGLISH.later}" for name in ("EGFR mutation", "CD3 and EGFR mutation", "CD1355")
    ]
    assert first.splitlines()[2:] == [
        *later,
        ENGLISH.again,
        "What can be ordered now: Molecular test.",
    ]
    assert "EGFR mutation: " in second
    assert ENGLISH.later not in second
    assert len(world.offered(0)) + len(world.offered(1)) == len(WING.items)
    assert world.offered(1) == world.offered(5)
    with pytest.raises(UserError, match="'Radiology' is in the wording of no examination"):
        open(WING, Settings(stages=("Radiology",)))


def test_the_direct_mode_tells_all_evidence_at_once() -> None:
    world = open(WING, Settings(max_turns=1, told="record"))
    _, user = world.open(CASE)
    assert all(fact.text in user.content for fact in CASE.truth.facts)
    assert user.content.endswith(ENGLISH.conclude)
    assert CASE.truth.diagnosis not in user.content
    known = world.known(CASE)
    assert known[POSITIVE.item] == (POSITIVE.id,)
    assert known[NEGATIVE.name] == ()
    assert play(Script(BOXED), world, CASE).answer == ("melanoma",)
    made = world.demonstrate(WING, Teaching(), 0, 3)
    assert [read(text).kind for text, _ in made.exchanges] == [DIAGNOSE]


def test_it_may_end_with_a_ranked_list() -> None:
    world = open(WING, Settings(max_turns=2, final="list"))
    assert ENGLISH.ranked in world.open(CASE)[0].content
    alone = written(r"\DiffList{melanoma, seminoma}")
    episode = play(Script(order("CD3"), alone), world, CASE)
    assert episode.answer == ("melanoma", "seminoma")
    assert world.read(world.write(DIAGNOSE, "melanoma")) == Action(
        DIAGNOSE,
        ("melanoma",),
        parts=(Part("candidates", ("melanoma",)), Part("tags", ("think", "answer"))),
    )


# --- demonstrations ---


def posterior(case: Case, examined: dict[str, bool]) -> dict[str, float]:
    """Bayes' rule from the tables: the oracle of the demonstrated lists."""
    stated = {fact.item: fact.id.partition(":")[2] for fact in case.given}
    column = {marker.name: place for place, marker in enumerate(markers())}
    weights = {}
    for tumour, rate in zip(tumours(), rates(), strict=True):
        weight = tumour.prevalence
        for group, value in stated.items():
            weight *= max(tumour.shares[group].get(value, 0.0), 1e-6)
        for name, positive in examined.items():
            weight *= rate[column[name]] if positive else 1 - rate[column[name]]
        weights[tumour.name] = weight
    return {name: weight / sum(weights.values()) for name, weight in weights.items()}


def test_demonstrated_lists_are_the_exact_posteriors() -> None:
    world = open(WING, Settings(max_turns=3))
    lengths, informed = set(), 0
    for index in range(60):
        made = world.demonstrate(WING, Teaching(), 5, index)
        rng = np.random.default_rng([5, index])
        case = WING.train[int(rng.integers(len(WING.train)))]
        examined: dict[str, bool] = {}
        *orders, (last, _) = made.exchanges
        assert replace(read(last), parts=()) == Action(DIAGNOSE, (case.truth.diagnosis,))
        for text, (reply,) in orders:
            said = read(text)
            assert (said.kind, said.errors) == (ORDER, 0)
            chances = posterior(case, examined)
            probable = [chances[name] for name in listed(said)]
            assert all(one >= other - 1e-12 for one, other in pairwise(probable))
            assert probable[0] == pytest.approx(max(chances.values()))
            left_out = [p for name, p in chances.items() if name not in listed(said)]
            assert max(left_out) <= probable[-1] + 1e-12
            assert min(probable[1:], default=1) >= LEAST
            assert not set(said.content) & examined.keys()
            found = {fact.item for fact in case.truth.facts if fact.text in reply.content}
            examined |= {name: name in found for name in said.content}
            lengths.add(len(listed(said)))
            informed += bool(examined)
    assert {1, 2, 3, 4, 5} <= lengths
    assert informed


def test_half_of_the_demonstrated_examinations_are_the_most_informative() -> None:
    told = [
        open(WING, Settings(max_turns=2)).demonstrate(WING, Teaching(focus=f), 0, 0) for f in (0, 1)
    ]
    assert told[0] != told[1]
    best = read(told[1].exchanges[0][0]).content
    rng = np.random.default_rng([0, 0])
    case = WING.train[int(rng.integers(len(WING.train)))]
    evidence = WORLD.known(case)
    names = [item.name for item in WING.items]
    assert WING.knowledge is not None
    gains = dict(zip(names, WING.knowledge.gains(evidence, names), strict=True))
    assert list(best) == sorted(names, key=lambda name: -gains[name])[: len(best)]


def test_a_share_of_the_demonstrated_lists_begins_with_a_name_for_nearly_everything() -> None:
    """Nothing else about a demonstration of one order changes."""
    plain, blurred = (open(WING, Settings(max_turns=2, final="list", vague=v)) for v in (0, 0.3))
    assert "malignant neoplasm" in set(blurred.phrases) - set(plain.phrases)
    vague = []
    for index in range(200):
        before, after = (
            read(world.demonstrate(WING, Teaching(), 5, index).exchanges[0][0])
            for world in (plain, blurred)
        )
        vague.append(listed(after)[0] == "malignant neoplasm")
        assert listed(after)[vague[-1] :] == listed(before)
        assert after.content == before.content
    assert 40 <= sum(vague) <= 80  # six standard deviations around 60


@pytest.mark.parametrize("lengths", [(1, 10), (3, 3), (6, 10), (1, 2), (10, 10)])
def test_the_length_of_demonstrated_lists_is_a_setting(lengths: tuple[int, int]) -> None:
    """Each list is the beginning of the posterior's order; no impossible candidate fills it."""
    world = open(WING, Settings(max_turns=2, lengths=lengths))
    assert WING.knowledge is not None
    seen = set()
    for index in range(60):
        candidates = listed(read(world.demonstrate(WING, Teaching(), 5, index).exchanges[0][0]))
        case = WING.train[int(np.random.default_rng([5, index]).integers(len(WING.train)))]
        posterior = np.asarray(WING.knowledge.posterior(world.known(case)))
        order = [WING.knowledge.diagnoses[place] for place in np.argsort(-posterior, kind="stable")]
        assert list(candidates) == order[: len(candidates)]
        least, most = lengths
        assert min(least, np.count_nonzero(posterior)) <= len(candidates) <= most
        assert np.sort(posterior)[::-1][len(candidates) - 1] > 0
        seen.add(len(candidates))
    assert len(seen) > 1 or lengths[0] == lengths[1]


def test_the_default_length_draws_what_it_drew() -> None:
    """Warm starts of runs that do not set it stay the same."""
    usual, named = (
        open(WING, Settings(max_turns=2, **given)) for given in ({}, {"lengths": (1, 10)})
    )
    for index in range(5):
        told = usual.demonstrate(WING, Teaching(), 5, index)
        assert told == named.demonstrate(WING, Teaching(), 5, index)
    with pytest.raises(ValueError, match="the least length first"):
        Settings(lengths=(8, 3))


def test_nearly_everything_has_a_name_where_the_diagnoses_are_known() -> None:
    assert "disease" in open(open_source("clinic:xs"), Settings(vague=1)).phrases
    nameless = replace(WING, diagnoses=())
    with pytest.raises(UserError, match=r"environment\.vague: none of malignant neoplasm"):
        open(nameless, Settings(vague=0.1))


def test_no_demonstration_without_a_model_of_the_cases() -> None:
    blind = replace(WING, knowledge=None)
    with pytest.raises(UserError, match="no demonstrations can be made from 'clinic:pathology'"):
        open(blind, Settings(max_turns=2)).demonstrate(blind, Teaching(), 0, 0)


# --- training ---


@pytest.mark.long
def test_it_is_trained_and_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = {
        "steps": 2,
        "batch": 2,
        "group": 2,
        "max_tokens": 40,
        "sft": {"steps": 6, "batch": 4},
        "tiny": {"width": 16, "layers": 1, "context": 512},
        "evaluation": {"cases": 2, "untrained": False},
    }
    run = workup.train("evidence-seeking", cases="clinic:pathology", out="run", **small)
    assert run.config["environment"]["name"] == "evidence"
    assert run.config["environment"]["max_turns"] == 2
    played = [*run.episodes(phase="train")]
    assert all(len(record.episode.turns) <= 2 for record in played)
    assert all(
        record.score.total == pytest.approx(sum(record.score.parts.values())) for record in played
    )
    full = run.episodes(phase="eval", doctor="full information")
    assert all(record.correct for record in full)


def test_other_environments_are_refused() -> None:
    with pytest.raises(UserError, match="type environment=evidence"):
        seeking(world({}, {"name": "consultation"}).open(WING))


# --- anchors ---


@pytest.mark.parametrize("length", LENGTHS)
def test_the_best_list_of_every_length_is_an_anchor(length: int) -> None:
    place = open(WING, Settings(max_turns=3))
    doctor = place.anchors(WING, 0)[f"list of {length}"]
    for case in (WING.test[place_] for place_ in range(4)):
        episode = play(doctor, place, case)
        assert len(episode.turns) == 3
        examined: dict[str, bool] = {}
        for turn in episode.turns:
            chances = posterior(case, examined)
            best = sorted(chances, key=lambda name: -chances[name])[:length]
            possible = [name for name in best if chances[name] >= LEAST]
            said = turn.action
            if said.kind == DIAGNOSE:
                assert episode.answer == (best[0],)
            else:
                assert list(listed(said)) == possible
            found = {fact.item for fact in case.truth.facts if fact.id in turn.observation.evidence}
            ordered = said.content if said.kind == ORDER else ()
            examined |= {name: name in found for name in ordered}
        assert len(examined) == 12


def test_anchors_of_lists_play_where_lists_are_written() -> None:
    lists = [f"list of {length}" for length in LENGTHS]
    assert list(WORLD.anchors(WING, 0)) == ["told information", *lists, "full information"]
    direct = open(WING, Settings(max_turns=1, told="record"))
    assert list(direct.anchors(WING, 0)) == ["told information", "full information"]
