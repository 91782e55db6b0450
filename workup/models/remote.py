"""Policies whose weights are in another process, behind vLLM: ids are sent, sampled ids come back.

Nothing is tokenised twice: a prompt goes out as ids, and what was sampled returns as ids with the
log-probabilities that it was drawn with.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from workup.episode import Completion
from workup.errors import UserError, WorkupError
from workup.models.chat_tokens import ChatTokens
from workup.ports import Sampling
from workup.rl.rollout import seed_key

Drawn = tuple[Sequence[int], Sequence[float]]  # ids, and the log-probability of each
COLDEST, HOTTEST = (
    0.01,
    2.0,
)  # other temperatures vLLM raises without a word, or refuses; it takes 0


class RemotePolicy(ChatTokens):
    """A `Policy` that asks vLLM for each completion; `context` is its longest transcript."""

    def __init__(self, tokenizer: Any, eos: frozenset[int], context: int) -> None:
        super().__init__(tokenizer, eos)
        self.context = context

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
        if not tokens or len(tokens) != len(logprobs):
            raise WorkupError(
                f"vLLM returned {len(tokens)} tokens with {len(logprobs)} log-probabilities"
            )
        return self.completion(tokens, logprobs, room, sampling.stop)

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
