"""How near the diagnosis is to the truth in the ICD-10 tree (C-MIG CM-16).

Option: the release, "cm" (default) or "who", and a file of further names, as in "who,names=FILE" or
"names=FILE".
"""

from __future__ import annotations

from collections.abc import Sequence

from workup.core.case import Case
from workup.core.episode import Episode
from workup.metrics.extra import Measure, Models, Values
from workup.metrics.icd_distance import kg, load_tree
from workup.metrics.metric import PAGED, Metric
from workup.metrics.name_files import look, synonyms
from workup.metrics.naming import CODER, Coder, claimed, known_names, names_of

ROLES = (CODER,)
METRICS = (
    Metric(
        "kg",
        "nearness of diagnosis and truth in the ICD-10 tree: 1 less 0.2 for each step",
        "KG",
        rank=100,
        where=PAGED,
    ),
    Metric("em_kg", "mean of accuracy and KG", "mean of EM and KG", rank=101, where=PAGED),
    Metric(
        "unmapped",
        "share of the diagnoses that are wrong and have no code",
        undefined="where no diagnosis was given",
        rank=102,
        where=PAGED,
    ),
    Metric(
        "truth_unmapped",
        "share of the cases whose true diagnosis has no code",
        rank=103,
        where=PAGED,
    ),
)


def open(option: str, cases: Sequence[Case], models: Models) -> Measure:
    """The measure; the cases' own names are looked up before the release's, a file's after them.

    Raises UserError if the release's package is missing or the file cannot be read, CaseError if
    the file is malformed.
    """
    release, _, file = option.partition("names=")
    look(file)
    icd = load_tree(release.rstrip(",") or "cm")
    more = synonyms(file, icd, known_names(icd))
    coder = next(iter(models.get(CODER, {}).values()), None)
    return KnowledgeGraph(Coder(icd, names_of(cases), coder, more)).measure


class KnowledgeGraph:
    """KG of diagnoses, whose names a coder maps to codes.

    A case without a usable code has the code of its diagnosis's name.
    """

    def __init__(self, coder: Coder) -> None:
        self.coder = coder

    async def measure(self, episode: Episode, correct: bool) -> Values:
        """kg; em_kg = (accuracy + kg) / 2; unmapped and truth_unmapped: 1 if there is no code.

        `unmapped` is about the given diagnosis, `truth_unmapped` about the truth. An episode
        without a diagnosis has kg 0 and is not counted as unmapped. A diagnosis that is denied,
        doubted or one of several has kg 0 and is counted as unmapped. Of a right answer only the
        truth is mapped.
        """
        case, answer = episode.case, "" if correct or not episode.answer else episode.answer[0]
        truths, found = await self.truths(case), await self._code(answer, case)
        score = 1.0 if correct else self._nearest(found, truths)
        unmapped = None if not episode.answer else float(not correct and not found)
        return {
            "kg": score,
            "em_kg": (correct + score) / 2,
            "unmapped": unmapped,
            "truth_unmapped": float(not truths),
        }

    async def score(self, answer: str, case: Case) -> float:
        """KG of an answer by its code, in [0, 1]; the nearest of the true codes counts.

        0 for an answer that is denied, doubted or one of several (`workup.core.text.asserts`).
        """
        return self._nearest(await self._code(answer, case), await self.truths(case))

    async def _code(self, answer: str, case: Case) -> str:
        return (await self.coder.code(answer)).code if answer and claimed(answer, case) else ""

    async def truths(self, case: Case) -> tuple[str, ...]:
        """The case's codes as the release writes them, else the code of its diagnosis.

        Empty if neither exists.
        """
        codes = tuple(filter(None, map(self.coder.tree.nearest, case.truth.codes)))
        named = codes or ((await self.coder.code(case.truth.diagnosis)).code,)
        return tuple(filter(None, named))

    def _nearest(self, code: str, truths: Sequence[str]) -> float:
        path = self.coder.tree.path
        return max((kg(path(code), path(truth)) for truth in truths), default=0.0) if code else 0.0
