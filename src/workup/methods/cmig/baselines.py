"""The baselines of C-MIG: free search, IGPO, and AutoRefine with the variants of section 3.1.

All have C-MIG's library, warm start and composition, with one query per search; they differ in
what pays for the diagnosis (`likeness`) and for the way there (`supervise`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from pydantic import Field

from workup.core.stages import Method
from workup.environments.library import Library
from workup.methods.base.encoders import AUTO, EncoderName, encoder_notes
from workup.methods.base.printed import with_reward
from workup.methods.cmig import (
    PRINTED,
    SEARCHES,
    GainSettings,
    Granularity,
    NamingSettings,
    SearchSettings,
    naming_of,
    search_stages,
)
from workup.methods.cmig.searching import (
    Supervise,
    View,
    embedding,
    hard,
    icd_tree,
    turn_gains,
)


class TurnGainSettings(GainSettings):
    """What can be set of IGPO."""

    scorer: Literal["reference", "policy"] = Field(
        "policy", description="who measures: a frozen reference or the live policy"
    )
    granularity: Granularity = Field(
        "turn", description="gains summed over the sequence, or each paid to its own turn"
    )
    w_g: float = Field(1.0, ge=0, description="weight of the turns' gains")


class HardSettings(SearchSettings):
    """Settings of the methods that reward naming the diagnosis in the process (AutoRefine)."""

    w_p: float = Field(
        0.1,
        ge=0,
        description="paid where the diagnosis is wrong, but what is looked at names the right one",
    )


class WrittenSettings(HardSettings, NamingSettings):
    """The same where the policy itself writes what is looked at."""


class EmbeddingSettings(WrittenSettings):
    """What can be set of AutoRefine-Embedding."""

    encoder: EncoderName = Field(
        AUTO,
        validate_default=True,
        description=(
            "a sentence-transformers model, trigrams, or auto: PubMedBERT where it is at hand, "
            "else trigrams"
        ),
    )
    threshold: float = Field(
        0.6, ge=0, le=1, description="τ, below which a likeness is worth nothing"
    )


class TreeSettings(WrittenSettings):
    """What can be set of AutoRefine-ICDTree."""

    release: Literal["cm", "who"] = Field("cm", description="ICD-10-CM or the WHO's ICD-10")
    names: str = Field(
        "",
        description="a file of further names of diseases and their codes: FILE or FILE#NAMES,CODES",
    )


def _naming(view: View) -> Callable[[Any, Library], Supervise]:
    """If the diagnosis is wrong, R_process = w_p·1[a ⊆ I_t] (Eq. 13); `view` says what I_t is."""
    return lambda s, library: hard(
        view, s.w_p, naming_of(s, library, "w_p" if s.w_p and view == "refinement" else "")
    )


_VARIANT = "(C-MIG 2026, section 3.1), a variant of AutoRefine (Shi et al. 2026)"
_UNREFINED = {**SEARCHES, "refine": False}
_HARD = with_reward(PRINTED, w_p=0.1)

baselines: Mapping[str, Method] = {
    "search-r1": Method(
        paper="Search-R1 (Jin et al. 2025), as a baseline of C-MIG (2026)",
        summary="search and diagnose, paid for an exactly matching diagnosis alone",
        settings=SearchSettings,
        environment=_UNREFINED,
        stages=search_stages(),
        printed=PRINTED,
    ),
    "igpo": Method(
        paper=(
            "Information Gain-based Policy Optimization (Wang et al. 2025), as a baseline of C-MIG "
            "(2026)"
        ),
        summary=(
            "search and diagnose, each turn paid what it adds to the live policy's probability of "
            "the right diagnosis"
        ),
        settings=TurnGainSettings,
        environment=_UNREFINED,
        stages=search_stages(supervise=lambda s, _: turn_gains(s.w_g, s.scorer)),
        printed=with_reward(PRINTED, scorer="policy", granularity="turn"),
    ),
    "autorefine": Method(
        paper="AutoRefine (Shi et al. 2026), as a baseline of C-MIG (2026)",
        summary=(
            "search and refine, paid for an exact diagnosis, or else a little for a refinement "
            "that names it"
        ),
        settings=WrittenSettings,
        environment=SEARCHES,
        stages=search_stages(supervise=_naming("refinement")),
        printed=_HARD,
    ),
    "autorefine-hardsearch": Method(
        paper=f"AutoRefine-HardSearch {_VARIANT}",
        summary="AutoRefine that pays a query naming the right diagnosis instead of a refinement",
        settings=WrittenSettings,
        environment=SEARCHES,
        stages=search_stages(supervise=_naming("query")),
        printed=_HARD,
    ),
    "autorefine-harddoc": Method(
        paper=f"AutoRefine-HardDoc {_VARIANT}",
        summary=(
            "AutoRefine that pays a retrieved document naming the right diagnosis instead of a "
            "refinement"
        ),
        settings=HardSettings,
        environment=SEARCHES,
        stages=search_stages(supervise=lambda s, world: hard("documents", s.w_p)),
        printed=_HARD,
    ),
    "autorefine-embedding": Method(
        paper=f"AutoRefine-Embedding {_VARIANT}",
        summary="AutoRefine whose diagnosis is paid by its embedding's cosine with the right one's",
        settings=EmbeddingSettings,
        environment=SEARCHES,
        stages=search_stages(lambda s: embedding(s.encoder, s.threshold), _naming("refinement")),
        printed=with_reward(_HARD, threshold=0.6),
        notes=lambda s: encoder_notes("R_diag", s.encoder),
    ),
    "autorefine-icdtree": Method(
        paper=f"AutoRefine-ICDTree {_VARIANT}",
        summary=(
            "AutoRefine whose diagnosis is paid by its nearness to the right one in the ICD-10 tree"
        ),
        settings=TreeSettings,
        environment=SEARCHES,
        stages=search_stages(lambda s: icd_tree(s.release, s.names), _naming("refinement")),
        printed=_HARD,
    ),
}
