"""AutoRefine: search and refine, paid for the diagnosis, and for a refinement that names it."""

from __future__ import annotations

from pydantic import Field

from workup.signals.search_method import SearchMethod, SearchSettings
from workup.signals.searching import Supervise, hard


class Settings(SearchSettings):
    """What can be set; the README beside this file says why the defaults are what they are."""

    w_p: float = Field(0.1, ge=0, description="paid where the diagnosis is wrong, but a refinement names the right one")


class AutoRefine(SearchMethod):
    """R_total = R_format + R_diag, and where that is wrong w_p·1[a ⊆ refinement]."""

    paper = "AutoRefine (Shi et al. 2026), as a baseline of C-MIG (2026)"
    summary = "search and refine, paid for an exact diagnosis, or else a little for a refinement that names it"
    settings: type[Settings] = Settings

    def supervise(self, settings: Settings) -> Supervise:
        return hard(self.shape(settings), "refinement", settings.w_p)


method = AutoRefine()
