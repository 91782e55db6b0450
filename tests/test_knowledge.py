"""Exact inference against enumeration of the whole joint table."""

from itertools import combinations, product
from time import process_time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workup.cases.knowledge import (
    EXACT_FEATURES,
    FLOOR,
    Categorical,
    MultiLabel,
    TabularKnowledge,
    grade,
)
from workup.core.case import Knowledge

NAMES = ("asthma", "gout", "measles")


class World:
    """The oracle: every joint assignment of answers, profile by profile, in a dictionary."""

    def __init__(self, knowledge, tables, prior, profiles):
        self.knowledge, self.tables, self.profiles = knowledge, tables, profiles
        self.joint = {}
        for profile, weight in enumerate(np.asarray(prior) / np.sum(prior)):
            for assignment in self._assignments(profile, list(tables)):
                answers, chance = assignment
                key = (profile, tuple(sorted(answers.items())))
                self.joint[key] = weight * chance

    def _assignments(self, profile, tables):
        """Parents stand before their children in `tables`."""
        partial = [({}, 1.0)]
        for table in tables:
            grown = []
            for answers, chance in partial:
                if table.parent is not None and answers[table.parent] == normal_of(
                    self._table(table.parent)
                ):
                    options = [(normal_of(table), 1.0)]
                else:
                    options = row_of(table, profile)
                grown += [(answers | {table.item: answer}, chance * p) for answer, p in options]
            partial = grown
        return partial

    def _table(self, item):
        return next(table for table in self.tables if table.item == item)

    def mass(self, evidence, diagnosis=None):
        return sum(
            chance
            for (profile, answers), chance in self.joint.items()
            if evidence.items() <= dict(answers).items()
            and diagnosis in (None, self.profiles[profile])
        )

    def posterior(self, evidence):
        values = np.array([self.mass(evidence, d) for d in range(len(NAMES))])
        return values / values.sum()

    def gain(self, evidence, item):
        now, total = self.posterior(evidence), self.mass(evidence)
        left = 0.0
        answers = (
            {dict(answers)[item] for _, answers in self.joint}
            if item not in evidence
            else {evidence[item]}
        )
        for answer in answers:
            if (mass := self.mass(evidence | {item: answer})) > 0:
                left += mass / total * entropy(self.posterior(evidence | {item: answer}))
        return entropy(now) - left

    def ratio(self, item, answer, diagnosis, evidence):
        found = evidence | {item: answer}
        mine = self.mass(found, diagnosis) / self.mass(evidence, diagnosis)
        others = [d for d in range(len(NAMES)) if d != diagnosis]
        return mine / (
            sum(self.mass(found, d) for d in others) / sum(self.mass(evidence, d) for d in others)
        )


def entropy(p):
    return -sum(x * np.log(x) for x in p if x > 0)


def normal_of(table):
    return table.answers[0] if isinstance(table, Categorical) else ()


def row_of(table, profile):
    if isinstance(table, Categorical):
        return list(zip(table.answers, table.likelihood[profile], strict=True))
    rows = []
    for size in range(len(table.features) + 1):
        for subset in combinations(table.features, size):
            p = table.probability[profile]
            terms = [p[i] if f in subset else 1 - p[i] for i, f in enumerate(table.features)]
            rows.append((subset, float(np.prod(terms))))
    return rows


@st.composite
def worlds(draw):
    """Worlds of five items and four profiles.

    The items are two roots, a sub-question, a multi-label sub-question and a sub-sub-question.
    """
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    profiles = [0, 1, 2, 1]

    def rows(n):
        return rng.dirichlet(np.ones(n), size=4) * 0.96 + 0.04 / n

    tables = [
        Categorical("pain", ((), ("mild",), ("severe",)), rows(3)),
        Categorical("sex", (("male",), ("female",)), rows(2)),
        MultiLabel("where", ("arm", "leg"), rng.uniform(0.05, 0.95, (4, 2)), parent="pain"),
        Categorical("worse at night", (("night:no",), ("night:yes",)), rows(2), parent="pain"),
        Categorical("wakes up", ((), ("wakes",)), rows(2), parent="worse at night"),
    ]
    prior = rng.uniform(0.2, 2, 4)
    order = list(rng.permutation(5))
    knowledge = TabularKnowledge(NAMES, prior, [tables[i] for i in order], profiles)
    return World(knowledge, tables, prior, profiles)


