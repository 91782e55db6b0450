"""The reward of ranked lists (ES-4 to ES-7), against sums written out and exact fractions."""

from __future__ import annotations

import asyncio
import itertools
import math
from dataclasses import replace
from decimal import Decimal, localcontext
from typing import Any

import pytest
from handmade import Script, play
from hypothesis import assume, given
from hypothesis import strategies as st

from workup import methods
from workup.cases import open_source
from workup.cases.catalogue import built_in
from workup.core.case import Case
from workup.core.episode import Completion, Ending, Episode, Score
from workup.core.errors import RolloutError, UserError
from workup.core.ports import Instruments
from workup.core.stages import GrpoStage
from workup.environments.base.lists import boxed, lists, written
from workup.environments.evidence import EvidenceSeeking, Settings, open
from workup.methods.evidence_seeking.ranked import R_d, RewardWeights, fits, ranked_reward
from workup.roles.judges.exact import CredulousRanking, ExactJudge, ExactRanking
from workup.roles.judges.questions import CandidateStanding, RankingQuestion, RankingVerdict

WING = open_source("clinic:pathology")
WORLD = open(WING, Settings(max_turns=2))
CASE = next(case for case in map(WING.train.__getitem__, range(50)) if case.truth.differentials)
TRUTH, OTHERS = CASE.truth.diagnosis, CASE.truth.differentials
TELLING = "TTF-1, thyroglobulin, calretinin, SOX10"  # tell TRUTH and OTHERS apart
PAPER = RewardWeights()


# --- R_d (ES-5), by an oracle with forty digits ---

taus = st.floats(0.05, 50)


def ascending(count: int, most: int = 12) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(1, most), min_size=count, max_size=count).map(sorted)


def apart(low: float, high: float) -> st.SearchStrategy[tuple[float, float]]:
    """Two τ, the larger one by a twentieth at least."""
    return st.tuples(st.floats(low, high), st.floats(1.05, 10)).map(lambda d: (d[0], d[0] * d[1]))


def as_printed(i: int, D: int, τ: float) -> float:
    with localcontext() as context:
        context.prec = 60
        weights = [(-Decimal(j) / Decimal(τ)).exp() for j in range(1, D + 1)]
        return float(weights[i - 1] / sum(weights))


@given(ascending(2, 30), taus)
def test_R_d_is_equation_3(places: list[int], τ: float) -> None:
    i, D = places
    assert R_d(i, D, τ) == pytest.approx(as_printed(i, D, τ), rel=1e-12)


@given(st.integers(1, 60), st.floats(0, exclude_min=True))
def test_the_places_of_a_list_share_1_whatever_tau_is(D: int, τ: float) -> None:
    shares = [R_d(i, D, τ) for i in range(1, D + 1)]
    assert all(0 <= share <= 1 for share in shares)
    assert math.fsum(shares) == pytest.approx(1)


@pytest.mark.parametrize("τ", [0.0, 5e-324, 1e-300, 1e-9])
def test_a_small_tau_pays_the_first_place_alone(τ: float) -> None:
    assert [R_d(i, 3, τ) for i in (1, 2, 3)] == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("τ", [1e12, 1e300, 1.7e308, math.inf])
@pytest.mark.parametrize("D", [1, 2, 7, 1000])
def test_a_large_tau_pays_every_place_alike(τ: float, D: int) -> None:
    assert R_d(1, D, τ) == pytest.approx(1 / D)
    assert R_d(D, D, τ) == pytest.approx(1 / D)


def test_no_hit_is_worth_nothing_and_no_place_lies_beyond_the_list() -> None:
    assert R_d(0, 5, 0.8) == R_d(-1, 5, 0.8) == R_d(0, 0, 0.8) == 0
    for i, D, τ in ((3, 2, 1.0), (1, 0, 1.0), (1, 1, -1.0), (1, 1, math.nan)):
        with pytest.raises(ValueError, match="are needed"):
            R_d(i, D, τ)


