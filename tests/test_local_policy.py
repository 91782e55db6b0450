"""The local policy against plain forward passes, `generate()` and itself.

It plays alone or in company, cached or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from scipy import stats
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GPTNeoConfig,
    GPTNeoForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.modeling_outputs import CausalLMOutput
from waiting import HANG

from workup.core.case import Case, Truth
from workup.core.episode import Completion, Ending, Message
from workup.core.errors import UserError
from workup.core.ports import Sampling
from workup.environments.consultation import Consultation
from workup.models.local import LocalPolicy, draw, uniforms
from workup.models.passes import Passes
from workup.models.slots import BLOCK
from workup.models.weights import load
from workup.rl.rollout import Play, TokenDoctor, ToPlay, play_all

torch.set_num_threads(1)

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PAD, END = 0, 2


def letters(
    text: str = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .,:?!<>/|_\n-·",
) -> PreTrainedTokenizerFast:
    """One token per character, so that every tag and stop string spans several."""
    vocabulary = {
        name: i
        for i, name in enumerate(dict.fromkeys(["<|pad|>", "<|im_start|>", "<|im_end|>", *text]))
    }
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token="·"))
    raw.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    raw.decoder = decoders.Fuse()
    raw.add_special_tokens(
        [AddedToken(name, normalized=False) for name in ("<|pad|>", "<|im_start|>", "<|im_end|>")]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="<|pad|>",
        eos_token="<|im_end|>",
        unk_token="·",
        chat_template=CHATML,
    )


SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "head_dim": 8,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": PAD,
}


def qwen(vocabulary: int = 40, attention: str = "sdpa", context: int = 512, **more: Any) -> Any:
    torch.manual_seed(0)
    settings = SHAPE | {"num_key_value_heads": 2, "max_position_embeddings": context} | more
    return Qwen3ForCausalLM(
        Qwen3Config(vocab_size=vocabulary, attn_implementation=attention, **settings)
    ).eval()


def llama(attention: str = "sdpa") -> Any:
    torch.manual_seed(0)
    settings = SHAPE | {"num_key_value_heads": 4, "max_position_embeddings": 512}
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=40, attn_implementation=attention, **settings)
    ).eval()


def lora() -> Any:
    adapted = get_peft_model(
        qwen(),
        LoraConfig(
            r=4, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False
        ),
    )
    return adapted.eval()


def policy(model: Any = None, *, max_batch: int = 256) -> LocalPolicy:
    """Never ends of its own accord, so that lengths are known."""
    made = LocalPolicy(qwen() if model is None else model, letters(), max_batch=max_batch)
    made.eos = frozenset()
    return made


def together(*tasks: Coroutine[Any, Any, Any]) -> list[Any]:
    async def gather() -> list[Any]:
        return list(await asyncio.gather(*tasks))

    return asyncio.run(gather())


def one(made: LocalPolicy, prompt: Sequence[int], **how: Any) -> Completion:
    return together(made.sample(prompt, Sampling(**how)))[0]


async def encounter(
    made: LocalPolicy, key: int, turns: int = 4, temperature: float = 1.0, longest: int = 30
) -> list[list[Any]]:
    """An episode with prompts, answers and completions of different lengths.

    It is [prompt, tokens, log-probabilities] per turn.
    """
    rng = np.random.default_rng([7, key])
    transcript: list[int] = []
    told = []
    for _ in range(turns):
        prompt = rng.integers(3, 40, rng.integers(1, longest)).tolist()
        transcript += prompt
        sampling = Sampling(max_tokens=int(rng.integers(1, 9)), temperature=temperature, key=key)
        said = await made.sample(transcript, sampling)
        told.append([prompt, list(said.tokens), list(said.logprobs)])
        transcript += said.tokens
    return told


def plain(model: Any, told: Sequence[Sequence[Any]], temperature: float) -> list[float]:
    """Log-probabilities of an encounter's completions by one forward pass.

    The pass is over the whole transcript.
    """
    ids = torch.tensor([[i for prompt, tokens, _ in told for i in (*prompt, *tokens)]])
    with torch.no_grad():
        logprobs = (model(input_ids=ids).logits[0].double() / temperature).log_softmax(-1)
    found, at = [], 0
    for prompt, tokens, _ in told:
        at += len(prompt)
        found += [logprobs[at + k - 1, token].item() for k, token in enumerate(tokens)]
        at += len(tokens)
    return found


MODELS: dict[str, Callable[[], Any]] = {
    "qwen": qwen,
    "qwen eager": lambda: qwen(attention="eager"),
    "qwen bias, no grouping": lambda: qwen(
        attention_bias=True, num_key_value_heads=4, tie_word_embeddings=True
    ),
    "llama": llama,
    "llama eager": lambda: llama("eager"),
    "lora": lora,
}


# --- log-probabilities and draws ---


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_those_of_a_plain_forward_pass(name: str, temperature: float) -> None:
    made = policy(MODELS[name]())
    for told in together(*(encounter(made, key, temperature=temperature) for key in range(12))):
        ours = [x for _, _, logprobs in told for x in logprobs]
        np.testing.assert_allclose(ours, plain(made.model, told, temperature), atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_greedy_is_generate(name: str) -> None:
    made = policy(MODELS[name]())
    prompts = [np.random.default_rng(k).integers(3, 40, 2 + 5 * k).tolist() for k in range(6)]
    said = together(
        *(made.sample(prompt, Sampling(max_tokens=12, temperature=0.0)) for prompt in prompts)
    )
    for prompt, completion in zip(prompts, said, strict=True):
        theirs = made.model.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)[
            0, len(prompt) :
        ]
        assert list(completion.tokens) == theirs.tolist()


class Forcing:
    """A constraint that allows everything and, behind the second drawn token, forces some."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens, self.drawn = tokens, 0

    def begin(self) -> Sequence[int]:
        return ()

    def allowed(self) -> torch.Tensor:
        return torch.ones(40, dtype=torch.bool)

    def take(self, token: int) -> Sequence[int]:
        self.drawn += 1
        return self.tokens if self.drawn == 2 else ()

    @property
    def done(self) -> bool:
        return False


