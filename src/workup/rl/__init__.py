"""Reinforcement learning without a model or an engine: rollout, samples, credit, tree search."""
