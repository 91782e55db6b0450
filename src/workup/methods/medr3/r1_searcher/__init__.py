"""R1-Searcher: learns to search at all, then to answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from workup.methods.medr3.progressive import Component
from workup.methods.medr3.shared import PRINTED, ReasoningMethod, ReasoningSettings


class Settings(ReasoningSettings):
    """What can be set; the README beside this file says why the defaults are what they are."""

    least: int = Field(1, ge=1, description="searches from which their number pays")


class R1Searcher(ReasoningMethod):
    """Stage 1: R = format + 1[searched]. Stage 2: R = format + answer."""

    paper = "R1-Searcher (Song et al. 2025), as a baseline of Med-R3 (2025)"
    summary = "one thought with searches: paid for searching at all, then for the answer"
    settings: type[Settings] = Settings
    # Three epochs, halved: every stage has as many steps. The paper's stages have one and two.
    printed: Mapping[str, Any] = {
        **PRINTED,
        "steps": 62,
        "reward": {**PRINTED["reward"], "least": 1},
    }

    def rewards(self, settings: Settings) -> Mapping[str, Sequence[Component]]:
        return {"search": ("format", "searches"), "answer": ("format", "answer")}


method = R1Searcher()
