"""A patient as a noisy channel: the probability of what it says, given the truth.

A question for an item has a true answer: the finding, or that it is absent. The patient's first
reply is drawn in two steps, by rates within [0, 1]:

1. With `forgetting` it is not sure.
2. Otherwise it denies a finding that is present with `withholding`, and affirms one that is absent
   with `fabricating`; else it tells the truth.

Asked again, it says the same, or with the rate `contradicting` something else: who affirmed denies,
who denied affirms, and who was not sure gives the answer of step 2. So one may hear "I am not
sure.", then "Yes, a dry cough.", then "No.". A present finding is affirmed as it is. An absent one
is affirmed with an answer that is drawn once, each of the item's `answers` being equally probable;
where there are none, it is never affirmed.

So items are independent of each other given the truth, and every probability is a short product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Answer = tuple[str, ...]
"""The ids of an item's findings; () if they are absent."""

Statement = Answer | None
"""What a patient said of an item: the answer affirmed, () where it denied, None where not sure."""

_HEARD = "\0heard"  # no finding's id begins so
_UNSURE, _APART = "?", "\0"


@dataclass(frozen=True, slots=True)
class Dose:
    """A dose of trouble: how often a patient does what.

    Each is within [0, 1]. Raises ValueError if one is not.
    """

    withholding: float = 0.0
    forgetting: float = 0.0
    contradicting: float = 0.0
    fabricating: float = 0.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it lies between 0 and 1")


@dataclass(frozen=True, eq=False)
class Channel:
    """The dose, and the items that it holds for: item → what may be affirmed where it is absent.

    All other items are answered truly; `likelihood` raises KeyError for an absent one of them.
    """

    dose: Dose
    answers: Mapping[str, tuple[Answer, ...]]

    def likelihood(self, item: str, said: Sequence[Statement], truth: Answer) -> float:
        """P(said | truth): all that was said of `item`, in order, if `truth` is its true answer."""
        affirmed = {frozenset(answer) for answer in said if answer}
        if truth:
            chance = float(affirmed <= {frozenset(truth)})
            affirms, able = 1 - self.dose.withholding, True
        else:
            answers = {frozenset(answer) for answer in self.answers[item]}
            able = bool(answers)
            affirms = self.dose.fabricating if able else 0.0
            fits = len(affirmed) < 2 and affirmed <= answers
            chance = (1 / len(answers) if affirmed else 1.0) if fits else 0.0
        for place, now in enumerate(said):
            chance *= self._next(said[:place], now, affirms, able)
        return chance

    def _next(
        self, before: Sequence[Statement], now: Statement, affirms: float, able: bool
    ) -> float:
        """P(now | what was said before); `able`: whether there is something to affirm."""
        forgets, otherwise = self.dose.forgetting, self.dose.contradicting
        says_so = affirms if now else 1 - affirms
        if not before:
            return forgets if now is None else (1 - forgets) * says_so
        last = before[-1]
        if last is None:
            return 1 - otherwise if now is None else otherwise * says_so
        if now is None:
            return 0.0
        if not last and not able:
            return float(not now)
        return 1 - otherwise if bool(now) == bool(last) else otherwise


def heard(said: Sequence[Statement]) -> Answer:
    """What was said of an item as evidence for a `Knowledge` behind a channel."""
    return _HEARD, *(_UNSURE if one is None else _APART.join(("", *sorted(one))) for one in said)


def statements(answer: Answer) -> tuple[Statement, ...] | None:
    """What `heard` made this answer of; None for an answer that is certain."""
    if answer[:1] != (_HEARD,):
        return None
    return tuple(
        None if one == _UNSURE else tuple(one.split(_APART)[1:]) if one else ()
        for one in answer[1:]
    )


def settled(item: str, evidence: Mapping[str, Answer]) -> bool:
    """Whether the item's answer is certain, so that to ask for it could tell nothing more."""
    return item in evidence and statements(evidence[item]) is None
