"""Demonstrations for a policy that has never seen a library: the grammar, and how to read passages.

What to search for, and what to ask where there are questions, is left to reinforcement. Queries are
drawn at random, from the patient's known findings and from diagnoses that passages named.
Refinements name the diagnoses of the passages read, or go through the passages one by one. Only the
last word, the diagnosis, is the truth (but see `taught_diagnosis`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from workup.core.case import Case, Item, Passage, Source
from workup.core.episode import Completion, Message, Turn
from workup.core.ports import Act, Demonstration, Doctor, Environment, Sampling
from workup.core.text import tagged
from workup.environments.base.queries import (
    MOST_FINDINGS,
    drawn_searches,
    findings_in,
    known_findings,
    least_searches,
    names_in,
    need_coded,
    need_diagnoses,
    own_names,
    random_queries,
    taught_diagnosis,
)
from workup.environments.base.searching import (
    DIAGNOSIS,
    NOTHING,
    REFINE,
    SEARCH,
    SEPARATOR,
    SearchGrammar,
    evidence,
)
from workup.environments.base.teacher import drawn_case, drawn_items, exchanges, imitation, played

MOST_NAMED = 2  # names in one refinement
OPEN_BOOKS = 0.5  # share of demonstrations that begin with evidence or a refinement

Refined = Literal["names", "findings"]
"""What refinements say.

