"""What strategies share: text added to a doctor's prompt, and calls beside the encounter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from pydantic import BaseModel

from workup.core.case import Case
from workup.core.episode import Message, Turn
from workup.core.ports import Act, Doctor, Model, Request, Sampling
from workup.environments.base.lexical import chinese
from workup.models.structured import Sizes, ask
from workup.roles.fence import RULES, clean, fenced

Answer = TypeVar("Answer", bound=BaseModel)
LONGEST_CASE = 20_000  # characters of the opening that are shown in a call of ours
LONGEST_SAID = 4_000  # characters of one message of the encounter
MAX_TOKENS = 1_500


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction in English and Chinese."""

    english: str
    chinese: str

    def spoken(self, opening: Sequence[Message]) -> str:
        """The instruction in the case's language, that of the opening's last message."""
        return self.chinese if chinese(opening[-1].content) else self.english


ANSWER = Instruction(
    (
        "Ask nothing more: conclude now with what you know, in the form that the rules give for "
        "the final answer."
    ),
    "不要再提问：请根据已知信息，按规则规定的最终回答格式，现在作出回答。",
)
ASK = Instruction(
    "Do not conclude yet: take one more action that brings the information you miss most.",
    "先不要下结论：请再采取一个行动，获取你目前最需要的信息。",
)

Prompt = Callable[[Sequence[Message], Sequence[Turn]], str]


@dataclass(frozen=True)
class Prompted:
    """`doctor` with `rule` added to the rules, and `nudge(opening, past)` added to its prompt.

    The nudge stands at the end of the message that the doctor reads last.
    """

    doctor: Doctor
    rule: Instruction | None = None
    nudge: Prompt | None = None

    async def act(
        self, case: Case, opening: Sequence[Message], past: Sequence[Turn], sampling: Sampling
    ) -> Act:
        nudge = self.nudge(opening, past) if self.nudge is not None else ""
        if self.rule is not None:
            opening = ruled(opening, self.rule.spoken(opening))
        opening, past = nudged(opening, past, nudge)
        return await self.doctor.act(case, opening, past, sampling)


def ruled(opening: Sequence[Message], text: str) -> tuple[Message, ...]:
    """The opening with `text` at the end of its rules."""
    first, *rest = opening
    if first.role != "system":
        return (Message("system", text), *opening)
    return (replace(first, content=f"{first.content}\n{text}"), *rest)


def nudged(
    opening: Sequence[Message], past: Sequence[Turn], text: str
) -> tuple[Sequence[Message], Sequence[Turn]]:
    """Opening and past with `text` at the end of the message that the doctor reads last."""
    if not text:
        return opening, past
    if not past:
        return _extended(opening, text), past
    *before, last = past
    observation = replace(last.observation, messages=_extended(last.observation.messages, text))
    return opening, (*before, replace(last, observation=observation))


def told_to_answer(opening: Sequence[Message], past: Sequence[Turn]) -> bool:
    """Whether ANSWER is what `nudged` has put at the end of what the doctor reads last."""
    read = past[-1].observation.messages if past else opening
    return bool(read) and read[-1].content.endswith((ANSWER.english, ANSWER.chinese))


def _extended(messages: Sequence[Message], text: str) -> tuple[Message, ...]:
    # At the end of the last message, not as a message of its own: many chat templates need
    # alternating roles.
    if not messages:
        return (Message("user", text),)
    *before, last = messages
    return (*before, replace(last, content=f"{last.content}\n{text}"))


async def inquire(
    model: Model,
    task: str,
    version: str,
    sections: Sequence[tuple[str, str]],
    shape: type[Answer],
    check: Callable[[Answer], str | None] = lambda answer: None,
    sizes: Sizes | None = None,
) -> Answer:
    """The model's answer about (title, text) sections, sampled greedily, outside the encounter.

    Raises RolloutError without a usable answer.
    """
    material = fenced(
        [(title, clean(content, LONGEST_CASE)) for title, content in sections if content]
    )
    messages = (Message("system", f"{task}\n\n{RULES}"), Message("user", material))
    return await ask(
        model, Request("doctor", version, messages, max_tokens=MAX_TOKENS), shape, check, sizes
    )


def encounter(opening: Sequence[Message], past: Sequence[Turn]) -> list[tuple[str, str]]:
    """The encounter so far as sections: its rules, the case, and what was said."""
    rules = "\n".join(message.content for message in opening if message.role == "system")
    case = "\n".join(message.content for message in opening if message.role != "system")
    lines = [
        f"{who}: {text[:LONGEST_SAID]}"
        for turn in past
        for who, text in (
            ("doctor", turn.completion.text),
            *(("reply", message.content) for message in turn.observation.messages),
        )
    ]
    return [
        ("rules of the encounter", rules),
        ("case", case),
        ("encounter so far", "\n".join(lines) or "(nothing was asked yet)"),
    ]
