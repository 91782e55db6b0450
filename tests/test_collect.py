"""One step's experience, collected with a real tiny policy.

Tested are groups, shares, failures, verdicts and samples.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from handmade import CASES, DISEASES, SOURCE, opened

from workup.core.case import Case, Source
from workup.core.episode import (
    Action,
    Batch,
    Completion,
    Ending,
    Episode,
    Observation,
    Sample,
    Score,
    Scores,
    Turn,
)
from workup.core.errors import RolloutError, WorkupError
from workup.core.lazy import Lazy
from workup.core.ports import Instruments, Judge
from workup.core.stages import GrpoStage, SftStage
from workup.engines.settings import EngineSettings, SupervisedSettings
from workup.engines.trl.engine import TrlEngine
from workup.loops.evaluation.examination import scores_of
from workup.loops.training.collect import Collection, Share, Step, mean, means
from workup.methods import load
from workup.methods.cmig.information_gain import refinement_rewards
from workup.models.local import LocalPolicy
from workup.models.tiny import TinySettings, build
from workup.roles.judges.exact import ExactJudge
from workup.roles.judges.verdicts import Verdicts
from workup.runs.settings import Settings

METHOD = load("craft")
OPTIONS = METHOD.settings()
WORLD = opened(METHOD, max_turns=4)
STAGE = next(stage for stage in METHOD.stages(OPTIONS, WORLD) if isinstance(stage, GrpoStage))


def taught() -> LocalPolicy:
    """A tiny policy that has seen enough demonstrations to ask and to diagnose."""
    model, tokenizer = build(SOURCE, WORLD.phrases, TinySettings(width=32, layers=1, heads=2), 0)
    policy = LocalPolicy(model, tokenizer)
    teacher = next(stage for stage in METHOD.stages(OPTIONS, WORLD) if isinstance(stage, SftStage))
    batches = (
        [teacher.demonstrate(SOURCE, WORLD, 0, 16 * k + i) for i in range(16)] for k in count()
    )
    with TemporaryDirectory() as folder:
        TrlEngine(policy, EngineSettings(sft=SupervisedSettings(lr=0.02)), Path(folder)).sft(
            batches, 40
        )
    return policy


POLICY = taught()


def collection(
    *,
    source: Source = SOURCE,
    judge: Judge | None = None,
    environment: Any = WORLD,
    share: Share | None = None,
    stage: GrpoStage = STAGE,
    **values: Any,
) -> tuple[Collection, list[Step]]:
    given = {"method": "craft", "batch": 4, "group": 3, "max_tokens": 8, "seed": 5, **values}
    kept: list[Step] = []
    settings = Settings.model_validate(given)
    tools = Instruments(judge or ExactJudge())
    made = Collection(
        stage, source, environment, settings, share or Share(0, 1), kept.append, lambda: tools
    )
    return made, kept


def collect(step: int = 0, **more: Any) -> tuple[list[Sample], Step]:
    made, kept = collection(**more)
    samples = asyncio.run(made.collect(POLICY, step))
    (step_,) = kept
    return samples, step_


def test_the_policy_is_worth_testing_with() -> None:
    _, step = collect(batch=8, group=8)
    endings = Counter(record.episode.ending for record in step.records)
    assert endings[Ending.DIAGNOSED] > 8
    assert {record.correct for record in step.records} == {True, False}


@pytest.mark.parametrize("world", [2, 3])
def test_shares_hold_whole_groups_and_part_the_jobs_exactly(world: int) -> None:
    for step in range(5):
        whole = collection(batch=6)[0].jobs(step)
        parts = [
            collection(batch=6, share=Share(rank, world))[0].jobs(step) for rank in range(world)
        ]
        assert Counter((job.case.id, job.key) for part in parts for job in part) == Counter(
            (job.case.id, job.key) for job in whole
        )
        assert len({job.key for job in whole}) == 6 * 3
        for part in parts:
            assert len(part) == 6 * 3 // world
            assert all(
                len({job.case.id for job in part[start : start + 3]}) == 1
                for start in range(0, len(part), 3)
            )


def test_every_epoch_sees_every_case_once_and_steps_differ() -> None:
    made, _ = collection(batch=2, group=1)
    steps = [made.jobs(step) for step in range(6)]
    for epoch in range(3):
        assert Counter(
            job.case.id for jobs in steps[2 * epoch : 2 * epoch + 2] for job in jobs
        ) == Counter(c.id for c in CASES)
    keys = [job.key for jobs in steps for job in jobs]
    assert len(set(keys)) == len(keys)


def test_the_same_step_is_the_same_again_and_another_is_not() -> None:
    first, again, other = collect(3)[0], collect(3)[0], collect(4)[0]
    assert first == again
    assert first != other
    assert first != collect(3, seed=6)[0]


def test_what_a_reward_draws_follows_from_seed_and_step() -> None:
    """Of a step played again, as after an interruption, it is the same, in every process."""
    keys: list[int] = []

    async def drawing(batch: Batch, instruments: Instruments) -> Scores:
        keys.append(instruments.key)
        return await STAGE.reward(batch, instruments)

    stage = replace(STAGE, reward=drawing)
    for step, more in (
        *((step, {"seed": seed}) for seed in (5, 6) for step in range(3)),
        (2, {"seed": 6}),
        (2, {"seed": 6, "share": Share(1, 2)}),
    ):
        collect(step, stage=stage, **more)
    assert len(set(keys)) == 6
    assert keys[5] == keys[6] == keys[7]
    collect(2, stage=replace(stage, name="another"), seed=6)
    assert keys[8] not in keys[:8]


def test_samples_carry_the_models_own_log_probabilities() -> None:
    samples, step = collect()
    assert len(samples) == 12
    for made, record in zip(samples, step.records, strict=True):
        ids = torch.tensor([made.tokens])
        with torch.no_grad():
            expected = (
                POLICY.model(ids)
                .logits[0, :-1]
                .log_softmax(-1)
                .gather(-1, ids[0, 1:, None])[:, 0]
                .tolist()
            )
        for place, (own, found) in enumerate(zip(made.mask, made.logprobs, strict=True)):
            assert found == (pytest.approx(expected[place - 1], abs=2e-5) if own else 0.0)
        assert tuple(record.advantages) == made.advantages
        assert sum(made.mask) == sum(len(turn.completion.tokens) for turn in record.episode.turns)


def test_records_tell_processes_apart() -> None:
    """Where an epoch ends within a step both may play the same case."""
    keys = [
        record.key
        for rank in range(2)
        for record in collect(share=Share(rank, 2), batch=16)[1].records
    ]
    assert len(keys) == 48
    assert len(set(keys)) == 48
    assert {key[3] for key in keys} == {1}


class Fragile:
    """The consultation, but the patient of one case always leaves; a real environment, wrapped."""

    def __init__(self, gone: Sequence[str]) -> None:
        self.gone = gone

    def __getattr__(self, name: str) -> Any:
        return getattr(WORLD, name)

    async def answer(self, case: Case, past: Sequence[Turn], action: Action) -> Observation:
        if case.id in self.gone:
            raise RolloutError("the patient left")
        return await WORLD.answer(case, past, action)


def test_failed_episodes_are_recorded_and_counted_but_not_learned_from() -> None:
    samples, step = collect(environment=Fragile(["case-2"]), max_failed=0.5)
    failed = [record for record in step.records if record.episode.ending is Ending.FAILED]
    assert failed
    assert {record.episode.case.id for record in failed} == {"case-2"}
    assert all(
        r.correct is None
        and r.score is None
        and not r.measures
        and r.episode.reason == "the patient left"
        for r in failed
    )
    assert len(samples) == 12 - len(failed)
    assert step.metrics["endings"]["failed"] == len(failed)
    assert step.metrics["episodes"] == len(step.records) == 12
    totals = [record.score.total for record in step.records if record.score]
    assert step.metrics["reward"] == pytest.approx(sum(totals) / len(totals))


def test_too_many_failures_stop_the_run_with_the_commonest_reason() -> None:
    with pytest.raises(
        WorkupError,
        match=r"of 12 episodes failed, more than max_failed=0.2; \d+ of them: the patient",
    ):
        collect(environment=Fragile(["case-1", "case-2"]))


class Judging:
    """An exact judge that counts, and gives up on one answer."""

    def __init__(self, silent: str = "") -> None:
        self.asked: list[tuple[str, str]] = []
        self.silent = silent

    async def same(self, answer: str, case: Case) -> bool:
        return await self.grade(answer, case) == 1

    async def grade(self, answer: str, case: Case) -> float:
        self.asked.append((case.id, answer))
        await asyncio.sleep(0)
        if answer == self.silent:
            raise RolloutError("no verdict")
        return await ExactJudge().grade(answer, case)


def test_a_judge_that_gives_up_fails_the_episode_and_is_never_a_zero() -> None:
    _, plain = collect(batch=8, group=8)
    names = Counter(
        r.episode.answer[0] for r in plain.records if r.episode.ending is Ending.DIAGNOSED
    )
    silent = names.most_common()[-1][0]
    samples, step = collect(batch=8, group=8, judge=Judging(silent), max_failed=1.0)
    failed = [record for record in step.records if record.episode.ending is Ending.FAILED]
    assert len(failed) == names[silent] > 0
    assert all(
        r.episode.reason == "judge: no verdict" and r.score is None and r.correct is None
        for r in failed
    )
    assert len(samples) == 64 - len(failed)
    # The others are judged as if nothing had happened.
    before = {r.key: (r.correct, r.score) for r in plain.records}
    assert all((r.correct, r.score) == before[r.key] for r in step.records if r not in failed)


def test_a_further_judge_that_gives_up_fails_the_episode_too() -> None:
    async def settle(episode: Episode) -> None:
        if episode.case.id == "case-1":
            raise RolloutError("no place for the list")

    stage = GrpoStage(STAGE.name, STAGE.reward, STAGE.credit, settle=settle)
    samples, step = collect(batch=8, group=8, stage=stage, max_failed=1.0)
    failed = [record for record in step.records if record.episode.case.id == "case-1"]
    assert 0 < len(failed) < 64
    assert {r.episode.reason for r in failed} == {"judge: no place for the list"}
    assert all(r.score is None and r.correct is None for r in failed)
    assert len(samples) == 64 - len(failed)


def test_a_reward_that_gives_up_fails_its_episodes_and_not_the_run() -> None:
    """The episodes of one case cannot be scored; the others are, as if they were alone."""
    lost = CASES[0].id

    async def giving_up(batch: Batch, instruments: Instruments) -> Scores:
        if any(episode.case.id == lost for group in batch for episode in group):
            raise RolloutError("the context is too long")
        return await STAGE.reward(batch, instruments)

    made, kept = collection(stage=replace(STAGE, reward=giving_up), max_failed=1.0)
    places = [job.case.id for job in made.jobs(0)]
    assert 0 < places.count(lost) < len(places)
    samples = asyncio.run(made.collect(POLICY, 0))
    (step,) = kept
    failed = [record for record in step.records if record.episode.ending is Ending.FAILED]
    assert [record.episode.case.id for record in failed] == [lost] * places.count(lost)
    assert {record.episode.reason for record in failed} == {"the context is too long"}
    assert all(record.score is None and record.correct is None for record in failed)
    assert len(samples) == len(places) - len(failed)
    with pytest.raises(WorkupError, match="the context is too long"):
        collect(stage=replace(STAGE, reward=giving_up), max_failed=0.1)


def test_the_others_are_scored_together_and_every_process_exchanges_as_often() -> None:
    """A reward that compares the whole batch: the median of the others does not change."""
    exchanged: list[list[float]] = []

    def all_gather(mine: Sequence[float]) -> Sequence[float]:
        exchanged.append(list(mine))
        return mine

    async def above(batch: Batch, instruments: Instruments) -> Scores:
        gains = [float(len(episode.turns)) for group in batch for episode in group]
        if 3.0 in gains:
            raise RolloutError("too long")
        paid = iter(refinement_rewards(gains, instruments.all_gather))
        return [[Score.at_end(episode, next(paid)) for episode in group] for group in batch]

    def lasting(turns: int) -> Episode:
        act = Turn((1,), Completion("x", (2,), (0.0,)), Action("ask", ("x",)), Observation())
        return Episode(CASES[0], (), (act,) * turns, Ending.OUT_OF_TURNS)

    batch = tuple(tuple(map(lasting, group)) for group in ((1, 3), (2, 4), (3,)))
    (one, gone), (two, four), (lost,) = asyncio.run(
        scores_of(above, batch, Instruments(ExactJudge(), all_gather))
    )
    assert [each.total for each in (one, two, four) if isinstance(each, Score)] == [0, 0.1, 0.1]
    assert str(gone) == str(lost) == "too long"
    assert exchanged == [[1.0, 2.0, 4.0]]


def test_the_same_answer_to_the_same_case_is_judged_once() -> None:
    judge = Judging()
    _, step = collect(batch=8, group=8, judge=judge)
    answers = {
        (r.episode.case.id, r.episode.answer[0])
        for r in step.records
        if r.episode.ending is Ending.DIAGNOSED
    }
    assert Counter(judge.asked) == Counter(answers)


def test_settle_asks_no_judge_about_what_is_wrong_by_definition() -> None:
    def episode(ending: Ending, *answer: str) -> Episode:
        turn = Turn((1,), Completion("", (2,), (-1.0,)), Action("diagnose", answer), Observation())
        return Episode(CASES[0], (), (turn,), ending)

    judge = Judging()
    episodes = [
        episode(Ending.DIAGNOSED, "Flu"),
        episode(Ending.DIAGNOSED),
        episode(Ending.OUT_OF_TOKENS, "Flu"),
        episode(Ending.OUT_OF_TURNS),
        episode(Ending.FAILED, "Flu"),
        episode(Ending.DIAGNOSED, "Gout"),
    ]
    verdicts = Verdicts(judge)

    async def settle() -> list[tuple[Episode, bool | None]]:
        return [await verdicts.settle(episode) for episode in episodes]

    settled = asyncio.run(settle())
    assert [verdict for _, verdict in settled] == [True, False, False, False, None, False]
    assert judge.asked == [("case-1", "Flu"), ("case-1", "Gout")]


def test_a_judge_that_failed_is_asked_again() -> None:
    class Tired:
        calls = 0

        async def grade(self, answer: str, case: Case) -> float:
            self.calls += 1
            if self.calls == 1:
                raise RolloutError("busy")
            return 1.0

    judge = Tired()
    verdicts = Verdicts(judge)  # type: ignore[arg-type]

    async def twice() -> list[Any]:
        both = (verdicts.grade("Flu", CASES[0]) for _ in range(2))
        failed = await asyncio.gather(*both, return_exceptions=True)
        return [*map(str, failed), await verdicts.grade("Flu", CASES[0])]

    assert asyncio.run(twice()) == ["busy", "busy", 1.0]
    assert judge.calls == 2


def test_a_group_that_failed_whole_is_left_out() -> None:
    seen: list[Batch] = []

    async def reward(batch: Batch, instruments: Instruments) -> Scores:
        seen.append(batch)
        return await STAGE.reward(batch, instruments)

    stage = GrpoStage(STAGE.name, reward, STAGE.credit)
    samples, _ = collect(
        environment=Fragile(["case-1", "case-2", "case-3"]), max_failed=1.0, stage=stage
    )
    assert all(len(group) > 0 for group in seen[0])
    assert sum(map(len, seen[0])) == len(samples)


def test_balance_evens_out_the_classes() -> None:
    labels = array("H", [0] * 90 + [1] * 10)
    many = Source(
        "many",
        Lazy(100, lambda k: replace(CASES[labels[k]], id=f"case {k}"), labels),
        CASES,
        (),
        DISEASES,
    )

    def rare(balance: float) -> float:
        made, _ = collection(source=many, batch=200, group=1, balance=balance)
        jobs = [job for step in range(4) for job in made.jobs(step)]
        return sum(job.case.truth.diagnosis == "Pneumonia" for job in jobs) / len(jobs)

    assert rare(0.0) == pytest.approx(0.1)
    assert rare(1.0) == pytest.approx(0.5, abs=0.2)


def test_means() -> None:
    assert mean([]) is None
    assert mean([None, None]) is None
    assert mean([1.0, None, 2.0]) == 1.5
    assert means([{"a": 1.0}, {"a": 3.0, "b": 1.0}]) == {"a": 2.0, "b": 0.5}
