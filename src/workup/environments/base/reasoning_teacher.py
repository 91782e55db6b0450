"""Demonstrations of reasoning with searches, for a policy that has never seen either (MR-1).

What to search for is left to reinforcement: queries are drawn from the patient's findings and from
diagnoses that documents named. The thought repeats statements of the documents that bear on the
patient's findings. Only the answer is the truth (but see
`taught_diagnosis`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from workup.cases.clinic.graph import read_triples, stated
from workup.core.case import Source
from workup.core.episode import DIAGNOSE, Completion, Turn
from workup.core.ports import Demonstration, Environment
from workup.core.text import THINK
from workup.environments.base.queries import (
    MOST_FINDINGS,
    diagnoses_in,
    drawn_case,
    drawn_searches,
    known_findings,
    need_diagnoses,
    random_query,
    taught_diagnosis,
)
from workup.environments.base.searching import SEARCH, SearchGrammar
from workup.rl.running import run_to_end

MOST_REPEATED = 2  # statements after one search


@dataclass(frozen=True, slots=True)
class ReasoningTeaching:
    """Demonstrations: k ~ U{0 … max_turns − 1} searches with real answers, then the diagnosis.

    After each answer the thought repeats at most `repeated` statements of the documents: those
    about a finding that the patient has. Where the documents make none that can be read exactly, it
    says nothing. A query has at most `queried` findings.
    """

    grammar: SearchGrammar
    queried: int = MOST_FINDINGS
    repeated: int = MOST_REPEATED

    def demonstrate(
        self, source: Source, environment: Environment, seed: int, index: int
    ) -> Demonstration:
        """The index-th demonstration.

        The same (source, environment, seed, index) gives the same one. Raises UserError for a
        source whose diagnoses are not listed.
        """
        need_diagnoses(source)
        case, rng = drawn_case(source, seed, index)
        findings = known_findings(source, case, self.grammar)
        past: list[Turn] = []
        lead = f"<{THINK}>"
        for _ in range(drawn_searches(source, case, environment.max_turns - 1, rng)):
            read = [text for turn in past for text in environment.about.documents(turn)]
            named = diagnoses_in("\n".join(read), source, case)
            query = random_query(source, findings, named, rng, self.queried)
            text = lead + environment.write(SEARCH, query)
            action = environment.read(text)
            observation = run_to_end(environment.answer(case, past, action))
            past.append(Turn((), Completion(text), action, observation))
            lead = "".join(
                islice(_statements(environment.about.documents(past[-1]), findings), self.repeated)
            )
        read = [text for turn in past for text in environment.about.documents(turn)]
        diagnosis = taught_diagnosis(read, source, case, findings)
        last = lead + environment.write(DIAGNOSE, diagnosis)
        exchanges = tuple((turn.completion.text, turn.observation.messages) for turn in past)
        return Demonstration(environment.open(case), (*exchanges, (last, ())))


def _statements(documents: Sequence[str], findings: Sequence[str]) -> Iterator[str]:
    """The statements about one of the findings, in the words of the documents."""
    for said in stated("\n".join(documents)):
        (triple,) = read_triples(said)
        if triple.tail in findings or triple.head in findings:
            yield f"{said}; "
