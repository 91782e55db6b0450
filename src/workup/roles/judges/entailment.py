"""Which of many facts does a text entail (PM-3, CR-5)? A language model decides.

`ExactEntailment` is its exact counterpart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain

from workup.core.case import Fact
from workup.core.ports import Model
from workup.core.shapes import ClosedModel
from workup.models.structured import one_each
from workup.roles.fence import clean, numbered
from workup.roles.judges.assessor import Rubric, consult, misaligned
from workup.roles.judges.questions import Entailed, Stated

CHUNK = 40  # facts in one call
LONGEST_TEXT = 20_000  # characters of the text that a judge reads
LONGEST_FACT = 1_000


class _Fact(ClosedModel):
    number: int
    entailed: bool


class _EntailmentVerdict(ClosedModel):
    facts: list[_Fact]


RUBRIC = Rubric(
    "entailment/1",
    "You check which facts about a patient a text states.\n"
    "A fact is entailed if whoever reads the text and believes it must believe the fact: the text "
    "says it in the same or in other words or in another language, with the same side, number, "
    "unit and time, or says something of which it is a part.\n"
    "It is not entailed if the text denies it, only asks about it, thinks it possible, says less "
    "than the fact does, gives another number, or if it follows only with medical knowledge that "
    "the text does not state.\n"
    "Decide about each fact for itself. Each stands on one line behind its number.\n"
    'Answer with one JSON object: {"facts": [{"number": 1, "entailed": true or false}, …]} with '
    "one entry for each fact.",
    max_tokens=2_000,
)


class EntailmentJudge:
    """A language model as `Assessor[Stated, Entailed]`.

    One call holds at most CHUNK facts; more facts take several calls at once. Without facts, and
    for a blank text, the model is not asked: nothing is entailed.
    """

    rubric = RUBRIC

    def __init__(self, model: Model) -> None:
        self._model = model

    async def judge(self, question: Stated) -> Entailed:
        facts = question.facts
        if not question.text.strip():
            return Entailed((False,) * len(facts))
        text = clean(question.text, LONGEST_TEXT)
        chunks = (facts[start : start + CHUNK] for start in range(0, len(facts), CHUNK))
        found = await asyncio.gather(*(self._chunk(chunk, text) for chunk in chunks))
        return Entailed(tuple(chain.from_iterable(found)))

    async def _chunk(self, facts: Sequence[Fact], text: str) -> list[bool]:
        sections = [
            ("text", text),
            ("facts", numbered([fact.text for fact in facts], LONGEST_FACT)),
        ]
        answer = await consult(
            self._model,
            self.rubric,
            sections,
            _EntailmentVerdict,
            lambda answer: misaligned([each.number for each in answer.facts], len(facts)),
            one_each("facts", len(facts)),
        )
        entailed = {each.number: each.entailed for each in answer.facts}
        return [entailed[place] for place in sorted(entailed)]
