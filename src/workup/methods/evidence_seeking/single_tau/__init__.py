"""One τ for all lists, whether results are known or not (Table 3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from workup.methods.evidence_seeking.ranked import Weights
from workup.methods.evidence_seeking.shared import EvidenceMethod, RewardSettings, printed


class Settings(RewardSettings):
    """What can be set; the README beside this file says why the defaults are what they are."""

    tau: float = Field(0.8, ge=0, description="τ of all lists; Table 3 has 0.8 and 1.5")

    def weights(self) -> Weights:
        return Weights(self.tau, self.tau, "ranked", self.bonus, self.hack, self.malformed)


class SingleTau(EvidenceMethod):
    """R_d with the same τ in every turn."""

    summary = "ranked lists paid by rank and length, with one τ for lists with and without results"
    settings: type[Settings] = Settings
    printed: Mapping[str, Any] = printed(tau=0.8)


method = SingleTau()
