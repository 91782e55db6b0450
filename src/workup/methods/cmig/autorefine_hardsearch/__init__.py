"""AutoRefine-HardSearch: AutoRefine that rewards a query naming the diagnosis.

It does not reward a refinement for that.
"""

from __future__ import annotations

from workup.methods.cmig.shared import HardMethod


class AutoRefineHardSearch(HardMethod):
    """R_total = R_format + R_diag; if the diagnosis is wrong, w_p·1[a ⊆ query] is added."""

    paper = (
        "AutoRefine-HardSearch (C-MIG 2026, section 3.1), a variant of AutoRefine (Shi et al. 2026)"
    )
    summary = "AutoRefine that pays a query naming the right diagnosis instead of a refinement"
    view = "query"


method = AutoRefineHardSearch()
