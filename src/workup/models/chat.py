"""A local Hugging Face model in a supporting role, without a server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

from workup.core.draws import seed_key
from workup.core.errors import RolloutError, UserError
from workup.core.ports import Reply, Request, Sampling
from workup.models import hub
from workup.models.grammar import Grammar, Guide
from workup.models.local import LocalPolicy
from workup.models.remote import RemotePolicy
from workup.models.structured import in_words
from workup.models.weights import load

# Transcripts kept in the KV cache. Prompts are long here: 4,000 tokens take a large model half a
# gigabyte.
TRANSCRIPTS = 16
THOUGHT = "</think>"
_THINK = "<think>"
_BEGUN = 8  # of a prompt's last tokens, in which a template may begin the thought
HELD = "+schema"  # ends the name of a model whose answers are held to their schemas


class LocalChat:
    """A `Model` on any transformers causal language model with full attention and a chat template.

    Raises UserError for a model without one or the other.

    Concurrent requests share batches. Equal requests have equal answers: the sampling key is made
    from the request, and differs with `Request.sample`. A reasoning model's thought is not part of
    its answer, unless the request wants it whole.

    An answer with a schema is held to it while it is drawn (`workup.models.grammar`). A text in it
    has at most half as many characters as the answer may have tokens, and the model is told so: a
    text that runs on would leave no room for the rest. Where answers cannot be held to schemas,
    `notes` says why, and they are checked alone; `name` tells the two apart.
    """

    def __init__(self, model: Any, tokenizer: Any, name: str) -> None:
        if tokenizer.chat_template is None:
            raise UserError(f"{name} has no chat template: it is no chat model")
        self._policy: LocalPolicy | RemotePolicy = LocalPolicy(
            model, tokenizer, max_batch=TRANSCRIPTS
        )
        self.notes: list[str] = []
        width = model.get_output_embeddings().weight.shape[0]
        self._grammar = self._held(tokenizer, width)
        self.name = f"{name}{'' if self._grammar is None else HELD}"

    @classmethod
    def over(cls, policy: RemotePolicy, name: str) -> Self:
        """The same on weights in another process; the tokenizer has a chat template of its own.

        Its answers are not held to their schemas.
        """
        made = cls.__new__(cls)
        made.name, made._policy, made._grammar = name, policy, None
        made.notes = ["answers are not held to their schema: the weights are in another process"]
        return made

    def _held(self, tokenizer: Any, width: int) -> Grammar | None:
        try:
            return Grammar(tokenizer, width)
        except UserError as error:
            self.notes.append(f"answers are not held to their schema: {error}")
            return None

    @classmethod
    def load(cls, spec: str) -> Self:
        """The model from smollm2, a model folder or a hub id.

        Its name holds a digest of the folder's files, or the hub's commit. Raises UserError if
        there is no such model.
        """
        return cls(*load(spec), hub.identity(spec))

    async def complete(self, request: Request) -> Reply:
        """The model's answer.

        Raises RolloutError if the prompt does not fit the context, the chat template refuses the
        messages, or no answer can be held to the schema.
        """
        guide = self._guide(request)
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
        if isinstance(self._policy, LocalPolicy):
            said = await self._policy.sample(prompt, sampling, guide)
        else:
            said = await self._policy.sample(prompt, sampling)
        if guide is not None and guide.problem:
            raise RolloutError(f"{self.name}: the answer to {request.role}: {guide.problem}")
        text = said.text
        if guide is None and not request.whole:
            # Some templates begin the thought themselves.
            begun = self._policy.tokenizer.decode(prompt[-_BEGUN:]).rstrip().endswith(_THINK)
            text = _answer(text, begun)
        return Reply(text, len(prompt), len(said.tokens), said.truncated)

    def _guide(self, request: Request) -> Guide | None:
        if self._grammar is None or not request.schema:
            return None
        try:
            return self._grammar.guide(request.schema, _longest(request))
        except UserError as error:
            raise RolloutError(f"{self.name} as {request.role}: {error}") from error

    def _prompt(self, request: Request) -> tuple[int, ...]:
        *before, last = request.messages
        if request.schema:
            words = in_words(request.schema)
            if self._grammar is not None:
                words += f"\nA text in it has at most {_longest(request)} characters."
            last = replace(last, content=last.content + words)
        try:
            return self._policy.render((*before, last))
        except RolloutError as error:
            raise RolloutError(f"{self.name}: {error}") from error


def _longest(request: Request) -> int:
    """How many characters one text of the answer may have."""
    return max(1, request.max_tokens // 2)


def _answer(text: str, begun: bool = False) -> str:
    """The text after the thought; nothing while the thought is not over.

    `begun` is whether the prompt has begun it.
    """
    thought, closed, answer = text.partition(THOUGHT)
    if closed:
        return answer.strip()
    return "" if begun or thought.lstrip().startswith(_THINK) else text
