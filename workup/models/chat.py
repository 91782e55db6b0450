"""A local Hugging Face model in a supporting role, without a server."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from jinja2 import TemplateError

from workup.errors import RolloutError, UserError
from workup.models import hub, smollm2
from workup.models.local import LocalPolicy
from workup.models.structured import in_words
from workup.models.weights import load
from workup.ports import Reply, Request, Sampling
from workup.rl.rollout import seed_key

WEIGHTS = (".safetensors", ".bin")
TEXTS = (".json", ".jinja", ".model", ".txt")
# Transcripts kept in the KV cache. Prompts are long here: 4,000 tokens take a large model half a
# gigabyte.
TRANSCRIPTS = 16
THOUGHT = "</think>"


class LocalChat:
    """A `Model` on any transformers causal language model with full attention and a chat template.

    Concurrent requests share batches. Equal requests have equal answers: the sampling key is made
    from the request, and differs with `Request.sample`. A reasoning model's thought is not part of
    its answer.
    """

    def __init__(self, model: Any, tokenizer: Any, name: str) -> None:
        if tokenizer.chat_template is None:
            raise UserError(f"{name} has no chat template: it is no chat model")
        self.name = name
        self._policy = LocalPolicy(model, tokenizer, max_batch=TRANSCRIPTS)

    @classmethod
    def load(cls, spec: str) -> Self:
        """The model from smollm2, a model folder or a hub id.

        Its name holds a digest of the folder's files, or the hub's commit. Raises UserError if
        there is no such model.
        """
        model, tokenizer = load(spec)
        folder = Path(hub.weights(spec) if spec == smollm2.NAME else spec)
        if folder.is_dir():
            return cls(model, tokenizer, f"{folder.resolve().name}@{digest(folder)}")
        commit = Path(hub.cached(spec) or "unknown").name  # the cache has a folder for each commit
        return cls(model, tokenizer, f"{spec}@{commit}")

    async def complete(self, request: Request) -> Reply:
        """The model's answer.

        Raises RolloutError if the prompt does not fit the context, or the chat template refuses the
        messages.
        """
        prompt = self._prompt(request)
        room = self._policy.context - len(prompt)
        if room <= 0:
            raise RolloutError(
                f"{self.name}: the prompt as {request.role} has {len(prompt)} tokens, its "
                f"context {self._policy.context}"
            )
        sampling = Sampling(
            (), request.max_tokens, request.temperature, seed_key(self.name, request)
        )
        said = await self._policy.sample(prompt, sampling)
        return Reply(_answer(said.text), len(prompt), len(said.tokens), said.truncated)

    def _prompt(self, request: Request) -> tuple[int, ...]:
        *before, last = request.messages
        if request.schema:
            last = replace(last, content=last.content + in_words(request.schema))
        try:
            return self._policy.render((*before, last))
        except TemplateError as error:
            raise RolloutError(
                f"{self.name}: its chat template refuses the messages: {error}"
            ) from error


def digest(folder: Path) -> str:
    """A BLAKE2b digest (64 bits, hexadecimal) of a model folder's file names and contents.

    The files are weights, settings and tokenizer.
    """
    whole = hashlib.blake2b(digest_size=8)
    for path in sorted(folder.iterdir()):
        if path.suffix in (*WEIGHTS, *TEXTS):
            with path.open("rb") as file:
                part = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16))
            whole.update(path.name.encode() + b"\0" + part.digest())
    return whole.hexdigest()


def _answer(text: str) -> str:
    """The text after the thought; nothing while the thought is not over."""
    thought, closed, answer = text.partition(THOUGHT)
    if closed:
        return answer.strip()
    return "" if thought.lstrip().startswith("<think>") else text