def test_0_1_is_neither_limit() -> None:
    """The paper calls 0/1 the limit τ → 0; it pays each place 1 (ES-E2)."""
    limits = {(R_d(1, 4, 1e-9), R_d(4, 4, 1e-9)), (R_d(1, 4, 1e9), R_d(4, 4, 1e9))}
    assert (1.0, 1.0) not in limits


# --- theorems and findings (ES-6) ---


@given(ascending(3), taus)
def test_theorem_1_an_earlier_hit_is_worth_more(places: list[int], τ: float) -> None:
    i, j, D = places[0], places[1] + 1, places[2] + 1
    assert R_d(i, D, τ) > R_d(j, D, τ) > 0


@given(ascending(3), st.floats(0.5, 50))
def test_theorem_2_a_shorter_list_is_worth_more(places: list[int], τ: float) -> None:
    i, a, b = places[0], places[1], places[2] + 1
    assert R_d(i, a, τ) > R_d(i, b, τ) > 0


@given(st.integers(2, 12), apart(0.1, 20))
def test_finding_1_a_small_tau_favours_the_first_place(D: int, τ: tuple[float, float]) -> None:
    low, high = τ
    assert R_d(1, D, low) > R_d(1, D, high)
    assert R_d(1, 1, low) == R_d(1, 1, high) == 1


@given(ascending(3), apart(0.5, 20))
def test_finding_2_a_large_tau_pays_more_for_shortening(
    places: list[int], τ: tuple[float, float]
) -> None:
    i, a, b, low, high = places[0], places[1], places[2] + 1, *τ
    assert R_d(i, a, high) - R_d(i, b, high) > R_d(i, a, low) - R_d(i, b, low) > 0


def test_the_inequality_printed_in_the_proof_of_finding_2_is_false() -> None:
    """A.2 bounds F_2 from below by a term that is larger, once |D¹| ≥ 2 (ES-E1)."""

    def mean_place(a: int, b: int, τ: float) -> float:
        weights = {k: math.exp(-k / τ) for k in range(a, b + 1)}
        return sum(k * w for k, w in weights.items()) / sum(weights.values())

    wrong = 0
    cases = list(itertools.product(range(2, 8), range(1, 5), (0.5, 1.0, 2.0, 5.0)))
    for a, more, τ in cases:
        b, q = a + more, math.exp(-1 / τ)
        T, U = mean_place(1, a, τ), mean_place(a + 1, b, τ)
        F2 = (1 - T) * (1 - q**b) + (U - T) * (1 - q**a)
        bound = (1 + U - 2 * T) * (1 - q**a)
        wrong += bound >= F2
        assert F2 > 0  # what the Finding needs is true
    assert wrong == len(cases)


@given(
    st.lists(st.floats(0.01, 1), min_size=2, max_size=10), st.sampled_from((0.1, 0.8, 1.5, 20.0))
)
def test_an_honest_list_of_one_has_the_highest_expected_reward(
    weights: list[float], τ: float
) -> None:
    posterior = sorted((w / sum(weights) for w in weights), reverse=True)
    worth = [
        sum(p * R_d(i, D, τ) for i, p in enumerate(posterior[:D], 1))
        for D in range(1, len(posterior) + 1)
    ]
    assert all(worth[0] >= other - 1e-12 for other in worth)


# --- turns and episodes (ES-4) ---


def scored(*texts: str, weights: RewardWeights = PAPER, world: EvidenceSeeking = WORLD) -> Score:
    return rewarded(play(Script(*texts), world, CASE), weights, world)


def rewarded(episode: Episode, weights: RewardWeights, world: EvidenceSeeking) -> Score:
    reward, _ = ranked_reward(world, weights)
    ((score,),) = asyncio.run(reward(((episode,),), Instruments(ExactJudge())))
    assert score.total == pytest.approx(sum(score.parts.values()))
    return score


def order(*candidates: str, exams: str = TELLING) -> str:
    return written(lists(candidates, exams.split(", ")))


