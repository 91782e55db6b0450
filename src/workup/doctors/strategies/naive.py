"""Naive: the question, and an answer at once (Med-R³, MR-2)."""

from __future__ import annotations

from workup.core.ports import Environment
from workup.doctors.strategies import Seat, modes

summary = "answers the question at once: no questions, no searches, no thought"
paper = "Med-R³, appendix Baselines and Table 6 (Naive)"
Settings = modes.Settings


def open(seat: Seat, environment: Environment, settings: modes.Settings) -> modes.Mode:
    """The mode that does not retrieve and does not think, in any environment."""
    return modes.opened(seat, environment, settings)
