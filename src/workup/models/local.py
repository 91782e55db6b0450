"""A local Hugging Face model as a policy: asynchronous, batched, with a prefix cache.

Callers ask for one completion at a time. All waiting requests share a batch, also those of episodes
at different turns. A request carries its whole token prefix. A slot whose tokens are a prefix of it
is continued (as in vLLM's prefix cache), so that only the new tokens are computed. An opening that
several requests share is computed for the first of them (see `workup.models.slots`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from workup.core.episode import Completion
from workup.core.errors import UserError
from workup.core.ports import Sampling
from workup.models.chat_tokens import ChatTokens, endings
from workup.models.passes import NewTokens, passes_of
from workup.models.slots import BLOCK, Slots, blocks_of
from workup.models.worker import Worker, computing

PADDING = 256  # tokens of padding that a forward pass may compute, if it is not a fourth of all
MAYBE = -1
NOT_NUMBERS = (
    "the model's probabilities are not numbers: its weights are damaged, or training has made them "
    "so (take a smaller lr), or they overflow in float16 (take dtype=float32)"
)
PARTIAL = "\ufffd"  # what a token decodes to that holds part of a character
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_WITHOUT_ATTENTION = ("rwkv", "mamba", "mamba2", "falcon_mamba", "xlstm")
# Kinds of rotary positions whose frequencies change with the longest text of a pass.
_BY_LENGTH = ("longrope", "su", "dynamic")


class Constraint(Protocol):
    """What one completion may hold, token by token. It is used once, and raises nothing."""

    @property
    def done(self) -> bool:
        """Whether the completion is whole: no token may follow."""
        ...

    def begin(self) -> Sequence[int]:
        """The tokens with which the completion has to begin."""
        ...

    def allowed(self) -> torch.Tensor:
        """Which tokens may come next: a boolean tensor, at least as long as the vocabulary."""
        ...

    def take(self, token: int) -> Sequence[int]:
        """`token` was drawn; the result are the tokens that have to follow it, already taken."""
        ...


class OneOf:
    """Implements `Constraint`: the completion is one of `choices`.

    They are lists of token ids below `width`. Each has at least one, and none is the beginning of
    another.
    """

    def __init__(self, choices: Iterable[Sequence[int]], width: int) -> None:
        self._left = [tuple(choice) for choice in choices]
        self._width, self._taken = width, 0

    @property
    def done(self) -> bool:
        return all(len(choice) == self._taken for choice in self._left)

    def begin(self) -> list[int]:
        return []

    def allowed(self) -> torch.Tensor:
        found = torch.zeros(self._width, dtype=torch.bool)
        found[[choice[self._taken] for choice in self._left]] = True
        return found

    def take(self, token: int) -> list[int]:
        self._left = [choice for choice in self._left if choice[self._taken] == token]
        self._taken += 1
        return []


@dataclass(slots=True, eq=False)
class Generation:
    """One completion in the making.

    Tokens that a constraint forces are not drawn; their log-probability is 0.
    """

    prompt: tuple[int, ...]
    sampling: Sampling
    future: asyncio.Future[Completion]
    endings: Sequence[int]
    room: int
    constraint: Constraint | None = None
    slot: int = -1  # none before it is admitted
    held: int = 0  # how many tokens of the transcript the slot holds
    blocks: Sequence[bytes] = ()  # digests of the prompt's beginnings, until they are computed
    pending: list[int] = field(default_factory=list)  # tokens not computed yet
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def extend(self, tokens: Sequence[int], logprobs: Sequence[float]) -> None:
        """More of the completion, as far as there is room."""
        left = self.room - len(self.tokens)
        self.tokens += tokens[:left]
        self.logprobs += logprobs[:left]
        self.pending += tokens[:left]

    @property
    def whole(self) -> bool:
        """Whether its constraint says that nothing may follow."""
        return self.constraint is not None and self.constraint.done

    @property
    def known(self) -> tuple[int, ...]:
        """The tokens whose keys and values the slot holds."""
        return (*self.prompt, *self.tokens)[: self.held]

    @property
    def missing(self) -> list[int]:
        """The others: of the prompt, or what was drawn and forced since the last pass."""
        return [*self.prompt, *self.tokens][self.held :]


class LocalPolicy(ChatTokens):
    """Implements `Policy` on a transformers causal language model.

    The model has full attention, any size, with or without LoRA. Raises UserError for layers that
    do not attend to everything. `model` is used as it is: call `refresh()` whenever its weights
    have changed. `max_batch` limits the KV cache: so many transcripts are kept.
    """

    def __init__(self, model: Any, tokenizer: Any, *, max_batch: int = 256) -> None:
        super().__init__(tokenizer, endings(model.generation_config, tokenizer))
        self.model, self.max_batch = model, max_batch
        config = model.config.get_text_config()
        self.context = int(getattr(config, "max_position_embeddings", 1 << 20))
        if not _attends_to_everything(config, self.context):
            raise UserError(
                f"model type '{config.model_type}' has sliding, local or linear attention layers, "
                "which the local policy's cache does not hold; use a model with full attention"
            )
        rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
        if rope and (kind := rope.get("rope_type") or rope.get("type")) in _BY_LENGTH:
            raise UserError(
                f"the rotary positions of this model ('{kind}') depend on the longest text of a "
                "pass, so its texts would depend on each other; use a model with others"
            )
        self.device = next(model.parameters()).device
        self.slots = Slots(config.num_hidden_layers, self.device)
        self.passes = passes_of(model, self.slots)
        self.active: dict[Generation, None] = {}  # requests under way, in the order of arrival
        self.worker = Worker(
            lambda: (request.future for request in self.active), self._step, self._drop
        )
        self.generated = 0  # tokens sampled so far
        self.forwards = 0
        self._enders: dict[tuple[str, ...], list[int]] = {}

    def refresh(self) -> None:
        """Forgets the KV cache; call it after the weights have changed.

        Nothing may be in flight.
        """
        assert not self.active
        self.slots.clear()
        self.passes.refresh()

    async def sample(
        self, prompt: Sequence[int], sampling: Sampling, constraint: Constraint | None = None
    ) -> Completion:
        """A completion; with a `constraint`, drawn from what it allows at each step."""
        room = min(sampling.max_tokens, self.context - len(prompt))
        if room <= 0 or not prompt:
            return Completion("", truncated=True)
        loop = asyncio.get_running_loop()
        computing.add(loop)
        endings = self._endings(sampling.stop)
        request = Generation(
            tuple(prompt), sampling, loop.create_future(), endings, room, constraint
        )
        if constraint is not None:
            forced = constraint.begin()
            request.extend(forced, [0.0] * len(forced))
            if request.whole or len(request.tokens) == room:
                return self._completion(request)
        self.active[request] = None
        self.worker.wake()
        return await request.future

    def one_of(self, texts: Iterable[str]) -> OneOf:
        """A constraint to one of `texts`, none of which begins with the tokens of another."""
        width = self.model.get_output_embeddings().weight.shape[0]
        return OneOf(map(self.encode, texts), width)

    def _drop(self) -> None:
        self.active.clear()
        self.slots.clear()

    async def _step(self) -> None:
        """One forward pass for the requests that can share it."""
        for request in [r for r in self.active if r.future.done()]:
            self._leave(request)  # its caller was cancelled
        batch = [r for r in self.active if r.slot >= 0]
        for request in [r for r in self.active if r.slot < 0][: self.max_batch - len(batch)]:
            self._admit(request)
            batch.append(request)
        # Long prompts go first and alone. Otherwise requests that decode would be padded to
        # their length.
        if now := self._beginning([r for r in batch if len(r.pending) > self.passes.join]) or batch:
            self._advance(now)

    def _beginning(self, long: Sequence[Generation]) -> list[Generation]:
        """Those of `long`, requests with many new tokens, that are computed together now.

        A request waits while an earlier one computes tokens that it can copy afterwards. Prompts of
        different lengths wait for each other's pass where padding would cost more.
        """
        computing: set[bytes] = set()
        found = []
        for request in long:
            request.held = self.slots.share(request.slot, request.held, request.blocks)
            request.pending = request.missing
            missing = request.blocks[request.held // BLOCK :]
            if not missing or missing[0] not in computing:
                computing.update(missing)
                found.append(request)
        found.sort(key=lambda r: len(r.pending))
        total = 0
        for place, request in enumerate(found):
            total += len(request.pending)
            padding = (place + 1) * len(request.pending) - total
            if padding > max(PADDING, total / 4):
                return found[:place]
        return found

    def _admit(self, request: Generation) -> None:
        self.slots.reserve(min(len(self.active), self.max_batch), 0)
        request.slot, request.held = self.slots.claim(request.prompt, self.max_batch)
        request.pending = request.missing
        # The last token is computed in any case: its logits are needed.
        request.blocks = blocks_of(request.prompt[:-1])

    def _leave(self, request: Generation) -> None:
        del self.active[request]
        if request.slot >= 0:
            self.slots.release(request.slot, request.known)

    @torch.no_grad()
    def _advance(self, batch: list[Generation]) -> None:
        """One forward pass and one new token for every request of `batch`."""
        batch.sort(key=lambda r: r.slot)
        logits = self._forward(batch)
        for row, request in enumerate(batch):
            if request.constraint is not None:
                allowed = request.constraint.allowed()[: logits.shape[-1]].to(self.device)
                logits[row].masked_fill_(~allowed, -torch.inf)
        tokens, logprobs = draw(logits, [r.sampling for r in batch], [r.held for r in batch])
        self.generated += len(batch)
        for request, token, logprob in zip(batch, tokens, logprobs, strict=True):
            self.slots.hold(request.slot, request.blocks)
            request.blocks = ()
            forced = request.constraint.take(token) if request.constraint is not None else ()
            request.pending = []
            request.extend([token, *forced], [logprob, *[0.0] * len(forced)])
            if self._ends(request, token):
                self._leave(request)
                request.future.set_result(self._completion(request))

    def _forward(self, batch: list[Generation]) -> torch.Tensor:
        """Logits (batch, vocabulary) after each request's pending tokens."""
        new = NewTokens.of(
            [r.pending for r in batch], [r.held for r in batch], [r.slot for r in batch]
        )
        for request in batch:
            request.held += len(request.pending)
        self.forwards += 1
        return self.passes(new)

    def _ends(self, request: Generation, token: int) -> bool:
        if token in self.eos or len(request.tokens) >= request.room or request.whole:
            return True
        verdict = request.endings[token] if request.endings else 0
        if verdict != MAYBE:
            return verdict > 0
        # A stop string may span tokens: look at as many as the longest has bytes.
        stop = request.sampling.stop
        tail = self._decode(tuple(request.tokens[-max(len(s.encode()) for s in stop) - 1 :]))
        return any(s in tail for s in stop)

    def _endings(self, stop: tuple[str, ...]) -> list[int]:
        """For each token id: 1 if it ends the text, 0 if it cannot complete a stop string.

        MAYBE stands for any other token: there the text has to be compared. Empty without stop
        strings.
        """
        if stop and stop not in self._enders:
            ends = tuple(s[i:] for s in stop for i in range(1, len(s)))
            texts = self.tokenizer.batch_decode([[i] for i in range(len(self.tokenizer))])
            known = [
                int(any(s in t for s in stop)) or MAYBE * (t.startswith(ends) or PARTIAL in t)
                for t in texts
            ]
            # The output layer may be padded beyond the vocabulary.
            self._enders[stop] = known + [0] * max(
                0, self.model.get_output_embeddings().weight.shape[0] - len(known)
            )
        return self._enders[stop] if stop else []

    def _completion(self, request: Generation) -> Completion:
        # What its constraint ended is not cut off, even if it fills the room.
        room = len(request.tokens) + 1 if request.whole else request.room
        return self.completion(request.tokens, request.logprobs, room, request.sampling.stop)


