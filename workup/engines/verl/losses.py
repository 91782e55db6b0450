"""Losses of supervised and DPO stages in verl's form.

verl pickles them by name and calls them on its workers, once per micro-batch. Every share is
multiplied by the number of workers, since these average their gradients.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional as F
from verl.utils.metric import AggregationType, Metric
from verl.workers.utils.padding import no_padding_2_padding


def supervised(
    model_output: Any, data: Any, dp_group: Any = None
) -> tuple[Tensor, dict[str, Metric]]:
    """−log π of the labelled tokens, averaged over all of the batch's."""
    mask = data["response_mask"].to_padded_tensor(0)
    logprobs = no_padding_2_padding(model_output["log_probs"], data)
    return -(logprobs * mask).sum() * (data["dp_size"] / data["batch_num_tokens"]), {}


def preference(
    model_output: Any, data: Any, dp_group: Any = None, *, beta: float
) -> tuple[Tensor, dict[str, Metric]]:
    """DPO's loss (Eq. 7), averaged over all of the batch's pairs, with margin and preferred.

    Rows 0, 2, … are chosen, rows 1, 3, … rejected. `global_batch_size` counts the rows of pairs;
    rows without a token of the policy are empty ones, which count nothing.
    """
    mask = data["response_mask"].to_padded_tensor(0)
    logprobs = no_padding_2_padding(model_output["log_probs"], data)
    gained = ((logprobs - data["ref_log_prob"].to_padded_tensor(0.0)) * mask).sum(1)
    real = mask[0::2].sum(1) > 0
    margins = beta * (gained[0::2] - gained[1::2])[real]
    share = data["dp_size"] / (data["global_batch_size"] / 2)
    told = {"margin": margins.detach().sum(), "preferred": (margins.detach() > 0).sum()}
    metrics = {name: Metric(AggregationType.SUM, float(v) * share) for name, v in told.items()}
    return -F.logsigmoid(margins).sum() * share, metrics
