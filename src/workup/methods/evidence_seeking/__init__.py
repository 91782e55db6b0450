"""Evidence-seeking diagnosis: ranked lists are paid by the truth's rank and their length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import Field

from workup.methods.evidence_seeking.ranked import Rank, Weights
from workup.methods.evidence_seeking.shared import EvidenceMethod, RankedSettings, printed


class Settings(RankedSettings):
    """What can be set; the README beside this file says why the defaults are what they are."""

    rank: Rank = Field(
        "ranked", description="R_d: ranked (Eq. 3), or binary (1 for a hit anywhere in the list)"
    )

    def weights(self) -> Weights:
        return replace(super().weights(), rank=self.rank)


class EvidenceSeekingMethod(EvidenceMethod):
    """Each turn is paid R_d + R_e − P_h·1[hack], or −P_f·n_f where its format is wrong."""

    paper = (
        "Reinforcement Learning for Evidence-Seeking Diagnostic Reasoning with Large Language "
        "Models (2026)"
    )
    summary = (
        "ranked candidates, ordered examinations, then a diagnosis; paid by rank, length and "
        "examinations"
    )
    settings: type[Settings] = Settings
    printed: Mapping[str, Any] = printed(rank="ranked", tau=0.8, tau_informed=1.5)


method = EvidenceSeekingMethod()
