"""Cases, environment, judge and reward as a training run has them, for a loop that is not ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from secrets import token_hex
from typing import Any

from workup.cases.files import evenly_spaced
from workup.core.case import Case
from workup.core.episode import Episode, Message, Observation
from workup.core.errors import UserError, unknown
from workup.loops.evaluation.examination import Examination, judged, scored
from workup.loops.training.loop import Plan
from workup.rl.interaction import Interaction
from workup.roles.judges.verdicts import Verdicts
from workup.runs import Record
from workup.runs.settings import Settings, with_user_config


@dataclass(frozen=True)
class Bench:
    """What every adapter drives: open an encounter, play it, have it judged.

    An evaluation of ours judges and scores with the same functions.
    """

    name: str
    cases: Sequence[Case]
    examination: Examination

    @classmethod
    def of(
        cls,
        method: str = "craft",
        *,
        cases: str = "clinic:s",
        side: str = "train",
        most: int | None = None,
        **settings: Any,
    ) -> Bench:
        """The environment, judge and reward of `method`, on one side of `cases`, "train" or "test".

        At most `most` cases, evenly spaced. `settings` are those of `workup train`, such as
        `environment={"max_turns": 6}`, `reward={"alpha": 2}` or `roles={"judge": …}`. Raises
        UserError for what the caller can mend, and for a method whose reward needs the weights that
        are trained: they are elsewhere.
        """
        plan = Plan.of(
            with_user_config(Settings, {"method": method, "cases": cases, **settings}), token_hex(8)
        )
        stage = plan.scoring
        if stage is not None and stage.scorers:
            raise UserError(
                f"the reward of {method} reads log-probabilities of the weights that are trained, "
                "which are outside here; take another method, or train with `workup train`"
            )
        sides = {"train": plan.source.train, "test": plan.source.test}
        if side not in sides:
            raise unknown("side", side, sides)
        played = sides[side] if most is None else evenly_spaced(sides[side], most)
        if not len(played):
            raise UserError(f"{plan.source.name} holds no {side} case")
        examination = replace(plan.examination, models=plan.supporting.models)
        return cls(f"{plan.world.name} ({method}, {cases})", played, examination)

    def open(self, place: int) -> Interaction:
        """A new encounter with the case at `place`."""
        return Interaction(self.cases[place], self.examination.environment)

    async def judge(self, episode: Episode, label: str = "policy") -> Record:
        """The record of an encounter that is over: verdict, measures, the reward of every turn.

        A failed one has neither verdict nor score.
        """
        verdicts = Verdicts(self.examination.judge, self.examination.settle)
        record = await judged(self.examination, verdicts, label, episode)
        return (await scored(self.examination, verdicts, [record]))[0]


def meant(seen: Observation) -> dict[str, Any]:
    """What a request was understood to ask for: whether at all, the item, and by which step."""
    return {"understood": seen.understood, "item": seen.item, "by": seen.understood_by}


def messages(said: Sequence[Message]) -> list[dict[str, str]]:
    """Chat messages as the frameworks take them."""
    return [{"role": each.role, "content": each.content} for each in said]


def told(record: Record) -> Mapping[str, Any]:
    """Verdict and reward as plain values.

    They are `correct` and `reward` (the return), both None if the episode failed; `rewards` (one
    per turn), `parts`, `answer`, `ending`, `reason`, `understood` (`meant` of every turn), and the
    measures that are defined.
    """
    score = record.score
    return {
        "correct": record.correct,
        "reward": score.total if score else None,
        "rewards": list(score.turns) if score else [],
        "parts": dict(score.parts) if score else {},
        "answer": list(record.episode.answer),
        "ending": record.episode.ending.value,
        "reason": record.episode.reason,
        "understood": [meant(turn.observation) for turn in record.episode.turns],
        "measures": {name: v for name, v in record.measures.items() if v is not None},
    }
