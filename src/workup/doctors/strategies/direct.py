"""Direct: the policy answers from the presentation alone; no question is played."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from workup.core.case import Case
from workup.core.draws import seed_key
from workup.core.episode import Message, Turn
from workup.core.ports import Act, Doctor, Environment, Sampling
from workup.doctors.strategies import Driven, Strategy
from workup.doctors.strategies.framing import Begun, Framable, around, framed
from workup.doctors.strategies.prompting import ANSWER, nudged
from workup.rl.rollout import TokenDoctor


def opened(policy: Driven, environment: Environment, settings: Framable) -> Doctor:
    """The policy, told to answer.

    If it cannot be told (it is no chat model), each of its completions begins with the answer's
    tag.
    """
    if policy.model is None and isinstance(policy.doctor, TokenDoctor):
        return Direct(Begun(policy.doctor.policy, around(environment)[0]))
    return Direct(framed(policy, environment, settings).doctor)


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


strategies = {
    "direct": Strategy(
        summary="answers at once, from the presentation alone",
        paper="ProMed, section 4.1 (prompt-based baselines)",
        settings=Framable,
        open=opened,
    ),
}
