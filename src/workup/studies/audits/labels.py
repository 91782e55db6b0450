"""A model as judge of diagnoses beside the reviewers of a review."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from pydantic import Field

from workup.core.errors import RolloutError, UserError
from workup.core.ports import Model
from workup.rl.running import run_to_end
from workup.roles.judges.diagnosis import DiagnosisJudge
from workup.roles.judges.questions import NamingQuestion
from workup.studies.audits.judge import Audit, JudgedProbe
from workup.studies.base.task import Begin, Study, StudySettings, StudyTask, quietly
from workup.studies.review.folder import Review
from workup.studies.review.results import Label, Results

PEOPLE = "most reviewers"
VALUES = {"same": 1.0, "partly": 0.5, "wrong": 0.0}
ALONE, AGREED, OUTVOTED = "one reviewer", "all reviewers agree", "some disagree"


class Settings(StudySettings):
    """Who is audited."""

    model: str = Field(description="endpoint:NAME, a model folder, or a hub id")


async def audit(model: Model, results: Results, begin: Begin = quietly) -> Audit:
    """Asks `model` about every marked diagnosis of which most reviewers say the same.

    Episodes without a diagnosis are left out, since nobody is asked about them. Where a question
    knows no "partly", a model's "partly" counts as wrong. Raises UserError where nothing is left.
    """
    form = results.review.form
    judge = DiagnosisJudge(model)
    marked = [
        (name, label)
        for name in form
        if form[name].verdicts
        for label in results.labels(name)
        if label.verdict is not None and label.record.episode.answer
    ]
    if not marked:
        raise UserError(
            f"{results.review.path} has no verdicts on diagnoses: nobody has given any, or none of "
            "its questions has `verdicts`"
        )
    tick = begin(len(marked))
    asked = [_compare(judge, name, label, tick) for name, label in marked]
    graded = {name for name in form if "partly" in form[name].verdicts.values()}
    compared = [  # an ungraded question has no "partly": the model's is "wrong"
        replace(each, model=("wrong",))
        if each.model == ("partly",) and each.judgement not in graded
        else each
        for each in await asyncio.gather(*asked)
    ]
    versions = {name: judge.rubric.version for name in form if form[name].verdicts}
    review = results.review
    about = (model.name, review.path.name, len(marked), review.manifest.seed, versions)
    return Audit(*about, tuple(compared), PEOPLE, restricted=review.manifest.restricted)


async def _compare(
    judge: DiagnosisJudge, name: str, label: Label, tick: Callable[[], None]
) -> JudgedProbe:
    episode, verdict = label.record.episode, str(label.verdict)
    kind = ALONE if label.voters == 1 else AGREED if label.agreed == label.voters else OUTVOTED
    told = (name, kind, episode.case.id, (verdict,))
    try:
        found = await judge.judge(NamingQuestion(", ".join(episode.answer), episode.case))
        return JudgedProbe(*told, found.labels, VALUES[verdict], found.value)
    except RolloutError as error:
        return JudgedProbe(*told, None, VALUES[verdict], reason=str(error))
    finally:
        tick()


def run(task: StudyTask) -> Audit:
    """Asks the model about the diagnoses of the review."""
    results = Results.of(Review.open(Path(task.one)))
    model = task.run_models(restricted=results.review.manifest.restricted).open(task.settings.model)
    return run_to_end(audit(model, results, partial(task.begin, unit="diagnosis")))


study = Study(
    "How far does a model agree with what most reviewers say of the same diagnoses?",
    run,
    Settings,
    of="review",
)
