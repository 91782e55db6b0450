"""AutoRefine-HardDoc:

AutoRefine that pays a retrieved document naming the diagnosis instead of a refinement.
"""

from __future__ import annotations

from workup.methods.base.search import HardMethod


class AutoRefineHardDoc(HardMethod):
    """R_total = R_format + R_diag, and where that is wrong w_p·1[a ⊆ documents]."""

    paper = (
        "AutoRefine-HardDoc (C-MIG 2026, section 3.1), a variant of AutoRefine (Shi et al. 2026)"
    )
    summary = (
        "AutoRefine that pays a retrieved document naming the right diagnosis instead of a "
        "refinement"
    )
    view = "documents"


method = AutoRefineHardDoc()
