"""What all adapters drive: the same actions give the same replies, verdicts and rewards as ours."""

from __future__ import annotations

import ast
import asyncio
import tomllib
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from acting import TURNS, bench, by_us, ours, replies, script

from workup import environments, methods
from workup.core.case import Case
from workup.core.episode import Completion, Ending, Turn
from workup.core.errors import RolloutError, UserError, WorkupError
from workup.core.ports import Act
from workup.core.stages import SftStage
from workup.interop.adapters.bench import Bench, messages, told
from workup.loops.training.plan import Plan
from workup.runs import Record
from workup.runs.settings import Settings, with_user_config

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("method", ["craft", "outcome", "grpo"])
def test_step_by_step_is_our_own_loop(method: str, tmp_path: Path) -> None:
    made = bench(method)

    async def play(place: int) -> tuple[list[object], object]:
        interaction, heard = made.open(place), []
        for text in script(made, place):
            assert not interaction.done
            heard.append(messages((await interaction.say(text)).messages))
        assert interaction.done
        assert tuple(interaction.turns) == interaction.episode.turns
        return heard, await made.judge(interaction.episode)

    records = ours(made, tmp_path / "run")
    assert {record.correct for record in records} == {True, False}
    assert {record.episode.ending for record in records} == {Ending.DIAGNOSED, Ending.OUT_OF_TURNS}
    for place, record in enumerate(records):
        heard, judged = asyncio.run(play(place))
        assert heard == replies(record)
        assert (judged.correct, judged.score) == (record.correct, record.score)
        assert judged.measures == record.measures
        assert judged.episode.turns == record.episode.turns


CASES = ("clinic:xs", "clinic:pathology")


def played_by(name: str) -> tuple[str, str]:
    """A method for this environment whose reward stands by itself, and cases that fit both."""
    elsewhere = lambda method: methods.load(method).environment["name"] != name  # noqa: E731
    for method, cases in product(sorted(methods.names(), key=elsewhere), CASES):
        try:
            made = Bench.of(method, cases=cases, most=1, environment={"name": name})
        except UserError:
            continue
        if made.examination.reward is not None:
            return method, cases
    raise AssertionError(f"no method can be played in {name}")


@pytest.mark.long
@pytest.mark.parametrize("name", environments.names())
def test_every_environment_step_by_step_is_our_own_loop(name: str, tmp_path: Path) -> None:
    """What is said was demonstrated: for the first case, for another one, and cut short."""
    method, cases = played_by(name)
    where = {"cases": cases, "environment": {"name": name}}
    plan = Plan.of(with_user_config(Settings, {"method": method, **where}), "account")
    stage = next(each for each in plan.stages if isinstance(each, SftStage))
    shown = stage.demonstrate(plan.source, plan.environment, 0, 0)
    said = [text for text, _ in shown.exchanges]
    made = Bench.of(method, most=2, **where)
    scripts = {made.cases[0].id: said, made.cases[1].id: [*said[:-1], "…", said[-1]]}
    limit = made.examination.environment.max_turns

    class Doctor:
        async def act(self, case: Case, opening: Any, past: Sequence[Turn], sampling: Any) -> Act:
            lines = scripts[case.id]
            return Act((), Completion(lines[len(past)] if len(past) < len(lines) else "…"))

    async def play(place: int) -> Record:
        interaction, lines = made.open(place), scripts[made.cases[place].id]
        for turn in range(limit):
            if not interaction.done:
                await interaction.say(lines[turn] if turn < len(lines) else "…")
        return await made.judge(interaction.episode)

    for place, record in enumerate(by_us(made, Doctor(), tmp_path / "run")):
        judged = asyncio.run(play(place))
        assert judged.episode.turns == record.episode.turns
        assert (judged.episode.ending, judged.correct) == (record.episode.ending, record.correct)
        assert judged.score == record.score
        assert judged.measures == record.measures


@pytest.mark.parametrize("name", ["promed", "cmig"])
def test_a_reward_that_reads_the_trained_weights_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="weights that are trained"):
        Bench.of(name, cases="clinic:xs")


def test_what_ends_an_encounter() -> None:
    made = bench()
    cut = made.open(0)
    assert asyncio.run(cut.say("<ask>fev", truncated=True)).done
    assert cut.episode.ending is Ending.OUT_OF_TOKENS
    with pytest.raises(WorkupError, match="is over"):
        asyncio.run(cut.say("<ask>fever</ask>"))
    left = made.open(0)
    with pytest.raises(WorkupError, match="not over yet"):
        _ = left.episode
    left.leave()
    assert (left.episode.ending, left.episode.reason) == (Ending.FAILED, "the doctor said nothing")
    asked = made.open(0)
    asyncio.run(asked.say(script(made, 0)[0]))
    asked.leave()
    assert asked.episode.ending is Ending.OUT_OF_TOKENS
    assert told(asyncio.run(made.judge(asked.episode)))["correct"] is False


def test_an_environment_that_gives_up_fails_the_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    made = bench()
    interaction = made.open(0)

    async def gone(*_: object) -> None:
        raise RolloutError("the patient's endpoint gave up")

    monkeypatch.setattr(type(made.examination.environment), "answer", gone)
    assert asyncio.run(interaction.act(Act((), Completion("<ask>fever</ask>")))).done
    outcome = told(asyncio.run(made.judge(interaction.episode)))
    assert outcome["reason"] == "the patient's endpoint gave up"
    assert (outcome["correct"], outcome["rewards"]) == (None, [])


def test_a_bench_opens_where_a_loop_is_running() -> None:
    """As in a notebook's cell, and where `inspect eval` makes its tasks."""

    async def cell() -> list[str]:
        return [case.id for case in bench().cases]

    assert asyncio.run(cell()) == [case.id for case in bench().cases]


def test_the_package_for_verifiers_has_the_name_that_it_is_loaded_by() -> None:
    """`vf-eval a-b` imports the module `a_b` and calls its `load_environment`."""
    (folder,) = (ROOT / "environments").iterdir()
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["project"]["name"].replace("-", "_") == folder.name
    assert project["tool"]["setuptools"]["py-modules"] == [folder.name]
    (found,) = ast.parse((folder / f"{folder.name}.py").read_text()).body[1:2]
    assert isinstance(found, ast.ImportFrom)
    assert (found.module, [name.name for name in found.names]) == (
        "workup.interop.adapters.verifiers",
        ["load_environment"],
    )


def test_mistakes_are_told() -> None:
    for words, said in {
        ("crfat", "clinic:xs", "train"): "Did you mean 'craft'",
        ("craft", "clinci:xs", "train"): "clinic",
        ("craft", "clinic:xs", "dev"): "no side 'dev'",
        ("dialogt", "clinic:xs", "train"): "dialogt pays for no episode: it imitates",
        ("demonstrated", "clinic:xs", "train"): "demonstrated pays for no episode",
    }.items():
        method, cases, side = words
        with pytest.raises(UserError, match=said):
            Bench.of(method, cases=cases, side=side)
    assert bench().examination.environment.max_turns == TURNS
