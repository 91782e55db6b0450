"""verl's own trainer on the processor: its loop, its TransferQueue and its loss are real.

verl's workers and servers want a GPU. In their place stand one module in this process with an
optimiser, and a client that samples from it. Run as a program it trains one run; see `main`.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import ray
import torch
import transfer_queue
from transformers import AutoModelForCausalLM
from verl.utils import tensordict_utils
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.engine.utils import prepare_micro_batches
from verl.workers.rollout.replica import TokenOutput
from verl.workers.utils.losses import ppo_loss

from workup.cases import open_source
from workup.engines import Job, verl
from workup.engines.verl.engine import VerlEngine
from workup.engines.verl.trainer import MICRO, WorkupTrainer
from workup.environments import load as environment
from workup.episode import Score
from workup.methods.craft.outcome import Outcome
from workup.models.local import LocalPolicy
from workup.models.remote import Known
from workup.models.tiny import TinySettings, build
from workup.ports import Sampling

SIZE = TinySettings(width=16, layers=1, heads=2)
SMALL: dict[str, Any] = {
    "cases": "clinic:xs",
    "engine": "verl_world:engine",
    "steps": 3,
    "batch": 2,
    "group": 2,
    "max_tokens": 6,
    "save_every": 1,
    "lr": 1e-2,
    "evaluation": {"cases": 4, "anchors": False},
    "environment": {"max_turns": 3},
    "verl": {"gpus_per_node": 2},
}


def model_folder(folder: Path) -> Path:
    """A model folder with a tiny policy that never saw anything."""
    world = environment("consultation")
    source = open_source("clinic:xs")
    model, tokenizer = build(source, world.open(source, world.Settings()).phrases, SIZE, 0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


class Client:
    """Samples as verl's client does; `version` is that of the weights that it has got."""

    def __init__(self, policy: LocalPolicy) -> None:
        self.policy, self.version, self.asked = policy, -1, 0

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]
    ) -> TokenOutput:
        self.asked += 1
        p = sampling_params
        sampling = Sampling(tuple(p["stop"]), p["max_tokens"], p["temperature"], p["seed"])
        said = await self.policy.sample(prompt_ids, sampling)
        steps = {f"{end}_global_steps": self.version for end in ("min", "max")}
        return TokenOutput(
            token_ids=list(said.tokens),
            log_probs=list(said.logprobs) if p["logprobs"] else None,
            stop_reason="completed",
            extra_fields=steps,
        )


def logprobs(model: Any, data: Any, temperature: float) -> tuple[Any, Any]:
    """log p of each token given those before it, and the entropy there, nested as verl's engines
    return them.
    """
    found, entropies = [], []
    for ids in data["input_ids"].unbind():
        every = (model(input_ids=ids[None]).logits[0].float() / temperature).log_softmax(-1)
        own = every[:-1].gather(-1, ids[1:, None])[:, 0]
        found.append(torch.cat([own, own.new_zeros(1)]))
        entropies.append(-(every.exp() * every).sum(-1))
    return tuple(torch.nested.as_nested_tensor(x, layout=torch.jagged) for x in (found, entropies))


def cut(rows: Any, more: Any) -> Any:
    """A worker's micro-batches, as verl cuts them: it refuses sizes that do not divide."""
    how = {MICRO: more[MICRO], "use_dynamic_bsz": False}
    tensordict_utils.assign_non_tensor(rows, **how)
    return prepare_micro_batches(rows)[0]


