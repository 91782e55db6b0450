"""Uncertainty of thoughts (UoT): asks the question with the largest expected entropy reduction.

The entropy is that over the possible answers. In each turn the model weighs the possible answers.
Then it proposes questions, and says for each how likely a yes is under each answer. The choice
among them is arithmetic. Nothing is remembered between turns: all depends on the transcript alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, log2

from pydantic import Field

from workup.core.case import Case, Kind
from workup.core.episode import Completion, Message, Turn
from workup.core.ports import Act, Doctor, Environment, Model, Sampling
from workup.core.shapes import ClosedModel
from workup.core.text import normalise
from workup.doctors.endpoint import ModelDoctor
from workup.doctors.strategies import Driven, Plain, Strategy
from workup.doctors.strategies.prompting import ANSWER, encounter, inquire, nudged
from workup.roles.fence import numbered

LONGEST_NAME = 300
_NUMBER = re.compile(r"^\s*\d{1,2}\.\s+")
WEIGH = (
    "You keep the list of possible answers to the case's question at one point of an encounter; "
    "neither ask nor answer anything yourself. {which} Give each a weight from 0 to 100 that says "
    "how likely it is with what is known so far; weights need not add up to 100.\n"
    'Answer with one JSON object: {{"candidates": [{{"name": …, "weight": 0 to 100}}, …]}}.'
)
OPEN = "Name the likeliest answers, {count} at most, in the language of the case, each by itself."
CLOSED = (
    "The candidates are given in a section of their own: list every one of them, in their order, "
    "by the wording there."
)
PROPOSE = (
    "You prepare the next question of an encounter. Several candidates for the right answer are "
    "listed. Propose {count} different questions that can be answered by yes or no, that have not "
    "been asked, and that would tell the candidates apart; write each as the rules of the "
    "encounter want a request to be worded, without the tags or headings around it, in the "
    "language of the case. For each question state, for every candidate in their order, how "
    "likely (0 to 100 percent) the answer is yes if that candidate is the right one.\n"
    'Answer with one JSON object: {{"questions": [{{"question": …, "yes": [one number for each '
    "candidate]}}, …]}}."
)


class Settings(Plain):
    """How many candidates and questions a turn considers."""

    candidates: int = Field(
        6, ge=2, le=20, description="possible answers that are weighed, where no options are listed"
    )
    questions: int = Field(4, ge=1, le=20, description="questions that are proposed in a turn")
    sure: float = Field(0.9, gt=0, le=1, description="answers once a candidate is this probable")
    gain: float = Field(0.02, ge=0, description="answers once no question promises this many bits")


class Candidate(ClosedModel):
    name: str
    weight: float = Field(ge=0, le=100)


class Weighed(ClosedModel):
    candidates: list[Candidate]


class YesNoQuestion(ClosedModel):
    question: str
    yes: list[float]


class Proposed(ClosedModel):
    questions: list[YesNoQuestion]


def opened(policy: Driven, environment: Environment, settings: Settings) -> Doctor:
    """The policy that asks by uncertainty. Raises UserError if it is no chat model."""
    return Uncertain(policy.chat("uot"), environment, settings)


def entropy(distribution: Sequence[float]) -> float:
    """H in bits; 0 log 0 = 0."""
    return -fsum(p * log2(p) for p in distribution if p > 0)


def expected_reduction(prior: Sequence[float], yes: Sequence[float]) -> float:
    """H(prior) − Σ_a P(a) H(posterior given a) over a ∈ {yes, no}, in bits; never negative.

    `yes` are P(yes | candidate).
    """
    left = 0.0
    for likelihood in (yes, [1 - p for p in yes]):
        joint = [p * q for p, q in zip(prior, likelihood, strict=True)]
        chance = fsum(joint)
        left += chance * entropy([p / chance for p in joint]) if chance > 0 else 0.0
    return max(0.0, entropy(prior) - left)


@dataclass(frozen=True)
class Uncertain:
    """Asks the question of largest expected reduction.

    It answers when it is sure enough, when no question is worth asking, or in the last turn.
    """

    model: Model
    environment: Environment
    settings: Settings

    async def act(
        self, case: Case, opening: Sequence[Message], past: Sequence[Turn], sampling: Sampling
    ) -> Act:
        question = (
            await self.choose(case, opening, past)
            if len(past) < self.environment.max_turns - 1
            else ""
        )
        if question:
            return Act((), Completion(self.environment.write(Kind.HISTORY.value, question)))
        return await ModelDoctor(self.model).act(
            case, *nudged(opening, past, ANSWER.spoken(opening)), sampling
        )

    async def choose(self, case: Case, opening: Sequence[Message], past: Sequence[Turn]) -> str:
        """The question to ask, or "" if it is time to answer.

        Raises RolloutError without a usable answer of the model's.
        """
        sections = encounter(opening, past)
        names, prior = await self.weigh(case, sections)
        if max(prior) >= self.settings.sure:
            return ""
        asked = {normalise(content) for turn in past for content in turn.action.content}
        proposed = await self.propose(names, sections, asked)
        gains = [expected_reduction(prior, [p / 100 for p in each.yes]) for each in proposed]
        best = max(range(len(gains)), key=gains.__getitem__)
        return proposed[best].question if gains[best] >= self.settings.gain else ""

    async def weigh(
        self, case: Case, sections: list[tuple[str, str]]
    ) -> tuple[list[str], list[float]]:
        """Candidates and their probabilities.

        The candidates are the case's options if it has some.
        """
        options = list(case.options)
        which = CLOSED if options else OPEN.format(count=self.settings.candidates)
        shown = [*sections, ("candidates", numbered(options, LONGEST_NAME) if options else "")]

        def check(answer: Weighed) -> str | None:
            named = [_name(each.name) for each in answer.candidates]
            if options and sorted(named) != sorted(map(_name, options)):
                return (
                    f"list each of the {len(options)} candidates once, by the very wording of "
                    "its line"
                )
            if not options and (
                len(named) > self.settings.candidates or len(set(named)) < len(named)
            ):
                return f"there must be at most {self.settings.candidates} candidates, all different"
            return (
                None
                if any(each.weight > 0 for each in answer.candidates)
                else "no candidate has a weight above 0"
            )

        task, most = WEIGH.format(which=which), len(options) or self.settings.candidates
        sizes = {"candidates": (len(options) or 1, most), "name": (1, LONGEST_NAME)}
        answer = await inquire(self.model, task, "uot-weigh/1", shown, Weighed, check, sizes)
        total = fsum(each.weight for each in answer.candidates)
        ordered = sorted(
            answer.candidates,
            key=lambda each: [*map(_name, options), _name(each.name)].index(_name(each.name)),
        )
        return [each.name for each in ordered], [each.weight / total for each in ordered]

    async def propose(
        self, names: Sequence[str], sections: list[tuple[str, str]], asked: set[str]
    ) -> list[YesNoQuestion]:
        """At least one new question that fits the grammar, with P(yes) for each candidate."""
        shown = [*sections, ("candidates", numbered(names, LONGEST_NAME))]

        def check(answer: Proposed) -> str | None:
            problems = (self._problem(each, len(names), asked) for each in answer.questions)
            return next(
                filter(None, problems), None if answer.questions else "it proposes no question"
            )

        task = PROPOSE.format(count=self.settings.questions)
        sizes = {
            "questions": (1, self.settings.questions),
            "question": (1, LONGEST_NAME),
            "yes": (len(names), len(names)),
            "yes[]": (0, 100),
        }
        answer = await inquire(self.model, task, "uot-propose/1", shown, Proposed, check, sizes)
        return answer.questions

    def _problem(self, proposed: YesNoQuestion, count: int, asked: set[str]) -> str | None:
        if len(proposed.yes) != count or not all(0 <= p <= 100 for p in proposed.yes):
            return f"each question needs {count} numbers from 0 to 100, one for each candidate"
        read = self.environment.read(self.environment.write(Kind.HISTORY.value, proposed.question))
        if read.kind != Kind.HISTORY.value or read.errors:
            return f"'{proposed.question[:80]}' is no single short question"
        return (
            f"'{proposed.question[:80]}' has been asked already"
            if normalise(proposed.question) in asked
            else None
        )


def _name(text: str) -> str:
    """The normal form of a candidate's name, without the number of its line."""
    return normalise(_NUMBER.sub("", text))


strategies = {
    "uot": Strategy(
        summary="asks what is expected to reduce the uncertainty about the answer most",
        paper="UoT, Hu et al. 2024 (one step ahead); ProMed, section 4.1",
        settings=Settings,
        open=opened,
    ),
}
