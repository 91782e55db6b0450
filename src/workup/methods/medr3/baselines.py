"""The baselines of Med-R³: fewer components in the reward, and imitation of references."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from workup.core.stages import Method
from workup.methods.base.printed import with_reward
from workup.methods.medr3 import PRINTED, SIX_TURNS, ReasoningSettings, references, warm_then_grpo
from workup.methods.medr3.progressive import STAGES


class SearcherSettings(ReasoningSettings):
    """What can be set of R1-Searcher."""

    least: int = Field(1, ge=1, description="searches from which their number pays")


baselines: Mapping[str, Method] = {
    # Med-R³'s third stage without the first two
    "research": Method(
        paper="ReSearch (Chen et al. 2025), as a baseline of Med-R3 (2025)",
        summary="one thought with searches, paid for format and answer alone",
        settings=ReasoningSettings,
        environment=SIX_TURNS,
        stages=lambda s, world: warm_then_grpo(s, world, {"grpo": STAGES[3]}),
        printed={**PRINTED, "steps": 3 * PRINTED["steps"]},
    ),
    "r1-searcher": Method(
        paper="R1-Searcher (Song et al. 2025), as a baseline of Med-R3 (2025)",
        summary="one thought with searches: paid for searching at all, then for the answer",
        settings=SearcherSettings,
        environment=SIX_TURNS,
        stages=lambda s, world: warm_then_grpo(
            s, world, {"search": ("format", "searches"), "answer": ("format", "answer")}
        ),
        # Three epochs, halved: every stage has as many steps. The paper's stages have one and two.
        printed={**with_reward(PRINTED, least=1), "steps": 62},
    ),
    "reference-sft": Method(
        paper="the SFT baseline of Med-R3 (2025)",
        summary="imitates reference reasoning with its searches, documents masked",
        settings=references.ReferenceSftSettings,
        environment=SIX_TURNS,
        stages=references.stages,
        printed={
            "tuning": {"lr": 2e-5, "lr_schedule": "cosine", "warmup": 0.03, "epochs": 3.0},
            "environment": {"passages": 5},
            "reward": {"references": 5},
        },
    ),
}
