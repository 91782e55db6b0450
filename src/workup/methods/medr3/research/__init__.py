"""ReSearch: reasoning with searches, paid for format and answer alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workup.methods.medr3.progressive import STAGES, Component
from workup.methods.medr3.shared import PRINTED, ReasoningMethod, ReasoningSettings


class ReSearch(ReasoningMethod):
    """R = format + answer: Med-R³'s third stage without the first two."""

    paper = "ReSearch (Chen et al. 2025), as a baseline of Med-R3 (2025)"
    summary = "one thought with searches, paid for format and answer alone"
    printed: Mapping[str, Any] = {**PRINTED, "steps": 3 * PRINTED["steps"]}

    def rewards(self, settings: ReasoningSettings) -> Mapping[str, Sequence[Component]]:
        return {"grpo": STAGES[3]}


method = ReSearch()
