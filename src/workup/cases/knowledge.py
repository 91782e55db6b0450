"""Exact inference in a table of P(answer | profile): posterior, information gain, criticality.

A profile is one row of the tables: a disease, or one variant of it. Given the profile, items answer
independently of each other, except sub-questions. A disease with inner structure ("two of three
criteria") is a mixture of several profiles, so that every quantity stays exact by summing over
profiles.

A sub-question has a `parent`. If the parent's answer is positive (anything but its normal answer),
the sub-question is drawn from its own table. If it is normal, the sub-question's answer is its
normal one with certainty. Items thus form trees. Evidence anywhere in a tree is weighed by one pass
of sum-product over it: with the parent unknown, a positive sub-answer implies a positive parent,
and a normal one mixes "parent normal" with "parent positive, but not this". A positive sub-answer
below an ancestor known to be normal contradicts it and is ignored: nothing below a normal answer
carries information.

Evidence on an item is certain, or it is all that was `heard` of it from a noisy patient
(`workup.core.channel`). The latter enters as P(said | answer), so that the item's true answer is
summed over (`HeardKnowledge`).

Arrays are answers × profiles, in natural logarithms if named `log`.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workup.core.case import Case
from workup.core.channel import Answer, Channel, Statement, heard, settled, statements

Array = NDArray[np.float64]
Evidence = Mapping[str, Answer]

FLOOR = 1e-6
"""The least probability of an answer: no answer is impossible.

Table entries are raised to it, and an answer that is in no table has it for every disease."""

EXACT_FEATURES = 6
"""The gain of a multi-label item with at most so many features n is summed over all 2^n answers.

With more features it is sampled."""

DRAWS = 512
"""Answers drawn per sampled gain: stratified over profiles and seeded by the item's name."""

LEAST = 1e-300
"""The least P(said | answer) whose logarithm is taken."""

THRESHOLDS = (2.0, 5.0, 10.0)
"""Likelihood ratios from which a finding is supportive (1), significant (2), pathognomonic (3).

These are the usual steps of evidence-based medicine: small, moderate and conclusive shift."""


def grade(ratio: float) -> int:
    """Criticality ψ ∈ {0, 1, 2, 3} of a finding with this likelihood ratio (CR-4)."""
    return bisect_right(THRESHOLDS, ratio)


@dataclass(frozen=True, eq=False)
class Categorical:
    """An item with exactly one of several answers; `answers[0]` is the normal one, often `()`.

    `likelihood` is profiles × answers, rows sum to 1. Raises ValueError if it is not.
    """

    item: str
    answers: tuple[Answer, ...]
    likelihood: Array
    parent: str | None = None

    def __post_init__(self) -> None:
        if (
            self.likelihood.ndim != 2
            or self.likelihood.shape[1] != len(self.answers)
            or len(self.answers) < 2
        ):
            raise ValueError(
                f"'{self.item}': likelihood must be profiles × answers, with two answers or more"
            )
        if (self.likelihood < 0).any() or not np.allclose(self.likelihood.sum(1), 1, atol=1e-6):
            raise ValueError(
                f"'{self.item}': every profile's likelihood must be non-negative and sum to 1"
            )
        if len(self._row) != len(self.answers):
            raise ValueError(f"'{self.item}': an answer stands twice")

    @cached_property
    def _row(self) -> dict[frozenset[str], int]:
        return {frozenset(answer): row for row, answer in enumerate(self.answers)}

    @cached_property
    def _log(self) -> Array:
        raised = np.maximum(self.likelihood.T, FLOOR)
        return np.asarray(np.log(raised / raised.sum(0)))

    @property
    def profiles(self) -> int:
        return len(self.likelihood)

    @property
    def outcomes(self) -> tuple[Answer, ...]:
        """All answers, the normal one first."""
        return self.answers

    def row(self, answer: Answer) -> int | None:
        """The answer's place in `outcomes`, None if it has none."""
        return self._row.get(frozenset(answer))

    def is_normal(self, answer: Answer) -> bool:
        return self.row(answer) == 0

    def log_likelihood(self, answer: Answer) -> Array:
        """log P(answer | profile, parent positive), one per profile."""
        row = self.row(answer)
        return np.asarray(np.full(self.profiles, np.log(FLOOR)) if row is None else self._log[row])

    @cached_property
    def log_normal(self) -> Array:
        return np.asarray(self._log[0])

    @cached_property
    def log_positive(self) -> Array:
        return np.asarray(np.log(-np.expm1(self._log[0])))


