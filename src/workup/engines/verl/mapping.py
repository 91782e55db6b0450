"""A run's settings as verl's configuration. verl need not be installed.

Each setting is in one of three places: `_mapped` writes it as a key of verl's; the driver follows
it itself (`DRIVER`); or `refuse` turns it away by its name, in part or in whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workup.core.errors import UserError
from workup.core.stages import DpoStage, KeptStage, SearchStage, SftStage, Stage
from workup.models.lora import base_of

Values = Mapping[str, Any]
ACTOR, ROLLOUT, REF = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "ref"))
MODEL, FSDP = "actor_rollout_ref.model", f"{ACTOR}.fsdp_config"
PACKAGE = "pkg://workup.engines.verl.places"
ESTIMATOR = "workup"
# Where the advantage is negative, TRL does not clip the ratio from above. verl clamps log-ratios to
# 20, so that this bound is never reached.
NO_DUAL_CLIP = 1e9
AGGREGATED = {
    "grpo": "seq-mean-token-mean",
    "sapo": "seq-mean-token-mean",
    "bnpo": "token-mean",
    "dapo": "token-mean",
    "cispo": "token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
}
PRECISION = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
TRACKERS = ("tensorboard", "trackio", "wandb")

# What the driver follows itself: it plays, judges, scores, credits, evaluates and writes as on one
# machine, so that verl need not know.
DRIVER = frozenset(
    {
        *(
            "method",
            "preset",
            "cases",
            "strict",
            "split",
            "folds",
            "environment",
            "reward",
            "balance",
        ),
        *("evaluation", "roles", "endpoints", "budget", "replay", "max_failed", "threads"),
        *("engine", "tiny", "save_total_limit", "warm_start", "max_tokens", "begin"),
    }
)
RATES = ("lr", "lr_schedule", "warmup")


def configuration(values: Values, model: str, folder: Path) -> dict[str, Any]:
    """The keys of verl's `ppo_trainer` configuration that differ from its defaults.

    `values` are all settings of a run, as `Settings.model_dump` gives them. `model` is the folder
    or hub id of the weights. `folder` takes verl's checkpoints. Raises UserError for a setting that
    has no counterpart, and for adapters without their model.
    """
    refuse(values)
    if base_of(model) is not None:
        raise UserError(
            f"{model} holds adapters alone, and verl takes whole weights: type `workup merge "
            f"{model} FOLDER`, then train that"
        )
    place = {  # where it runs, and when it writes
        "trainer.nnodes": values["verl"]["nodes"],
        "trainer.n_gpus_per_node": values["verl"]["gpus_per_node"],
        "trainer.save_freq": values["save_every"],
        "trainer.test_freq": -1,
        "trainer.val_before_train": False,
        # `checkpoints` removes old ones: verl would remove the only one before the next is whole.
        "trainer.max_actor_ckpt_to_keep": None,
        "trainer.logger": list(values["report_to"]),
        "trainer.project_name": "workup",
        "trainer.experiment_name": values["method"],
        "trainer.v1.trainer_mode": "sync",
        f"{MODEL}.path": model,
        "trainer.default_local_dir": str(folder),
    }
    return {**_data(values), **_update(values), **_sampling(values), **place}


def scoring(keys: Mapping[str, Any]) -> dict[str, Any]:
    """The keys with verl's frozen reference workers, whatever `beta` is: a reward asks them."""
    return {**keys, f"{ACTOR}.use_kl_loss": True}


def learning(values: Values, kind: str, steps: int, model: str, folder: Path) -> dict[str, Any]:
    """The same keys for a stage of `steps` updates that samples nothing.

    `kind` is the setting that has its rates: sft, tuning or dpo. DPO's reference is verl's frozen
    copy of the weights.
    """
    own = values[kind]
    given = {
        **values,
        **{name: own[name] for name in RATES},
        # verl wants a batch that the GPUs divide; how many rows a step has it learns from the rows.
        **{"steps": steps, "batch": _gpus(values), "group": 1, "num_iterations": 1},
        **{"temperature": 1.0, "loss_type": "grpo", "entropy": 0.0, "importance_cap": None},
        "beta": 1.0 if kind == "dpo" else 0.0,
    }
    return configuration(given, model, folder)


def rates(stage: Stage) -> str:
    """The setting that has the learning rate of a stage; "" for the run's own, or where none is."""
    if isinstance(stage, DpoStage):
        return "dpo"
    if isinstance(stage, KeptStage):
        return "tuning"
    if isinstance(stage, SftStage):
        return "sft" if stage.size is None else "tuning"
    return ""


