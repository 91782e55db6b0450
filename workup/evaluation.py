"""The one evaluation loop: doctors play test cases, and what they did becomes records, measures and a summary."""

from __future__ import annotations

import asyncio
import re
import shlex
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from workup.case import Case, Source
from workup.cases import open_source
from workup.environments.consultation import Consultation
from workup.environments.doctors import BayesDiagnoser, FullInformationDoctor, GreedyDoctor, RandomDoctor
from workup.environments.hybrid import Diagnoser, TranscriptDiagnoser, conclude, whole_record
from workup.episode import Episode, Score
from workup.errors import UserError
from workup.judges.exact import ExactJudge
from workup.judges.verdicts import Verdicts
from workup.live import Live
from workup.ports import Doctor, Environment, Instruments, Judge, Reward, Sampling
from workup.rollout import Job, Play, TokenDoctor, play_all, seed_key
from workup.runs import Record, Run, versions
from workup.runs.folder import is_run
from workup.runs.summary import summarise
from workup.settings import EvaluationSettings, PolicySettings
from workup.signals.measures import measure

CHUNK = 256  # episodes in memory at a time
HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Examination:
    """What every doctor of a run is put through: the same cases, the same seeds, the same judge.

    `reward` scores the episodes as training does, so that the report can show where the reward comes from.
    """

    environment: Environment
    cases: Sequence[Case]
    judge: Judge
    settings: EvaluationSettings
    reward: Reward | None = None
    max_tokens: int = 256
    seed: int = 0
    costs: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls, source: Source, environment: Environment, judge: Judge, settings: EvaluationSettings, **more: object
    ) -> Examination:
        """The examination on the test split of `source`; UserError when that is empty."""
        if not len(source.test):
            raise UserError(f"{source.name} holds no test case; a file needs at least a handful of cases to hold some out")
        costs = {item.name: item.cost for item in source.items}
        return cls(environment, source.test, judge, settings, costs=costs, **more)  # type: ignore[arg-type]

    @property
    def total(self) -> int:
        """How many episodes one doctor plays."""
        return min(len(self.cases), self.settings.cases) * self.settings.samples

    def jobs(self) -> Iterator[tuple[Job, int]]:
        """Every episode to play, with the number of its sample; the key depends on case and sample alone."""
        # Evenly spaced, since a file may be sorted by diagnosis.
        count = min(len(self.cases), self.settings.cases)
        for case in (self.cases[index * len(self.cases) // count] for index in range(count)):
            for sample in range(self.settings.samples):
                yield Job(case, seed_key("evaluate", self.seed, case.id, sample)), sample

    @property
    def play(self) -> Play:
        return Play(self.settings.temperature, self.max_tokens, self.settings.avoid_repeats)


Player = Callable[[Examination, Sequence[Job]], Awaitable[list[Episode]]]


def playing(doctor: Doctor) -> Player:
    """`doctor` plays from the presentation to the diagnosis."""

    async def play(examination: Examination, jobs: Sequence[Job]) -> list[Episode]:
        return await play_all(jobs, examination.environment, doctor, examination.play, CHUNK)

    return play


def hybrid(gather: Doctor, diagnoser: Diagnoser) -> Player:
    """One gathers, another concludes from the transcript (CR-11)."""

    async def play(examination: Examination, jobs: Sequence[Job]) -> list[Episode]:
        gathered = await playing(gather)(examination, jobs)
        return list(await asyncio.gather(*(conclude(episode, diagnoser) for episode in gathered)))

    return play


def oracle(diagnoser: Diagnoser, environment: Consultation) -> Player:
    """The diagnoser sees the whole record at once (CR-11)."""

    async def play(examination: Examination, jobs: Sequence[Job]) -> list[Episode]:
        records = [whole_record(job.case, environment) for job in jobs]
        return list(await asyncio.gather(*(conclude(episode, diagnoser) for episode in records)))

    return play


def examine(run: Run, examination: Examination, player: Player, label: str, progress: Progress | None = None) -> None:
    """Plays the examination and writes its episodes into `run` as those of `label`."""
    jobs, done = examination.jobs(), 0
    while chunk := list(islice(jobs, CHUNK)):
        run.write(asyncio.run(_examine(examination, player, label, chunk)))
        done += len(chunk)
        if progress is not None:
            progress(done, examination.total)


async def _examine(examination: Examination, player: Player, label: str, jobs: Sequence[tuple[Job, int]]) -> list[Record]:
    verdicts = Verdicts(examination.judge)
    settled = await verdicts.settle(await player(examination, [job for job, _ in jobs]))
    scores = await _scores([e for e, correct in settled if correct is not None], examination.reward, verdicts)
    records = []
    for (episode, correct), (_, sample) in zip(settled, jobs, strict=True):
        judged = correct is not None
        measures = measure(episode, bool(correct), examination.costs) if judged else {}
        score = next(scores) if judged and examination.reward else None
        records.append(Record(label, episode, sample=sample, correct=correct, score=score, measures=measures))
    return records


async def _scores(episodes: Sequence[Episode], reward: Reward | None, judge: Judge) -> Iterator[Score]:
    if reward is None or not episodes:
        return iter(())
    return iter((await reward((tuple(episodes),), Instruments(judge)))[0])


def anchors(source: Source, environment: Environment, seed: int) -> dict[str, Doctor]:
    """The doctors that every curve is held against, by label; none where the source has no model of its cases."""
    if source.knowledge is None:
        return {}
    return {
        "random doctor": RandomDoctor(source.knowledge, source.items, environment.max_turns, seed),
        "greedy information": GreedyDoctor(source.knowledge, source.items, environment.max_turns),
        "full information": FullInformationDoctor(source.knowledge, source.items),
    }


def start(settings: PolicySettings, out: Path, live: Live) -> Run:
    """Evaluates one policy into the new folder `out`: the policy, the anchors, and with `conclude` hybrid and oracle.

    `settings.policy` is a model folder, a run folder, a hub id, or the name of an anchor. Raises UserError for what the user
    can mend; nothing is written then.
    """
    began, settings = time.monotonic(), as_trained(settings)
    source = open_source(settings.cases, seed=settings.seed)
    environment = Consultation(source.items, source.diagnoses, settings.max_turns or 10)
    examination = Examination.of(
        source, environment, ExactJudge(), settings.evaluation, max_tokens=settings.max_tokens or 256, seed=settings.seed
    )
    players = _players(settings, source, environment)
    command = shlex.join(["workup", *sys.argv[1:]])
    with Run.create(
        out, {"kind": "evaluation", **settings.model_dump(mode="json")}, versions({"run": settings.seed}, command)
    ) as run:
        for label, player in players.items():
            live.stage(f"evaluate {label}", examination.total, unit="episode")
            examine(run, examination, player, label, lambda done, _: live.step({"step": done}))
        live.table(summarise(run, steps=0, seconds=time.monotonic() - began))
        for note in source.notes:
            live.note(note)
    return Run.open(out)


def _players(settings: PolicySettings, source: Source, environment: Consultation) -> dict[str, Player]:
    """Everyone who plays, by label."""
    known = anchors(source, environment, settings.seed)
    name = settings.policy
    gather = known[name] if name in known else open_policy(settings, name)
    players = {Path(name).name: playing(gather)}
    if settings.conclude is not None:
        diagnoser, other = _diagnoser(settings, source, environment), Path(settings.conclude).name
        players[f"{Path(name).name}, {other} concludes"] = hybrid(gather, diagnoser)
        players[f"{other}, oracle context"] = oracle(diagnoser, environment)
    others = known if settings.evaluation.anchors else {}
    return {**players, **{label: playing(doctor) for label, doctor in others.items() if label != name}}


def _diagnoser(settings: PolicySettings, source: Source, environment: Consultation) -> Diagnoser:
    assert settings.conclude is not None
    if settings.conclude != "bayes":
        return TranscriptDiagnoser(
            open_policy(settings, settings.conclude), environment, Sampling(environment.stop, settings.max_tokens or 256)
        )
    if source.knowledge is None:
        raise UserError(f"conclude=bayes needs a model of the cases, which {source.name} does not have")
    return BayesDiagnoser(source.knowledge, source.items)


def as_trained(settings: PolicySettings) -> PolicySettings:
    """`settings` with what they leave open taken from the run that trained the policy, where it is a run folder."""
    if not is_run(Path(settings.policy)):
        return settings
    config = Run.open(settings.policy).config
    known = {"max_turns": (config.get("reward") or {}).get("max_turns"), "max_tokens": config.get("max_tokens")}
    return settings.model_copy(update={name: value for name, value in known.items() if getattr(settings, name) is None})


def open_policy(settings: PolicySettings, name: str) -> Doctor:
    """The policy of a run, a model folder or a hub id as a doctor."""
    import torch

    from workup.models.local import LocalPolicy, load

    torch.set_num_threads(settings.threads)
    model, tokenizer = load(policy_path(name), dtype=settings.dtype)
    return TokenDoctor(LocalPolicy(model, tokenizer, max_batch=settings.concurrency))


def policy_path(name: str) -> str:
    """Where the weights are: a run folder stands for the policy it trained. UserError for what cannot be a policy."""
    if not Path(name).exists() and not HUB_ID.fullmatch(name):
        raise UserError(f"no policy at '{name}' (a model folder, a run folder, a hub id, or the name of an anchor)")
    if not is_run(Path(name)):
        return name
    path = Path(name) / "policy"
    if not path.exists():
        raise UserError(f"{name} has trained no policy yet; type `workup resume {name}` first")
    return str(path)
