"""AutoRefine: search and refine, rewarded for the diagnosis and for a refinement that names it."""

from __future__ import annotations

from workup.methods.cmig.shared import HardMethod


class AutoRefine(HardMethod):
    """R_total = R_format + R_diag; if the diagnosis is wrong, w_p·1[a ⊆ refinement] is added."""

    paper = "AutoRefine (Shi et al. 2026), as a baseline of C-MIG (2026)"
    summary = (
        "search and refine, paid for an exact diagnosis, or else a little for a refinement that "
        "names it"
    )


method = AutoRefine()
