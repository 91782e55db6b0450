"""Which publications a passage rests on: its id says it, so that any index and server keeps it.

The library of rare diseases (`workup.retrieval.hpo`) gives one document to each disease and set of
publications. So what a patient's own publication alone supports is a document of its own, and can
be left out for this patient without a trace in the ranking of the others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from workup.cases.publications import publications
from workup.core.case import Case, Passage

_RESTS = re.compile(r" \[(PMID:\d{1,12}(?:;PMID:\d{1,12}){0,99})\]")
MOST = 100
"""Publications that an id can name; a document that rests on more is never one patient's own."""


def resting(id: str, publications: Sequence[str]) -> str:
    """The id of a document of `id` that rests on `publications` (PMID:…) alone; `id` if on none.

    >>> resting("OMIM:148600", ["PMID:24573067"])
    'OMIM:148600 [PMID:24573067]'
    """
    named = len(publications) <= MOST and publications
    return f"{id} [{';'.join(sorted(publications))}]" if named else id


def rests_on(id: str, publications: frozenset[str]) -> bool:
    """Whether the passage of this id rests on nothing but `publications`."""
    found = _RESTS.search(id)
    return found is not None and publications.issuperset(found[1].split(";"))


def without_own(passages: Sequence[Passage], case: Case) -> list[Passage]:
    """The passages that do not rest on the case's own publications alone."""
    own = publications(case)
    return [passage for passage in passages if not rests_on(passage.id, own)]


def subject(id: str) -> str:
    """What the passage of this id is about: the id of its disease."""
    return id.partition(" [")[0].partition("#")[0]
