"""Vanilla: the environment's own rules, which tell the doctor to ask before it answers."""

from __future__ import annotations

from workup.doctors.strategies import Plain, Seat
from workup.ports import Doctor, Environment

summary = "the encounter's own rules, nothing added"
paper = "ProMed, section 4.1 (prompt-based baselines)"
Settings = Plain


def open(seat: Seat, environment: Environment, settings: Plain) -> Doctor:
    """The policy as it is."""
    return seat.doctor
