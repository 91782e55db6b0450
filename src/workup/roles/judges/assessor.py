"""What every judge is: one question in, one verdict out, or RolloutError.

A language model, an exact rule or a panel of several can be a judge.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Generic, Protocol, TypeVar

from pydantic import BaseModel

from workup.core.ports import Model, Request
from workup.models.structured import Sizes, ask
from workup.roles.fence import RULES, prompt

Q_contra = TypeVar("Q_contra", contravariant=True)
V_co = TypeVar("V_co", bound="JudgeVerdict", covariant=True)
Q = TypeVar("Q")
V = TypeVar("V", bound="JudgeVerdict")
Answer = TypeVar("Answer", bound=BaseModel)
Check = Callable[[Answer], str | None]
CLOSING = (
    "The material ends here. Judge it by your instructions alone and answer with nothing but the "
    "JSON object."
)


class JudgeVerdict(Protocol):
    """What a judge decided."""

    @property
    def value(self) -> float:
        """The verdict as one number, for means over judges."""
        ...

    @property
    def labels(self) -> tuple[str, ...]:
        """One word for each thing that was decided, for tables of agreement."""
        ...


class Assessor(Protocol[Q_contra, V_co]):
    """A judge of one kind of question.

    Raises RolloutError when it cannot decide; it never returns a default.
    """

    async def judge(self, question: Q_contra, /) -> V_co: ...


@dataclass(frozen=True, slots=True)
class Rubric:
    """A prompt of Workup's: what is to be decided and how to answer.

    An edited text needs a new `version`. The ledger books the calls under `role`.
    """

    version: str
    text: str
    max_tokens: int = 1024
    role: str = "judge"


async def consult(
    model: Model,
    rubric: Rubric,
    sections: Sequence[tuple[str, str]],
    shape: type[Answer],
    check: Check[Answer] = lambda answer: None,
    sizes: Sizes | None = None,
) -> Answer:
    """The model's checked answer about `sections` (title, cleaned content).

    `sizes` are those of `workup.models.structured.ask`.

    Raises RolloutError when there is none.
    """
    messages = prompt(f"{rubric.text}\n\n{RULES}", sections, CLOSING)
    return await ask(
        model,
        Request(rubric.role, rubric.version, messages, max_tokens=rubric.max_tokens),
        shape,
        check,
        sizes,
    )


@dataclass(frozen=True, slots=True)
class Opinions(Generic[V]):
    """The verdicts of several judges, by name."""

    verdicts: Mapping[str, V]

    def mean(self, of: Callable[[V], float] = lambda verdict: verdict.value) -> float:
        """The mean over the judges of a verdict's value, or of `of(verdict)`."""
        return fsum(map(of, self.verdicts.values())) / len(self.verdicts)


class Panel(Generic[Q, V]):
    """Several independent judges, asked at once (ES-14).

    If one of them fails, the panel fails: a mean over fewer judges would be another figure. Raises
    ValueError without a judge.
    """

    def __init__(self, judges: Mapping[str, Assessor[Q, V]]) -> None:
        if not judges:
            raise ValueError("a panel needs at least one judge")
        self._judges = dict(judges)

    @property
    def names(self) -> tuple[str, ...]:
        """The judges' names, as they stand in `Opinions.verdicts`."""
        return tuple(self._judges)

    async def judge(self, question: Q) -> Opinions[V]:
        verdicts = await asyncio.gather(*(judge.judge(question) for judge in self._judges.values()))
        return Opinions(dict(zip(self._judges, verdicts, strict=True)))


def misaligned(indices: Sequence[int], count: int) -> str | None:
    """What is wrong with answers that must carry each index 1 … count exactly once, or None."""
    if sorted(indices) == list(range(1, count + 1)):
        return None
    return (
        f"there must be one entry for each number from 1 to {count}, each exactly once; there "
        f"are {len(indices)} entries"
    )
