"""MCTS-MV: the answer that most trajectories of a tree search at test time come to."""

from __future__ import annotations

from workup.doctors.strategies import Seat, trees
from workup.ports import Environment

summary = "tree search; a majority vote over the trajectories' answers"
paper = "ProMed, section 4.1 (MCTS-MV); the search is Algorithm 2"
Settings = trees.Settings


def open(seat: Seat, environment: Environment, settings: trees.Settings) -> trees.TreeSearcher:
    """The search is that of MCTS-BT; R only guides it."""
    return trees.TreeSearcher(environment, seat, settings, trees.majority)
