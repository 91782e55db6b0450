"""CRAFT's δ (CR-5) for free-text records: a language model says what an answer revealed."""

from __future__ import annotations

from dataclasses import replace

from workup.core.case import Case
from workup.core.episode import Observation
from workup.environments.base.recorded import UNREADABLE
from workup.roles.judges.assessor import Assessor
from workup.roles.judges.questions import Entailed, Stated


class Discovery:
    """Says which facts an answer entails, by the verdict of `checker`.

    Facts that the answer is known to have told are certain and stay. The checker adds facts that
    the answer states in other words. It reads the answer alone: what a doctor claims in a request
    reveals nothing. An empty answer is not read. D(τ) is the union over the answers.

    Example: the record holds "Crackles at both bases" and "Fever of 39 °C". Asked for the lungs, a
    simulated record says "Moist rales basally on both sides." By identity nothing was revealed; the
    checker finds the first fact entailed.
    """

    def __init__(self, checker: Assessor[Stated, Entailed]) -> None:
        self._checker = checker

    async def found(self, case: Case, seen: Observation) -> Observation:
        """`seen` with all that its text reveals; RolloutError without a usable verdict."""
        said = " ".join(message.content for message in seen.messages)
        facts = [fact for fact in case.all_facts if fact.id not in seen.evidence]
        if seen.done or not seen.understood or said in ("", UNREADABLE) or not facts:
            return seen
        verdict = await self._checker.judge(Stated(facts, said))
        found = [
            fact.id for fact, entailed in zip(facts, verdict.entailed, strict=True) if entailed
        ]
        return replace(seen, evidence=(*seen.evidence, *found))
