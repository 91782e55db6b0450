"""AutoRefine-HardDoc: AutoRefine that pays a retrieved document naming the diagnosis instead of a refinement."""

from __future__ import annotations

from pydantic import Field

from workup.signals.search_method import SearchMethod, SearchSettings
from workup.signals.searching import Supervise, hard


class Settings(SearchSettings):
    """What can be set; the README beside this file says why the defaults are what they are."""

    w_p: float = Field(0.1, ge=0, description="paid where the diagnosis is wrong, but a document names the right one")


class AutoRefineHardDoc(SearchMethod):
    """R_total = R_format + R_diag, and where that is wrong w_p·1[a ⊆ documents]."""

    paper = "AutoRefine-HardDoc (C-MIG 2026, section 3.1), a variant of AutoRefine (Shi et al. 2026)"
    summary = "AutoRefine that pays a retrieved document naming the right diagnosis instead of a refinement"
    settings: type[Settings] = Settings

    def supervise(self, settings: Settings) -> Supervise:
        return hard(self.shape(settings), "documents", settings.w_p)


method = AutoRefineHardDoc()
