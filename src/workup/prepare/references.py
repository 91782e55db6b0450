"""Reference reasoning (Med-R³ MR-12): a strong model's thought before a fully right answer.

It is kept if it is sound: the draw is well formed, its answer is marked `right`, and its reasoning
`sound`. Drawing ends at `keep` texts or after `n` draws; a question with fewer than `least` is
dropped. Draws that `complexity` made come from the cache, with the same model, question, `form` and
`max_tokens`. With an `index` the model searches while it reasons, and what it was shown stays in
the reference. Earlier references and their graphs are replaced.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from functools import lru_cache

from pydantic import Field

from workup.core.case import Case, Source
from workup.core.episode import Ending
from workup.core.errors import RolloutError
from workup.core.shapes import ClosedModel
from workup.doctors.endpoint import ModelDoctor
from workup.environments.base.thoughts import Process, written
from workup.environments.reasoning import Reasoning, Settings
from workup.environments.reasoning import open as open_reasoning
from workup.prepare import draws
from workup.prepare.prompts import LONGEST, section, stem
from workup.prepare.steps import Aids, Drop, Kept, Outcome, PrepareStep
from workup.rl.rollout import Play, ToPlay, rollout
from workup.roles.fence import clean
from workup.roles.judges.assessor import Rubric, consult

RUBRIC = Rubric(
    "reasoning/1",
    "You mark the reasoning behind an answer to a medical question. The answer was found to be "
    "right; what counts is the way to it. Mark from 1 to 5:\n"
    "5: sound: every step is correct, specific to this case and follows from what comes before; "
    "nothing essential is missing.\n"
    "4: sound but for a superfluous or loosely founded step.\n"
    "3: plausible, with a gap or an error that does not reach the conclusion.\n"
    "2: the conclusion does not follow from the reasoning.\n"
    "1: no reasoning, wrong throughout, garbled, or about something else.\n"
    'Answer with one JSON object: {"reason": one short sentence, "mark": a whole number from 1 to '
    "5}.",
    max_tokens=600,
)


class Sound(ClosedModel):
    """The answer's shape."""

    reason: str
    mark: int = Field(ge=1, le=5)


class ReferenceSettings(draws.DrawnSettings):
    """How many references are wanted, and how many answers may be drawn for them."""

    index: str = Field(
        "",
        description="a library to search while reasoning: an index folder, a server, clinic:SUBSET",
    )
    passages: int = Field(5, ge=1, description="documents of one search, with an index")
    searches: int = Field(5, ge=1, description="searches of one draw at most, with an index")
    keep: int = Field(5, ge=1, description="references wanted for each question")
    least: int = Field(1, ge=1, description="a question with fewer is dropped")
    n: int = Field(16, ge=1, description="answers drawn at most")
    right: int = Field(5, ge=1, le=5, description="the least mark of an answer that is right")
    sound: int = Field(5, ge=1, le=5, description="the least mark of reasoning that is sound")


async def apply(case: Case, aids: Aids) -> Outcome:
    """Draws as many at once as are still wanted.

    They are checked in the order of the draws, so that the result depends on nothing else.
    """
    settings: ReferenceSettings = aids.settings
    found: list[str] = []
    refused: Counter[str] = Counter()
    drawn = 0
    while drawn < settings.n and len(found) < settings.keep:
        batch = range(drawn, min(drawn + settings.keep - len(found), settings.n))
        texts = await asyncio.gather(*(_reference(case, aids, sample) for sample in batch))
        found = list(dict.fromkeys([*found, *(text for text, why in texts if not why)]))
        refused.update(why for _, why in texts if why)
        drawn = batch.stop
    others = ", ".join(f"{count} {why}" for why, count in sorted(refused.items()))
    detail = f"{len(found)} of {drawn} draws are sound and right{others and f' ({others})'}"
    if len(found) < settings.least:
        return Drop("too few sound references", detail)
    return Kept(
        replace(case, truth=replace(case.truth, references=tuple(found), graphs=())), detail
    )


async def _reference(case: Case, aids: Aids, sample: int) -> tuple[str, str]:
    """A draw, and why it is no reference; "" if it is whole, well formed, right and sound.

    Each condition is checked only if the one before holds.
    """
    settings: ReferenceSettings = aids.settings
    drawing = _searched if settings.index else draws.draw
    text = await drawing(case, aids, sample)
    if text is None:
        return "", "cut off or without an answer"
    if draws.answer_of(text) is None or Process.of(text).objection:
        return text, "not well formed"
    if await draws.mark(case, text, aids.judge) < settings.right:
        return text, "not right"
    sections = [
        section("question", stem(case)),
        section("reference answer", case.truth.diagnosis),
        ("reasoning to mark", clean(text, LONGEST)),
    ]
    sound = await consult(aids.judge, RUBRIC, sections, Sound, lambda answer: None)
    return text, "" if sound.mark >= settings.sound else "not sound"


async def _searched(case: Case, aids: Aids, sample: int) -> str | None:
    """A draw that may search: an episode of the environment `reasoning`, as one text.

    The model sees what a doctor in training sees. None if it gave no answer. Raises RolloutError
    where model or library give up.
    """
    settings: ReferenceSettings = aids.settings
    play = Play(max_tokens=settings.max_tokens)
    # The searches of a draw have numbers of their own, and draws must not share one.
    job = ToPlay(case, sample * (settings.searches + 1))
    doctor = ModelDoctor(aids.model)
    library = _library(settings.index, settings.passages, settings.searches + 1)
    episode = await rollout(job, library, doctor, play)
    if episode.ending is Ending.FAILED:
        raise RolloutError(episode.reason)
    return written(episode) if episode.ending is Ending.DIAGNOSED else None


@lru_cache(maxsize=1)
def _library(index: str, passages: int, turns: int) -> Reasoning:
    """The environment over a library, for cases from anywhere; only their presentation is told."""
    told = Settings(index=index, passages=passages, max_turns=turns, told="presentation")
    return open_reasoning(Source("references", (), ()), told)


step = PrepareStep(
    "reasoning that led a strong model to the right answer (MR-12)",
    f"{RUBRIC.version}, {draws.VERSION}",
    apply,
    ReferenceSettings,
)
