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
        lead = environment.write(DIAGNOSE, MARK).partition(MARK)[0].rstrip()
        return Direct(Begun(seat.doctor.policy, lead))
    return Direct(seat.doctor)


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

    It did not sample these tokens: their log-probability is 0.
    """

    policy: Policy
    lead: str

    async def act(
        self, case: Case, opening: Sequence[Message], past: Sequence[Turn], sampling: Sampling
    ) -> Act:
        prompt, begun = self.policy.render(opening), self.policy.encode(self.lead)
        said = await self.policy.sample((*prompt, *begun), sampling)
        tokens, logprobs = (*begun, *said.tokens), (*(0.0 for _ in begun), *said.logprobs)
        return Act(prompt, Completion(self.lead + said.text, tokens, logprobs, said.truncated))
