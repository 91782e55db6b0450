"""Actions of which a policy writes the content alone: what the grammar puts around it is given.

A small model often answers in words of its own and misses the form. A policy that reads no rules
cannot be told of the form at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from string import ascii_uppercase
from typing import TYPE_CHECKING

from pydantic import Field

from workup.core.case import Case, Kind
from workup.core.episode import DIAGNOSE, Completion, Message, Turn
from workup.core.errors import UserError
from workup.core.ports import Act, Doctor, Environment, Policy, Sampling
from workup.core.text import THINK
from workup.doctors.strategies import Driven, Plain
from workup.doctors.strategies.prompting import told_to_answer
from workup.environments.base.searching import SEARCH
from workup.rl.rollout import TokenDoctor

if TYPE_CHECKING:
    from workup.models.local import LocalPolicy

MARK = "⁂"


class Framable(Plain):
    """The settings of a strategy whose actions can be framed."""

    frame: bool = Field(
        False,
        description="write the tags around questions and answers for the policy, which a small "
        "model may not manage; weights on this machine only",
    )
    letters: bool = Field(
        False,
        description="where answers are framed and options listed, draw the answer from their "
        "letters alone; sampler=local only",
    )


def around(environment: Environment, kind: str = DIAGNOSE) -> tuple[str, str]:
    """How an action of `kind` begins and how it ends in the environment's grammar."""
    begins, _, ends = environment.write(kind, MARK).partition(MARK)
    return begins.rstrip(), ends


def framed(
    driven: Driven, environment: Environment, settings: Framable, *, thinks: bool = False
) -> Driven:
    """The policy with its actions as a doctor framed, if the settings say so.

    It asks (searches, where there are documents) in every turn but the last; it answers in the last
    one and where it is told to. If it `thinks`, a thought of at most half of the tokens precedes
    each action. Raises UserError where the settings do not fit the policy (`framable`), and where
    nothing can be asked or searched.
    """
    policy = framable(driven, settings)
    if policy is None:
        return driven
    if not (environment.about.asks or environment.about.searches):
        raise UserError(
            "strategy.frame writes questions, searches and answers, and this encounter has neither "
            "questions nor searches: leave it out"
        )
    asking = SEARCH if environment.about.searches else Kind.HISTORY.value
    begins, ends = around(environment, asking)
    question = Begun(policy, f"{begins}\n", ends, thinks)
    begins, ends = around(environment)
    answer = Begun(policy, f"{begins}\n", ends, thinks, settings.letters)
    return replace(driven, doctor=Framed(question, answer, environment.max_turns))


def framable(driven: Driven, settings: Framable) -> Policy | None:
    """The policy whose actions are framed; None if the settings do not ask for it.

    Raises UserError for an endpoint, and for letters without a frame or with another sampler than
    `local`.
    """
    if not settings.frame:
        if settings.letters:
            raise UserError("strategy.letters needs strategy.frame=true")
        return None
    if not isinstance(driven.doctor, TokenDoctor):
        raise UserError(
            "strategy.frame needs weights on this machine: an endpoint writes all of its answers; "
            "leave it out"
        )
    if settings.letters and _local(driven.doctor.policy) is None:
        raise UserError("strategy.letters needs sampler=local: other samplers draw freely")
    return driven.doctor.policy


@dataclass(frozen=True)
class Framed:
    """Two doctors in one: the first one asks, the second one answers."""

    asking: Doctor
    answering: Doctor
    max_turns: int

    async def act(
        self, case: Case, opening: Sequence[Message], past: Sequence[Turn], sampling: Sampling
    ) -> Act:
        last = len(past) >= self.max_turns - 1 or told_to_answer(opening, past)
        doctor = self.answering if last else self.asking
        return await doctor.act(case, opening, past, sampling)


@dataclass(frozen=True)
class Begun:
    """A token policy whose every completion begins with `lead`.

    It did not sample these tokens: their log-probability is 0. With a `tail` the completion ends
    after a line or where its tokens are spent, and the tail is written where it is missing. If it
    `thinks`, a thought of its own precedes the lead, of at most half of the tokens; where it does
    not end, it is ended. With `letters` it draws one of those of the case's options, if there are
    some.
    """

    policy: Policy
    lead: str
    tail: str = ""
    thinks: bool = False
    letters: bool = False

    async def act(
        self, case: Case, opening: Sequence[Message], past: Sequence[Turn], sampling: Sampling
    ) -> Act:
        before = tuple(
            token for turn in past for token in (*turn.prompt_tokens, *turn.completion.tokens)
        )
        prompt = self.policy.render(past[-1].observation.messages if past else opening, before)
        so_far, parts, left = (*before, *prompt), [], sampling.max_tokens
        if self.thinks:
            parts = await self._thought(so_far, replace(sampling, max_tokens=max(1, left // 2)))
            left = max(1, left - len(parts[1].tokens))
        parts.append(given(self.policy, self.lead))
        text = (*so_far, *(token for part in parts for token in part.tokens))
        parts.append(await self._content(case, text, replace(sampling, max_tokens=left)))
        # A transcript that has no room left is cut off; a text that does not end is ended.
        full = parts[-1].truncated and len(parts[-1].tokens) < left
        missing = "" if full else self.tail[_overlap(parts[-1].text, self.tail) :]
        return Act(prompt, joined([*parts, *([given(self.policy, missing)] if missing else [])]))

    async def _content(self, case: Case, text: tuple[int, ...], sampling: Sampling) -> Completion:
        local = _local(self.policy) if self.letters and case.options else None
        if local is not None:
            letters = local.one_of(ascii_uppercase[: len(case.options)])
            return await local.sample(text, sampling, letters)
        line = ("\n",) if self.tail else ()
        return await self.policy.sample(text, replace(sampling, stop=(*sampling.stop, *line)))

    async def _thought(self, prompt: tuple[int, ...], sampling: Sampling) -> list[Completion]:
        """The opening tag, what the policy thinks, and the closing tag if it wrote none."""
        opens, ends = given(self.policy, f"<{THINK}>"), f"</{THINK}>"
        thought = await self.policy.sample(
            (*prompt, *opens.tokens), replace(sampling, stop=(ends,))
        )
        closes = [] if thought.text.endswith(ends) else [given(self.policy, ends)]
        return [opens, thought, *closes]


def _local(policy: Policy) -> LocalPolicy | None:
    # Loading torch takes seconds, and strategies are listed without it.
    from workup.models.local import LocalPolicy

    return policy if isinstance(policy, LocalPolicy) else None


def given(policy: Policy, text: str) -> Completion:
    """`text` as part of a completion that the policy did not sample: its log-probability is 0."""
    tokens = policy.encode(text)
    return Completion(text, tokens, (0.0,) * len(tokens))


def joined(parts: Sequence[Completion]) -> Completion:
    """Completions that follow each other as one; the last says whether it was cut off."""
    return Completion(
        "".join(part.text for part in parts),
        tuple(token for part in parts for token in part.tokens),
        tuple(value for part in parts for value in part.logprobs),
        parts[-1].truncated,
    )


def _overlap(text: str, tail: str) -> int:
    """How many characters of `tail`, from its first on, `text` ends with."""
    return next(k for k in range(len(tail), -1, -1) if text.endswith(tail[:k]))