@pytest.mark.parametrize("join", [1, 16])
@pytest.mark.parametrize("count", [1, 3, 16, 20])
def test_forced_tokens_are_computed_once_and_in_their_places(join: int, count: int) -> None:
    """Whether a pass takes them along with others or they have one of their own."""
    made = policy()
    made.passes.join = join  # type: ignore[misc]
    forced, prompt = [3 + k % 30 for k in range(count)], list(range(3, 23))
    (said,) = together(
        made.sample(prompt, Sampling(max_tokens=count + 8, temperature=0.0), Forcing(forced))
    )
    assert list(said.tokens[2 : 2 + count]) == forced
    logits = made.model(input_ids=torch.tensor([[*prompt, *said.tokens]])).logits[0]
    for place in (0, 1, *range(2 + count, count + 8)):
        at = logits[len(prompt) + place - 1].log_softmax(-1)
        assert said.tokens[place] == int(at.argmax())
        assert said.logprobs[place] == pytest.approx(float(at.max()), abs=1e-5)


def test_greedy_log_probabilities_are_of_the_untempered_model() -> None:
    made = policy()
    told = together(encounter(made, 0, temperature=0.0))[0]
    np.testing.assert_allclose(
        [x for turn in told for x in turn[2]], plain(made.model, told, 1.0), atol=1e-5
    )


def test_draws_depend_on_key_and_prompt_alone() -> None:
    company = policy()
    crowd = together(*(encounter(company, key) for key in range(20)))
    cramped = policy(max_batch=3)
    assert together(*(encounter(cramped, key) for key in range(20))) == [
        [[prompt, tokens, pytest.approx(logprobs, abs=1e-5)] for prompt, tokens, logprobs in told]
        for told in crowd
    ]
    for key in (0, 7, 19):
        alone = together(encounter(policy(), key))[0]
        forgetful = []
        transcript: list[int] = []
        for prompt, tokens, _ in crowd[key]:
            transcript += prompt
            forgetful.append(
                list(one(policy(), transcript, max_tokens=len(tokens), key=key).tokens)
            )
            transcript += tokens
        assert [turn[1] for turn in alone] == [turn[1] for turn in crowd[key]] == forgetful


