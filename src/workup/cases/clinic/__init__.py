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

from dataclasses import replace

from workup.cases.clinic.library import ClinicLibrary
from workup.cases.clinic.pathology import open_pathology
from workup.cases.clinic.patients import NOTES, TEST, TRAIN, Patients, clinic, items, phrases
from workup.cases.clinic.renamed import FIRST, LINKED_NOTE, SECOND, RenamedKnowledge, names, renamed
from workup.cases.clinic.renamed import NOTES as RENAMED_NOTES
from workup.cases.clinic.tables import HELD_OUT, LINKED, PLACES, RENAMED, SUBSETS, place
from workup.cases.clinic.varied import varied
from workup.cases.files import Split, numbered
from workup.cases.rows import RowErrors
from workup.core.case import Source
from workup.core.errors import unknown

EXAMPLE = "clinic:s"

__all__ = ["clinic", "open", "open_clinic", "open_pathology"]


def open(rest: str, split: Split, errors: RowErrors) -> Source:
    """`clinic:xs`, `s`, `m`, `full`, `pathology`, or told otherwise, as in `clinic:s#renamed`.

    Raises UserError for any other.
    """
    number = numbered(split, f"clinic:{rest}")
    if rest == "pathology":
        return open_pathology(number)
    if RENAMED in rest:
        return open_renamed(rest, number)
    subset, mark, how = rest.partition("#")
    if subset not in SUBSETS:
        raise unknown("clinic", rest, (*PLACES, "pathology"))
    source = open_clinic(subset, number)
    return varied(source, subset, how) if mark else source


def open_clinic(subset: str, split: int = 0) -> Source:
    """The source `clinic:SUBSET`, with TRAIN + TEST lazy cases.

    Raises UserError for an unknown subset.
    """
    world = clinic(subset)
    return Source(
        name=f"clinic:{subset}",
        train=Patients(subset, split, "train", range(TRAIN)),
        test=Patients(subset, split, "test", range(TEST)),
        items=items(world.tables),
        diagnoses=world.knowledge.diagnoses,
        phrases=phrases(world.tables),
        knowledge=world.knowledge,
        library=ClinicLibrary(subset),
        must_not_miss=tuple(each.name for each in world.tables.diseases if each.must_not_miss),
        notes=NOTES,
    )


def open_renamed(rest: str, split: int = 0) -> Source:
    """The source `clinic:REST`, as in `clinic:s#renamed,held-out`.

    Raises UserError for an unknown clinic or option.
    """
    subset, options = place(rest)
    held_out, linked = HELD_OUT in options, LINKED in options
    pool = (*names(held_out=False), *(names(held_out=True) if held_out else ()))
    world, masked = open_clinic(subset, split), clinic(subset).knowledge
    marks = set(masked.diagnoses)
    return replace(
        world,
        name=f"clinic:{rest}",
        train=renamed(Patients(subset, split, "train", range(TRAIN)), linked, held_out=False),
        test=renamed(Patients(subset, split, "test", range(TEST)), linked, held_out=held_out),
        diagnoses=pool,
        phrases=(*(each for each in world.phrases if each not in marks), *FIRST, *SECOND),
        knowledge=RenamedKnowledge(masked, pool),
        library=ClinicLibrary(rest),
        must_not_miss=(),  # names differ from case to case
        notes=(*world.notes, *RENAMED_NOTES, *([LINKED_NOTE] if linked else [])),
    )
