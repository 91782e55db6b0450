"""Answers that were verified afterwards: imitation data of evidence-seeking diagnosis (ES-12).

A model answers a case turn by turn without being shown the truth. Of several answers to a turn the
first is kept whose list holds the truth, and in the last turn whose diagnosis is right. A wrong
format, an order of nothing and a diagnosis too early are not right either. A case whose first turn
has no right answer is dropped; one whose last turn has none keeps the turns before, unless `first`
is false. By default the model judges itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import Field

from workup.core.case import Case
from workup.core.episode import DIAGNOSE, Completion, Message, Turn
from workup.core.errors import UserError
from workup.core.ports import Judge, Model, Request
from workup.core.text import up_to
from workup.environments.base.lists import candidates
from workup.environments.evidence import (
    RANKING,
    SIMULATOR,
    Department,
    EvidenceSeeking,
    Settings,
)
from workup.environments.exams.rages import RagesSettings
from workup.prepare.steps import EXACT, Aids, Drop, GradedSettings, Kept, Outcome, PrepareStep
from workup.roles.judges.diagnosis import DiagnosisJudge
from workup.roles.judges.exact import ExactJudge
from workup.roles.judges.options import OptionJudge
from workup.roles.judges.questions import RankingQuestion

VERSION = "verified-answers/1"
KEPT = "verified"
"""The name in `Truth.extra` under which a case's kept turns stand."""


class VerifiedSettings(GradedSettings):
    """How answers are drawn, and who verifies them."""

    judge: str = Field(
        "",
        description=(
            "who verifies: endpoint:NAME, a folder, a hub id, or exact; by default the model itself"
        ),
    )
    simulator: str = Field(
        "", description="who writes results that neither record nor base have; nobody by default"
    )
    n: int = Field(4, ge=1, description="answers drawn at most for each turn")
    temperature: float = Field(1.0, gt=0, le=2, description="at which answers are drawn")
    max_turns: int = Field(2, ge=1, description="turns, the diagnosis included")
    department: Department = Field(
        "pathology", description="who the model is told to be: pathology, or any"
    )
    first: bool = Field(
        True, description="keep the turns before one that has no right answer; else drop the case"
    )
    rages: RagesSettings = Field(RagesSettings(), description="where results come from (ES-9)")


@dataclass(frozen=True)
class _Cast:
    """Who takes part."""

    world: EvidenceSeeking
    judge: Judge
    aids: Aids

    @classmethod
    def of(cls, aids: Aids) -> _Cast:
        settings: VerifiedSettings = aids.settings
        own = Settings(
            max_turns=settings.max_turns, department=settings.department, rages=settings.rages
        )
        world = EvidenceSeeking(aids.source, own)
        models: dict[str, Model] = {}
        judge: Judge = ExactJudge()
        if settings.judge != EXACT:
            models[RANKING] = aids.judge
            judge = DiagnosisJudge(aids.judge)
        elif not world.ranks:
            raise UserError(
                "judge=exact knows no disease of these cases: their source lists no diagnoses; "
                "name a model"
            )
        if settings.simulator:
            models[SIMULATOR] = aids.open(settings.simulator)
        return cls(world.with_models(models), OptionJudge(judge), aids)


async def apply(case: Case, aids: Aids) -> Outcome:
    """Draws answers turn by turn: for each turn until one is verified, `settings.n` at most."""
    cast, settings = _Cast.of(aids), aids.settings
    past: list[Turn] = []
    wrong: list[str] = []
    drawn = 0
    while len(past) < settings.max_turns and not (past and past[-1].observation.done):
        turn, tried, why = await _verified(case, past, cast)
        drawn += tried
        if turn is None:
            wrong = why
            break
        past.append(turn)
    detail = f"{len(past)} of {settings.max_turns} turns, {drawn} answers drawn"
    if not past:
        return _dropped("the first turn", wrong)
    if wrong and not settings.first:
        return _dropped(f"turn {len(past) + 1}", wrong)
    return Kept(_with(case, past), f"{detail}; {_counted(wrong)}" if wrong else detail)


