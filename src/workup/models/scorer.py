"""A local Hugging Face model as a scorer: log P of an answer after each of many contexts.

Contexts share their common prefixes (`scorer_trie`), concurrent requests share forward passes, and
values are remembered. The output layer runs only where an answer's token is predicted. No gradient
flows.
"""

from __future__ import annotations

import asyncio
import copy
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, Self

import numpy as np
import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from workup.core.errors import UserError
from workup.models.local import LocalPolicy
from workup.models.remembering import REMEMBERED, Remembering, Work
from workup.models.scorer_trie import PathAnswer, Sequenced, Slice, sequences, slices

BUDGET = {"cpu": 2_048, "cuda": 32_768}  # tokens of one forward pass
SLICE = 128  # queries that attend together
LOGITS = 1 << 28  # entries of the largest table of logits that is held
TOLERANCE = {torch.float32: 1e-2}
# Nats by which a packed answer may differ in half precision, where single logits are that coarse.
ROUGH = 0.5


class LocalScorer(Remembering):
    """A `Scorer` on the model of a `LocalPolicy`, with the weights at the time of the request.

    Call `refresh()` whenever they have changed. `frozen` makes a reference whose weights never
    change. With `adapters=False` it scores without the policy's adapters, that is with the weights
    that training leaves alone. `budget` limits the tokens of a forward pass, `remembered` the
    values kept. Raises UserError for models that cannot be packed.
    """

    def __init__(
        self,
        policy: LocalPolicy,
        *,
        adapters: bool = True,
        budget: int | None = None,
        remembered: int = REMEMBERED,
    ) -> None:
        super().__init__(policy, policy.context, remembered)
        self.policy, self.adapters = policy, adapters
        self.model: Any = policy.model
        self.budget = budget or BUDGET["cpu" if policy.device.type == "cpu" else "cuda"]
        self._check_attention()

    @classmethod
    def frozen(cls, policy: LocalPolicy, **settings: Any) -> Self:
        """A scorer on a copy of the policy's present model."""
        model = copy.deepcopy(policy.model).requires_grad_(False).eval()
        vars(model).pop("forward", None)  # an engine's, which would run the policy's own weights
        return cls(LocalPolicy(model, policy.tokenizer), **settings)

    # --- forward passes ---

    async def _step(self) -> None:
        """Scores what waits, in as few forward passes as fit the budget."""
        batch, self.waiting = self.waiting, []
        for part in sequences(batch, self.budget, LOGITS // self._vocabulary):
            self._deliver(part.wanted, self._forward(part))
            await asyncio.sleep(0)

    @property
    def _vocabulary(self) -> int:
        return int(self.model.get_output_embeddings().weight.shape[0])

    def _forward(self, part: Sequenced) -> list[float]:
        """log P of every answer of `part`, in nats."""
        began = time.perf_counter()
        with _scoring(self.model, self.adapters):
            logprobs = self._logprobs(part).double().cpu().numpy()
        self.work.tokens += len(part)
        self.work.forwards += 1
        self.work.seconds += time.perf_counter() - began
        lengths = [len(one.answer) for one in part.wanted]
        return [
            float(value)
            for value in np.add.reduceat(logprobs, [*accumulate(lengths[:-1], initial=0)])
        ]

    def _logprobs(self, part: Sequenced) -> torch.Tensor:
        """log P of every answer token, (answer tokens,) float32."""
        targets = [token for one in part.wanted for token in one.answer]
        tokens, positions, predictors, wanted = (
            torch.tensor(ids, device=self.policy.device)
            for ids in (part.tokens, part.positions, part.predictors, targets)
        )
        # a mask that `Branching` ignores, so that the model builds none of its own
        unused = torch.zeros((1, 1, 1, 1), dtype=self.model.dtype, device=self.policy.device)
        with (
            _only(self.model.get_output_embeddings(), predictors),
            Branching(part.ends, SLICE, unused),
        ):
            out = self.model(
                input_ids=tokens[None],
                attention_mask=unused,
                position_ids=positions[None],
                use_cache=False,
            )
        return -F.cross_entropy(out.logits[0].float(), wanted, reduction="none")

    def _check_attention(self) -> None:
        """Raises UserError if packed log-probabilities differ from those of single sequences.

        A few tokens are compared. Attention that is not torch's own, or a model that ignores the
        given positions, would otherwise fail silently.
        """
        try:
            apart = self._discrepancy()
        except (TypeError, ValueError, RuntimeError):
            apart = math.inf
        if not apart < TOLERANCE.get(self.model.dtype, ROUGH):
            raise UserError(
                f"model type '{self.model.config.model_type}' with "
                f"{self.model.config._attn_implementation} attention cannot be packed for scoring; "
                'load it with attn_implementation="sdpa", or use another model'
            )
        self.work = Work()

    def _discrepancy(self) -> float:
        """The largest difference (nats) between packed and ordinary passes for a small trie."""
        a, b, c, d, e = (i % self._vocabulary for i in range(5, 10))
        wanted = [
            PathAnswer(((a, b), (c,)), (d, e)),
            PathAnswer(((a, b), (d, e, a)), (c,)),
            PathAnswer(((a, b), (d, e, a), (b,)), (a, e)),
        ]
        (part,) = sequences(wanted, 64, 64)
        with _scoring(self.model, self.adapters):
            plain = [self._plain(one) for one in part.wanted]
        return float(np.abs(np.subtract(self._forward(part), plain)).max())

    def _plain(self, one: PathAnswer) -> float:
        """log P of an answer by the model's ordinary forward pass."""
        before = [i for run in one.path for i in run]
        answer = torch.tensor(one.answer, device=self.policy.device)
        ids = torch.tensor([[*before, *one.answer]], device=self.policy.device)
        logits = self.model(input_ids=ids, use_cache=False).logits[0, len(before) - 1 : -1]
        return -float(F.cross_entropy(logits.float(), answer, reduction="sum"))


class Branching(TorchFunctionMode):
    """A context in which each token of a sequence sees only its own past in the trie.

    It replaces torch's attention, whatever mask the model passes. `ends` is the sequence's, `like`
    a tensor of the model's type and device.
    """

    def __init__(self, ends: Sequence[int], width: int, like: torch.Tensor) -> None:
        super().__init__()
        self.slices = [self._ready(cut, like) for cut in slices(ends, width)]

    def _ready(
        self, cut: Slice, like: torch.Tensor
    ) -> tuple[slice, slice | torch.Tensor, torch.Tensor]:
        """The queries, the keys, and the mask as a term to add to the scores.

        From a boolean mask every layer would compute that term again.
        """
        mask = like.new_zeros(cut.seen.shape)
        mask.masked_fill_(~torch.from_numpy(cut.seen).to(like.device), torch.finfo(like.dtype).min)
        keys = (
            cut.keys if isinstance(cut.keys, slice) else torch.from_numpy(cut.keys).to(like.device)
        )
        return slice(cut.start, cut.stop), keys, mask

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        return self._attend(*args, **(kwargs or {}))

    def _attend(
        self,
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: Any = 0,
        **more: Any,
    ) -> torch.Tensor:
        """Takes and returns what `scaled_dot_product_attention` does, (1, heads, tokens, size)."""
        more["is_causal"] = False
        return torch.cat(
            [
                F.scaled_dot_product_attention(
                    query[:, :, part],
                    _pick(key, keys),
                    _pick(value, keys),
                    attn_mask=mask.to(query.dtype),
                    **more,
                )
                for part, keys, mask in self.slices
            ],
            dim=2,
        )


def _pick(states: torch.Tensor, keys: slice | torch.Tensor) -> torch.Tensor:
    """The `keys` of `states` (1, heads, tokens, size)."""
    if isinstance(keys, slice):
        return states[:, :, keys]
    # Whole rows of all heads are several times faster to pick.
    rows = states[0].transpose(0, 1).flatten(1).index_select(0, keys)
    return rows.view(len(keys), *states.shape[1::2]).transpose(0, 1)[None]


@contextmanager
def _only(head: Any, where: torch.Tensor) -> Iterator[None]:
    """A context in which the output layer `head` gets only these positions, as one sequence.

    `where` holds the positions in the flattened batch. A hook of the layer does it, so that what
    the model does to its logits afterwards still applies.
    """
    handle = head.register_forward_pre_hook(
        lambda module, inputs: (inputs[0].flatten(0, 1)[where][None],)
    )
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _scoring(model: Any, adapters: bool) -> Iterator[None]:
    """A context with the model as a scorer needs it: no dropout, no gradients, perhaps no adapters.

    Afterwards the model is as before.
    """
    training = model.training
    layers = (
        []
        if adapters
        else [
            m for m in model.modules() if isinstance(m, BaseTunerLayer) and not m.disable_adapters
        ]
    )
    learns = [(p, p.requires_grad) for layer in layers for p in layer.parameters()]
    if training:
        model.eval()
    for layer in layers:
        layer.enable_adapters(False)
    try:
        with torch.no_grad():
            yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)
        for parameter, learned in learns:
            parameter.requires_grad_(learned)
        if training:
            model.train()
