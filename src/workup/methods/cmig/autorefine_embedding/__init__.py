"""AutoRefine-Embedding: AutoRefine with R_diag by embedding similarity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from workup.methods.base.searching import AUTO, EncoderName, Likeness, embedding, encoder_notes
from workup.methods.cmig.shared import HardMethod, WrittenSettings


class Settings(WrittenSettings):
    """What can be set; the README beside this file says why the defaults are what they are."""

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


class AutoRefineEmbedding(HardMethod):
    """As AutoRefine, with R_diag = cos(f(ŷ), f(y)) if that is at least τ, else 0 (Eq. 12)."""

    paper = (
        "AutoRefine-Embedding (C-MIG 2026, section 3.1), a variant of AutoRefine (Shi et al. 2026)"
    )
    summary = "AutoRefine whose diagnosis is paid by its embedding's cosine with the right one's"
    settings: type[Settings] = Settings
    printed: Mapping[str, Any] = {
        **HardMethod.printed,
        "reward": {**HardMethod.printed["reward"], "threshold": 0.6},
    }

    def notes(self, settings: Settings) -> tuple[str, ...]:
        return encoder_notes(settings.encoder)

    def likeness(self, settings: Settings) -> Likeness:
        return embedding(settings.encoder, settings.threshold)


method = AutoRefineEmbedding()
