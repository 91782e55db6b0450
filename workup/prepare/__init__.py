"""Offline preparation of cases: JSON lines in, JSON lines out, resumable, with provenance in every record."""
