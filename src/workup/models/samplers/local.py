"""The sampler in this process: the module itself samples, with its own prefix cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workup.models.samplers import How

if TYPE_CHECKING:
    from workup.core.ports import Model
    from workup.models.local import LocalPolicy
    from workup.models.scorer import LocalScorer


@dataclass(frozen=True)
class LocalModel:
    """Implements `LanguageModel` on a causal language model of transformers."""

    policy: LocalPolicy

    @property
    def parameters(self) -> int:
        return sum(tensor.numel() for tensor in self.policy.model.parameters())

    def chat(self, name: str) -> Model | None:
        from workup.models.chat import LocalChat
        from workup.models.tiny import converses

        tokenizer = self.policy.tokenizer
        if not converses(tokenizer):
            return None
        return LocalChat(self.policy.model, tokenizer, name)

    def scorer(self) -> LocalScorer:
        from workup.models.scorer import LocalScorer

        return LocalScorer(self.policy)


def open(place: str, how: How) -> LocalModel:
    """The weights of a model folder or a hub id. Raises UserError where there are none."""
    import torch

    from workup.models.weights import load

    torch.set_num_threads(how.threads)
    return LocalModel(follow(*load(place, dtype=how.dtype), how))


def follow(model: Any, tokenizer: Any, how: How) -> LocalPolicy:
    """A policy that samples from the model itself, whatever its weights are by then."""
    from workup.models.local import LocalPolicy

    return LocalPolicy(model, tokenizer, max_batch=how.concurrency)
