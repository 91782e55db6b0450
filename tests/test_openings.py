"""Equal beginnings go through the model once: nothing that is learned changes by it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import engine_world
import numpy as np
import pytest
import torch
from bench import openings as bench
from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config

from workup.core.episode import Sample
from workup.core.errors import WorkupError
from workup.engines.settings import EngineSettings
from workup.engines.trl import openings
from workup.engines.trl.batches import padded, policy_parts
from workup.engines.trl.engine import TrlEngine
from workup.engines.trl.openings import Openings, able, attending, total
from workup.engines.trl.scoring import ScoredTokens, scoring

CPU = torch.device("cpu")
ROWS = st.lists(st.lists(st.integers(3, 5), min_size=1, max_size=6), min_size=1, max_size=5)
# Three of one opening, two of which part later; one of another; one that is the beginning of one.
TREE = [
    [7, 8, 9, 10, 11, 12, 13],
    [7, 8, 9, 10, 11, 14],
    [20, 21, 22],
    [7, 8, 9, 30, 31, 32, 33, 34, 35],
    [7, 8, 9, 10],
    [20, 21, 22],
]


def llama() -> Any:
    torch.manual_seed(1)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=60, **sizes, **heads)).eval()


def adapted() -> Any:
    made = get_peft_model(
        engine_world.model(), LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    torch.manual_seed(2)
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.1)
    return made


@given(ROWS)
def test_the_long_row_has_every_beginning_once(rows: list[list[int]]) -> None:
    beginnings = {tuple(row[:k]) for row in rows for k in range(1, len(row) + 1)}
    made = Openings(rows, CPU)
    assert total(rows) == len(beginnings) == made.ids.shape[1]
    for row, places in zip(rows, made.places.tolist(), strict=True):
        own = places[: len(row)]
        assert made.ids[0, own].tolist() == row
        assert made.positions[0, own].tolist() == [*range(len(row))]


def scored(model: Any, rows: Sequence[Sequence[int]], alike: Openings | None) -> Tensor:
    """The log-probability of every token but the first, row by row."""
    ids = torch.from_numpy(padded(rows, np.int64))
    places = [(r, c) for r, row in enumerate(rows) for c in range(1, len(row))]
    r, c = (torch.tensor(each) for each in zip(*places, strict=True))
    parents = r * ids.shape[1] + c - 1 if alike is None else alike.places[r, c - 1]
    given_to_it = {"input_ids": ids} if alike is None else alike.inputs()
    found: Tensor = model(**given_to_it, wanted=ScoredTokens(parents, ids[r, c]))[0]
    return found


@pytest.mark.parametrize("make", [engine_world.model, llama, adapted])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_log_probabilities_and_gradients_are_those_of_padded_rows(
    make: Any, checkpointing: bool
) -> None:
    """In double precision but for the output layer, which is single: to six digits."""
    model = make().double()
    if checkpointing:
        model.train()
        model.gradient_checkpointing_enable({"use_reentrant": False})
        if hasattr(model, "enable_input_require_grads"):
            model.enable_input_require_grads()
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    assert able(base)
    weights = torch.from_numpy(
        np.random.default_rng(0).normal(size=sum(map(len, TREE)) - len(TREE))
    )
    found = []
    with scoring(base), attending():
        for alike in (None, Openings(TREE, CPU)):
            model.zero_grad()
            logprobs = scored(model, TREE, alike)
            (logprobs * weights).sum().backward()  # type: ignore[no-untyped-call]
            grads = {
                name: weight.grad.clone()
                for name, weight in model.named_parameters()
                if weight.grad is not None
            }
            found.append((logprobs.detach(), grads))
            if alike is not None:
                layers = base.config.num_hidden_layers
                assert alike.calls == layers * (1 + checkpointing)
    (plain, before), (shared, after) = found
    assert torch.allclose(plain, shared, rtol=0, atol=1e-6)
    assert before.keys() == after.keys()
    for name, grad in before.items():
        assert torch.allclose(grad, after[name], rtol=1e-5, atol=1e-6), name


def test_a_token_of_another_row_changes_nothing() -> None:
    model = engine_world.model().double()
    other = [*TREE[:3], [7, 8, 9, 40, 41, 42, 43, 44, 45], *TREE[4:]]
    with scoring(model), attending(), torch.no_grad():
        one, two = (scored(model, rows, Openings(rows, CPU)) for rows in (TREE, other))
    changed = sum(len(row) - 1 for row in TREE[:3])
    behind = changed + len(TREE[3]) - 1
    assert torch.equal(one[:changed], two[:changed])
    assert torch.equal(one[behind:], two[behind:])
    assert not torch.equal(one, two)


def test_other_attention_and_sliding_windows_are_trained_on_padded_rows() -> None:
    assert not able(engine_world.model(attention="eager"))
    model = engine_world.model()
    model.config = Qwen2Config(
        use_sliding_window=True, sliding_window=8, max_window_layers=0, num_hidden_layers=2
    )
    assert not able(model)


def test_what_attention_does_besides_is_not_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout is seen in the configuration, or in the pass: it would not be that of padded rows."""
    model = engine_world.model().train()
    model.config.attention_dropout = 0.1
    assert not able(model)
    model.config.attention_dropout = 0.0
    assert able(model)
    attention = model.model.layers[0].self_attn
    with scoring(model), attending(), torch.no_grad():
        scored(model, TREE, Openings(TREE, CPU))
        monkeypatch.setattr(attention, "attention_dropout", 0.1)
        with pytest.raises(WorkupError, match="Qwen3Attention drops attention"):
            scored(model, TREE, Openings(TREE, CPU))
    monkeypatch.setattr(attention, "is_causal", False)
    assert not able(model)


