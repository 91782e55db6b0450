"""What the methods of search–refine–diagnose share (C-MIG and its baselines).

These are the settings, the environment and the stages. A method adds its own `likeness` (R_diag)
and `supervise` (R_doc, R_process).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from workup.core.ports import Credit, Environment, Teaching
from workup.core.stages import GrpoStage, SftStage, Stage
from workup.environments.library import Library, library_of
from workup.methods.base.naming import Naming, Rule
from workup.methods.base.searching import (
    Composition,
    Likeness,
    Supervise,
    View,
    exact_match,
    hard,
    search_reward,
    turn_credit,
    unsupervised,
)
from workup.rl.credit import Normalise, zscore

Granularity = Literal["sequence", "turn"]


class SearchSettings(BaseModel):
    """The settings of all these methods; the methods' READMEs give the reasons for the defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    w_f: float = Field(1.0, ge=0, description="reward of a well-formed episode")
    composition: Composition = Field(
        "nonlinear",
        description="nonlinear: R_process only where the diagnosis is wrong; linear: sum",
    )
    normalise: Normalise = Field(
        "group_std", description="how returns become advantages; group_std is GRPO as printed"
    )


class GainSettings(SearchSettings):
    """Settings of the methods that measure information gains."""

    scorer: Literal["reference", "policy"] = Field(
        "reference", description="who measures: a frozen reference or the live policy"
    )
    granularity: Granularity = Field(
        "sequence", description="gains summed over the sequence, or each paid to its own turn"
    )
    gamma: float = Field(
        1.0, ge=0, le=1, description="discount of later turns' rewards (granularity=turn only)"
    )


class NamingSettings(SearchSettings):
    """Settings of the methods that pay for refinements or queries."""

    naming: Rule = Field(
        "printed",
        description=(
            "which refinements and queries count: printed, each; strict, those that do not deny "
            "the right diagnosis and name no disease that was not read (a query one at most)"
        ),
    )


class HardSettings(SearchSettings):
    """Settings of the methods that reward naming the diagnosis in the process (AutoRefine)."""

    w_p: float = Field(
        0.1,
        ge=0,
        description="paid where the diagnosis is wrong, but what is looked at names the right one",
    )


PRINTED: Mapping[str, Any] = {
    "batch": 64,
    "group": 4,
    "lr": 6e-7,
    "beta": 0.001,
    "epsilon": 0.2,
    "loss_type": "grpo",
    "steps": 180,
    "max_tokens": 512,
    "environment": {"passages": 3, "max_turns": 4},
    "reward": {"w_f": 1.0, "composition": "nonlinear", "normalise": "group_std"},
}
"""What C-MIG prints for all of its runs (Eqs. 9 and 10, App. B.1 and H).

The response of at most 2,048 tokens is four completions here: those of three
searches (T_max), and the diagnosis.
"""


class WrittenSettings(HardSettings, NamingSettings):
    """Settings of the methods that reward naming the diagnosis in what the policy writes."""


def naming_of(settings: Any, library: Library) -> Naming:
    """What counts as naming the right diagnosis, among the diagnoses that the cases list."""
    rule = settings.naming if isinstance(settings, NamingSettings) else "printed"
    return Naming(rule, library.record.diagnoses)


class SearchMethod:
    """A `Method` whose searches have one query and bring the top-k passages."""

    paper: str
    summary: str
    settings: type[Any] = SearchSettings
    environment: Mapping[str, Any] = {"name": "library", "max_turns": 4, "subqueries": 0}
    printed: Mapping[str, Any] = PRINTED

    def stages(self, settings: Any, environment: Environment) -> Sequence[Stage]:
        library = library_of(environment)
        reward = search_reward(
            library.grammar,
            self.likeness(settings),
            self.supervise(settings, library),
            w_f=settings.w_f,
            composition=settings.composition,
        )
        scorers = (settings.scorer,) if isinstance(settings, GainSettings) else ()
        return SftStage("warm start", Teaching().demonstrate), GrpoStage(
            "grpo", reward, self.credit(settings), scorers
        )

    def notes(self, settings: Any) -> tuple[str, ...]:
        """What a run with these settings says at its start and in its report."""
        return ()

    def likeness(self, settings: Any) -> Likeness:
        return exact_match

    def supervise(self, settings: Any, library: Library) -> Supervise:
        return unsupervised

    def credit(self, settings: Any) -> Credit:
        if isinstance(settings, GainSettings) and settings.granularity == "turn":
            return turn_credit(settings.gamma)
        return zscore(settings.normalise)


class HardMethod(SearchMethod):
    """If the diagnosis is wrong, R_process = w_p·1[a ⊆ I_t] (Eq. 13); `view` says what I_t is."""

    settings: type[Any] = WrittenSettings
    printed: Mapping[str, Any] = {**PRINTED, "reward": {**PRINTED["reward"], "w_p": 0.1}}
    view: View = "refinement"

    def supervise(self, settings: Any, library: Library) -> Supervise:
        naming = naming_of(settings, library)
        return hard(self.view, settings.w_p, naming)
