"""Figures, not tests: what rollout, a training step, memory and start-up cost.

They are measured beside their baselines.
"""
