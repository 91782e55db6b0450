"""Mechanics of reinforcement learning that know no model: rollouts, samples, credit, tree search."""
