"""The base classes of what somebody types, a file holds or a model answers.

No field is unknown, and every number is finite: no JSON holds another, nor does config.yaml.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class ClosedModel(BaseModel):
    """A model that refuses fields it does not have, and numbers that are not finite."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class FrozenModel(ClosedModel):
    """A model that refuses unknown fields, and stays as it was made."""

    model_config = ConfigDict(frozen=True)
