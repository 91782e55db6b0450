"""The built-in clinic: invented patients whose exact answers are known.

A test bench, no medical device.

Anchors of the renamed clinic reason exactly. They know what a name means once a passage with that
title was shown; with links, once the picture's name stood in a title too.

- told information: reasons without a search, which is chance
- random searcher: as many searches as are granted, each for up to `environment.queried` of the
  findings, drawn at random
- ideal searcher: before each search it tries the query of all known findings, of each one and of
  each two, and takes the one after which it is surest; with links also each picture's name
- asking searcher: in `inquiry` half of its actions ask for what would tell most if it knew all
  names, then it searches as the ideal searcher does; a strong doctor, no bound
- full information: the whole record and all names, the ceiling
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
