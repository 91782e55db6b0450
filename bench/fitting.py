"""Memory of an update for each parameter of the policy: whole weights and adapters, at two sizes.

Each measurement is a fresh process on the processor. Its transcript has eight tokens, so that
almost nothing but weights, gradients and the optimiser's state counts.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.figures import Figure

# SmolLM2's two smaller sizes: parameters in millions → layers, width, feed-forward width, heads,
# heads of keys and values.
SIZES = {"135": (30, 576, 1_536, 9, 3), "362": (32, 960, 2_560, 15, 5)}
VOCABULARY, TOKENS = 49_152, 8
# Bytes for each parameter in float32: weight, gradient and Adam's two moments, or the weight alone.
EXPECTED = {"whole": 16, "adapters": 4}


def measure() -> list[Figure]:
    figures = []
    for size in SIZES:
        for kind, expected in EXPECTED.items():
            done = subprocess.run(
                [sys.executable, "-m", "bench.fitting", size, kind],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            found = float(done.stdout)
            what = f"memory of an update, {size} M parameters, {kind}, beside {expected} bytes each"
            figures.append(Figure(what, found, expected, "B", found / expected, 1.25, False))
    return figures


def update(size: str, kind: str) -> None:
    """Makes two updates and prints by how much the peak memory rose, in bytes for each parameter.

    The optimiser's state is there from the first on.
    """
    import torch
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    from workup.core.episode import Sample
    from workup.engines.settings import EngineSettings, LoraSettings
    from workup.engines.trl.engine import TrlEngine
    from workup.models.local import LocalPolicy

    torch.set_num_threads(1)
    layers, width, inner, heads, shared = SIZES[size]
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=shared,
        tie_word_embeddings=True,
    )
    raw = Tokenizer(models.WordLevel({"<end>": 0}, unk_token="<end>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<end>", pad_token="<end>")
    before = peak()
    model = LlamaForCausalLM(config).eval()
    count = sum(tensor.numel() for tensor in model.parameters())
    lora = LoraSettings() if kind == "adapters" else None
    none = (0.0,) * TOKENS
    row = Sample(tuple(range(1, TOKENS + 1)), (True,) * TOKENS, none, none, (0,) * TOKENS)
    with TemporaryDirectory() as folder:
        engine = TrlEngine(LocalPolicy(model, tokenizer), EngineSettings(lora=lora), Path(folder))
        engine.on_step = lambda step, metrics: seen.append(peak())
        engine.sft([[row]] * 2, 2)
    print((seen[-1] - before) / count)


def peak() -> int:
    """Peak resident memory of this process, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


seen: list[int] = []  # the peak after each update, before anything is saved

if __name__ == "__main__":
    update(*sys.argv[1:])
