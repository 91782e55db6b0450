"""What every `Scorer` shares: texts become tokens, values are remembered, requests are gathered.

How an answer's log-probability is computed is left to `_step`.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from workup.core.episode import Message
from workup.core.errors import RolloutError, WorkupError
from workup.core.ports import Context, Logprobs, Piece, ScoreRequest
from workup.models.chat_tokens import MARK, ChatTokens
from workup.models.scorer_trie import Ids, PathAnswer
from workup.models.worker import Worker

REMEMBERED = 1 << 18


@dataclass(slots=True)
class Work:
    """What a scorer has done so far.

    `asked` answers, of which `scored` were new; these took `tokens` through the model in `forwards`
    and `seconds`.
    """

    asked: int = 0
    scored: int = 0
    tokens: int = 0
    forwards: int = 0
    seconds: float = 0.0


class Remembering(ABC):
    """A `Scorer` without its model: it keeps values by what they depend on.

    Two callers that ask for the same share one computation. `policy` makes tokens of texts;
    `context` is the longest transcript of the model, in tokens; `remembered` limits the values
    kept. Call `refresh()` whenever the weights have changed.
    """

    def __init__(self, policy: ChatTokens, context: int, remembered: int = REMEMBERED) -> None:
        self.tokenised, self.longest, self.remembered = policy, context, remembered
        self.work = Work()
        self.known: OrderedDict[bytes, float] = OrderedDict()
        self.flying: dict[bytes, asyncio.Future[float]] = {}
        self.waiting: list[PathAnswer] = []
        self.worker = Worker(self.flying.values, self._step, self._forget)
        self._frame = lru_cache(maxsize=4_096)(self._split)

    @abstractmethod
    async def _step(self) -> None:
        """Computes what waits, and calls `_deliver` with it; `waiting` is empty afterwards."""

    @property
    def seconds(self) -> float:
        return self.work.seconds

    @property
    def tokens(self) -> int:
        return self.work.tokens

    def refresh(self) -> None:
        """Forgets all values; call it after the weights have changed. Nothing may be in flight."""
        assert not self.flying
        self.known.clear()

    async def score(self, request: ScoreRequest) -> Logprobs:
        answer = self.tokenised.encode(request.answer)
        if not answer:
            raise WorkupError(
                f"case '{request.case}': the answer '{request.answer}' has no tokens to score"
            )
        keys = _keys(request)
        self.work.asked += len(keys)
        found = {key: self.known[key] for key in keys if key in self.known}
        missing = {
            key: context
            for key, context in zip(keys, request.contexts, strict=True)
            if key not in found
        }
        if missing:
            found |= await self._computed(request, answer, missing)
        for key in found:
            if key in self.known:
                self.known.move_to_end(key)
        return Logprobs(tuple(self._finite(request, found[key]) for key in keys), len(answer))

    async def _computed(
        self, request: ScoreRequest, answer: Ids, missing: dict[bytes, Context]
    ) -> dict[bytes, float]:
        """The values of new contexts; two callers that ask for the same share one computation."""
        paths = {
            key: self._path(request, context, len(answer))
            for key, context in missing.items()
            if key not in self.flying
        }
        loop = asyncio.get_running_loop()
        for key, path in paths.items():
            self.flying[key] = loop.create_future()
            self.waiting.append(PathAnswer(path, answer, key))
        self.work.scored += len(paths)
        if self.waiting:
            self.worker.wake()
        futures = {key: self.flying[key] for key in missing}
        # A caller that is cancelled must not cancel what others wait for.
        await asyncio.wait(futures.values())
        return {key: future.result() for key, future in futures.items()}

    def _finite(self, request: ScoreRequest, value: float) -> float:
        if not math.isfinite(value):
            raise WorkupError(
                f"case '{request.case}': the model gives the answer '{request.answer}' the "
                f"log-probability {value}"
            )
        return value

    # --- text to tokens ---

    def _path(self, request: ScoreRequest, context: Context, answer: int) -> tuple[Ids, ...]:
        """The runs of tokens before the answer."""
        try:
            head, tail = self._frame(request.opening)
        except RolloutError as error:
            raise RolloutError(f"case '{request.case}': {error}") from error
        runs = (head, *map(self._ids, context), tail, self._ids(request.lead))
        path = tuple(run for run in runs if run)
        length = sum(map(len, path))
        if not length:
            raise WorkupError(
                f"case '{request.case}': nothing stands before the answer '{request.answer}'"
            )
        if length + answer > self.longest:
            raise RolloutError(
                f"case '{request.case}': {length} tokens and an answer of {answer} do not fit the "
                f"model's context of {self.longest}"
            )
        return path

    def _ids(self, piece: Piece) -> Ids:
        return self.tokenised.encode(piece) if isinstance(piece, str) else piece

    def _split(self, opening: tuple[Message, ...]) -> tuple[Ids, Ids]:
        """The chat template's tokens before the pieces, and between them and the model's turn."""
        if not opening:
            return (), ()
        *before, last = opening
        whole = self.tokenised.template((*before, replace(last, content=last.content + MARK)))
        head, _, tail = whole.rpartition(MARK)
        return self.tokenised.markup(head), self.tokenised.markup(tail)

    def _forget(self) -> None:
        self.flying.clear()
        self.waiting.clear()

    def _deliver(self, wanted: Sequence[PathAnswer], values: Sequence[float]) -> None:
        for one, value in zip(wanted, values, strict=True):
            self.flying.pop(one.tag).set_result(value)
            if math.isfinite(value):
                self.known[one.tag] = value
        while len(self.known) > self.remembered:
            self.known.popitem(last=False)


def _keys(request: ScoreRequest) -> list[bytes]:
    """One digest for each context, of everything that its value depends on besides the model."""
    root = hashlib.blake2b(digest_size=16)
    for text in (
        request.lead,
        request.answer,
        *(text for m in request.opening for text in (m.role, m.content)),
    ):
        _feed(root, text)
    _feed(root, ())  # marks where the pieces begin
    seen: dict[Context, Any] = {(): root}

    def chain(context: Context) -> Any:
        """The digest of a context, from the digest of its longest known prefix."""
        known = next(n for n in range(len(context), -1, -1) if context[:n] in seen)
        state = seen[context[:known]]
        for n in range(known, len(context)):
            state = state.copy()
            _feed(state, context[n])
            seen[context[: n + 1]] = state
        return state

    return [chain(context).digest() for context in request.contexts]


def _feed(state: Any, piece: Piece) -> None:
    """Adds a piece so that two different sequences of pieces never give the same bytes."""
    data = (
        piece.encode("utf-8", "surrogatepass")
        if isinstance(piece, str)
        else np.array(piece, dtype=np.int64).tobytes()
    )
    state.update(f"{'s' if isinstance(piece, str) else 'i'}{len(data)}:".encode() + data)
