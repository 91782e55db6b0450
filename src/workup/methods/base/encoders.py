"""Which encoder makes texts comparable: a setting of the methods that pay by likeness."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Annotated
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator

from workup.core.text import normalise
from workup.models.hub import at_hand
from workup.retrieval.dense import Encoder

Embed = Callable[[Sequence[str]], NDArray[np.floating]]  # texts → unit vectors [texts, width]

AUTO = "auto"
TRIGRAMS = "trigrams"
PUBMEDBERT = (
    "microsoft/BiomedNLP-BiomedBERT-base-uncased-abstract",
    "microsoft/BiomedNLP-BiomedBERT-base-uncased-abstract-fulltext",
    "microsoft/BiomedNLP-PubMedBERT-base-uncased-abstract",
    "microsoft/BiomedNLP-PubMedBERT-base-uncased-abstract-fulltext",
)
"""C-MIG's encoder, PubMedBERT (Eq. 12).

Two models were published, each under two names; the paper does not say which it used."""


def chosen(encoder: str) -> str:
    """`encoder`; for "auto" C-MIG's, if its weights are on this machine, else trigrams.

    It asks no server.
    """
    if encoder != AUTO:
        return encoder
    here = filter(at_hand, PUBMEDBERT) if find_spec("sentence_transformers") else iter(())
    return next(here, TRIGRAMS)


EncoderName = Annotated[str, AfterValidator(chosen)]
"""A setting that is resolved when the settings are read.

So a run's config.yaml names the encoder that it used, and a resumed run uses the same one."""


def embedder(encoder: str) -> Embed:
    """The encoder of this name: a sentence-transformers model, "trigrams" (no model), or "auto".

    Raises UserError for a model that does not exist.
    """
    name = chosen(encoder)
    return trigrams if name == TRIGRAMS else Encoder(name).documents


def encoder_notes(part: str, encoder: str) -> tuple[str, ...]:
    """The note of a run whose encoder is not PubMedBERT; `part` of its pay needs one."""
    if encoder in PUBMEDBERT:
        return ()
    stands_in = "counts of three neighbouring letters" if encoder == TRIGRAMS else encoder
    return (
        f"{part} by {stands_in}, not by a medical encoder; reward.encoder={PUBMEDBERT[0]} takes "
        "C-MIG's",
    )


def trigrams(texts: Sequence[str]) -> NDArray[np.float64]:
    """Unit vectors [len(texts), 4096]: the counts of three-letter sequences in normal forms."""
    counts = np.zeros((len(texts), 4096))
    for row, text in zip(counts, texts, strict=True):
        form = f"  {normalise(text)} "
        for start in range(len(form) - 2):
            row[crc32(form[start : start + 3].encode()) % 4096] += 1
    return np.asarray(counts / np.linalg.norm(counts, axis=1, keepdims=True))
