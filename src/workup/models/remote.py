"""Policies whose weights are in another process, behind vLLM: ids are sent, sampled ids come back.

Nothing is tokenised twice: a prompt goes out as ids, and what was sampled returns as ids with the
log-probabilities that it was drawn with.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from abc import abstractmethod
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from workup.core.draws import seed_key
from workup.core.episode import Completion
from workup.core.errors import RolloutError, UserError, WorkupError
from workup.core.ports import Sampling
from workup.models import hub, lora
from workup.models.chat_tokens import ChatTokens, endings
from workup.models.samplers import How

LARGEST = sys.float_info.max
ROUNDED = 1e-3  # nats by which rounding may lift a log-probability above 0
T = TypeVar("T")
P = TypeVar("P", bound="RemotePolicy")
Drawn = tuple[Sequence[int], Sequence[float]]  # ids, and the log-probability of each
# other temperatures vLLM raises without a word, or refuses; it takes 0
COLDEST = 0.01
HOTTEST = 2.0


@dataclass(frozen=True)
class KnownModel:
    """What is known of a model without its weights; `folder` may be a hub id."""

    folder: str
    config: Any
    tokenizer: Any
    eos: frozenset[int]

    @classmethod
    def of(cls, place: str) -> KnownModel:
        """Reads a folder or a hub id.

        Raises UserError if there is no such model, or if adapters lack their base model.
        """
        return hub.opened(place, cls._read)

    @classmethod
    def _read(cls, folder: str) -> KnownModel:
        from transformers import AutoConfig, AutoTokenizer, GenerationConfig

        whole = lora.whole_of(folder)
        config = AutoConfig.from_pretrained(whole, trust_remote_code=False)
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        try:
            generation = GenerationConfig.from_pretrained(whole)
        except OSError:  # the model has no generation settings
            generation = GenerationConfig.from_model_config(config)
        return cls(folder, config, tokenizer, endings(generation, tokenizer))


class OwnLoop:
    """An event loop in a thread of its own, so that callers may come from any loop."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Runs `work` on the loop. Cancelling the future cancels `work`."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def close(self) -> None:
        """Ends what is running, and the thread."""
        self.submit(self.end()).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


class RemotePolicy(ChatTokens):
    """A `Policy` that asks vLLM for each completion; `context` is its longest transcript.

    What comes back is checked before anything is made of it: `who` says it, in errors, and `fault`
    is the kind of error, RolloutError for a program that somebody else runs.
    """

    who = "vLLM"
    fault: type[WorkupError] = WorkupError

    def __init__(self, known: KnownModel, how: How) -> None:
        super().__init__(known.tokenizer, known.eos)
        text = known.config.get_text_config()
        own = int(getattr(text, "max_position_embeddings", 1 << 20))
        self.context = min(own, how.context or own)
        # An output layer may be wider than the vocabulary, never narrower.
        self.ids = max(int(getattr(text, "vocab_size", 0)), len(known.tokenizer))

    @abstractmethod
    async def draw(self, prompt: Sequence[int], parameters: Mapping[str, Any]) -> Drawn:
        """One completion of `prompt`. `parameters` are those of `vllm.SamplingParams`.

        Raises RolloutError where this request fails, WorkupError where every other would too.
        """

    async def sample(self, prompt: Sequence[int], sampling: Sampling) -> Completion:
        room = min(sampling.max_tokens, self.context - len(prompt))
        if room <= 0 or not prompt:
            return Completion("", truncated=True)
        tokens, logprobs = await self.draw(prompt, self.parameters(prompt, sampling, room))
        self.check(tokens, logprobs, room)
        return self.completion(tokens, logprobs, room, sampling.stop)

    def check(self, tokens: Sequence[Any], logprobs: Sequence[Any], room: int) -> None:
        """Raises `fault` for what no sampler draws, and RolloutError for more than `room` tokens.

        Tokens are whole numbers from 0 below `ids`, at least one. Each has a log-probability, a
        finite number of at most 0 nats.
        """
        if len(tokens) > room:
            raise RolloutError(f"{self.who} returned more tokens than allowed")
        if not tokens or len(tokens) != len(logprobs):
            raise self.fault(
                f"{self.who} returned {len(tokens)} tokens with {len(logprobs)} log-probabilities"
            )
        for token in tokens:
            if type(token) is not int or not 0 <= token < self.ids:
                raise self.fault(
                    f"{self.who} returned {token!r:.40} for a token id, which is a whole number "
                    f"from 0 to {self.ids - 1}"
                )
        # A whole number of 400 digits is no float, but can be compared with one.
        if not all(type(each) in (int, float) and abs(each) <= LARGEST for each in logprobs):
            raise self.fault(
                f"{self.who} returned log-probabilities that are not numbers: the weights are "
                "damaged, or training has made them so (take a smaller lr)"
            )
        if max(logprobs) > ROUNDED:
            raise self.fault(
                f"{self.who} returned a log-probability of {max(logprobs):.3g}; none is above 0"
            )

    def parameters(self, prompt: Sequence[int], sampling: Sampling, room: int) -> dict[str, Any]:
        """The request, by the names of `vllm.SamplingParams`.

        Raises UserError for a temperature that vLLM would change, or does not take.
        """
        if sampling.temperature and not COLDEST <= sampling.temperature <= HOTTEST:
            raise UserError(
                f"temperature {sampling.temperature:g}: vLLM takes 0, or {COLDEST} to {HOTTEST:g}"
            )
        return {
            "temperature": sampling.temperature,
            "max_tokens": room,
            # One key serves all turns of an episode: without the position each would be drawn with
            # the same random numbers.
            "seed": seed_key(sampling.key, len(prompt)) >> 1,
            "logprobs": 0,  # the sampled token's own
            "stop": list(sampling.stop),
            "include_stop_str_in_output": True,
            # Only our own ids end a turn.
            "stop_token_ids": sorted(self.eos),
            "ignore_eos": True,
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
        }
