"""What each question told: how much more probable the true disease became, in bits a question.

By the exact posterior p of the source's own model: log2 p(truth | all that the doctor knows), less
log2 p(truth | the presentation), over the number of its questions. A question that told nothing
counts, and so does one that was not understood.
"""

from __future__ import annotations

import math

from workup.core.episode import Episode
from workup.metrics.extra import Measure, MeasuredWorld, Values
from workup.metrics.metric import ANY, PAGED, Metric
from workup.metrics.reading import reader_of

LEAST = 1e-6  # what a smaller probability counts as, so that one question is worth 20 bits at most
METRICS = (
    Metric(
        "informed",
        "bits by which the true disease became more probable, by the exact posterior, a question",
        "bits a question",
        undefined="where nothing was or can be asked, or the source has no model of its cases",
        range=ANY,
        rank=295,
        where=PAGED,
    ),
)


def open_in(option: str, world: MeasuredWorld) -> Measure:
    """The measure; `option` is ignored."""
    source, environment = world
    reader = reader_of(source, environment)

    async def measure(episode: Episode, correct: bool) -> Values:
        """informed: from −20 to 20 bits a question; log2 of `LEAST` is −19.9."""
        truth, past = episode.case.truth.diagnosis, episode.gathered
        if reader is None or not past or truth not in reader.knowledge.diagnoses:
            return {"informed": None}
        place = list(reader.knowledge.diagnoses).index(truth)
        before, after = (
            max(reader.knowledge.posterior(reader.evidence(episode.case, turns))[place], LEAST)
            for turns in ((), past)
        )
        return {"informed": math.log2(after / before) / len(past)}

    return measure