@dataclass(frozen=True, eq=False)
class MultiLabel:
    """An item whose answer is any subset of `features`; `()` is normal.

    Features are independent of each other given the profile. `probability` is profiles × features,
    within [0, 1]. Raises ValueError if it is not.
    """

    item: str
    features: tuple[str, ...]
    probability: Array
    parent: str | None = None

    def __post_init__(self) -> None:
        if (
            self.probability.ndim != 2
            or self.probability.shape[1] != len(self.features)
            or not self.features
        ):
            raise ValueError(
                f"'{self.item}': probability must be profiles × features, with one feature or more"
            )
        if (self.probability < 0).any() or (self.probability > 1).any():
            raise ValueError(f"'{self.item}': every probability must lie within [0, 1]")
        if len(set(self.features)) != len(self.features):
            raise ValueError(f"'{self.item}': a feature stands twice")

    @cached_property
    def chance(self) -> Array:
        """P(feature | profile), features × profiles, kept off 0 and 1."""
        return np.asarray(np.clip(self.probability.T, FLOOR, 1 - FLOOR))

    @cached_property
    def _column(self) -> dict[str, int]:
        return {feature: column for column, feature in enumerate(self.features)}

    @property
    def profiles(self) -> int:
        return len(self.probability)

    @cached_property
    def outcomes(self) -> tuple[Answer, ...]:
        """All answers, the normal one first; empty where they are too many to list."""
        if len(self.features) > EXACT_FEATURES:
            return ()
        return tuple(
            answer
            for size in range(len(self.features) + 1)
            for answer in combinations(self.features, size)
        )

    @cached_property
    def _row(self) -> dict[frozenset[str], int]:
        return {frozenset(answer): row for row, answer in enumerate(self.outcomes)}

    def row(self, answer: Answer) -> int | None:
        """The answer's place in `outcomes`, None if it has none."""
        return self._row.get(frozenset(answer))

    def is_normal(self, answer: Answer) -> bool:
        return not answer

    def log_likelihood(self, answer: Answer) -> Array:
        """log P(answer | profile, parent positive), one per profile."""
        known = [
            self._column[feature] for feature in dict.fromkeys(answer) if feature in self._column
        ]
        strange = len(set(answer)) - len(known)
        odds = np.log(self.chance[known]) - np.log1p(-self.chance[known])
        return np.asarray(self.log_normal + odds.sum(0) + strange * np.log(FLOOR))

    @cached_property
    def log_normal(self) -> Array:
        return np.asarray(np.log1p(-self.chance).sum(0))

    @cached_property
    def log_positive(self) -> Array:
        return np.asarray(np.log(-np.expm1(self.log_normal)))

    def draw(self, profiles: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.bool_]:
        """One non-empty answer for each of `profiles`: draws × features."""
        chance = self.chance[:, profiles]
        # P(any feature from this one on): the draw is conditional on at least one feature, so while
        # none is drawn yet, each feature's probability is divided by this
        rest = -np.expm1(np.cumsum(np.log1p(-chance[::-1]), axis=0)[::-1])
        drawn = np.zeros(chance.shape, dtype=np.bool_)
        found = np.zeros(len(profiles), dtype=np.bool_)
        for feature, uniform in enumerate(rng.random(chance.shape)):
            drawn[feature] = uniform < np.where(
                found, chance[feature], chance[feature] / rest[feature]
            )
            found |= drawn[feature]
        return drawn.T


Table = Categorical | MultiLabel


def _entropies(joint: Array) -> Array:
    """−Σ p log p over the last axis."""
    return np.asarray(-(joint * np.log(np.maximum(joint, np.finfo(np.float64).tiny))).sum(-1))


