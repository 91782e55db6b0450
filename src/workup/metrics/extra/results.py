"""Where the results of ordered examinations came from, and how far to trust them (ES-9)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from statistics import fmean

from workup.core.case import Case
from workup.core.episode import Episode
from workup.core.leaks import WITHHELD
from workup.environments.exams.rages import CONFIDENCE, NOWHERE, REFUSED
from workup.metrics.extra import Measure, Models, Values
from workup.metrics.metric import COUNT, PAGED, Metric

SHARES = {
    "drawn": "base",
    "generated": "generated",
    "unavailable": NOWHERE,
    "refused": REFUSED,
}
_UNORDERED = "where nothing was ordered"
METRICS = (
    *(
        Metric(name, sense, heading, undefined=_UNORDERED, rank=300 + number, where=PAGED)
        for number, (name, heading, sense) in enumerate(
            (
                ("drawn", "results drawn", "share of the results that were drawn from the base"),
                ("generated", "results generated", "share of the results that a model wrote"),
                ("unavailable", "results missing", "share of the results that nobody has"),
                ("refused", "orders refused", "share of the orders that named a disease"),
                ("confidence", "", "mean of the confidences of the results"),
            )
        )
    ),
    Metric(
        "withheld",
        "how many names of diagnoses were withheld in the results",
        "names withheld",
        undefined=_UNORDERED,
        range=COUNT,
        rank=305,
        where=PAGED,
    ),
)


def open(option: str, cases: Sequence[Case], models: Models) -> Measure:
    """The measure; `option` is ignored."""
    return measure


async def measure(episode: Episode, correct: bool) -> Values:
    """The results of one episode, by source; all values are undefined where nothing was ordered."""
    replies = [turn.observation for turn in episode.turns if turn.observation.sources]
    sources = list(chain.from_iterable(reply.sources for reply in replies))
    if not sources:
        return dict.fromkeys((*SHARES, "confidence", "withheld"))
    shown = [message.content for reply in replies for message in reply.messages]
    return {
        **{name: sources.count(source) / len(sources) for name, source in SHARES.items()},
        "confidence": fmean(float(CONFIDENCE[source]) for source in sources),  # type: ignore[index]
        "withheld": float(sum(text.count(WITHHELD) for text in shown)),
    }
