"""A made-up run folder in the real layout, to look at reports and to test them.

No model was trained for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from workup import methods
from workup.core.case import Case, Fact, Kind, Truth
from workup.core.episode import (
    Action,
    Completion,
    Ending,
    Episode,
    Message,
    Observation,
    Score,
    Turn,
)
from workup.environments.consultation import Consultation
from workup.metrics.measures import measure
from workup.runs import Record, Run, versions
from workup.runs.settings import Settings, world

# disease → (category, pathognomonic, significant, supportive)
DISEASES: Mapping[str, tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "acute cholecystitis": (
        "digestive",
        ("gallbladder wall thickening",),
        ("Murphy sign", "fever"),
        ("nausea", "leukocytosis"),
    ),
    "acute pancreatitis": (
        "digestive",
        ("lipase three times normal",),
        ("epigastric pain to the back", "vomiting"),
        ("nausea",),
    ),
    "appendicitis": (
        "digestive",
        ("enlarged appendix on ultrasound",),
        ("rebound tenderness", "migrating pain"),
        ("fever", "nausea"),
    ),
    "bacterial pneumonia": (
        "respiratory",
        ("lobar consolidation",),
        ("purulent sputum", "fever"),
        ("cough", "leukocytosis"),
    ),
    "asthma": (
        "respiratory",
        ("reversible obstruction",),
        ("wheeze", "nightly cough"),
        ("cough", "breathlessness"),
    ),
    "pulmonary embolism": (
        "respiratory",
        ("filling defect on CT",),
        ("swollen calf", "sudden onset"),
        ("breathlessness",),
    ),
    "gout": ("joints", ("urate crystals",), ("swollen big toe",), ("fever", "rich meal")),
    "septic arthritis": (
        "joints",
        ("bacteria in joint fluid",),
        ("hot swollen knee", "fever"),
        ("leukocytosis",),
    ),
    "rheumatoid arthritis": (
        "joints",
        ("anti-CCP antibodies",),
        ("morning stiffness", "symmetrical joints"),
        ("fatigue",),
    ),
    "iron deficiency": (
        "blood",
        ("ferritin below 10",),
        ("pale conjunctivae", "brittle nails"),
        ("fatigue", "breathlessness"),
    ),
    "infectious mononucleosis": (
        "blood",
        ("heterophile antibodies",),
        ("swollen neck nodes", "sore throat"),
        ("fatigue", "fever"),
    ),
    "acute leukaemia": (
        "blood",
        ("blasts in the smear",),
        ("bleeding gums",),
        ("fatigue", "fever", "leukocytosis"),
    ),
}
NOISE = (
    "travel abroad",
    "a pet at home",
    "dry skin",
    "cold feet",
    "poor sleep",
    "family history of cataract",
    "hair loss",
)
ANCHORS = ("random doctor", "greedy information", "full information")


WORLD = Consultation(())


@dataclass(frozen=True)
class Skill:
    """How a made-up doctor plays: how many questions, how well chosen, how well read."""

    questions: float
    aim: float
    insight: float
    discipline: float = 0.96


SKILLS = {
    "random doctor": Skill(9.0, 0.3, 0.95, 1.0),
    "warm start": Skill(5.0, 0.7, 0.6, 0.9),
    "trained": Skill(6.0, 1.6, 0.8, 0.98),
    "greedy information": Skill(9.0, 2.2, 1.4, 1.0),
}


@cache
def case(index: int, seed: int = 0) -> Case:
    rng = np.random.default_rng([seed, index])
    name = list(DISEASES)[int(rng.integers(len(DISEASES)))]
    category, hallmark, significant, supportive = DISEASES[name]
    weighted = (
        [(3, item) for item in hallmark]
        + [(2, item) for item in significant]
        + [(1, item) for item in supportive]
    )
    noise = [(0, NOISE[k]) for k in rng.choice(len(NOISE), 3, replace=False)]
    present = [pair for pair in weighted if rng.random() < 0.85] + noise
    facts = tuple(
        Fact(f"{index}.{k}", item, f"{item[0].upper()}{item[1:]}: present.", _kind(weight), weight)
        for k, (weight, item) in enumerate(present)
    )
    sex, age = ("woman" if rng.random() < 0.5 else "man"), int(rng.integers(18, 85))
    presentation = (
        f"A {age}-year-old {sex} has felt unwell for {int(rng.integers(2, 9))} days and comes to "
        "the clinic."
    )
    return Case(
        f"clinic:s/test/{index:04}", presentation, Truth(name, facts=facts), category=category
    )


def _kind(weight: int) -> Kind:
    return {3: Kind.IMAGING, 2: Kind.EXAMINATION}.get(weight, Kind.HISTORY)


def episode(case: Case, skill: Skill, rng: np.random.Generator) -> tuple[Episode, bool]:
    """One encounter, and whether its diagnosis is right."""
    items = {
        item for disease in DISEASES.values() for group in disease[1:] for item in group
    } | set(NOISE)
    facts = {fact.item: fact for fact in case.truth.facts}
    pull = np.array(
        [
            math.exp(skill.aim * (facts[item].weight or 0) * 0.7) if item in facts else 1.0
            for item in sorted(items)
        ]
    )
    count = int(np.clip(rng.normal(skill.questions, 1.2), 1, 10))
    asked = rng.choice(sorted(items), size=count, replace=False, p=pull / pull.sum())
    turns = [_turn(str(item), facts.get(str(item)), rng) for item in asked]
    known = sum(facts[str(item)].weight or 0 for item in asked if str(item) in facts)
    right = bool(
        rng.random() < 1 - (1 - skill.insight * 0.5) * math.exp(-skill.insight * known / 3)
    )
    opening = (
        Message("system", "You are the doctor. One action per turn."),
        Message("user", case.presentation),
    )
    if rng.random() > skill.discipline:
        turns.append(_turn("and so on and so forth", None, rng, kind="malformed"))
        return Episode(case, opening, tuple(turns), Ending.OUT_OF_TURNS), False
    others = [name for name in DISEASES if name != case.truth.diagnosis]
    answer = case.truth.diagnosis if right else str(rng.choice(others))
    said = Completion(f"<diagnose>{answer}</diagnose>", *_tokens(rng))
    turns.append(Turn((1,), said, Action("diagnose", (answer,)), Observation(done=True)))
    return Episode(case, opening, tuple(turns), Ending.DIAGNOSED), right


def _turn(item: str, fact: Fact | None, rng: np.random.Generator, kind: str = "ask") -> Turn:
    reply = fact.text if fact else f"No {item}."
    text = f"<{kind}>{item}</{kind}>" if kind != "malformed" else item
    action = Action(kind, (item,) if kind != "malformed" else (), int(kind == "malformed"))
    observation = Observation(
        (Message("user", reply),), (fact.id,) if fact else (), item if kind != "malformed" else ""
    )
    return Turn((1, 2, 3), Completion(text, *_tokens(rng)), action, observation)


def _tokens(rng: np.random.Generator) -> tuple[tuple[int, ...], tuple[float, ...]]:
    return tuple(rng.integers(5, 200, 4).tolist()), tuple((-rng.exponential(size=4)).tolist())


def score(episode: Episode, right: bool) -> Score:
    """CRAFT's reward in its terms."""
    total = sum(fact.weight or 0 for fact in episode.case.truth.facts)
    found = sum(
        fact.weight or 0 for fact in episode.case.truth.facts if fact.id in episode.discovered
    )
    recall = found / total if total else 0.0
    parts = {
        "α·CR·acc": right * recall,
        "β·acc": 0.5 * right,
        "λ·t/T": -0.1 * len(episode.turns) / 11,
    }
    if episode.ending is not Ending.DIAGNOSED:
        parts["malformed"] = -0.2
    return Score.at_end(episode, sum(parts.values()), **parts)


