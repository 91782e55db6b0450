"""The right answers of a case, one by one, and what becomes of them when its options go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from workup.cases.questions import Answer
from workup.core.case import Case, Truth


def right(case: Case) -> list[str]:
    """The right answers: those that a question set lists, else the diagnosis."""
    extra = case.truth.extra
    return [str(name) for name in extra["right"]] if _lists(extra) else [case.truth.diagnosis]


def opened(truth: Truth, answers: Sequence[str]) -> Truth:
    """The truth of the same question without options, with these right answers."""
    extra = (
        Answer(right=list(answers), letters=[], alphabet=[]) if _lists(truth.extra) else truth.extra
    )
    return replace(truth, diagnosis="; ".join(answers), extra=extra)


def _lists(extra: object) -> bool:
    return isinstance(extra, Mapping) and set(Answer.__annotations__) <= set(extra)
