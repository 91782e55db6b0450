"""DialogT: sft on dialogues made from the facts of a case, then the gold answer."""

from __future__ import annotations

from collections.abc import Sequence

from workup.cases.order import Order
from workup.core.case import Case, Kind, Source
from workup.core.episode import DIAGNOSE, Message
from workup.core.ports import Demonstration, Environment
from workup.core.stages import SftStage, Stage
from workup.core.text import neutralise
from workup.environments.base.lexical import chinese
from workup.environments.questioning import gold
from workup.methods.promed.shared import CaseSettings, QuestioningMethod, warm_start

MORE, MORE_CHINESE = "What else can you tell me?", "您还有什么要告诉我的吗？"
ASK = Kind.HISTORY.value


class DialogT(QuestioningMethod):
    """Every fact is asked for in the record's order, as long as there are turns.

    No question is preferred to another.
    """

    summary = "imitates dialogues made from the cases' facts, then the gold answer"
    settings: type[CaseSettings] = CaseSettings

    def stages(self, settings: CaseSettings, environment: Environment) -> Sequence[Stage]:
        return warm_start(settings), SftStage("dialogt", demonstrate, settings.cases)


def demonstrate(source: Source, environment: Environment, seed: int, index: int) -> Demonstration:
    """The dialogue of a training case; no patient is played, since its answers are the facts.

    The last turn is not a question, since the patient's last reply would ask for the answer.
    """
    case = source.train[Order(len(source.train), seed)[index]]
    facts = case.truth.facts[: max(0, environment.max_turns - 2)]
    asked = [environment.write(ASK, fact.item or _more(case)) for fact in facts]
    answers = [(Message("user", neutralise(fact.text)),) for fact in facts]
    answer = environment.write(DIAGNOSE, gold(case))
    return Demonstration(environment.open(case), (*zip(asked, answers, strict=True), (answer, ())))


def _more(case: Case) -> str:
    """The question for a fact whose item is not known."""
    return MORE_CHINESE if chinese(case.presentation) else MORE


method = DialogT()
