"""A very small model, a policy on it and random episodes, for the engine's tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from workup.core.episode import Completion, Message, Sample
from workup.core.ports import Demonstration, Sampling

VOCABULARY = 60


def model(seed: int = 0, attention: str = "sdpa", scale: float = 3.0) -> Any:
    """A Qwen3 with two layers.

    Its weights are scaled up so that its predictions are far from uniform.
    """
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        attn_implementation=attention,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    made = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if "norm" not in name:
                weight.mul_(scale)
    return made.eval()


def tokenizer() -> Any:
    words = {"[PAD]": 0, "[EOS]": 1, "[UNK]": 2} | {f"w{i}": i for i in range(3, VOCABULARY)}
    plain = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="[PAD]", eos_token="[EOS]", unk_token="[UNK]"
    )


class Toy:
    """A policy in form: messages are rendered as their words, and nobody samples from it."""

    def __init__(self, network: Any) -> None:
        self.model, self.tokenizer, self.refreshed = network, tokenizer(), 0

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def render(self, messages: Sequence[Message], past: Sequence[int] = ()) -> tuple[int, ...]:
        return (1, *self.encode(" ".join(m.content for m in messages)))

    async def sample(self, prompt: Sequence[int], sampling: Sampling) -> Completion:
        raise NotImplementedError

    def refresh(self) -> None:
        self.refreshed += 1


def logprobs(network: Any, tokens: Sequence[int]) -> torch.Tensor:
    """log p of every token but the first, by the model's ordinary forward pass.

    One sequence is computed at a time.
    """
    ids = torch.tensor([tokens])
    return network(input_ids=ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]


def episodes(
    network: Any, seed: Sequence[int], count: int, longest: int = 14, drift: float = 0.0
) -> list[Sample]:
    """Random transcripts of random authorship, with the model's own log-probabilities.

    These are moved by up to `drift`.
    """
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        n = int(rng.integers(4, longest))
        tokens = tuple(rng.integers(3, VOCABULARY, n).tolist())
        mask = np.append(False, rng.random(n - 1) < 0.5)
        mask[-1] = True
        with torch.no_grad():
            known = np.append(0.0, logprobs(network, tokens).double().numpy()) + rng.uniform(
                -drift, drift, n
            )
        advantages = np.where(mask, rng.normal(size=n), 0.0)
        made.append(
            Sample(
                tokens,
                tuple(mask.tolist()),
                tuple((known * mask).tolist()),
                tuple(advantages.tolist()),
                tuple([0] * n),
            )
        )
    return made


def demonstration(rng: np.random.Generator, branches: int = 0) -> Demonstration:
    def words(most: int) -> str:
        return " ".join(f"w{i}" for i in rng.integers(3, VOCABULARY, rng.integers(1, most)))

    exchanges = tuple((words(4), (Message("user", words(5)),)) for _ in range(3))
    branches = tuple((int(k), words(2), words(4)) for k in rng.integers(0, 4, branches))
    return Demonstration((Message("user", words(6)),), exchanges, branches)
