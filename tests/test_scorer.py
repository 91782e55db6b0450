"""The local scorer against plain forward passes, one prompt at a time.

Tries are compared with their definition.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from test_local_policy import SHAPE, letters, qwen
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
)

from workup.cases.clinic import open_clinic
from workup.core.episode import Message
from workup.core.errors import RolloutError, UserError, WorkupError
from workup.core.ports import Context, ScoreRequest
from workup.engines.trl.scoring import scoring
from workup.environments.consultation import Consultation
from workup.models.chat_tokens import MARK
from workup.models.local import LocalPolicy
from workup.models.scorer import LocalScorer
from workup.models.scorer_trie import PathAnswer, Slice, sequences, slices
from workup.models.tiny import TinySettings, build

torch.set_num_threads(1)

OPENING = (Message("system", "be brief"), Message("user", "what is it? "))


def gpt2() -> Any:
    """Learned absolute positions, and a head that is called on float32."""
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=90, n_positions=256, n_embd=32, n_layer=2, n_head=4, initializer_range=0.3
        )
    ).eval()


def granite() -> Any:
    """Scales its logits after the output layer."""
    torch.manual_seed(0)
    config = GraniteConfig(
        **SHAPE | {"vocab_size": 90, "num_key_value_heads": 2}, logits_scaling=3.0
    )
    return GraniteForCausalLM(config).eval()


MODELS = {
    "qwen": lambda: qwen(90),
    "gpt2": gpt2,
    "granite": granite,
    "lora": lambda: get_peft_model(
        qwen(90), LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    ).eval(),
}


def scorer(model: Any = None, **more: Any) -> LocalScorer:
    return LocalScorer(LocalPolicy(qwen(90) if model is None else model, letters()), **more)


def score(judge: LocalScorer, *requests: ScoreRequest) -> list[Any]:
    async def all_of() -> list[Any]:
        return list(await asyncio.gather(*map(judge.score, requests)))

    return asyncio.run(all_of())


def apart(model: Any, policy: LocalPolicy, request: ScoreRequest, context: Context) -> float:
    """log P of the request's answer by an ordinary forward pass on one prompt: the definition."""
    ids: list[int] = []
    if request.opening:
        chat = [{"role": m.role, "content": m.content} for m in request.opening]
        chat[-1]["content"] += MARK
        head, tail = policy.tokenizer.apply_chat_template(
            chat, tokenize=False, add_generation_prompt=True
        ).split(MARK)
        ids += policy.markup(head)
    for piece in context:
        ids += policy.encode(piece) if isinstance(piece, str) else piece
    ids += (policy.markup(tail) if request.opening else ()) + policy.encode(request.lead)
    answer = policy.encode(request.answer)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*ids, *answer]])).logits[0].double()
    chances = logits.log_softmax(-1)
    return sum(float(chances[len(ids) + i - 1, token]) for i, token in enumerate(answer))


WORDS = st.text("abcd .", min_size=1, max_size=5)
CONTEXTS = st.lists(st.lists(WORDS, max_size=4).map(tuple), min_size=1, max_size=8)
KEPT = scorer()


@pytest.mark.parametrize("name", MODELS)
def test_packed_values_are_those_of_separate_prompts(name: str) -> None:
    model = MODELS[name]()
    judge = scorer(model)
    nested = tuple(("fever. ", "cough. ", "rash. ")[:n] for n in range(4))
    requests = [
        ScoreRequest(
            "a", "measles", OPENING, (*nested, ("cough. ", "fever. "), ("cough. ",)), "it is "
        ),
        ScoreRequest("b", "flu", OPENING, nested),
        ScoreRequest("c", "flu or so", (), (("abc", (7, 8, 9)), ("abc",), ((7, 8),))),
    ]
    for request, found in zip(requests, score(judge, *requests), strict=True):
        expected = [apart(model, judge.policy, request, context) for context in request.contexts]
        assert found.totals == pytest.approx(expected, abs=1e-4)
        assert found.tokens == len(request.answer)
        assert found.means == pytest.approx(
            [value / len(request.answer) for value in expected], abs=1e-5
        )
    assert judge.work.forwards == 1


@pytest.mark.long
@given(
    st.lists(st.tuples(CONTEXTS, WORDS, st.sampled_from(["", "so "])), min_size=1, max_size=4),
    st.integers(1, 200),
)
@settings(max_examples=40)
def test_any_contexts_in_any_batches(
    asked: list[tuple[list[Context], str, str]], budget: int
) -> None:
    KEPT.refresh()
    KEPT.budget = budget
    requests = [
        ScoreRequest("x", answer, OPENING, tuple(contexts), lead)
        for contexts, answer, lead in asked
    ]
    for request, found in zip(requests, score(KEPT, *requests), strict=True):
        assert found.totals == pytest.approx(
            [apart(KEPT.model, KEPT.policy, request, c) for c in request.contexts], abs=1e-4
        )