RIGHT, WRONG = written(boxed(TRUTH)), written(boxed(OTHERS[0]))


def test_each_turn_has_its_own_reward_and_they_add_up() -> None:
    score = scored(order(OTHERS[0], TRUTH, OTHERS[1]), RIGHT)
    assert score.turns == pytest.approx((as_printed(2, 3, 0.8) + 0.1, 1.0))
    assert score.parts == pytest.approx(
        {"R_d": as_printed(2, 3, 0.8) + 1, "R_e": 0.1, "hack": 0.0, "format": 0.0}
    )
    assert scored(order(*OTHERS[:3]), WRONG).turns == pytest.approx((0.1, 0.0))


@pytest.mark.parametrize(
    ("weights", "first", "second"),
    [
        (RewardWeights(rank="binary"), 1.0, 1.0),
        (RewardWeights(0.8, 0.8), as_printed(2, 3, 0.8), as_printed(2, 3, 0.8)),
        (RewardWeights(1.5, 1.5), as_printed(2, 3, 1.5), as_printed(2, 3, 1.5)),
        (RewardWeights(0.8, 1.5), as_printed(2, 3, 0.8), as_printed(2, 3, 1.5)),
    ],
)
def test_the_four_rewards_of_table_3(weights: RewardWeights, first: float, second: float) -> None:
    world = open(WING, Settings(max_turns=3))
    listed = order(OTHERS[0], TRUTH, OTHERS[1])
    score = scored(listed, listed, RIGHT, weights=replace(weights, B_e=0), world=world)
    assert score.turns == pytest.approx((first, second, 1.0))


def test_tau_2_needs_results_and_not_a_later_turn() -> None:
    world, plain = open(WING, Settings(max_turns=3)), RewardWeights(B_e=0)
    listed = order(OTHERS[0], TRUTH, exams="None")
    score = scored(listed, listed, RIGHT, weights=plain, world=world)
    assert score.turns == pytest.approx((as_printed(2, 2, 0.8), as_printed(2, 2, 0.8), 1.0))
    direct = open(WING, Settings(max_turns=1, told="record", final="list"))
    told = scored(written(lists((OTHERS[0], TRUTH), None)), weights=plain, world=direct)
    assert told.turns == pytest.approx((as_printed(2, 2, 1.5),))


@pytest.mark.parametrize(
    ("exams", "worth"),
    [
        (TELLING, 0.1),
        ("CD3", 0.0),
        ("None", 0.0),
        (f"{TELLING}, CD1355", -0.1),
        (f"{TELLING}, serum calcium", -0.1),
        (f"{TELLING}, immunohistochemistry", -0.1),
        # one examination under two names is no fault
        ("CD45, LCA, SOX10, desmin, pan-cytokeratin, AE1/AE3", 0.1),
    ],
)
def test_examinations_are_worth_a_bonus_nothing_or_a_fine(exams: str, worth: float) -> None:
    score = scored(order(TRUTH, "melanoma", "leiomyosarcoma", exams=exams), RIGHT)
    assert score.parts["R_e"] == pytest.approx(worth)


@pytest.mark.parametrize(
    ("again", "worth"),
    [
        ("TTF-1", 0.0),
        ("TTF1 immunostain", 0.0),
        ("thyroid transcription factor 1", 0.0),
        ("IHC for TTF-1 and CD3", 0.0),
        ("CD3, TTF 1", 0.0),
        ("TTF-1 and calretinin", 0.1),
        ("TTF-1 and CD1355", 0.0),
    ],
)
def test_an_examination_is_paid_once_by_whatever_name(again: str, worth: float) -> None:
    world = open(WING, Settings(max_turns=3))
    listed = (TRUTH, *OTHERS)
    score = scored(order(*listed, exams="TTF-1"), order(*listed, exams=again), RIGHT, world=world)
    assert score.parts["R_e"] == pytest.approx(0.1 + worth)


