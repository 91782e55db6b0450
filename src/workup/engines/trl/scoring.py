"""Log-probabilities of chosen tokens only: the output layer runs only at scored tokens.

For a small model the output layer is most of the work, and most tokens of a transcript are the
environment's. The layer runs inside the model's own forward pass, by a keyword argument, because
wrappers (data parallel, sharding, adapters) see only what goes through `forward`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from trl.kernels import ChunkedLogProbFunction

from workup.core.errors import UserError

CHUNK = 32_768  # vocabulary entries per tile of TRL's kernel
RESCALED = (
    "logit_scale",
    "logits_scaling",
    "output_multiplier",
    "lm_head_multiplier",
    "final_logit_softcapping",
)


@dataclass(frozen=True)
class ScoredTokens:
    """The tokens to score.

    `parents` indexes the flattened (batch · length) positions that predict them, `targets` are
    their ids, both (N,). `entropy` asks for the predictive entropy too, `differentiable` for its
    gradient.
    """

    parents: Tensor
    targets: Tensor
    temperature: float = 1.0
    entropy: bool = False
    differentiable: bool = False


@contextmanager
def scoring(model: Any) -> Iterator[None]:
    """A context in which `model(…, wanted=Wanted(…))` returns log-probabilities and entropies.

    Each is (N,) float32; entropies are None unless they are wanted. `model` is a transformers
    causal language model without its adapters. Other patches of `forward` made meanwhile (TRL makes
    one) are also undone at the end. Raises UserError for models that rescale their logits.
    """
    config = model.config.get_text_config()
    for name in RESCALED:
        if getattr(config, name, None) not in {None, 1}:
            raise UserError(
                f"model type '{config.model_type}' rescales its logits ({name}), which this "
                "engine does not support"
            )
    before = vars(model).get("forward")
    model.forward = MethodType(_forward(model.forward, type(model).forward), model)
    try:
        yield
    finally:
        if before is None:
            del model.forward
        else:
            model.forward = before


def _forward(original: Any, signature: Any) -> Any:
    @functools.wraps(signature)
    def forward(self: Any, *args: Any, wanted: ScoredTokens | None = None, **kwargs: Any) -> Any:
        if wanted is None:
            return original(*args, **kwargs)
        hidden = self.base_model(*args, **kwargs, use_cache=False).last_hidden_state
        head = self.get_output_embeddings()
        return _score(hidden.flatten(0, 1)[wanted.parents], head.weight, head.bias, wanted)

    return forward


def _score(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, wanted: ScoredTokens
) -> tuple[Tensor, Tensor | None]:
    if hidden.is_cuda:
        # Never holds all the logits: with a large vocabulary they would not fit.
        outputs = ("entropy",) if wanted.entropy else ()
        found = ChunkedLogProbFunction.apply(
            hidden, weight, bias, wanted.targets, wanted.temperature, CHUNK, None, 1.0, outputs
        )
        return found[0], found[1]
    logits = F.linear(hidden, weight, bias).float()
    if wanted.temperature != 1.0:
        logits = logits / wanted.temperature
    if not wanted.entropy:
        return -F.cross_entropy(logits, wanted.targets, reduction="none"), None
    logprobs = logits.log_softmax(-1)
    with torch.set_grad_enabled(wanted.differentiable and torch.is_grad_enabled()):
        entropy = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs.gather(-1, wanted.targets[:, None])[:, 0], entropy