def test_the_bench_fails_where_log_probabilities_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    monkeypatch.setattr(bench, "SMOLLM2", {**bench.SMOLLM2, **sizes})
    monkeypatch.setattr(bench, "SHAPES", ((6, 5, 1.0),))
    monkeypatch.setattr(bench, "GROUP", 3)
    assert len(bench.measure()) == 1
    usual = Openings.attend
    monkeypatch.setattr(Openings, "attend", lambda *how: usual(*how) + 1)
    with pytest.raises(AssertionError, match="not close"):
        bench.measure()
    monkeypatch.setattr(bench, "attending", nullcontext)
    with pytest.raises(WorkupError, match="0 of 2 layers"):
        bench.measure()


def test_layers_that_hand_nothing_on_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the pass by their signature, after it by what attended."""
    model = engine_world.model()
    assert able(model)
    layer = type(model.model.layers[0].self_attn)
    whole = layer.forward
    with scoring(model), attending(), torch.no_grad():
        alike = Openings(TREE, CPU)
        scored(model, TREE, alike)
        alike.check(model, 0)
        with pytest.raises(WorkupError, match="0 of 2 layers of Qwen3ForCausalLM"):
            alike.check(model, alike.calls)

    def closed(self: Any, hidden_states: Any, position_embeddings: Any) -> Any:
        return whole(self, hidden_states, position_embeddings, None)

    monkeypatch.setattr(layer, "forward", closed)
    assert not able(model)


def samples(model: Any) -> list[Sample]:
    """Episodes of TREE with this model's log-probabilities and random advantages."""
    rng = np.random.default_rng(5)
    found = []
    for row in TREE:
        mask = tuple(bool(k > 1) for k in range(len(row)))
        advantages = tuple(float(rng.normal()) if own else 0.0 for own in mask)
        with torch.no_grad():
            known = (0.0, *engine_world.logprobs(model, row).tolist())
        old = tuple(value * own for value, own in zip(known, mask, strict=True))
        found.append(Sample(tuple(row), mask, old, advantages, (0,) * len(row)))
    return found


def test_rows_that_begin_alike_stand_in_one_micro_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    model = engine_world.model()
    every = samples(model)
    plain = policy_parts(every, 3, model, CPU)
    assert all(part.openings is None for part in plain), "so little is not worth it"
    monkeypatch.setattr(openings, "worth", lambda *_: True)
    alike = policy_parts(every, 3, model, CPU)
    assert [part.sequences for part in alike] == [part.sequences for part in plain]
    assert sum(part.tokens for part in alike) == sum(part.tokens for part in plain)
    sizes = [part.openings.ids.shape[1] for part in alike if part.openings]
    assert sum(sizes) < sum(map(len, TREE))


@pytest.mark.long
@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_a_step_leaves_the_same_weights(
    beta: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole trainer, with the KL term and without, two updates on each batch."""

    async def collect(policy: Any, step: int) -> list[Sample]:
        return samples(policy.model)

    ended = []
    for shared in (False, True):
        monkeypatch.setattr(openings, "worth", lambda *_, shared=shared: shared)
        model = engine_world.model(scale=1.0).double()  # Adam turns rounding into steps
        settings = EngineSettings(
            lr=1e-2, micro_batch=3, num_iterations=2, beta=beta, importance_cap=2.0, entropy=0.01
        )
        engine = TrlEngine(engine_world.Toy(model), settings, tmp_path / str(shared))
        engine.grpo(collect, 2)
        ended.append({name: w.detach().clone() for name, w in model.named_parameters()})
    for name, weight in ended[0].items():
        assert torch.allclose(weight, ended[1][name], rtol=1e-4, atol=1e-5), name
