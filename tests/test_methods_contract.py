"""Every method folder keeps the contract of `stages.Method`: it is found, played and scored."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from pathlib import Path

import library_world
import pytest
from handmade import SOURCE, Script, play
from library_world import opened_anywhere, scorer

from workup import methods
from workup.core.case import Source
from workup.core.episode import Episode, Score
from workup.core.errors import UserError
from workup.core.ports import LIVE, REFERENCE, Environment, Instruments, Sampling, alone
from workup.core.stages import GrpoStage, SearchStage, SftStage, Trial
from workup.environments.evidence import EvidenceSeeking
from workup.environments.library import Library
from workup.environments.questioning import Questioning
from workup.environments.reasoning import Reasoning
from workup.prepare.verified_answers import KEPT
from workup.roles.judges.exact import ExactJudge

DOCTORS = (
    Script("<ask>fever</ask>", "<image>chest film</image>", "<diagnose>Pneumonia</diagnose>"),
    Script("<diagnose>Flu</diagnose>"),
    Script("<ask>hobby</ask>", "nonsense", "<ask></ask>", "<ask>hobby</ask> and more"),
)


QUESTIONERS = (
    Script("question: chest film", "answer: A shadow. [answer: Pneumonia]"),
    Script("answer: [answer: Flu]"),
    Script("question: hobby", "nonsense", "question:", "question: hobby"),
)


THINKERS = (
    Script("<think>a shadow <search>chest film</search>", "</think><answer>Pneumonia</answer>"),
    Script("<think></think><answer>Flu</answer>"),
    Script("<answer>", "<search>", "nonsense"),
)


def pathologists(environment: EvidenceSeeking) -> tuple[Script, ...]:
    order = environment.write_lists(("Pneumonia", "Flu"), ("chest film",))
    orders = [order] * (environment.max_turns - 1)
    return (
        Script(*orders, environment.write_lists(("Pneumonia",))),
        Script(environment.write_lists(("Flu",))),
        Script("nonsense", environment.write_lists((), ())),
    )


def doctors(environment: object) -> tuple[Script, ...]:
    """A good one, a rash one and one that never comes to the point."""
    if isinstance(environment, Library):
        return library_world.doctors(environment)
    if isinstance(environment, EvidenceSeeking):
        return pathologists(environment)
    if isinstance(environment, Reasoning):
        return THINKERS
    return QUESTIONERS if isinstance(environment, Questioning) else DOCTORS


def answered_source(environment: object) -> Source:
    """SOURCE; its cases have what can be learned there: verified answers, or references."""
    if isinstance(environment, Reasoning):
        told = "<think>A shadow.</think><answer>Pneumonia</answer>"
        cases = [
            replace(case, truth=replace(case.truth, references=(told, "A shadow.")))
            for case in SOURCE.train
        ]
        return replace(SOURCE, train=cases)
    if not isinstance(environment, EvidenceSeeking):
        return SOURCE
    turn = {"answer": environment.write_lists(("Flu",)), "reply": []}
    cases = [
        replace(case, truth=replace(case.truth, extra={KEPT: [turn]})) for case in SOURCE.train
    ]
    return replace(SOURCE, train=cases)


def groups(environment: object) -> tuple[tuple[Episode, ...], ...]:
    """Every case played by each of them."""
    return tuple(
        tuple(play(doctor, environment, case) for doctor in doctors(environment))
        for case in SOURCE.train
    )  # type: ignore[arg-type]


def instruments(stage: GrpoStage | SearchStage) -> Instruments:
    """What the stage asks for, no more: an untrained model for both scorers."""
    offered = {REFERENCE: scorer(), LIVE: scorer()}
    return Instruments(ExactJudge(), scorers={name: offered[name] for name in stage.scorers})


@pytest.mark.parametrize("name", methods.names())
def test_a_method_is_complete_and_runs(name: str) -> None:
    method = methods.load(name)
    (paper,) = (own for own, found in methods.by_paper().items() if name in found)
    folder = Path(methods.__file__).parent / paper.replace("-", "_")
    told = (folder / "README.md").read_text()
    assert told.startswith("# ")
    assert name == paper or f"\n| `{name}`" in told, "a baseline stands in its paper's table"
    assert method.paper
    assert len(method.summary) < 120
    settings, environment = method.settings(), opened_anywhere(method)
    stages = method.stages(settings, environment)
    assert len({stage.name for stage in stages}) == len(stages) > 0
    source = answered_source(environment)
    for number, stage in enumerate(stages):
        if isinstance(stage, SftStage):
            shown = range(8 if stage.size is None else len(source.train) * stage.each)
            demonstrations = [stage.demonstrate(source, environment, 1, index) for index in shown]
            assert demonstrations == [
                stage.demonstrate(source, environment, 1, index) for index in shown
            ]
        elif isinstance(stage, GrpoStage):
            check_reinforcement(stage, groups(environment), stage is stages[-1])
        elif isinstance(stage, SearchStage):
            check_exploration(stage, environment)
        else:
            (read,) = (earlier for earlier in stages[:number] if earlier.name == stage.of)
            assert isinstance(read, SearchStage)


def check_exploration(stage: SearchStage, environment: Environment) -> None:
    """What a search of one case brings, and what is kept of it."""
    judge = ExactJudge()

    async def value(episode: Episode) -> Score:
        return (await stage.reward(((episode,),), instruments(stage)))[0][0]

    async def searched() -> list[Trial]:
        sampling = Sampling(environment.stop, key=1)
        each = [
            await stage.search(SOURCE.train[1], environment, doctor, value, sampling)
            for doctor in doctors(environment)
        ]
        assert all(
            found.scored and found.calls >= len(found.scored) and not found.failures
            for found in each
        )
        trials = [
            (e, score, bool(e.answer) and await judge.same(e.answer[0], e.case))
            for f in each
            for e, score in f.scored
        ]
        return [Trial(*trial) for trial in trials]

    trials = asyncio.run(searched())
    assert {trial.correct for trial in trials} == {True, False}
    choice = stage.choose(trials)
    assert choice.chosen
    assert all(trial in trials and trial.correct for trial in choice.chosen)
    assert all(trial in trials and not trial.correct for trial in choice.rejected)
    assert not stage.choose([trial for trial in trials if not trial.correct]).chosen, (
        "no right answer, nothing to follow"
    )


def check_reinforcement(
    stage: GrpoStage, batch: tuple[tuple[Episode, ...], ...], last: bool = True
) -> None:
    scores = asyncio.run(stage.reward(batch, instruments(stage)))
    advantages = stage.credit(batch, scores, alone)
    assert len(scores) == len(advantages) == len(batch)
    for group, marks, credits in zip(batch, scores, advantages, strict=True):
        for episode, score, credit in zip(group, marks, credits, strict=True):
            assert len(score.turns) == len(credit) == len(episode.turns)
            assert all(map(math.isfinite, [*score.turns, *credit, *score.parts.values()]))
    right, wrong = scores[1][0].total, scores[1][1].total  # the second case is a pneumonia
    assert right >= wrong > scores[1][2].total
    assert right > wrong or not last, "only an earlier stage may pay something else alone"
    assert any(a != 0 for group in advantages for credit in group for a in credit)


@pytest.mark.parametrize("name", methods.names())
def test_settings_are_described_and_closed(name: str) -> None:
    model = methods.load(name).settings
    assert all(field.description for field in model.model_fields.values())
    assert model.model_config["extra"] == "forbid"


def test_a_reward_does_not_depend_on_the_order_of_the_batch() -> None:
    for name in methods.names():
        method = methods.load(name)
        settings, environment = method.settings(), opened_anywhere(method)
        batch = groups(environment)
        for stage in method.stages(settings, environment):
            if isinstance(stage, GrpoStage | SearchStage):
                there = asyncio.run(stage.reward(batch, instruments(stage)))
                back = asyncio.run(stage.reward(batch[::-1], instruments(stage)))
                assert list(there) == list(back)[::-1]


def test_names_are_folders_or_rows_and_unknown_ones_get_a_hint() -> None:
    assert {"craft", "outcome"} <= set(methods.names())
    assert len(set(methods.names())) == len(methods.names()), "a name of several papers' rows"
    with pytest.raises(
        UserError, match=r"no method 'crfat'. Did you mean 'craft'\? \(`workup methods` lists all\)"
    ):
        methods.load("crfat")


def test_methods_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sixth.py").write_text(
        "from dataclasses import replace\n"
        "from workup.methods.craft.baselines import baselines\n"
        "method = replace(baselines['outcome'], summary='mine')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert methods.load("sixth:method").summary == "mine"
    for wrong, why in (
        ("sixth:methd", "method 'sixth:methd': sixth has no 'methd'"),
        ("seventh:method", "cannot import 'seventh'"),
        (":method", "cannot import ''"),
        ("sixth:replace", "is no method: it lacks paper"),
    ):
        with pytest.raises(UserError, match=why):
            methods.load(wrong)


def test_scores_name_their_parts() -> None:
    method = methods.load("craft")
    environment = opened_anywhere(method)
    batch, stages = groups(environment), method.stages(method.settings(), environment)
    (stage,) = (s for s in stages if isinstance(s, GrpoStage))
    ((first, *_), *_) = asyncio.run(stage.reward(batch, Instruments(ExactJudge())))
    assert set(first.parts) == {"α·CR·acc", "β·acc", "λ·t/T", "malformed", "aux"}
    assert replace(first).total == first.total
