"""What sampling, scoring and training take on a GPU.

Type `python -m bench.gpu [sampling] [step] [--size 135M|3B] [--json FILE] [--quick]`.

Weights are random: time does not depend on what they know. Texts are words of one token each. Two
tables come out:

- Drawn tokens per second of the local sampler, in float32 and in bfloat16, beside the same without
  captured passes, vLLM (where it is installed) and `generate()` on one padded batch per turn: 128
  different cases, and 16 cases × 8 episodes, 4 turns of 32 tokens.
- Where a training step of 64 episodes (8 cases × 8) goes: playing, the update, C-MIG's reference
  scores of these episodes, and ProMed's Shapley values of 8 cases with 16 facts. Models have the
  sizes of SmolLM2-135M (float32 weights, bfloat16 arithmetic) and Llama-3.2-3B (bfloat16, LoRA).

With `--quick` everything is small and runs without a GPU, to see that it works. What models learn
is measured by `workup claims PAPER --scale small`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from bench import gains, shapley
from bench.sampling import contestants, sampled
from workup.core.episode import Message, Sample
from workup.core.ports import Policy, Sampling
from workup.engines.settings import EngineSettings, LoraSettings
from workup.engines.trl.engine import TrlEngine
from workup.methods.promed.shapley import ShapleySettings, answer_game, estimate
from workup.models.local import LocalPolicy
from workup.models.passes import Passes
from workup.models.samplers import How, local
from workup.models.samplers.local import LocalModel
from workup.models.scorer import LocalScorer


@dataclass(frozen=True)
class Size:
    """The size of a Llama, the precision of its weights, and whether adapters alone are trained."""

    width: int
    layers: int
    heads: int
    key_heads: int
    inner: int
    dtype: str = "float32"
    lora: bool = False
    vocabulary: int = 49_152


SIZES = {
    "135M": Size(576, 30, 9, 3, 1536),
    "3B": Size(3072, 28, 24, 8, 8192, "bfloat16", lora=True),
}
QUICK = {
    "tiny": Size(48, 2, 3, 3, 96, vocabulary=2_100),
    "tiny, LoRA": Size(48, 2, 3, 3, 96, lora=True, vocabulary=2_100),
}
TABLES = ("sampling", "step")
OPENING, ANSWER, EVIDENCE = 190, 20, 300  # tokens that an episode reads
TURNS, SHORT, LONG = 4, 32, 64  # turns, tokens per turn of the two tables
CASES, GROUP = 8, 8  # of a training step
FACTS, STEPS = 16, 2


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"{', '.join(TABLES)} (default: both)"
    )
    parser.add_argument("--size", choices=SIZES, help="one size alone; sampling takes the first")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    parser.add_argument("--quick", action="store_true", help="small, without a GPU")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.names) - set(TABLES)):
        parser.error(f"there is no '{unknown[0]}'; there are {', '.join(TABLES)}")
    if not (arguments.quick or torch.cuda.is_available()):
        parser.error("there is no GPU here; --quick runs without one")
    device = "cpu" if arguments.quick else "cuda"
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}", flush=True)
    sizes = QUICK if arguments.quick else SIZES
    if arguments.size and not arguments.quick:
        sizes = {arguments.size: SIZES[arguments.size]}
    episodes = (4, 2) if arguments.quick else (128, 8)
    names, rows = arguments.names or TABLES, []
    if "sampling" in names:
        rows += sampling(next(iter(sizes.values())), device, *episodes)
    if "step" in names:
        for label, size in sizes.items():
            rows.append({"measure": f"step, {label}", **step(size, device)})
    if arguments.json:
        arguments.json.write_text(json.dumps({"device": name, "rows": rows}, indent=1))


# --- the models ---


def tokens(count: int) -> PreTrainedTokenizerFast:
    """One token per word, in a chat template."""
    known = {
        word: i
        for i, word in enumerate((*shapley.MARKS, *(f"w{i}" for i in range(count))))
        if i < count
    }
    raw = Tokenizer(models.WordLevel(known, unk_token="w0"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    raw.add_tokens([AddedToken(mark, normalized=False) for mark in shapley.MARKS])
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<|end|>", pad_token="<|end|>", chat_template=shapley.CHAT
    )


def untrained(size: Size, device: str, dtype: str) -> LocalModel:
    """Random weights on the device, which never end a turn by themselves."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.width,
        intermediate_size=size.inner,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.key_heads,
        max_position_embeddings=8_192,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=1,
    )
    with torch.device(device):
        model = LlamaForCausalLM(config).to(getattr(torch, dtype)).eval()
    model.generation_config.eos_token_id = None
    made = LocalModel(local.follow(model, tokens(size.vocabulary), How(concurrency=128)))
    made.policy.eos = frozenset()
    return made


def told(index: int, *, evidence: int) -> list[str]:
    """What one episode reads, turn by turn."""
    rng = np.random.default_rng([3, index])
    return [shapley.words(rng, OPENING), *(shapley.words(rng, evidence) for _ in range(TURNS - 1))]


