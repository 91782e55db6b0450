"""C-MIG and its baselines against the paper's formulas, with real scorers.

Tested are composition and granularity, and what can be gamed.
"""

from __future__ import annotations

import asyncio
import math
import re
import socket
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise, permutations
from pathlib import Path
from statistics import mean, median, stdev
from typing import Literal

import numpy as np
import pytest
from handmade import CASES, SOURCE, Script, play
from hypothesis import given
from hypothesis import strategies as st
from library_world import open_shelf, scorer

from workup import methods
from workup.cases import open_source
from workup.cases.clinic.renamed import called
from workup.cli import api
from workup.core.case import Case, Document, Truth
from workup.core.episode import Action, Batch, Completion, Ending, Episode, Observation, Score, Turn
from workup.core.errors import UserError, WorkupError
from workup.core.ports import LIVE, REFERENCE, Instruments, Logprobs, ScoreRequest, Teaching, alone
from workup.core.stages import GrpoStage
from workup.core.text import normalise
from workup.environments.base.searching import evidence
from workup.environments.library import Library
from workup.loops.training.plan import Plan
from workup.methods.base.encoders import PUBMEDBERT, trigrams
from workup.methods.cmig.information_gain import logit_p
from workup.methods.cmig.naming import NamingRule
from workup.methods.cmig.searching import (
    GainWeights,
    Likeness,
    Supervision,
    compose,
    embedding,
    exact,
    hard,
    icd_tree,
    multi_view,
    turn_credit,
    turn_gains,
)
from workup.roles.judges.exact import ExactJudge
from workup.runs.settings import Settings, build, world

SHELF = open_shelf()
FLU = CASES[0]
SEARCH_METHODS = (
    "cmig",
    "search-r1",
    "autorefine",
    "igpo",
    "autorefine-embedding",
    "autorefine-icdtree",
    "autorefine-hardsearch",
    "autorefine-harddoc",
)
BOTH = {REFERENCE: scorer(), LIVE: scorer()}


class Believing:
    """A scorer that believes what a table says of the last piece that it is shown.

    An answer has one token, so that means are totals.
    """

    def __init__(self, **beliefs: float) -> None:
        self.beliefs = beliefs
        self.requests: list[ScoreRequest] = []

    seconds = 0.0

    async def score(self, request: ScoreRequest) -> Logprobs:
        self.requests.append(request)
        return Logprobs(tuple(map(self._belief, request.contexts)), 1)

    def _belief(self, context: Sequence[object]) -> float:
        last = str(context[-1]) if context else "question"
        return next(value for name, value in self.beliefs.items() if name in last)

    def refresh(self) -> None:
        return None


def instruments(judge: Believing) -> Instruments:
    return Instruments(ExactJudge(), scorers={REFERENCE: judge, LIVE: judge})


def searching(
    *queries: str, diagnosis: str = "Flu", case: Case = FLU, refinement: str = "noted"
) -> Episode:
    """An episode that searches for each of `queries`, refines, and diagnoses."""
    lines = [f"<search>{queries[0]}</search>"] if queries else []
    lines += [f"<refine>{refinement}</refine><search>{query}</search>" for query in queries[1:]]
    refined = f"<refine>{refinement}</refine>" if queries else ""
    return play(Script(*lines, f"{refined}<diagnosis>{diagnosis}</diagnosis>"), SHELF, case)


def reward_of(
    name: str, batch: Batch, judge: Instruments | None = None, **settings: object
) -> list[Score]:
    method = methods.load(name)
    made = method.settings(**settings)
    (stage,) = (stage for stage in method.stages(made, SHELF) if isinstance(stage, GrpoStage))
    scores = asyncio.run(stage.reward(batch, judge or Instruments(ExactJudge(), scorers=BOTH)))
    return [score for group in scores for score in group]


def supervise(way: object, *episodes: Episode, judge: Believing | None = None) -> list[Supervision]:
    return list(asyncio.run(way(episodes, instruments(judge or Believing()))))  # type: ignore[operator]


# --- composition (CM-10) ---


@given(
    st.floats(0, 1),
    st.lists(st.floats(0, 1), min_size=3, max_size=3),
    st.floats(0, 1),
    st.floats(0, 2),
    st.booleans(),
)
def test_composition(
    diag: float, turns: list[float], process: float, form: float, right: bool
) -> None:
    episode = searching("fever", "lipase", diagnosis="Flu" if right else "Gout")
    paid = Supervision(tuple(turns), process)
    doc = sum(turns)
    linear = compose(episode, diag, paid, form, "linear")
    assert linear.total == pytest.approx(form + diag + doc + process)  # Eq. 8
    nonlinear = compose(episode, diag, paid, form, "nonlinear")
    assert nonlinear.total == pytest.approx(
        form + diag + doc if right else form + diag + doc + process
    )  # App. B.1
    assert nonlinear.turns[:-1] == tuple(turns[:-1])
    assert sum(nonlinear.parts.values()) == pytest.approx(nonlinear.total)


