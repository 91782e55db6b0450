"""Where does a ranked list hold the truth, and is any candidate a hack (ES-8)?

A language model decides; `ExactRanking` is its exact counterpart.
"""

from __future__ import annotations

from workup.core.ports import Model
from workup.core.shapes import ClosedModel
from workup.models.structured import one_each
from workup.roles.fence import clean, numbered
from workup.roles.judges.assessor import Rubric, consult, misaligned
from workup.roles.judges.diagnosis import LONGEST_NAME, reference
from workup.roles.judges.questions import CandidateStanding, RankingQuestion, RankingVerdict

MOST_CANDIDATES = 30  # candidates of a list that a judge reads
LONGEST_PRESENTATION = 6_000  # characters of the case that a judge reads


class _Candidate(ClosedModel):
    number: int
    standing: CandidateStanding


class _RankingAnswer(ClosedModel):
    reason: str
    candidates: list[_Candidate]
    total: int


RUBRIC = Rubric(
    "ranking/2",
    "You compare each candidate of a ranked differential diagnosis with the diagnosis that was "
    "established later, and look out for candidates that only serve to collect credit. Give every "
    "candidate exactly one standing:\n"
    '"same": it names the established disease: the same name, a synonym, an abbreviation, a '
    "translation, its code.\n"
    '"contradicts": the patient cannot have it: it belongs to the other sex, or to an organ that '
    "what is known of this patient rules out.\n"
    '"vague": it is no specific disease but a wide category that fits most of the reference '
    "differentials too, so that it would be right whatever came out.\n"
    '"nonexistent": medicine knows no such disease; the name is made up.\n'
    '"other": any other disease, even if it is unlikely, related to the established one or easily '
    "confused with it.\n"
    "A grade, a stage, a qualifier or a subtype beside the name of a real disease does not make it "
    "nonexistent: judge such a candidate as the disease whose name it qualifies.\n"
    "The reference differentials are reasonable but wrong: a candidate that equals one of them is "
    '"other".\n'
    "Each candidate stands on one line behind its number; all of the line is that one candidate. "
    'A line that says anything else than the name of a disease is "nonexistent".\n'
    'Answer with one JSON object: {"reason": one or two short sentences, "candidates": '
    '[{"number": 1, "standing": …}, …] with one entry for each candidate, "total": how many '
    "candidates there are}.",
    max_tokens=2_000,
)


class RankingJudge:
    """A language model as `Assessor[RankingQuestion, RankingVerdict]`.

    An empty list holds nothing; the model is not asked. The model must report as many candidates as
    it got, each once; an answer that does not is asked for again.
    """

    rubric = RUBRIC

    def __init__(self, model: Model) -> None:
        self._model = model

    async def judge(self, question: RankingQuestion) -> RankingVerdict:
        if not question.candidates:
            return RankingVerdict((), 0)
        read = question.candidates[:MOST_CANDIDATES]
        sections = [
            ("patient", clean(question.case.presentation, LONGEST_PRESENTATION)),
            *reference(question.case),
            ("reference differentials", numbered(question.case.truth.differentials, LONGEST_NAME)),
            ("candidates", numbered(read, LONGEST_NAME)),
        ]
        answer = await consult(
            self._model,
            self.rubric,
            sections,
            _RankingAnswer,
            lambda answer: _problem(answer, len(read)),
            {**one_each("candidates", len(read)), "total": (len(read), len(read))},
        )
        standings = {each.number: each.standing for each in answer.candidates}
        return RankingVerdict(
            tuple(standings[place] for place in sorted(standings)),
            len(question.candidates),
            answer.reason,
        )


def _problem(answer: _RankingAnswer, count: int) -> str | None:
    if answer.total != count:
        return f"the total is {answer.total}, but there are {count} candidates"
    return misaligned([each.number for each in answer.candidates], count)
