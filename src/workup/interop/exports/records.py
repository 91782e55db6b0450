"""Whole episodes and whole cases as rows, and what their columns hold."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from workup.cases.jsonl import line_of
from workup.core.case import Case
from workup.interop.exports.talk import PLACE
from workup.metrics.known import metric
from workup.runs import Record

EPISODES: Mapping[str, str] = {
    **PLACE,
    "diagnosis": "the true diagnosis",
    "category": "its family; empty where the cases name none",
    "ending": "diagnosed, out of turns, out of tokens, or failed",
    "reason": "why a failed episode failed",
    "answer": "the diagnosis, or ranked list, that was given; empty if there was none",
    "correct": "the judge's verdict; null if there is none",
    "questions": "actions other than the diagnosis",
    "return": "the sum of the turns' scores; null if the episode was not scored",
    "parts": "the score's components",
    "measures": "measures of the episode; null where undefined",
    "opening": "what the doctor read first",
    "turns": (
        "each turn: the text as it was said, the action that was read from it (kind, content, "
        "violations of the grammar, further parts such as a thought or a list), the item asked "
        "for, the ids of the findings revealed, the passages that a search returned, the reply, "
        "and the turn's score"
    ),
    "tokens": (
        "token ids of the whole transcript, exactly as they were read and sampled; empty where "
        "the doctor is no token policy"
    ),
    "mask": "for each token whether the doctor sampled it: only such tokens are trained on",
    "logprobs": "for each token its log-probability when it was sampled, in nats; 0 outside the "
    "mask",
    "advantages": "for each token its advantage in training, 0 outside the mask; empty elsewhere",
}
CASES: Mapping[str, str] = {
    "id": "the case's id",
    "presentation": "what the doctor is told first",
    "question": "what is asked, if it is not the diagnosis",
    "options": "the answers to choose from; empty where answers are open",
    "given": "findings that the presentation states",
    "category": "the disease family; empty where the cases name none",
    "diagnosis": "the truth, as is every column below; no prompt may hold it",
    "codes": "its codes",
    "aliases": "its other names",
    "differentials": "other diagnoses to think of",
    "facts": "the hidden findings, with their criticality from 0 to 3, or null",
    "record": "the record as a text",
    "references": "reference reasoning",
    "graphs": "the statements of each reference",
    "extra": "what only one method needs, as JSON; empty if there is nothing",
}
_TEXTS = ("question", "category", "record")


def noted(records: Iterable[Record], names: dict[str, None]) -> Iterator[Record]:
    """The records one by one; `names` gets the names of all their measures."""
    for record in records:
        names.update(dict.fromkeys(record.measures))
        yield record


def meanings(measures: Iterable[str]) -> dict[str, str]:
    """What each of these measures is, as far as it is declared."""
    return {name: meaning for name in measures if (meaning := metric(name).meaning)}


def case_row(case: Case) -> dict[str, Any]:
    """The values of `CASES`. Raises UserError for a case that the format cannot hold."""
    line = json.loads(line_of(case))
    truth = line.pop("truth")
    found = {**line, **truth}
    found["extra"] = json.dumps(found["extra"], ensure_ascii=False) if "extra" in found else ""
    empty: Mapping[str, Any] = dict.fromkeys(_TEXTS, "")
    return {name: found.get(name, empty.get(name, [])) for name in CASES}
