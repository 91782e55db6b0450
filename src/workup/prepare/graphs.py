"""The graph of each reference: its statements, those from a search marked (Med-R³ MR-9, MR-12).

An answer that is no list of at most `most` statements is sent back; if it comes again, the case
fails. Names are merged by their normal form, or by a file of `synonyms`. A statement that comes
twice counts once. A reference with fewer than `least` statements is dropped, and with its last
reference the case. The exact way reads the sentences of the built-in clinic alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import Field, JsonValue

from workup.core.case import MOST_STATEMENTS, Case, Source, Statement
from workup.core.shapes import checked
from workup.environments.base.thoughts import Process
from workup.prepare.steps import Aids, Drop, Kept, Outcome, PrepareStep, StepSettings
from workup.roles.judges.statements import VERSION, ExactStatements, ModelStatements
from workup.roles.judges.synonyms import Normaliser, normaliser

LEAST = 1  # statements of a reference


class GraphSettings(StepSettings):
    """How many statements a reference has."""

    most: int = Field(
        MOST_STATEMENTS,
        ge=1,
        le=MOST_STATEMENTS,
        description="statements of one reference at most; fewer for a small model",
    )
    synonyms: Annotated[str, checked(normaliser)] = Field(  # read before anything is begun
        "",
        description="a file of entities (JSON lines with name and synonyms) whose names are merged",
    )
    least: int = Field(
        LEAST, ge=0, description="a reference with fewer is dropped, and with the last one its case"
    )


async def apply(case: Case, aids: Aids) -> Outcome:
    """Reads all references of the case at once; the model sees neither the question nor the truth.

    Raises RolloutError for a reference whose answer stays unusable: the case then fails, and is
    neither kept nor dropped.
    """
    settings: GraphSettings = aids.settings
    reader = ModelStatements(aids.model, settings.most, settings.max_tokens)
    processes = list(map(Process.of, case.truth.references))
    read = await asyncio.gather(
        *(reader.read(process.thought, process.passages) for process in processes)
    )
    return _with(case, read, settings.least, normaliser(settings.synonyms))


def exact(case: Case, source: Source) -> Outcome:
    """The case with graphs read from the sentences of the built-in clinic, and from no others."""
    processes = list(map(Process.of, case.truth.references))
    reader = ExactStatements()
    read = [reader.found(process.thought, process.passages) for process in processes]
    return _with(case, read, LEAST, reader.canonical)


def _with(
    case: Case, read: Sequence[Sequence[Statement]], least: int, canonical: Normaliser
) -> Outcome:
    """The case with the references that make at least so many statements, and their graphs."""
    if not read:
        return Drop("no references (the step references comes first)")
    graphs = [_merged(statements, canonical) for statements in read]
    pairs = zip(case.truth.references, graphs, strict=True)
    kept = [(text, graph) for text, graph in pairs if len(graph) >= least]
    counts: dict[str, JsonValue] = {
        "statements": [len(graph) for graph in graphs],
        "retrieved": sum(each.retrieved for graph in graphs for each in graph),
        "merged": sum(map(len, read)) - sum(map(len, graphs)),
        "references": f"{len(kept)} of {len(graphs)}",
    }
    if not kept:
        return Drop("its references state too little", f"statements {counts['statements']}")
    references, stated = zip(*kept, strict=True)
    truth = replace(case.truth, references=references, graphs=stated)
    return Kept(replace(case, truth=truth), counts)


def _merged(statements: Sequence[Statement], canonical: Normaliser) -> tuple[Statement, ...]:
    """Each statement once, its entities by their one name; retrieved where it was so once.

    A statement about something without a name is left out.
    """
    found: dict[tuple[str, str, str], bool] = {}
    for each in statements:
        triple = canonical(each.head), each.relation.casefold(), canonical(each.tail)
        if all(triple):
            found[triple] = found.get(triple, False) or each.retrieved
    return tuple(Statement(*triple, retrieved) for triple, retrieved in found.items())


step = PrepareStep(
    "the statements of each reference as a graph, what was searched marked (MR-12)",
    f"graphs/1, {VERSION}",
    apply,
    GraphSettings,
    exact=exact,
)
