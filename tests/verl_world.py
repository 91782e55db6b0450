"""verl's own trainer on the processor: its loop, its TransferQueue and its loss are real.

verl's workers and servers want a GPU. In their place stand one module in this process with an
optimiser, and a client that samples from it. Run as a program it trains one run; see `main`.
With `DIE_AT=2-sft:1` in its environment the program and Ray beneath it are killed when that stage
has logged that step and not saved it. With `LOSE=1-sft:1:storage` one of TransferQueue's processes
is killed there.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import ray
import searching_method
import torch
import transfer_queue
from peft import LoraConfig, get_peft_model
from tensordict import TensorDict
from transformers import AutoModelForCausalLM
from verl.utils import tensordict_utils
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.engine.utils import prepare_micro_batches
from verl.workers.rollout.replica import TokenOutput
from verl.workers.utils.losses import ppo_loss

from workup.cases import open_source
from workup.core.episode import Score
from workup.core.ports import LIVE, REFERENCE, Sampling, ScoreRequest, Teaching
from workup.engines import EngineJob, verl
from workup.engines.verl.engine import VerlEngine
from workup.engines.verl.lessons import VerlImitation, VerlPreference
from workup.engines.verl.rows import sequences
from workup.engines.verl.session import Verl
from workup.engines.verl.trainer import MICRO, WorkupTrainer
from workup.environments import load as environment
from workup.methods.craft.baselines import baselines
from workup.models.local import LocalPolicy
from workup.models.remote import KnownModel
from workup.models.tiny import TinySettings, build

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


def model_folder(folder: Path, world: str = "consultation", steps: int = 0) -> Path:
    """A model folder with a tiny policy that learned demonstrations for `steps` updates."""
    place = environment(world)
    source = open_source("clinic:xs")
    opened = place.open(source, place.Settings())
    model, tokenizer = build(source, opened.phrases, SIZE, 0)
    optimizer, policy = torch.optim.AdamW(model.parameters(), 1e-2), LocalPolicy(model, tokenizer)
    for step in range(steps):
        shown = [Teaching().demonstrate(source, opened, 0, 16 * step + k) for k in range(16)]
        learned = sequences(shown, policy)
        width = max(len(sample.tokens) for sample in learned)
        ids, labels = torch.zeros(2, len(learned), width, dtype=torch.int64)
        labels.fill_(-100)
        for row, sample in enumerate(learned):
            own = torch.tensor(sample.tokens)
            ids[row, : len(own)] = own
            labels[row, : len(own)] = own.where(torch.tensor(sample.mask), torch.tensor(-100))
        optimizer.zero_grad()
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
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
        sampling = Sampling(
            tuple(p.get("stop", ())), p["max_tokens"], p["temperature"], p.get("seed", 0)
        )
        said = await self.policy.sample(prompt_ids, sampling)
        steps: dict[str, Any] = {f"{end}_global_steps": self.version for end in ("min", "max")}
        if p.get("prompt_logprobs") == 0:
            steps |= self.told(prompt_ids)
        return TokenOutput(
            token_ids=list(said.tokens),
            log_probs=list(said.logprobs) if p["logprobs"] else None,
            stop_reason="completed",
            extra_fields=steps,
        )

    def told(self, ids: list[int]) -> dict[str, Any]:
        """What verl's servers tell of a prompt: of each place the next token, and an empty row."""
        with torch.no_grad():
            every = self.policy.model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
        found = every[:-1].gather(-1, torch.tensor(ids[1:])[:, None])
        return {
            "prompt_ids": [*([token] for token in ids[1:]), [0]],
            "prompt_logprobs": [*found.tolist(), [0.0]],
        }