def test_other_keys_draw_otherwise() -> None:
    made = policy()
    said = together(*(made.sample([5, 6, 7], Sampling(max_tokens=8, key=key)) for key in range(50)))
    assert len({completion.tokens for completion in said}) == 50


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_frequencies_follow_the_softmax(temperature: float) -> None:
    logits = torch.randn(12, generator=torch.Generator().manual_seed(3)) * 1.5
    n = 20_000
    samplings = [Sampling(temperature=temperature, key=key) for key in range(n)]
    tokens, logprobs = draw(logits.expand(n, -1), samplings, [17] * n)
    expected = (logits.double() / temperature).softmax(-1)
    counts = np.bincount(tokens, minlength=12)
    assert stats.chisquare(counts, expected.numpy() / expected.sum().item() * n).pvalue > 1e-3
    np.testing.assert_allclose(np.exp(logprobs), expected[tokens], atol=1e-6)


def test_what_has_no_probability_is_never_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    never = float("-inf")
    logits = torch.tensor([[never, 0.0, never, 1.0, never]])
    for u in (2**-24, 0.5, 1.0):  # the least and the largest that `uniforms` can return
        monkeypatch.setattr(
            "workup.models.local.uniforms", lambda *_, u=u: np.array([u], dtype=np.float32)
        )
        tokens, logprobs = draw(logits, [Sampling()], [0])
        assert tokens[0] in (1, 3)
        assert np.isfinite(logprobs[0])


def test_uniforms_are_uniform_and_uncorrelated() -> None:
    keys, positions = np.meshgrid(np.arange(300), np.arange(300), indexing="ij")
    u = uniforms(keys.ravel().tolist(), positions.ravel().tolist()).reshape(300, 300).astype(float)
    # Keys whose 24 bits are all zeros and all ones: neither end of the interval may draw an
    # impossible token.
    np.testing.assert_array_equal(uniforms([5618432, 3747935], [0, 0]), np.float32([2**-24, 1]))
    assert stats.kstest(u.ravel(), "uniform").pvalue > 1e-3
    for a, b in (
        (u[1:], u[:-1]),
        (u[:, 1:], u[:, :-1]),
        (u[1:, 1:], u[:-1, :-1]),
        (u[1:, :-1], u[:-1, 1:]),
    ):
        # Neighbouring keys, positions and both: |r| of independent numbers stays below 4 / √n.
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 4 / a.size**0.5


def test_mixed_temperatures_share_a_batch() -> None:
    made = policy()
    prompt = [4, 5, 6]
    cold, warm = together(
        made.sample(prompt, Sampling(max_tokens=6, temperature=0.0)),
        made.sample(prompt, Sampling(max_tokens=6, key=3)),
    )
    assert cold.tokens == one(policy(), prompt, max_tokens=6, temperature=0.0).tokens
    assert warm.tokens == one(policy(), prompt, max_tokens=6, key=3).tokens


# --- batching and the cache ---


async def after(
    turns: int,
    made: LocalPolicy,
    prompt: Sequence[int],
    total: int,
    wait: asyncio.Event,
    ring: asyncio.Event,
) -> None:
    """Plays `total` turns of three tokens each after `wait`; sets the event after `turns` turns."""
    await wait.wait()
    transcript = list(prompt)
    for k in range(total):
        if k == turns:
            ring.set()
        transcript += [*(await made.sample(transcript, Sampling(max_tokens=3))).tokens, 5]


def test_episodes_at_different_turns_share_forward_passes() -> None:
    made = policy()

    async def both() -> None:
        now, later, never = asyncio.Event(), asyncio.Event(), asyncio.Event()
        now.set()
        await asyncio.gather(
            after(2, made, [4, 5], 6, now, later), after(9, made, [6, 7, 8], 4, later, never)
        )

    asyncio.run(both())
    assert made.generated == 3 * (6 + 4)
    assert made.forwards == 3 * 6  # the second episode's four turns cost nothing on top


