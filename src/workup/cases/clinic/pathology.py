"""The pathology wing: tumours, how they present and look, and how often each marker is positive.

`tumours.csv` describes each tumour and how its cases present (percentages), `tumour_features.csv`
words what a presentation states, `markers.csv` lists the stains and molecular tests,
`marker_rates.csv` holds P(marker positive | tumour). The tables are written from general knowledge,
to be read and corrected by a pathologist; they are a test bench, not medicine.

Given the tumour, everything is independent: the six things that a presentation states, and every
marker. Which wording is used is drawn independently of the tumour, so that no phrasing gives it
away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain

import numpy as np

from workup.cases.clinic.patients import SIDES, TEST, TRAIN, evidence_id, weighed
from workup.cases.clinic.tables import SEXES, parts, rows, shares
from workup.cases.knowledge import Array, Categorical, TabularKnowledge
from workup.core.case import Case, Fact, Item, Kind, Source, Truth, evidence_of
from workup.core.channel import Answer
from workup.core.lazy import Lazy

DIFFERENTIALS = 5
"""How many reference differentials a case lists."""

AGES: Mapping[str, tuple[int, ...]] = {
    "child": (4, 9, 14),
    "young adult": (22, 28, 35),
    "middle age": (45, 52, 58),
    "older age": (66, 73, 79),
}
"""Age groups, each with its ages in years; the ages of one group are equally likely."""

_NOUNS = {
    ("male", True): "boy",
    ("female", True): "girl",
    ("male", False): "man",
    ("female", False): "woman",
}
_HISTORY, _MICROSCOPY = "Clinical history:", "Microscopy:"
_STAINS = ("nuclear", "cytoplasmic", "membranous")
# staining → the wording of a negative result, and every wording of a positive one; the marker's
# name comes before it
_WORDINGS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    **{
        place: (
            "negative, no staining of the tumor cells.",
            (
                f"positive, diffuse {place} staining.",
                f"positive, strong {place} staining in most cells.",
                f"positive, patchy {place} staining.",
            ),
        )
        for place in _STAINS
    },
    "proliferation": (
        "low, fewer than half of the tumor cells are labelled.",
        (
            "high, more than half of the tumor cells are labelled.",
            "high, most tumor cells are labelled.",
        ),
    ),
    "loss": (
        "expression is retained.",
        ("expression is lost in the tumor cells.", "loss of nuclear expression."),
    ),
    "restriction": ("not demonstrated.", ("restricted to kappa.", "restricted to lambda.")),
    "hybridization": (
        "negative, no signal in the tumor cells.",
        ("positive, nuclear signal in most tumor cells.", "positive, distinct nuclear signal."),
    ),
    "gene": ("not detected.", ("detected.", "present in the tumor cells.")),
}


@dataclass(frozen=True, slots=True)
class Tumour:
    """One row of `tumours.csv`.

    `organ` is where it arises; `sex` is "male", "female" or "" (any); `family` its line of
    differentiation; `prevalence` a weight on any positive scale. `shares[group][value]` is P(value
    | tumour) of what its presentations state.
    """

    name: str
    code: str
    synonyms: tuple[str, ...]
    organ: str
    sex: str
    family: str
    prevalence: float
    shares: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Marker:
    """One row of `markers.csv`: an immunohistochemical stain or a molecular test.

    It has the wording of its results.
    """

    name: str
    synonyms: tuple[str, ...]
    staining: str
    cost: float

    @property
    def negative(self) -> str:
        return f"{self.name}: {_WORDINGS[self.staining][0]}"

    @property
    def positives(self) -> tuple[Fact, ...]:
        """A positive result in each of its wordings, without a criticality weight."""
        id, wordings = evidence_id(self.name, "positive"), _WORDINGS[self.staining][1]
        return tuple(
            Fact(id, self.name, f"{self.name}: {wording}", Kind.LABORATORY) for wording in wordings
        )

    @property
    def molecular(self) -> bool:
        return self.staining in ("gene", "hybridization")

    @property
    def item(self) -> Item:
        method = "Molecular test" if self.molecular else "Immunohistochemistry"
        question = f"{method} for {self.name} ({', '.join(self.synonyms)})"
        return Item(
            self.name, question, self.negative, Kind.LABORATORY, None, self.cost, self.synonyms
        )


@cache
def _sentences() -> Mapping[str, Mapping[str, tuple[str, ...]]]:
    """group → value → its wordings, as in `tumour_features.csv`."""
    groups: dict[str, dict[str, tuple[str, ...]]] = {}
    for row in rows("tumour_features.csv"):
        groups.setdefault(row["group"], {})[row["value"]] = parts(row["sentences"])
    return groups


@cache
def groups() -> Mapping[str, tuple[str, ...]]:
    """Group → its values; a presentation states one value of each group.

    The groups are sex, age group, specimen, architecture, detail and history.
    """
    return {
        "sex": SEXES,
        "age": tuple(AGES),
        **{group: tuple(values) for group, values in _sentences().items()},
    }


@cache
def tumours() -> tuple[Tumour, ...]:
    """The tumours, in the order of the table."""
    found = []
    for row in rows("tumours.csv"):
        female = float(row["female"])
        found.append(
            Tumour(
                name=row["name"],
                code=row["code"],
                synonyms=parts(row["synonyms"]),
                organ=row["organ"],
                sex={0.0: "male", 1.0: "female"}.get(female, ""),
                family=row["family"],
                prevalence=float(row["prevalence"]),
                shares={
                    "sex": {"male": 1 - female, "female": female},
                    **{group: shares(row[group]) for group in ("age", *_sentences())},
                },
            )
        )
    return tuple(found)


@cache
def markers() -> tuple[Marker, ...]:
    """The stains and molecular tests, in the order of the table."""
    return tuple(
        Marker(row["name"], parts(row["synonyms"]), row["staining"], float(row["cost"]))
        for row in rows("markers.csv")
    )


@cache
def rates() -> Array:
    """P(marker positive | tumour), tumours × markers, within (0, 1)."""
    of = {row["tumour"]: row for row in rows("marker_rates.csv")}
    table = np.array(
        [[float(of[tumour.name][marker.name]) for marker in markers()] for tumour in tumours()]
    )
    table.setflags(write=False)
    return table


@cache
def _prior() -> Array:
    weights = np.array([tumour.prevalence for tumour in tumours()])
    return np.asarray(weights / weights.sum())


def _feature_table(group: str, values: Sequence[str]) -> Categorical:
    answers = tuple((evidence_id(group, value),) for value in values)
    likelihood = np.array(
        [[tumour.shares[group].get(value, 0.0) for value in values] for tumour in tumours()]
    )
    return Categorical(group, answers, likelihood)


@cache
def knowledge() -> TabularKnowledge:
    """The generative model of the wing's cases.

    The presentation's statements are items too, so that they count as evidence.
    """
    tables = [_feature_table(group, values) for group, values in groups().items()]
    for marker, rate in zip(markers(), rates().T, strict=True):
        answers: tuple[Answer, ...] = ((), (evidence_id(marker.name, "positive"),))
        tables.append(Categorical(marker.name, answers, np.stack([1 - rate, rate], axis=1)))
    return TabularKnowledge([tumour.name for tumour in tumours()], _prior(), tables)


def _person(sex: str, age: int) -> str:
    return f"The patient is a {age}-year-old {_NOUNS[sex, age < 18]}."


def _values(tumour: Tumour, rng: np.random.Generator) -> dict[str, str]:
    """One value per group, drawn from the tumour's shares."""
    chances = {
        group: [tumour.shares[group].get(value, 0.0) for value in values]
        for group, values in groups().items()
    }
    return {
        group: groups()[group][rng.choice(len(chance), p=chance)]
        for group, chance in chances.items()
    }


