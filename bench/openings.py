"""Training on a group whose episodes have one opening, which goes through the model once.

Forward and backward pass of one micro-batch of GRPO's update, a model of SmolLM2's size on one
thread, beside the same pass on padded rows. The policy wrote half of what follows the opening. The
log-probabilities have to be those of the padded rows.
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


def passes(
    model: Any, group: list[list[int]], opening: int, alike: bool
) -> Callable[[], torch.Tensor]:
    """Forward and backward pass of the group; it gives the log-probabilities."""
    longest = max(map(len, group))
    ids = torch.zeros((len(group), longest), dtype=torch.long)
    for place, row in enumerate(group):
        ids[place, : len(row)] = torch.tensor(row)
    made = Openings(group, CPU) if alike else None
    places = [(r, c) for r, row in enumerate(group) for c in range(opening, len(row), 2)]
    r, c = (torch.tensor(each) for each in zip(*places, strict=True))
    parents = r * longest + c - 1 if made is None else made.places[r, c - 1]
    given = {"input_ids": ids} if made is None else made.inputs()

    def run() -> torch.Tensor:
        model.zero_grad()
        calls = 0 if made is None else made.calls
        logprobs: torch.Tensor = model(**given, wanted=ScoredTokens(parents, ids[r, c]))[0]
        if made is not None:
            made.check(model, calls)
        (-logprobs.mean()).backward()  # type: ignore[no-untyped-call]
        return logprobs.detach()

    return run


def spent(run: Callable[[], torch.Tensor]) -> tuple[float, torch.Tensor]:
    """Processor seconds of the better of two, and the log-probabilities."""
    found = []
    for _ in range(2):
        begun = time.process_time()
        logprobs = run()
        found.append(time.process_time() - begun)
    return min(found), logprobs


def measure() -> list[Figure]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SMOLLM2)).train()
    figures = []
    with scoring(model), attending():
        for opening, own, wanted in SHAPES:
            group = rows(opening, own)
            (ours, alike), (theirs, apart) = (
                spent(passes(model, group, opening, each)) for each in (True, False)
            )
            torch.testing.assert_close(alike, apart, rtol=0, atol=1e-4)
            name = f"update, opening {opening}, own {own}, group {GROUP}: beside padded rows"
            figures.append(Figure(name, ours, theirs, "s", theirs / ours, wanted, True))
    return figures
