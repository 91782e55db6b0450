"""Whether the diagnosis was right, and the plain reward made of that (CRAFT's R_naive)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from workup.core.case import Case, SourceLibrary
from workup.core.episode import Batch, Ending, Episode, Score, Scores
from workup.core.ports import Instruments, Judge, Reward
from workup.core.text import doubts, same_name
from workup.environments.base.queries import listed_in
from workup.roles.judges.claims import disowned
from workup.roles.judges.exact import named
from workup.roles.judges.options import chosen, right

Marking = Literal["strict", "printed"]
Rule = Callable[[Episode, float], Score]  # episode, acc ∈ {0, 1} → score


def malformed(episode: Episode) -> bool:
    """Whether the trajectory ended without a valid diagnosis: out of turns or out of tokens.

    A diagnosis in a completion that the token limit cut off was not executed and does not count.
    """
    return episode.ending is not Ending.DIAGNOSED


async def accuracy(episode: Episode, judge: Judge) -> float:
    """acc(d̂, d*) ∈ {0, 1}; 0, without a call of the judge, if the trajectory is malformed.

    Raises RolloutError when the judge cannot decide.
    """
    return 0.0 if malformed(episode) else float(await judge.same(episode.answer[0], episode.case))


@dataclass(frozen=True, slots=True)
class Partly:
    """What an answer pays that the judge grades partly right (R_answer = 1 of 2 in Med-R³'s Eq. 3).

    `marking` says which of these are paid: "printed" pays each; "strict" pays one that asserts what
    it names, and names no more than 1 / `pay` diseases. To name m diseases of the probabilities
    p_1 ≥ p_2 ≥ … pays pay·(p_1 + … + p_m) ≤ pay·m·p_1 in the mean. So with m ≤ 1 / `pay` it never
    pays more than to name the likeliest one alone. `diagnoses` are the diseases that the cases
    list, `library` the one that comes with the cases and may have names for one case alone.
    """

    pay: float = 0.5
    marking: Marking = "strict"
    diagnoses: tuple[str, ...] = ()
    library: SourceLibrary | None = None

    def worth(self, answer: str, case: Case) -> float:
        """What a partly right answer pays."""
        if self.marking == "printed" or not self.pay:
            return self.pay
        return self.pay * (self._few(answer, case) and _asserted(answer, case))

    def _few(self, answer: str, case: Case) -> bool:
        """Whether few enough are named; of options as many may be as are right together."""
        most = int(1 / self.pay + 1e-9)
        if true := right(case):
            return len(chosen(answer, case.options)) <= max(most, len(true))
        counts = (named(answer, case), listed_in(answer, self.diagnoses, case, self.library))
        return max(map(len, counts)) <= most


def _asserted(answer: str, case: Case) -> bool:
    """Whether an answer neither denies nor doubts what it names, nor asks about it.

    A name of the truth may itself have words of doubt in it: "Possible NSTEMI".
    """
    truth = case.truth
    own = (truth.diagnosis, *truth.aliases, *truth.codes)
    others = (
        part for part in named(answer, case) if not any(same_name(part, name) for name in own)
    )
    return not any(map(doubts, others)) and not disowned(answer, own)


async def graded(episode: Episode, judge: Judge, partly: Partly) -> float:
    """R_answer / 2 of Med-R³'s Eq. 3: 1 right, 0 wrong, and `partly` for partly right.

    0 and failures are those of `accuracy`.
    """
    if malformed(episode):
        return 0.0
    answer, case = episode.answer[0], episode.case
    grade = await judge.grade(answer, case)
    return grade if grade in (0.0, 1.0) else partly.worth(answer, case)


def naive(episode: Episode, acc: float, penalty: float) -> Score:
    """R_naive(τ) = acc(d̂, d*), less `penalty` for a malformed trajectory; no step term."""
    less = -penalty if malformed(episode) else 0.0
    return Score.at_end(episode, acc + less, acc=acc, malformed=less)


async def score_each(batch: Batch, judge: Judge, rule: Rule) -> Scores:
    """`rule` applied to every episode of the batch; the judge gets all of them in one call."""
    accs = iter(
        await asyncio.gather(*(accuracy(episode, judge) for group in batch for episode in group))
    )
    return [[rule(episode, next(accs)) for episode in group] for group in batch]


def correctness(penalty: float) -> Reward:
    """R_naive of every episode: 1 or 0, less `penalty` where there is no valid diagnosis."""

    async def reward(batch: Batch, instruments: Instruments) -> Scores:
        return await score_each(
            batch, instruments.judge, lambda episode, acc: naive(episode, acc, penalty)
        )

    return reward
