"""Every claims file that is built in: its arms can be trained, its measures and parts exist."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import pytest

from workup import cases, methods
from workup.core.ports import LIVE, REFERENCE, Instruments, Logprobs, ScoreRequest
from workup.core.stages import GrpoStage
from workup.loops.training.plan import Plan as Training
from workup.metrics.known import metric
from workup.report.dynamics import PART
from workup.rl.rollout import Play, ToPlay, rollout
from workup.runs.settings import PolicySettings, Settings, build, read, world
from workup.runs.words import STAGES, TRAINED
from workup.studies import claims
from workup.studies.claims import SCALES, ScaleName, parted
from workup.studies.claims.trial import ClaimsPlan

NAMES = claims.names()


def plan(name: str, scale: ScaleName) -> ClaimsPlan:
    return ClaimsPlan(claims.read(name), scale, Path("runs"), seeds=1)


def arms() -> Iterator[tuple[str, ScaleName, str, str]]:
    """Paper, scale, set-up and arm of everything that can be typed."""
    for name in NAMES:
        for scale in SCALES:
            found = plan(name, scale)
            for setup in found.setups:
                yield from ((name, scale, setup, arm) for arm in found.arms(setup))


def settings(words: Sequence[str]) -> Settings:
    """What the command line makes of the words behind `workup train`."""
    method, *rest = words
    options = {rest[at][2:]: rest[at + 1] for at, word in enumerate(rest) if word[:2] == "--"}
    skipped = {place for at, word in enumerate(rest) if word[:2] == "--" for place in (at, at + 1)}
    typed = [word for at, word in enumerate(rest) if at not in skipped]
    assert options.keys() <= {"cases", "policy"}
    return build(Settings, {**read(typed), "method": method, **options})


def checked(made: Settings) -> None:
    """Raises UserError for a name or a value that nobody knows; opens no file and no model."""
    method = methods.load(made.method)
    build(method.settings, made.own_reward, prefix="reward")
    chosen = world(made.environment, method.environment)
    assert chosen.config["name"]
    assert made.cases.partition(":")[0] in {each.name for each in cases.schemes()}


@pytest.mark.parametrize("name", NAMES)
def test_a_paper_is_whole(name: str) -> None:
    """Ids differ, sentences are short, and nothing stands there that nobody needs."""
    paper = claims.read(name)
    ids = [claim.id for claim in paper.claims]
    assert len(set(ids)) == len(ids)
    assert all(each.says and not each.says.endswith(".") for each in paper.claims)
    assert max(len(each.says.split()) for each in paper.claims) <= 20
    named = {claim.setup for claim in paper.claims if not claim.cannot}
    assert named == paper.setups.keys(), "a set-up without a claim"
    for setup in paper.setups:
        own = [claim for claim in paper.claims if claim.setup == setup]
        compared = [each for claim in own for each in claim.compared]
        assert {arm for arm, _ in compared} == paper.setups[setup].arms.keys()
        assert {place for _, place in compared} >= paper.setups[setup].elsewhere.keys()


@pytest.mark.long
@pytest.mark.parametrize(("name", "scale", "setup", "arm"), arms())
def test_an_arm_can_be_typed(name: str, scale: ScaleName, setup: str, arm: str) -> None:
    found = plan(name, scale)
    checked(settings(found.words(setup, arm, 0)))
    if begun := found.start(setup):
        checked(settings(begun.words))


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_arms_of_a_set_up_begin_alike(name: str) -> None:
    """But for a few: they have the same cases and evaluation, and as many patients."""
    found = plan(name, "tiny")
    for setup in found.setups:
        made = [settings(found.words(setup, arm, 0)) for arm in found.arms(setup)]
        for claim in found.claims(setup):
            sides = [parted(side) for side in (claim.better, claim.than) if isinstance(side, str)]
            gains = [side for side in sides if len(side) > 1]
            for side in gains or [claim.compared]:
                assert len({settings(found.words(setup, arm, 0)).cases for arm, _ in side}) == 1
        assert len({each.evaluation.model_dump_json() for each in made}) == 1
        assert len({each.max_tokens for each in made}) == 1


TINY = [each for each in arms() if each[1] == "tiny"]


@lru_cache(maxsize=1)  # neighbouring tests may want the same
def training(words: tuple[str, ...]) -> Training:
    """The run of these words, with few cases to evaluate: measures look at all of them."""
    return Training.of(settings((*words, "evaluation.cases=20")), "user")


@pytest.mark.long
@pytest.mark.parametrize(("name", "scale", "setup", "arm"), TINY)
def test_a_tiny_arm_can_be_trained(name: str, scale: ScaleName, setup: str, arm: str) -> None:
    """Everything that a run resolves before it begins: cases, encounter, demonstrations, stages."""
    found = plan(name, scale)
    made = training(found.words(setup, arm, 0))
    room = found.setups[setup].headroom
    assert room is None or {room.high, room.low} <= set(made.anchors)
    assert room is None or metric(room.measure).sense


class Indifferent:
    """A scorer whose every answer is as probable under all evidence."""

    seconds = 0.0

    async def score(self, request: ScoreRequest) -> Logprobs:
        return Logprobs((-1.0,) * len(request.contexts), 1)

    def refresh(self) -> None:
        return None


def parts() -> Iterator[tuple[str, str, str, str]]:
    """Paper, set-up and arm, and the part of its reward that is looked at."""
    for name in NAMES:
        paper = claims.read(name)
        for setup, each in paper.setups.items():
            yield from ((name, setup, arm, part) for arm, part in each.paid.items())
        for claim in paper.claims:
            for side, measure in ((claim.better, claim.measure), (claim.than, claim.measure)):
                if measure.startswith(PART):
                    yield name, claim.setup, str(side), measure.removeprefix(PART)


@pytest.mark.long
@pytest.mark.parametrize(("name", "setup", "arm", "part"), sorted({*parts()}))
def test_a_reward_has_the_part_that_a_claim_is_about(
    name: str, setup: str, arm: str, part: str
) -> None:
    """Asked of the reward itself, with an episode that an anchor played."""
    found = plan(name, "tiny")
    made = training(found.words(setup, arm, 0))
    (doctor, *_) = made.environment.about.anchors(made.source, 0).values()
    case = made.source.train[0]
    episode = asyncio.run(rollout(ToPlay(case, 0), made.environment, doctor, Play()))
    scorers = {LIVE: Indifferent(), REFERENCE: Indifferent()}
    instruments = Instruments(made.supporting.judge, scorers=scorers)
    known: set[str] = set()
    for stage in made.stages:
        if isinstance(stage, GrpoStage):
            ((score,),) = asyncio.run(stage.reward([[episode]], instruments))
            known.update(score.parts)
    assert part in known


def elsewhere() -> list[tuple[str, str, str]]:
    papers = {name: claims.read(name) for name in NAMES}
    return [
        (name, setup, place)
        for name, paper in papers.items()
        for setup, chosen in paper.setups.items()
        for place in chosen.elsewhere
    ]


@pytest.mark.parametrize(("name", "setup", "place"), elsewhere())
def test_a_further_evaluation_can_be_typed(name: str, setup: str, place: str) -> None:
    """Its settings are those of an evaluation; the policy is the arm's run."""
    found = plan(name, "tiny")
    jobs = [
        job
        for arm in found.arms(setup)
        for at, job in found.elsewhere(setup, arm, 0).items()
        if at == place
    ]
    assert jobs, f"no claim compares {place}"
    for job in jobs:
        assert job.verb == "evaluate"
        assert job.words[0] == str(job.out.parents[2] / job.out.name)
        changes = read([word for word in job.words[1:] if "=" in word])
        build(PolicySettings, {"cases": "clinic:s", "policy": "x", **changes})


@pytest.mark.parametrize("name", NAMES)
def test_measures_are_known(name: str) -> None:
    """A measure of a claim is declared, and its doctor is one that is evaluated."""
    paper = claims.read(name)
    for claim in paper.claims:
        if claim.cannot:
            continue
        for measure in filter(None, (claim.measure, claim.than_measure)):
            assert metric(measure).sense or measure.startswith(PART), f"{claim.id}: {measure}?"
        known = (*STAGES, TRAINED, "full information", *paper.setups[claim.setup].elsewhere)
        assert {place for _, place in claim.compared} <= {*known, "random doctor"}
