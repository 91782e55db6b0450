"""Nothing is paid for the examinations themselves: R_e = 0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from workup.methods.evidence_seeking.shared import EvidenceMethod, RankedSettings, printed


class Settings(RankedSettings):
    """What can be set; the README beside this file says why the defaults are what they are."""

    bonus: float = Field(0.0, ge=0, le=0, description="B_e: nothing is paid for examinations")


class NoExaminationReward(EvidenceMethod):
    """R_d − P_h·1[hack]: examinations are worth what their results bring."""

    summary = "ranked lists and the diagnosis are paid, the orders themselves are not"
    settings: type[Settings] = Settings
    printed: Mapping[str, Any] = printed(tau=0.8, tau_informed=1.5, bonus=0.0)


method = NoExaminationReward()
