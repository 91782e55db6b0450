"""An advantage estimator for verl that returns the advantages Workup has computed."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from verl.trainer.ppo.core_algos import register_adv_est

from workup.engines.verl.mapping import ESTIMATOR


@register_adv_est(ESTIMATOR)  # type: ignore[untyped-decorator]
def advantages(
    token_level_rewards: Tensor, response_mask: Tensor, **_: Any
) -> tuple[Tensor, Tensor]:
    """Advantages and returns, both (B, T): what was credited to the policy's own tokens.

    verl calls them rewards until here. It compares nothing with the group again.
    """
    own = token_level_rewards * response_mask
    return own, own
