"""What a case of a published patient knows of its origin: publications, and what was excluded.

A search can so leave out the publications that report the patient. Both stand in `Truth.extra`, as
plain JSON: an exported case keeps them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from workup.core.case import Case

PUBLICATIONS, EXCLUDED = "publications", "excluded"
_PMID = re.compile(
    r"(?:pmid|(?:https?://)?(?:www\.)?(?:pubmed\.ncbi\.nlm\.nih\.gov|ncbi\.nlm\.nih\.gov/pubmed))"
    r"[\s:_/]*(\d{1,12})(?!\d)",
    re.IGNORECASE,
)


def publication(text: str) -> str:
    """The publication that an id or an address begins with, as the HPO writes it; "" for none.

    >>> publication("PMID_15266616_100"), publication("pmid: 27672653-Wahab-2016")
    ('PMID:15266616', 'PMID:27672653')
    """
    found = _PMID.match(text.strip())
    return f"PMID:{int(found[1])}" if found else ""


def without_publication(id: str) -> str:
    """The id without the publication that it begins with, and the signs behind that.

    >>> without_publication("PMID:27672653-Wahab-2016"), without_publication("a-1")
    ('Wahab-2016', 'a-1')
    """
    found = _PMID.match(id)
    return id[found.end() :].lstrip("-_: ") or id if found else id


def published(publications: Iterable[str], excluded: Iterable[str]) -> dict[str, list[str]]:
    """What `Truth.extra` says of a case that these publications (PMID:…) report.

    `excluded` are the ids of terms that were looked for and not found.
    """
    return {PUBLICATIONS: sorted(publications), EXCLUDED: [*excluded]}


def publications(case: Case) -> frozenset[str]:
    """The publications that report the case; none where its source does not tell any."""
    return frozenset(_told(case, PUBLICATIONS) or ())


def unpublished(cases: Sequence[Case]) -> int:
    """How many of `cases`, whose source tells publications, name none.

    Nothing of their own can be left out of what is searched.
    """
    told = [case for case in cases if _told(case, PUBLICATIONS) is not None]
    return sum(not publications(case) for case in told)


def excluded(case: Case) -> tuple[str, ...]:
    """The ids of the terms that were looked for and not found."""
    return tuple(_told(case, EXCLUDED) or ())


def _told(case: Case, name: str) -> list[str] | None:
    """The texts of a list in `Truth.extra`; None where there is no such list."""
    extra = case.truth.extra
    told = extra.get(name) if isinstance(extra, dict) else None
    return [each for each in told if isinstance(each, str)] if isinstance(told, list) else None


class Groups:
    """Things that belong together, directly or through others, by name (union-find)."""

    def __init__(self) -> None:
        self._over: dict[str, str] = {}

    def join(self, names: Iterable[str]) -> None:
        """All of `names` belong to one group; its name is the smallest of all of its members."""
        roots = [self.of(name) for name in names]
        least = min(roots, default="")
        self._over |= dict.fromkeys(roots, least)

    def of(self, name: str) -> str:
        """The name of the group of `name`: itself, where nothing was joined to it."""
        over = self._over.setdefault(name, name)
        while over != name:
            self._over[name] = name = self._over[over]
            over = self._over[name]
        return name
