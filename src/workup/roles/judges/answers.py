"""How good is an open-ended answer, from 1 to 5 (MR-11)? A language model decides.

`ExactAnswer` is its exact counterpart.
"""

from __future__ import annotations

from typing import Literal

from workup.core.ports import Model
from workup.core.shapes import ClosedModel
from workup.roles.fence import clean, numbered
from workup.roles.judges.assessor import Rubric, consult
from workup.roles.judges.diagnosis import LONGEST_ANSWER, LONGEST_NAME
from workup.roles.judges.questions import Answered, MarkVerdict
from workup.roles.judges.ranking import LONGEST_PRESENTATION


class _AnswerVerdict(ClosedModel):
    reason: str
    mark: Literal[1, 2, 3, 4, 5]


RUBRIC = Rubric(
    "answer/1",
    "You mark an answer to a medical question by comparing it with the reference answer.\n"
    "5: fully right: it says what the reference says, in whatever words, and nothing that is "
    "wrong.\n"
    "4: right in substance, but something minor is missing, imprecise or superfluous.\n"
    "3: half right: an essential part is missing, or it gives several answers of which one is "
    "right.\n"
    "2: mostly wrong: related to the reference, but the answer itself is not right.\n"
    "1: wrong, no answer at all, or an answer to another question.\n"
    "Only what the answer says in the end counts: neither its length, nor its confidence, nor its "
    "style.\n"
    'Answer with one JSON object: {"reason": one short sentence, "mark": a whole number from 1 to '
    "5}.",
    max_tokens=400,
)


class AnswerJudge:
    """A language model as `Assessor[Answered, MarkVerdict]`.

    A blank answer is a 1; the model is not asked.
    """

    rubric = RUBRIC

    def __init__(self, model: Model) -> None:
        self._model = model

    async def judge(self, question: Answered) -> MarkVerdict:
        if not question.answer.strip():
            return MarkVerdict(1)
        case = question.case
        asked = "\n".join(filter(None, (case.presentation, case.question)))
        answer = await consult(
            self._model,
            self.rubric,
            [
                ("question", clean(asked, LONGEST_PRESENTATION)),
                ("reference answer", numbered((case.truth.diagnosis,), LONGEST_ANSWER)),
                (
                    "other accepted answers",
                    numbered((*case.truth.aliases, *case.truth.codes), LONGEST_NAME),
                ),
                ("answer to mark", clean(question.answer, LONGEST_ANSWER)),
            ],
            _AnswerVerdict,
        )
        return MarkVerdict(answer.mark, answer.reason)
