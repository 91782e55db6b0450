"""Did the search find what was needed? Doc_Hit of the retrieved documents (C-MIG Eqs. 13, 14)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

from workup.cases.clinic.renamed import pictured
from workup.core.case import Case
from workup.core.episode import Episode
from workup.core.text import normalise, places, without_markup
from workup.metrics.metric import PAGED, Metric

DOC_HIT = Metric(
    "doc_hit",
    "share of the episodes in which a document that was found names the true diagnosis",
    "Doc_Hit",
    rank=510,
    where=PAGED,
)
HIT_IF_SEARCHED = Metric(
    "hit_if_searched",
    "the same share of the episodes that found any document",
    undefined="where no document was found",
    rank=511,
    where=PAGED,
)

FIRST_HOP = Metric(
    "first_hop",
    "share of the episodes that found the first of two linked documents: the one that lists the "
    "findings of the true diagnosis under its picture's name (Doc_Hit is the second)",
    "first hop found",
    rank=509,
    where=PAGED,
)


def contains(texts: Iterable[str], case: Case) -> bool:
    """1[a ⊆ I]: whether one of `texts` holds the diagnosis or an alias, as whole words.

    Both sides are in normal form. Each text is searched by itself: a name that begins in one text
    and ends in the next is in neither.
    """
    return stands_in((case.truth.diagnosis, *case.truth.aliases), texts)


def stands_in(names: Iterable[str], texts: Iterable[str]) -> bool:
    """Whether one of `texts` holds one of `names` as whole words, both in normal form.

    `workup.core.text.places` says what a whole word is. Markup within a name or beside it is no
    part of a text: "<i>Kawasaki</i> disease" holds "Kawasaki disease".
    """
    wanted = [form for form in map(_form, names) if form]
    return any(
        any(True for _ in places(name, form))
        for text in texts
        for form in _forms(text)
        for name in wanted
    )


def doc_hit(episode: Episode) -> float:
    """Doc_Hit ∈ {0, 1}: whether any passage of any turn holds the diagnosis.

    C-MIG Eq. 14. 0 if nothing was retrieved.
    """
    return float(contains((passage.whole for passage in episode.passages), episode.case))


def first_hop(episode: Episode) -> float | None:
    """0 or 1: whether a passage names the true diagnosis's picture and not the diagnosis.

    None where one document says all of a diagnosis (`workup.cases.clinic.renamed`).
    """
    case = episode.case
    if not (name := pictured(case)):
        return None
    texts = (passage.whole for passage in episode.passages)
    return float(any(stands_in([name], [each]) and not contains([each], case) for each in texts))


def _forms(text: str) -> Iterator[str]:
    """Normal forms of a text: with its markup, and where it has some, without.

    "<b>flu</b>" gives "<b>flu< b>" and "flu".
    """
    yield _form(text)
    if (plain := without_markup(text)) != text:
        yield _form(plain)


@lru_cache(maxsize=1 << 13)  # the same passages are found again and again
def _form(text: str) -> str:
    return normalise(text)
