"""AutoRefine-Embedding: AutoRefine whose diagnosis is worth its likeness to the right one, by embedding."""

from __future__ import annotations

from pydantic import Field

from workup.signals.search_method import HardMethod, HardSettings
from workup.signals.searching import Likeness, embedding


class Settings(HardSettings):
    """What can be set; the README beside this file says why the defaults are what they are."""

    encoder: str = Field("trigrams", description="a sentence-transformers model, or trigrams where there is none")
    threshold: float = Field(0.6, ge=0, le=1, description="τ, below which a likeness is worth nothing")


class AutoRefineEmbedding(HardMethod):
    """As AutoRefine, with R_diag = cos(f(ŷ), f(y)) where that is at least τ, else 0 (Eq. 12)."""

    paper = "AutoRefine-Embedding (C-MIG 2026, section 3.1), a variant of AutoRefine (Shi et al. 2026)"
    summary = "AutoRefine whose diagnosis is paid by its embedding's cosine with the right one's"
    settings: type[Settings] = Settings

    def likeness(self, settings: Settings) -> Likeness:
        return embedding(settings.encoder, settings.threshold)


method = AutoRefineEmbedding()
