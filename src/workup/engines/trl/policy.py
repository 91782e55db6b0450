"""The reinforcement stage: TRL's GRPO trainer on episodes and advantages that come from outside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object
from datasets import Dataset
from numpy.typing import NDArray
from peft import PeftModel
from torch import Tensor
from trl import GRPOTrainer
from trl.trainer.utils import use_adapter

from workup.core.episode import Sample
from workup.core.errors import WorkupError
from workup.engines.trl.batches import BLANK, MicroBatch, policy_parts
from workup.engines.trl.gap import Tolerance, summary
from workup.engines.trl.openings import Openings
from workup.engines.trl.playing import PlayedSteps
from workup.engines.trl.scoring import ScoredTokens
from workup.engines.trl.trainer import StageTrainer

# The share of the batch by which a micro-batch's loss counts, for losses that TRL averages within
# the micro-batch. The other losses divide by the whole batch's tokens themselves.
SHARE = {"grpo": "sequences", "sapo": "sequences", "dr_grpo": "sequences", "bnpo": "tokens"}
# What TRL tells of a micro-batch as a mean over its policy tokens, those of all processes together.
TOKEN_MEANS = (
    "entropy",
    "kl",
    *(f"clip_ratio/{side}_mean" for side in ("low", "high", "region")),
    "cispo_clip_ratio",
)


@dataclass(frozen=True)
class Correction:
    """What is known of the sampler: whether it is the trained module itself (`own`).

    `cap` bounds the importance ratios that correct for what the sampler computes differently; None
    corrects nothing.
    """

    own: bool
    cap: float | None


class PolicyTrainer(StageTrainer, GRPOTrainer):  # type: ignore[misc]
    """GRPO's clipped loss (CR-10, CM-12), as TRL computes it, on given samples and advantages.

    Advantages are per token. `reference` is the frozen model of the KL term; None without one, or
    when it is the adapter "ref" of the same model. `correction` is what is done about a sampler
    that is not the trained module itself.
    """

    def __init__(
        self,
        *,
        playing: PlayedSteps,
        reference: Any,
        beta: float,
        micro_batch: int,
        correction: Correction,
        **kwargs: Any,
    ) -> None:
        rows = Dataset.from_dict({"prompt": [""]})  # never read, but TRL wants one
        super().__init__(reward_funcs=_no_reward, train_dataset=rows, **kwargs)
        self.playing = playing
        self.ref_model = reference
        self.beta = beta
        self.micro_batch = micro_batch
        self._parts: list[MicroBatch] = []
        self._totals = {"sequences": 1, "tokens": 1}
        self._shares: Iterator[float] = iter(())  # of the update's tokens, by micro-batch
        self._means: Counter[str] = Counter()  # over the tokens, summed over the step's updates
        self.correction = correction
        exact = self.model.dtype == torch.float32 and not self.args.bf16
        self.tolerance = Tolerance(exact, correction.own)
        self._gaps: list[NDArray[np.float32]] = []
        self._computed: Tensor | None = None  # log-probabilities of the newest forward pass
        self._openings: Openings | None = None  # of the micro-batch whose pass is next

    def parts(self) -> list[MicroBatch]:
        step, repeat = divmod(self.state.global_step, self.hooks.period)
        if repeat == 0:
            self.model.eval()
            samples = list(self.playing.take(step))
            self.model.train()
            self._parts = self._cut(samples, step)
            if self.correction.cap is not None:
                for part in self._parts:
                    self._correct(part, self.correction.cap)
            if self.beta:
                for part in self._parts:
                    part.inputs["ref_per_token_logps"] = self._reference(part)
        tokens = np.sum(self.totals([part.tokens for part in self._parts]), axis=0)
        self._shares = iter((tokens / tokens.sum()).tolist())
        return self._parts

    def _cut(self, samples: list[Sample], step: int) -> list[MicroBatch]:
        rows = self.totals([len(samples), sum(sum(s.mask) for s in samples)])
        self._totals = {
            "sequences": sum(row[0] for row in rows),
            "tokens": sum(row[1] for row in rows),
        }
        if not self._totals["tokens"]:
            raise WorkupError(f"step {step + 1}: not one episode to train on; all of them failed")
        # TRL's metrics are gathered per micro-batch: every process must have as many, of the same
        # size.
        samples += [BLANK] * (max(row[0] for row in rows) - len(samples))
        base = self.accelerator.unwrap_model(self.model)
        base = base.get_base_model() if isinstance(base, PeftModel) else base
        parts = policy_parts(samples, self.micro_batch, base, self.args.device)
        for part in parts:
            part.inputs["num_items_in_batch"] = torch.tensor(
                float(self._totals["tokens"]), device=self.args.device
            )
        return parts

    def part_loss(self, model: Any, part: MicroBatch) -> Tensor:
        shares = {"sequences": part.sequences, "tokens": part.tokens}
        share = {
            unit: self.world * count / self._totals[unit] for unit, count in shares.items()
        } | {"": 1.0}
        weight = share[SHARE.get(self.loss_type, "")]
        # TRL's bonus is a mean over the micro-batch's tokens, so it counts by their share.
        self._openings = part.openings
        self.entropy_coef = self.args.entropy_coef * share["tokens"] / weight if weight else 0.0
        loss: Tensor = weight * self._compute_loss(model, part.inputs)
        if self.correction.cap is None and self.state.global_step % self.hooks.period == 0:
            assert self._computed is not None
            self._compare(part, self._computed)  # the weights are still the sampler's
        self._note(next(self._shares))
        return loss

    def _note(self, share: float) -> None:
        """Takes over TRL's figures of a micro-batch that has this share of the update's tokens.

        TRL would log their plain mean over the micro-batches, which depends on how the batch is
        cut. Of its other figures (its least and greatest clip ratio, its own policy loss) that
        holds too, so that they are not told.
        """
        for name, values in self._metrics["train"].items():
            if name in TOKEN_MEANS:
                self._means[name] += share * values[-1]
        self._metrics["train"].clear()

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        compute_entropy: bool = False,
        **_: Any,
    ) -> tuple[Tensor, Tensor | None, None]:
        """Log-probabilities and entropies (B, logits_to_keep); 0 where `attention_mask` is 0.

        These are the environment's tokens.
        """
        rows, columns = attention_mask.nonzero(as_tuple=True)
        alike = self._openings
        wanted = ScoredTokens(
            rows * input_ids.shape[1] + columns - 1
            if alike is None
            else alike.places[rows, columns - 1],
            input_ids[rows, columns],
            self.temperature,
            entropy=compute_entropy,
            differentiable=self._entropy_bonus_enabled,
        )
        calls = 0 if alike is None else alike.calls
        with self.accelerator.autocast():
            found = model(
                **({"input_ids": input_ids} if alike is None else alike.inputs()), wanted=wanted
            )
        if alike is not None:
            alike.check(self.accelerator.unwrap_model(model), calls)

        def spread(values: Tensor) -> Tensor:
            empty = torch.zeros(input_ids.shape, device=values.device, dtype=values.dtype)
            return empty.index_put((rows, columns), values)[:, -logits_to_keep:]

        logprobs = spread(found[0])
        self._computed = logprobs.detach()
        return logprobs, spread(found[1]) if compute_entropy else None, None

    @torch.no_grad()
    def _logprobs(self, model: Any, part: MicroBatch) -> Tensor:
        x, self._openings = part.inputs, part.openings
        ids = torch.cat([x["prompt_ids"], x["completion_ids"]], dim=1)
        mask = torch.cat([x["prompt_mask"], x["completion_mask"]], dim=1)
        return self._get_per_token_logps_and_entropies(model, ids, mask, ids.shape[1] - 1)[0]

    def _reference(self, part: MicroBatch) -> Tensor:
        if self.ref_model is not None:
            return self._logprobs(self.ref_model, part)
        with use_adapter(self.model, adapter_name="ref"):
            return self._logprobs(self.model, part)

    def _compare(self, part: MicroBatch, logprobs: Tensor) -> None:
        """Notes how far the sampler's log-probabilities are from these, and refuses too much.

        Those of older weights may differ by anything.
        """
        mask = part.inputs["completion_mask"].bool()
        gap = (logprobs - part.inputs["old_per_token_logps"])[mask]
        if not self.playing.staleness:
            self.tolerance.check(gap, self.temperature)
        self._gaps.append(gap.float().cpu().numpy())

    def _correct(self, part: MicroBatch, cap: float) -> None:
        """Weighs the advantages by p_trainer / p_sampler, at most `cap`.

        The trainer's log-probabilities become the old ones, so that TRL's own ratios start at 1.
        """
        logprobs, x = self._logprobs(self.model, part), part.inputs
        self._compare(part, logprobs)
        ratio = (logprobs - x["old_per_token_logps"]).exp().clamp(max=cap)
        # All of TRL's losses here are proportional to the advantage at a positive factor.
        x["advantages"] = x["advantages"] * ratio
        x["old_per_token_logps"] = logprobs

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """A run that is resumed does not play again what was played ahead with older weights."""
        self.playing.settle()
        super()._save_checkpoint(model, trial)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds the means over the step's tokens and updates, as `entropy`.

        The differences between sampler and trainer are those before the step's first update.
        """
        if "loss" in logs:
            logs |= {name: total / self.hooks.period for name, total in self._means.items()}
            logs |= summary(gather_object(self._gaps))
            if self.playing.ahead:
                logs["staleness"] = self.playing.staleness
            self._gaps = []
            self._means.clear()
        super().log(logs, start_time)


def _no_reward(**_: Any) -> list[float]:
    raise AssertionError("rewards are not TRL's business here")
