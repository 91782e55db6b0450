"""The Ray cluster that verl runs on, and verl's own configuration for it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
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

from workup.core.errors import UserError

PATIENCE = 180.0  # seconds until GPUs must be free that a stage before this one held


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
    wait_for_gpus(nodes * gpus, lambda: ray.available_resources().get("GPU", 0.0))


def refuse_shared(patience: float = PATIENCE, pause: float = 1.0) -> None:
    """Raises UserError where another run has its TransferQueue in this Ray cluster.

    It is known by one name there, and verl would take the other's rows for its own. That of a run
    that was killed goes within seconds, and is waited for.
    """
    end = time.monotonic() + patience
    while _queue_is_there():
        if time.monotonic() >= end:
            raise UserError(
                "another run of verl's uses this Ray cluster: its TransferQueue is there; wait for "
                "its end, or start a cluster for each run"
            )
        time.sleep(pause)


def _queue_is_there() -> bool:
    try:
        ray.get_actor("TransferQueueController", namespace="transfer_queue")
    except ValueError:
        return False
    return True


def leave() -> None:
    """Gives everything of this run back to the Ray cluster: workers, servers, TransferQueue."""
    ray.shutdown()


def wait_for_gpus(
    wanted: int, free: Callable[[], float], patience: float = PATIENCE, pause: float = 1.0
) -> None:
    """Returns when `free()` GPUs are enough: Ray takes seconds to end a stage's workers.

    Raises UserError where they are still held after `patience` seconds.
    """
    end = time.monotonic() + patience
    while (found := free()) < wanted:
        if time.monotonic() >= end:
            raise UserError(
                f"{found:g} of the cluster's GPUs are free, and this run takes {wanted}; wait for "
                "the other jobs (`ray status`), or ask for fewer"
            )
        time.sleep(pause)


def check(nodes: int, gpus: int, resources: list[dict[str, float]]) -> None:
    """Raises UserError where fewer than `nodes` nodes of Ray's have `gpus` GPUs each.

    `resources` are those of each living node, as Ray reports them.
    """
    fit = sum(node.get("GPU", 0) >= gpus for node in resources)
    if fit < nodes:
        raise UserError(
            f"Ray has {fit} nodes with {gpus} GPUs or more, and verl.nodes={nodes} are asked for "
            f"({len(resources)} nodes in all); start the others, or ask for fewer"
        )
