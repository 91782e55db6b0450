"""Every hit in the list is paid alike: the 0/1 reward of Table 3."""

from __future__ import annotations

from workup.methods.evidence_seeking.ranked import Weights
from workup.methods.evidence_seeking.shared import EvidenceMethod, RewardSettings


class Settings(RewardSettings):
    """What can be set; the README beside this file says why the defaults are what they are."""

    def weights(self) -> Weights:
        return Weights(rank="binary", B_e=self.bonus, P_h=self.hack, P_f=self.malformed)


class BinaryList(EvidenceMethod):
    """R_d = 1 where the list holds the truth, whatever its place and the list's length."""

    summary = "ranked lists paid 1 for a hit anywhere, whatever its place and the list's length"
    settings: type[Settings] = Settings


method = BinaryList()
