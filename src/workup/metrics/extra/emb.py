"""Cosine similarity of diagnosis and truth, 0 below a threshold (C-MIG Eq. 12).

Option: a sentence-transformers model.

The paper trains with this measure and does not evaluate by it: similar embeddings need not mean the
same diagnosis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from workup.core.case import Case
from workup.core.episode import Episode
from workup.core.errors import UserError
from workup.metrics.extra import Measure, Models, Values
from workup.metrics.metric import PAGED, Metric
from workup.metrics.naming import claimed

TAU = 0.6
MOST = 1 << 12  # embeddings that are remembered
Embed = Callable[[Sequence[str]], NDArray[np.floating]]
"""texts → [len(texts), dimension], unit vectors."""
METRICS = (
    Metric(
        "emb", "cosine similarity of diagnosis and truth, 0 below 0.6", "Emb", rank=110, where=PAGED
    ),
)


def open(option: str, cases: Sequence[Case], models: Models) -> Measure:
    """The measure.

    Raises UserError without an option, for a model that does not exist, or without
    sentence-transformers.
    """
    if not option:
        raise UserError(
            "measure 'emb' needs a sentence-transformers model: a folder or a hub id, as in "
            "emb:FOLDER"
        )
    from workup.retrieval.dense import Encoder

    return Embedding(Encoder(option).documents).measure


class Embedding:
    """Emb = cos(f(ŷ), f(y)) if that is at least τ, else 0; the nearest of the truth's names counts.

    Each name is embedded once.
    """

    def __init__(self, embed: Embed, tau: float = TAU) -> None:
        self._embed, self._tau = embed, tau
        self._known: dict[str, NDArray[np.floating]] = {}

    async def measure(self, episode: Episode, correct: bool) -> Values:
        return {"emb": self.score(episode.answer[0], episode.case) if episode.answer else 0.0}

    def score(self, answer: str, case: Case) -> float:
        """Emb in [0, 1]; 0 for an answer that is blank, denied, doubted or one of several."""
        names = [name for name in (case.truth.diagnosis, *case.truth.aliases) if name.strip()]
        if not answer.strip() or not names or not claimed(answer, case):
            return 0.0
        self._learn((answer, *names))
        cosine = min(1.0, max(float(self._known[answer] @ self._known[name]) for name in names))
        return cosine if cosine >= self._tau else 0.0

    def _learn(self, names: Sequence[str]) -> None:
        if len(self._known) > MOST:
            self._known.clear()
        new = [name for name in dict.fromkeys(names) if name not in self._known]
        if new:
            self._known.update(zip(new, self._embed(new), strict=True))
