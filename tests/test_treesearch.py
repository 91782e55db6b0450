"""Tree search against an independent one, in the hand-made world.

The other is written with strings and dictionaries.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from handmade import CASES, ITEMS, SOURCE
from hypothesis import given, settings
from hypothesis import strategies as st

from workup.core.case import Case
from workup.core.draws import seed_key
from workup.core.episode import Completion, Ending, Episode, Message, Score, Turn
from workup.core.errors import RolloutError, WorkupError
from workup.core.ports import Act, Sampling
from workup.environments.consultation import Consultation
from workup.rl.rollout import Play, ToPlay, rollout
from workup.rl.treesearch import Search, Trajectory, Tree, TreeSearch

TURNS = 4
WORLD = Consultation(SOURCE.items, SOURCE.diagnoses, TURNS)
MOVES = (
    *(f"<ask>{item.name}</ask>" for item in ITEMS[:3]),
    "<diagnose>Flu</diagnose>",
    "<diagnose>Pneumonia</diagnose>",
)


class Gambler:
    """Draws one of `moves` by key and past; greedy is always the first.

    `fails` tells which (past, key) give up.
    """

    def __init__(
        self,
        moves: Sequence[str] = MOVES,
        fails: Callable[[Sequence[str], int], bool] = lambda past, key: False,
    ) -> None:
        self.moves, self.fails = moves, fails
        self.present = self.most = self.calls = 0

    async def act(
        self, case: Case, opening: Sequence[Message], past: Sequence[Turn], sampling: Sampling
    ) -> Act:
        self.calls += 1
        self.present += 1
        self.most = max(self.most, self.present)
        await asyncio.sleep(0)
        self.present -= 1
        said = [turn.completion.text for turn in past]
        if self.fails(said, sampling.key):
            raise RolloutError("it gave up")
        return Act((), Completion(self.moves[self.choose(said, sampling)]))

    def choose(self, said: Sequence[str], sampling: Sampling) -> int:
        return (
            seed_key("draw", *said, sampling.key) % len(self.moves) if sampling.temperature else 0
        )


def worth(texts: Sequence[str]) -> float:
    """R of a transcript: any number in [0, 1), the same for the same texts."""
    return seed_key("R", *texts) / 2**64


def texts(episode: Episode) -> list[str]:
    return [turn.completion.text for turn in episode.turns]


async def value(episode: Episode) -> Score:
    return Score.at_end(episode, worth(texts(episode)))


def grow(
    doctor: object,
    search: Search,
    key: int = 0,
    measure: Callable[[Episode], Awaitable[Score]] = value,
) -> Tree:
    return asyncio.run(TreeSearch(WORLD, doctor, measure, search).grow(ToPlay(CASES[0], key)))  # type: ignore[arg-type]


def statistics(tree: Tree) -> dict[tuple[str, ...], tuple[int, float, int]]:
    """Path of texts → (N, W, times drawn)."""
    found: dict[tuple[str, ...], tuple[int, float, int]] = {}

    def visit(node: object, path: tuple[str, ...]) -> None:
        found[path] = (node.visits, node.total, node.times)  # type: ignore[attr-defined]
        for child in node.children:  # type: ignore[attr-defined]
            visit(child, (*path, child.turn.completion.text))

    visit(tree.root, ())
    return found


class Reference:
    """Algorithm 2 with our decisions, written again.

    It has no nodes, only dictionaries keyed by the path of texts.
    """

    def __init__(self, doctor: Gambler, search: Search, key: int) -> None:
        self.doctor, self.search, self.key = doctor, search, key
        self.visits: Counter[tuple[str, ...]] = Counter()
        self.sums: Counter[tuple[str, ...]] = Counter()
        self.times: Counter[tuple[str, ...]] = Counter({(): 1})
        self.drawn: Counter[tuple[str, ...]] = Counter()
        self.order: dict[tuple[str, ...], list[tuple[str, ...]]] = {(): []}
        self.best = -math.inf
        self.place: dict[tuple[str, ...], tuple[int, ...]] = {(): ()}

    def move(self, path: tuple[str, ...], key: int, temperature: float = 1.0) -> str:
        return self.doctor.moves[
            self.doctor.choose(path, Sampling(key=key, temperature=temperature))
        ]

    def over(self, path: tuple[str, ...]) -> bool:
        return bool(path) and (path[-1].startswith("<diagnose>") or len(path) >= TURNS)

    def closed(self, path: tuple[str, ...]) -> bool:
        if self.over(path) or len(path) >= self.search.depth:
            return True
        return self.drawn[path] >= self.search.width and all(map(self.closed, self.order[path]))

    def add(self, path: tuple[str, ...]) -> None:
        self.place[path] = (*self.place[path[:-1]], len(self.order[path[:-1]]))
        self.order[path[:-1]].append(path)
        self.order[path], self.times[path] = [], 1

    def play(self, start: tuple[str, ...], key: int, temperature: float = 1.0) -> tuple[str, ...]:
        path = start
        while not self.over(path):
            path = (*path, self.move(path, key, temperature))
        return path

    def back(self, node: tuple[str, ...], end: tuple[str, ...]) -> None:
        self.best = max(self.best, worth(end))
        for length in range(len(node) + 1):
            self.visits[node[:length]] += 1
            self.sums[node[:length]] += worth(end)  # type: ignore[assignment]

    def run(self) -> None:
        end = self.play((), self.key, 0.0)
        self.add(end[:1])
        self.drawn[()] = 1
        self.back(end[:1], end)
        for _ in range(self.search.iterations):
            fresh: list[tuple[str, ...]] = []
            while not fresh and not self.closed(()):
                fresh = self.expand(self.select())
            for child in fresh:
                self.back(
                    child, self.play(child, seed_key(self.key, "simulate", self.place[child]))
                )

    def select(self) -> tuple[str, ...]:
        node: tuple[str, ...] = ()
        while self.drawn[node] == self.search.width:
            children = [child for child in self.order[node] if not self.closed(child)]
            bonus = {c: math.sqrt(math.log(self.visits[node]) / self.visits[c]) for c in children}
            node = max(
                children,
                key=lambda c: self.sums[c] / self.visits[c] + self.search.exploration * bonus[c],
            )
        return node

    def expand(self, node: tuple[str, ...]) -> list[tuple[str, ...]]:
        fresh = []
        for _ in range(
            min(self.search.expand or self.search.width, self.search.width - self.drawn[node])
        ):
            child = (
                *node,
                self.move(node, seed_key(self.key, "draw", self.place[node], self.drawn[node])),
            )
            self.drawn[node] += 1
            if child in self.order[node]:
                self.times[child] += 1
            else:
                self.add(child)
                fresh.append(child)
        return fresh


SEARCHES = st.builds(
    Search,
    exploration=st.sampled_from((0.0, 0.3, 2.2, 50.0)),
    width=st.integers(1, 9),
    iterations=st.integers(0, 12),
    depth=st.integers(1, 5),
    expand=st.none() | st.integers(1, 9),
)


@settings(max_examples=150)
@given(SEARCHES, st.integers(0, 2**63), st.integers(1, len(MOVES)))
def test_the_statistics_are_those_of_an_independent_search(
    search: Search, key: int, moves: int
) -> None:
    doctor = Gambler(MOVES[-moves:])
    tree, reference = grow(doctor, search, key), Reference(doctor, search, key)
    reference.run()
    found = statistics(tree)
    assert set(found) == set(reference.place)
    for path, (visits, total, times) in found.items():
        assert (visits, times) == (reference.visits[path], reference.times[path])
        assert total == pytest.approx(reference.sums[path])
    best = tree.best()
    assert best is not None
    assert best.score.total == reference.best


@settings(max_examples=60)
@given(SEARCHES, st.integers(0, 2**63))
def test_what_holds_of_every_tree(search: Search, key: int) -> None:
    doctor = Gambler()
    tree = grow(doctor, search, key)
    for node in tree.root.walk():
        assert node.drawn <= search.width
        assert len(node.place) <= min(search.depth, TURNS)
        assert len({child.turn.completion.text for child in node.children if child.turn}) == len(
            node.children
        )
        # Each node is visited by its own simulation and by those below it.
        assert node.visits == (len(node.place) > 0) + sum(child.visits for child in node.children)
        own = [
            t.score.total
            for t in tree.trajectories
            if t.node.place[: len(node.place)] == node.place
        ]
        assert node.total == pytest.approx(sum(own))
    assert (
        tree.root.visits
        == len(tree.trajectories)
        <= 1 + search.iterations * (search.expand or search.width)
    )
    assert tree.calls == doctor.calls
    assert not tree.failures
    greedy = asyncio.run(rollout(ToPlay(CASES[0], key), WORLD, Gambler(), Play(temperature=0.0)))
    assert texts(tree.trajectories[0].episode) == texts(greedy)
    assert statistics(grow(Gambler(), search, key)) == statistics(tree)


def test_with_enough_iterations_it_finds_the_best_leaf() -> None:
    """The value is that of a leaf of a whole game of four turns, all of which can be counted."""
    moves = MOVES[1:4]
    leaves: list[tuple[str, ...]] = [()]
    for _ in range(TURNS):
        grown = [
            (*leaf, move) for leaf in leaves if not leaf or leaf[-1] != moves[-1] for move in moves
        ]
        leaves = grown + [leaf for leaf in leaves if leaf and leaf[-1] == moves[-1]]
    tree = grow(Gambler(moves), Search(width=40, iterations=200))
    assert {tuple(texts(t.episode)) for t in tree.trajectories} == set(leaves)
    best = tree.best()
    assert best is not None
    assert tuple(texts(best.episode)) == max(leaves, key=worth)
    assert tree.root.closed


def test_uct_leads_the_search_to_where_the_reward_is() -> None:
    async def fever(episode: Episode) -> Score:
        return Score.at_end(
            episode, float(texts(episode)[0] == MOVES[0] and "Flu" in episode.answer)
        )

    spent = Counter(
        trajectory.episode.turns[0].completion.text
        for trajectory in grow(
            Gambler(), Search(width=12, iterations=12, exploration=0.5), 3, fever
        ).trajectories
    )
    assert spent[MOVES[0]] > 0.5 * sum(spent.values())


def test_the_papers_own_numbers_search_deeper_than_its_text() -> None:
    """One child per iteration never leaves the first level with width 8 and 5 iterations.

    `width` children per iteration do.
    """
    many = tuple(f"<ask>thing {number}</ask>" for number in range(10_000))  # no two draws are alike
    literal, ours = grow(Gambler(many), Search(expand=1)), grow(Gambler(many), Search())
    assert literal.depth == 1
    assert ours.depth > 1
    assert (len(literal.trajectories), len(ours.trajectories)) == (6, 1 + 7 + 4 * 8)


def test_the_best_trajectory_is_the_best_of_those_that_fit() -> None:
    tree = grow(Gambler(), Search())

    def right(trajectory: Trajectory) -> bool:
        return trajectory.episode.answer == ("Flu",)

    kept = tree.best(right)
    assert kept is not None
    assert kept.score.total == max(t.score.total for t in tree.trajectories if right(t))
    assert tree.best(lambda trajectory: False) is None


def test_thoughts_and_spelling_do_not_make_another_action() -> None:
    moves = (
        "<ask>fever</ask>",
        "<think>why not</think><ask>Fever </ask>",
        "no action",
        "No action at all",
    )
    tree = grow(Gambler(moves), Search(width=20, iterations=1, depth=1))
    assert len(tree.root.children) == 3
    assert sum(child.times for child in tree.root.children) == 20


def test_a_good_greedy_trajectory_is_enough() -> None:
    first = grow(Gambler(), Search()).trajectories[0].score.total
    assert len(grow(Gambler(), Search(enough=first)).trajectories) == 1
    assert len(grow(Gambler(), Search(enough=first + 1e-9)).trajectories) > 1


@settings(max_examples=30)
@given(st.integers(0, 2**63), st.integers(2, 6))
def test_a_branch_that_fails_does_not_fail_the_tree(key: int, one_in: int) -> None:
    doctor = Gambler(fails=lambda past, drawn: seed_key("fail", *past, drawn) % one_in == 0)
    tree = grow(doctor, Search(), key)
    assert set(tree.failures) <= {"it gave up"}
    for node in tree.root.walk():
        assert not (node.failure and node.visits)
        assert not node.failure or node.closed
    assert tree.root.visits == len(tree.trajectories)
    assert all(trajectory.episode.ending is not Ending.FAILED for trajectory in tree.trajectories)


def test_a_doctor_that_always_fails_leaves_an_empty_tree_with_reasons() -> None:
    tree = grow(Gambler(fails=lambda past, key: True), Search())
    assert (tree.trajectories, tree.best(), tree.root.visits) == ([], None, 0)
    assert (
        tree.failures == ["it gave up"] * 8
    )  # once greedily, seven more draws, and nothing is left to draw


def test_a_value_that_fails_fails_its_branch_and_one_that_is_no_number_is_an_error() -> None:
    async def moody(episode: Episode) -> Score:
        if episode.answer == ("Flu",):
            raise RolloutError
        return await value(episode)

    tree = grow(Gambler(), Search(), measure=moody)
    assert "RolloutError" in tree.failures
    assert tree.trajectories
    assert all(trajectory.episode.answer != ("Flu",) for trajectory in tree.trajectories)

    async def broken(episode: Episode) -> Score:
        return Score.at_end(episode, math.nan)

    with pytest.raises(WorkupError, match=r"case case-1: R is nan"):
        grow(Gambler(), Search(), measure=broken)


def test_defects_propagate() -> None:
    async def defect(episode: Episode) -> Score:
        raise KeyError("a defect")

    with pytest.raises(KeyError):
        grow(Gambler(), Search(), measure=defect)


def test_a_cut_off_completion_ends_its_branch() -> None:
    class Cut(Gambler):
        async def act(self, *words: object) -> Act:
            act = await super().act(*words)  # type: ignore[arg-type]
            return replace(act, completion=replace(act.completion, truncated=self.calls % 3 == 0))

    tree = grow(Cut(), Search())
    endings = Counter(trajectory.episode.ending for trajectory in tree.trajectories)
    assert endings[Ending.OUT_OF_TOKENS] > 0
    assert endings[Ending.DIAGNOSED] > 0


def test_trees_grow_side_by_side_and_are_what_they_are_alone() -> None:
    jobs = [ToPlay(case, key) for key in range(4) for case in CASES]
    doctor = Gambler()
    together = asyncio.run(TreeSearch(WORLD, doctor, value).grow_all(jobs))
    assert doctor.most > len(jobs)
    assert [tree.job for tree in together] == jobs
    for job, tree in zip(jobs, together, strict=True):
        alone = asyncio.run(TreeSearch(WORLD, Gambler(), value).grow(job))
        assert statistics(alone) == statistics(tree)
        assert [texts(t.episode) for t in alone.trajectories] == [
            texts(t.episode) for t in tree.trajectories
        ]
    few = Gambler()
    asyncio.run(TreeSearch(WORLD, few, value).grow_all(jobs, concurrency=2))
    assert few.most <= 2 * 8


def test_a_tree_can_be_looked_at() -> None:
    tree = grow(Gambler(), Search(iterations=2))
    lines = tree.show().splitlines()
    assert len(lines) == len(list(tree.root.walk()))
    assert lines[0].split()[0] == str(len(tree.trajectories))
    assert all(len(b) - len(b.lstrip()) <= len(a) - len(a.lstrip()) + 2 for a, b in pairwise(lines))


def test_the_example_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[1] / "docs/strategies.md").read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    exec(compile(example, "docs/strategies.md", "exec"), {"__name__": "__main__"})
    assert "start" in capsys.readouterr().out
