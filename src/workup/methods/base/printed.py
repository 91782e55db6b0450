"""Settings that papers print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def with_reward(printed: Mapping[str, Any], **reward: Any) -> Mapping[str, Any]:
    """Printed settings (`Method.printed`) with further ones of the reward."""
    return {**printed, "reward": {**printed["reward"], **reward}}
