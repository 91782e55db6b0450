"""AutoRefine-ICDTree: AutoRefine with R_diag by nearness in the ICD-10 tree."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from workup.methods.base.searching import Likeness, icd_tree
from workup.methods.cmig.shared import HardMethod, WrittenSettings


class Settings(WrittenSettings):
    """What can be set; the README beside this file says why the defaults are what they are."""

    release: Literal["cm", "who"] = Field("cm", description="ICD-10-CM or the WHO's ICD-10")
    names: str = Field(
        "",
        description="a file of further names of diseases and their codes: FILE or FILE#NAMES,CODES",
    )


class AutoRefineICDTree(HardMethod):
    """As AutoRefine, with R_diag = KG = max(0, 1 − 0.2·d) (Eq. 11)."""

    paper = (
        "AutoRefine-ICDTree (C-MIG 2026, section 3.1), a variant of AutoRefine (Shi et al. 2026)"
    )
    summary = (
        "AutoRefine whose diagnosis is paid by its nearness to the right one in the ICD-10 tree"
    )
    settings: type[Settings] = Settings

    def likeness(self, settings: Settings) -> Likeness:
        return icd_tree(settings.release, settings.names)


method = AutoRefineICDTree()
