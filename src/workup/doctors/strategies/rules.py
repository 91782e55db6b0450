"""The encounter's own rules: as they are (vanilla), or with one more, to reason (CoT)."""

from __future__ import annotations

from workup.core.ports import Doctor, Environment
from workup.doctors.strategies import Driven, Strategy
from workup.doctors.strategies.framing import Framable, framed
from workup.doctors.strategies.prompting import Instruction, Prompted

RULE = Instruction(
    "Think step by step before every action, inside <think>…</think>: what is established, which "
    "explanations are left and how likely each is, and what would tell them apart. Then write "
    "the action, and only the action, in the form given above.",
    "每次行动之前，先在<think>…</think>内逐步思考：哪些信息已经明确，还剩哪些可能的解释、各自可能性多大，什么信息能够区分它们。"
    "然后只按上面规定的格式写出这一个行动。",
)


def as_it_is(policy: Driven, environment: Environment, settings: Framable) -> Doctor:
    """The policy under the environment's own rules."""
    return framed(policy, environment, settings).doctor


def reasoning(policy: Driven, environment: Environment, settings: Framable) -> Doctor:
    """The policy with the instruction to reason in the thought before each action.

    Thoughts cost tokens: with a `max_tokens` that is too small, actions are cut off.
    """
    return Prompted(framed(policy, environment, settings, thinks=True).doctor, rule=RULE)


strategies = {
    "vanilla": Strategy(
        summary="the encounter's own rules, nothing added",
        paper="ProMed, section 4.1 (prompt-based baselines)",
        settings=Framable,
        open=as_it_is,
    ),
    "cot": Strategy(
        summary="reasons step by step before each action",
        paper="ProMed, section 4.1; Wei et al. 2022, Kojima et al. 2022",
        settings=Framable,
        open=reasoning,
    ),
}
