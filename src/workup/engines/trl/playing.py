"""When a step's episodes are played: when they are needed, or one step ahead.

One step ahead (`ahead=1`), step k ≥ 1 is played while step k − 1 is trained on, with the weights
from before that training. Its order is fixed, so a run stays reproducible:

    step 0: play 0
            train 0   ‖ play 1, with the weights before train 0
            train 1   ‖ play 2, with the weights before train 1

The log-probabilities of the samples are those of the weights that played them. So the loss divides
by these, and its clipped ratio counts what has changed since.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from workup.core.episode import Sample
from workup.core.ports import Collect, LivePolicy
from workup.models.local import LocalPolicy
from workup.rl.running import OwnThread, run_to_end


class PlayedSteps:
    """The samples of one step after the other, up to `steps`."""

    def __init__(self, collect: Collect, policy: LivePolicy, steps: int, *, ahead: bool) -> None:
        self._collect, self._policy, self._steps = collect, policy, steps
        self.ahead = ahead
        self._coming: OwnThread[Sequence[Sample]] | None = None

    def take(self, step: int) -> Sequence[Sample]:
        """The samples of `step`; with `ahead` the next step begins to play.

        Steps are taken in their order; the first one is played now. Raises what playing raises.
        """
        if self._coming is None:
            self._policy.refresh()
            found = run_to_end(self._collect(self._policy, step))
        else:
            found, self._coming = self._coming.result(), None
        if self.ahead and step + 1 < self._steps:
            self._policy.refresh()  # nothing plays now
            self._coming = OwnThread(self._collect(self._policy, step + 1))
        return found

    def staleness(self, step: int) -> int:
        """How many trainings lie between the weights that play `step` and those that learn it."""
        return int(self.ahead and step > 0)

    def settle(self) -> None:
        """Waits until the step that is under way has been played; raises what playing raises."""
        if self._coming is not None:
            self._coming.result()

    def close(self) -> None:
        """Cancels the step that is under way."""
        if self._coming is not None:
            self._coming.cancel()


class CopiedPolicy(LocalPolicy):
    """Samples with a copy of the weights of `live`, made now and by every `refresh`.

    `live` may be trained meanwhile. The copy takes as much memory as the weights do.
    """

    def __init__(self, live: Any, tokenizer: Any) -> None:
        super().__init__(copy.deepcopy(live).requires_grad_(False).eval(), tokenizer)
        self._live = live

    @torch.no_grad()
    def refresh(self) -> None:
        self.model.load_state_dict(self._live.state_dict())
        super().refresh()