def test_a_transcript_is_computed_once() -> None:
    made = policy()
    widths: list[int] = []
    forward = made.model.forward
    made.model.forward = lambda **inputs: (
        widths.append(inputs["input_ids"].numel()) or forward(**inputs)
    )
    told = together(encounter(made, 1, turns=6))[0]
    # The last token of all is never fed back.
    assert sum(widths) == sum(len(prompt) + len(tokens) for prompt, tokens, _ in told) - 1


def test_equal_transcripts_each_keep_their_cache() -> None:
    made = policy()
    widths: list[int] = []
    forward = made.model.forward
    made.model.forward = lambda **inputs: (
        widths.append(inputs["input_ids"].shape[1]) or forward(**inputs)
    )

    async def twin() -> None:
        first = await made.sample([4, 5, 6, 7, 8], Sampling(max_tokens=2))
        await made.sample([4, 5, 6, 7, 8, *first.tokens, 9], Sampling(max_tokens=2))

    together(*(twin() for _ in range(4)))
    assert widths == [5, 1, 2, 1]


def test_transcripts_that_end_alike_are_not_confused() -> None:
    made = policy()
    endings = [7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
    for first in (4, 5, 6):
        one(made, [first, *endings], max_tokens=1, temperature=0.0)
    for first in (20, 6, 5, 4):
        transcript = [first, *endings, 17, 18]
        ours = one(made, transcript, max_tokens=3)
        told = [[transcript, list(ours.tokens), []]]
        np.testing.assert_allclose(ours.logprobs, plain(made.model, told, 1.0), atol=1e-5)


@pytest.mark.parametrize("length", [BLOCK - 1, BLOCK, BLOCK + 1])
def test_padding_never_lands_on_a_token(length: int) -> None:
    made = policy()
    room: list[int] = []
    forward = made.model.forward
    made.model.forward = lambda **inputs: (
        room.append(made.slots.capacity - made.slots.reach) or forward(**inputs)
    )

    async def grown(key: int, width: int) -> None:
        """A transcript of `length` tokens.

        Its last `width` tokens come in one forward pass with the others'.
        """
        opening = [4 + key] * (length - width - 1)
        first = await made.sample(opening, Sampling(max_tokens=1, key=key))
        transcript = [*opening, *first.tokens, *[9] * width]
        ours = await made.sample(transcript, Sampling(max_tokens=4, key=key))
        told = [[transcript, list(ours.tokens), []]]
        np.testing.assert_allclose(ours.logprobs, plain(made.model, told, 1.0), atol=1e-5)

    together(*(grown(key, 1 + 3 * key) for key in range(3)))
    assert min(room) >= 1


def test_an_opening_that_a_group_shares_is_computed_once() -> None:
    made = policy()
    computed: list[int] = []
    forward = made.model.forward
    made.model.forward = lambda **inputs: (
        computed.append(inputs["input_ids"].numel()) or forward(**inputs)
    )
    opening = [5 + k % 30 for k in range(3 * BLOCK + 9)]
    prompts = [[*opening, 4 + k] for k in range(6)]
    said = together(
        *(made.sample(prompt, Sampling(max_tokens=1, key=k)) for k, prompt in enumerate(prompts))
    )
    assert computed == [3 * BLOCK + 10, 5 * 10]
    for prompt, completion in zip(prompts, said, strict=True):
        told = [[prompt, list(completion.tokens), []]]
        np.testing.assert_allclose(completion.logprobs, plain(made.model, told, 1.0), atol=1e-5)


@pytest.mark.parametrize("max_batch", [3, 256])
def test_copied_openings_are_as_good_as_computed_ones(max_batch: int) -> None:
    made = policy(max_batch=max_batch)
    rng = np.random.default_rng(0)
    trunk = rng.integers(3, 40, 5 * BLOCK).tolist()

    async def branch(key: int) -> list[list[Any]]:
        """An encounter that begins with a part of the trunk, in its own time."""
        opening = trunk[: BLOCK // 2 + key * 23]
        first = await made.sample(opening, Sampling(max_tokens=1 + key % 3, key=key))
        further = rng.integers(3, 40, 20 + 7 * key).tolist()
        prompt = [*opening, *first.tokens, *further]
        said = await made.sample(prompt, Sampling(max_tokens=3, key=key))
        return [
            [opening, list(first.tokens), list(first.logprobs)],
            [further, list(said.tokens), list(said.logprobs)],
        ]

    for told in together(*(branch(key) for key in range(12))):
        ours = [x for _, _, logprobs in told for x in logprobs]
        np.testing.assert_allclose(ours, plain(made.model, told, 1.0), atol=1e-5)


def test_a_short_prompt_is_not_padded_to_a_long_one() -> None:
    made = policy()
    shapes: list[tuple[int, ...]] = []
    forward = made.model.forward
    made.model.forward = lambda **inputs: (
        shapes.append(tuple(inputs["input_ids"].shape)) or forward(**inputs)
    )
    lengths = [20, 400, 22, 420, 24]
    together(*(made.sample([4 + n % 30] * n, Sampling(max_tokens=1)) for n in lengths))
    assert shapes == [(3, 24), (2, 420)]


def test_long_prompts_do_not_pad_those_that_decode() -> None:
    made = policy()
    shapes: list[tuple[int, ...]] = []
    forward = made.model.forward
    made.model.forward = lambda **inputs: (
        shapes.append(tuple(inputs["input_ids"].shape)) or forward(**inputs)
    )
    together(
        made.sample([4, 5], Sampling(max_tokens=3)),
        made.sample([6] * (3 * Passes.join), Sampling(max_tokens=3)),
    )
    assert shapes == [(1, 3 * Passes.join), (2, 2), (2, 1), (1, 1)]


def test_more_requests_than_slots() -> None:
    made = policy(max_batch=3)
    rows: list[int] = []
    forward = made.model.forward
    made.model.forward = lambda **inputs: rows.append(len(inputs["input_ids"])) or forward(**inputs)
    prompts = [[4 + k, 5, 6] for k in range(10)]
    said = together(
        *(made.sample(prompt, Sampling(max_tokens=4, key=k)) for k, prompt in enumerate(prompts))
    )
    assert max(rows) == 3
    assert made.slots.count == 3
    assert [completion.tokens for completion in said] == [
        one(policy(), prompt, max_tokens=4, key=k).tokens for k, prompt in enumerate(prompts)
    ]


def test_evicted_transcripts_are_computed_anew() -> None:
    made = policy(max_batch=4)
    begun = {k: one(made, [4 + k, 5, 6], max_tokens=3, key=k) for k in range(12)}
    assert made.slots.count == 4
    for k in (11, 0, 5):
        transcript = [4 + k, 5, 6, *begun[k].tokens, 9]
        ours = one(made, transcript, max_tokens=3, key=k)
        assert ours.tokens == one(policy(), transcript, max_tokens=3, key=k).tokens
        told = [[transcript, list(ours.tokens), []]]
        np.testing.assert_allclose(ours.logprobs, plain(made.model, told, 1.0), atol=1e-5)


def test_the_cache_grows_without_losing_anything() -> None:
    made = policy(qwen(context=4096))

    async def lengthening(key: int) -> list[list[Any]]:
        told = await encounter(made, key)
        transcript = [i for prompt, tokens, _ in told for i in (*prompt, *tokens)]
        more = np.random.default_rng(key).integers(3, 40, 150 * (key + 1)).tolist()
        said = await made.sample([*transcript, *more], Sampling(max_tokens=5, key=key))
        return [*told, [more, list(said.tokens), list(said.logprobs)]]

    for told in together(*(lengthening(key) for key in range(4))):
        np.testing.assert_allclose(
            [x for t in told for x in t[2]], plain(made.model, told, 1.0), atol=1e-5
        )


def test_room_is_made_for_what_is_there_not_for_what_may_come() -> None:
    made = policy(qwen(context=1 << 17))
    one(
        made,
        [4, 5, 6],
        max_tokens=100_000,
        temperature=0.0,
        stop=("a", "b", "c", "d", "e", "f", "g"),
    )
    assert made.slots.capacity < 4096


def test_episodes_that_end_early_leave_the_others_right() -> None:
    made = policy()
    # Turns from 1 to 6: gaps open among the slots, and later episodes fill them.
    everyone = together(*(encounter(made, key, turns=1 + key % 6) for key in range(18)))
    for told in everyone + together(*(encounter(made, key, turns=3) for key in range(30, 40))):
        np.testing.assert_allclose(
            [x for t in told for x in t[2]], plain(made.model, told, 1.0), atol=1e-5
        )


def test_refresh_after_the_weights_changed() -> None:
    made = policy()
    first = one(made, [4, 5, 6], max_tokens=4)
    transcript = [4, 5, 6, *first.tokens, 9]
    with torch.no_grad():
        for weight in made.model.parameters():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)) * 0.1)
    stale = one(made, transcript, max_tokens=4)
    assert (
        np.abs(
            np.subtract(
                stale.logprobs, plain(made.model, [[transcript, list(stale.tokens), []]], 1.0)
            )
        ).max()
        > 1e-2
    )
    made.refresh()
    fresh = one(made, transcript, max_tokens=4)
    np.testing.assert_allclose(
        fresh.logprobs, plain(made.model, [[transcript, list(fresh.tokens), []]], 1.0), atol=1e-5
    )


