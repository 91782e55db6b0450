"""Questions that are neither too easy nor too ambiguous for a strong model (Med-R³ MR-11).

Up to `n` answers are drawn at temperature 1 and marked 1 to 5. Dropped is what is fully right
within the first draws (fewer than `easy_within`; the paper: "within a few rollouts, n′ < 3") and
what never gets more than `ambiguous`. Drawing ends when nothing can change the verdict, unless
`every` is true. A draw that is cut off at `max_tokens` is no wrong answer: the case fails.
"""

from __future__ import annotations

from pydantic import Field

from workup.core.case import Case
from workup.prepare.draws import VERSION, DrawnSettings, mark, whole
from workup.prepare.steps import Aids, Drop, Kept, Outcome, PrepareStep


class ComplexitySettings(DrawnSettings):
    """How many answers are drawn, and what their marks (1 to 5) mean."""

    n: int = Field(16, ge=1, description="answers drawn at most")
    easy_within: int = Field(
        3, ge=1, description="too easy if one of fewer than so many first answers is fully right"
    )
    full: int = Field(5, ge=2, le=5, description="the mark of a fully right answer")
    ambiguous: int = Field(
        2, ge=0, le=4, description="too ambiguous if no answer's mark is above this; 0 drops none"
    )
    every: bool = Field(
        False, description="draw all n also where fewer decide; their marks stand in the provenance"
    )


async def apply(case: Case, aids: Aids) -> Outcome:
    """Draws one answer after the other, and stops when the verdict cannot change any more.

    Most questions need three draws.
    """
    settings: ComplexitySettings = aids.settings
    marks: list[int] = []
    while len(marks) < settings.n and (settings.every or undecided(marks, settings)):
        marks.append(await mark(case, await whole(case, aids, len(marks)), aids.judge))
    reason = objection(marks, settings)
    return Kept(case, {"marks": list(marks)}) if reason is None else Drop(reason, f"marks {marks}")


def objection(marks: list[int], settings: ComplexitySettings) -> str | None:
    """Why a question with these marks (in the order of the draws) is dropped; None to keep it."""
    if any(mark >= settings.full for mark in marks[: settings.easy_within - 1]):
        return "too easy"
    return None if any(mark > settings.ambiguous for mark in marks) else "too ambiguous"


def undecided(marks: list[int], settings: ComplexitySettings) -> bool:
    """Whether further draws can change the verdict."""
    if objection(marks, settings) == "too easy":
        return False
    return len(marks) < settings.easy_within - 1 or all(
        mark <= settings.ambiguous for mark in marks
    )


step = PrepareStep(
    "drop what a strong model finds too easy or too ambiguous (MR-11)",
    f"complexity/1, {VERSION}",
    apply,
    ComplexitySettings,
)
