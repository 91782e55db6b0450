"""AutoRefine-HardDoc: AutoRefine that rewards a retrieved document naming the diagnosis.

It does not reward a refinement for that.
"""

from __future__ import annotations

from workup.methods.cmig.shared import HardMethod, HardSettings


class AutoRefineHardDoc(HardMethod):
    """R_total = R_format + R_diag; if the diagnosis is wrong, w_p·1[a ⊆ documents] is added."""

    paper = (
        "AutoRefine-HardDoc (C-MIG 2026, section 3.1), a variant of AutoRefine (Shi et al. 2026)"
    )
    summary = (
        "AutoRefine that pays a retrieved document naming the right diagnosis instead of a "
        "refinement"
    )
    settings: type[HardSettings] = HardSettings
    view = "documents"


method = AutoRefineHardDoc()
