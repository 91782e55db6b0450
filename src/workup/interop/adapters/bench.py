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
from workup.loops.evaluation.loop import Evaluation
from workup.loops.evaluation.suites import placed, stations
from workup.loops.evaluation.suites.play import Asked, all_arms
from workup.loops.training.plan import Plan
from workup.methods.base.outcome import correctness
from workup.rl.interaction import Interaction
from workup.roles.judges.verdicts import Verdicts
from workup.runs import Record
from workup.runs.settings import PolicySettings, Settings, with_user_config

SIDES = ("train", "test")


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
        if stage is None:
            raise UserError(
                f"{method} pays for no episode: it imitates; take a method with a reward, such as "
                "outcome"
            )
        if stage.scorers:
            raise UserError(
                f"the reward of {method} reads log-probabilities of the weights that are trained, "
                "which are outside here; take another method, or train with `workup train`"
            )
        _refuse_strange(side)
        whole = plan.source.train if side == "train" else plan.source.test
        played = whole if most is None else evenly_spaced(whole, most)
        if not len(played):
            raise UserError(f"{plan.source.name} holds no {side} case")
        examination = replace(plan.examination, models=plan.supporting.models)
        return cls(f"{plan.world.name} ({method}, {cases})", played, examination)

    @classmethod
    def of_station(
        cls,
        station: str,
        *,
        size: str = "standard",
        data: str | None = None,
        side: str = "test",
        **settings: Any,
    ) -> Bench:
        """A station of `workup exam`, with the cases that it plays; a right diagnosis is paid 1.

        `data` is the folder of stations that need files. With `side` "train" its cases are as many
        of those to train on. `settings` are those of `workup evaluate`. Raises UserError for a
        station that does not exist or cannot be played, and for another side.
        """
        _refuse_strange(side)
        outside = {"outside": {"base_url": "http://127.0.0.1/v1", "model": "outside"}}
        values = {**settings, "endpoints": {**outside, **settings.get("endpoints", {})}}
        roles = settings.get("roles", {})
        suite, _ = stations.exam(size, data=bool(data), roles=roles, only=[station])
        found, lacks = placed(suite, station, data)
        if not found:
            raise UserError("; ".join(map(str, lacks)))
        asked = Asked(station, ["endpoint:outside"], values, data, noted={"size": size})
        (arm,) = all_arms(asked, suite, found)
        opened = Evaluation.of(with_user_config(PolicySettings, arm.values), token_hex(8))
        examination, most = opened.examination, len(opened.examination.played)
        played = examination.played
        if side == "train":
            played = evenly_spaced(opened.source.train, most)
        if not len(played):
            raise UserError(f"{opened.source.name} holds no {side} case")
        return cls(station, played, replace(examination, reward=correctness(0.0)))

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


def _refuse_strange(side: str) -> None:
    if side not in SIDES:
        raise unknown("side", side, SIDES)


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
