"""C-MIG: documents and refinements are rewarded by information gain.

The gain is what they add to a frozen reference's log-probability of the right diagnosis.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from workup.environments.library import Library
from workup.methods.base.searching import (
    AUTO,
    EncoderName,
    Gains,
    Likeness,
    Supervise,
    embedding,
    encoder_notes,
    exact_match,
    icd_tree,
    multi_view,
)
from workup.methods.cmig.shared import (
    PRINTED,
    GainSettings,
    NamingSettings,
    SearchMethod,
    naming_of,
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
    order: Literal[1, 2] = Field(
        2, description="R_doc from second differences (as printed) or first ones"
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


class Cmig(SearchMethod):
    """R_total = R_format + R_diag + R_doc; if the diagnosis is wrong, R_refine is added."""

    paper = (
        "C-MIG: Multi-view Information Gain-based Retrieval-Augmented Generation for Clinical "
        "Diagnosis Reasoning (2026)"
    )
    summary = (
        "search and refine, paid by what documents and refinements add to a frozen reference's "
        "belief in the truth"
    )
    settings: type[Settings] = Settings
    environment: Mapping[str, Any] = {**SearchMethod.environment, "subqueries": 3}
    printed: Mapping[str, Any] = {
        **PRINTED,
        "environment": {**PRINTED["environment"], "subqueries": 3},
        "reward": {
            **PRINTED["reward"],
            "w_d": 1.0,
            "alpha_d": 1.0,
            "w_r": 0.1,
            "order": 2,
            "half_positive": True,
            "diagnosis": "exact",
            "scorer": "reference",
            "granularity": "sequence",
        },
    }

    def notes(self, settings: Settings) -> tuple[str, ...]:
        return encoder_notes(settings.encoder) if settings.diagnosis == "embedding" else ()

    def likeness(self, settings: Settings) -> Likeness:
        if settings.diagnosis == "embedding":
            return embedding(settings.encoder, settings.threshold)
        return (
            icd_tree(settings.release, settings.names)
            if settings.diagnosis == "icd-tree"
            else exact_match
        )

    def supervise(self, settings: Settings, library: Library) -> Supervise:
        s = settings
        gains = Gains(s.w_d, s.alpha_d, s.w_r, s.order, s.half_positive, s.joined)
        return multi_view(gains, s.scorer, naming_of(s, library))


method = Cmig()
