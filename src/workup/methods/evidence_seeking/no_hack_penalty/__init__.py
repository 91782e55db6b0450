"""A hack in a list costs nothing but the hit: P_h = 0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from workup.methods.evidence_seeking.shared import EvidenceMethod, RankedSettings, printed


class Settings(RankedSettings):
    """What can be set; the README beside this file says why the defaults are what they are."""

    hack: float = Field(0.0, ge=0, le=0, description="P_h: nothing is taken off for a hack")


class NoHackPenalty(EvidenceMethod):
    """R_d + R_e; a list with a hack has R_d = 0 and no penalty."""

    summary = "ranked lists and orders are paid, and a hack costs no more than the hit"
    settings: type[Settings] = Settings
    printed: Mapping[str, Any] = printed(tau=0.8, tau_informed=1.5, hack=0.0)


method = NoHackPenalty()
