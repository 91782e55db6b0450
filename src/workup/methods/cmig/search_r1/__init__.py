"""Search-R1: free search without refinements, rewarded for the diagnosis alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workup.methods.cmig.shared import SearchMethod


class SearchR1(SearchMethod):
    """R_total = R_format + R_diag."""

    paper = "Search-R1 (Jin et al. 2025), as a baseline of C-MIG (2026)"
    summary = "search and diagnose, paid for an exactly matching diagnosis alone"
    environment: Mapping[str, Any] = {**SearchMethod.environment, "refine": False}


method = SearchR1()
