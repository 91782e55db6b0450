"""Training on a group whose episodes have one opening, which goes through the model once.

Forward and backward pass of one micro-batch of GRPO's update, a model of SmolLM2's size on one
thread, beside the same pass on padded rows. The policy wrote half of what follows the opening.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from bench.figures import Figure
from workup.engines.trl.openings import Openings, attending
from workup.engines.trl.scoring import ScoredTokens, scoring

GROUP = 8
SHAPES = ((190, 90, 1.8), (190, 250, 1.4), (10, 90, 1.0))  # opening, own tokens, wanted ratio
SMOLLM2 = {
    **{"vocab_size": 49_152, "hidden_size": 576, "intermediate_size": 1_536},
    **{"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3},
    "tie_word_embeddings": True,
}
CPU = torch.device("cpu")


def rows(opening: int, own: int, seed: int = 0) -> list[list[int]]:
    """A group's token ids: one opening, then random tokens of about `own` each."""
    rng = np.random.default_rng(seed)
    begin = rng.integers(3, SMOLLM2["vocab_size"], opening).tolist()
    lengths = rng.normal(own, own / 8, GROUP).astype(int)
    return [begin + rng.integers(3, SMOLLM2["vocab_size"], n).tolist() for n in lengths]


def passes(model: Any, group: list[list[int]], opening: int, alike: bool) -> Callable[[], None]:
    """Forward and backward pass of the group."""
    longest = max(map(len, group))
    ids = torch.zeros((len(group), longest), dtype=torch.long)
    for place, row in enumerate(group):
        ids[place, : len(row)] = torch.tensor(row)
    made = Openings(group, CPU) if alike else None
    places = [(r, c) for r, row in enumerate(group) for c in range(opening, len(row), 2)]
    r, c = (torch.tensor(each) for each in zip(*places, strict=True))
    parents = r * longest + c - 1 if made is None else made.places[r, c - 1]
    given = {"input_ids": ids} if made is None else made.inputs()

    def run() -> None:
        model.zero_grad()
        logprobs = model(**given, wanted=ScoredTokens(parents, ids[r, c]))[0]
        (-logprobs.mean()).backward()

    return run


def spent(run: Callable[[], None]) -> float:
    """Processor seconds of the better of two."""
    found = []
    for _ in range(2):
        begun = time.process_time()
        run()
        found.append(time.process_time() - begun)
    return min(found)


def measure() -> list[Figure]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SMOLLM2)).train()
    figures = []
    with scoring(model), attending():
        for opening, own, wanted in SHAPES:
            group = rows(opening, own)
            ours, theirs = (spent(passes(model, group, opening, each)) for each in (True, False))
            name = f"update, opening {opening}, own {own}, group {GROUP}: beside padded rows"
            figures.append(Figure(name, ours, theirs, "s", theirs / ours, wanted, True))
    return figures