def trained(values: Values, stages: Sequence[Stage]) -> list[Stage]:
    """The stages that change weights; a warm start is one of them only where it was asked for."""
    warms = values["warm_start"] is True and values["sft"]["steps"] > 0
    return [
        stage
        for stage in stages
        if not isinstance(stage, SearchStage) and (warms or rates(stage) != "sft")
    ]


def _gpus(values: Values) -> int:
    return int(values["verl"]["nodes"] * values["verl"]["gpus_per_node"])


def refuse(values: Values) -> None:
    """Raises UserError for the first setting that verl cannot follow; it names the setting."""
    for name, wrong, instead in _refusals(values):
        if wrong:
            raise UserError(_refusal(values, name, instead))


def refuse_stages(values: Values, stages: Sequence[Stage]) -> None:
    """Raises UserError for the first learning rate of a stage that verl cannot follow."""
    for stage in trained(values, stages):
        if kind := rates(stage):
            for name, wrong, instead in _refused_rates(values[kind]):
                if wrong:
                    raise UserError(_refusal(values, f"{kind}.{name}", instead))


def _refusal(values: Values, name: str, instead: str) -> str:
    return f"engine=verl has no counterpart of '{name}={_shown(values, name)}': {instead}"


def _refused_rates(v: Values) -> list[tuple[str, bool, str]]:
    return [
        ("lr_schedule", v["lr_schedule"] == "linear", "its schedules are constant and cosine"),
        (
            "warmup",
            v["warmup"] >= 1 and v["warmup"] != int(v["warmup"]),
            "a number of updates is a whole one",
        ),
    ]


def _refusals(v: Values) -> list[tuple[str, bool, str]]:
    per_step = v["batch"] * v["group"]
    gpus = _gpus(v)
    return [
        (
            "policy",
            v["policy"] == "tiny",
            "each worker reads the weights from a folder; name a model folder or a hub id",
        ),
        (
            "sampler",
            v["sampler"] != "local",
            "verl starts its own servers; leave it out (verl.rollout says which)",
        ),
        ("sampler_address", v["sampler_address"] is not None, "verl starts its own servers"),
        *_refused_rates(v),
        ("ahead", bool(v["ahead"]), "it plays and trains by turns; take ahead=0"),
        (
            "entropy",
            bool(v["entropy"]) and AGGREGATED[v["loss_type"]] != "token-mean",
            "verl averages the entropy as it averages the loss; take loss_type=dapo, or entropy=0",
        ),
        ("steps", v["steps"] < 1, "it trains at least one step"),
        (
            "batch",
            per_step % gpus != 0,
            f"batch · group = {per_step} episodes are no multiple of the {gpus} GPUs",
        ),
        (
            "report_to",
            not set(v["report_to"]) <= set(TRACKERS),
            f"its trackers here are {', '.join(TRACKERS)}",
        ),
        (
            "verl.tensor_parallel",
            gpus % v["verl"]["tensor_parallel"] != 0,
            f"it must divide the {gpus} GPUs",
        ),
    ]


def _shown(values: Values, name: str) -> Any:
    for part in name.split("."):
        values = values[part]
    return "…" if isinstance(values, Mapping) else values


def _data(v: Values) -> dict[str, Any]:
    """What a step is: verl's data set holds places in our order of the cases, and no text."""
    return {
        "data.train_files": v["steps"] * v["batch"],
        "data.val_files": 1,
        "data.custom_cls.path": PACKAGE,
        "data.custom_cls.name": "Places",
        "data.train_batch_size": v["batch"],
        "data.shuffle": False,
        "data.dataloader_num_workers": 0,
        "trainer.total_training_steps": v["steps"],
        "trainer.total_epochs": 1,
        f"{ROLLOUT}.n": v["group"],
        "algorithm.adv_estimator": ESTIMATOR,
        "algorithm.use_kl_in_reward": False,
        "reward.num_workers": 1,
        "transfer_queue.enable": True,
        "transfer_queue.backend.SimpleStorage.total_storage_size": max(
            100_000, 4 * v["batch"] * v["group"]
        ),
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": v["verl"]["nodes"],
    }