With "names", the two names that the passages hold most often. With "findings", for each passage its
number, its name and those of its findings that the patient has.
"""


@dataclass(frozen=True, slots=True)
class LibraryTeaching:
    """Demonstrations of two kinds: open books, by the share `open_books`, and episodes.

    Episode: k searches with real answers, then the diagnosis. All of it is imitated. In branches
    the diagnosis is taught after earlier answers too. Open book: evidence or a refinement stands
    directly after the patient's description, as in the prompts of a reference that measures
    information gains; there are none without a turn to search in. A query has at most `queried`
    findings, with 0 all.

    k is uniform from `least_searches` to max_turns − 1. Where findings can be asked for, an episode
    also has q questions, with searches and questions in random order: q is uniform from 0 to
    max_turns − 1 − `least_searches`, then k up to max_turns − 1 − q. What the patient has told by
    then is known in queries, refinements and diagnoses. An open book has no questions.
    """

    grammar: SearchGrammar
    refined: Refined = "names"
    queried: int = MOST_FINDINGS
    open_books: float = OPEN_BOOKS

    def demonstrate(
        self,
        source: Source,
        environment: Environment,
        seed: int,
        index: int,
        focus: float = 0.0,
        doctor: Doctor | None = None,
    ) -> Demonstration:
        """The index-th demonstration; `Teaching` says what `focus` and `doctor` are.

        The same arguments give the same one. A doctor's episode has no branches. Its refinements
        are those of other demonstrations, since no doctor writes any.
        Raises UserError for a source whose diagnoses are not listed, unless the case has codes and
        findings in its presentation, and the library's documents have ids of that kind: then
        titles are names of diseases.
        """
        case, rng = drawn_case(source, seed, index)
        if not (case.truth.codes and case.given):
            need_diagnoses(source)
        open_book = bool(rng.random() < self.open_books) and environment.max_turns > 1
        teacher = _LibraryTeacher(source, environment, self, case, rng)
        if doctor is not None and not open_book:
            return imitation(case, environment, doctor, seed, index, teacher.refined)
        items = [] if open_book or not environment.about.asks else teacher.questions(focus)
        searches = drawn_searches(source, environment.max_turns - 1 - len(items), rng)
        steps: list[Item | None] = [*items, *(None for _ in range(max(searches, open_book)))]
        order = rng.permutation(len(steps)) if items else range(len(steps))
        teacher.steps = [steps[place] for place in order]
        turns = played(case, environment, teacher)
        past = turns[:-1]
        if open_book:
            turn = past[int(rng.integers(len(past)))]
            return Demonstration(teacher.handed_out(turn), ((teacher.diagnosis((turn,)), ()),))
        branches = tuple(teacher.branches(past))
        return Demonstration(environment.open(case), exchanges(turns), branches)


@dataclass(slots=True)
class _LibraryTeacher:
    """A `Doctor` that takes the `steps`, an item to ask for or a search each, then diagnoses.

    A refinement depends on the turns before it alone, so that a turn and the branch beside it have
    the same text.
    """

    source: Source
    environment: Environment
    teaching: LibraryTeaching
    case: Case
    rng: np.random.Generator
    steps: Sequence[Item | None] = ()

    def questions(self, focus: float) -> list[Item]:
        """The items to ask for, drawn from those that the opening does not tell."""
        most = self.environment.max_turns - 1
        count = int(self.rng.integers(max(most - least_searches(self.source), 0) + 1))
        known = self.environment.about.known(self.case)
        return drawn_items(self.case, self.source, known, count, focus, self.rng)

    async def act(
        self, case: Case, opening: Sequence[Message], past: Sequence[Turn], sampling: Sampling
    ) -> Act:
        """Raises UserError where nothing tells which disease a passage is about."""
        if past and not self.source.diagnoses:
            need_coded(case, past[-1].observation.passages or ())
        if len(past) == len(self.steps):
            said = self.diagnosis(past)
        elif (item := self.steps[len(past)]) is None:
            said = self.environment.write(SEARCH, SEPARATOR.join(self._queries(past)))
        else:
            said = self.environment.write(item.kind.value, item.name)
        return Act((), Completion(self.refined(past) + said))

    def refined(self, past: Sequence[Turn]) -> str:
        """The refinement of the passages that the last turn returned (see `Refined`).

        "" if it returned none. If the passages name no diagnosis, it says that nothing was found.
        """
        passages = past[-1].observation.passages if past else None
        if not self.grammar.refine or passages is None:
            return ""
        if self.teaching.refined == "findings":
            findings = self._findings(past)
            compared = enumerate((self._compared(p, findings) for p in passages), 1)
            read = "; ".join(f"[{number}] {said}" for number, said in compared if said)
        else:
            read = ", ".join(self._named(passages)[:MOST_NAMED])
        return tagged(REFINE, read or NOTHING)

    def _compared(self, passage: Passage, findings: Collection[str]) -> str:
        """What a passage says: "Babral: fever, nausea", a name and those of `findings` in it.

        "Babral: Torvin" for an entry that says which picture a disease has. "" for a passage that
        names no diagnosis.
        """
        named = self._named([passage])
        links = own_names(self.source, self.case).links
        shared = (
            *(name for name in named[1:] if name in links),
            *findings_in(passage, self.source, findings),
        )
        return ": ".join(filter(None, (*named[:1], ", ".join(shared)))) if named else ""

    def diagnosis(self, read: Sequence[Turn]) -> str:
        """The demonstrated diagnosis after the turns `read`, in its tag."""
        shown = [each for turn in read for each in turn.observation.passages or ()]
        findings = self._findings(read)
        return tagged(DIAGNOSIS, taught_diagnosis(shown, self.source, self.case, findings))

    def branches(self, past: Sequence[Turn]) -> Iterator[tuple[int, str, str]]:
        """The diagnosis after each action but the last; after evidence, if names must be read.

        Its refinement and its tag are given.
        """
        tag, ready = f"<{DIAGNOSIS}>", not least_searches(self.source)
        for number in range(1, len(past)):
            read = past[:number]
            ready = ready or read[-1].observation.passages is not None
            if ready:
                yield number, f"{self.refined(read)}{tag}", self.diagnosis(read).removeprefix(tag)

    def handed_out(self, turn: Turn) -> tuple[Message, ...]:
        """The opening with the turn's evidence, or its refinement, after the description."""
        *before, patient = self.environment.open(self.case)
        refine = self.grammar.refine and self.rng.random() < 0.5
        shown = self.refined((turn,)) if refine else evidence(turn)
        return (*before, Message(patient.role, f"{patient.content}\n{shown}"))

    def _queries(self, past: Sequence[Turn]) -> list[str]:
        found = (turn.observation.passages or () for turn in past)
        named = [name for passages in found for name in self._named(passages)]
        most, subqueries = self.teaching.queried, self.grammar.subqueries
        findings = self._findings(past)
        return random_queries(self.source, findings, named, self.rng, subqueries, most)

    def _named(self, passages: Sequence[Passage]) -> list[str]:
        return names_in(passages, self.source, self.case)

    @property
    def grammar(self) -> SearchGrammar:
        return self.teaching.grammar

    def _findings(self, past: Sequence[Turn]) -> tuple[str, ...]:
        return tuple(known_findings(self.source, self.case, self.grammar, past))