def evidences(draw, world, most=4):
    """Part of an assignment that can occur."""
    possible = [dict(answers) for (_, answers), chance in world.joint.items() if chance > 0]
    chosen = possible[draw(st.integers(0, len(possible) - 1))]
    items = draw(st.lists(st.sampled_from(sorted(chosen)), unique=True, max_size=most))
    return {item: chosen[item] for item in items}


@settings(max_examples=40, deadline=None)
@given(st.data(), worlds())
def test_posterior_equals_enumeration(data, world):
    evidence = evidences(data.draw, world, most=5)
    assert world.knowledge.posterior(evidence) == pytest.approx(world.posterior(evidence), abs=1e-4)


@settings(max_examples=25, deadline=None)
@given(st.data(), worlds())
def test_gain_equals_enumeration(data, world):
    evidence = evidences(data.draw, world)
    items = [table.item for table in world.tables]
    gains = world.knowledge.gains(evidence, items)
    assert gains == pytest.approx([world.gain(evidence, item) for item in items], abs=1e-4)
    assert min(gains) >= 0


@settings(max_examples=40, deadline=None)
@given(st.data(), worlds())
def test_likelihood_ratio_equals_enumeration(data, world):
    evidence = evidences(data.draw, world, most=3)
    possible = [
        dict(answers) for (_, answers) in world.joint if evidence.items() <= dict(answers).items()
    ]
    findings = possible[data.draw(st.integers(0, len(possible) - 1))]
    diagnosis = data.draw(st.integers(0, 2))
    ratios = world.knowledge.likelihood_ratios(findings, NAMES[diagnosis], evidence)
    for (item, answer), ratio in zip(findings.items(), ratios, strict=True):
        assert ratio == pytest.approx(world.ratio(item, answer, diagnosis, evidence), rel=1e-3)


@settings(max_examples=20, deadline=None)
@given(worlds())
def test_a_positive_subanswer_says_all_that_its_parent_would(world):
    """That the pain sits in the leg says that there is pain; which pain is mixed over."""
    posterior = world.knowledge.posterior({"where": ("leg",)})
    mixed = sum(world.mass({"where": ("leg",), "pain": (kind,)}) for kind in ("mild", "severe"))
    assert world.mass({"where": ("leg",)}) == pytest.approx(mixed)
    assert posterior == pytest.approx(world.posterior({"where": ("leg",)}), abs=1e-4)


@settings(max_examples=20, deadline=None)
@given(worlds())
def test_below_a_normal_answer_nothing_informs(world):
    alone = world.knowledge.posterior({"pain": ()})
    for below in (
        {"where": ()},
        {"where": ("leg",)},
        {"worse at night": ("night:yes",), "wakes up": ("wakes",)},
    ):
        assert world.knowledge.posterior({"pain": ()} | below) == pytest.approx(alone)
    assert world.knowledge.gains(
        {"pain": ()}, ["where", "worse at night", "wakes up"]
    ) == pytest.approx([0, 0, 0])


def wide(features, rng, parent=None):
    return MultiLabel("where", features, rng.uniform(0.01, 0.6, (3, len(features))), parent=parent)


@pytest.mark.long
@pytest.mark.parametrize("parent", [None, "pain"])
def test_sampled_gain_approaches_enumeration(parent):
    rng = np.random.default_rng(4)
    features = tuple("abcdefgh")
    assert len(features) > EXACT_FEATURES
    pain = Categorical("pain", ((), ("pain",)), np.array([[0.3, 0.7], [0.6, 0.4], [0.9, 0.1]]))
    table = wide(features, rng, parent)
    knowledge = TabularKnowledge(NAMES, [1, 1, 1], [pain, table])
    world = World(knowledge, [pain, table], [1, 1, 1], [0, 1, 2])
    for evidence in ({}, {"pain": ("pain",)}):
        gain = knowledge.gains(evidence, ["where"])[0]
        assert gain == pytest.approx(world.gain(evidence, "where"), abs=0.02)
        assert gain == knowledge.gains(evidence, ["where"])[0]


def test_drawn_answers_follow_their_table_given_that_they_are_not_empty():
    table = wide(("a", "b", "c"), np.random.default_rng(1))
    drawn = table.draw(np.full(20_000, 2), np.random.default_rng(0))
    assert drawn.any(1).all()
    p = table.probability[2]
    assert drawn.mean(0) == pytest.approx(p / (1 - np.prod(1 - p)), abs=0.015)