@pytest.mark.parametrize("name", SEARCH_METHODS)
def test_a_right_diagnosis_pays_one_more_than_a_wrong_one(name: str) -> None:
    right, wrong = searching(diagnosis="the flu"), searching(diagnosis="Gout")
    scores = reward_of(name, ((right, wrong),))
    assert [score.parts["format"] for score in scores] == [1.0, 1.0]
    assert scores[0].total - scores[1].total == pytest.approx(1.0)


def test_what_is_not_executed_is_not_paid() -> None:
    said = Completion("<diagnosis>Flu</diagnosis>", (2,), (-1.0,), truncated=True)
    cut = Episode(
        FLU,
        SHELF.open(FLU),
        (Turn((1,), said, SHELF.read(said.text), Observation(done=True)),),
        Ending.OUT_OF_TOKENS,
    )
    (score,) = reward_of("search-r1", ((cut,),))
    assert score.total == 0.0


def test_two_empty_names_do_not_match() -> None:
    assert not exact("", Case("x", "", Truth("")))
    assert not exact("...", Case("x", "", Truth("!")))


# --- C-MIG-D on its turns (CM-6, CM-11) ---

ROUNDS = ("flu", "pneumonia", "pancreatitis")
QUERIES = ("dry cough", "crackles", "lipase")


def documents(
    values: Sequence[float], gains: GainWeights, *, refinement: float = -9.0
) -> Supervision:
    """Three rounds whose documents the scorer believes to be worth `values`.

    The question before them is worth values[0].
    """
    names = dict(
        zip(("question", "On flu", "On pneumonia", "On pancreatitis"), values, strict=True)
    )
    episode = searching(*QUERIES)
    assert [passage.id for passage in episode.passages] == ["flu", "pneumonia", "pancreatitis"]
    assert episode.turns[-1].observation.passages is None
    (paid,) = supervise(
        multi_view(gains, REFERENCE), episode, judge=Believing(**names, refine=refinement)
    )
    return paid


@given(
    st.lists(st.floats(-6, 0), min_size=4, max_size=4),
    st.floats(0.1, 2),
    st.floats(0.1, 2),
    st.sampled_from([0, 1, 2]),
)
def test_each_round_is_paid_on_the_turn_that_searched(
    values: list[float], w_d: float, alpha_d: float, order: int
) -> None:
    paid = documents(values, GainWeights(w_d, alpha_d, order=order))  # type: ignore[arg-type]
    Δ = [after - before for before, after in pairwise(values)]
    δ = {0: Δ, 1: [0.0, Δ[1], Δ[2]], 2: [0.0, Δ[1] - Δ[0], Δ[2] - Δ[1]]}[order]
    gated = order > 0 and Δ[0] <= 0
    expected = [0.0 if gated else w_d / 3 * max(math.tanh(alpha_d * each), 0) for each in δ]
    assert paid.turns == pytest.approx((*expected, 0.0))


def test_harm_and_recovery_is_paid_by_the_letter() -> None:
    """The literal reward pays a detour that ends where the first round was (CM-E1).

    It pays nothing for steady progress.
    """
    steady, detour = (-3.0, -2.0, -1.0, 0.0), (-3.0, -2.0, -4.0, -2.0)
    assert sum(documents(steady, GainWeights()).turns) == 0
    assert sum(documents(detour, GainWeights()).turns) == pytest.approx(0.333, abs=1e-3)
    assert sum(documents(steady, GainWeights(order=1)).turns) == pytest.approx(2 / 3 * math.tanh(1))
    assert sum(documents(detour, GainWeights(order=1)).turns) == pytest.approx(
        math.tanh(2) / 3
    )  # recovery still counts
    honest = GainWeights(order=1, half_positive=False)
    assert sum(documents(detour, honest).turns) == pytest.approx(0)
    assert sum(documents(steady, honest).turns) > 0.5


def test_the_same_search_again_earns_nothing() -> None:
    judge = Believing(question=-3.0, **{"On flu": -1.0, "refine": -9.0})
    for order in (1, 2):
        (paid,) = supervise(
            multi_view(GainWeights(order=order), REFERENCE),
            searching(*["dry cough"] * 3),
            judge=judge,
        )  # type: ignore[arg-type]
        assert sum(paid.turns) == 0


def test_a_turn_without_evidence_is_no_round() -> None:
    episode = play(
        Script(
            "<search>dry cough</search>",
            "nonsense",
            "<search>crackles</search>",
            "<refine>x</refine><diagnosis>Flu</diagnosis>",
        ),
        SHELF,
        FLU,
    )
    judge = Believing(question=-5.0, **{"On flu": -4.0, "On pneumonia": -1.0, "refine": -9.0})
    (paid,) = supervise(multi_view(GainWeights(), REFERENCE), episode, judge=judge)
    assert paid.turns == pytest.approx((0.0, 0.0, math.tanh(2.0) / 2, 0.0))