# --- where a completion ends ---


@pytest.mark.parametrize("first", ["float32", "autocast"])
def test_a_cache_made_in_one_precision_serves_another(first: str) -> None:
    """As in a run with bf16=true: stages sample under autocast, what is between them does not."""
    model, prompt = llama(), [5, 6, 7, 8]

    def drawn(made: LocalPolicy, precision: str) -> Completion:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
            return one(made, prompt, temperature=0, max_tokens=12)

    made, second = policy(model), {"float32": "autocast", "autocast": "float32"}[first]
    drawn(made, first)
    made.refresh()
    again, fresh = drawn(made, second), drawn(policy(model), second)
    assert again.tokens == fresh.tokens
    assert again.logprobs == pytest.approx(fresh.logprobs, abs=1e-6)


@pytest.mark.long
def test_stop_strings_may_span_tokens() -> None:
    tokenizer = letters("abcd")
    model = qwen(len(tokenizer))
    free, stopped = LocalPolicy(model, tokenizer), LocalPolicy(model, tokenizer)
    free.eos = stopped.eos = frozenset()
    stops, seen = (("ab",), ("aba", "cc"), ("abc", "b"), ("dddd",)), set()
    for key in range(20):
        whole = one(free, [4, 5], max_tokens=40, key=key)
        text = [tokenizer.decode(whole.tokens[: n + 1]) for n in range(40)]
        for stop in stops:
            ours = one(stopped, [4, 5], max_tokens=40, key=key, stop=stop)
            first = next((n for n in range(40) if any(s in text[n] for s in stop)), 39)
            assert ours.tokens == whole.tokens[: first + 1]
            assert ours.text == text[first]
            assert ours.truncated == (not any(s in ours.text for s in stop))
            seen.add((stop, ours.truncated))
    assert seen >= {(stop, False) for stop in stops}


