"""What a case of a published patient knows of its origin: publications, and what was excluded.

A search can so leave out the publications that report the patient. Both stand in `Truth.extra`, as
plain JSON: an exported case keeps them.
"""

from __future__ import annotations

from collections.abc import Iterable

from workup.case import Case

PUBLICATIONS, EXCLUDED = "publications", "excluded"


def published(publications: Iterable[str], excluded: Iterable[str]) -> dict[str, list[str]]:
    """What `Truth.extra` says of a case that these publications (PMID:…) report.

    `excluded` are the ids of terms that were looked for and not found.
    """
    return {PUBLICATIONS: sorted(publications), EXCLUDED: [*excluded]}


def publications(case: Case) -> frozenset[str]:
    """The publications that report the case; none where its source does not tell any."""
    return frozenset(_told(case, PUBLICATIONS))


def excluded(case: Case) -> tuple[str, ...]:
    """The ids of the terms that were looked for and not found."""
    return tuple(_told(case, EXCLUDED))


def _told(case: Case, name: str) -> list[str]:
    extra = case.truth.extra
    told = extra.get(name) if isinstance(extra, dict) else None
    return [each for each in told if isinstance(each, str)] if isinstance(told, list) else []


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
