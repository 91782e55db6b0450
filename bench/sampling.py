"""Tokens per second of a pretrained model (smollm2) that plays episodes, by each sampler.

`python -m bench sampling [--texts FILE.jsonl]`: 16 different cases once each, and 2 cases 8 times
each, 4 turns of 32 tokens. All play the same texts in float32 on one thread; completions differ,
their lengths do not. Beside tokens per second stands the share of what the processor multiplies:
two operations per weight and token, each token once, over the rate of a large product of matrices.
Processor time, which counts vLLM's own processes too, tells more where the machine has other work.

The texts are the cases of a mediQ file, or synthetic ones of the same lengths. `generate()` plays
one padded batch per turn. vLLM is skipped where it is not installed (`make .venv/.vllm`).
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers import GenerationConfig

from bench.figures import Figure, laps
from workup.core.episode import Message
from workup.core.ports import Policy, Sampling
from workup.models import samplers
from workup.models.samplers import How
from workup.models.samplers.local import LocalModel, follow
from workup.models.weights import load

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


def worked() -> float:
    """Processor seconds of this process and all that it has started, so far."""
    own = psutil.Process()
    times = [each.cpu_times() for each in (own, *own.children(recursive=True))]
    return float(sum(each.user + each.system for each in times))


def contestants(
    local: LocalModel, how: How
) -> dict[str, tuple[Any, Callable[[Texts], list[list[int]]]]]:
    """By name: what has to be closed, if anything, and what plays texts; `how` is for vLLM."""
    model, tokenizer = local.policy.model, local.policy.tokenizer
    found: dict[str, Any] = {"local": (None, lambda told: sampled(local.policy, told))}
    if find_spec("vllm") is None:
        print("vllm is not installed (make .venv/.vllm): left out")
    else:
        far: Any = samplers.load("vllm").follow(model, tokenizer, how)
        far.eos = frozenset()
        found["vllm"] = (far, lambda told: sampled(far, told))
    return found | {"generate()": (None, lambda told: generated(local, told))}


def measure(file: Path | None = None) -> list[Figure]:
    torch.set_num_threads(1)
    model, tokenizer = load("smollm2")
    model.generation_config.eos_token_id = None
    local = LocalModel(follow(model, tokenizer, How(concurrency=CASES)))
    local.policy.eos = frozenset()
    many = texts(file)
    settings = {
        "16 cases": many,
        "2 cases × 8": [told for told in many[:GROUPS] for _ in range(GROUP)],
    }
    players = contestants(local, How(concurrency=CASES, memory=0.1, context=2_048))
    figures = []
    for name, told in settings.items():
        play = {each: partial(run, told) for each, (_, run) in players.items()}
        figures += compared(name, local, play, len(told) * TURNS * TOKENS)
    for far, _ in players.values():
        if far is not None:
            far.close()
    return figures


def compared(
    name: str, local: LocalModel, play: Mapping[str, Callable[[], list[list[int]]]], drawn: int
) -> list[Figure]:
    """Drawn tokens per second of `local`, beside each other sampler on the same episodes.

    By the clock, and by processor time. Prints one line for each sampler.
    """
    tokens: dict[str, int] = {}

    def count(sampler: str) -> None:
        tokens[sampler] = sum(map(len, play[sampler]()))

    times = laps({each: partial(count, each) for each in play}, ROUNDS, (time.perf_counter, worked))
    rate = multiplied()
    for each, (took, spent) in times.items():
        share = 2 * local.parameters * tokens[each] / took / rate
        print(
            f"{name}: {each}: {took:.1f} s, {spent:.1f} s of processor time, "
            f"{drawn / took:.0f} drawn tokens/s, {tokens[each]} tokens, "
            f"{share:.0%} of {rate / 1e9:.0f} GFLOP/s"
        )
    found = []
    for each in [other for other in play if other != "local"]:
        target = 0.6 if each == "vllm" else 1.0
        for kind, suffix in enumerate(("", ", per processor second")):
            ours, theirs = drawn / times["local"][kind], drawn / times[each][kind]
            measure = f"sampling, {name}, beside {each}{suffix}"
            found.append(Figure(measure, ours, theirs, "/s", ours / theirs, target, True))
    return found