def two():
    first = Categorical("fever", ((), ("fever",)), np.array([[0.0, 1.0], [1.0, 0.0], [0.5, 0.5]]))
    second = MultiLabel("rash", ("red", "raised"), np.array([[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]]))
    return TabularKnowledge(NAMES, [1, 2, 1], [first, second])


def test_never_seen_answers_get_the_floor_and_stay_finite():
    knowledge = two()
    never = knowledge.posterior({"fever": (), "rash": ("red",)})
    assert np.isfinite(never).all()
    assert sum(never) == pytest.approx(1)
    assert 0 < never[0] < 10 * FLOOR
    assert knowledge.posterior({"fever": ("of another table",)}) == pytest.approx([0.25, 0.5, 0.25])
    fever = {"fever": ("fever",)}
    assert knowledge.likelihood_ratios(fever, "asthma", {}) == pytest.approx([6], rel=1e-3)
    assert np.isfinite(knowledge.likelihood_ratios(fever, "measles", {"fever": ()})).all()
    assert knowledge.gains({"fever": ()}, ["fever"]) == pytest.approx([0])


def test_order_of_ids_does_not_matter():
    knowledge = two()
    both = knowledge.posterior({"rash": ("red", "raised")})
    assert knowledge.posterior({"rash": ("raised", "red")}) == pytest.approx(both)


def test_criticality_has_the_usual_thresholds():
    assert [grade(r) for r in (0.1, 1.99, 2, 4.99, 5, 9.99, 10, 1e9)] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_one_diagnosis_is_told_from_nothing():
    table = Categorical("fever", ((), ("fever",)), np.array([[0.2, 0.8]]))
    knowledge = TabularKnowledge(["gout"], [1], [table])
    assert knowledge.likelihood_ratios({"fever": ("fever",)}, "gout", {}) == [1]
    assert list(knowledge.posterior({"fever": ()})) == [1]


def test_unknown_names_are_named():
    knowledge = two()
    with pytest.raises(KeyError, match="cough"):
        knowledge.posterior({"cough": ()})
    with pytest.raises(KeyError, match="cough"):
        knowledge.gains({}, ["cough"])
    with pytest.raises(KeyError, match="flu"):
        knowledge.likelihood_ratios({"fever": ()}, "flu", {})


def test_tables_that_do_not_fit_are_refused():
    fits = np.array([[0.5, 0.5], [0.5, 0.5]])
    with pytest.raises(ValueError, match="sum to 1"):
        Categorical("x", ((), ("x",)), fits + 0.1)
    with pytest.raises(ValueError, match="two answers"):
        Categorical("x", ((),), np.ones((2, 1)))
    with pytest.raises(ValueError, match="twice"):
        Categorical("x", (("x",), ("x",)), fits)
    with pytest.raises(ValueError, match="within"):
        MultiLabel("x", ("a", "b"), fits + 1)
    good = Categorical("x", ((), ("x",)), fits)
    for arguments in (
        (["a"], [1], [good]),
        (["a", "b"], [1, 0], [good]),
        (["a", "a"], [1, 1], [good]),
        (["a", "b"], [1, 1], [good, good]),
        (["a", "b"], [1, 1], [good], [0, 0]),
        (["a", "b"], [1, 1], [Categorical("x", good.answers, fits, parent="y")]),
        (["a", "b"], [1, 1], [Categorical("x", good.answers, fits, parent="x")]),
    ):
        with pytest.raises(ValueError):
            TabularKnowledge(*arguments)


def test_it_is_a_knowledge_and_fast():
    rng = np.random.default_rng(0)
    tables = [
        Categorical(
            f"item {i}",
            ((), (f"{i}",)),
            np.stack([p := rng.uniform(0.01, 0.99, 60), 1 - p], axis=1),
        )
        for i in range(160)
    ]
    knowledge: Knowledge = TabularKnowledge(
        [f"disease {d}" for d in range(60)], np.ones(60), tables
    )
    evidence = {f"item {i}": () for i in range(10)}
    items = [f"item {i}" for i in range(160)]
    times = []
    for _ in range(20):
        start = process_time()
        knowledge.gains(evidence, items)
        times.append(process_time() - start)
    assert min(times) < 0.01, (
        "2 ms on a free core; ten would mean that a loop over profiles crept in"
    )
    greedy = max(product(knowledge.gains(evidence, items), items))
    assert greedy[0] > 0
