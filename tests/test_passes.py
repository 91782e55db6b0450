"""Captured forward passes against those that are started kernel by kernel.

Where there is no GPU, a graph is stood in for by a function that computes the same tensors anew:
what is padded, aimed and read is the same. With a GPU the graphs are CUDA's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_local_policy import lora, policy, qwen

from workup.core.ports import Sampling
from workup.models import passes
from workup.models.local import LocalPolicy
from workup.models.passes import CapturedPasses, NewTokens, Passes
from workup.models.slots import Slots

GPU = torch.cuda.is_available()


def recomputed(
    compute: Callable[[], torch.Tensor], pool: Any
) -> tuple[torch.Tensor, Callable[[], None]]:
    """Stands in for `passes.recorded`."""
    found = compute().clone()

    def again() -> None:
        found.copy_(compute())

    return found, again


@pytest.fixture(autouse=True)
def _graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "ASKED", 1)
    if not GPU:
        monkeypatch.setattr(passes, "recorded", recomputed)


def played(made: LocalPolicy, episodes: int, turns: int) -> list[list[int]]:
    """Transcripts of episodes whose replies and completions have different lengths."""

    async def play(key: int) -> list[int]:
        rng = np.random.default_rng(key)
        transcript: list[int] = []
        for turn in range(turns):
            transcript += rng.integers(3, 40, 1 + key + 20 * (turn == 0)).tolist()
            said = await made.sample(transcript, Sampling(max_tokens=3 + key % 4, key=key))
            transcript += said.tokens
        return transcript

    async def together() -> list[list[int]]:
        return list(await asyncio.gather(*map(play, range(episodes))))

    return asyncio.run(together())


@pytest.mark.long
@pytest.mark.parametrize("make", [qwen, lora])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_captured_passes_draw_the_same_tokens(make: Callable[[], Any], attention: str) -> None:
    model = make()
    model.config._attn_implementation = attention
    # Eager attention's mask has no value for double precision.
    model = model.to("cuda" if GPU else "cpu", torch.double if attention == "sdpa" else None)
    plain, captured = policy(model), policy(model)
    plain.passes = Passes(model, plain.slots)
    captured.passes = graphs = CapturedPasses(model, captured.slots)
    for _ in range(2):  # the second time the graphs are there
        assert played(captured, 9, 4) == played(plain, 9, 4)
        assert graphs.graphs
        before = {shape: id(graph) for shape, graph in graphs.graphs.items()}
        plain.refresh()
        captured.refresh()
        assert {shape: id(graph) for shape, graph in graphs.graphs.items()} == before


def test_new_weights_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changed in place a graph reads them; other tensors are captured again."""
    model = qwen().double().to("cuda" if GPU else "cpu")
    plain, captured = policy(model), policy(model)
    plain.passes = Passes(model, plain.slots)
    captured.passes = graphs = CapturedPasses(model, captured.slots)
    first = played(captured, 4, 2)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(-1.5)
    captured.refresh()
    assert graphs.graphs
    assert played(captured, 4, 2) == played(plain, 4, 2) != first
    for weight in model.parameters():
        weight.data = weight.data * 0.5
    captured.refresh()
    assert not graphs.graphs
    plain.refresh()
    assert played(captured, 4, 2) == played(plain, 4, 2)


def test_a_larger_cache_is_captured_again() -> None:
    model = qwen().to("cuda" if GPU else "cpu")
    made = policy(model)
    made.passes = graphs = CapturedPasses(model, made.slots)
    played(made, 2, 2)
    before = set(map(id, graphs.graphs.values()))
    kept = list(graphs.graphs.values())  # so that no id is used twice
    played(made, 40, 2)
    assert kept
    assert not before & set(map(id, graphs.graphs.values()))


def test_a_large_pass_is_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "LARGEST", 16)
    model = qwen().to("cuda" if GPU else "cpu")
    made = policy(model)
    made.passes = graphs = CapturedPasses(model, made.slots)
    played(made, 3, 2)
    assert all(rows * width <= 16 for rows, width, _ in graphs.graphs)


def test_what_cannot_be_captured_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(compute: Any, pool: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(passes, "recorded", refused)
    model = qwen().to("cuda" if GPU else "cpu")
    plain, captured = policy(model), policy(model)
    plain.passes = Passes(model, plain.slots)
    captured.passes = CapturedPasses(model, captured.slots)
    assert played(captured, 3, 2) == played(plain, 3, 2)
    (told,) = [record.getMessage() for record in caplog.records]
    assert "operation not permitted when stream is capturing)" in told
    assert "several times slower" in told


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.data())
def test_padding_holds_nothing_real(counts: list[int], data: st.DataObject) -> None:
    held = [data.draw(st.integers(0, 20)) for _ in counts]
    pending = [list(range(7, 7 + count)) for count in counts]
    block = NewTokens.of(pending, held, list(range(len(counts))))
    rows, width = (passes._power(size) for size in block.ids.shape)
    whole = block.padded(rows, width)
    assert whole.ids.shape == whole.positions.shape == whole.real.shape == (rows, width)
    assert whole.reach == block.reach == max(map(sum, zip(held, counts, strict=True)))
    for row, (tokens, before) in enumerate(zip(pending, held, strict=True)):
        assert whole.ids[row][whole.real[row]].tolist() == tokens
        assert whole.positions[row][whole.real[row]].tolist() == [
            before + place for place in range(len(tokens))
        ]
        assert whole.real[row, -1]
    assert whole.real.sum() == sum(counts)
    slots = Slots(1, torch.device("cpu"))
    slots.reserve(rows, whole.reach)
    places = Passes(qwen(), slots)._places(whole).reshape(rows, width)
    assert (places[~whole.real] % slots.capacity == slots.capacity - 1).all()
    assert len(set(places[whole.real].tolist())) == sum(counts)


@given(st.integers(1, 5_000))
def test_shapes_are_few_and_large_enough(count: int) -> None:
    found = passes._ceiling(count)
    assert count <= found <= max(1.5 * count, count + 1)
    assert passes._ceiling(found) == found
    assert bin(found).count("1") <= 2
