"""Tokens per second of a pretrained model (smollm2) that plays episodes, by each sampler.

`python -m bench sampling [--texts FILE.jsonl]`: 16 different cases once each, and 2 cases 8 times
each, 4 turns of 32 tokens. All play the same texts in float32 on one thread; completions differ,
their lengths do not. Beside tokens per second stands the share of what the processor multiplies:
two operations per weight and token, each token once, over the rate of a large product of matrices.

The texts are the cases of a mediQ file, or synthetic ones of the same lengths. `generate()` plays
one padded batch per turn. vLLM is skipped where it is not installed (`make .venv/.vllm`).
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig

from bench.figures import Figure, race
from workup.episode import Message
from workup.models import samplers
from workup.models.samplers import How
from workup.models.samplers.local import LocalModel
from workup.models.weights import load
from workup.ports import Policy, Sampling

CASES, GROUPS, GROUP = 16, 2, 8
TURNS, TOKENS = 4, 32
ROUNDS = 3
OPENING, ANSWER = 1_100, 90  # characters, about those of mediQ's cases and single facts
WORDS = (
    "patient",
    "reports",
    "pain",
    "fever",
    "denies",
    "chest",
    "history",
    "since",
    "two",
    "days",
)
Texts = list[list[str]]  # of each episode: [opening, reply to turn 1, reply to turn 2, …]


def texts(file: Path | None) -> Texts:
    """What 16 episodes read."""
    if file is None:
        rng = random.Random(0)
        return [
            [_words(rng, OPENING), *(_words(rng, ANSWER) for _ in range(TURNS - 1))]
            for _ in range(CASES)
        ]
    with file.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line, _ in zip(lines, range(CASES), strict=False)]
    return [
        [" ".join([*row["context"], row["question"]]), *row["facts"][: TURNS - 1]] for row in rows
    ]


def _words(rng: random.Random, length: int) -> str:
    said = ""
    while len(said) < length:
        said += f" {rng.choice(WORDS)}"
    return said.strip()


async def played(policy: Policy, told: Sequence[str], key: int) -> list[int]:
    """An episode's transcript."""
    transcript: list[int] = []
    for text in told:
        transcript += policy.render([Message("user", text)], transcript)
        # An end of turn is a token like any other here, so that all episodes are equally long.
        said = await policy.sample(transcript, Sampling(max_tokens=TOKENS, key=key))
        transcript += said.tokens
    return transcript


def sampled(policy: Any, episodes: Texts) -> list[list[int]]:
    async def play() -> list[list[int]]:
        made = [played(policy, told, key) for key, told in enumerate(episodes)]
        return list(await asyncio.gather(*made))

    policy.refresh()
    return asyncio.run(play())


@torch.no_grad()
def generated(local: LocalModel, episodes: Texts) -> list[list[int]]:
    """`generate()` on one padded batch of all episodes, once per turn."""
    policy, pad, device = local.policy, 0, local.policy.device
    how = GenerationConfig(do_sample=True, top_k=0, max_new_tokens=TOKENS, pad_token_id=pad)
    how.min_new_tokens = TOKENS
    transcripts: list[list[int]] = [[] for _ in episodes]
    for turn in range(TURNS):
        for told, transcript in zip(episodes, transcripts, strict=True):
            transcript += policy.render([Message("user", told[turn])], transcript)
        width = max(map(len, transcripts))
        ids = torch.tensor([[pad] * (width - len(row)) + row for row in transcripts], device=device)
        lengths = torch.tensor([len(row) for row in transcripts], device=device)
        mask = (torch.arange(width, device=device) >= width - lengths[:, None]).long()
        grown = policy.model.generate(input_ids=ids, attention_mask=mask, generation_config=how)
        for row, transcript in zip(grown[:, width:].tolist(), transcripts, strict=True):
            transcript += row
    return transcripts


def multiplied() -> float:
    """Operations per second of a large product of matrices, float32, one thread."""
    a = torch.randn(1536, 1536)
    a @ a
    began = time.perf_counter()
    for _ in range(8):
        a @ a
    return 8 * 2 * 1536**3 / (time.perf_counter() - began)


def contestants(local: LocalModel) -> dict[str, tuple[Any, Callable[[Texts], list[list[int]]]]]:
    model, tokenizer = local.policy.model, local.policy.tokenizer
    how = How(concurrency=CASES, memory=0.1, context=2_048)
    found: dict[str, Any] = {"local": (None, lambda told: sampled(local.policy, told))}
    if find_spec("vllm") is None:
        print("vllm is not installed (make .venv/.vllm): left out")
    else:
        far = samplers.load("vllm").follow(model, tokenizer, how)
        far.eos = frozenset()
        found["vllm"] = (far, lambda told: sampled(far, told))
    return found | {"generate()": (None, lambda told: generated(local, told))}


def measure(file: Path | None = None) -> list[Figure]:
    torch.set_num_threads(1)
    model, tokenizer = load("smollm2")
    model.generation_config.eos_token_id = None
    local = LocalModel(samplers.load("local").follow(model, tokenizer, How(concurrency=CASES)))
    local.policy.eos = frozenset()
    many = texts(file)
    settings = {
        "16 cases": many,
        "2 cases × 8": [told for told in many[:GROUPS] for _ in range(GROUP)],
    }
    players, figures = contestants(local), []
    for name, told in settings.items():
        made: dict[str, int] = {}

        def play(sampler: str, told: Texts = told, made: dict[str, int] = made) -> None:
            made[sampler] = sum(map(len, players[sampler][1](told)))

        seconds = race({each: lambda each=each: play(each) for each in players}, ROUNDS)  # type: ignore[misc]
        rate, drawn = multiplied(), len(told) * TURNS * TOKENS
        for each, took in seconds.items():
            share = 2 * local.parameters * made[each] / took / rate
            work = f"{made[each]} tokens, {share:.0%} of {rate / 1e9:.0f} GFLOP/s"
            print(f"{name}: {each}: {took:.1f} s, {drawn / took:.0f} drawn tokens/s, {work}")
            if each != "local":
                target = 0.6 if each == "vllm" else 1.0
                ours = drawn / seconds["local"]
                figures.append(
                    Figure(
                        f"sampling, {name}, beside {each}",
                        ours,
                        drawn / took,
                        "/s",
                        took / seconds["local"],
                        target,
                        True,
                    )
                )
    for far, _ in players.values():
        if far is not None:
            far.close()
    return figures
