"""IGPO: each turn is rewarded by the gain in the live policy's probability of the diagnosis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from workup.environments.library import Library
from workup.methods.base.searching import Supervise, turn_gains
from workup.methods.cmig.shared import GainSettings, Granularity, SearchMethod


class Settings(GainSettings):
    """What can be set; the README beside this file says why the defaults are what they are."""

    scorer: Literal["reference", "policy"] = Field(
        "policy", description="who measures: a frozen reference or the live policy"
    )
    granularity: Granularity = Field(
        "turn", description="gains summed over the sequence, or each paid to its own turn"
    )
    w_g: float = Field(1.0, ge=0, description="weight of the turns' gains")


class Igpo(SearchMethod):
    """R_total = R_format + R_diag on the last turn, and on each earlier turn its own gain."""

    paper = (
        "Information Gain-based Policy Optimization (Wang et al. 2025), as a baseline of C-MIG "
        "(2026)"
    )
    summary = (
        "search and diagnose, each turn paid what it adds to the live policy's probability of "
        "the right diagnosis"
    )
    settings: type[Settings] = Settings
    environment: Mapping[str, Any] = {**SearchMethod.environment, "refine": False}
    printed: Mapping[str, Any] = {
        **SearchMethod.printed,
        "reward": {
            **SearchMethod.printed["reward"],
            "scorer": "policy",
            "granularity": "turn",
        },
    }

    def supervise(self, settings: Settings, library: Library) -> Supervise:
        return turn_gains(settings.w_g, settings.scorer)


method = Igpo()
