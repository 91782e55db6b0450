"""A small world written by hand, with exact inference, and how to play in it; for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from workup.cases.knowledge import Categorical, TabularKnowledge
from workup.core.case import Case, Fact, Item, Kind, Source, Truth
from workup.core.episode import Completion, Ending, Episode, Message, Turn
from workup.core.ports import Act, Doctor, Environment, Sampling
from workup.core.stages import Method
from workup.rl.rollout import Play, ToPlay, rollout
from workup.runs.settings import world

DISEASES = ("Flu", "Pneumonia", "Pancreatitis")
ITEMS = (
    Item("fever", "Do you have a fever?", "No fever."),
    Item("cough", "Do you cough?", "No cough.", cost=2.0),
    Item("sputum", "Is there sputum?", "A dry cough.", parent="cough"),
    Item("crackles", "What is heard over the lungs?", "Clear lungs.", Kind.EXAMINATION),
    Item("lipase", "Is lipase raised?", "Normal lipase.", Kind.LABORATORY),
    Item("chest film", "What does the chest film show?", "A clear film.", Kind.IMAGING),
    Item("hobby", "Have you a hobby?", "No hobby."),
)
POSITIVE = {
    "fever": (0.9, 0.8, 0.3),
    "cough": (0.7, 0.9, 0.05),
    "sputum": (0.1, 0.8, 0.1),
    "crackles": (0.02, 0.7, 0.1),
    "lipase": (0.01, 0.01, 0.95),
    "chest film": (0.01, 0.95, 0.05),
    "hobby": (0.4, 0.4, 0.4),
}
KNOWLEDGE = TabularKnowledge(
    DISEASES,
    (0.5, 0.3, 0.2),
    [
        Categorical(
            item.name,
            ((), (item.name,)),
            np.array([(1 - p, p) for p in POSITIVE[item.name]]),
            item.parent,
        )
        for item in ITEMS
    ],
)


def fact(name: str, weight: int | None = None) -> Fact:
    return Fact(name, name, f"Yes: {name}.", weight=weight)


def case(number: int, diagnosis: str, *facts: Fact, given: tuple[Fact, ...] = ()) -> Case:
    return Case(
        f"case-{number}", f"Patient {number} is unwell.", Truth(diagnosis, facts=facts), given=given
    )


CASES = (
    case(1, "Flu", fact("fever", 2), fact("cough", 1), fact("hobby", 0)),
    case(
        2,
        "Pneumonia",
        fact("sputum", 2),
        fact("crackles", 3),
        fact("chest film", 3),
        given=(fact("cough"),),
    ),
    case(3, "Pancreatitis", fact("lipase", 3), fact("hobby", 0)),
    case(4, "Flu"),
)
SOURCE = Source("handmade", CASES, CASES, ITEMS, DISEASES, knowledge=KNOWLEDGE)


def opened(method: Method, **changes: object) -> Environment:
    """The method's environment over `SOURCE`, with `changes` of its settings."""
    return world(changes, method.environment).open(SOURCE)


class Script:
    """A doctor that says its lines one after the other, each as two tokens."""

    def __init__(self, *lines: str) -> None:
        self.lines = lines

    async def act(
        self, case: Case, opening: Sequence[Message], past: Sequence[Turn], sampling: Sampling
    ) -> Act:
        return Act((1,), Completion(self.lines[len(past) % len(self.lines)], (2, 3), (-0.5, -0.5)))


def play(doctor: Doctor, environment: Environment, case: Case, key: int = 0) -> Episode:
    episode = asyncio.run(rollout(ToPlay(case, key), environment, doctor, Play()))
    assert episode.ending is not Ending.FAILED, episode.reason
    return episode
