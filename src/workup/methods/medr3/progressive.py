"""The rewards of Med-R³'s three stages (MR-3 to MR-7): a sum of named components, each in [0, 1].

    stage 1, the reasoner:  format + answer + reasoning (semantic, statistic, logical) + searches
    stage 2, the retriever: format + answer + retrieval (quality, breadth)
    stage 3, both:          format + answer

The formulas stand in `workup.methods.medr3.graphs`, but for those of `format` and `answer`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from workup.core.case import Case, Statement
from workup.core.episode import Batch, Episode, Score, Scores
from workup.core.errors import RolloutError, UserError
from workup.core.ports import Instruments, Reward
from workup.core.stages import Settle
from workup.environments.base.thoughts import Process, thought, well_formed
from workup.environments.reasoning import EXTRACTOR, GRADER, Reasoning
from workup.methods.base.encoders import Embed
from workup.methods.base.outcome import Partly, graded
from workup.methods.medr3.graphs import (
    Graph,
    Identity,
    LongestOf,
    breadth,
    logical,
    quality,
    searched_enough,
    semantic,
    statistic,
)

Component = Literal[
    "format", "answer", "semantic", "statistic", "logical", "searches", "quality", "breadth"
]

STAGES: Mapping[int, tuple[Component, ...]] = {
    1: ("format", "answer", "semantic", "statistic", "logical", "searches"),
    2: ("format", "answer", "quality", "breadth"),
    3: ("format", "answer"),
}
"""Stage → the components of its reward, as printed."""

_WITH_REFERENCES: set[Component] = {"semantic", "statistic", "logical"}
_WITH_GRAPHS: set[Component] = {"statistic", "logical", "breadth"}
_REMEMBERED = 1 << 12  # graphs of references, and embeddings, until the store is emptied


@dataclass(frozen=True, slots=True)
class Reads:
    """How reasoning is read: `embed` makes unit vectors of texts.

    `longest` decides K, and `identity` by what a path is known (MR-4). `least` is the number of
    searches from which the component `searches` pays (θ = 3). `partly` is what a partly right
    answer pays (MR-3), and when.
    """

    embed: Embed
    longest: LongestOf = "shorter"
    least: int = 3
    partly: Partly = field(default_factory=Partly)
    identity: Identity = "entities"


def check(
    environment: Reasoning, components: Sequence[Component], left_out: Sequence[Component] = ()
) -> Callable[[Case], None]:
    """A check of cases that raises UserError for one that the components cannot score.

    It has no reference reasoning though they compare with it, nobody can read the statements of its
    episodes, or its documents have no level.
    """

    def without(more: set[Component]) -> str:
        """These components, and those that `reward.without` leaves out already."""
        return ",".join(sorted(more.union(left_out)))

    def fits(case: Case) -> None:
        if _WITH_REFERENCES & set(components) and not environment.references(case):
            raise UserError(
                f"case '{case.id}' has no reference reasoning (truth.references): let `workup "
                "prepare references` write it, or type "
                f"reward.without=[{without(_WITH_REFERENCES)}]"
            )
        if (compared := _WITH_GRAPHS & set(components)) and not environment.readable:
            raise UserError(
                "the statements of reasoning can be read exactly in the built-in clinic only: name "
                f"a model with roles.{EXTRACTOR}=endpoint:NAME, or type "
                f"reward.without=[{without(compared)}]"
            )
        if "quality" in components and not environment.graded:
            raise UserError(
                "the evidence level of these documents is not known: name a model with "
                f"roles.{GRADER}=endpoint:NAME, or type reward.without=[{without({'quality'})}]"
            )

    return fits


def progressive(
    environment: Reasoning, components: Sequence[Component], reads: Reads
) -> tuple[Reward, Settle]:
    """The sum of `components`, on the last turn, and what settles an episode for it.

    Every component is a part of the score. Where `logical` is paid, the score's measure
    `truncated_graph` is 1 for an episode whose graph has more paths than are enumerated, else 0. An
    episode that breaks the grammar has format 0, one
    without an answer has answer 0; the other components are paid as usual. An episode whose reader
    or grader gives up is failed where the stage settles it; a reward of an episode that was not
    settled raises RolloutError.
    """
    scoring = _Scoring(environment, tuple(components), reads)

    async def reward(batch: Batch, instruments: Instruments) -> Scores:
        scores = [
            list(await asyncio.gather(*(scoring.score(episode, instruments) for episode in group)))
            for group in batch
        ]
        scoring.forget()
        return scores

    return reward, scoring.settle


class _Scoring:
    """Scores episodes, and remembers what was read and embedded."""

    def __init__(
        self, environment: Reasoning, components: tuple[Component, ...], reads: Reads
    ) -> None:
        self.environment, self.components, self.reads = environment, components, reads
        self._references: dict[str | tuple[Statement, ...], Graph] = {}
        self._vectors: dict[str, NDArray[np.floating]] = {}
        self._graphs: dict[tuple[str, tuple[str, ...]], Graph] = {}  # of episodes until `forget`

    def forget(self) -> None:
        self._graphs.clear()

    async def settle(self, episode: Episode) -> None:
        """Asks the extractor and the grader what the episode's score needs.

        Graphs are kept until `forget`; the grader remembers its levels. Raises RolloutError for a
        case without reference reasoning, where a component compares with it: `check` looks at the
        first cases alone.
        """
        case = episode.case
        if _WITH_REFERENCES & set(self.components) and not self.environment.references(case):
            raise RolloutError(f"case '{case.id}' has no reference reasoning (truth.references)")
        if _WITH_GRAPHS & set(self.components):
            await self._graph(episode)
            await self._compared(episode.case)
        if "quality" in self.components:
            await self._graded(episode)

    async def score(self, episode: Episode, instruments: Instruments) -> Score:
        wanted = set(self.components)
        parts: dict[str, float] = {}
        besides: dict[str, float] = {}
        if "format" in wanted:
            parts["format"] = float(well_formed(episode))
        if "answer" in wanted:
            parts["answer"] = await graded(episode, instruments.judge, self.reads.partly)
        if "searches" in wanted:
            count = sum(turn.observation.passages is not None for turn in episode.turns)
            parts["searches"] = searched_enough(count, self.reads.least)
        if "semantic" in wanted:
            told = [Process.of(text).thought for text in self.environment.references(episode.case)]
            vector, *references = self._embedded((thought(episode.actions), *told))
            parts["semantic"] = semantic(vector, np.array(references).reshape(-1, vector.size))
        if _WITH_GRAPHS & wanted:
            graph, others = await self._graph(episode), await self._compared(episode.case)
            parts["statistic"] = statistic(graph, others)
            longest, identity = self.reads.longest, self.reads.identity
            parts["logical"] = logical(graph, others, longest=longest, identity=identity)
            if "logical" in wanted:
                besides["truncated_graph"] = float(graph.paths(identity).truncated)
            parts["breadth"] = breadth(graph)
        if "quality" in wanted:
            parts["quality"] = quality(await self._graded(episode))
        ordered = {name: parts[name] for name in self.components}
        paid = Score.at_end(episode, sum(ordered.values()), **ordered)
        return replace(paid, measures=besides)

    async def _graph(self, episode: Episode) -> Graph:
        said = thought(episode.actions)
        shown = tuple(passage.whole for passage in episode.passages)
        if (said, shown) not in self._graphs:
            self._graphs[said, shown] = await self._read(said, shown)
        return self._graphs[said, shown]

    async def _compared(self, case: Case) -> list[Graph]:
        """The graphs of the case's references; none if no component compares with them."""
        if not _WITH_REFERENCES & _WITH_GRAPHS & set(self.components):
            return []
        if len(self._references) >= _REMEMBERED:
            self._references.clear()
        # Statements that the case brings along are not asked for again.
        sources = case.truth.graphs or self.environment.references(case)
        return [await self._reference(source) for source in sources]

    async def _reference(self, source: str | tuple[Statement, ...]) -> Graph:
        """The graph of a reference: of its stored statements, or of its text."""
        if source not in self._references:
            if isinstance(source, str):
                process = Process.of(source)
                made = await self._read(process.thought, process.passages)
            else:
                made = Graph.of(source, self.environment.canonical)
            self._references[source] = made
        return self._references[source]

    async def _read(self, reasoning: str, shown: Sequence[str]) -> Graph:
        statements = await self.environment.reader.read(reasoning, shown)
        return Graph.of(statements, self.environment.canonical)

    def _embedded(self, texts: Sequence[str]) -> list[NDArray[np.floating]]:
        if len(self._vectors) >= _REMEMBERED:
            self._vectors.clear()
        new = [text for text in dict.fromkeys(texts) if text not in self._vectors]
        if new:
            self._vectors.update(zip(new, self.reads.embed(new), strict=True))
        return [self._vectors[text] for text in texts]

    async def _graded(self, episode: Episode) -> list[int]:
        """The evidence levels of all documents that the searches returned."""
        found = await asyncio.gather(*map(self.environment.levels, episode.turns))
        return [level for levels in found for level in levels]
