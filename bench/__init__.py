"""Figures, not tests: what the rollout, a training step, memory and start-up cost, measured beside
their baselines.
"""