def _given(values: Mapping[str, str], rng: np.random.Generator) -> tuple[Fact, ...]:
    """The facts that the presentation states, worded."""
    person = _person(values["sex"], int(rng.choice(AGES[values["age"]])))
    texts = {"sex": person, "age": person}
    texts |= {
        group: str(rng.choice(wordings[values[group]])) for group, wordings in _sentences().items()
    }
    kinds = dict.fromkeys(("sex", "age", "history"), Kind.HISTORY)
    return tuple(
        Fact(evidence_id(group, value), group, texts[group], kinds.get(group, Kind.PROCEDURE))
        for group, value in values.items()
    )


def _presentation(given: Sequence[Fact]) -> str:
    """Two lines of fixed phrases: the history, then what the microscope shows."""
    text = {fact.item: fact.text for fact in given}
    history = f"{_HISTORY} {text['sex']} {text['specimen']} {text['history']}"
    return f"{history}\n{_MICROSCOPY} {text['architecture']} {text['detail']}"


def _results(tumour: int, rng: np.random.Generator) -> tuple[Fact, ...]:
    """The positive results of one patient."""
    positive = np.flatnonzero(rng.random(len(markers())) < rates()[tumour])
    wording = rng.random(len(markers()))
    reports = ((markers()[place].positives, wording[place]) for place in map(int, positive))
    return tuple(facts[int(choice * len(facts))] for facts, choice in reports)