def test_a_stop_string_may_span_the_bytes_of_a_character() -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE({name: i for i, name in enumerate(alphabet)}, merges=[]))
    raw.pre_tokenizer, raw.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        decoders.ByteLevel(),
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, chat_template=CHATML)
    wanted = tokenizer.encode("so。no")
    made = LocalPolicy(qwen(256), tokenizer)
    made.model.forward = lambda **inputs: (
        CausalLMOutput(  # says what is wanted, whatever the weights
            logits=100.0 * torch.eye(256)[[wanted[made.slots.reach - 1]]][:, None]
        )
    )
    ours = one(made, [0], max_tokens=len(wanted), stop=("o。",))
    assert ours.text == "so。"
    assert not ours.truncated


def test_end_tokens_of_model_and_tokenizer() -> None:
    tokenizer = letters("abcd")
    model = qwen(len(tokenizer))
    model.generation_config.eos_token_id = [5]
    free, ended = LocalPolicy(model, tokenizer), LocalPolicy(model, tokenizer)
    free.eos = frozenset()
    assert ended.eos == {5, END}
    ends = set()
    for key in range(20):
        whole = one(free, [4, 6], max_tokens=30, key=key).tokens
        ours = one(ended, [4, 6], max_tokens=30, key=key)
        first = next((n for n, token in enumerate(whole) if token in ended.eos), 29)
        assert ours.tokens == whole[: first + 1]
        assert ours.truncated == (whole[first] not in ended.eos)
        # The end token is sampled and trained on, but says nothing.
        assert ours.text == tokenizer.decode(
            whole[:first] if not ours.truncated else whole[: first + 1]
        )
        ends.add(ours.tokens[-1])
    assert ends >= {5, END}


