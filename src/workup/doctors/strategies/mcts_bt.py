"""MCTS-BT: a tree search at test time; the trajectory with the best own rating counts."""

from __future__ import annotations

from workup.core.ports import Environment
from workup.doctors.strategies import Seat, trees
from workup.doctors.strategies.framing import framed

summary = "tree search; the best trajectory by the policy's own estimate"
paper = "ProMed, section 4.1 (MCTS-BT); the search is Algorithm 2"
Settings = trees.Settings


def open(seat: Seat, environment: Environment, settings: trees.Settings) -> trees.TreeSearcher:
    """The search; see `trees` for what replaces R, since the truth is unknown."""
    seat = framed(seat, environment, settings)
    return trees.TreeSearcher(environment, seat, settings, trees.best)