def test_what_is_not_carried_out_is_not_paid() -> None:
    listed = (TRUTH, *OTHERS)
    stages = ("Molecular test", "Immunohistochemistry")
    staged = open(WING, Settings(max_turns=3, stages=stages))
    early = scored(
        order(*listed, exams="TTF-1"), order(*listed, exams="TTF-1"), RIGHT, world=staged
    )
    assert early.turns == pytest.approx((as_printed(1, 6, 0.8), as_printed(1, 6, 0.8) + 0.1, 1))
    made_up = scored(order(*listed, exams="CD1355"), RIGHT, world=staged)
    assert made_up.parts["R_e"] == pytest.approx(-0.1)
    one = open(WING, Settings(max_turns=2, orders=1))
    beyond = scored(order(*listed, exams="CD3, TTF-1, CD1355"), RIGHT, world=one)
    assert beyond.parts["R_e"] == pytest.approx(0.0)


def impossible(case: Case) -> str:
    """A tumour that the wing never finds in this patient."""
    for name in WING.diagnoses:
        placed = asyncio.run(WORLD.ranking.judge(RankingQuestion((name,), case)))
        if placed.standings == (CandidateStanding.CONTRADICTS,):
            return name
    raise AssertionError


@pytest.mark.parametrize("hack", ["impossible", "Aba Aba lymphoma", "neoplasm"])
def test_a_hack_has_no_R_d_and_costs_P_h_but_the_bonus_stays(hack: str) -> None:
    name = impossible(CASE) if hack == "impossible" else hack
    score = scored(order(TRUTH, *OTHERS[:2], name), RIGHT)
    assert score.turns == pytest.approx((0.1 - 0.3, 1.0))
    free = scored(order(TRUTH, *OTHERS[:2], name), RIGHT, weights=RewardWeights(P_h=0))
    assert free.turns == pytest.approx((0.1, 1.0))
    assert scored(order(TRUTH), written(boxed(name))).turns[1] == pytest.approx(-0.3)


def test_several_hacks_cost_P_h_once() -> None:
    """Eq. 1 has P_h·1[hack]: an indicator, and no count."""
    hacks = (impossible(CASE), "Aba Aba lymphoma", "Torvane disease", "neoplasm")
    for count in range(1, len(hacks) + 1):
        score = scored(order(TRUTH, *hacks[:count], exams="None"), RIGHT)
        assert score.parts == pytest.approx({"R_d": 1, "R_e": 0, "hack": -0.3, "format": 0})
    twice = scored(order(*hacks, exams="None"), written(boxed(hacks[0])))
    assert twice.turns == pytest.approx((-0.3, -0.3)), "once in each turn"


@pytest.mark.parametrize(
    ("text", "n_f"),
    [
        (lists((TRUTH,), ("CD45",)), 1),  # no pair
        (written(rf"\DiffList{{{TRUTH}}}"), 1),  # one list
        (rf"\DiffList{{{TRUTH}}}", 2),
        (written(f"It is {TRUTH}."), 1),
        (f"It is {TRUTH}.", 2),
        ("", 2),
    ],
)
def test_errors_of_format_cost_and_earn_nothing(text: str, n_f: int) -> None:
    assert scored(text, RIGHT).turns == pytest.approx((-0.5 * n_f, 1.0))


def test_a_last_turn_without_a_diagnosis_is_an_error_of_format() -> None:
    listed = order(TRUTH)
    assert scored(listed, listed).turns == pytest.approx((1.0, -0.5))
    assert scored(listed, "").turns == pytest.approx((1.0, -1.0))


def test_a_diagnosis_that_was_cut_off_was_not_given() -> None:
    whole = play(Script(order(TRUTH), RIGHT), WORLD, CASE)
    last = replace(whole.turns[1], completion=Completion(RIGHT, truncated=True))
    cut = replace(whole, turns=(whole.turns[0], last), ending=Ending.OUT_OF_TOKENS)
    assert rewarded(cut, PAPER, WORLD).turns == pytest.approx((1.0, -0.5))