def logprobs(model: Any, data: Any, temperature: float) -> tuple[Any, Any]:
    """log p of each token given those before it, and the entropy there.

    Both are nested as verl's engines return them.
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
    """verl's group of actor workers: `ranks` of them, one after the other in this process.

    `reference` is the copy of the weights that verl's reference worker holds.
    """

    def __init__(self, config: Any, model: Any, ranks: int, reference: Any = None) -> None:
        self.actor, self.model, self.ranks = config.actor_rollout_ref.actor, model, ranks
        self.reference = reference
        self.set_loss_fn(partial(ppo_loss, config=omega_conf_to_dataclass(self.actor)))
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=self.actor.optim.lr)
        self._dispatch_info: dict[str, list[int]] = {}
        self.seen: list[dict[str, Any]] = []

    def _query_dispatch_info(self, role: str) -> list[int]:
        return list(range(self.ranks))

    def set_loss_fn(self, loss: Any) -> None:
        self.loss = loss

    def compute_log_prob(self, batch: Any) -> Any:
        assert batch.extra_info["no_lora_adapter"]
        with self.model.disable_adapter():
            return self.compute_ref_log_prob(batch, self.model)

    def compute_ref_log_prob(self, batch: Any, model: Any = None) -> Any:
        rows = transfer_queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id)
        with torch.no_grad():
            found, _ = logprobs(model or self.reference, rows, batch.extra_info["temperature"])
        fields = TensorDict({"log_probs": found}, batch_size=len(batch.keys))
        transfer_queue.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)
        return batch

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
        total, told = 0.0, dict[str, list[Any]]()
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
                loss, metrics = self.loss(model_output=output, data=part, dp_group=None)
                for name, metric in metrics.items():
                    told.setdefault(name, []).append(metric)
                (loss / self.ranks).backward()  # data-parallel workers average their gradients
                total += float(loss) / self.ranks
            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.actor.grad_clip)
            self.optimizer.step()
        figures = {"loss": [total], "grad_norm": [float(norm)], "lr": self.actor.optim.lr, "mfu": 0}
        # verl takes the mean over its workers; here they are one after the other.
        figures |= {
            name: [sum(metric.aggregate() for metric in told[name]) / self.ranks / more["epochs"]]
            for name in ("margin", "preferred", "entropy", "kl", "clip_ratio")
            if name in told
        }
        return {"metrics": figures}

    def save_checkpoint(self, place: str, *_: Any, **__: Any) -> None:
        """verl writes adapters beside their base, by peft's names (tests/verl_adapters.py)."""
        base = getattr(self.model, "get_base_model", lambda: self.model)()
        config, folder = base.config, Path(place) / "huggingface"
        bare = AutoModelForCausalLM.from_config(config)
        bare.save_pretrained(folder, state_dict=self.model.state_dict())
        torch.save([self.model.state_dict(), self.optimizer.state_dict()], Path(place) / "own.pt")

    def load_checkpoint(self, local_path: str, **_: Any) -> None:
        weights, optimizer = torch.load(Path(local_path) / "own.pt")
        self.model.load_state_dict(weights)
        self.optimizer.load_state_dict(optimizer)


class Servers:
    """verl's checkpoint manager: brings new weights to the servers."""

    def __init__(self, client: Client) -> None:
        self.client, self.stale = client, False

    def update_weights(self, step: int) -> None:
        self.client.policy.refresh()
        self.client.version = step if not self.stale else self.client.version

    def sleep_replicas(self) -> None:
        pass


def queue_processes() -> dict[str, Any]:
    """TransferQueue's processes: its controller, and one that stores rows."""
    (storage,) = transfer_queue.interface._TQ_STORAGE["SimpleStorage"].values()
    return {"controller": transfer_queue.interface._TQ_CONTROLLER, "storage": storage}


