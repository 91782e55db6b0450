"""SFT on reference processes: Med-R³'s supervised baseline, documents masked (MR-15)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from pydantic import Field

from workup.core.case import Case, Source
from workup.core.episode import DIAGNOSE, Message
from workup.core.errors import UserError
from workup.core.ports import Demonstration, Environment, Teaching
from workup.core.shapes import FrozenModel
from workup.core.stages import SftStage, Stage
from workup.core.text import THINK, neutralise, tagged
from workup.environments.base.queries import known_findings, random_query
from workup.environments.base.searching import SEARCH
from workup.environments.base.teacher import Recital, exchanges, played
from workup.environments.base.thoughts import DOCUMENT, Process
from workup.environments.reasoning import Reasoning, reasoning_of

Exchange = tuple[str, tuple[Message, ...]]


class ReferenceSftSettings(FrozenModel):
    """What can be set besides `tuning` and `lora`; the README says why."""

    references: int = Field(
        5, ge=1, description="demonstrations of each case: its references, one after the other"
    )
    searches: int = Field(
        1, ge=0, description="searches before a reference without tags, where findings have names"
    )


def reference(
    settings: ReferenceSftSettings, source: Source, environment: Environment, seed: int, index: int
) -> Demonstration:
    """Demonstration number `index` is of case index // references.

    It imitates the case's reference number index % references, counted round where there are fewer.
    Documents are the environment's, so they are masked. Raises UserError for a case without
    references, and for a reference that is no whole process or has too many searches.
    """
    world = reasoning_of(environment)
    case = source.train[index // settings.references]
    texts = world.references(case)
    if not texts:
        raise UserError(
            f"case '{case.id}' of {source.name} has no reference reasoning (truth.references): "
            "`workup prepare references` makes a file in which all have"
        )
    process = Process.of(texts[index % settings.references % len(texts)].strip())
    if not process.plain:
        return Demonstration(world.open(case), _played(world, case, process))
    rng = np.random.default_rng([seed, index])
    findings = known_findings(source, case, world.grammar)
    count = min(settings.searches, world.max_turns - 1) if findings else 0
    queries = [random_query(source, findings, (), rng) for _ in range(count)]
    return Demonstration(world.open(case), _searched(world, case, queries, process.thought))


def _played(world: Reasoning, case: Case, process: Process) -> tuple[Exchange, ...]:
    """A process in the environment's grammar, its documents as the environment shows them."""
    problem = process.objection
    if len(process.said) > world.max_turns:
        problem = (
            f"it searches {len(process.shown)} times, and environment.max_turns="
            f"{world.max_turns} leaves room for {world.max_turns - 1}"
        )
    if problem:
        raise UserError(f"case '{case.id}': a reference cannot be imitated: {problem}")
    replies = [
        (world.reply(tagged(DOCUMENT, neutralise(shown)), turn),)
        for turn, shown in enumerate(process.shown)
    ]
    return tuple(zip(process.said, (*replies, ()), strict=True))


def _searched(
    world: Reasoning, case: Case, queries: Sequence[str], thought: str
) -> tuple[Exchange, ...]:
    """Searches with real answers, then the thought and the case's own answer."""
    searches = [world.write(SEARCH, query) for query in queries]
    last = neutralise(thought) + world.write(DIAGNOSE, case.truth.diagnosis)
    first, *others = (*searches, last)
    return exchanges(played(case, world, Recital((f"<{THINK}>{first}", *others))))


def stages(settings: ReferenceSftSettings, environment: Environment) -> Sequence[Stage]:
    """Imitates the reference processes of each training case; nothing is reinforced.

    The tiny policy has the warm start of the other methods before it, so that all begin alike.
    """
    reasoning_of(environment)
    shown = partial(reference, settings)
    return (
        SftStage("warm start", Teaching().demonstrate),
        SftStage("references", shown, size=0, each=settings.references),
    )
