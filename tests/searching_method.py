"""A method with every kind of stage, for tests of whole runs.

It searches trees to learn from, prefers pairs, then runs GRPO. CASES_OF_A_STEP makes the steps of
its searches small in processes of their own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from workup.core.ports import Environment
from workup.core.stages import DpoStage, GrpoStage, KeptStage, Method, SearchStage, Stage
from workup.loops.training import search
from workup.methods.base.outcome import correctness
from workup.methods.promed import QUESTIONS, OutcomeSettings, warm_start
from workup.methods.promed.baselines import CaseSettings
from workup.rl.credit import zscore
from workup.rl.explorers import best, best_and_worst, samples, tree_search
from workup.rl.treesearch import Search

search.STEP = int(os.environ.get("CASES_OF_A_STEP", search.STEP))


class Settings(CaseSettings, OutcomeSettings):
    """No more than those that it is made of."""


def stages(settings: Settings, environment: Environment) -> Sequence[Stage]:
    reward = correctness(settings.penalty)
    return (
        warm_start(settings),
        SearchStage(
            "search", tree_search(Search(width=3, iterations=2)), reward, best, settings.cases
        ),
        KeptStage("sft", of="search"),
        SearchStage("pairs", samples(4), reward, best_and_worst, settings.cases),
        DpoStage("dpo", of="pairs"),
        GrpoStage("grpo", reward, zscore("batch_std")),
    )


method = Method(
    paper="no paper",
    summary="every kind of stage, one after the other",
    settings=Settings,
    environment=QUESTIONS,
    stages=stages,
)