def _update(v: Values) -> dict[str, Any]:
    """How the weights are updated: one update of the whole batch per iteration, as on TRL."""
    cispo = v["loss_type"] == "cispo"
    high = v["epsilon"] + cispo if v["epsilon_high"] is None else v["epsilon_high"]
    warmup = v["warmup"]
    cap = v["importance_cap"]
    compute = "bf16" if v["bf16"] else PRECISION[v["dtype"]]
    modes = {"cispo": "cispo", "sapo": "sapo"}
    keys = {
        "optim.lr": v["lr"],
        "optim.lr_scheduler_type": v["lr_schedule"],
        "optim.lr_warmup_steps": int(warmup) if warmup >= 1 else -1,
        "optim.lr_warmup_steps_ratio": warmup if warmup < 1 else 0.0,
        "optim.weight_decay": 0.0,
        "optim.clip_grad": v["max_grad_norm"] or float("inf"),
        "policy_loss.loss_mode": modes.get(v["loss_type"], "vanilla"),
        "loss_agg_mode": AGGREGATED[v["loss_type"]],
        "loss_scale_factor": v["max_completion_length"] if v["loss_type"] == "dr_grpo" else None,
        "clip_ratio": v["epsilon"],
        # TRL's cispo bounds the ratio itself, from above alone.
        "clip_ratio_low": 1.0 if cispo else v["epsilon"],
        "clip_ratio_high": high - 1 if cispo else high,
        "clip_ratio_c": NO_DUAL_CLIP,
        "entropy_coeff": v["entropy"],
        "use_kl_loss": v["beta"] > 0,
        "kl_loss_coef": v["beta"],
        "kl_loss_type": "low_var_kl",
        "ppo_epochs": v["num_iterations"],
        "ppo_mini_batch_size": v["batch"],
        "ppo_micro_batch_size_per_gpu": v["micro_batch"],
        "data_loader_seed": v["seed"],
        "shuffle": False,
        "grad_clip": v["max_grad_norm"] or float("inf"),
        "strategy": v["verl"]["strategy"],
        "fsdp_config.strategy": v["verl"]["strategy"],
        "fsdp_config.model_dtype": PRECISION[v["dtype"]],
        "fsdp_config.mixed_precision": {
            "param_dtype": compute,
            "reduce_dtype": "fp32",
            "buffer_dtype": "fp32",
        },
        "fsdp_config.param_offload": v["verl"]["offload"],
        "fsdp_config.optimizer_offload": v["verl"]["offload"],
        "fsdp_config.seed": v["seed"],
        "checkpoint.save_contents": ["model", "optimizer", "extra", "hf_model"],
        "checkpoint.load_contents": ["model", "optimizer", "extra"],
    }
    return {f"{ACTOR}.{key}": value for key, value in keys.items()} | {
        **_adapters(v["lora"]),
        f"{MODEL}.enable_gradient_checkpointing": v["gradient_checkpointing"],
        f"{REF}.log_prob_micro_batch_size_per_gpu": v["micro_batch"],
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": v["micro_batch"],
        # Without a cap the sampler's log-probabilities are the old ones, as on TRL. With one they
        # are recomputed, and the update is weighed token by token.
        "algorithm.rollout_correction.bypass_mode": cap is None,
        "algorithm.rollout_correction.rollout_is": None if cap is None else "token",
        "algorithm.rollout_correction.rollout_is_threshold": 2.0 if cap is None else cap,
    }


def _adapters(lora: Values | None) -> dict[str, Any]:
    """Adapters, which verl merges into the weights that it brings to its servers."""
    if lora is None:
        return {}
    targets = lora["targets"] if isinstance(lora["targets"], str) else list(lora["targets"])
    return {
        f"{MODEL}.lora_rank": lora["r"],
        f"{MODEL}.lora_alpha": lora["alpha"],
        f"{MODEL}.target_modules": targets,
        f"{MODEL}.lora.merge": True,
    }


def _sampling(v: Values) -> dict[str, Any]:
    """How verl's servers are started; what a request asks is in `policy`."""
    keys = {
        "name": v["verl"]["rollout"],
        "temperature": v["temperature"],
        "top_p": 1.0,
        "top_k": -1,
        "seed": v["seed"],
        "dtype": "bfloat16" if v["bf16"] else v["dtype"],
        "gpu_memory_utilization": v["sampler_memory"],
        "max_model_len": v["sampler_context"],
        "max_num_seqs": v["concurrency"],
        "tensor_model_parallel_size": v["verl"]["tensor_parallel"],
        "calculate_log_probs": True,
        "logprobs_mode": "processed_logprobs",
        "enable_prefix_caching": True,
    }
    return {f"{ROLLOUT}.{key}": value for key, value in keys.items()}