class Processor(WorkupTrainer):
    """verl's trainer with these workers and servers instead of those on GPUs."""

    def _setup(self) -> None:
        self._init_tokenizer()
        self._init_dataloader()
        self._init_dump_executor()
        place = self.config.actor_rollout_ref.model.path
        model, reference = (AutoModelForCausalLM.from_pretrained(place) for _ in range(2))
        tokenizer = KnownModel.of(place).tokenizer
        self.client = Client(LocalPolicy(model, tokenizer))  # adapters are set into it
        own = self.config.actor_rollout_ref.model
        self.ref_in_actor = own.lora_rank > 0
        if self.ref_in_actor:
            torch.manual_seed(0)
            how = LoraConfig(
                r=own.lora_rank, lora_alpha=own.lora_alpha, target_modules=own.target_modules
            )
            model = get_peft_model(model, how)
        ranks = self.config.trainer.nnodes * self.config.trainer.n_gpus_per_node
        self.actor_rollout_wg = Workers(self.config, model, ranks, reference.eval())
        self.ref_policy_wg = self.actor_rollout_wg
        self.checkpoint_manager = Servers(self.client)
        self.reward_loop_manager = type("NoReward", (), {"reward_loop_worker_handles": []})()
        self._load_checkpoint()

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, float]) -> Any:
        batch = super().step(metrics, timing_raw)
        stage = Path(self.config.trainer.default_local_dir).name
        place = f"{stage}:{self.global_steps}"
        if os.environ.get("DIE_AT") == place:
            os.killpg(0, signal.SIGKILL)
        if (which := os.environ.get("LOSE")) and which.startswith(place):
            handle = queue_processes()[which.removeprefix(f"{place}:")]
            os.kill(ray.get(handle.__ray_call__.remote(lambda self: os.getpid())), signal.SIGKILL)
        return batch

    def get_llm_client(self) -> Client:
        return self.client

    def _get_n_gpus_for_throughput(self) -> int:
        return 1


class ProcessorImitation(VerlImitation, Processor):
    pass


class ProcessorPreference(VerlPreference, Processor):
    pass


class ProcessorVerl(Verl):
    """verl on this machine, without GPUs."""

    reinforcement, imitation = Processor, ProcessorImitation
    preference = ProcessorPreference

    def join(self, config: Any) -> None:
        join(config)


def join(config: Any) -> None:
    """A Ray of its own on this machine, without GPUs."""
    if not ray.is_initialized():
        os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
        ray.init(num_cpus=16, include_dashboard=False, log_to_driver=False)


def started(job: EngineJob) -> VerlEngine:
    return VerlEngine(job, ProcessorVerl())


class engine:  # what `engine=verl_world:engine` names
    open, refuse = started, verl.refuse

    processes = verl.processes


def lengths(settings: Any, environment: Any) -> Any:
    """Pays for odd tokens: a policy that never saw anything differs in that."""
    *_, last = baselines["outcome"].stages(settings, environment)
    return (replace(last, reward=odd),)


async def odd(batch: Any, instruments: Any) -> Any:
    return [[Score(tuple(worth(t) for t in e.turns)) for e in group] for group in batch]


def worth(turn: Any) -> float:
    return fmean(token % 2 for token in turn.completion.tokens)


method = replace(baselines["outcome"], stages=lengths)


def staged(settings: Any, environment: Any) -> Any:
    """Every kind of stage, and two of reinforcement, each with a reward of its own."""
    *before, last = searching_method.stages(settings, environment)
    paid = replace(last, name="second", reward=likely, scorers=(REFERENCE, LIVE))
    return (*before, last, paid)


async def likely(batch: Any, instruments: Any) -> Any:
    """Pays for odd tokens, and by what a word is worth to the frozen and to the live weights."""

    async def one(episode: Any) -> Score:
        request = ScoreRequest(
            episode.case.id, "fever", contexts=((episode.turns[0].prompt_tokens,),)
        )
        names = (REFERENCE, LIVE)
        found = [(await instruments.scorer(name).score(request)).totals[0] for name in names]
        turns = [worth(turn) for turn in episode.turns]
        turns[-1] += sum(found) / 100
        return Score(tuple(turns), dict(zip(names, found, strict=True)))

    return [[await one(episode) for episode in group] for group in batch]


several = replace(searching_method.method, stages=staged)


def main(folder: str, out: str, method: str, *words: str) -> None:
    """Trains `method` on the model in `folder` into the run `out`, or goes on with that run."""
    from workup.loops.training import loop
    from workup.report import live
    from workup.runs import settings

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