def _attends_to_everything(config: Any, context: int) -> bool:
    """Whether every layer sees the whole past."""
    kinds = getattr(config, "layer_types", None) or getattr(config, "attention_layers", None)
    if kinds:
        return all(kind in ("full_attention", "global") for kind in kinds)
    if config.model_type in _WITHOUT_ATTENTION:
        return False
    return (getattr(config, "sliding_window", None) or context) >= context


def draw(
    logits: torch.Tensor, samplings: Sequence[Sampling], positions: Sequence[int]
) -> tuple[list[int], list[float]]:
    """One token per row of `logits` (rows, vocabulary), and its log-probability.

    Both are of the tempered distribution. A row's random number depends only on its own key and
    position. So a draw changes with the batch around it only where the number lies on the border of
    two tokens and a batch of another shape rounds the logits otherwise. Raises UserError for logits
    that are not finite.
    """
    temperature = np.array([s.temperature for s in samplings], dtype=np.float32)
    greedy = temperature == 0
    divisor = torch.from_numpy(np.where(greedy, np.float32(1), temperature)).to(logits.device)
    probabilities = (logits.float() / divisor[:, None]).softmax(-1)
    u = torch.from_numpy(uniforms([s.key for s in samplings], positions)).to(logits.device)
    cumulative = probabilities.cumsum(-1)
    if cumulative[:, -1].isnan().any():
        raise UserError(NOT_NUMBERS)
    # Scaled by the total, because rounding may leave it a little below one.
    choice = torch.searchsorted(cumulative, u[:, None] * cumulative[:, -1:])
    if greedy.any():
        where = torch.from_numpy(greedy).to(logits.device)
        choice = torch.where(where[:, None], logits.argmax(-1, keepdim=True), choice)
    chosen = probabilities.gather(-1, choice).log()
    return choice[:, 0].tolist(), chosen[:, 0].tolist()


def uniforms(keys: Sequence[int], positions: Sequence[int]) -> NDArray[np.float32]:
    """Random numbers in (0, 1], float32: a function of (key, position), by SplitMix64's finaliser.

    Zero is left out, since it would draw a token without probability.
    """
    with np.errstate(over="ignore"):
        x = np.array([k & (2**64 - 1) for k in keys], dtype=np.uint64) + GOLDEN * (
            np.array(positions, dtype=np.uint64) + np.uint64(1)
        )
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
    found: NDArray[np.float32] = (
        ((x >> np.uint64(40)) + np.uint64(1)).astype(np.float64) / 2**24
    ).astype(np.float32)
    return found
