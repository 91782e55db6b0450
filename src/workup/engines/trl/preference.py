"""Direct preference optimisation on pairs of whole transcripts; only policy tokens count.

TRL's DPOTrainer is not used: it needs a data set of prompts and completions, and counts every
completion token, so also the environment's. With the masks used here its result is the same
(tests/test_dpo.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor
from torch.nn import functional as F
from trl.trainer.utils import disable_dropout_in_model

from workup.core.errors import WorkupError
from workup.core.ports import Pair
from workup.engines.trl.batches import MicroBatch, packed_part, split
from workup.engines.trl.scoring import ScoredTokens
from workup.engines.trl.trainer import StageTrainer
from workup.rl.samples import TokenTree, pack


class PreferenceTrainer(StageTrainer):
    """L = −log σ(β·[(log π(τ⁺) − log π_ref(τ⁺)) − (log π(τ⁻) − log π_ref(τ⁻))]) (DPO, Eq. 7).

    It is averaged over the pairs. log π(τ) is the sum over the policy's tokens of a transcript.
    π_ref is the model as this trainer receives it. Its values are computed for every pair at the
    start, so that no second model is kept. The model's dropout is turned off, as TRL's DPOTrainer
    does: with it, an unchanged model would differ from its reference. It stays off.
    """

    def __init__(
        self,
        *args: Any,
        batches: Iterable[Sequence[Pair]],
        beta: float,
        micro_batch: int,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.beta, self.micro_batch, self.pairs = beta, micro_batch, 1
        self._margins: list[float] = []
        disable_dropout_in_model(self.model)
        self.batches = [self._cut(batch) for batch in batches]

    def parts(self) -> list[MicroBatch]:
        if not self.batches:
            raise WorkupError(
                f"pairs ran out after {self.state.global_step} of {self.args.max_steps} updates"
            )
        parts = self.batches.pop(0)
        self.pairs = sum(
            row[0] for row in self.totals([sum(part.sequences for part in parts) // 2])
        )
        return [_moved(part, self.args.device) for part in parts]

    def part_loss(self, model: Any, part: MicroBatch) -> Tensor:
        chosen, rejected = (self._logprobs(model, part) - part.inputs["reference"]).chunk(2)
        margins = self.beta * (chosen - rejected)
        self._margins += margins.detach().tolist()
        loss: Tensor = -F.logsigmoid(margins).sum() * (self.world / self.pairs)
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds the mean margin, in nats, and the share of the pairs with a margin above 0.

        Both are those before the update.
        """
        if "loss" in logs:
            margins: list[float] = gather_object(self._margins)
            self._margins = []
            logs |= {
                "margin": sum(margins) / len(margins),
                "preferred": sum(m > 0 for m in margins) / len(margins),
            }
        super().log(logs, start_time)

    @torch.no_grad()
    def _cut(self, batch: Sequence[Pair]) -> list[MicroBatch]:
        """Micro-batches of whole pairs, the chosen before the rejected, with reference values."""
        self.model.eval()
        parts = []
        for chunk in split(
            batch,
            max(1, self.micro_batch // 2),
            key=lambda pair: max(len(side.tokens) for side in pair),
        ):
            sides = [side for column in zip(*chunk, strict=True) for side in column]
            part = packed_part(
                [pack(TokenTree(side.tokens, side.mask)) for side in sides], self.args.device
            )
            part.inputs["reference"] = self._logprobs(self.model, part)
            parts.append(_moved(part, torch.device("cpu")))
        return parts

    def _logprobs(self, model: Any, part: MicroBatch) -> Tensor:
        """log π(τ) of each of the part's transcripts, (B,)."""
        x = part.inputs
        with self.accelerator.autocast():
            found, _ = model(
                input_ids=x["input_ids"], wanted=ScoredTokens(x["parents"], x["targets"])
            )
        empty = torch.zeros(x["input_ids"].numel(), device=found.device)
        summed: Tensor = empty.index_put((x["parents"],), found).view(x["input_ids"].shape).sum(1)
        return summed


def _moved(part: MicroBatch, device: torch.device) -> MicroBatch:
    return MicroBatch(
        {name: tensor.to(device) for name, tensor in part.inputs.items()},
        part.sequences,
        part.tokens,
    )
