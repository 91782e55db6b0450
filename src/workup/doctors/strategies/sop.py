"""SOP-guided questioning (PM-14): a fixed order of questions, by the Calgary–Cambridge guide.

The complaint is asked about by OPQRST. The order is part of the rules, and each turn says which
step is due. That follows from the number of turns taken: the questions that the environment allows
are spread evenly over the steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from workup.core.episode import Message, Turn
from workup.core.ports import Doctor, Environment
from workup.doctors.strategies import Driven, Strategy
from workup.doctors.strategies.framing import Framable, framed
from workup.doctors.strategies.prompting import ANSWER, Instruction, Prompted
from workup.environments.base.lexical import chinese

STEPS = (
    Instruction("onset: when and how it began", "起病：何时、如何开始"),
    Instruction(
        "provocation and palliation: what makes it worse or better",
        "诱因与缓解：什么使之加重或减轻",
    ),
    Instruction("quality: what it is like", "性质：是什么样的感觉或表现"),
    Instruction(
        "region and radiation: where it is, where it spreads", "部位与放射：在哪里，向何处扩散"
    ),
    Instruction("severity: how bad it is, what it prevents", "程度：有多严重，影响了什么"),
    Instruction(
        "time course: how it has changed, accompanying complaints",
        "时间过程：如何变化，有何伴随症状",
    ),
    Instruction(
        "past medical history: earlier illnesses, operations, medicines, allergies",
        "既往史：既往疾病、手术、用药、过敏",
    ),
    Instruction(
        "social and family history: work, habits, travel, illnesses in the family",
        "个人史与家族史：职业、习惯、旅行、家族疾病",
    ),
    Instruction(
        "review of systems: what else is wrong, then signs and tests if you can ask for them",
        "系统回顾：其他系统有无异常，可以的话再问体征和检查",
    ),
)
RULE = Instruction(
    "Keep to the order of a consultation, one thing per turn: {steps}. Then answer. Pass over a "
    "step that the case already covers, never go back, and answer earlier only when nothing in "
    "the remaining steps could change your answer.",
    "请按问诊顺序进行，每轮只问一件事：{steps}。然后作答。病例中已说明的步骤可以跳过，不要回头；只有当剩余步骤都不可能改变你的"
    "答案时，才提前作答。",
)
NOW = Instruction(
    "Question {number} of at most {most}. Now due: {due}.",
    "第{number}个问题，最多{most}个。现在应问：{due}。",
)


def opened(policy: Driven, environment: Environment, settings: Framable) -> Doctor:
    """The policy with the order among its rules, and with the steps due in each turn."""
    english, chinese_ = ("; ".join(s.english for s in STEPS), "；".join(s.chinese for s in STEPS))
    rule = Instruction(RULE.english.format(steps=english), RULE.chinese.format(steps=chinese_))
    return Prompted(
        framed(policy, environment, settings).doctor,
        rule,
        lambda opening, past: progress(opening, past, environment.max_turns - 1),
    )


def progress(opening: Sequence[Message], past: Sequence[Turn], most: int) -> str:
    """The text that says what is due after `past`, if `most` questions are allowed."""
    if len(past) >= most:
        return ANSWER.spoken(opening)
    separator = "；" if chinese(opening[-1].content) else "; "
    steps = separator.join(step.spoken(opening) for step in due(len(past), most))
    return NOW.spoken(opening).format(number=len(past) + 1, most=most, due=steps)


def due(asked: int, most: int) -> tuple[Instruction, ...]:
    """The steps for question `asked` (from 0) of `most`: at least one, and all steps in total."""
    first = asked * len(STEPS) // most
    return STEPS[first : max(first + 1, (asked + 1) * len(STEPS) // most)]


strategies = {
    "sop": Strategy(
        summary="the order of a consultation: OPQRST, past, social and family history, systems",
        paper="ProMed, appendix C.2; Calgary–Cambridge guide (Kurtz & Silverman 1996)",
        settings=Framable,
        open=opened,
    ),
}
