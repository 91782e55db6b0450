"""Is this the diagnosis: same, partly or wrong (MR-3)? A language model decides.

`ExactJudge` is its exact counterpart.
"""

from __future__ import annotations

from statistics import median_low
from typing import Literal

from workup.core.case import Case
from workup.core.ports import Model
from workup.core.shapes import ClosedModel
from workup.roles.fence import clean, numbered
from workup.roles.judges.assessor import Panel, Rubric, consult
from workup.roles.judges.questions import Grade, Graded, NamingQuestion

LONGEST_ANSWER = 4_000  # characters of an answer that a judge reads
LONGEST_NAME = 300  # characters of one name in a list


class _DiagnosisVerdict(ClosedModel):
    reason: str
    grade: Literal["same", "partly", "wrong"]


RUBRIC = Rubric(
    "diagnosis/1",
    "You compare a proposed diagnosis with the established one of the same patient and grade it.\n"
    '"same": it names the established disease and nothing else: the same name, a synonym, an '
    "abbreviation, a translation, its code, or the same disease with a harmless addition.\n"
    '"partly": it proposes several diagnoses of which one is the established disease; or it names '
    "a wider group that the established disease belongs to and that still points to it, or a "
    "narrower form of it that has not been established.\n"
    '"wrong": anything else: another disease, however similar its name or its treatment; a '
    "symptom, a finding or a complication in its place; a category so wide that it fits most "
    "patients; a denial of the disease; no diagnosis at all.\n"
    "Decide by what the terms mean in medicine, not by how alike they look.\n"
    'Answer with one JSON object: {"reason": one short sentence, "grade": "same", "partly" or '
    '"wrong"}.',
    max_tokens=400,
)


class DiagnosisJudge:
    """A language model as `Judge` (port) and as `Assessor[NamingQuestion, Graded]`.

    A blank answer is wrong; the model is not asked.
    """

    rubric = RUBRIC

    def __init__(self, model: Model) -> None:
        self._model = model

    async def same(self, answer: str, case: Case) -> bool:
        """Raises RolloutError when the model gives no usable answer."""
        return (await self.judge(NamingQuestion(answer, case))).grade is Grade.SAME

    async def grade(self, answer: str, case: Case) -> float:
        """Raises RolloutError when the model gives no usable answer."""
        return (await self.judge(NamingQuestion(answer, case))).value

    async def judge(self, question: NamingQuestion) -> Graded:
        if not question.answer.strip():
            return Graded(Grade.WRONG)
        sections = [
            *reference(question.case),
            ("proposed diagnosis", clean(question.answer, LONGEST_ANSWER)),
        ]
        answer = await consult(self._model, self.rubric, sections, _DiagnosisVerdict)
        return Graded(Grade[answer.grade.upper()], answer.reason)


class DiagnosisPanel(Panel[NamingQuestion, Graded]):
    """Several judges of a diagnosis as one, which is a `Judge` (port) too."""

    async def same(self, answer: str, case: Case) -> bool:
        """Whether more than half of the judges say that it is the same.

        Raises RolloutError when one of them fails.
        """
        return await self.grade(answer, case) == 1

    async def grade(self, answer: str, case: Case) -> float:
        """The best grade that more than half of the judges reach or exceed.

        Raises RolloutError when one of them fails.
        """
        opinions = await self.judge(NamingQuestion(answer, case))
        return median_low(graded.value for graded in opinions.verdicts.values())


def reference(case: Case) -> list[tuple[str, str]]:
    """The prompt's sections that state the truth: its name, then other names and codes if any."""
    others = [name for name in (*case.truth.aliases, *case.truth.codes) if name.strip()]
    named = [("established diagnosis", clean(case.truth.diagnosis, LONGEST_ANSWER))]
    return (
        [
            *named,
            ("other names and codes of the established diagnosis", numbered(others, LONGEST_NAME)),
        ]
        if others
        else named
    )
