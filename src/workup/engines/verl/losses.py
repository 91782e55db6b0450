"""Losses in verl's form, each with the figures that are logged of it.

verl pickles them by name and calls them on its workers, once per micro-batch. Every share is
multiplied by the number of workers, since these average their gradients.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional as F
from verl.trainer.ppo.core_algos import kl_penalty
from verl.utils.metric import AggregationType, Metric
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import no_padding_2_padding


def reinforced(
    model_output: Any, data: Any, dp_group: Any = None, *, config: Any
) -> tuple[Tensor, dict[str, Metric]]:
    """verl's own loss of its `config`, with means over all of the batch's policy tokens.

    These are entropy, where verl computes it, kl with a reference, and clip_ratio of a loss that
    clips. verl's own metrics are others: it averages the first two as it averages the loss, and the
    third over micro-batches.
    """
    mask = data["response_mask"].to_padded_tensor(0)
    old, worth = (data[name].to_padded_tensor(0.0) for name in ("old_log_probs", "advantages"))
    logprobs = no_padding_2_padding(model_output["log_probs"], data).detach()
    values: dict[str, Tensor] = {}
    if (entropy := model_output.get("entropy")) is not None:
        values["entropy"] = no_padding_2_padding(entropy, data).detach()
    if config.use_kl_loss:
        reference = data["ref_log_prob"].to_padded_tensor(0.0)
        values["kl"] = kl_penalty(logprobs, reference, config.kl_loss_type)
    # Of cispo clip_ratio_low is 1 (`mapping`): it bounds the ratio from above alone.
    if config.policy_loss.get("loss_mode", "vanilla") in ("vanilla", "cispo"):
        ratio = (logprobs - old).exp()
        low = (ratio < 1 - config.clip_ratio_low) & (worth < 0)
        values["clip_ratio"] = (low | (ratio > 1 + config.clip_ratio_high) & (worth > 0)).float()
    share = data["dp_size"] / data["batch_num_tokens"]
    told = {
        name: Metric(AggregationType.SUM, float((each * mask).sum()) * share)
        for name, each in values.items()
    }
    loss, metrics = ppo_loss(config, model_output, data, dp_group)
    return loss, metrics | told


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
