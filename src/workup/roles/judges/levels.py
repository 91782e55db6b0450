"""How strong is the evidence of a document (Med-R³, MR-6, Fig. 5)? Levels from 1 to 6.

1 systematic review or meta-analysis, 2 randomised trial, 3 cohort study, 4 case-control study, 5
case series or report, 6 background or expert opinion. A language model says it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Literal, Protocol

from workup.core.case import Passage
from workup.core.ports import Model
from workup.core.shapes import ClosedModel
from workup.roles.fence import clean
from workup.roles.judges.assessor import Rubric, consult

LONGEST_DOCUMENT = 4_000  # characters that the model reads


class LevelJudge(Protocol):
    """Says the evidence level (1 to 6) of each passage, in their order.

    Raises RolloutError when it cannot; it never returns a default.
    """

    async def levels(self, passages: Sequence[Passage]) -> tuple[int, ...]: ...


class _LevelVerdict(ClosedModel):
    reason: str
    level: Literal[1, 2, 3, 4, 5, 6]


RUBRIC = Rubric(
    "evidence-level/1",
    "You say how strong the evidence is that a medical text reports, by what kind of work it is:\n"
    "1: a systematic review or a meta-analysis\n"
    "2: a randomised controlled trial\n"
    "3: a cohort study, or another study that follows groups of patients without assigning them\n"
    "4: a case-control study\n"
    "5: a single case or a series of cases without a group to compare with\n"
    "6: background knowledge, a textbook or encyclopedia, a guideline, an opinion\n"
    "The text is a piece of a longer one. Go by what the piece shows of its own methods and "
    "figures; a piece that only tells facts is 6, and so is one that calls itself strong without "
    "showing why.\n"
    'Answer with one JSON object: {"reason": one short sentence, "level": 1 to 6}.',
    max_tokens=300,
)


class ModelLevels:
    """A language model as `LevelJudge`; it is asked once about each distinct text."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._asked: dict[tuple[str, str], asyncio.Task[_LevelVerdict]] = {}

    async def levels(self, passages: Sequence[Passage]) -> tuple[int, ...]:
        return tuple(await asyncio.gather(*map(self._level, passages)))

    async def _level(self, passage: Passage) -> int:
        key = (passage.title, passage.text)
        task = self._asked.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            text = clean(f"{passage.title}\n{passage.text}".strip(), LONGEST_DOCUMENT)
            asked = consult(self._model, RUBRIC, [("text", text)], _LevelVerdict)
            task = self._asked[key] = asyncio.create_task(asked)
        return (await asyncio.shield(task)).level  # others may wait for the same answer
