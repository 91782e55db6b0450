"""A judge of lists that looks for no hacks: a name for a group is a hit if the truth is in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from workup.core.errors import UserError
from workup.environments.evidence import EvidenceSeeking
from workup.methods.evidence_seeking.shared import EvidenceMethod, RankedSettings, printed
from workup.roles.judges.exact import CredulousRanking, ExactRanking


class Settings(RankedSettings):
    """What can be set; the README beside this file says why the defaults are what they are."""

    hack: float = Field(0.0, ge=0, le=0, description="P_h: this judge sees no hack")


class NoHackDetection(EvidenceMethod):
    """R_d + R_e by a credulous judge; what is measured is still judged by the exact one."""

    summary = "ranked lists are paid by a judge that takes a name for a group for the disease"
    settings: type[Settings] = Settings
    printed: Mapping[str, Any] = printed(tau=0.8, tau_informed=1.5, hack=0.0)

    def paid(self, environment: EvidenceSeeking) -> EvidenceSeeking:
        if not isinstance(environment.ranking, ExactRanking):
            raise UserError(
                "no-hack-detection has a judge of lists of its own: leave out roles.ranking"
            )
        return environment.with_parts(ranking=CredulousRanking(environment.catalogue))


method = NoHackDetection()