async def _verified(
    case: Case, past: Sequence[Turn], cast: _Cast
) -> tuple[Turn | None, int, list[str]]:
    """The first right answer to the next turn, how many were drawn, and why others were not kept.

    One is drawn after the other, so that the result depends on nothing else, and no more is paid
    than is needed.
    """
    why: list[str] = []
    for sample in range(cast.aids.settings.n):
        text = await _draw(case, past, sample, cast)
        reason = await _wrong(case, text, len(past), cast)
        if not reason:
            action = cast.world.read(text)
            reply = await cast.world.answer(case, past, action)
            return Turn((), Completion(text), action, reply), sample + 1, why
        why.append(reason)
    return None, cast.aids.settings.n, why


async def _draw(case: Case, past: Sequence[Turn], sample: int, cast: _Cast) -> str:
    """The `sample`-th answer to the turn after `past`; "" if it was cut off.

    The model sees what a doctor in training sees, and nothing of the truth. As in training the
    answer ends with the encounter's stop string: what a model writes behind it does not count.
    """
    messages = list(cast.world.open(case))
    for turn in past:
        messages += [Message("assistant", turn.completion.text), *turn.observation.messages]
    settings = cast.aids.settings
    request = Request(
        "prepare-answer",
        VERSION,
        tuple(messages),
        "",
        settings.max_tokens,
        temperature=settings.temperature,
        sample=sample,
        whole=True,
    )
    reply = await cast.aids.model.complete(request)
    text = up_to(reply.text, cast.world.stop, in_thoughts=cast.world.about.acts_in_thoughts).strip()
    return "" if reply.truncated and not text.endswith(cast.world.stop) else text


async def _wrong(case: Case, text: str, turn: int, cast: _Cast) -> str:
    """Why an answer is not kept, in a few words; "" if it is."""
    action = cast.world.read(text)
    last = turn == cast.aids.settings.max_turns - 1
    objections = (
        (not text, "cut off"),
        (action.errors, "its format is wrong"),
        (last and action.kind != DIAGNOSE, "no diagnosis in the last turn"),
        (not last and action.kind == DIAGNOSE, "a diagnosis before the last turn"),
        (not last and not action.content, "nothing is ordered"),
    )
    if reason := next((reason for holds, reason in objections if holds), ""):
        return reason
    if last:
        right = await cast.judge.same(action.content[0], case)
        return "" if right else "its diagnosis is wrong"
    placed = await cast.world.ranking.judge(RankingQuestion(candidates(action), case))
    found = {-1: "its list holds a hack", 0: "its list lacks the truth"}
    return found.get(placed.position, "")


def _dropped(turn: str, why: Sequence[str]) -> Drop:
    """The case goes no further; the report counts cases by what was commonest among the draws."""
    commonest = max(why, key=why.count)  # the first of equals
    return Drop(f"no answer to {turn} is right; commonest: {commonest}", _counted(why))


def _counted(why: Sequence[str]) -> str:
    return ", ".join(f"{why.count(each)} × {each}" for each in dict.fromkeys(why))


def _with(case: Case, turns: Sequence[Turn]) -> Case:
    """The case with its kept turns in `Truth.extra`; what else stood there stays."""
    extra = case.truth.extra
    if extra is not None and not isinstance(extra, Mapping):
        raise UserError(
            f"case '{case.id}': truth.extra is no object, so the kept answers have no place in it"
        )
    kept = [
        {
            "answer": turn.completion.text,
            "reply": [message.content for message in turn.observation.messages],
        }
        for turn in turns
    ]
    return replace(case, truth=replace(case.truth, extra={**(extra or {}), KEPT: kept}))


def kept(case: Case) -> tuple[tuple[str, tuple[Message, ...]], ...]:
    """The turns that this step kept of a case, as (answer, replies); none for other cases.

    The last turn has no reply. Raises UserError for turns in another form.
    """
    extra: Any = case.truth.extra
    turns = extra.get(KEPT, ()) if isinstance(extra, Mapping) else ()
    try:
        said = [
            (str(turn["answer"]), tuple(Message("user", str(text)) for text in turn["reply"]))
            for turn in turns
        ]
    except (KeyError, TypeError) as error:
        raise UserError(
            f"case '{case.id}': truth.extra.{KEPT} is not what `workup prepare verified-answers` "
            "writes"
        ) from error
    return (*said[:-1], (said[-1][0], ())) if said else ()


step = PrepareStep(
    "answers to order and diagnose from, kept if they turn out right (ES-12)",
    VERSION,
    apply,
    VerifiedSettings,
)
