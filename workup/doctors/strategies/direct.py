"""Direct: the policy answers from the presentation alone; no question is played."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from workup.case import Case
from workup.doctors.strategies import Plain, Seat
from workup.doctors.strategies.prompting import ANSWER, nudged
from workup.episode import DIAGNOSE, Completion, Message, Turn
from workup.ports import Act, Doctor, Environment, Policy, Sampling
from workup.rl.rollout import TokenDoctor, seed_key
from workup.text import THINK

summary = "answers at once, from the presentation alone"
paper = "ProMed, section 4.1 (prompt-based baselines)"
Settings = Plain
MARK = "⁂"


def open(seat: Seat, environment: Environment, settings: Plain) -> Doctor:
    """The policy, told to answer.

    If it cannot be told (it is no chat model), each of its completions begins with the answer's
    tag.
    """
    if seat.model is None and isinstance(seat.doctor, TokenDoctor):
        return Direct(Begun(seat.doctor.policy, around_answer(environment)[0]))
    return Direct(seat.doctor)


def around_answer(environment: Environment) -> tuple[str, str]:
    """How an answer begins and how it ends in the environment's grammar."""
    begins, _, ends = environment.write(DIAGNOSE, MARK).partition(MARK)
    return begins.rstrip(), ends


@dataclass(frozen=True)
class Direct:
    """Every turn shows the presentation again and no answers.

    So a doctor that asks against its instruction learns nothing.
    """

    doctor: Doctor

    async def act(
        self, case: Case, opening: Sequence[Message], past: Sequence[Turn], sampling: Sampling
    ) -> Act:
        asked, _ = nudged(opening, (), ANSWER.spoken(opening))
        again = replace(sampling, key=seed_key(sampling.key, len(past)))
        return await self.doctor.act(case, asked, (), again)


@dataclass(frozen=True)
class Begun:
    """A token policy whose every completion begins with `lead`.

    It did not sample these tokens: their log-probability is 0. With a `tail` the completion ends
    after a line, and the tail is written where it is missing. If it `thinks`, a thought of its own
    precedes the lead, of at most half of the tokens; where it does not end, it is ended.
    """

    policy: Policy
    lead: str
    tail: str = ""
    thinks: bool = False

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
        line = ("\n",) if self.tail else ()
        sampling = replace(sampling, max_tokens=left, stop=(*sampling.stop, *line))
        said = await self.policy.sample(text, sampling)
        open_ended = self.tail and not said.truncated and not said.text.endswith(self.tail)
        return Act(
            prompt, joined([*parts, said, *([given(self.policy, self.tail)] if open_ended else [])])
        )

    async def _thought(self, prompt: tuple[int, ...], sampling: Sampling) -> list[Completion]:
        """The opening tag, what the policy thinks, and the closing tag if it wrote none."""
        opens, ends = given(self.policy, f"<{THINK}>"), f"</{THINK}>"
        thought = await self.policy.sample(
            (*prompt, *opens.tokens), replace(sampling, stop=(ends,))
        )
        closes = [] if thought.text.endswith(ends) else [given(self.policy, ends)]
        return [opens, thought, *closes]


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
