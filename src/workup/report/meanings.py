"""What the words in tables stand for, as tooltips and as a legend: what metrics declare of it."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup, escape

from workup.metrics.known import metric
from workup.metrics.metric import BY
from workup.report.tables import VERDICTS

# Terms of rewards that their names do not explain.
TERMS = {
    "α·CR·acc": "pays found criticality (CR) in episodes whose diagnosis is right",
    "β·acc": "pays a right diagnosis",
    "λ·t/T": "costs questions: t of at most T turns were taken",
    "malformed": "what an episode costs in which a turn could not be read",
    "gain": "what all answers told: by how much log p of the truth rose, in nats",
    "acc": "pays a right diagnosis",
    "aux": "γ times (critical − noise); only reward.variant=crit+aux pays it, elsewhere it is 0",
}


def explained(word: str, kind: str = "metric") -> Markup:
    """A word of a table as HTML, with its meaning as a tooltip where it has one.

    The kinds are "metric", of whose name the heading is shown, "verdict", and "term" of a reward.
    """
    if kind == "metric":
        word, meaning = metric(word).title, metric(word).meaning
    else:
        # "undecided, about 5 more seeds" means "undecided".
        meaning = {"verdict": VERDICTS, "term": TERMS}[kind].get(word.partition(",")[0], "")
    made = Markup('<abbr title="{}">{}</abbr>').format(meaning, word)
    return made if meaning else escape(word)


def legend(names: Iterable[str]) -> list[tuple[str, str]]:
    """(heading, meaning) of those metrics that have one; judges' own figures have their mean's."""
    found = (metric(name) for name in names if BY not in name)
    return [(each.title, each.meaning) for each in found if each.meaning]
