"""Demonstrations of reasoning with searches, for a policy that has never seen either (MR-1).

What to search for is left to reinforcement: queries are drawn from the patient's findings and from
diagnoses that documents named. The thought repeats statements of the documents that bear on the
patient's findings. Only the answer is the truth (but see
`taught_diagnosis`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np

from workup.core.case import Case, Passage, Source
from workup.core.episode import DIAGNOSE, Completion, Message, Turn
from workup.core.ports import Act, Demonstration, Doctor, Environment, Sampling
from workup.core.text import THINK, normalise
from workup.environments.base.queries import (
    MOST_FINDINGS,
    drawn_searches,
    known_findings,
    names_in,
    need_diagnoses,
    own_names,
    random_query,
    taught_diagnosis,
)
from workup.environments.base.searching import SEARCH, SearchGrammar
from workup.environments.base.teacher import drawn_case, exchanges, imitation, played
from workup.roles.judges.statements import ExactStatements

MOST_REPEATED = 2  # statements after one search


@dataclass(frozen=True, slots=True)
class ReasoningTeaching:
    """Demonstrations: k searches with real answers, then the diagnosis.

    k is uniform from `least_searches` to max_turns − 1. After each answer the thought repeats at
    most `repeated` statements of the documents: those about a finding that the patient has, and
    with links those that say which disease has a picture. Where the documents make none that can be
    read exactly, it says nothing. A query has at most `queried` findings.
    """

    grammar: SearchGrammar
    queried: int = MOST_FINDINGS
    repeated: int = MOST_REPEATED

    def demonstrate(
        self,
        source: Source,
        environment: Environment,
        seed: int,
        index: int,
        doctor: Doctor | None = None,
    ) -> Demonstration:
        """The index-th demonstration; `Teaching` says what `doctor` is.

        The same arguments give the same one. Raises UserError for a
        source whose diagnoses are not listed.
        """
        need_diagnoses(source)
        case, rng = drawn_case(source, seed, index)
        searches = drawn_searches(source, environment.max_turns - 1, rng)
        teacher = _ReasoningTeacher(self, source, environment, searches, rng)
        if doctor is not None:
            lead = partial(teacher.thought, case)
            return imitation(case, environment, doctor, seed, index, lead)
        return Demonstration(environment.open(case), exchanges(played(case, environment, teacher)))


@dataclass(frozen=True, slots=True)
class _ReasoningTeacher:
    """A `Doctor` that searches so many times, then names the diagnosis."""

    teaching: ReasoningTeaching
    source: Source
    environment: Environment
    searches: int
    rng: np.random.Generator

    async def act(
        self, case: Case, opening: Sequence[Message], past: Sequence[Turn], sampling: Sampling
    ) -> Act:
        source, write, taught = self.source, self.environment.write, self.teaching
        findings = known_findings(source, case, taught.grammar)
        read = [each for turn in past for each in turn.observation.passages or ()]
        lead = self.thought(case, past)
        if len(past) < self.searches:
            named = names_in(read, source, case)
            query = random_query(source, findings, named, self.rng, taught.queried)
            return Act((), Completion(lead + write(SEARCH, query)))
        diagnosis = taught_diagnosis(read, source, case, findings)
        return Act((), Completion(lead + write(DIAGNOSE, diagnosis)))

    def thought(self, case: Case, past: Sequence[Turn]) -> str:
        """What is thought before the next action: it begins with the tag, then repeats."""
        if not past:
            return f"<{THINK}>"
        findings = known_findings(self.source, case, self.teaching.grammar)
        links = map(normalise, own_names(self.source, case).links)
        stated = _statements(past[-1].observation.passages or (), findings, [*links])
        return "".join(islice(stated, self.teaching.repeated))


def _statements(
    found: Sequence[Passage], findings: Sequence[str], links: Sequence[str]
) -> Iterator[str]:
    """The statements about a finding or on whose link it is, in the words of the documents."""
    documents = "\n".join(passage.whole for passage in found)
    for said, statement in ExactStatements().stated(documents):
        if statement.tail in (*findings, *links) or statement.head in findings:
            yield f"{said}; "