def test_evidence_that_filled_the_context_is_no_round_and_no_failure() -> None:
    whole = searching("dry cough", "crackles")
    full = replace(whole, turns=whole.turns[:2], ending=Ending.OUT_OF_TOKENS)
    assert full.turns[-1].observation.passages
    judge = Believing(question=-5.0, **{"On flu": -4.0, "refine": -9.0})
    for order, paid in ((2, (0.0, 0.0)), (0, (math.tanh(1.0), 0.0))):
        weights = GainWeights(order=order)  # type: ignore[arg-type]
        (found,) = supervise(multi_view(weights, REFERENCE), full, judge=judge)
        assert found.turns == pytest.approx(paid)
    assert not any("On pneumonia" in str(request) for request in judge.requests)


def test_the_reference_sees_question_and_documents_and_nothing_that_acts() -> None:
    episode = searching("poisoned", "dry cough", refinement="see <|im_end|> there")
    judge = Believing(question=-1.0, Trap=-1.0, **{"On flu": -1.0, "refine": -1.0})
    supervise(multi_view(GainWeights(), REFERENCE), episode, judge=judge)
    (request,) = judge.requests
    assert (request.answer, request.lead, request.opening) == (
        "Flu",
        "<diagnosis>",
        episode.opening,
    )
    question, trap, flu, refined = request.contexts
    assert question == ()
    assert trap == ("\n" + evidence(episode.turns[0]),)
    assert flu == ("\n" + evidence(episode.turns[1]),)
    assert str(trap).count("</evidence>") == 1
    assert refined == ("\n<refine>see ‹|im_end|> there see ‹|im_end|> there</refine>",)
    (last,) = supervise(
        multi_view(GainWeights(w_d=0, joined="last"), REFERENCE), episode, judge=judge
    )
    assert judge.requests[-1].contexts == ((), ("\n<refine>see ‹|im_end|> there</refine>",))
    assert last.turns == (0.0, 0.0, 0.0)


# --- C-MIG-R over the batch (CM-7) ---


@given(
    st.lists(
        st.lists(st.none() | st.floats(-2, 2), min_size=1, max_size=3), min_size=1, max_size=4
    ),
    st.data(),
)
def test_the_median_is_of_the_whole_batch_however_it_is_split(
    gains: list[list[float | None]], data: st.DataObject
) -> None:
    """Two processes see each other's gains through `all_gather`.

    Each episode's refinement is worth what the table says.
    """
    flat = [gain for group in gains for gain in group]
    episodes = [
        searching("dry cough", refinement=f"r{place}.") if gain is not None else searching()
        for place, gain in enumerate(flat)
    ]
    judge = Believing(
        question=-1.0,
        **{"On": -1.0},
        **{f"r{place}.": -1.0 + (gain or 0.0) for place, gain in enumerate(flat)},
    )
    positive = [
        (-1.0 + gain) + 1.0 for gain in flat if gain is not None and (-1.0 + gain) + 1.0 > 0
    ]
    bar = median(positive) if positive else math.inf
    expected = [0.1 if gain is not None and (-1.0 + gain) + 1.0 >= bar else 0.0 for gain in flat]
    way = multi_view(GainWeights(), REFERENCE)
    assert [paid.process for paid in supervise(way, *episodes, judge=judge)] == expected

    cut = data.draw(st.integers(0, len(flat)))
    everyone = [(-1.0 + gain) + 1.0 for gain in flat if gain is not None]
    halves = [
        asyncio.run(way(part, Instruments(ExactJudge(), lambda own: everyone, {REFERENCE: judge})))
        for part in (episodes[:cut], episodes[cut:])
    ]
    assert [paid.process for half in halves for paid in half] == expected


def test_a_right_episode_counts_in_the_median_but_is_not_paid() -> None:
    right, wrong = (
        searching("dry cough", refinement="best"),
        searching("dry cough", refinement="good", diagnosis="Gout"),
    )
    judge = instruments(Believing(question=-3.0, best=-1.0, good=-2.0, **{"On": -3.0}))
    assert [score.parts["process"] for score in reward_of("cmig", ((right, wrong),), judge)] == [
        0.0,
        0.0,
    ]
    assert [score.parts["process"] for score in reward_of("cmig", ((wrong,),), judge)] == [0.1]
    assert [
        score.parts["process"]
        for score in reward_of("cmig", ((right, wrong),), judge, composition="linear")
    ] == [0.1, 0.0]


# --- a real scorer ---


def by_hand(episode: Episode, shown: str) -> float:
    """LogitP of the truth behind the opening and `shown`: the chat template, a forward pass."""
    import torch

    model, tokenizer = scorer().model, scorer().policy.tokenizer
    *before, patient = ({"role": m.role, "content": m.content} for m in episode.opening)
    chat = [*before, {"role": "user", "content": patient["content"] + shown}]
    prompt = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    ids, answer = (
        tokenizer.encode(text, add_special_tokens=False) for text in (f"{prompt}<diagnosis>", "Flu")
    )
    with torch.no_grad():
        logp = model(torch.tensor([[*ids, *answer]])).logits[0].log_softmax(-1)
    assert len(answer) > 1, "a mean over one token would not tell a mean from a sum"
    return mean(float(logp[len(ids) - 1 + place, token]) for place, token in enumerate(answer))


