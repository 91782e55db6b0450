"""What the words in tables stand for, in a sentence each, as tooltips and as a legend."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup, escape

from workup.metrics.extra import BY
from workup.report.tables import VERDICTS, heading

MEASURES = {
    "accuracy": "share of the diagnoses that the judge found right",
    "macro_accuracy": "accuracy of each true diagnosis, averaged over the diagnoses",
    "questions": "actions before the diagnosis, unreadable ones included",
    "critical": "of the findings that were found, the share that is pathognomonic (criticality 3)",
    "noise": "of the findings that were found, the share that is irrelevant (criticality 0)",
    "coverage": "share of all hidden findings that were found",
    "recall": "criticality of the findings that were found, as a share of that of all hidden ones",
    "repeats": "share of the questions that had been asked before",
    "malformed": "share of the turns that could not be read as an action",
    "not_understood": "share of the readable questions that the patient or the record did not "
    "understand, or has nothing on",
    "cost": "sum of the costs of what was asked; 1 each where the cases name none",
    "ddx": "how many candidates the first turn ranks",
    "truncated_graph": (
        "share of the episodes whose graph has more paths than are enumerated, so that R_logical "
        "counts the shorter ones alone"
    ),
    "return": "sum of the episode's rewards; compare it only between runs with one reward",
}
# Terms of rewards that their names do not explain.
TERMS = {
    "α·CR·acc": "pays found criticality (CR) in episodes whose diagnosis is right",
    "β·acc": "pays a right diagnosis",
    "λ·t/T": "costs questions: t of at most T turns were taken",
    "malformed": "what an episode costs in which a turn could not be read",
    "aux": "γ times (critical − noise); only reward.variant=crit+aux pays it, elsewhere it is 0",
}
_WORDS = {**MEASURES, **{heading(name): told for name, told in MEASURES.items()}, **VERDICTS}


def explained(word: str, kind: str = "") -> Markup:
    """A word of a table as HTML, with its meaning as a tooltip where it has one.

    `word` is a measure, its heading or a verdict; with the kind "term" a term of a reward.
    """
    told = TERMS.get(word) if kind == "term" else _WORDS.get(word.partition(BY)[0])
    return Markup('<abbr title="{}">{}</abbr>').format(told, word) if told else escape(word)


def legend(names: Iterable[str]) -> list[tuple[str, str]]:
    """(heading, meaning) of those measures that have one."""
    return [(heading(name), MEASURES[name]) for name in names if name in MEASURES]
