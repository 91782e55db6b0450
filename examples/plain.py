"""A sampler without a cache: each token is computed from the whole transcript."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import torch

from workup.core.episode import Completion
from workup.core.ports import Model, Sampling, Scorer
from workup.models.chat_tokens import ChatTokens, endings
from workup.models.local import draw
from workup.models.samplers import How, local


class Plain(ChatTokens):
    """Implements `LivePolicy` with one forward pass per token."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        super().__init__(tokenizer, endings(model.generation_config, tokenizer))
        self.model = model
        self.context = int(model.config.max_position_embeddings)

    def refresh(self) -> None:
        """Nothing is kept that new weights could make wrong."""

    async def sample(self, prompt: Sequence[int], sampling: Sampling) -> Completion:
        room = min(sampling.max_tokens, self.context - len(prompt))
        if room <= 0:
            return Completion("", truncated=True)
        tokens: list[int] = []
        logprobs: list[float] = []
        while len(tokens) < room:
            (token,), (logprob,) = self._next([*prompt, *tokens], sampling)
            tokens.append(token)
            logprobs.append(logprob)
            said = self.tokenizer.decode(tokens)
            if token in self.eos or any(stop in said for stop in sampling.stop):
                break
            await asyncio.sleep(0)  # the others have their turn, and a cancelled call ends here
        return self.completion(tokens, logprobs, room, sampling.stop)

    @torch.no_grad()
    def _next(self, tokens: list[int], sampling: Sampling) -> tuple[list[int], list[float]]:
        ids = torch.tensor([tokens], device=self.model.device)
        return draw(self.model(ids).logits[:, -1], [sampling], [len(tokens)])


class Weights:
    """Implements `LanguageModel`: our own policy, and the local sampler's other two uses."""

    def __init__(self, own: local.LocalModel) -> None:
        self.own = own
        self.policy = Plain(own.policy.model, own.policy.tokenizer)
        self.parameters = own.parameters

    def chat(self, name: str) -> Model | None:
        return self.own.chat(name)

    def scorer(self) -> Scorer:
        return self.own.scorer()


class Sampler:
    """What `sampler=plain:sampler` stands for."""

    def open(self, place: str, how: How) -> Weights:
        return Weights(local.open(place, how))

    def follow(self, model: Any, tokenizer: Any, how: How) -> Plain:
        return Plain(model, tokenizer)


sampler = Sampler()