class Workers:
    """verl's group of actor workers: `ranks` of them, one after the other in this process."""

    def __init__(self, config: Any, model: Any, ranks: int) -> None:
        self.actor, self.model, self.ranks = config.actor_rollout_ref.actor, model, ranks
        self.loss = omega_conf_to_dataclass(self.actor)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=self.actor.optim.lr)
        self._dispatch_info: dict[str, list[int]] = {}
        self.seen: list[dict[str, Any]] = []

    def _query_dispatch_info(self, role: str) -> list[int]:
        return list(range(self.ranks))

    def update_actor(self, batch: Any) -> Any:
        more = batch.extra_info
        self.seen.append({"rows": len(batch.keys), **more})
        share = len(batch.keys) // self.ranks
        assert share * self.ranks == len(batch.keys)
        parts = [
            transfer_queue.kv_batch_get(
                keys=batch.keys[rank * share : (rank + 1) * share],
                partition_id=batch.partition_id,
            )
            for rank in range(self.ranks)
        ]
        whole = sum(int(part["loss_mask"].values().sum()) for part in parts)
        total = 0.0
        for _ in range(more["epochs"]):
            self.optimizer.zero_grad()
            for part in (chunk for rank in parts for chunk in cut(rank, more)):
                tensordict_utils.assign_non_tensor(
                    part,
                    dp_size=self.ranks,
                    batch_num_tokens=whole,
                    global_batch_size=more["global_batch_size"],
                )
                output = {"log_probs": logprobs(self.model, part, more["temperature"])[0]}
                loss, _ = ppo_loss(self.loss, output, part)
                (loss / self.ranks).backward()  # data-parallel workers average their gradients
                total += float(loss) / self.ranks
            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.actor.grad_clip)
            self.optimizer.step()
        metrics = {"loss": [total], "grad_norm": [float(norm)], "lr": self.actor.optim.lr, "mfu": 0}
        return {"metrics": metrics}

    def save_checkpoint(self, place: str, *_: Any, **__: Any) -> None:
        self.model.save_pretrained(Path(place) / "huggingface")
        torch.save(self.optimizer.state_dict(), Path(place) / "optimizer.pt")

    def load_checkpoint(self, local_path: str, **_: Any) -> None:
        kept = AutoModelForCausalLM.from_pretrained(Path(local_path) / "huggingface")
        self.model.load_state_dict(kept.state_dict())
        self.optimizer.load_state_dict(torch.load(Path(local_path) / "optimizer.pt"))


class Servers:
    """verl's checkpoint manager: brings new weights to the servers."""

    def __init__(self, client: Client) -> None:
        self.client, self.stale = client, False

    def update_weights(self, step: int) -> None:
        self.client.policy.refresh()
        self.client.version = step if not self.stale else self.client.version

    def sleep_replicas(self) -> None:
        pass


class ProcessorTrainer(WorkupTrainer):
    """verl's trainer with these workers and servers instead of those on GPUs."""

    def _setup(self) -> None:
        self._init_tokenizer()
        self._init_dataloader()
        self._init_dump_executor()
        place = self.config.actor_rollout_ref.model.path
        model = AutoModelForCausalLM.from_pretrained(place)
        tokenizer = Known.of(place).tokenizer
        self.client = Client(LocalPolicy(model, tokenizer))
        ranks = self.config.trainer.nnodes * self.config.trainer.n_gpus_per_node
        self.actor_rollout_wg = Workers(self.config, model, ranks)
        self.checkpoint_manager = Servers(self.client)
        self.reward_loop_manager = type("NoReward", (), {"reward_loop_worker_handles": []})()
        self._load_checkpoint()

    def get_llm_client(self) -> Client:
        return self.client

    def _get_n_gpus_for_throughput(self) -> int:
        return 1


def join(config: Any) -> None:
    """A Ray of its own on this machine, without GPUs."""
    if not ray.is_initialized():
        os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
        ray.init(num_cpus=16, include_dashboard=False, log_to_driver=False)


def started(job: Job) -> VerlEngine:
    return VerlEngine(job, ProcessorTrainer, join)


class engine:  # what `engine=verl_world:engine` names
    open, refuse = started, verl.refuse

    processes = verl.processes


class Lengths(Outcome):
    """Pays for odd tokens: a policy that never saw anything differs in that."""

    def stages(self, settings: Any, environment: Any) -> Any:
        *_, last = super().stages(settings, environment)
        return (replace(last, reward=odd),)


async def odd(batch: Any, instruments: Any) -> Any:
    return [[Score(tuple(worth(t) for t in e.turns)) for e in group] for group in batch]


def worth(turn: Any) -> float:
    return fmean(token % 2 for token in turn.completion.tokens)


method = Lengths()


def main(folder: str, out: str, method: str, *words: str) -> None:
    """Trains `method` on the model in `folder` into the run `out`, or goes on with that run."""
    from workup import settings
    from workup.report import live
    from workup.training import loop

    with live.show() as view:
        if Path(out).exists():
            loop.resume(Path(out), view)
            return
        given = {**SMALL, "method": method, "policy": folder}
        loop.start(
            settings.build(settings.Settings, {**given, **settings.read(words)}), Path(out), view
        )


if __name__ == "__main__":
    sys.modules["verl_world"] = sys.modules["__main__"]
    main(*sys.argv[1:])
