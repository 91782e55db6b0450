"""Rejection sampling: the best of four episodes of each case is imitated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from workup.core.ports import Environment
from workup.core.stages import KeptStage, SearchStage, Stage
from workup.methods.base.outcome import correctness
from workup.methods.craft import ConsultationSettings
from workup.methods.craft.baselines import baselines
from workup.rl.explorers import best, samples

outcome = baselines["outcome"]


def stages(settings: ConsultationSettings, environment: Environment) -> Sequence[Stage]:
    """The warm start of the outcome baseline, then imitation in place of reinforcement."""
    warm_start, _ = outcome.stages(settings, environment)
    found = SearchStage("best of four", samples(4), correctness(settings.penalty), best, cases=200)
    return warm_start, found, KeptStage("imitation", of=found.name)


method = replace(outcome, summary="imitates the best of four episodes of each case", stages=stages)
