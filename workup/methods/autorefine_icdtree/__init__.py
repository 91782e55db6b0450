"""AutoRefine-ICDTree: AutoRefine whose diagnosis is worth its nearness to the right one in the ICD-10 tree."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from workup.signals.search_method import SearchMethod, SearchSettings
from workup.signals.searching import Likeness, Supervise, hard, icd_tree


class Settings(SearchSettings):
    """What can be set; the README beside this file says why the defaults are what they are."""

    w_p: float = Field(0.1, ge=0, description="paid where the diagnosis is wrong, but a refinement names the right one")
    release: Literal["cm", "who"] = Field("cm", description="ICD-10-CM or the WHO's ICD-10")


class AutoRefineICDTree(SearchMethod):
    """As AutoRefine, with R_diag = KG = max(0, 1 − 0.2·d) (Eq. 11)."""

    paper = "AutoRefine-ICDTree (C-MIG 2026, section 3.1), a variant of AutoRefine (Shi et al. 2026)"
    summary = "AutoRefine whose diagnosis is paid by its nearness to the right one in the ICD-10 tree"
    settings: type[Settings] = Settings

    def likeness(self, settings: Settings) -> Likeness:
        return icd_tree(settings.release)

    def supervise(self, settings: Settings) -> Supervise:
        return hard(self.shape(settings), "refinement", settings.w_p)


method = AutoRefineICDTree()