def test_half_precision_agrees_as_far_as_it_can() -> None:
    model = qwen(90).bfloat16()
    judge = scorer(model)
    request = ScoreRequest("x", "measles", OPENING, (("fever. ",), ("fever. ", "rash. "), ()))
    exact = [apart(qwen(90), judge.policy, request, context) for context in request.contexts]
    assert score(judge, request)[0].means == pytest.approx([value / 7 for value in exact], abs=0.1)


def test_the_tiny_policy_reads_an_opening_like_a_consultation() -> None:
    source = open_clinic("xs")
    environment = Consultation(source.items, source.diagnoses)
    policy = LocalPolicy(
        *build(source, environment.phrases, TinySettings(width=32, heads=2), seed=3)
    )
    policy.model.eval()
    case = next(case for case in source.train if len(case.truth.facts) > 2)
    facts = [f" {fact.text}" for fact in case.truth.facts]
    request = ScoreRequest(
        case.id, case.truth.diagnosis, environment.open(case), (tuple(facts), ()), "<diagnose>"
    )
    found = score(LocalScorer(policy), request)[0]
    assert found.tokens == 1
    rendered = [
        *policy.render(environment.open(case)),
        *policy.encode("".join(facts)),
        *policy.encode("<diagnose>"),
    ]
    (token,) = policy.encode(case.truth.diagnosis)
    with torch.no_grad():
        expected = (
            policy.model(input_ids=torch.tensor([rendered])).logits[0, -1].log_softmax(-1)[token]
        )
    assert found.totals[0] == pytest.approx(float(expected), abs=1e-5)


# ------------------------------------------------------------------------------- what is remembered


def test_equal_contents_are_computed_once_whoever_asks() -> None:
    judge = scorer()
    request = ScoreRequest("x", "flu", OPENING, (("fever. ",), (), ("fever. ",)))
    twin = ScoreRequest(
        "y",
        "flu",
        (Message("system", "be brief"), Message("user", "what is it? ")),
        (("fever. ",),),
    )
    first, second = score(judge, request, twin)
    assert first.totals[0] == first.totals[2] == second.totals[0]
    assert (judge.work.asked, judge.work.scored) == (4, 2)
    tokens = judge.work.tokens
    again = score(judge, request)[0]
    assert (again.totals, judge.work.tokens, judge.work.scored) == (first.totals, tokens, 2)


def test_what_differs_in_anything_is_not_mistaken_for_the_same() -> None:
    judge = scorer()
    user = (Message("user", "x"),)
    requests = [
        ScoreRequest("x", "flu", user, (("ab",),)),
        ScoreRequest("x", "flu", user, (("a", "b"),)),
        ScoreRequest("x", "flu", user, (("ab",),), "so "),
        ScoreRequest("x", "flu", (), (("user", "x", "ab"),)),
        ScoreRequest("x", "flue", user, (("ab",),)),
        ScoreRequest("x", "flu", user, (((3, 4),),)),
    ]
    score(judge, *requests)
    assert judge.work.scored == len(requests)


def test_a_live_scorer_forgets_and_a_frozen_one_does_not_move() -> None:
    policy = LocalPolicy(qwen(90), letters())
    live, frozen = LocalScorer(policy), LocalScorer.frozen(policy)
    request = ScoreRequest("x", "flu", OPENING)
    before = score(live, request)[0]
    assert score(frozen, request)[0] == before
    with torch.no_grad():
        policy.model.lm_head.weight.mul_(0.5)
    assert score(live, request)[0] == before, "remembered until it is told"
    live.refresh()
    frozen.refresh()
    assert score(live, request)[0].totals[0] != pytest.approx(before.totals[0], abs=1e-3)
    assert score(frozen, request)[0] == before


def test_a_reference_frozen_amid_training_has_its_own_weights() -> None:
    policy = LocalPolicy(qwen(90), letters())
    request = ScoreRequest("x", "flu", OPENING)
    with scoring(policy.model):  # as the engine does around a stage
        frozen = LocalScorer.frozen(policy)
        before = score(frozen, request)[0]
        with torch.no_grad():
            policy.model.lm_head.weight.mul_(0.5)
        frozen.refresh()
        assert score(frozen, request)[0] == before
        assert score(LocalScorer(policy), request)[0] != before


