"""Workup: train and evaluate language models that seek evidence before they diagnose."""
