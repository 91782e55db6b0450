"""MCTS-MV: a tree search at test time; the most frequent answer of its trajectories counts."""

from __future__ import annotations

from workup.core.ports import Environment
from workup.doctors.strategies import Seat, trees
from workup.doctors.strategies.framing import framed

summary = "tree search; a majority vote over the trajectories' answers"
paper = "ProMed, section 4.1 (MCTS-MV); the search is Algorithm 2"
Settings = trees.Settings


def open(seat: Seat, environment: Environment, settings: trees.Settings) -> trees.TreeSearcher:
    """The search of MCTS-BT, in which R only guides."""
    seat = framed(seat, environment, settings)
    return trees.TreeSearcher(environment, seat, settings, trees.majority)