def test_mixed_precision_around_it_does_no_harm() -> None:
    request = ScoreRequest("x", "flu", OPENING, (("fever. ",), ()))
    exact = score(scorer(), request)[0]
    with torch.autocast("cpu", torch.bfloat16):
        assert score(scorer(), request)[0].means == pytest.approx(exact.means, abs=0.1)


def test_only_so_many_values_are_remembered() -> None:
    judge = scorer(remembered=3)
    score(judge, ScoreRequest("x", "flu", OPENING, tuple((str(i),) for i in range(5))))
    assert len(judge.known) == 3
    score(
        judge,
        ScoreRequest("x", "flu", OPENING, (("2",),)),
        ScoreRequest("x", "flu", OPENING, (("9",),)),
    )
    score(judge, ScoreRequest("x", "flu", OPENING, (("2",),)))
    assert judge.work.scored == 6, "the one last used stayed"


# ---------------------------------------------------------------------------------- model and state


def test_without_adapters_it_is_the_base_model_and_the_policy_is_left_alone() -> None:
    torch.manual_seed(1)
    base = qwen(90)
    request = ScoreRequest("x", "flu", OPENING, (("fever. ",),))
    expected = score(scorer(base), request)[0]
    adapted = get_peft_model(
        base, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    ).train()
    flags = [p.requires_grad for p in adapted.parameters()]
    policy = LocalPolicy(adapted, letters())
    with_, without = LocalScorer(policy), LocalScorer(policy, adapters=False)
    assert score(without, request)[0].totals == pytest.approx(expected.totals, abs=1e-5)
    assert abs(score(with_, request)[0].totals[0] - expected.totals[0]) > 1e-2
    assert [p.requires_grad for p in adapted.parameters()] == flags
    assert adapted.training


def test_no_gradient_and_no_dropout() -> None:
    model = qwen(90, attention_dropout=0.5).train()
    judge = scorer(model)
    one = score(judge, ScoreRequest("x", "flu", OPENING))[0]
    judge.refresh()
    assert score(judge, ScoreRequest("x", "flu", OPENING))[0] == one
    assert model.training
    assert all(p.grad is None for p in model.parameters())


def test_models_that_cannot_be_packed_are_refused() -> None:
    bloom = BloomForCausalLM(
        BloomConfig(vocab_size=90, hidden_size=32, n_layer=2, n_head=4, initializer_range=0.5)
    )
    eager = qwen(90, "eager")
    sliding = qwen(90, use_sliding_window=True, sliding_window=8, max_window_layers=0)
    for model in (eager, bloom):
        with pytest.raises(UserError, match="cannot be packed"):
            scorer(model.eval())
    with pytest.raises(UserError, match="sliding"):
        scorer(sliding)


# ------------------------------------------------------------------------------------------- faults


def test_what_does_not_fit_the_context_fails_that_request_only() -> None:
    judge = scorer(qwen(90, context=64))
    long, short = (
        ScoreRequest("case 7", "flu", OPENING, ((), ("a" * 60,))),
        ScoreRequest("b", "flu", (Message("user", "x"),)),
    )

    async def both() -> Any:
        return await asyncio.gather(judge.score(long), judge.score(short), return_exceptions=True)

    failed, fine = asyncio.run(both())
    assert isinstance(failed, RolloutError)
    assert "case 7" in str(failed)
    assert "64" in str(failed)
    assert math.isfinite(fine.totals[0])
    with pytest.raises(RolloutError, match="answer of 70"):
        score(judge, ScoreRequest("case 7", "a" * 70, OPENING))


def test_values_that_are_no_numbers_name_the_case_and_are_not_kept() -> None:
    judge = scorer()
    good = judge.model.lm_head.weight.detach().clone()
    for broken, shown in ((math.nan, "nan"), (math.inf, "nan|inf")):
        with torch.no_grad():
            judge.model.lm_head.weight[:] = broken
        with pytest.raises(WorkupError, match=f"case 'seven'.*({shown})"):
            score(judge, ScoreRequest("seven", "flu", OPENING))
    with torch.no_grad():
        judge.model.lm_head.weight[:] = good
    assert math.isfinite(score(judge, ScoreRequest("seven", "flu", OPENING))[0].totals[0])


def test_nothing_to_score_and_nothing_before_it() -> None:
    with pytest.raises(WorkupError, match="case 'x': the answer '' has no tokens"):
        score(scorer(), ScoreRequest("x", "", OPENING))
    with pytest.raises(WorkupError, match="nothing stands before"):
        score(scorer(), ScoreRequest("x", "flu"))