def _differentials(diagnosis: int, evidence: Mapping[str, Answer]) -> tuple[str, ...]:
    """The most probable other tumours given the presentation, by the exact posterior."""
    posterior = np.asarray(knowledge().posterior(evidence))
    nearest = [place for place in np.argsort(-posterior, kind="stable") if place != diagnosis]
    return tuple(tumours()[place].name for place in nearest[:DIFFERENTIALS])


def _case(split: int, side: str, index: int) -> Case:
    rng = np.random.default_rng([split, SIDES.index(side), index])
    place = int(rng.choice(len(tumours()), p=_prior()))
    tumour = tumours()[place]
    given = _given(_values(tumour, rng), rng)
    results = _results(place, rng)
    presentation = _presentation(given)
    text = {fact.item: fact.text for fact in results}
    truth = Truth(
        diagnosis=tumour.name,
        codes=(tumour.code,),
        aliases=tumour.synonyms,
        differentials=_differentials(place, evidence_of(given)),
        facts=weighed(knowledge(), results, tumour.name, given),
        record="\n".join(
            [presentation, *(text.get(marker.name, marker.negative) for marker in markers())]
        ),
    )
    id = _id(split, side, index)
    return Case(id, presentation, truth, given=given, category=tumour.family)


def _id(split: int, side: str, index: int) -> str:
    return f"clinic:pathology:{split}:{side}:{index}"


def _phrases() -> tuple[str, ...]:
    persons = (_person(sex, age) for sex in SEXES for ages in AGES.values() for age in ages)
    stated = chain.from_iterable(
        wordings for values in _sentences().values() for wordings in values.values()
    )
    reports = chain.from_iterable(
        (m.name, m.negative, *(fact.text for fact in m.positives)) for m in markers()
    )
    names = (tumour.name for tumour in tumours())
    return tuple(dict.fromkeys([_HISTORY, _MICROSCOPY, *names, *persons, *stated, *reports]))


def open_pathology(split: int = 0) -> Source:
    """The source `clinic:pathology`: tumours to tell apart by ordering markers.

    A history and a microscopy come first.
    """
    return Source(
        name="clinic:pathology",
        train=Lazy(TRAIN, partial(_case, split, "train"), id_of=partial(_id, split, "train")),
        test=Lazy(TEST, partial(_case, split, "test"), id_of=partial(_id, split, "test")),
        items=tuple(marker.item for marker in markers()),
        diagnoses=tuple(tumour.name for tumour in tumours()),
        phrases=_phrases(),
        knowledge=knowledge(),
        base="clinic",
        notes=(
            (
                "Synthetic patients, drawn from tables written from general knowledge: a test "
                "bench, not medicine."
            ),
            (
                "Given the tumour, markers are independent of each other and of the "
                "presentation, unlike in life."
            ),
        ),
    )