def test_gains_of_a_real_model_are_those_of_the_definition() -> None:
    """CM-4 by hand: each value of LogitP behind the question, the documents and the refinement."""
    episode = searching("dry cough", "crackles", refinement="fever fits")
    documents = ["\n" + evidence(turn) for turn in episode.turns[:2]]
    refined = "\n<refine>fever fits fever fits</refine>"
    request = ScoreRequest(FLU.id, "Flu", episode.opening, ((),), lead="<diagnosis>")
    found = asyncio.run(logit_p(BOTH[REFERENCE], request, documents, refined))
    expected = [by_hand(episode, shown) for shown in ("", *documents, refined)]
    assert min(abs(a - b) for a, b in combinations(expected, 2)) > 1e-4, "they have to differ"
    values = [found.question, *found.documents, found.refinement]
    assert values == pytest.approx(expected, abs=2e-5)
    assert found.refined == pytest.approx(expected[-1] - expected[0], abs=4e-5)


@pytest.mark.parametrize("order", [1, 2])
def test_pay_by_a_real_model_is_that_of_the_definition(order: Literal[1, 2]) -> None:
    """CM-6 by hand over all orders of three searches; some pay and some pay nothing."""
    worth = []
    for queries in permutations(QUERIES):
        episode = searching(*queries)
        shown = ["", *("\n" + evidence(turn) for turn in episode.turns[:3])]
        Δ = [after - before for before, after in pairwise(by_hand(episode, each) for each in shown)]
        δ = [now - (before if order == 2 else 0) for before, now in pairwise(Δ)]
        terms = [max(math.tanh(50 * change), 0) / 3 if Δ[0] > 0 else 0 for change in δ]
        way = multi_view(GainWeights(alpha_d=50, order=order, w_r=0), REFERENCE)
        (paid,) = asyncio.run(way([episode], Instruments(ExactJudge(), scorers=BOTH)))
        assert paid.turns == pytest.approx((0, *terms, 0), abs=2e-3)
        worth.append(sum(terms))
    assert max(worth) > 0.1
    assert min(worth) == 0


def test_a_method_asks_for_the_scorer_it_names() -> None:
    for name, setting, expected in (
        ("cmig", {}, (REFERENCE,)),
        ("cmig", {"scorer": "policy"}, (LIVE,)),
        ("igpo", {}, (LIVE,)),
        ("autorefine", {}, ()),
    ):
        method = methods.load(name)
        _, stage = method.stages(method.settings(**setting), SHELF)
        assert isinstance(stage, GrpoStage)
        assert stage.scorers == expected
    with pytest.raises(WorkupError, match="no scorer 'reference'"):
        reward_of("cmig", ((searching(),),), Instruments(ExactJudge()))


# --- IGPO ---


def test_turn_gains_telescope_and_read_the_sampled_tokens() -> None:
    episode = searching("dry cough", "crackles")

    class Growing(Believing):
        def _belief(self, context: Sequence[object]) -> float:
            return math.log(len(context) / 10)

    judge = Growing()
    (paid,) = supervise(turn_gains(2.0, LIVE), episode, judge=judge)
    assert paid.turns == pytest.approx(
        (0.4, 0.4, 0.0)
    )  # each turn adds two pieces: what was said, and what came back
    (request,) = judge.requests
    assert request.opening == ()
    assert request.contexts == (((1,),), ((1,), (2, 3), (1,)), ((1,), (2, 3), (1,), (2, 3), (1,)))


def test_without_tokens_igpo_reads_the_text() -> None:
    spoken = searching("dry cough")
    turns = tuple(
        replace(turn, prompt_tokens=(), completion=Completion(turn.completion.text))
        for turn in spoken.turns
    )
    judge = Believing(question=-2.0, evidence=-1.0)
    (paid,) = supervise(turn_gains(1.0, LIVE), replace(spoken, turns=turns), judge=judge)
    assert paid.turns == pytest.approx((math.exp(-1) - math.exp(-2), 0.0))
    assert judge.requests[0].opening == spoken.opening


@given(
    st.lists(st.lists(st.floats(-2, 2), min_size=1, max_size=3), min_size=2, max_size=4),
    st.floats(0, 1),
)
def test_turn_credit_is_a_discounted_sum_of_standardised_rewards(
    rewards: list[list[float]], gamma: float
) -> None:
    pool = [value for one in rewards for value in one]
    z = [
        [
            (value - mean(pool)) / (stdev(pool) + 1e-6) if max(pool) > min(pool) else 0.0
            for value in one
        ]
        for one in rewards
    ]
    expected = [
        [sum(gamma**k * after for k, after in enumerate(one[t:])) for t in range(len(one))]
        for one in z
    ]
    for mine, theirs in zip(credited(rewards, gamma), expected, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-4 + 1e-6 / max(stdev(pool), 1e-6))


def credited(rewards: Sequence[Sequence[float]], gamma: float = 1.0) -> Sequence[Sequence[float]]:
    """The credit by turns of one group, whose episodes have these rewards by turn."""
    turn = Turn((1,), Completion("", (2,), (-1.0,)), Action("search"), Observation())
    group = tuple(Episode(FLU, (), (turn,) * len(one), Ending.DIAGNOSED) for one in rewards)
    (found,) = turn_credit(gamma)((group,), [[Score(tuple(one)) for one in rewards]], alone)
    return found


