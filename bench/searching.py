"""What searching costs a rollout: 128 episodes of three searches each.

The baseline has the same searches answered from memory.

Both play the same episodes with the same model (`ward.Interviewer`, which searches for one finding
after another), and read the same evidence: three passages of sixteen words. Ours asks an index
folder of 50,000 passages, opened by memory map; the baseline is told what that one would find, at
once. What differs is retrieval alone, in processor time and in waiting.

The second figure is what names cost that are drawn for every case: the same patients search the
same papers in `clinic:s#renamed,papers` and, as the baseline, in `clinic:s`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from bench.figures import Figure, race
from bench.retrieval import texts, write
from bench.ward import EPISODES, MAX_TOKENS, SIZE, interviewer
from workup.cases import open_source
from workup.cases.clinic import open_clinic
from workup.core.case import Case, Passage, Source
from workup.core.episode import Episode
from workup.environments.base.searching import SEARCH, SearchGrammar
from workup.environments.library import Library, open_library
from workup.models.local import LocalPolicy
from workup.retrieval.index import IndexSettings
from workup.retrieval.index import build as build_index
from workup.rl.rollout import Play, TokenDoctor, ToPlay, play_all

ROUNDS = 3
PASSAGES, SHOWN = 50_000, 16
GRAMMAR = SearchGrammar(subqueries=0, passages=3, passage_tokens=SHOWN)


class Remembered:
    """A `Retriever` that was told every answer beforehand."""

    def __init__(self, found: Mapping[str, Sequence[Passage]]) -> None:
        self.found = found

    async def search(self, query: str, k: int) -> Sequence[Passage]:
        return self.found[query][:k]


def measure() -> list[Figure]:
    torch.set_num_threads(1)
    return [at_no_cost(), renamed()]


def renamed() -> Figure:
    """Its passages are longer in tokens: a made-up name is two, a plain clinic's is one."""
    contestants = {}
    for place in ("clinic:s#renamed,papers", "clinic:s"):
        source = open_source(place)
        shelf = open_library(source, GRAMMAR)
        policy = LocalPolicy(
            *interviewer(source, shelf.phrases, SEARCH, SIZE.model_copy(update={"context": 2048}))
        )
        cases = [source.train[index] for index in range(EPISODES)]
        contestants[place] = partial(play, policy, shelf, cases)
    ours, plain = race(contestants, ROUNDS).values()
    name = f"rollout of {EPISODES} episodes that search a renamed clinic's papers, beside the plain"
    return Figure(name, ours, plain, "s", ours / plain, 1.1, False)


def at_no_cost() -> Figure:
    source = open_clinic("s")
    cases = [source.train[index] for index in range(EPISODES)]
    with TemporaryDirectory() as folder:
        shelf = open_library(source, GRAMMAR, str(index(Path(folder), source)))
        policy = LocalPolicy(
            *interviewer(source, shelf.phrases, SEARCH, SIZE.model_copy(update={"context": 2048}))
        )
        memory = Library(Remembered(asyncio.run(answers(source, shelf))), shelf.record, GRAMMAR)
        if read(play(policy, shelf, cases)) != read(play(policy, memory, cases)):
            raise SystemExit("searching: the two played different episodes")
        contestants = {
            "ours": lambda: play(policy, shelf, cases),
            "remembered": lambda: play(policy, memory, cases),
        }
        seconds = race(contestants, ROUNDS)
    ours, remembered = seconds["ours"], seconds["remembered"]
    name = f"rollout of {EPISODES} episodes that search, beside evidence at no cost"
    return Figure(name, ours, remembered, "s", ours / remembered, 1.1, False)


def index(folder: Path, source: Source) -> Path:
    """Passages of made-up words, each about one of the source's items.

    The first items come more often than the last.
    """
    names = [item.name for item in source.items]
    mass = 1 / np.arange(1, len(names) + 1)
    about = np.random.default_rng(0).choice(names, PASSAGES, p=mass / mass.sum())
    write(
        folder / "corpus.jsonl",
        (f"{name} {text}" for name, text in zip(about, texts(PASSAGES), strict=True)),
    )
    build_index(
        [folder / "corpus.jsonl"], folder / "index", IndexSettings(tokens=1000, language="none")
    )
    return folder / "index"


async def answers(source: Source, shelf: Library) -> dict[str, Sequence[Passage]]:
    names = [item.name for item in source.items]
    return dict(
        zip(
            names,
            await asyncio.gather(
                *(shelf.retriever.search(name, GRAMMAR.passages) for name in names)
            ),
            strict=True,
        )
    )


def play(policy: LocalPolicy, library: Library, cases: Sequence[Case]) -> list[Episode]:
    policy.refresh()
    jobs = [ToPlay(case, key) for key, case in enumerate(cases)]
    return asyncio.run(
        play_all(jobs, library, TokenDoctor(policy), Play(temperature=1.0, max_tokens=MAX_TOKENS))
    )


def read(episodes: Sequence[Episode]) -> list[list[str]]:
    return [[m.content for turn in e.turns for m in turn.observation.messages] for e in episodes]