class TabularKnowledge:
    """A `Knowledge` made of tables.

    `prior` has one weight per profile (any positive scale); `profiles[k]` is the index in
    `diagnoses` of the disease that profile k belongs to, one profile per disease in order if left
    out. Raises ValueError for tables that do not fit each other. Methods raise KeyError, with the
    name, for a diagnosis that does not exist or an item that has no table; `known` drops the latter
    from evidence.
    """

    def __init__(
        self,
        diagnoses: Sequence[str],
        prior: ArrayLike,
        tables: Sequence[Table],
        profiles: Sequence[int] | None = None,
    ) -> None:
        weights = np.asarray(prior, dtype=np.float64)
        self._diagnoses = tuple(diagnoses)
        self._index = {name: index for index, name in enumerate(self._diagnoses)}
        self._owner = np.asarray(
            range(len(self._diagnoses)) if profiles is None else profiles, dtype=np.int64
        )
        self._tables = {table.item: table for table in tables}
        self._check(weights, tables)
        self._log_prior: Array = np.log(weights / weights.sum())
        self._of: Array = np.eye(len(self._diagnoses))[self._owner]  # profiles × diagnoses
        self._children: dict[str, list[str]] = {table.item: [] for table in tables}
        for table in tables:
            if table.parent is not None:
                self._children[table.parent].append(table.item)
        self._root = {
            table.item: (table.item, *self._ancestors(table.item))[-1] for table in tables
        }
        # the probability of each listed answer while its tree holds no evidence: answers ×
        # profiles
        self._unasked = {
            table.item: self._predictive(table.item, table.outcomes, {})
            for table in tables
            if table.outcomes
        }

    def _check(self, weights: Array, tables: Sequence[Table]) -> None:
        if len(self._index) != len(self._diagnoses) or len(self._tables) != len(tables):
            raise ValueError("a diagnosis or an item stands twice")
        if weights.shape != self._owner.shape or not (weights > 0).all():
            raise ValueError("every profile needs a positive prior")
        if set(self._owner.tolist()) != set(range(len(self._diagnoses))):
            raise ValueError("every diagnosis needs a profile, and every profile a diagnosis")
        for table in tables:
            if table.profiles != len(weights):
                raise ValueError(
                    f"'{table.item}' has {table.profiles} profiles instead of {len(weights)}"
                )
            if table.parent is not None and table.parent not in self._tables:
                raise ValueError(f"'{table.item}' has a parent '{table.parent}' without a table")
            self._ancestors(table.item)

    def _ancestors(self, item: str) -> tuple[str, ...]:
        """Parent, grandparent, …"""
        line: list[str] = []
        while (parent := self._tables[item].parent) is not None:
            if parent in line:
                raise ValueError(f"'{parent}' is its own ancestor")
            line.append(parent)
            item = parent
        return tuple(line)

    @property
    def diagnoses(self) -> Sequence[str]:
        return self._diagnoses

    def posterior(self, evidence: Evidence) -> list[float]:
        """P(diagnosis | evidence), in the order of `diagnoses`."""
        return _listed(self._weights(self._consistent(evidence)) @ self._of)

    def gains(self, evidence: Evidence, items: Sequence[str]) -> list[float]:
        """Expected information gain about the diagnosis, in nats, of each item's answer.

        0 for known items. Exact, but for multi-label items of more than EXACT_FEATURES features.
        Their gain is the exact gain of "any or none" plus an average over DRAWS sampled answers
        (repeatable: the seed is the item's name).
        """
        consistent = self._consistent(evidence)
        weights = self._weights(consistent)
        gains = np.zeros(len(items))
        listed: dict[int, Array] = {}
        for place, item in enumerate(items):
            if settled(item, evidence):
                continue
            table = self._tables[item]
            if isinstance(table, MultiLabel) and not table.outcomes:
                gains[place] = self._sampled_gain(table, weights, consistent)
            else:
                listed[place] = self._outcomes(table, consistent)
        if listed:
            gains[list(listed)] = self._exact_gains(weights, list(listed.values()))
        return _listed(gains)

    def read(self, case: Case, headings: Iterable[str] | None = None) -> dict[str, Answer]:
        """Nothing: its diagnoses bear the same names in every case."""
        return {}

    def through(self, channel: Channel) -> TabularKnowledge:
        """The same model, whose evidence may also be what a patient said through `channel`."""
        prior, tables = np.exp(self._log_prior), list(self._tables.values())
        return HeardKnowledge(self._diagnoses, prior, tables, self._owner.tolist(), channel)

    def grouped(self, groups: Sequence[str]) -> TabularKnowledge:
        """The same model of diagnoses that are told apart by group alone.

        `groups` names the group of each diagnosis, in their order.
        """
        names = tuple(dict.fromkeys(groups))
        owner = [names.index(groups[diagnosis]) for diagnosis in self._owner]
        return TabularKnowledge(names, np.exp(self._log_prior), list(self._tables.values()), owner)

    def likelihood_ratios(
        self, findings: Evidence, diagnosis: str, evidence: Evidence
    ) -> list[float]:
        """P(answer | d*, evidence) / P(answer | not d*, evidence) of each finding by itself.

        The other diagnoses are weighted by their posterior given `evidence`. The ratio is 1 if
        there is no other diagnosis, and for an item that `evidence` holds.
        """
        consistent = self._consistent(evidence)
        mine = self._owner == self._index[diagnosis]
        if mine.all() or not findings:
            return [1.0] * len(findings)
        log_joint = self._log_joint(consistent)
        weights = np.stack(
            [_normalised(np.where(side, log_joint, -np.inf)) for side in (mine, ~mine)], axis=1
        )
        chances = (
            np.stack([self._chance(item, answer, consistent) for item, answer in findings.items()])
            @ weights
        )
        ratios = np.maximum(chances[:, 0], FLOOR) / np.maximum(chances[:, 1], FLOOR)
        ratios[[item in evidence for item in findings]] = 1.0
        return _listed(ratios)

    def _consistent(self, evidence: Evidence) -> dict[str, Answer]:
        """The evidence without positive answers below an ancestor known to be normal."""
        kept: dict[str, Answer] = {}
        for item, answer in evidence.items():
            table = self._tables[item]
            barred = (
                table.parent is not None
                and not table.is_normal(answer)
                and any(
                    above in evidence and self._tables[above].is_normal(evidence[above])
                    for above in self._ancestors(item)
                )
            )
            if not barred:
                kept[item] = answer
        return kept

    def _log_joint(self, evidence: Evidence) -> Array:
        """log P(profile, evidence)."""
        roots = dict.fromkeys(self._root[item] for item in evidence)
        return np.asarray(sum((self._inside(root, evidence) for root in roots), self._log_prior))

    def _weights(self, evidence: Evidence) -> Array:
        """P(profile | evidence)."""
        return _normalised(self._log_joint(evidence))

    def _inside(self, item: str, evidence: Evidence) -> Array:
        """log P(evidence on the item and below | profile, parent positive)."""
        table = self._tables[item]
        if (answer := evidence.get(item)) is None:
            return np.logaddexp(*self._branches(item, evidence))
        below = self._below(item, evidence)[0] if not table.is_normal(answer) else 0.0
        return np.asarray(table.log_likelihood(answer) + below)

    def _below(self, item: str, evidence: Evidence) -> tuple[Array | float, float]:
        """log P(evidence below the item | profile, item positive), and with the item normal."""
        if not (children := self._children[item]):
            return 0.0, 0.0
        inside = sum(
            (self._inside(child, evidence) for child in children), np.zeros(len(self._owner))
        )
        return inside, sum(self._silent(child, evidence) for child in children)

    def _silent(self, item: str, evidence: Evidence) -> float:
        """log P(evidence on the item and below | parent normal): 0, or −∞ if any is positive."""
        if item in evidence and not self._tables[item].is_normal(evidence[item]):
            return -np.inf
        return sum(self._silent(child, evidence) for child in self._children[item])

    def _branches(self, item: str, evidence: Evidence) -> tuple[Array, Array]:
        """log P(item positive, evidence below | profile, parent positive), and with item normal."""
        table, (positive, normal) = self._tables[item], self._below(item, evidence)
        return np.asarray(table.log_positive + positive), np.asarray(table.log_normal + normal)

    def _outside(self, item: str, evidence: Evidence) -> tuple[Array, Array]:
        """log P(parent positive or normal, evidence not below the child `item` | profile).

        Two arrays: with the parent positive, and with the parent normal.
        """
        table = self._tables[item]
        if table.parent is None:
            return np.zeros(table.profiles), np.full(table.profiles, -np.inf)
        positive, normal = self._outside(table.parent, evidence)
        parent, answer = self._tables[table.parent], evidence.get(table.parent)
        siblings = [child for child in self._children[table.parent] if child != item]
        normal = np.logaddexp(positive + parent.log_normal, normal) + sum(
            self._silent(s, evidence) for s in siblings
        )
        beside = sum((self._inside(s, evidence) for s in siblings), np.zeros(table.profiles))
        if answer is None:
            return positive + parent.log_positive + beside, normal
        if parent.is_normal(answer):
            return np.full(table.profiles, -np.inf), normal
        return positive + parent.log_likelihood(answer) + beside, np.full(table.profiles, -np.inf)

    def _predictive(self, item: str, answers: Sequence[Answer], evidence: Evidence) -> Array:
        """P(answer | profile, evidence) of an item not in the evidence, answers × profiles."""
        table = self._tables[item]
        above_positive, above_normal = self._outside(item, evidence)
        below_positive, below_normal = self._below(item, evidence)
        positive, normal = self._branches(item, evidence)
        normal = np.logaddexp(above_positive + normal, above_normal + below_normal)
        total = np.logaddexp(above_positive + positive, normal)
        logs = [
            normal
            if table.is_normal(answer)
            else above_positive + table.log_likelihood(answer) + below_positive
            for answer in answers
        ]
        return np.asarray(np.exp(np.stack(logs) - total))

    def _touched(self, item: str, evidence: Evidence) -> bool:
        """Whether any evidence is in the item's tree."""
        root = self._root[item]
        return (
            any(self._root[other] == root for other in evidence) if self._children[root] else False
        )

    def _outcomes(self, table: Table, evidence: Evidence) -> Array:
        """P(answer | profile, evidence) of all listed answers."""
        if not self._touched(table.item, evidence):
            return self._unasked[table.item]
        return self._predictive(table.item, table.outcomes, evidence)

    def _chance(self, item: str, answer: Answer, evidence: Evidence) -> Array:
        """P(answer | profile, evidence)."""
        row = self._tables[item].row(answer)
        if row is None or self._touched(item, evidence):
            return np.asarray(self._predictive(item, [answer], evidence)[0])
        return np.asarray(self._unasked[item][row])

    def _exact_gains(self, weights: Array, blocks: Sequence[Array]) -> Array:
        """I(diagnosis; answer) = H(diagnosis) + H(answer) − H(diagnosis, answer) for each block.

        A block is answers × profiles.
        """
        joint = (np.concatenate(blocks) * weights) @ self._of
        starts = np.cumsum([0, *(len(block) for block in blocks[:-1])])
        pointwise = _entropies(joint) - _entropies(joint.sum(1, keepdims=True))
        return np.maximum(_entropies(weights @ self._of) - np.add.reduceat(pointwise, starts), 0.0)

    def _sampled_gain(self, table: MultiLabel, weights: Array, evidence: Evidence) -> float:
        """I(diagnosis; any or none) + P(any) · I(diagnosis; answer | any), the last one sampled."""
        none = self._predictive(table.item, [table.features[:0]], evidence)
        gain = float(self._exact_gains(weights, [np.concatenate([none, 1 - none])])[0])
        share = weights * (1 - none[0])
        if (total := share.sum()) < FLOOR:
            return gain
        share /= total
        rng = np.random.default_rng(zlib.crc32(table.item.encode()))
        strata = (np.arange(DRAWS) + rng.random(DRAWS)) / DRAWS
        owners = np.minimum(np.searchsorted(np.cumsum(share), strata), len(share) - 1)
        drawn = table.draw(owners, rng)
        log = drawn @ np.log(table.chance) + ~drawn @ np.log1p(-table.chance) - table.log_positive
        posteriors = np.exp(log - log.max(1, keepdims=True)) * share
        posteriors /= posteriors.sum(1, keepdims=True)
        information = _entropies(share @ self._of) - _entropies(posteriors @ self._of).mean()
        return gain + float(total * max(information, 0.0))