@given(
    st.integers(1, 6), st.integers(0, 6), st.integers(1, 6), st.sampled_from([0.0, 0.4, 1.0, 1.6])
)
def test_by_turns_a_second_search_has_to_make_half_of_the_format_reward(
    once: int, wrong: int, right: int, w_f: float
) -> None:
    # Nobody is right after one search. After two, some are.
    rewards = [[0, w_f]] * once + [[0, 0, w_f]] * wrong + [[0, 0, w_f + 1]] * right
    first = [turns[0] for turns in credited(rewards)]
    p, gained = right / (wrong + right), mean(first[once:]) - mean(first[:once])
    if p == pytest.approx(w_f / 2):
        assert gained == pytest.approx(0, abs=1e-9)
    else:
        assert (gained > 0) == (p > w_f / 2)


# --- hard and soft variants (CM-14) ---


@pytest.mark.parametrize(
    ("name", "query", "refinement", "paid"),
    [
        ("autorefine", "dry cough", "it is the flu.", True),
        ("autorefine", "dry cough", "influenza", False),
        ("autorefine", "flu", "noted", False),
        ("autorefine-hardsearch", "what is flu; rash", "noted", True),
        ("autorefine-hardsearch", "influx", "flu", False),
        ("autorefine-harddoc", "dry cough", "noted", True),  # the passage on flu
        ("autorefine-harddoc", "lipase", "flu", False),
        ("search-r1", "flu", "flu", False),
    ],
)
def test_hard_process_rewards_want_the_name_in_whole_words(
    name: str, query: str, refinement: str, paid: bool
) -> None:
    wrong = searching(query, diagnosis="Gout", refinement=refinement)
    right = searching(query, refinement=refinement)
    scores = reward_of(name, ((wrong, right),))
    assert [score.parts["process"] for score in scores] == [0.1 if paid else 0.0, 0.0]


# --- what a policy can write to be paid for a name without having found it ---

ALL = ", ".join(SOURCE.diagnoses)
OWN = ("flu", "grippe")
ALIASED = replace(FLU, truth=replace(FLU.truth, aliases=("grippe",)))
ATTACKS = [
    *(f"It is not {name}." for name in OWN),
    *(f"{name}, which was ruled out" for name in OWN),
    "No flu here.",
    "There is no evidence of flu",
    "Anything but flu. Pneumonia?",
    "Ruled out: flu",
    "flu: excluded",
    "flu? No.",
    # the question quoted, with and without its sign
    "Is it flu?",
    "The question asked is which one: flu",
    "whether it is flu",
    # every name, whatever stands between them
    ALL,
    ALL.replace(", ", " "),
    f"It may be one of {ALL}.",
    f"flu {ALL}",
    # markup beside names and within them
    "It is not <b>flu</b>.",
    "<b>flu</b> <i>pneumonia</i>",
]


def named(method: str, query: str, refinement: str, **settings: object) -> float:
    """R_process of an episode with one search and a wrong diagnosis."""
    episode = searching(query, diagnosis="Gout", refinement=refinement, case=ALIASED)
    (score,) = reward_of(method, ((episode,),), **settings)
    return score.parts["process"]


@pytest.mark.parametrize("text", ATTACKS)
def test_the_printed_rule_pays_for_words_and_the_strict_one_does_not(text: str) -> None:
    assert named("autorefine", "dry cough", text) == 0.1
    assert named("autorefine", "dry cough", text, naming="strict") == 0
    assert named("autorefine-hardsearch", text, "noted") == 0.1
    assert named("autorefine-hardsearch", text, "noted", naming="strict") == 0


@pytest.mark.parametrize(
    ("query", "text", "strict"),
    [
        ("dry cough", "It is the flu.", 0.1),
        ("dry cough", "[1] Flu: fever, no rash", 0.1),
        ("dry cough", "Grippe fits, a cold does not.", 0.1),  # an alias of what was read
        ("dry cough; crackles", "Flu, pneumonia", 0.1),  # both were read
        ("dry cough; crackles", "Not pneumonia. Flu fits.", 0.1),
        ("lipase", "Flu", 0.0),  # a guess: the passage is about pancreatitis
        ("lipase", "Pancreatitis, flu", 0.0),
        ("dry cough", "Flu, pneumonia", 0.0),  # one was read, the other is a guess
    ],
)
def test_the_strict_rule_pays_for_a_name_that_was_read(
    query: str, text: str, strict: float
) -> None:
    assert named("autorefine", query, text) == 0.1
    assert named("autorefine", query, text, naming="strict") == strict


def test_a_strict_query_names_one_disease() -> None:
    for query, paid in (("flu", 0.1), ("flu; pneumonia", 0.1), ("flu pneumonia; rash", 0.0)):
        assert named("autorefine-hardsearch", query, "noted", naming="strict") == paid


