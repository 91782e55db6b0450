"""Demonstrations for a policy that has never seen a library: the grammar, and how to read passages.

What to search for is left to reinforcement. Queries are drawn at random, from the patient's known
findings and from diagnoses that passages named. Refinements name the diagnoses of the passages
read. Only the last word, the diagnosis, is the truth.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import numpy as np

from workup.case import Case, Source
from workup.environments.base.queries import known_findings, mentioned, random_query
from workup.environments.base.searching import (
    DIAGNOSIS,
    NOTHING,
    REFINE,
    SEARCH,
    SEPARATOR,
    SearchGrammar,
    evidence,
)
from workup.episode import Completion, Message, Turn
from workup.errors import UserError
from workup.ports import Demonstration, Environment
from workup.text import tagged

MOST_NAMED = 2  # diagnoses in one refinement


@dataclass(frozen=True, slots=True)
class LibraryTeaching:
    """Demonstrations of two kinds: open books, by the share `open_book_share`, and episodes.

    Episode: k ~ U{0 … max_turns − 1} searches with real answers, then the diagnosis. All of it is
    imitated, and the diagnosis is also asked for after each answer. Open book: evidence or a
    refinement stands directly after the patient's description, as in the prompts of a reference
    that measures information gains.
    """

    grammar: SearchGrammar
    open_book_share: float = 0.5

    def demonstrate(
        self, source: Source, environment: Environment, seed: int, index: int
    ) -> Demonstration:
        """The index-th demonstration.

        The same (source, environment, seed, index) gives the same one.
        Raises UserError for a source whose diagnoses are not listed.
        """
        if not source.diagnoses:
            raise UserError(
                f"no demonstrations can be made from '{source.name}': it needs a source that lists "
                "its diagnoses; leave out the warm start and begin with a policy that can converse"
            )
        rng = np.random.default_rng([seed, index])
        case = source.train[int(rng.integers(len(source.train)))]
        open_book = bool(rng.random() < self.open_book_share)
        searches = int(rng.integers(environment.max_turns))
        scene = _Scene(source, environment, self.grammar, case, rng)
        for _ in range(max(searches, open_book)):
            scene.search()
        diagnosis = tagged(DIAGNOSIS, case.truth.diagnosis)
        if open_book:
            return Demonstration(scene.handed_out(), ((diagnosis, ()),))
        exchanges = tuple((turn.completion.text, turn.observation.messages) for turn in scene.past)
        begun = [f"{scene.refined(turn)}<{DIAGNOSIS}>" for turn in scene.past[:-1]]
        rest = diagnosis.removeprefix(f"<{DIAGNOSIS}>")
        branches = tuple((number, lead, rest) for number, lead in enumerate(begun, 1))
        last = f"{scene.refined(scene.past[-1]) if scene.past else ''}{diagnosis}"
        return Demonstration(environment.open(case), (*exchanges, (last, ())), branches)


@dataclass(slots=True)
class _Scene:
    """An episode in the making.

    `refinements` are kept, so that a turn and the branch beside it have the same text.
    """

    source: Source
    environment: Environment
    grammar: SearchGrammar
    case: Case
    rng: np.random.Generator
    past: tuple[Turn, ...] = ()

    def search(self) -> None:
        """One more search, answered by the library itself."""
        before = self.refined(self.past[-1]) if self.past else ""
        text = before + self.environment.write(SEARCH, SEPARATOR.join(self._queries()))
        action = self.environment.read(text)
        observation = asyncio.run(self.environment.answer(self.case, self.past, action))
        self.past = (*self.past, Turn((), Completion(text), action, observation))

    def refined(self, turn: Turn) -> str:
        """The diagnoses that the turn's passages name most often.

        If the passages name none, the refinement says that nothing is known.
        """
        if not self.grammar.refine:
            return ""
        named = self._named(turn)[:MOST_NAMED]
        return tagged(REFINE, ", ".join(named) if named else NOTHING)

    def handed_out(self) -> tuple[Message, ...]:
        """The opening with one search's evidence, or its refinement, after the description."""
        *before, patient = self.environment.open(self.case)
        turn = self.past[int(self.rng.integers(len(self.past)))]
        refine = self.grammar.refine and self.rng.random() < 0.5
        shown = self.refined(turn) if refine else evidence(turn)
        return (*before, Message(patient.role, f"{patient.content}\n{shown}"))

    def _queries(self) -> list[str]:
        most = self.grammar.subqueries or 1
        findings = known_findings(self.source, self.case, self.grammar)
        named = [name for turn in self.past for name in self._named(turn)]
        return [
            random_query(self.source, findings, named, self.rng)
            for _ in range(int(self.rng.integers(most)) + 1)
        ]

    def _named(self, turn: Turn) -> list[str]:
        """The diagnoses that the turn's evidence names, the most frequent first."""
        return mentioned(evidence(turn), tuple(self.source.diagnoses))
