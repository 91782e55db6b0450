"""AutoRefine-HardSearch:

AutoRefine that pays a query naming the diagnosis instead of a refinement.
"""

from __future__ import annotations

from workup.methods.base.search import HardMethod


class AutoRefineHardSearch(HardMethod):
    """R_total = R_format + R_diag, and where that is wrong w_p·1[a ⊆ query]."""

    paper = (
        "AutoRefine-HardSearch (C-MIG 2026, section 3.1), a variant of AutoRefine (Shi et al. 2026)"
    )
    summary = "AutoRefine that pays a query naming the right diagnosis instead of a refinement"
    view = "query"


method = AutoRefineHardSearch()
