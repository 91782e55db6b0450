"""The rewards of Med-R³'s three stages (MR-3 to MR-7): a sum of named components, each in [0, 1].

    stage 1, the reasoner:  format + answer + reasoning (semantic, statistic, logical) + searches
    stage 2, the retriever: format + answer + retrieval (quality, breadth)
    stage 3, both:          format + answer

The mathematics of each component stands in `workup.rewards.graphs`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from workup.case import Case
from workup.cases.clinic.graph import canonical
from workup.environments.base.searching import SEARCH
from workup.environments.reasoning import (
    EXTRACTOR,
    GRADER,
    Reasoning,
    documents,
    thought,
    well_formed,
)
from workup.episode import Batch, Episode, Score, Scores
from workup.errors import UserError
from workup.judges.levels import ModelLevels
from workup.judges.statements import ExactStatements, ModelStatements, Statement, StatementReader
from workup.ports import Instruments, Passage, Reward
from workup.rewards.graphs import (
    Graph,
    LongestOf,
    breadth,
    logical,
    quality,
    searched_enough,
    semantic,
    statistic,
)
from workup.rewards.outcome import accuracy
from workup.text import normalise

Component = Literal[
    "format", "answer", "semantic", "statistic", "logical", "searches", "quality", "breadth"
]
Embed = Callable[[Sequence[str]], NDArray[np.floating]]

STAGES: Mapping[int, tuple[Component, ...]] = {
    1: ("format", "answer", "semantic", "statistic", "logical", "searches"),
    2: ("format", "answer", "quality", "breadth"),
    3: ("format", "answer"),
}
"""Stage → the components of its reward, as printed."""

_WITH_REFERENCES = {"semantic", "statistic", "logical"}
_WITH_GRAPHS = {"statistic", "logical", "breadth"}
_REMEMBERED = 1 << 12  # references whose graphs and embeddings are kept


@dataclass(frozen=True, slots=True)
class Reads:
    """How reasoning is read: `embed` makes unit vectors of texts; `longest` decides K (MR-4).

    `least` is the number of searches from which the component `searches` pays (θ = 3).
    """

    embed: Embed
    longest: LongestOf = "shorter"
    least: int = 3


def referenced(environment: Reasoning, components: Sequence[Component]) -> Callable[[Case], None]:
    """A check that raises UserError for a case without reference reasoning that is needed."""

    def fits(case: Case) -> None:
        if _WITH_REFERENCES & set(components) and not environment.references(case):
            raise UserError(
                f"case '{case.id}' has no reference reasoning (truth.references); `workup prepare "
                "references` writes it, or leave out reward.without=[semantic,statistic,logical]"
            )

    return fits


def progressive(environment: Reasoning, components: Sequence[Component], reads: Reads) -> Reward:
    """The sum of `components`, on the last turn; every component is a part of the score.

    A malformed episode is paid for what holds of it: 0 for format and answer. Raises RolloutError
    when a judge, a reader of statements or a grader of documents gives up, UserError where one is
    needed and the run has none.
    """
    scoring = _Scoring(environment, tuple(components), reads)

    async def reward(batch: Batch, instruments: Instruments) -> Scores:
        return [
            list(await asyncio.gather(*(scoring.score(episode, instruments) for episode in group)))
            for group in batch
        ]

    return reward


class _Scoring:
    """Scores episodes; references are read and embedded once for each distinct text."""

    def __init__(
        self, environment: Reasoning, components: tuple[Component, ...], reads: Reads
    ) -> None:
        self.environment, self.components, self.reads = environment, components, reads
        self._graphs: dict[str, Graph] = {}
        self._vectors: dict[str, NDArray[np.floating]] = {}
        self._levels: ModelLevels | None = None

    async def score(self, episode: Episode, instruments: Instruments) -> Score:
        wanted, said = set(self.components), thought(episode)
        parts: dict[str, float] = {}
        if "format" in wanted:
            parts["format"] = float(well_formed(episode))
        if "answer" in wanted:
            parts["answer"] = await accuracy(episode, instruments.judge)
        if "searches" in wanted:
            count = sum(turn.action.kind == SEARCH for turn in episode.turns)
            parts["searches"] = searched_enough(count, self.reads.least)
        texts = self.environment.references(episode.case) if _WITH_REFERENCES & wanted else ()
        if "semantic" in wanted:
            vector, *references = self._embedded((said, *texts))
            parts["semantic"] = semantic(vector, np.array(references).reshape(-1, vector.size))
        if _WITH_GRAPHS & wanted:
            parts |= await self._of_graphs(episode, said, texts, instruments)
        if "quality" in wanted:
            parts["quality"] = quality(await self._graded(episode, instruments))
        ordered = {name: parts[name] for name in self.components}
        return Score.at_end(episode, sum(ordered.values()), **ordered)

    async def _of_graphs(
        self, episode: Episode, said: str, texts: Sequence[str], instruments: Instruments
    ) -> dict[str, float]:
        reader, name = _reader(instruments)
        shown = [text for turn in episode.turns for text in documents(turn)]
        graph = _graph(await reader.read(said, shown), name)
        references = [await self._reference(text, reader, name) for text in texts]
        return {
            "statistic": statistic(graph, references),
            "logical": logical(graph, references, longest=self.reads.longest),
            "breadth": breadth(graph),
        }

    async def _reference(
        self, text: str, reader: StatementReader, name: Callable[[str], str]
    ) -> Graph:
        if text not in self._graphs:
            if len(self._graphs) >= _REMEMBERED:
                self._graphs.clear()
            self._graphs[text] = _graph(await reader.read(text, ()), name)
        return self._graphs[text]

    def _embedded(self, texts: Sequence[str]) -> list[NDArray[np.floating]]:
        if len(self._vectors) >= _REMEMBERED:
            self._vectors.clear()
        new = [text for text in dict.fromkeys(texts) if text not in self._vectors]
        if new:
            self._vectors.update(zip(new, self.reads.embed(new), strict=True))
        return [self._vectors[text] for text in texts]

    async def _graded(self, episode: Episode, instruments: Instruments) -> list[int]:
        """The evidence levels of all documents that the searches returned."""
        levels: list[int] = []
        for turn in episode.turns:
            shown = documents(turn)
            known = [self.environment.level(id) for id in turn.observation.evidence]
            if all(each is not None for each in known):
                levels += [each for each in known if each is not None]
            else:
                if self._levels is None:
                    self._levels = ModelLevels(instruments.model(GRADER))
                levels += await self._levels.levels([Passage("", text) for text in shown])
        return levels


def _reader(instruments: Instruments) -> tuple[StatementReader, Callable[[str], str]]:
    """Who reads statements, and what gives an entity the one name of its synonyms."""
    if EXTRACTOR in instruments.models:
        return ModelStatements(instruments.models[EXTRACTOR]), normalise
    return ExactStatements(), canonical


def _graph(statements: Sequence[Statement], name: Callable[[str], str]) -> Graph:
    return Graph.of(statements, name)
