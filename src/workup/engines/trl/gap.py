"""How far the sampler's log-probabilities are from the trainer's, at the same weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from workup.core.errors import WorkupError

EXACT = 1e-3  # nats: the largest difference of any token in float32; seen are 1e-5
# Nats, as a mean over tokens in half precision: where the module that is trained samples itself,
# and where another program does, whose kernels round differently (a standard deviation of .05).
OWN, FOREIGN = 2e-2, 1e-1


@dataclass(frozen=True)
class Tolerance:
    """What a sampler may differ by.

    `exact` says that it and the trainer compute in float32, `own` that it runs the trained module.
    """

    exact: bool
    own: bool

    def check(self, gap: Tensor, temperature: float) -> None:
        """Raises WorkupError if the differences `gap` (tokens,), in nats, are too large.

        A misalignment, or weights that did not reach the sampler, show nowhere else.
        """
        if not gap.numel():
            return
        sizes = gap.abs()
        found = (sizes.max() if self.exact else sizes.mean()).item()
        limit = EXACT if self.exact else OWN if self.own else FOREIGN
        if not found <= limit:
            raise WorkupError(
                f"the trainer's log-probabilities differ from the sampler's by {found:.2g} nats "
                f"(limit {limit:g}): episodes must come from this very model, without top-p, "
                f"top-k or masks, at temperature {temperature:g}"
            )


def summary(gaps: Sequence[NDArray[np.float32]]) -> dict[str, float]:
    """The metrics of the differences log p_trainer − log p_sampler of a step's tokens.

    `gap_mean` and `gap_p95` are the mean and the 95th percentile of their sizes, in nats. `gap_kl`
    estimates KL(sampler ‖ trainer) per token as the mean of r − 1 − log r with r = p_trainer /
    p_sampler (k3 of Schulman, "Approximating KL divergence", 2020), which is never negative.
    """
    differences = np.concatenate(gaps).astype(np.float64)
    sizes = np.abs(differences)
    return {
        "gap_mean": float(sizes.mean()),
        "gap_p95": float(np.quantile(sizes, 0.95)),
        "gap_kl": float((np.expm1(differences) - differences).mean()),
    }