def test_an_early_diagnosis_is_a_list_of_one() -> None:
    assert scored(RIGHT).turns == pytest.approx((1.0,))
    assert scored(WRONG).turns == pytest.approx((0.0,))


def test_padding_is_never_rewarded() -> None:
    """Repetitions and candidates beyond ten stay in |D|; the hit is the first place."""
    first = scored(order(TRUTH, exams="None"), RIGHT).turns[0]
    twice = scored(order(TRUTH, TRUTH, exams="None"), RIGHT).turns[0]
    assert (first, twice) == pytest.approx((1.0, as_printed(1, 2, 0.8)))
    many = [*OTHERS[:1], TRUTH, *[OTHERS[1]] * 48]
    assert scored(order(*many, exams="None"), RIGHT).turns[0] == pytest.approx(
        as_printed(2, 50, 0.8)
    )


def test_the_truth_within_a_vague_entry_is_no_hit() -> None:
    for vague in (f"carcinoma (e.g. {TRUTH})", f"{TRUTH} or {OTHERS[0]}"):
        score = scored(order(vague, exams="None"), written(boxed(vague)))
        assert all(turn <= 0 for turn in score.turns)


EMPTY = ("", " , … ,", "None", "无", "n/a, none", r"\text{}", "-", "1, 2")


@pytest.mark.parametrize("content", EMPTY)
def test_an_empty_list_is_an_error_of_format(content: str) -> None:
    """It cannot be read, so that it costs what a missing list costs, and no judge is asked."""
    ordered = rf"\DiffList{{{content}}}\ExamList{{{TELLING}}}"
    silent = judged_by(Silent(), Settings(max_turns=2))
    assert scored(written(ordered), world=silent).turns[0] == pytest.approx(-0.5)
    assert scored(ordered, world=silent).turns[0] == pytest.approx(-1.0)  # no pair either
    emptied = rf"\DiffList{{{TRUTH}}}{ordered}"  # of two lists the last counts
    assert scored(written(emptied), world=silent).turns[0] == pytest.approx(-0.5)
    alone = rf"\DiffList{{{content}}}"  # one error, however much of the lists is missing
    assert scored(written(alone), world=silent).turns[0] == pytest.approx(-0.5)
    ranked = judged_by(Silent(), Settings(max_turns=1, final="list"))
    assert scored(written(alone), world=ranked).turns[0] == pytest.approx(-1.0)  # no end either


def test_who_lists_nothing_is_paid_less_than_who_is_wrong() -> None:
    """With a group of both, the advantage of an empty list is below that of a wrong one."""
    texts = (lists((), TELLING.split(", ")), lists(OTHERS[:2], TELLING.split(", ")))
    empty, wrong = (scored(written(text), WRONG).turns[0] for text in texts)
    assert empty < 0 <= wrong


# --- a judge that looks for no hacks ---


def stages_paid(name: str, world: EvidenceSeeking) -> GrpoStage:
    method = methods.load(name)
    *_, stage = method.stages(method.settings(), world)
    assert isinstance(stage, GrpoStage)
    return stage


@pytest.mark.parametrize(
    ("name", "worth"),
    [("evidence-seeking", -0.3), ("no-hack-penalty", 0), ("no-hack-detection", 1)],
)
def test_what_a_name_for_nearly_everything_is_paid(name: str, worth: float) -> None:
    """By a list of one and no order; the right diagnosis at the end is paid 1 by each."""
    episode = play(Script(order("malignant neoplasm", exams="None"), RIGHT), WORLD, CASE)
    instruments = Instruments(judge=ExactJudge())
    ((score,),) = asyncio.run(stages_paid(name, WORLD).reward([[episode]], instruments))
    assert score.turns == pytest.approx((worth, 1.0))


