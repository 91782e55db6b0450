"""RAG: the library is searched once with the question, then the answer (Med-R³, MR-2)."""

from __future__ import annotations

from workup.core.ports import Environment
from workup.doctors.strategies import Seat, modes

summary = "reads what one search with the question brings, then answers"
paper = "Med-R³, appendix Baselines and Table 6 (RAG)"
Settings = modes.RetrievalSettings


def open(seat: Seat, environment: Environment, settings: modes.RetrievalSettings) -> modes.Mode:
    """Raises UserError where the environment has no library."""
    fits(environment)
    return modes.opened(seat, environment, settings)


def fits(environment: Environment) -> None:
    """Raises UserError where the environment has no library."""
    modes.need_library("rag", environment)
