"""Why the weights are not sharded, and which sizes fit without it."""

from __future__ import annotations

import os

from workup.core.errors import UserError

# The sizes are those of docs/install.md, from the bytes for each parameter of `bench.fitting`.
WHOLE = (
    "FSDP shards the policy, and with engine=trl every process samples from a whole one: start "
    "without it (80 GB train 3 B parameters, or 12 B with lora.r=8; 141 GB 5 B, or 21 B), or use "
    "engine=verl"
)


def refuse_sharding() -> None:
    """Raises UserError where `accelerate launch` was told to shard the weights."""
    if os.environ.get("ACCELERATE_USE_FSDP", "").lower() in ("1", "true", "yes", "on"):
        raise UserError(WHOLE)
