"""One turn with all evidence at once, and a diagnosis: the comparison of App. A.3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from workup.methods.evidence_seeking.shared import EvidenceMethod, RewardSettings, printed


class Settings(RewardSettings):
    """What can be set; the README beside this file says why the defaults are what they are."""

    bonus: float = Field(0.0, ge=0, le=0, description="B_e: nothing is ordered")


class DirectDiagnosis(EvidenceMethod):
    """A last turn alone: 1 for the right diagnosis, less the penalties."""

    summary = "one turn with the whole record, then a diagnosis; nothing is ordered"
    settings: type[Settings] = Settings
    environment: Mapping[str, Any] = {"name": "evidence", "max_turns": 1, "told": "record"}
    printed: Mapping[str, Any] = {
        **printed(bonus=0.0),
        "environment": {"max_turns": 1, "told": "record"},
    }


method = DirectDiagnosis()
