"""The built-in clinic: invented patients whose exact answers are known.

A test bench, no medical device.
"""

from __future__ import annotations

from workup.cases.clinic.pathology import open_pathology
from workup.cases.clinic.patients import clinic, open_clinic
from workup.cases.clinic.renamed import open_renamed
from workup.cases.clinic.tables import PLACES, RENAMED, SUBSETS
from workup.cases.files import Split, numbered
from workup.cases.rows import RowErrors
from workup.core.case import FixedSource
from workup.core.errors import unknown

EXAMPLE = "clinic:s"

__all__ = ["clinic", "open", "open_clinic", "open_pathology"]


def open(rest: str, split: Split, errors: RowErrors) -> FixedSource:
    """`clinic:xs`, `s`, `m`, `full`, `pathology`, or with other names, as in `clinic:s#renamed`.

    Raises UserError for any other.
    """
    number = numbered(split, f"clinic:{rest}")
    if rest == "pathology":
        return open_pathology(number)
    if RENAMED in rest:
        return open_renamed(rest, number)
    if rest not in SUBSETS:
        raise unknown("clinic", rest, (*PLACES, "pathology"))
    return open_clinic(rest, number)
