"""CRAFT's reward, its propositions, and the measures it is judged by."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from handmade import CASES, DISEASES, ITEMS, Script, case, fact, play
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from workup.cases.files import held_out
from workup.cases.jsonl import write
from workup.core.case import Case, Fact, Truth
from workup.core.episode import Action, Completion, Ending, Episode, Observation, Turn
from workup.core.errors import UserError
from workup.core.ports import Instruments
from workup.environments.consultation import Consultation
from workup.loops.training.plan import Plan
from workup.methods.craft import Settings, craft_reward, score
from workup.metrics.facts import criticality_recall
from workup.metrics.measures import measure
from workup.roles.judges.exact import ExactJudge
from workup.runs.settings import Settings as RunSettings

WORLD = Consultation(ITEMS, DISEASES, max_turns=5)
weights = st.lists(st.integers(0, 3), min_size=1, max_size=8)
subsets = st.sets(st.integers(0, 7), max_size=8)


def told(
    facts: list[int], discovered: Collection[int], acc: bool = True, questions: int | None = None
) -> Episode:
    """An episode with a diagnosis; it revealed the facts numbered `discovered`, one a question."""
    record = tuple(
        Fact(str(index), f"item {index}", "", weight=weight) for index, weight in enumerate(facts)
    )
    patient = Case("1", "", Truth("right", facts=record))
    seen = sorted(index for index in discovered if index < len(facts))
    evidence = [(str(index),) for index in seen] + [()] * ((questions or 0) - len(seen))
    asked = [
        Turn((), Completion(""), Action("ask", ("a",)), Observation(evidence=ids))
        for ids in evidence
    ]
    answer = Action("diagnose", ("right" if acc else "wrong",))
    return Episode(
        patient,
        (),
        (*asked, Turn((), Completion(""), answer, Observation(done=True))),
        Ending.DIAGNOSED,
    )


def rewards(settings: Settings, *episodes: Episode, T: int = 10) -> list[float]:
    reward = craft_reward(settings, T)
    (group,) = asyncio.run(reward((episodes,), Instruments(ExactJudge())))
    return [score.total for score in group]


@given(weights, subsets)
def test_criticality_recall_by_hand(facts: list[int], discovered: set[int]) -> None:
    total = sum(facts)
    recalled = criticality_recall(told(facts, discovered))
    expected = Fraction(
        sum(weight for index, weight in enumerate(facts) if index in discovered), total or 1
    )
    assert recalled == float(expected)
    assert 0 <= recalled <= 1


errors = st.fractions(-1, 1, max_denominator=20)


# Its premise rules most pairs of sets out.
@pytest.mark.long
@settings(suppress_health_check=[HealthCheck.filter_too_much])
@given(
    st.lists(st.tuples(st.integers(0, 3), errors), min_size=1, max_size=8),
    st.fractions(Fraction(1, 10), 5),
    subsets,
    subsets,
)
def test_proposition_1(
    scored: list[tuple[int, Fraction]], a: Fraction, d1: set[int], d2: set[int]
) -> None:
    """CR-9, both as printed and with the weaker premise |D₁ Δ D₂|."""
    n = len(scored)
    d1, d2 = {i for i in d1 if i < n}, {i for i in d2 if i < n}
    w = [weight for weight, _ in scored]
    r = [max((weight - error) / a, Fraction(0)) for weight, error in scored]
    δ = max(abs(weight - a * relevance) for weight, relevance in zip(w, r, strict=True))
    margin = sum(r[i] for i in d1) - sum(r[i] for i in d2)
    printed, stronger = δ / a * (len(d1) + len(d2)), δ / a * len(d1 ^ d2)
    assert stronger <= printed
    assume(margin > stronger)
    assert sum(w[i] for i in d1) > sum(w[i] for i in d2)
    assert criticality_recall(told(w, d1)) > criticality_recall(told(w, d2))


variants = st.sampled_from(["crit", "info-recall"])
positives = st.sampled_from([0.1, 0.5, 1.0, 3.0])


# Sets of equal recall are ruled out.
@settings(suppress_health_check=[HealthCheck.filter_too_much])
@given(weights, subsets, subsets, positives, positives, positives)
def test_corollary_1_holds_for_right_diagnoses_and_ties_for_wrong_ones(
    facts: list[int], d1: set[int], d2: set[int], alpha: float, beta: float, lam: float
) -> None:
    settings = Settings(alpha=alpha, beta=beta, lam=lam)
    d1, d2 = sorted(
        (d1, d2), key=lambda d: criticality_recall(told(facts, d, questions=9)), reverse=True
    )
    one, other = (told(facts, d, questions=9) for d in (d1, d2))
    assume(criticality_recall(one) > criticality_recall(other))
    right = rewards(settings, one, other)
    assert right[0] > right[1]
    wrong = rewards(settings, told(facts, d1, False, 9), told(facts, d2, False, 9))
    assert wrong[0] == wrong[1]
    without = rewards(settings.model_copy(update={"alpha": 0.0}), one, other)
    assert without[0] == without[1]


def test_the_reward_of_each_variant_by_hand() -> None:
    # D = {0, 1, 2} of four facts with weights 3, 0, 2 | 3; four questions of T = 10; right
    episode = told([3, 0, 2, 3], {0, 1, 2}, questions=4)
    values = {
        variant: rewards(Settings(variant=variant), episode)[0]
        for variant in ("crit", "crit+aux", "info-recall", "naive")
    }
    assert values == pytest.approx(
        {
            "crit": 5 / 8 + 0.5 - 0.04,
            "crit+aux": 5 / 8 + 0.5 - 0.04 + 0.2 * (1 / 3 - 1 / 3),
            "info-recall": 3 / 4 + 0.5 - 0.04,
            "naive": 1.0,
        }
    )


def test_aux_is_paid_for_wrong_diagnoses_too_and_is_nothing_of_nothing() -> None:
    settings = Settings(variant="crit+aux", lam=0)
    noisy, critical, blind = (told([3, 0], found, False, 2) for found in ({1}, {0}, set()))
    assert rewards(settings, noisy, critical, blind) == pytest.approx([-0.2, 0.2, 0.0])


def test_parts_add_up_and_a_trajectory_without_a_diagnosis_pays_the_penalty() -> None:
    settings = Settings(variant="crit+aux")
    lost = play(Script("<ask>fever</ask>", "hm"), WORLD, CASES[0])
    assert lost.ending is Ending.OUT_OF_TURNS
    said = score(lost, 0.0, settings, 5)
    assert said.parts == pytest.approx(
        {"α·CR·acc": 0, "β·acc": 0, "λ·t/T": -0.1, "malformed": -0.2, "aux": 0}
    )
    assert said.total == pytest.approx(-0.3)
    assert said.turns[:-1] == (0.0,) * 4
    naive = score(lost, 0.0, Settings(variant="naive"), 5)
    assert (naive.total, naive.parts) == (pytest.approx(-0.2), {"acc": 0.0, "malformed": -0.2})


def test_a_diagnosis_that_was_cut_off_is_none() -> None:
    whole = told([3], {0})
    cut = Episode(whole.case, (), whole.turns, Ending.OUT_OF_TOKENS)
    assert rewards(Settings(variant="naive"), whole, cut) == pytest.approx([1.0, -0.2])


def test_confirming_what_was_given_earns_nothing() -> None:
    settings = Settings(lam=0, beta=0)
    sure = play(Script("<ask>cough</ask>", "<diagnose>Pneumonia</diagnose>"), WORLD, CASES[1])
    assert sure.discovered == {"cough"}
    assert rewards(settings, sure) == [0.0]


def test_unscored_facts_are_refused_where_weights_matter() -> None:
    patient = case(9, "Flu", Fact("a", "fever", "Hot."))
    episode = play(Script("<ask>fever</ask>", "<diagnose>Flu</diagnose>"), WORLD, patient)
    with pytest.raises(UserError, match=r"case 'case-9' has facts without a criticality weight"):
        rewards(Settings(), episode)
    recalled = rewards(Settings(variant="info-recall"), episode, T=5)
    assert recalled == pytest.approx([1.5 - 0.1 / 5])
    assert rewards(Settings(variant="naive"), episode) == [1.0]


@pytest.mark.parametrize("tested", [False, True])
def test_a_case_without_weights_is_refused_before_anything_is_written(
    tested: bool, tmp_path: Path
) -> None:
    cases = [case(number, "Flu", fact("fever", 2)) for number in range(60)]
    last = [each for each in cases if held_out(0, each.id) == tested][-1]
    lacking = replace(last, truth=replace(last.truth, facts=(fact("fever"),)))
    write([lacking if each is last else each for each in cases], tmp_path / "cases.jsonl")
    asked: dict[str, Any] = {"method": "craft", "cases": f"jsonl:{tmp_path / 'cases.jsonl'}"}
    with pytest.raises(UserError, match=rf"'{last.id}' has facts without a criticality weight"):
        Plan.of(RunSettings(**asked), "a")
    Plan.of(RunSettings(**asked, reward={"variant": "info-recall"}), "b")


def test_facts_of_the_presentation_have_no_weights_to_share() -> None:
    asked: dict[str, Any] = {"method": "craft", "cases": "clinic:xs", "environment": {"share": 0.5}}
    with pytest.raises(
        UserError, match=r"environment.share hides .* leave it out, or take reward.var"
    ):
        Plan.of(RunSettings(**asked), "a")
    Plan.of(RunSettings(**asked, reward={"variant": "info-recall"}), "b")


def test_a_group_of_one_is_refused_where_it_teaches_nothing() -> None:
    asked: dict[str, Any] = {"method": "craft", "cases": "clinic:xs", "group": 1}
    with pytest.raises(UserError, match=r"group=1 compares an episode with nothing.* take group=2"):
        Plan.of(RunSettings(**asked), "a")
    Plan.of(RunSettings(**asked, reward="exact-gain"), "b")
    Plan.of(RunSettings(**asked, steps=0), "c")


def test_settings_reject_what_they_do_not_know() -> None:
    for wrong in ({"alfa": 1}, {"variant": "critical"}, {"lam": -1}, {"max_turns": 5}):
        with pytest.raises(ValidationError):
            Settings(**wrong)


def test_measures_by_hand() -> None:
    doctor = Script(
        "<ask>fever</ask>",
        "<ask>Do you have a fever?</ask>",
        "hm",
        "<ask>hobby</ask>",
        "<diagnose>Flu</diagnose>",
    )
    assert measure(play(doctor, WORLD, CASES[0]), True, WORLD, {"fever": 0.5}) == {
        "accuracy": 1.0,
        "questions": 4.0,
        "recall": 2 / 3,
        "coverage": 2 / 3,
        "critical": 0.0,
        "noise": 0.5,
        "repeats": 0.25,
        "revealing": 1,
        "unremarkable": 0,
        "not_understood": 0,
        "malformed": 0.2,
        "diagnosed": 1.0,
        "out_of_turns": 0.0,
        "out_of_tokens": 0.0,
        "failed": 0.0,
        "cost": 3.0,
    }


def test_a_measure_of_nothing_is_missing() -> None:
    blind = measure(play(Script("<diagnose>Flu</diagnose>"), WORLD, CASES[3]), True, WORLD)
    assert [name for name, value in blind.items() if value is None] == [
        "recall",
        "coverage",
        "critical",
        "noise",
        "repeats",
        "revealing",
        "unremarkable",
        "not_understood",
    ]
    unscored = case(9, "Flu", Fact("a", "fever", "Hot."))
    scripted = Script("<ask>fever</ask>", "<diagnose>Flu</diagnose>")
    seen = measure(play(scripted, WORLD, unscored), False, WORLD)
    assert [name for name, value in seen.items() if value is None] == [
        "recall",
        "critical",
        "noise",
    ]
    assert (seen["coverage"], seen["accuracy"]) == (1.0, 0.0)


def test_repeats_are_found_by_item_or_by_wording() -> None:
    doctor = Script(
        "<ask>aura</ask>",
        "<ask>Aura?</ask>",
        "<ask>fever</ask>",
        "<examine>fever</examine>",
        "<ask>moon</ask>",
    )
    assert measure(play(doctor, WORLD, CASES[0]), False, WORLD)["repeats"] == 0.4
