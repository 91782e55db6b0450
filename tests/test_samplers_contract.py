"""What every sampler does alike: the same episodes through each, against plain forward passes.

A sampler whose library is missing is skipped: `make test-vllm` runs them all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import engine_world as world
import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from test_local_policy import END, SHAPE, encounter, letters, plain
from test_ports import members
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from workup.core.case import Case, Truth
from workup.core.episode import Action, Completion, Ending, Episode, Observation, Sample, Turn
from workup.core.errors import UserError
from workup.core.ports import LanguageModel, LivePolicy, Sampling
from workup.engines.settings import EngineSettings, LoraSettings
from workup.engines.trl.engine import TrlEngine
from workup.models import samplers
from workup.models.local import LocalPolicy
from workup.models.samplers import How, vllm
from workup.rl.samples import sample

torch.set_num_threads(1)
WIDE = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
LIMIT = 256  # tokens of a transcript
MISSING = {"vllm": "vllm"}  # what a sampler needs beyond this project's dependencies
LIVE = [name for name in samplers.names() if name != "server"]  # it has tests of its own
HOW = How(concurrency=64, memory=0.02)


def llama() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=80, **SHAPE | WIDE, max_position_embeddings=LIMIT)
    return LlamaForCausalLM(config).eval()


def qwen2() -> Any:
    """Its embeddings are tied."""
    torch.manual_seed(1)
    shape = {**SHAPE, **WIDE, "tie_word_embeddings": True, "max_position_embeddings": LIMIT}
    del shape["head_dim"]
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=80, **shape)).eval()


MODELS: dict[str, Callable[[], Any]] = {"llama": llama, "qwen2": qwen2}


def sampler(name: str) -> Any:
    if name in MISSING:
        pytest.importorskip(MISSING[name])
    return samplers.load(name)


@pytest.fixture(scope="module", params=[(m, s) for m in MODELS for s in LIVE])
def policy(request: pytest.FixtureRequest) -> Iterator[Any]:
    model, name = request.param
    made = sampler(name).follow(MODELS[model](), letters(), HOW)
    assert not [member for member in members(LivePolicy) if not hasattr(made, member)]
    yield made
    close(made)


def close(made: Any) -> None:
    """Ends the processes of a sampler that has any."""
    getattr(made, "close", lambda: None)()


def flying(made: Any) -> int:
    """How many requests the sampler is still at work on."""
    if isinstance(made, LocalPolicy):
        return len(made.active)
    if isinstance(made, vllm.VllmPolicy):
        return len(made.engine.llm.output_processor.request_states)
    return 0  # all that is under way is the coroutine itself, which has ended


def together(*tasks: Coroutine[Any, Any, Any]) -> list[Any]:
    async def gather() -> list[Any]:
        return list(await asyncio.gather(*tasks))

    return asyncio.run(gather())


def one(made: Any, prompt: tuple[int, ...], **how: Any) -> Completion:
    return together(made.sample(prompt, Sampling(**how)))[0]


def prompts(count: int, seed: int = 0, longest: int = 40) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(seed)
    return [tuple(rng.integers(3, 75, rng.integers(2, longest)).tolist()) for _ in range(count)]


def test_greedy_is_the_local_policy_token_for_token(policy: Any) -> None:
    local = LocalPolicy(policy.model, letters())
    ours = together(*(encounter(policy, key, temperature=0) for key in range(8)))
    for mine, theirs in zip(
        ours, together(*(encounter(local, key, temperature=0) for key in range(8))), strict=True
    ):
        assert [turn[:2] for turn in mine] == [turn[:2] for turn in theirs]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probabilities_are_those_of_the_sampled_distribution(
    policy: Any, temperature: float
) -> None:
    for told in together(*(encounter(policy, k, temperature=temperature) for k in range(12))):
        said = [logprob for _, _, row in told for logprob in row]
        np.testing.assert_allclose(said, plain(policy.model, told, temperature), atol=1e-4)


def test_a_draw_does_not_change_with_its_company_or_the_cache(policy: Any) -> None:
    ours = together(*(encounter(policy, key) for key in range(10)))
    policy.refresh()
    alone = [together(encounter(policy, key))[0] for key in range(10)]
    assert [[turn[:2] for turn in told] for told in ours] == [
        [turn[:2] for turn in told] for told in alone
    ]


def test_every_key_and_every_position_has_noise_of_its_own(policy: Any) -> None:
    """Equal noise would give mostly equal tokens in distributions as flat as these."""
    hot = [Sampling(max_tokens=1, temperature=2.0, key=key) for key in range(60)]
    by_position = [
        [said.tokens for said in together(*(policy.sample(prompt, how) for how in hot))]
        for prompt in prompts(6, longest=60)
    ]
    equal = [
        a == b
        for k, row in enumerate(by_position[1:], 1)
        for other in by_position[:k]
        for a, b in zip(row, other, strict=True)
    ]
    assert np.mean(equal) < 0.15
    assert len({said for row in by_position for said in row}) > 40


def test_a_stop_string_ends_the_text_and_stays(policy: Any) -> None:
    found = 0
    for key, prompt in enumerate(prompts(12)):
        free = one(policy, prompt, max_tokens=24, key=key)
        if len(free.text) < 11:
            continue
        stop = free.text[9:11]
        held = one(policy, prompt, max_tokens=24, key=key, stop=("\0never", stop))
        ends = next(
            k
            for k in range(1, len(free.tokens) + 1)
            if stop in policy.tokenizer.decode(list(free.tokens[:k])) or free.tokens[k - 1] == END
        )
        assert held.tokens == free.tokens[:ends]
        assert not held.truncated
        if END not in held.tokens:
            assert stop in held.text
            found += 1
    assert found >= 6


def test_an_end_of_turn_is_a_token_and_no_text(policy: Any) -> None:
    draws = together(
        *(
            policy.sample((5, 6, 7), Sampling(max_tokens=100, temperature=2.0, key=k))
            for k in range(40)
        )
    )
    ended = [said for said in draws if said.tokens[-1] == END]
    assert len(ended) >= 8
    assert all(END not in said.tokens[:-1] for said in draws)
    assert not any(said.truncated or "<|im_end|>" in said.text for said in ended)
    assert all(said.truncated and len(said.tokens) == 100 for said in draws if said not in ended)


def test_what_does_not_fit_is_cut_off(policy: Any) -> None:
    prompt = (10,) * (LIMIT - 5)
    said = one(policy, prompt, max_tokens=64, temperature=0)
    assert said.truncated
    assert len(said.tokens) == 5
    assert one(policy, (10,) * LIMIT, max_tokens=4) == Completion("", truncated=True)


def test_who_is_cancelled_leaves_nothing_behind(policy: Any) -> None:
    usual = one(policy, (8, 9), max_tokens=20, key=3)

    async def give_up() -> Completion:
        tasks = [
            asyncio.create_task(policy.sample(prompt, Sampling(max_tokens=200, key=k)))
            for k, prompt in enumerate(prompts(6, seed=2))
        ]
        said: Completion = await policy.sample((8, 9), Sampling(max_tokens=20, key=3))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # The last one comes after what the cancelled ones left.
        await policy.sample((8, 9), Sampling(max_tokens=1, key=3))
        return said

    assert asyncio.run(give_up()).tokens == usual.tokens
    assert flying(policy) == 0


async def played(policy: Any, seed: tuple[int, int]) -> Sample:
    """An episode of three turns with a random environment."""
    told = await encounter(policy, hash(seed) % 2**40, turns=3, longest=7)
    turns = [
        Turn(
            tuple(prompt),
            Completion("", tuple(tokens), tuple(logprobs)),
            Action("ask"),
            Observation(),
        )
        for prompt, tokens, logprobs in told
    ]
    episode = Episode(Case("c", "", Truth("d")), (), tuple(turns), Ending.OUT_OF_TURNS)
    return sample(episode, np.random.default_rng(seed).normal(size=3).tolist())


@pytest.mark.long
@pytest.mark.parametrize("lora", [None, LoraSettings(r=2)], ids=["whole", "lora"])
@pytest.mark.parametrize("name", LIVE)
def test_each_update_reaches_the_sampler(
    name: str, lora: LoraSettings | None, tmp_path: Path
) -> None:
    gaps = []

    async def collect(policy: Any, step: int) -> list[Sample]:
        made = await asyncio.gather(*(played(policy, (step, k)) for k in range(6)))
        for x in made:
            with torch.no_grad():
                ids = torch.tensor([x.tokens])
                now = policy.model(input_ids=ids).logits[0].log_softmax(-1).numpy()
            gaps.append(
                max(
                    abs(now[i - 1, x.tokens[i]] - x.logprobs[i])
                    for i in range(len(x.tokens))
                    if x.mask[i]
                )
            )
        return list(made)

    policy, metrics = sampler(name).follow(qwen2(), letters(), HOW), dict[int, dict[str, float]]()
    try:
        settings = EngineSettings(lr=0.02, lora=lora)
        engine = TrlEngine(policy, settings, tmp_path, on_step=metrics.__setitem__)
        engine.grpo(collect, 4)
    finally:
        close(policy)
    assert len(gaps) == 24
    assert max(gaps) < 1e-4
    assert len(metrics) == 4
    for measured in metrics.values():
        assert 0 <= measured["gap_mean"] <= measured["gap_p95"] < 1e-4
        assert measured["gap_kl"] < 1e-8


@pytest.mark.parametrize("name", LIVE)
def test_weights_of_a_folder_are_sampled_as_they_are(name: str, tmp_path: Path) -> None:
    model, tokenizer = llama(), letters()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    opened = sampler(name).open(str(tmp_path), HOW)
    local = LocalPolicy(model, tokenizer)
    try:
        for prompt in prompts(4):
            how: dict[str, Any] = {"max_tokens": 12, "temperature": 0}
            assert one(opened.policy, prompt, **how).tokens == one(local, prompt, **how).tokens
        assert opened.parameters == sum(p.numel() for p in model.parameters())
        assert not [member for member in members(LanguageModel) if not hasattr(opened, member)]
        tokenizer.chat_template = None
        tokenizer.save_pretrained(tmp_path / "plain")
        model.save_pretrained(tmp_path / "plain")
        plain = sampler(name).open(str(tmp_path / "plain"), HOW)
        assert plain.chat("plain") is None, "its template is ours: it is no chat model"
        assert opened.chat("chat").name == "chat"
    finally:
        close(opened.policy)


@pytest.mark.parametrize("name", LIVE)
def test_weights_that_are_nowhere_are_one_line(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no weights") as caught:
        sampler(name).open(str(tmp_path / "nothing"), HOW)
    assert "\n" not in str(caught.value)


def test_a_library_that_is_missing_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "vllm", None)
    for act in (
        lambda: samplers.load("vllm").follow(world.model(), world.tokenizer(), HOW),
        lambda: samplers.load("vllm").open("smollm2", HOW),
    ):
        with pytest.raises(UserError, match=r"^vllm is not installed; type: make \.venv/\.vllm"):
            act()


def test_new_weights_wait_for_a_preparation_whose_caller_gave_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("vllm")
    made = samplers.load("vllm").follow(qwen2(), letters(), HOW)
    running, most = 0, 0

    async def prepare() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.05)
        running -= 1

    async def draw(*_: Any) -> tuple[list[int], list[float]]:
        return [5], [0.0]

    monkeypatch.setattr(made, "_prepare", prepare)
    monkeypatch.setattr(made.engine, "draw", draw)

    async def give_up() -> None:
        caller = asyncio.create_task(made.sample((4,), Sampling(max_tokens=1)))
        await asyncio.sleep(0.01)
        caller.cancel()
        made.refresh()
        await made.sample((4,), Sampling(max_tokens=1))

    try:
        asyncio.run(give_up())
    finally:
        close(made)
    assert (running, most) == (0, 1)


def test_memory_is_the_container_s_where_it_has_less(tmp_path: Path) -> None:
    group = tmp_path / "memory.max"
    machine = vllm.memory(group)
    group.write_text("max\n")
    assert vllm.memory(group) == machine
    group.write_text(f"{2**20}\n")
    assert vllm.memory(group) == 2**20


def test_the_transfer_within_a_gpu_has_the_parts_that_vllm_asks_for() -> None:
    """There is no GPU to run it on: only the shapes are held against vLLM's own types."""
    pytest.importorskip("vllm")
    from vllm.distributed.weight_transfer.base import VLLMWeightSyncClient, WeightSource

    from workup.models.transfer import Receiver, agreed, source

    model = qwen2()
    adapted = get_peft_model(model, LoraConfig(r=2, init_lora_weights=False)).merge_and_unload
    made = source(model)
    assert isinstance(made, WeightSource)
    assert isinstance(Receiver(None, asyncio.new_event_loop()), VLLMWeightSyncClient)
    assert agreed().is_sender
    sent = dict(made)
    assert [(m.name, m.dtype, tuple(m.shape)) for m in made.metadata()] == [
        (name, tensor.dtype, tuple(tensor.shape)) for name, tensor in made
    ]
    whole = adapted().state_dict()
    assert sent.keys() == whole.keys()
    for name, weight in whole.items():
        torch.testing.assert_close(sent[name], weight)
