"""The base classes of what somebody types, a file holds or a model answers: no field is unknown."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class ClosedModel(BaseModel):
    """A model that refuses fields it does not have."""

    model_config = ConfigDict(extra="forbid")


class FrozenModel(ClosedModel):
    """A model that refuses unknown fields, and stays as it was made."""

    model_config = ConfigDict(frozen=True)
