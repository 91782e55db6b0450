"""Weights that sample in another process, in the three uses of a `LanguageModel`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from workup.models.hub import readable
from workup.models.remote import RemotePolicy
from workup.models.samplers import How

if TYPE_CHECKING:
    from workup.core.ports import Model, Scorer

P = TypeVar("P", bound=RemotePolicy)


@dataclass(frozen=True)
class RemoteModel(Generic[P]):
    """Implements `LanguageModel`: weights elsewhere sample, transformers scores in this process."""

    place: str
    how: How
    policy: P
    config: Any

    @cached_property
    def parameters(self) -> int:
        import torch
        from transformers import AutoModelForCausalLM

        with torch.device("meta"), readable(self.place):
            model = AutoModelForCausalLM.from_config(self.config, trust_remote_code=False)
        return sum(tensor.numel() for tensor in model.parameters())

    def chat(self, name: str) -> Model | None:
        from workup.models.chat import LocalChat
        from workup.models.tiny import converses

        return LocalChat.over(self.policy, name) if converses(self.policy.tokenizer) else None

    def scorer(self) -> Scorer:
        from workup.models.samplers.local import open as open_local

        return open_local(self.place, self.how).scorer()