class HeardKnowledge(TabularKnowledge):
    """A `TabularKnowledge` whose evidence may be heard through `channel`.

    The channel's items have the normal answer `()`. An item that was heard of can be asked again,
    and `gains` says what that would tell. The gain of an item of the channel is exact over all that
    the patient may say, but for multi-label items of more than EXACT_FEATURES features: there it is
    that of whether the patient affirms, denies or is not sure.
    """

    def __init__(
        self,
        diagnoses: Sequence[str],
        prior: Array,
        tables: Sequence[Table],
        profiles: Sequence[int],
        channel: Channel,
    ) -> None:
        self.channel = channel
        super().__init__(diagnoses, prior, tables, profiles)
        self._first = {
            item: self._said_next(table, {})
            for item, table in self._tables.items()
            if item in channel.answers
        }

    def grouped(self, groups: Sequence[str]) -> TabularKnowledge:
        return super().grouped(groups).through(self.channel)

    def _outcomes(self, table: Table, evidence: Evidence) -> Array:
        if table.item not in self.channel.answers:
            return super()._outcomes(table, evidence)
        if table.item in evidence or self._touched(table.item, evidence):
            return self._said_next(table, evidence)
        return self._first[table.item]

    def _sampled_gain(self, table: MultiLabel, weights: Array, evidence: Evidence) -> float:
        if table.item not in self.channel.answers:
            return super()._sampled_gain(table, weights, evidence)
        return float(self._exact_gains(weights, [self._outcomes(table, evidence)])[0])

    def _said_next(self, table: Table, evidence: Evidence) -> Array:
        """P(what the patient says next of the item | profile, evidence), statements × profiles."""
        before = statements(evidence.get(table.item, heard(()))) or ()
        affirmed = [answer for answer in before if answer][:1]
        listed = {
            frozenset(answer): answer
            for answer in (*table.outcomes, *self.channel.answers[table.item])
            if answer
        }
        next_ones: list[Statement] = [(), None]
        if table.outcomes:
            next_ones += affirmed or listed.values()
        chances = self._predictive(
            table.item, [heard((*before, one)) for one in next_ones], evidence
        )
        if table.outcomes:
            return chances
        rest = np.maximum(1 - chances.sum(0, keepdims=True), 0.0)
        return np.concatenate([chances, rest])

    def _predictive(self, item: str, answers: Sequence[Answer], evidence: Evidence) -> Array:
        root = self._root[item]
        now = self._inside(root, evidence)
        with_answers = [self._inside(root, {**evidence, item: answer}) for answer in answers]
        return np.asarray(np.exp(np.stack(with_answers) - now))

    def _inside(self, item: str, evidence: Evidence) -> Array:
        return np.asarray(np.logaddexp(*self._branches(item, evidence)))

    def _branches(self, item: str, evidence: Evidence) -> tuple[Array, Array]:
        (positive, normal), below = self._told(item, evidence), self._below(item, evidence)
        return np.asarray(positive + below[0]), np.asarray(normal + below[1])

    def _told(self, item: str, evidence: Evidence) -> tuple[Array, Array]:
        """log P(item positive, evidence on it | profile, parent positive), and with it normal."""
        table, answer = self._tables[item], evidence.get(item)
        never = np.full(table.profiles, -np.inf)
        if answer is None:
            return table.log_positive, table.log_normal
        said = statements(answer)
        if said is None:
            certain = table.log_likelihood(answer)
            return (never, certain) if table.is_normal(answer) else (certain, never)
        affirmed = next((one for one in said if one), None)
        if affirmed is None:
            positive = table.log_positive + self._log(item, said, ("any",))
        else:
            positive = table.log_likelihood(affirmed) + self._log(item, said, affirmed)
        return positive, table.log_normal + self._log(item, said, ())

    def _silent(self, item: str, evidence: Evidence) -> float:
        said = statements(evidence.get(item, ()))
        if said is None:
            return super()._silent(item, evidence)
        below = sum(self._silent(child, evidence) for child in self._children[item])
        return self._log(item, said, ()) + below

    def _log(self, item: str, said: Sequence[Statement], truth: Answer) -> float:
        return float(np.log(max(self.channel.likelihood(item, said, truth), LEAST)))


def _normalised(log: Array) -> Array:
    """exp(log), scaled to sum to 1."""
    values = np.exp(log - log.max())
    return np.asarray(values / values.sum())


def _listed(values: Array) -> list[float]:
    return [float(value) for value in values]
