"""The baseline of CRAFT: only the reward differs."""

from __future__ import annotations

from collections.abc import Mapping

from workup.core.stages import Method
from workup.methods.base.outcome import correctness
from workup.methods.base.printed import with_reward
from workup.methods.craft import CONSULTATION, PRINTED, ConsultationSettings, warm_then_grpo

baselines: Mapping[str, Method] = {
    # R_naive(τ) = acc(d̂, d*), less a penalty if there is no valid diagnosis
    "outcome": Method(
        paper="the naive reward of CRAFT (Li, Shung, Stadie 2026), section 3.3",
        summary="plain outcome reward: 1 for the right diagnosis, 0 for a wrong one",
        settings=ConsultationSettings,
        environment=CONSULTATION,
        stages=lambda s, _: warm_then_grpo(s, correctness(s.penalty)),
        printed=with_reward(PRINTED, penalty=0.0),
    ),
}
