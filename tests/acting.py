"""The same actions played by our own loop and by somebody else's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from workup.core.case import Case
from workup.core.episode import Completion, Ending, Episode, Message, Turn
from workup.core.ports import Act, Doctor, Sampling
from workup.interop.adapters.bench import Bench
from workup.loops.evaluation.examination import examine, playing
from workup.runs import Record, Run
from workup.runs.settings import EvaluationSettings

TURNS = 4


def bench(method: str = "craft", most: int = 6, **settings: object) -> Bench:
    return Bench.of(
        method, cases="clinic:xs", most=most, environment={"max_turns": TURNS}, **settings
    )


def script(made: Bench, place: int) -> list[str]:
    """What the doctor says: right, wrong, not readable, too long, or no diagnosis, by place."""
    environment, case = made.examination.environment, made.cases[place]
    asked = [environment.write("ask", fact.item) for fact in case.truth.facts]
    asked = (asked * TURNS)[:TURNS]
    right = environment.write("diagnose", case.truth.diagnosis)
    wrong = environment.write("diagnose", "a broken heart")
    return [
        [asked[0], right],
        [asked[0], asked[0], wrong],
        ["I wonder.", asked[0], f"So I say: {right}"],
        asked,
        [right],
        [asked[0], "…", "…", right],
    ][place % 6]


class Scripted:
    """A `Doctor` that says what `script` says."""

    def __init__(self, made: Bench) -> None:
        self.lines = {made.cases[k].id: script(made, k) for k in range(len(made.cases))}

    async def act(
        self, case: Case, opening: Sequence[Message], past: Sequence[Turn], sampling: Sampling
    ) -> Act:
        return Act((), Completion(self.lines[case.id][len(past)]))


def ours(made: Bench, folder: Path) -> list[Record]:
    """The records that our own evaluation writes for the scripts, in the order of the cases."""
    return by_us(made, Scripted(made), folder)


def by_us(made: Bench, doctor: Doctor, folder: Path) -> list[Record]:
    """The records that our own evaluation writes for `doctor`, in the order of the cases."""
    examination = replace(
        made.examination, cases=made.cases, settings=EvaluationSettings(cases=len(made.cases))
    )
    with Run.create(folder, {"cases": "clinic:xs"}, {}) as run:
        examine(run, examination, playing(doctor), "ours")
        by_case = {record.episode.case.id: record for record in run.episodes()}
    return [by_case[case.id] for case in made.cases]


def failing(monkeypatch: pytest.MonkeyPatch, made: Bench) -> str:
    """Has the judge give up on the last case; the result is what it says."""
    judge, last = Bench.judge, made.cases[-1].id

    async def gone(self: Bench, episode: Episode, label: str = "policy") -> Record:
        if episode.case.id == last:
            episode = replace(episode, ending=Ending.FAILED, reason="the judge gave up")
        return await judge(self, episode, label)

    monkeypatch.setattr(Bench, "judge", gone)
    return "the judge gave up"


def replies(record: Record) -> list[list[dict[str, str]]]:
    """The environment's messages after each turn."""
    return [
        [{"role": m.role, "content": m.content} for m in turn.observation.messages]
        for turn in record.episode.turns
    ]
