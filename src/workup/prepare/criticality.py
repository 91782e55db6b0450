"""The criticality of each hidden finding (CRAFT CR-4): ψ(f | d*, o_0) ∈ {0, 1, 2, 3}.

All findings of a case go into one call. An answer that leaves one out, or weighs one twice, is sent
back. The exact way keeps weights that the source has; another finding gets LR = odds(diagnosis |
presentation, finding) / odds(diagnosis | presentation) from the source's model of its cases.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from workup.cases.knowledge import FLOOR, grade
from workup.core.case import Case, Fact, Knowledge, Source, evidence_of
from workup.core.errors import UserError
from workup.core.shapes import ClosedModel
from workup.models.structured import ask, one_each
from workup.prepare.prompts import numbered, request
from workup.prepare.steps import Aids, Drop, Kept, Outcome, PrepareStep
from workup.roles.judges.assessor import misaligned

VERSION = "criticality/1"
TASK = """\
You weigh findings for a diagnosis that is known to be right. The doctor has read the \
presentation; judge how much each finding, learned on top of it, moves a careful doctor towards \
this diagnosis and away from the others that the presentation leaves open.
- 0: irrelevant: about as common in the alternatives, or evidence against the diagnosis.
- 1: supportive: fits the diagnosis better than the alternatives, but is found in many of them (at \
least twice as likely).
- 2: significant: clearly sets the diagnosis apart (at least five times as likely).
- 3: pathognomonic: a hallmark that all but establishes it (at least ten times as likely).
Weigh every finding by itself, whatever the others say. Give one weight for each number in the \
list, each number once."""
UNWEIGHED = "the case has no hidden finding"


class Weight(ClosedModel):
    number: int
    weight: Literal[0, 1, 2, 3]


class Weights(ClosedModel):
    """The answer's shape."""

    weights: list[Weight]


async def apply(case: Case, aids: Aids) -> Outcome:
    facts = case.truth.facts
    if not facts:
        return Drop(UNWEIGHED)
    sections = [
        ("presentation", case.presentation),
        ("diagnosis", case.truth.diagnosis),
        ("findings", numbered(facts)),
    ]
    asked = request("criticality", VERSION, TASK, sections, aids.settings.max_tokens)
    answer = await ask(
        aids.model,
        asked,
        Weights,
        lambda w: misaligned([entry.number for entry in w.weights], len(facts)),
        one_each("weights", len(facts)),
    )
    weights = {entry.number: entry.weight for entry in answer.weights}
    return Kept(_weighed(case, [weights[number] for number in range(1, len(facts) + 1)]))


def exact(case: Case, source: Source) -> Outcome:
    """The weights that the case has; for findings without one, those of the source's knowledge.

    Raises UserError where they are needed and the source has no knowledge.
    """
    facts = case.truth.facts
    if not facts:
        return Drop(UNWEIGHED)
    if all(fact.weight is not None for fact in facts):
        return Kept(case, "already weighed")
    if source.knowledge is None:
        raise UserError(
            f"{source.name} has no generative model to weigh findings with: give --model "
            "endpoint:NAME, a model folder or a hub id"
        )
    knowledge = source.knowledge
    weights = [
        fact.weight if fact.weight is not None else _psi(fact, case, knowledge, source)
        for fact in facts
    ]
    return Kept(_weighed(case, weights), "weighed by the source's knowledge")


def _psi(fact: Fact, case: Case, knowledge: Knowledge, source: Source) -> int:
    """ψ(f | d*, o_0) from the likelihood ratio P(f | d*, o_0) / P(f | not d*, o_0).

    By Bayes it is the posterior odds of d* over its prior odds.
    """
    stated = evidence_of([*case.given, *_above(fact, case, source)])
    place = list(knowledge.diagnoses).index(case.truth.diagnosis)
    before = knowledge.posterior(stated)[place]
    after = knowledge.posterior({**stated, fact.item: (fact.id,)})[place]
    return grade(_odds(after) / _odds(before))


def _odds(p: float) -> float:
    return max(p, FLOOR * FLOOR) / max(1 - p, FLOOR * FLOOR)


def _above(fact: Fact, case: Case, source: Source) -> list[Fact]:
    """The findings that the fact's item is a sub-question of.

    A pain is worth something once, not again with each of its places.
    """
    parents = {item.name: item.parent for item in source.items}
    line, name = set(), parents.get(fact.item)
    while name is not None and name not in line:
        line.add(name)
        name = parents.get(name)
    return [other for other in case.truth.facts if other.item in line]


def _weighed(case: Case, weights: list[int]) -> Case:
    facts = tuple(
        replace(fact, weight=weight) for fact, weight in zip(case.truth.facts, weights, strict=True)
    )
    return replace(case, truth=replace(case.truth, facts=facts))


step = PrepareStep("a weight 0 to 3 for every hidden finding (CR-4)", VERSION, apply, exact=exact)
