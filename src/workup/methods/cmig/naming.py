"""What of an episode's texts counts as naming the right diagnosis (C-MIG Eq. 13 and CM-7).

A refinement is what a doctor makes of passages. So one that follows no passage is none, whatever it
says: neither that of a first turn, nor that of a search which found nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from workup.core.case import Case, SourceLibrary
from workup.core.episode import Episode
from workup.environments.base.queries import listed_in
from workup.environments.base.searching import SEARCH, refinement
from workup.metrics.documents import contains
from workup.roles.judges.claims import denied

Rule = Literal["printed", "strict"]


@dataclass(frozen=True, slots=True)
class NamingRule:
    """Which refinements and queries count.

    "printed" takes each. "strict" leaves out a text that denies the right diagnosis or asks about
    it, a refinement that names a disease which stands in none of its passages, and a query that
    names several diseases. Diseases are the listed `diagnoses`, or those that `library` has in the
    case alone.
    """

    rule: Rule = "printed"
    diagnoses: tuple[str, ...] = ()
    library: SourceLibrary | None = None

    def refinements(self, episode: Episode) -> list[str]:
        """The refinements of passages, in order."""
        read = (
            ([passage.whole for passage in before.observation.passages or ()], refinement(turn))
            for before, turn in pairwise(episode.turns)
        )
        return [
            text
            for shown, text in read
            if shown and text and (self.rule == "printed" or self._read(text, shown, episode.case))
        ]

    def queries(self, episode: Episode) -> list[str]:
        """The queries of all searches, in order."""
        return [
            query
            for turn in episode.turns
            if turn.action.kind == SEARCH
            for query in turn.action.content
            if self.rule == "printed"
            or (len(self._named(query, episode.case)) <= 1 and not _denied(query, episode.case))
        ]

    def _read(self, text: str, shown: Sequence[str], case: Case) -> bool:
        """Whether a refinement names what its passages name, without denying the truth."""
        told = {name for passage in shown for name in self._named(passage, case)}
        guessed = contains([text], case) and not contains(shown, case)
        known = told.issuperset(self._named(text, case))
        return known and not guessed and not _denied(text, case)

    def _named(self, text: str, case: Case) -> list[str]:
        return listed_in(text, self.diagnoses, case, self.library)


PRINTED = NamingRule()


def _denied(text: str, case: Case) -> bool:
    return denied(text, (case.truth.diagnosis, *case.truth.aliases))
