"""Plays the episodes of each training step, when they are needed or one step ahead.

One step ahead (`ahead=1`), step k ≥ 1 is played while step k − 1 is trained on, with the weights
from before that training. The order of playing and training is fixed, so a run is reproducible:

    step 0: play 0
            train 0   ‖ play 1, with the weights before train 0
            train 1   ‖ play 2, with the weights before train 1

The samples have the log-probabilities of the weights that played them. The loss takes these as the
old ones, so that its clipped ratio counts what has changed since. With `importance_cap` the trainer
computes the old ones itself, and the weight p_trainer / p_sampler of each token counts the change.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch

from workup.core.episode import Sample
from workup.core.ports import Collect, LivePolicy
from workup.models.local import LocalPolicy
from workup.rl.running import OwnThread, run_to_end


class PlayedSteps:
    """The samples of steps 0 to `steps` − 1, one step after the other."""

    def __init__(self, collect: Collect, policy: LivePolicy, steps: int, *, ahead: bool) -> None:
        self._collect, self._policy, self._steps = collect, policy, steps
        self.ahead = ahead
        self._next: OwnThread[Sequence[Sample]] | None = None
        self.staleness = 0
        """How many steps older the weights that played the newest step are than those it trains."""

    def take(self, step: int) -> Sequence[Sample]:
        """The samples of `step`; with `ahead` the next step begins to play.

        Steps are taken in their order. The first one is played during this call, and without
        `ahead` all of them are. Raises what playing raises.
        """
        if self._next is None:
            self._policy.refresh()
            found = run_to_end(self._collect(self._policy, step))
        else:
            found, self._next = self._next.result(), None
        self.staleness = int(self.ahead and step > 0)
        if self.ahead and step + 1 < self._steps:
            self._policy.refresh()  # nothing plays now
            self._next = OwnThread(self._collect(self._policy, step + 1))
        return found

    def settle(self) -> None:
        """Waits until the step that is under way has been played; raises what playing raises."""
        if self._next is not None:
            self._next.result()

    def close(self) -> None:
        """Cancels the step that is under way."""
        if self._next is not None:
            self._next.cancel()


class CopiedPolicy(LocalPolicy):
    """Samples with a copy of the weights of `live`, made now and by every `refresh`.

    `live` may be trained meanwhile. The copy takes as much memory as the weights do.
    """

    def __init__(self, live: LocalPolicy) -> None:
        model = copy.deepcopy(live.model).requires_grad_(False).eval()
        super().__init__(model, live.tokenizer, max_batch=live.max_batch)
        self._live = live.model

    @torch.no_grad()
    def refresh(self) -> None:
        self.model.load_state_dict(self._live.state_dict())
        super().refresh()