def test_context_runs_out() -> None:
    made = policy(qwen(context=16))
    last = one(made, [5] * 13, max_tokens=50)
    assert len(last.tokens) == 3
    assert last.truncated
    for n in (16, 40):
        assert one(made, [5] * n) == Completion("", truncated=True)
    assert one(made, [5] * 3, max_tokens=0) == Completion("", truncated=True)


def test_an_episode_without_room_ends_out_of_tokens() -> None:
    made = policy(qwen(len(letters()), context=600))
    environment = Consultation([], [], 10)
    case = Case("1", "cough", Truth("cold"))
    opening = len(made.render(environment.open(case)))
    made.context = opening + 20
    [episode] = asyncio.run(
        play_all([ToPlay(case)], environment, TokenDoctor(made), Play(max_tokens=512))
    )
    assert episode.ending is Ending.OUT_OF_TOKENS
    assert len(episode.turns[0].completion.tokens) == 20


def test_ids_beyond_the_tokenizer_do_no_harm() -> None:
    tokenizer = letters("abcd")
    made = LocalPolicy(qwen(len(tokenizer) + 20), tokenizer)
    made.eos = frozenset()
    drawn = one(made, [4, 5], max_tokens=40, stop=("zz",))
    assert max(drawn.tokens) >= len(tokenizer)
    assert len(drawn.tokens) == 40


# --- faults ---


def test_an_exception_reaches_every_caller_and_the_next_call_works() -> None:
    made = policy(max_batch=2)
    forward = made.model.forward

    def broken(**inputs: Any) -> Any:
        if made.forwards == 2:
            raise RuntimeError("out of memory")
        return forward(**inputs)

    made.model.forward = broken

    async def five() -> list[Any]:
        calls = [made.sample([4 + k, 5], Sampling(max_tokens=5, key=k)) for k in range(5)]
        return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), HANG)

    assert [str(error) for error in asyncio.run(five())] == ["out of memory"] * 5
    made.model.forward = forward
    assert one(made, [4, 5], max_tokens=5).tokens == one(policy(), [4, 5], max_tokens=5).tokens


def test_a_caller_that_leaves_disturbs_nobody() -> None:
    made = policy()

    async def leaving() -> list[Completion]:
        tasks = [
            asyncio.create_task(made.sample([4 + k, 5], Sampling(max_tokens=20, key=k)))
            for k in range(4)
        ]
        while made.forwards < 5:
            await asyncio.sleep(0)
        tasks[1].cancel()
        stayed = [tasks[0], tasks[2], tasks[3]]
        return list(await asyncio.wait_for(asyncio.gather(*stayed), HANG))

    stayed = asyncio.run(leaving())
    assert [c.tokens for c in stayed] == [
        one(policy(), [4 + k, 5], max_tokens=20, key=k).tokens for k in (0, 2, 3)
    ]
    made.refresh()


def test_an_interrupted_loop_leaves_nothing_behind() -> None:
    made = policy()

    async def interrupted() -> None:
        tasks = [
            asyncio.create_task(made.sample([4 + k, 5], Sampling(max_tokens=500))) for k in range(3)
        ]
        while made.forwards < 5:
            await asyncio.sleep(0)
        raise KeyboardInterrupt(len(tasks))

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(interrupted())
    made.refresh()
    assert one(made, [4, 5], max_tokens=5).tokens == one(policy(), [4, 5], max_tokens=5).tokens