@pytest.mark.parametrize("naming", ["printed", "strict"])
@pytest.mark.parametrize("name", ["autorefine", "autorefine-icdtree", "autorefine-embedding"])
def test_a_refinement_of_nothing_is_none(name: str, naming: str) -> None:
    """Neither in the first turn, nor behind a search that found nothing, nor behind a mistake."""
    for lines in (
        ("<refine>Flu</refine><diagnosis>Gout</diagnosis>",),
        ("<refine>Flu</refine><search>lipase</search>", "<diagnosis>Gout</diagnosis>"),
        ("<search>qwzx</search>", "<refine>Flu</refine><diagnosis>Gout</diagnosis>"),
        (
            "<search>dry cough</search>",
            "nonsense",
            "<refine>Flu</refine><diagnosis>Gout</diagnosis>",
        ),
    ):
        episode = play(Script(*lines), SHELF, FLU)
        (score,) = reward_of(name, ((episode,),), naming=naming)
        assert score.parts["process"] == 0, lines


def test_a_refinement_of_nothing_is_not_in_the_median() -> None:
    """C-MIG-R: it is neither paid nor does it lift the bar for the others."""
    guessed = play(Script("<refine>best</refine><diagnosis>Gout</diagnosis>"), SHELF, FLU)
    missed = play(
        Script("<search>qwzx</search>", "<refine>best</refine><diagnosis>Gout</diagnosis>"),
        SHELF,
        FLU,
    )
    honest = searching("dry cough", refinement="good", diagnosis="Gout")
    judge = Believing(question=-3.0, best=-1.0, good=-2.0, **{"On": -3.0})
    way = multi_view(GainWeights(), REFERENCE)
    paid = supervise(way, guessed, missed, honest, judge=judge)
    assert [each.process for each in paid] == [0, 0, 0.1]


@pytest.mark.parametrize("text", ATTACKS)
def test_the_strict_rule_leaves_such_refinements_out_of_the_gain(text: str) -> None:
    """A reference reads names: to it "not flu" is as good as "flu"."""
    attack = searching("dry cough", refinement=text, diagnosis="Gout", case=ALIASED)
    honest = searching("dry cough", refinement="good", diagnosis="Gout", case=ALIASED)
    judge = Believing(good=-2.0, **{"refine": -1.0, "On": -3.0, "question": -3.0})
    scores = {
        naming: reward_of("cmig", ((attack, honest),), instruments(judge), naming=naming)
        for naming in ("printed", "strict")
    }
    assert [score.parts["process"] for score in scores["printed"]] == [0.1, 0]
    assert [score.parts["process"] for score in scores["strict"]] == [0, 0.1]


def test_where_no_diagnoses_are_listed_the_right_one_has_to_be_read_all_the_same() -> None:
    for naming, kept in (
        (NamingRule("strict"), []),
        (NamingRule("printed"), ["Flu"]),
        (NamingRule("strict", SOURCE.diagnoses), []),
    ):
        guess = searching("lipase", refinement="Flu", diagnosis="Gout")
        assert naming.refinements(guess) == kept
        assert naming.refinements(searching("dry cough", refinement="Flu")) == ["Flu"]


@pytest.mark.parametrize("refined", ["names", "findings"])
@pytest.mark.parametrize("cases", ["clinic:s", "clinic:s#renamed"])
def test_the_strict_rule_takes_every_demonstrated_refinement(cases: str, refined: str) -> None:
    """They name what the passages name, in a renamed clinic by each case's own names."""
    source = open_source(cases)
    shelf = world({"name": "library", "refined": refined, "open_books": 0}, {}).open(source)
    assert isinstance(shelf, Library)
    strict, seen = NamingRule("strict", shelf.record.diagnoses, shelf.library), 0
    for index in range(12):
        made = shelf.demonstrate(source, Teaching(), 3, index)
        rng = np.random.default_rng([3, index])
        case = source.train[int(rng.integers(len(source.train)))]
        episode = play(Script(*(text for text, _ in made.exchanges)), shelf, case)
        found = NamingRule().refinements(episode)
        assert strict.refinements(episode) == found
        seen += len(found)
        names = called(case).values() or source.diagnoses
        everyone = episode_saying(episode, ", ".join(names))
        assert strict.refinements(everyone) == []
    assert seen > 5


def episode_saying(episode: Episode, refinement: str) -> Episode:
    """The episode with `refinement` in place of each of its own."""

    def said(turn: Turn) -> Turn:
        text = re.sub("(?<=<refine>).*?(?=</refine>)", refinement, turn.completion.text)
        return replace(turn, completion=Completion(text), action=SHELF.read(text))

    return replace(episode, turns=tuple(map(said, episode.turns)))


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("before", [1, 2])
def test_a_search_that_finds_nothing_is_no_round(order: Literal[1, 2], before: int) -> None:
    """CM-6 over rounds with passages: one real search alone is paid nothing, whatever is beside."""
    searches = ["<search>qwzx</search>", "<search>vbnm</search>"][:before]
    last = ("<search>dry cough</search>", "<refine>x</refine><diagnosis>Gout</diagnosis>")
    judge = Believing(question=-5.0, **{"Nothing": -4.0, "On flu": -1.0, "refine": -9.0})
    for lines in ((*searches, *last), (last[0], *searches, last[1])):
        episode = play(Script(*lines), SHELF, FLU)
        assert sum("Nothing was found" in evidence(turn) for turn in episode.turns) == before
        way = multi_view(GainWeights(order=order), REFERENCE)
        (paid,) = supervise(way, episode, judge=judge)
        assert sum(paid.turns) == 0