def record(index: int, doctor: str, sample: int, seed: int, **place: Any) -> Record:
    rng = np.random.default_rng([index, sample, seed, sum(map(ord, doctor))])
    skill = SKILLS[doctor]
    played, right = episode(case(index), skill, rng)
    return Record(
        doctor,
        played,
        sample=sample,
        correct=right,
        score=score(played, right),
        measures=measure(played, right, WORLD),
        **place,
    )


def ceiling(index: int) -> Record:
    """The full-information doctor: it sees the whole record and answers at once."""
    rng = np.random.default_rng([index, 99])
    right = bool(rng.random() < 0.98)
    answer = case(index).truth.diagnosis if right else "gout"
    turn = Turn(
        (),
        Completion(f"<diagnose>{answer}</diagnose>"),
        Action("diagnose", (answer,)),
        Observation(done=True),
    )
    played = Episode(
        case(index), (Message("user", case(index).presentation),), (turn,), Ending.DIAGNOSED
    )
    return Record("full information", played, correct=right, measures=measure(played, right, WORLD))


def training(steps: int, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    for step in range(1, steps // 3 + 1):
        x = 3 * step / steps
        loss = 0.34 + 2.8 * math.exp(-5 * x) + rng.normal(scale=0.02)
        yield {
            "stage": "warm start",
            "step": step,
            "seconds": 0.5,
            "loss": loss,
            "tokens_per_second": 21_000.0,
        }
    for step in range(1, steps + 1):
        x = 1 - math.exp(-3 * step / steps)
        accuracy, recall = (
            0.4 + 0.3 * x + rng.normal(scale=0.03),
            0.3 + 0.4 * x + rng.normal(scale=0.02),
        )
        questions = 5 + 1.1 * x + rng.normal(scale=0.15)
        parts = {
            "α·CR·acc": accuracy * recall,
            "β·acc": 0.5 * accuracy,
            "λ·t/T": -0.1 * (questions + 1) / 11,
            "malformed": -0.02 * (1 - x),
        }
        yield {
            **{
                "stage": "craft",
                "step": step,
                "seconds": 0.25,
                "reward": sum(parts.values()),
                "parts": parts,
            },
            **{
                "accuracy": accuracy,
                "questions": questions,
                "critical": 0.16 + 0.2 * x + rng.normal(scale=0.01),
            },
            **{
                "noise": 0.42 - 0.24 * x + rng.normal(scale=0.015),
                "coverage": 0.35 + 0.2 * x + rng.normal(scale=0.01),
            },
            **{
                "repeats": 0.2 - 0.1 * x,
                "tokens_per_second": 5_400.0 + rng.normal(scale=90),
                "loss": rng.normal(scale=0.01),
            },
            **{
                "kl": 0.02 * x,
                "entropy": 1.6 - 0.9 * x,
                "endings": {"diagnosed": 116 + round(10 * x), "out of turns": 12 - round(10 * x)},
            },
        }


def make(
    path: Path,
    *,
    method: str = "craft",
    steps: int = 300,
    cases: int = 120,
    samples: int = 2,
    anchors: bool = True,
    seed: int = 0,
) -> Run:
    """Write a whole run."""
    own = methods.load(method)
    config = {
        **Settings(method=method, seed=seed, steps=steps).model_dump(mode="json"),
        "environment": world({}, own.environment).config,
        "reward": own.settings().model_dump(mode="json"),
    }
    run = Run.create(
        path,
        config,
        versions(
            {"seed": seed},
            f"workup train {method} --cases clinic:s steps={steps} --out {path.name}",
        ),
    )
    for line in training(steps, np.random.default_rng(seed)):
        run.log({**line, "stage": method if line["stage"] == "craft" else line["stage"]})
    for doctor in (*ANCHORS[: 2 * anchors], "warm start", "trained"):
        place = {"stage": method, "step": steps} if doctor == "trained" else {}
        run.write(
            record(index, doctor, sample, seed, **place)
            for index in range(cases)
            for sample in range(samples)
        )
    if anchors:
        run.write(ceiling(index) for index in range(cases))
    return run
