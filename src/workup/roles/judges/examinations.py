"""Do the ordered examinations tell the candidates apart (ES-7)? A language model decides.

`ExactExaminations` is its exact counterpart.
"""

from __future__ import annotations

from workup.core.ports import Model
from workup.core.shapes import ClosedModel
from workup.models.structured import one_each
from workup.roles.fence import numbered
from workup.roles.judges.assessor import Rubric, consult, misaligned
from workup.roles.judges.diagnosis import LONGEST_NAME
from workup.roles.judges.questions import Appraised, Ordered, Worth
from workup.roles.judges.ranking import MOST_CANDIDATES

MOST_EXAMINATIONS = 40  # examinations of a list that a judge reads


class _Examination(ClosedModel):
    number: int
    worth: Worth


class _ExaminationVerdict(ClosedModel):
    reason: str
    examinations: list[_Examination]


RUBRIC = Rubric(
    "examinations/2",
    "You are asked about examinations that a pathologist ordered on a tissue sample to decide "
    "between candidate diagnoses. Give every examination exactly one worth:\n"
    '"differentiates": a real, specific examination of pathology (an antibody, a histochemical '
    "stain, a molecular test) whose usual result differs between at least two of the candidates.\n"
    '"harmless": a real, specific examination of pathology that does not tell these candidates '
    "apart.\n"
    '"fabricated": no such examination, antibody, gene or stain exists, or the line names a '
    "disease or asks whether the patient has it.\n"
    '"too broad": it names a method or a class of tests but not which test, such as molecular '
    "testing or immunohistochemistry alone.\n"
    '"other department": it is not done on the tissue by a pathologist: imaging, blood and urine '
    "tests, endoscopy, questions to the patient.\n"
    "Each examination stands on one line behind its number. A line that orders several by name "
    "differentiates if one of them does, and is fabricated if one of them is.\n"
    'Answer with one JSON object: {"reason": one or two short sentences, "examinations": '
    '[{"number": 1, "worth": …}, …] with one entry for each examination in order}.',
    max_tokens=2_000,
)


class ExaminationJudge:
    """A language model as `Assessor[Ordered, Appraised]`.

    An empty list is harmless; the model is not asked.
    """

    rubric = RUBRIC

    def __init__(self, model: Model) -> None:
        self._model = model

    async def judge(self, question: Ordered) -> Appraised:
        if not question.examinations:
            return Appraised(())
        read = question.examinations[:MOST_EXAMINATIONS]
        sections = [
            ("candidate diagnoses", numbered(question.candidates[:MOST_CANDIDATES], LONGEST_NAME)),
            ("examinations", numbered(read, LONGEST_NAME)),
        ]
        answer = await consult(
            self._model,
            self.rubric,
            sections,
            _ExaminationVerdict,
            lambda answer: misaligned([each.number for each in answer.examinations], len(read)),
            one_each("examinations", len(read)),
        )
        worths = {each.number: each.worth for each in answer.examinations}
        return Appraised(tuple(worths[place] for place in sorted(worths)), answer.reason)