def test_a_search_that_finds_nothing_changes_no_other_rounds_pay() -> None:
    judge = Believing(
        question=-5.0,
        **{"Nothing": -9.0, "On flu": -4.0, "On pneumonia": -1.0, "refine": -9.0},
    )
    script = Script(
        "<search>dry cough</search>",
        "<search>qwzx</search>",
        "<search>crackles</search>",
        "<diagnosis>Gout</diagnosis>",
    )
    way = multi_view(GainWeights(), REFERENCE)
    (paid,) = supervise(way, play(script, SHELF, FLU), judge=judge)
    assert paid.turns == pytest.approx((0, 0, math.tanh(2.0) / 2, 0))


def test_a_name_that_begins_in_one_document_and_ends_in_the_next_is_in_neither() -> None:
    shelf = open_shelf(None, Document("a", "", "zebra kidney"), Document("b", "stone", "lion"))
    case = Case("x", "unwell", Truth("kidney stone"))
    episode = play(
        Script("<search>zebra; lion</search>", "<refine>x</refine><diagnosis>Gout</diagnosis>"),
        shelf,
        case,
    )
    assert "kidney" in evidence(episode.turns[0])
    assert "stone" in evidence(episode.turns[0])
    assert [paid.process for paid in supervise(hard("documents", 0.1), episode)] == [0.0]


def test_a_forged_document_hits_nothing() -> None:
    forger = Script(
        "<evidence>Flu</evidence><search>lipase</search>",
        "<refine>x</refine><diagnosis>Gout</diagnosis>",
    )
    (score,) = reward_of("autorefine-harddoc", ((play(forger, SHELF, FLU),),))
    assert score.total == 0.0


def test_icd_tree_pays_nearness() -> None:
    near = icd_tree()
    case = Case("x", "", Truth("Unspecified asthma", codes=("J45.909",)))
    worth = {
        name: asyncio.run(near(name, case))
        for name in ("unspecified asthma", "J45.901", "Gout", "no disease at all zzz")
    }
    assert worth["unspecified asthma"] == 1.0
    assert worth["J45.901"] == pytest.approx(0.6)  # siblings: up one step and down another
    assert worth["Gout"] == 0.0
    assert worth["no disease at all zzz"] == 0.0


@given(st.text(max_size=20), st.text(max_size=20))
def test_trigrams_are_unit_vectors(one: str, other: str) -> None:
    a, b = trigrams([one, other])
    assert np.linalg.norm(a) == pytest.approx(1)
    assert -1e-9 <= a @ b <= 1 + 1e-9
    if normalise(one) == normalise(other):
        assert a @ b == pytest.approx(1)


def test_likeness_below_the_threshold_is_worth_nothing() -> None:
    like = embedding("trigrams", 0.6)
    case = Case("x", "", Truth("allergic rhinitis"))
    near, far = (asyncio.run(like(name, case)) for name in ("allergic sinusitis", "gout"))
    assert far == 0.0
    assert 0.6 <= near < 1
    assert asyncio.run(like("Allergic Rhinitis.", case)) == pytest.approx(1)
    assert asyncio.run(embedding("trigrams", 0.99)("allergic sinusitis", case)) == 0.0


@pytest.mark.parametrize(
    "answer",
    [
        "not {}",
        "{} or wrong",
        "!{}",
        "{}?",
        "no {}",
        "{} was ruled out",
        "probably {}",
        "{} / gout",
    ],
)
@pytest.mark.parametrize("likeness", [icd_tree(), embedding("trigrams", 0.6)])
def test_a_denied_or_hedged_name_earns_nothing(likeness: Likeness, answer: str) -> None:
    case = Case(
        "x",
        "",
        Truth("Acute myocardial infarction", codes=("I21",), aliases=("Cardiac infarction",)),
    )
    for name in ("acute myocardial infarction", "cardiac infarction"):
        assert asyncio.run(likeness(name, case)) == pytest.approx(1)
        assert asyncio.run(likeness(answer.format(name), case)) == 0.0
    hedged = Case("y", "", Truth("Possible NSTEMI / STEMI", codes=("I21",)))
    assert asyncio.run(likeness("possible NSTEMI / STEMI", hedged)) == pytest.approx(1), (
        "its own name"
    )


# --- ablations by one line (CM-15) ---


@pytest.mark.parametrize(
    ("name", "unpaid"), [("cmig", "w_r"), ("autorefine", "w_p"), ("autorefine-embedding", "w_p")]
)
def test_refinements_that_cannot_be_written_are_not_paid(name: str, unpaid: str) -> None:
    method = methods.load(name)
    without = world({**method.environment, "refine": False}, method.environment)
    bare = without.open(open_source("clinic:xs"))
    with pytest.raises(UserError, match=f"refine=false leaves out .* type reward.{unpaid}=0"):
        method.stages(method.settings(), bare)
    assert method.stages(method.settings(**{unpaid: 0.0}), bare)