def test_a_credulous_judge_takes_the_group_for_the_disease() -> None:
    own = built_in().find(TRUTH)[0].family
    other = next(entry.family for entry in built_in().entries if entry.family != own)
    names = (other, "Fabricated syndrome", own, TRUTH, "malignant neoplasm")
    placed = asyncio.run(CredulousRanking().judge(RankingQuestion(names, CASE)))
    assert [standing is CandidateStanding.SAME for standing in placed.standings] == [0, 0, 1, 1, 1]
    assert (placed.position, placed.hacks, placed.total) == (3, (), 5)


@pytest.mark.long
@given(st.lists(st.sampled_from([TRUTH, *OTHERS, *WING.diagnoses]), max_size=8).map(tuple))
def test_a_credulous_judge_agrees_where_every_candidate_is_a_possible_disease(
    names: tuple[str, ...],
) -> None:
    exact = asyncio.run(ExactRanking().judge(RankingQuestion(names, CASE)))
    assume(not exact.hacks)
    assert (
        asyncio.run(CredulousRanking().judge(RankingQuestion(names, CASE))).position
        == exact.position
    )


def test_a_credulous_judge_knows_no_more_diseases_than_the_exact_one() -> None:
    nameless: Any = replace(WING, name="jsonl:cases", items=(), diagnoses=())
    stage = stages_paid("no-hack-detection", open(nameless, Settings(max_turns=2)))
    with pytest.raises(UserError, match=r"roles\.ranking=endpoint:NAME"):
        stage.fits(CASE)


def test_two_judges_of_lists_are_refused() -> None:
    world = judged_by(Sworn(RankingVerdict((), 0)), Settings(max_turns=2))
    with pytest.raises(UserError, match=r"leave out roles\.ranking"):
        stages_paid("no-hack-detection", world)


# --- judges that cannot be used ---


class Silent:
    """A judge of lists that nobody may ask."""

    async def judge(self, question: RankingQuestion) -> RankingVerdict:
        raise AssertionError(question)


class Sworn:
    """A judge of lists that says the same of each."""

    def __init__(self, placed: RankingVerdict) -> None:
        self.placed = placed

    async def judge(self, question: RankingQuestion) -> RankingVerdict:
        return self.placed


def judged_by(judge: Silent | Sworn, settings: Settings) -> EvidenceSeeking:
    world = EvidenceSeeking(WING, settings)
    world.ranking = judge
    return world


@pytest.mark.parametrize(
    "placed",
    [
        RankingVerdict((CandidateStanding.OTHER, CandidateStanding.SAME), 2),
        RankingVerdict((CandidateStanding.SAME,), 0),
    ],
)
def test_a_judge_that_saw_another_list_is_an_error(placed: RankingVerdict) -> None:
    world = judged_by(Sworn(placed), Settings(max_turns=2))
    with pytest.raises(RolloutError, match="the judge of lists saw"):
        scored(order(TRUTH, *OTHERS[:2]), RIGHT, world=world)


def test_a_hit_beyond_what_a_judge_reads_is_none() -> None:
    """A model reads 30 candidates; the others stay in |D|, and the truth among them is no hit."""
    read = RankingVerdict((CandidateStanding.OTHER,) * 30, 50)
    world = judged_by(Sworn(read), Settings(max_turns=2))
    score = scored(order(*OTHERS[:1] * 49, TRUTH, exams="None"), world=world)
    assert score.turns[0] == 0


def test_cases_that_nobody_can_judge_are_refused() -> None:
    fits(WORLD, PAPER)
    named: Any = replace(WING, name="jsonl:cases", items=(), diagnoses=())
    with pytest.raises(UserError, match=r"roles\.ranking=endpoint:NAME"):
        fits(open(named, Settings()), PAPER)
    ward = open(open_source("clinic:xs"), Settings())
    with pytest.raises(
        UserError, match=r"roles\.examinations=endpoint:NAME, or .* reward\.bonus=0"
    ):
        fits(ward, PAPER)
    fits(ward, RewardWeights(B_e=0))
