"""Vanilla: the environment's own rules, which tell the doctor to ask before it answers."""

from __future__ import annotations

from workup.core.ports import Doctor, Environment
from workup.doctors.strategies import Seat
from workup.doctors.strategies.framing import Framable, framed

summary = "the encounter's own rules, nothing added"
paper = "ProMed, section 4.1 (prompt-based baselines)"
Settings = Framable


def open(seat: Seat, environment: Environment, settings: Framable) -> Doctor:
    """The policy as it is."""
    return framed(seat, environment, settings).doctor
