"""The built-in clinic: invented patients whose exact answers are known.

A test bench, no medical device.
"""

from __future__ import annotations

from workup.case import FixedSource
from workup.cases.clinic.pathology import open_pathology
from workup.cases.clinic.patients import clinic, open_clinic
from workup.cases.clinic.tables import SUBSETS
from workup.cases.rows import RowErrors
from workup.errors import unknown

EXAMPLE = "clinic:s"

__all__ = ["clinic", "open", "open_clinic", "open_pathology"]


def open(rest: str, split: int, errors: RowErrors) -> FixedSource:
    """`clinic:xs`, `clinic:s`, `clinic:m`, `clinic:full` or `clinic:pathology`.

    Raises UserError for any other.
    """
    if rest == "pathology":
        return open_pathology(split)
    if rest not in SUBSETS:
        raise unknown("clinic", rest, (*SUBSETS, "pathology"))
    return open_clinic(rest, split)
