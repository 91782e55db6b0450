"""Rejection sampling: the best of four episodes of each case is imitated."""

from __future__ import annotations

from collections.abc import Sequence

from workup.core.ports import Environment
from workup.core.stages import KeptStage, SearchStage, Stage
from workup.methods.base.outcome import correctness
from workup.methods.craft.outcome import Outcome, Settings
from workup.rl.explorers import best, samples


class BestOfFour(Outcome):
    """The outcome baseline without reinforcement."""

    summary = "imitates the best of four episodes of each case"

    def stages(self, settings: Settings, environment: Environment) -> Sequence[Stage]:
        warm_start, _ = super().stages(settings, environment)
        found = SearchStage(
            "best of four", samples(4), correctness(settings.penalty), best, cases=200
        )
        return warm_start, found, KeptStage("imitation", of=found.name)


method = BestOfFour()
