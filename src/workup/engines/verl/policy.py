"""A policy on verl's servers: token ids go out, sampled ids come back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ray.exceptions import RayError

from workup.core.draws import seed_key
from workup.core.errors import RolloutError, WorkupError
from workup.core.ports import Sampling
from workup.models.remote import Drawn, KnownModel, RemotePolicy
from workup.models.samplers import How

PATIENCE = 600.0  # seconds for one completion
EPISODE = "episode"  # names an episode to verl's router, beside what vLLM is asked


class VerlPolicy(RemotePolicy):
    """Implements `LivePolicy` on `LLMServerClient`.

    `client()` is asked at each draw: the first one starts the servers. `version()` is the number of
    updates that the weights on the servers must have seen. Requests of one episode go to one
    server, which has its beginning in the prefix cache.
    """

    who = "verl's server"

    def __init__(
        self,
        known: KnownModel,
        how: How,
        client: Callable[[], Any],
        version: Callable[[], int],
        patience: float = PATIENCE,
    ) -> None:
        super().__init__(known, how)
        self.client, self.version, self.patience = client, version, patience

    def refresh(self) -> None:
        """Does nothing: verl brings new weights to its servers, and `draw` checks their version."""

    def parameters(self, prompt: Sequence[int], sampling: Sampling, room: int) -> dict[str, Any]:
        asked = super().parameters(prompt, sampling, room)
        # verl asks vLLM for the sampled token's own log-probability where this is true.
        return asked | {"logprobs": True, EPISODE: f"{sampling.key:x}"}

    async def draw(self, prompt: Sequence[int], parameters: Mapping[str, Any]) -> Drawn:
        asked = {name: value for name, value in parameters.items() if name != EPISODE}
        return self._drawn(await self._asked(parameters[EPISODE], prompt, asked))

    async def known(self, before: Sequence[int], answer: Sequence[int]) -> list[float]:
        """log P of each token of `answer` after `before`, neither of which is empty, in nats.

        The temperature is 1. Raises as `draw` does, and WorkupError for log-probabilities of other
        tokens.
        """
        ids = [*before, *answer]
        asked = {"temperature": 1.0, "max_tokens": 1, "prompt_logprobs": 0, "logprobs": True}
        reply = await self._asked(f"{seed_key(*before):x}", ids, asked)
        self._drawn(reply)
        # verl gives for each place the token after it, and for the last place nothing.
        told = [row[0] for row in reply.extra_fields.get("prompt_ids", [])][:-1]
        if told != ids[1:]:
            raise WorkupError("verl's server told the log-probabilities of other tokens")
        found = [float(row[0]) for row in reply.extra_fields["prompt_logprobs"]]
        return found[len(before) - 1 : len(ids) - 1]

    async def _asked(self, name: str, prompt: Sequence[int], asked: dict[str, Any]) -> Any:
        try:
            return await asyncio.wait_for(
                self.client().generate(name, prompt_ids=list(prompt), sampling_params=asked),
                self.patience,
            )
        except TimeoutError as error:
            raise RolloutError(f"verl's server gave no answer in {self.patience:g} s") from error
        except RayError as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            cause = lines[-1] if lines else type(error).__name__  # Ray says it last
            raise RolloutError(f"verl's server is gone: {cause.strip()[:200]}") from error

    def _drawn(self, reply: Any) -> Drawn:
        if reply.stop_reason in {"aborted", "abort"}:
            raise RolloutError("verl's server broke the completion off")
        seen = {reply.extra_fields.get(f"{end}_global_steps") for end in ("min", "max")}
        if seen != {self.version()}:
            found = " and ".join(sorted(map(str, seen)))
            raise WorkupError(
                f"verl's server sampled with weights after update {found}, not {self.version()}: "
                "new weights did not reach it; resume the run"
            )
        if reply.log_probs is None:
            raise WorkupError("verl's server returned no log-probabilities")
        return list(reply.token_ids), list(reply.log_probs)
