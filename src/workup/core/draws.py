"""Numbers to draw by, which depend on names alone."""

from __future__ import annotations

import hashlib


def seed_key(*parts: object) -> int:
    """A 64-bit number that depends on `parts` alone, in every process and on every platform."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "big")


def uniform(*parts: object) -> float:
    """A number in [0, 1) that depends on `parts` alone."""
    return (seed_key(*parts) >> 11) / 2**53  # exact, so never 1
