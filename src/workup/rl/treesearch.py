"""Monte Carlo tree search over encounters (ProMed's Algorithm 2).

It looks for trajectories of high reward R. A node is an action and its observation. Selection walks
down the tree by UCT. Expansion samples the next actions from the doctor. Each new action is
simulated: the episode is played to its end, and its R is back-propagated. Independent requests are
sent together, and several trees grow at the same time, so a local model or an endpoint can batch
them.

Three differences from Algorithm 2 (PM-8):
- One iteration expands and simulates up to `width` children. Algorithm 2 takes one at a time; with
  5 iterations such a tree never gets below its first level. `expand=1` is the literal search, but
  for this: an iteration draws until it finds a new action.
- The greedy trajectory is simulated first.
- A subtree in which nothing new is left is not selected again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite, log, sqrt

from pydantic import Field

from workup.core.case import Case
from workup.core.draws import seed_key
from workup.core.episode import Ending, Episode, Message, Score, Turn
from workup.core.errors import RolloutError, WorkupError, reason
from workup.core.ports import Act, Doctor, Environment, Sampling
from workup.core.shapes import MOST_HELD, FrozenModel
from workup.core.stages import Value
from workup.core.text import normalise
from workup.rl.rollout import Play, ToPlay, ended, rollout, take_turn

EPSILON = 1e-6  # Eq. 16's ε, which decides nothing: every child is simulated as soon as it exists


class Extent(FrozenModel):
    """How far a tree search goes, as settings; the defaults are ProMed's (H.1).

    The environment limits the episode's own length.
    """

    exploration: float = Field(2.2, ge=0, description="tree search: UCT's c")
    width: int = Field(8, ge=1, le=MOST_HELD, description="tree search: actions drawn at a node")
    iterations: int = Field(
        5,
        ge=0,
        le=MOST_HELD,
        description=(
            "tree search: rounds of selection, expansion, simulation and back-propagation; "
            "0 leaves the greedy trajectory alone"
        ),
    )
    expand: int | None = Field(
        None,
        ge=1,
        le=MOST_HELD,
        description="tree search: new actions per iteration; none: width. Printed is 1",
    )
    depth: int = Field(
        10,
        ge=1,
        le=MOST_HELD,
        description="tree search: nodes with so many actions are not expanded",
    )


class Search(Extent):
    """The limits of one search. It stops after the greedy trajectory if its R is ≥ `enough`."""

    enough: float = inf


@dataclass(slots=True, eq=False)
class Node:
    """One action after its past, with N (`visits`) and W (`total`); the root has no turn.

    `times` is how often the action was sampled, `drawn` how many actions were sampled after it.
    `failure` is the reason why it could not be simulated. Below a `closed` node nothing new is
    left.
    """

    turn: Turn | None = None
    place: tuple[int, ...] = ()
    children: list[Node] = field(default_factory=list)
    visits: int = 0
    total: float = 0.0
    times: int = 1
    drawn: int = 0
    closed: bool = False
    failure: str = ""

    @property
    def mean(self) -> float:
        """R̄ = W / N; 0 before the first visit."""
        return self.total / self.visits if self.visits else 0.0

    def walk(self) -> Iterator[Node]:
        """This node and all nodes below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One simulated episode with its R, and the node from which it was simulated."""

    episode: Episode
    score: Score
    node: Node


@dataclass(slots=True, eq=False)
class Tree:
    """The tree of one case: its trajectories in the order of the simulations, the greedy one first.

    `failures` are the reasons of branches that failed. `calls` is how often the doctor acted.
    """

    job: ToPlay
    opening: tuple[Message, ...]
    root: Node = field(default_factory=Node)
    trajectories: list[Trajectory] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    calls: int = 0

    @property
    def depth(self) -> int:
        """The number of actions of the deepest node; 1 means best-of-n, without search."""
        return max(len(node.place) for node in self.root.walk())

    def best(
        self, fit: Callable[[Trajectory], bool] = lambda trajectory: True
    ) -> Trajectory | None:
        """The trajectory of highest R among those that are `fit`; of equal ones the earliest.

        Algorithm 2 calls those fit whose answer is right.
        """
        return max(
            filter(fit, self.trajectories),
            key=lambda trajectory: trajectory.score.total,
            default=None,
        )

    def show(self) -> str:
        """The tree as text: one line per node, indented, with N, R̄ and the action."""
        return "\n".join(
            (
                f"{'  ' * len(node.place)}{node.visits} {node.mean:+.3f} "
                f"{node.turn.completion.text if node.turn else 'start'}"
            )
            + (f"  [{node.failure}]" if node.failure else "")
            for node in self.root.walk()
        )


def uct(parent: Node, child: Node, exploration: float) -> float:
    """R̄(n') + c·√(log N(n) / (N(n') + ε)) (Eq. 16)."""
    return child.mean + exploration * sqrt(log(parent.visits) / (child.visits + EPSILON))


@dataclass(frozen=True)
class TreeSearch:
    """Grows trees of a doctor's actions in an environment; `value` gives R, `play` the sampling.

    A tree depends only on its job, the doctor and these settings, not on trees that grow beside it.
    """

    environment: Environment
    doctor: Doctor
    value: Value
    search: Search = field(default_factory=Search)
    play: Play = field(default_factory=Play)

    async def grow(self, job: ToPlay) -> Tree:
        """The tree of one case.

        A RolloutError ends only its branch. So a tree may have no trajectory at all.
        """
        tree, doctor = Tree(job, self.environment.open(job.case)), _Counting(self.doctor)
        growth = _Growth(replace(self, doctor=doctor), tree)
        await growth.greedy()
        if not any(
            trajectory.score.total >= self.search.enough for trajectory in tree.trajectories
        ):
            for _ in range(self.search.iterations):
                await growth.iterate()
        tree.calls = doctor.calls
        return tree

    async def grow_all(self, jobs: Sequence[ToPlay], concurrency: int = 64) -> list[Tree]:
        """The trees of `jobs` in their order, at most `concurrency` growing at a time.

        A tree has up to `width` episodes in flight. A local policy should hold that many
        transcripts per tree (`max_batch`); otherwise it computes their prompts again in every turn.
        """
        limit = asyncio.Semaphore(concurrency)

        async def one(job: ToPlay) -> Tree:
            async with limit:
                return await self.grow(job)

        return list(await asyncio.gather(*map(one, jobs)))


async def valued(episode: Episode, value: Value) -> tuple[Episode, Score | None, str]:
    """The episode and its R; or the episode, None and the reason why it has no R.

    Raises WorkupError for an R that is no finite number.
    """
    if episode.ending is Ending.FAILED:
        return episode, None, episode.reason
    try:
        score = await value(episode)
    except RolloutError as error:
        return episode, None, reason(error)
    if not isfinite(score.total):
        raise WorkupError(f"case {episode.case.id}: R is {score.total}")
    return episode, score, ""


class _Counting:
    def __init__(self, doctor: Doctor) -> None:
        self.doctor, self.calls = doctor, 0

    async def act(
        self, case: Case, opening: Sequence[Message], past: Sequence[Turn], sampling: Sampling
    ) -> Act:
        self.calls += 1
        return await self.doctor.act(case, opening, past, sampling)


@dataclass(frozen=True)
class _Growth:
    """One tree while it grows. A `path` is the list of nodes from the root down."""

    by: TreeSearch
    tree: Tree

    async def greedy(self) -> None:
        """Simulates the greedy trajectory (temperature 0), the first one of every tree."""
        root, play = self.tree.root, replace(self.by.play, temperature=0.0)
        episode = await rollout(self.tree.job, self.by.environment, self.by.doctor, play)
        root.drawn = 1
        if not episode.turns:
            self.tree.failures.append(episode.reason)
            self._close([root])
            return
        child = self._attach(root, episode.turns[0], over=len(episode.turns) == 1)
        self._record([root, child], *await valued(episode, self.by.value))

    async def iterate(self) -> None:
        """One expansion that finds new actions, then the simulation of each of them."""
        new: list[Node] = []
        path = [self.tree.root]
        while not self.tree.root.closed and not new:
            path = self._select()
            new = await self._expand(path)
        simulated = await asyncio.gather(*(self._simulate([*path, child]) for child in new))
        for child, outcome in zip(new, simulated, strict=True):
            self._record([*path, child], *outcome)

    def _select(self) -> list[Node]:
        """The path by UCT to the first node that is not fully expanded.

        Every node that is not closed has such a node below it.
        """
        path = [self.tree.root]
        while (node := path[-1]).drawn >= self.by.search.width:
            open_ = [child for child in node.children if not child.closed]
            path.append(max(open_, key=lambda child: uct(node, child, self.by.search.exploration)))
        return path

    async def _expand(self, path: Sequence[Node]) -> list[Node]:
        """Samples the next actions after `path` and merges equal ones; returns the new children."""
        search, node = self.by.search, path[-1]
        count = min(search.expand or search.width, search.width - node.drawn)
        turns = await asyncio.gather(*(self._draw(path, node.drawn + k) for k in range(count)))
        node.drawn += count
        known = {_identity(child.turn): child for child in node.children if child.turn is not None}
        new: list[Node] = []
        for turn in turns:
            if isinstance(turn, str):
                self.tree.failures.append(turn)
            elif (twin := known.get(_identity(turn))) is not None:
                twin.times += 1
            else:
                over = turn.observation.done or len(path) == self.by.environment.max_turns
                new.append(self._attach(node, turn, over))
                known[_identity(turn)] = new[-1]
        self._close(path)
        return new

    def _attach(self, node: Node, turn: Turn, over: bool) -> Node:
        place = (*node.place, len(node.children))
        child = Node(turn, place, closed=over or len(place) >= self.by.search.depth)
        node.children.append(child)
        return child

    async def _draw(self, path: Sequence[Node], number: int) -> Turn | str:
        """The `number`-th sampled action after `path`, or the reason why there is none."""
        job = self._job("draw", path[-1], number)
        by, tree = self.by, self.tree
        try:
            return await take_turn(
                job, by.environment, by.doctor, by.play, tree.opening, _turns(path)
            )
        except RolloutError as error:
            return reason(error)

    async def _simulate(self, path: Sequence[Node]) -> tuple[Episode, Score | None, str]:
        """Plays the episode from the end of `path` to its end, if it has not ended there."""
        *past, last = _turns(path)
        case, opening, by = self.tree.job.case, self.tree.opening, self.by
        if not last.observation.done:
            job = self._job("simulate", path[-1])
            episode = await rollout(job, by.environment, by.doctor, by.play, (*past, last))
        else:
            try:
                episode = ended(case, opening, past, last)
            except RolloutError as error:
                episode = Episode(case, opening, tuple(past), Ending.FAILED, reason(error))
        return await valued(episode, self.by.value)

    def _record(
        self, path: Sequence[Node], episode: Episode, score: Score | None, failure: str
    ) -> None:
        """Back-propagates R (Eqs. 20–22), or marks the branch as failed."""
        node = path[-1]
        if score is None:
            node.failure, node.closed = failure, True
            self.tree.failures.append(failure)
        else:
            self.tree.trajectories.append(Trajectory(episode, score, node))
            for passed in path:
                passed.visits += 1
                passed.total += score.total
        self._close(path[:-1])

    def _close(self, path: Sequence[Node]) -> None:
        for node in reversed(path):
            node.closed = node.drawn >= self.by.search.width and all(
                child.closed for child in node.children
            )

    def _job(self, *parts: object) -> ToPlay:
        keys = [part.place if isinstance(part, Node) else part for part in parts]
        return ToPlay(self.tree.job.case, seed_key(self.tree.job.key, *keys))


def _turns(path: Sequence[Node]) -> list[Turn]:
    return [node.turn for node in path if node.turn is not None]


def _identity(turn: Turn | None) -> tuple[str, ...]:
    """The key by which two sampled turns are the same action.

    It is the action's kind and content, without the thought before it; for a turn without content
    it is the text.
    """
    if turn is None:
        return ()
    names = tuple(map(normalise, turn.action.content))
    return (turn.action.kind, *names) if any(names) else ("", turn.completion.text)
