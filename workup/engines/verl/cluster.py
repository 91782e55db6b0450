"""The Ray cluster that verl runs on, and verl's own configuration for it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import ray
from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf
from verl.trainer.constants_ppo import get_ppo_ray_runtime_env
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config

from workup.errors import UserError


def composed(keys: Mapping[str, Any]) -> Any:
    """verl's whole configuration: its defaults with `keys`.

    Raises UserError for a key that this verl does not have, and for what verl's own check refuses.
    """
    GlobalHydra.instance().clear()
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer")
    for key, value in keys.items():
        parent, _, name = key.rpartition(".")
        if OmegaConf.select(config, parent) is None:
            raise UserError(f"this verl has no setting '{parent}' (for '{name}')")
        OmegaConf.update(config, key, value, force_add=True)
    try:
        with redirect_stdout(StringIO()):  # it prints; what we print there may be read as YAML
            validate_config(
                config,
                use_reference_policy=need_reference_policy(config),
                use_critic=need_critic(config),
            )
    except (AssertionError, ValueError) as error:
        raise UserError(
            f"verl refuses this configuration: {' '.join(str(error).split())}"
        ) from error
    return config


def connect(config: Any) -> None:
    """Joins the Ray cluster, or starts one of this machine where a single node is asked for.

    Raises UserError where there is none, and where it has fewer nodes or GPUs than are asked for.
    """
    nodes, gpus = config.trainer.nnodes, config.trainer.n_gpus_per_node
    if not ray.is_initialized():
        address = os.environ.get("RAY_ADDRESS") or ("auto" if nodes > 1 else None)
        environment: Any = OmegaConf.to_container(OmegaConf.create(get_ppo_ray_runtime_env(config)))
        environment["env_vars"]["TRANSFER_QUEUE_ENABLE"] = "1"
        try:
            ray.init(address=address, runtime_env=environment, log_to_driver=False)
        except ConnectionError as error:
            raise UserError(
                f"no Ray cluster is reachable from here, and verl.nodes={nodes} needs one; type "
                "`ray start --head` on the first node (docs/cluster.md)"
            ) from error
    check(nodes, gpus, [node["Resources"] for node in ray.nodes() if node["Alive"]])


def check(nodes: int, gpus: int, resources: list[dict[str, float]]) -> None:
    """Raises UserError where fewer than `nodes` nodes of Ray's have `gpus` GPUs each.

    `resources` are those of each living node, as Ray tells them.
    """
    fit = sum(node.get("GPU", 0) >= gpus for node in resources)
    if fit < nodes:
        raise UserError(
            f"Ray has {fit} nodes with {gpus} GPUs or more, and verl.nodes={nodes} are asked for "
            f"({len(resources)} nodes in all); start the others, or ask for fewer"
        )
