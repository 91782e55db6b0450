"""Runs and environments for other programs."""
