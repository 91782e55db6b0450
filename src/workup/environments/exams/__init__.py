"""Ordered examinations and where their results come from (RAGES)."""