def test_sliding_attention_is_refused() -> None:
    sliding = Qwen3Config(
        vocab_size=40, use_sliding_window=True, sliding_window=8, max_window_layers=0, **SHAPE
    )
    with pytest.raises(UserError, match="sliding"):
        LocalPolicy(Qwen3ForCausalLM(sliding), letters())
    with pytest.raises(UserError, match="sliding"):
        LocalPolicy(
            MistralForCausalLM(MistralConfig(vocab_size=40, sliding_window=8, **SHAPE)), letters()
        )


def test_local_attention_and_positions_by_length_are_refused() -> None:
    near = GPTNeoConfig(
        vocab_size=40, hidden_size=32, num_layers=2, num_heads=4, max_position_embeddings=64,
        attention_types=[[["global", "local"], 1]],
    )  # fmt: skip
    with pytest.raises(UserError, match="local"):
        LocalPolicy(GPTNeoForCausalLM(near), letters())
    near.attention_types, near.attention_layers = [[["global"], 2]], ["global", "global"]
    LocalPolicy(GPTNeoForCausalLM(near), letters())
    how = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    long = LlamaConfig(vocab_size=40, rope_parameters=how, max_position_embeddings=64, **SHAPE)
    with pytest.raises(UserError, match="'dynamic'"):
        LocalPolicy(LlamaForCausalLM(long), letters())


def test_loading_what_is_not_there(tmp_path: Any) -> None:
    with pytest.raises(UserError, match="no weights"):
        load(tmp_path / "nothing")


# --- text to tokens ---


def test_incremental_rendering_is_the_whole_conversation() -> None:
    made = LocalPolicy(qwen(80), letters())
    chat = [
        Message("system", "Be brief."),
        Message("user", "I cough."),
        Message("assistant", "<ask>fever</ask>"),
    ]
    chat += [
        Message("user", "None."),
        Message("assistant", "<diagnose>cold</diagnose>"),
        Message("user", "Sure?"),
    ]
    whole = made.tokenizer.apply_chat_template(
        [{"role": m.role, "content": m.content} for m in chat],
        tokenize=False,
        add_generation_prompt=True,
    )
    grown: tuple[int, ...] = made.render(chat[:2])
    for k in (2, 4):
        grown += made.encode(chat[k].content)
        grown += made.render([chat[k + 1]], grown)
    assert grown == made.markup(whole)


def test_the_closing_token_is_not_written_twice() -> None:
    made = LocalPolicy(qwen(80), letters())
    said_and_closed = (*made.encode("yes"), END)
    suffix = made.render([Message("user", "and?")], said_and_closed)
    assert (
        made.tokenizer.decode((*said_and_closed, *suffix))
        == "yes<|im_end|>\n<|im_start|>user\nand?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert made.render([Message("user", "and?")], made.encode("yes")) == (END, *suffix)


def test_a_blank_before_the_closing_token_is_not_written_after_it() -> None:
    tokenizer = letters()
    tokenizer.chat_template = CHATML.replace("{{ m['content'] }}", "{{ m['content'] }} ")
    made = LocalPolicy(qwen(80), tokenizer)
    yes = made.encode("yes")
    suffix = made.render([Message("user", "and?")], (*yes, END))
    assert tokenizer.decode(suffix).startswith("\n<|im_start|>user\nand? ")
    assert made.render([Message("user", "and?")], yes) == (*made.encode(" "), END, *suffix)


def test_the_mark_itself_may_stand_in_a_message() -> None:
    made = LocalPolicy(qwen(80), letters())
    suffix = made.tokenizer.decode(made.render([Message("user", "odd ⁂ sign")], made.encode("yes")))
    assert suffix.startswith("<|im_end|>\n<|im_start|>user\nodd ")


def test_a_tokenizer_without_template_gets_a_plain_one() -> None:
    tokenizer = letters()
    tokenizer.chat_template = None
    made = LocalPolicy(qwen(80), tokenizer)
    opening = made.render([Message("user", "I cough.")])
    assert tokenizer.decode(opening) == "user: I cough.\nassistant: "
    assert (
        tokenizer.decode(made.render([Message("user", "No.")], opening))
        == "\nuser: No.\nassistant: "
    )
