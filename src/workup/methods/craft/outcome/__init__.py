"""The plain outcome reward: right or wrong.

It is the baseline that every other method is compared with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workup.core.ports import Environment, Reward
from workup.methods.base.outcome import correctness
from workup.methods.craft.shared import ConsultationMethod, ConsultationSettings


class Settings(ConsultationSettings):
    """What can be set; the README beside this file says why the defaults are what they are."""


class Outcome(ConsultationMethod):
    """R(τ) = acc(d̂, d*), less a penalty if there is no valid diagnosis."""

    paper = "the naive reward of CRAFT (Li, Shung, Stadie 2026), section 3.3"
    summary = "plain outcome reward: 1 for the right diagnosis, 0 for a wrong one"
    settings: type[Settings] = Settings
    printed: Mapping[str, Any] = {
        **ConsultationMethod.printed,
        "reward": {**ConsultationMethod.printed["reward"], "penalty": 0.0},
    }

    def reward(self, settings: Settings, environment: Environment) -> Reward:
        return correctness(settings.penalty)


method = Outcome()
