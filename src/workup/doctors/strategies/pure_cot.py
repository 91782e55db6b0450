"""Pure CoT: a thought, then the answer; nothing is asked or searched (Med-R³, MR-2)."""

from __future__ import annotations

from workup.core.ports import Environment
from workup.doctors.strategies import Seat, modes

summary = "thinks once, then answers: no questions, no searches"
paper = "Med-R³, appendix Baselines and Table 6 (CoT)"
Settings = modes.Settings


def open(seat: Seat, environment: Environment, settings: modes.Settings) -> modes.Mode:
    """The mode that thinks and does not retrieve, in any environment."""
    return modes.opened(seat, environment, settings, thinks=True)