def clocked(device: str) -> float:
    """Seconds, when all that was asked of the device is done."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


# --- sampling ---


def sampling(size: Size, device: str, count: int, group: int) -> list[dict[str, Any]]:
    """Drawn tokens per second, the better of two times after one that warms up."""
    different = [told(index, evidence=ANSWER) for index in range(count)]
    texts = {
        f"{count} cases": different,
        f"{count // group} cases × {group}": [
            case for case in different[: count // group] for _ in range(group)
        ],
    }
    rows = []
    for dtype in ("float32", "bfloat16"):
        model = untrained(size, device, dtype)
        plain = LocalPolicy(model.policy.model, model.policy.tokenizer, max_batch=count)
        plain.passes, plain.eos = Passes(plain.model, plain.slots), frozenset()
        players: dict[str, Any] = {
            **contestants(model, How(concurrency=count, context=2_048)),
            "local, not captured": (None, partial(sampled, plain)),
        }
        for name, episodes in texts.items():
            row: dict[str, Any] = {"measure": "sampling", "dtype": dtype, "episodes": name}
            for player, (_, play) in players.items():
                taken = []
                for _ in range(3):
                    began = clocked(device)
                    play(episodes)
                    taken.append(clocked(device) - began)
                row[player] = count * TURNS * SHORT / min(taken[1:])
            rows.append(row)
            print(
                f"sampling, {dtype}, {name}: "
                + ", ".join(f"{player} {row[player]:,.0f} tokens/s" for player in players),
                flush=True,
            )
        for far, _ in players.values():
            if far is not None:
                far.close()
    return rows


# --- a training step ---


async def played(policy: Policy, texts: list[str], key: int) -> Sample:
    """An episode, whose advantage is that of a coin."""
    transcript: list[int] = []
    mask: list[bool] = []
    logprobs: list[float] = []
    turns: list[int] = []
    for turn, text in enumerate(texts):
        read = policy.render([Message("user", text)], transcript)
        said = await policy.sample([*transcript, *read], Sampling(max_tokens=LONG, key=key))
        transcript += [*read, *said.tokens]
        mask += [False] * len(read) + [True] * len(said.tokens)
        logprobs += [0.0] * len(read) + list(said.logprobs)
        turns += [turn] * (len(read) + len(said.tokens))
    worth = (1.0, -1.0)[key % 2]
    advantages = tuple(worth if own else 0.0 for own in mask)
    return Sample(tuple(transcript), tuple(mask), tuple(logprobs), advantages, tuple(turns))


def step(size: Size, device: str) -> dict[str, Any]:
    """Seconds of each part, the mean of all steps but the first."""
    model = untrained(size, device, size.dtype)
    episodes = [told(index, evidence=EVIDENCE) for index in range(CASES) for _ in range(GROUP)]
    spent: dict[str, list[float]] = {part: [] for part in ("playing", "C-MIG", "Shapley", "update")}
    searched = [one for index in range(CASES) for one in gains.group(index, gains.REAL, None)]
    patients = [shapley.case(index, FACTS) for index in range(CASES)]
    reference = LocalScorer(model.policy)
    began = 0.0

    def clock(part: str) -> None:
        nonlocal began
        now = clocked(device)
        spent[part].append(now - began)
        began = now

    async def collect(policy: Policy, number: int) -> list[Sample]:
        nonlocal began
        began = clocked(device)
        first = number * len(episodes)
        playing = (played(policy, texts, first + k) for k, texts in enumerate(episodes))
        samples = list(await asyncio.gather(*playing))
        clock("playing")
        reference.refresh()
        await gains.together(reference, searched)
        clock("C-MIG")
        reference.refresh()
        await asyncio.gather(*(worth(reference, *patient) for patient in patients))
        clock("Shapley")
        return samples

    settings = settings_of(size, device)
    with TemporaryDirectory() as folder:
        engine = TrlEngine(
            model.policy, settings, Path(folder), on_step=lambda number, figures: clock("update")
        )
        engine.grpo(collect, STEPS)
    row: dict[str, Any] = {part: float(np.mean(taken[1:])) for part, taken in spent.items()}
    row["parameters"] = sum(each.numel() for each in engine.model.parameters())
    row["size"] = asdict(size)
    if device == "cuda":
        row["GiB"] = torch.cuda.max_memory_allocated() / 2**30
        torch.cuda.reset_peak_memory_stats()
    whole = row["playing"] + row["update"]
    print(
        f"step, {row['parameters'] / 1e6:,.0f} M: playing {row['playing']:.2f} s, update "
        f"{row['update']:.2f} s; C-MIG's scores {row['C-MIG']:.2f} s, "
        f"{row['C-MIG'] / (whole + row['C-MIG']):.1%} of a step with them; Shapley "
        f"{row['Shapley']:.2f} s, {1 + row['Shapley'] / whole:.2f} × a step without; "
        f"{row.get('GiB', 0):.1f} GiB",
        flush=True,
    )
    return row


async def worth(scorer: LocalScorer, request: Any, lines: list[str]) -> None:
    game = answer_game(scorer, request, lines, "permutation")
    await estimate(game, len(lines), ShapleySettings(epsilon=0), [0])


def settings_of(size: Size, device: str) -> EngineSettings:
    how: dict[str, Any] = {"lora": LoraSettings(), "gradient_checkpointing": True}
    return EngineSettings(
        lr=1e-6, bf16=device == "cuda", micro_batch=8, **(how if size.lora else {})
    )


if __name__ == "__main__":
    main()