def test_a_template_that_refuses_the_messages_names_the_case() -> None:
    judge = scorer()
    judge.policy.tokenizer.chat_template = "{{ raise_exception('no system') }}"
    with pytest.raises(RolloutError, match="case 'x': the chat template refuses"):
        score(judge, ScoreRequest("x", "flu", OPENING))


def test_a_crash_reaches_every_caller_and_the_next_request_works() -> None:
    judge = scorer()
    judge.model.lm_head.bias = torch.nn.Parameter(torch.zeros(3))
    requests = [ScoreRequest("x", "flu", OPENING), ScoreRequest("y", "cold", OPENING)]

    async def both() -> Any:
        return await asyncio.gather(*map(judge.score, requests), return_exceptions=True)

    assert all(isinstance(result, RuntimeError) for result in asyncio.run(both()))
    judge.model.lm_head.bias = None
    assert len(score(judge, *requests)) == 2


def test_a_caller_that_gives_up_does_not_take_others_along() -> None:
    judge = scorer()
    request = ScoreRequest("x", "flu", OPENING)

    async def one_leaves() -> Any:
        leaving, staying = (
            asyncio.create_task(judge.score(request)),
            asyncio.create_task(judge.score(request)),
        )
        await asyncio.sleep(0)
        leaving.cancel()
        return await staying

    assert math.isfinite(asyncio.run(one_leaves()).totals[0])


# -------------------------------------------------------------------------------------------- tries

RUNS = st.lists(
    st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple), min_size=1, max_size=5
).map(tuple)
WANTED = st.lists(
    st.builds(PathAnswer, RUNS, st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple)),
    min_size=1,
    max_size=12,
)


@given(WANTED, st.integers(1, 60), st.integers(1, 10), st.integers(1, 9))
def test_every_answer_token_sees_exactly_its_own_past(
    wanted: Sequence[PathAnswer], budget: int, scored: int, width: int
) -> None:
    laid = sequences(wanted, budget, scored)
    assert sorted((w.path, w.answer) for part in laid for w in part.wanted) == sorted(
        (w.path, w.answer) for w in wanted
    )
    for part in laid:
        seen = [_keys(cut)[row] for cut in slices(part.ends, width) for row in cut.seen]
        assert len(seen) == len(part)
        places = iter(part.predictors)
        for one in part.wanted:
            before = [i for run in one.path for i in run]
            for n in range(len(one.answer)):
                place = next(places)
                in_order = sorted(seen[place], key=lambda i: part.positions[i])
                assert [part.tokens[i] for i in in_order] == [*before, *one.answer[:n]]
                assert part.positions[place] == len(before) + n - 1
        assert len(part.wanted) == 1 or (len(part) <= budget and len(part.predictors) <= scored)


def _keys(cut: Slice) -> Any:
    return np.arange(cut.keys.start, cut.keys.stop) if isinstance(cut.keys, slice) else cut.keys


def test_shared_beginnings_stand_once_and_sequences_are_cut_where_little_is_shared() -> None:
    head, facts = (1,) * 100, [(2 + i,) * 10 for i in range(30)]
    nested = [PathAnswer((head, *facts[:n]), (99,)) for n in range(31)]
    turned = [PathAnswer((head, *facts[::-1][:n]), (99,)) for n in range(1, 31)]
    assert [len(part) for part in sequences(nested, 400, 99)] == [400], (
        "an answer of one token takes none"
    )
    assert [len(part) for part in sequences([*nested, *turned], 700, 99)] == [700]
    assert [len(part) for part in sequences([*nested, *turned], 699, 99)] == [400, 400]
    assert [len(part) for part in sequences(nested, 399, 99)] == [390, 400]
    other = [PathAnswer(((7,) * 300, (8,)), (99,))]
    assert [len(part) for part in sequences([*nested, *other], 701, 99)] == [701]
    assert [len(part) for part in sequences([*nested, *other], 700, 99)] == [400, 301]


def test_a_slice_needs_only_the_keys_that_it_sees() -> None:
    head = (1,) * 64
    (part,) = sequences([PathAnswer((head, (2 + i,) * 64), (99,)) for i in range(20)], 10_000, 99)
    assert len(part) == 64 * 21
    cuts = slices(part.ends, 64)
    assert [len(_keys(cut)) for cut in cuts] == [64, 128, 192, *[128] * 18]
    assert [isinstance(cut.keys, slice) for cut in cuts] == [True] * 3 + [False] * 18, (
        "copied where that spares enough"
    )
