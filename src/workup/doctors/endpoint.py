"""Any chat model as a doctor: an endpoint, or local weights that are not trained."""

from __future__ import annotations

from collections.abc import Sequence

from workup.core.case import Case
from workup.core.episode import Completion, Message, Turn
from workup.core.ports import Act, Model, Request, Sampling
from workup.core.text import up_to

VERSION = "1"


class ModelDoctor:
    """A `Doctor` that reads the encounter as chat messages.

    Its text ends with the first stop string. The text is cut here and the stop strings are not
    sent: endpoints take at most four, and leave them out of the text.
    """

    def __init__(self, model: Model) -> None:
        self.model = model

    async def act(
        self, case: Case, opening: Sequence[Message], past: Sequence[Turn], sampling: Sampling
    ) -> Act:
        # The number of past turns is part of `sample`. So two turns with equal messages are two
        # draws, as with a token policy.
        sample = (sampling.key + len(past)) % 2**31 if sampling.temperature else 0
        said = [
            message
            for turn in past
            for message in (Message("assistant", turn.completion.text), *turn.observation.messages)
        ]
        request = Request(
            "doctor",
            VERSION,
            (*opening, *said),
            "",
            sampling.max_tokens,
            sampling.temperature,
            sample,
            whole=True,
        )
        reply = await self.model.complete(request)
        text = up_to(reply.text, sampling.stop, in_thoughts=sampling.in_thoughts)
        return Act(
            (),
            Completion(
                text, truncated=reply.truncated and not text.endswith(sampling.stop or "\0")
            ),
        )