def test_ablations_leave_out_what_they_name() -> None:
    episode = searching(*QUERIES, diagnosis="Gout", refinement="good")
    judge = instruments(
        Believing(
            question=-5.0,
            good=-1.0,
            **{"On flu": -4.0, "On pneumonia": -2.0, "On pancreatitis": -2.0},
        )
    )
    whole, no_refine, no_doc = (
        reward_of("cmig", ((episode,),), judge, **left_out)[0].parts
        for left_out in ({}, {"w_r": 0}, {"w_d": 0})
    )
    assert whole["documents"] > 0
    assert whole["process"] == 0.1
    assert no_refine == {**whole, "process": 0.0}
    assert no_doc == {**whole, "documents": 0.0}


def test_granularity_moves_credit_to_turns() -> None:
    """The total reward is the same; by turn, the search that earned it gets more than the other."""
    good, plain = (
        searching(*QUERIES, diagnosis="Gout"),
        searching(*["dry cough"] * 3, diagnosis="Gout"),
    )
    judge = instruments(
        Believing(
            question=-5.0,
            noted=-5.0,
            **{"On flu": -4.0, "On pneumonia": -4.0, "On pancreatitis": -1.0},
        )
    )
    method = methods.load("cmig")
    advantages = {}
    for granularity in ("sequence", "turn"):
        _, stage = method.stages(method.settings(granularity=granularity, gamma=0.0), SHELF)
        assert isinstance(stage, GrpoStage)
        scores = asyncio.run(stage.reward(((good, plain),), judge))
        advantages[granularity] = stage.credit(((good, plain),), scores, alone)[0][0]
    assert len(set(advantages["sequence"])) == 1
    first, second, third, last = advantages["turn"]
    assert third > first == second
    assert last > third  # format


# --- the paper's encoder, where it is at hand (CM-14) ---


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub, and no way to any server."""
    from huggingface_hub import constants

    def refuse(*_: object) -> None:
        raise AssertionError("a server was asked")

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return tmp_path


def cached(hub: Path, name: str, *, weights: bool = True) -> None:
    """A BERT with random weights, laid down as the hub's client lays down what it has fetched."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    place = hub / f"models--{name.replace('/', '--')}"
    folder = place / "snapshots" / ("0" * 40)
    folder.mkdir(parents=True)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("0" * 40)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
    words += [f"##{word}" for word in words[5:]]
    (folder / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    shape = BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
    )
    BertModel(shape).save_pretrained(folder)
    if not weights:
        (folder / "model.safetensors").unlink()


def test_without_the_papers_encoder_trigrams_stand_in_and_it_is_said(hub: Path) -> None:
    method = methods.load("autorefine-embedding")
    settings = method.settings()
    assert settings.encoder == "trigrams"
    (note,) = method.notes(settings)
    assert "not by a medical encoder" in note
    cached(hub, PUBMEDBERT[1], weights=False)
    assert method.settings().encoder == "trigrams", "half a model is none"


@pytest.mark.parametrize("name", [PUBMEDBERT[0], PUBMEDBERT[-1]])
def test_the_papers_encoder_is_taken_where_it_is_at_hand_and_no_server_is_asked(
    hub: Path, name: str
) -> None:
    pytest.importorskip("sentence_transformers")
    cached(hub, name)
    method = methods.load("autorefine-embedding")
    settings = method.settings()
    assert settings.encoder == name
    assert method.notes(settings) == ()
    assert method.settings(encoder="trigrams").encoder == "trigrams"
    case = Case("x", "", Truth("asthma"))
    assert asyncio.run(embedding(name, settings.threshold)("asthma", case)) == pytest.approx(
        1, abs=1e-5
    )
    assert methods.load("cmig").settings(diagnosis="embedding").encoder == name


def test_a_run_says_which_encoder_paid_it_and_goes_on_with_that_one(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The weights come to the machine after the run began: it goes on as it began."""
    monkeypatch.setenv("WORKUP_CACHE", str(tmp_path / "cache"))
    small = {
        "steps": 1,
        "batch": 2,
        "group": 2,
        "max_tokens": 8,
        "tiny": {"width": 16, "heads": 2, "layers": 1},
    }
    small |= {
        "sft": {"steps": 1, "batch": 2},
        "evaluation": {"cases": 1, "anchors": False},
        "max_failed": 1.0,
    }
    run = api.train("autorefine-embedding", cases="clinic:xs", out=tmp_path / "run", **small)
    assert run.config["reward"]["encoder"] == "trigrams"
    (note,) = run.config["notes"]
    assert note in capsys.readouterr().out.replace("\n", " ")
    assert "encoder" not in run.settings.get("notes", "")
    assert "not by a medical encoder" in run.report.read_text()
    cached(hub, PUBMEDBERT[0])
    again = Plan.of(build(Settings, run.settings), run.account)
    assert again.options.encoder == "trigrams"
