"""C-MIG: documents and refinements are rewarded by information gain.

The gain is what they add to a frozen reference's log-probability of the right diagnosis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from workup.core.errors import UserError
from workup.core.ports import Environment, Teaching
from workup.core.shapes import FrozenModel
from workup.core.stages import GrpoStage, Method, SftStage, Stage
from workup.environments.library import Library, library_of
from workup.methods.base.encoders import AUTO, EncoderName, encoder_notes
from workup.methods.base.printed import with_reward
from workup.methods.cmig.information_gain import Order
from workup.methods.cmig.naming import NamingRule, Rule
from workup.methods.cmig.searching import (
    Composition,
    GainWeights,
    Likeness,
    Supervise,
    embedding,
    exact_match,
    icd_tree,
    multi_view,
    search_reward,
    turn_credit,
    unsupervised,
)
from workup.rl.credit import Normalise, zscore

Granularity = Literal["sequence", "turn"]
SEARCHES: Mapping[str, Any] = {"name": "library", "max_turns": 4, "subqueries": 0}
"""Every search has one query and brings its best passages."""

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


class SearchSettings(FrozenModel):
    """The settings of C-MIG and its baselines; the README gives the reasons for the defaults."""

    w_f: float = Field(1.0, ge=0, description="reward of a well-formed episode")
    composition: Composition = Field(
        "nonlinear",
        description="nonlinear: R_process only where the diagnosis is wrong; linear: sum",
    )
    normalise: Normalise = Field(
        "group_std",
        description="how returns become advantages, where the whole sequence is paid; group_std is "
        "GRPO as printed",
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


class Settings(GainSettings, NamingSettings):
    """What can be set; the README beside this file says why the defaults are what they are."""

    w_d: float = Field(1.0, ge=0, description="weight of R_doc (C-MIG-D); 0 leaves that view out")
    alpha_d: float = Field(1.0, gt=0, description="α_d: sensitivity of R_doc")
    w_r: float = Field(
        0.1,
        ge=0,
        description="R_refine of the batch's better half (C-MIG-R); 0 leaves that view out",
    )
    order: Order = Field(
        2,
        description="R_doc from second differences (as printed), first ones, or with 0 first ones "
        "from the first search on",
    )
    half_positive: bool = Field(True, description="R_doc counts no losses (as printed)")
    joined: Literal["all", "last"] = Field("all", description="which refinements are s_refine")
    diagnosis: Literal["exact", "embedding", "icd-tree"] = Field("exact", description="R_diag")
    encoder: EncoderName = Field(
        AUTO,
        validate_default=True,
        description="diagnosis=embedding: as in autorefine-embedding, a model, trigrams or auto",
    )
    threshold: float = Field(
        0.6,
        ge=0,
        le=1,
        description="diagnosis=embedding: τ, below which a likeness is worth nothing",
    )
    release: Literal["cm", "who"] = Field(
        "cm", description="diagnosis=icd-tree: ICD-10-CM or the WHO's ICD-10"
    )
    names: str = Field(
        "", description="diagnosis=icd-tree: a file of further names of diseases and their codes"
    )


def search_stages(
    likeness: Callable[[Any], Likeness] = lambda settings: exact_match,
    supervise: Callable[[Any, Library], Supervise] = lambda settings, library: unsupervised,
) -> Callable[[Any, Environment], Sequence[Stage]]:
    """The stages of C-MIG and its baselines: a warm start, then GRPO.

    `likeness(settings)` is R_diag. `supervise(settings, library)` is what pays the way there.
    """

    def stages(settings: Any, environment: Environment) -> Sequence[Stage]:
        library = library_of(environment)
        reward = search_reward(
            library.grammar,
            likeness(settings),
            supervise(settings, library),
            w_f=settings.w_f,
            composition=settings.composition,
        )
        gains = isinstance(settings, GainSettings)
        by_turn = gains and settings.granularity == "turn"
        credit = turn_credit(settings.gamma) if by_turn else zscore(settings.normalise)
        return (
            SftStage("warm start", Teaching().demonstrate),
            GrpoStage("grpo", reward, credit, (settings.scorer,) if gains else ()),
        )

    return stages


def naming_of(settings: NamingSettings, library: Library, refining: str = "") -> NamingRule:
    """What counts as naming the right diagnosis, among the diagnoses that the cases list.

    Raises UserError where refinements are paid, by the weight `refining`, but cannot be written.
    """
    if refining and not library.grammar.refine:
        raise UserError(
            f"environment.refine=false leaves out the refinements that reward.{refining} pays for: "
            f"type reward.{refining}=0, or leave refine as it is"
        )
    return NamingRule(settings.naming, library.record.diagnoses, library.library)


def _likeness(settings: Settings) -> Likeness:
    if settings.diagnosis == "embedding":
        return embedding(settings.encoder, settings.threshold)
    if settings.diagnosis == "icd-tree":
        return icd_tree(settings.release, settings.names)
    return exact_match


def _views(settings: Settings, library: Library) -> Supervise:
    s = settings
    gains = GainWeights(s.w_d, s.alpha_d, s.w_r, s.order, s.half_positive, s.joined)
    return multi_view(gains, s.scorer, naming_of(s, library, "w_r" if s.w_r else ""))


# R_total = R_format + R_diag + R_doc; if the diagnosis is wrong, R_refine is added.
method = Method(
    paper=(
        "C-MIG: Multi-view Information Gain-based Retrieval-Augmented Generation for Clinical "
        "Diagnosis Reasoning (2026)"
    ),
    summary=(
        "search and refine, paid by what documents and refinements add to a frozen reference's "
        "belief in the truth"
    ),
    settings=Settings,
    environment={**SEARCHES, "subqueries": 3},
    stages=search_stages(_likeness, _views),
    printed={
        **with_reward(
            PRINTED,
            w_d=1.0,
            alpha_d=1.0,
            w_r=0.1,
            order=2,
            half_positive=True,
            diagnosis="exact",
            scorer="reference",
            granularity="sequence",
        ),
        "environment": {**PRINTED["environment"], "subqueries": 3},
    },
    notes=lambda s: encoder_notes("R_diag", s.encoder) if s.diagnosis == "embedding" else (),
)
