"""Interactive questioning (PM-1): a partial question, free questions to a patient, one answer.

The doctor writes `question: …` or `answer: … [answer: X]`, one of them per turn. Actions are of the
consultation's kinds, "ask" and "diagnose", so that measures, records and reports read both
environments alike.
"""

from __future__ import annotations

import re
from bisect import bisect, bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from workup.core.case import Case, Source, by_letter
from workup.core.channel import Channel
from workup.core.episode import ASK, DIAGNOSE, MALFORMED, Action, Message, Observation, Turn
from workup.core.ports import Model
from workup.core.text import THINK, blocks, neutralise
from workup.environments.base.encounter import Encounter, PartSettings, with_line
from workup.environments.base.interpreter import INTERPRETER
from workup.environments.base.lexical import chinese
from workup.environments.base.patients import (
    CHECKER,
    PATIENT,
    Patient,
    PatientSettings,
    played_by,
)
from workup.environments.base.personas import Personas
from workup.environments.base.trouble import Trouble
from workup.environments.consultation import Consultation
from workup.roles.judges.options import right

# Closes an action where the end of the turn does not: for policies that were never taught an
# end-of-turn token.
END = "[end]"
_MARKS = " \t\n*_`"  # emphasis around an action is no part of it
_LONGEST = 500  # characters of one question or answer; the rest is cut off and counts as an error


@dataclass(frozen=True, slots=True)
class QuestioningWording:
    """The environment's own phrases in one language."""

    rules: str
    limit: str
    question: str
    unreadable: str
    conclude: str
    answering: str  # how an answer without reasoning begins


ENGLISH = QuestioningWording(
    rules=(
        "You are the doctor; this is a test bench and no medical device. A patient's case is put "
        "to you with a question, and much of the case is missing. In each turn write exactly one "
        "of two things. Either ask the patient for one thing that would help you decide: "
        "`question: ` and then your question. Or, once you know enough, answer: `answer: `, your "
        "reasoning, and at the end `[answer: X]`. Where options are listed X is the letter of "
        "the right one, or all right letters separated by commas; otherwise X is the answer "
        "itself. Nothing follows after it. The patient speaks for themselves: never write the "
        "patient's words."
    ),
    limit="You can ask at most {} questions.",
    question="What is the diagnosis?",
    unreadable="Please write `question: …` or `answer: … [answer: X]`, and only one of them.",
    conclude="No more questions: give your answer now.",
    answering="answer: [answer:",
)
CHINESE = QuestioningWording(
    rules=(
        "你是医生。这是一个测试平台，不是医疗器械。下面给出一位患者的部分病情和一个问题，许多信息尚未告知。每一轮只能写以下两种"
        "内容之一：若信息不足，写“问题：”，后接你要问患者的一个问题；若信息已足够，写“回答：”，后接分析，最后以“[回答：X]”结尾。"
        "有选项时，X为正确选项的字母，多选时列出全部字母并用逗号隔开；没有选项时，X为答案本身。其后不要再写任何内容。患者自己会"
        "说话，不要替患者回答。"
    ),
    limit="你最多可以提{}个问题。",
    question="诊断是什么？",
    unreadable="请只写“问题：……”或“回答：……[回答：X]”其中之一。",
    conclude="不能再提问了，请现在回答。",
    answering="回答：[回答：",
)
_WORDINGS = (ENGLISH, CHINESE)

_COLON = r"[ \t*]{0,4}[:：]"
# A heading stands at the beginning of a line, perhaps behind a list's or a heading's marks; every
# repetition is bounded.
_HEADING = re.compile(
    rf"^[^\w\n\[［【]{{0,8}}(?:(?P<ask>question|提问|问题)|(?P<diagnose>answer|回答|答案)|(?P<patient>patient|user|患者|病人)){_COLON}",
    re.IGNORECASE | re.MULTILINE,
)
_BRACKET = re.compile(
    r"[\[［【][ \t]{0,4}(?:answer|回答|答案)[ \t]{0,4}[:：]([^\[\]［］【】]*)[\]］】]",
    re.IGNORECASE,
)


_ASKING, _CLOSING = "question:", "]"
_GRAMMAR = (_ASKING, ENGLISH.answering, _CLOSING, END)


ROLES = (PATIENT, CHECKER, INTERPRETER)

summary = "free questions to a patient about a partial question, then one answer (ProMed)"


class Settings(PatientSettings, PartSettings):
    """What can be set in interactive questioning."""


class Questioning(Encounter):
    """An `Environment`: the doctor questions a patient about a partial question (PM-1).

    It then answers the question. `max_turns` ≥ 1 counts the answer, as everywhere: the paper's 10
    questions are max_turns 11. After the last question the patient's reply asks for the answer; a
    further question gets no reply.
    """

    role_names = ROLES

    def __init__(
        self,
        record: Consultation,
        patient: Patient | None = None,
        max_turns: int = 11,
        personas: Personas | None = None,
        share: float | None = None,
    ) -> None:
        super().__init__(max_turns, share)
        self._record, self._personas, self.matcher = record, personas, record.matcher
        self.patient = patient or played_by({}, record, personas)

    @property
    def stop(self) -> tuple[str, ...]:
        """`[end]` alone; reasoning may span lines and hold brackets.

        A chat model's action ends with its turn.
        """
        return (END,)

    @property
    def phrases(self) -> tuple[str, ...]:
        own = [
            p
            for w in _WORDINGS
            for p in (w.rules, self._limit(w), w.question, w.unreadable, w.conclude)
        ]
        return (*own, *_GRAMMAR, *self.patient.phrases)

    @property
    def channel(self) -> Channel | None:
        return self._record.channel

    def with_models(self, models: Mapping[str, Model]) -> Questioning:
        """This environment with models: a "patient" answers, a "checker" checks its answers.

        An "interpreter" reads questions for the built-in patient. Without a patient the checker
        checks nothing here; a reward may ask it what a doctor has understood.
        """
        if models.keys().isdisjoint((PATIENT, INTERPRETER)):
            return self
        patient = played_by(models, self._record, self._personas)
        return Questioning(self._record, patient, self.max_turns, self._personas, self.share)

    @property
    def asks(self) -> bool:
        return True

    def open(self, case: Case) -> tuple[Message, ...]:
        """The rules; then the presentation, the question and the lettered options, line by line."""
        wording = _wording(case)
        options = (f"{letter}. {option}" for letter, option in by_letter(case.options))
        lines = (case.presentation, case.question or wording.question, *options)
        shown = neutralise("\n".join(line for line in lines if line))
        return Message("system", f"{wording.rules} {self._limit(wording)}"), Message("user", shown)

    def read(self, text: str) -> Action:
        """The first question or answer that says something; "malformed" if there is none.

        Linear, never raises.

        Case, white space, full-width colons and brackets, and marks before a heading are forgiven.
        One error each: a control token or stray thinking tag, a heading that nothing follows, every
        heading of a question, an answer or a patient's turn besides the first action's (a patient's
        within the reasoning of an answer excepted), an answer whose bracket or heading is missing,
        more than 500 characters, and anything after the action. Prose before it is a thought, and
        no error.
        """
        return _read(text)

    def write(self, kind: str, content: str) -> str:
        return (
            f"{ENGLISH.answering} {content}{_CLOSING} {END}"
            if kind == DIAGNOSE
            else f"{_ASKING} {content} {END}"
        )

    def conclude(self, case: Case) -> str:
        return _wording(case).conclude

    def conclusion(self, case: Case) -> tuple[str, str]:
        """A* as a policy writes it, without reasoning."""
        wording = _wording(case)
        return wording.answering, f"{'' if wording is CHINESE else ' '}{gold(case)}{_CLOSING}"

    async def answer(self, case: Case, past: Sequence[Turn], action: Action) -> Observation:
        """Raises RolloutError when the patient gives up."""
        if action.kind == DIAGNOSE:
            return Observation(done=True)
        wording, left = _wording(case), self.max_turns - 1 - len(past)
        if left <= 0:
            return Observation((Message("user", wording.conclude),))
        if action.kind != ASK:
            replied = Observation((Message("user", wording.unreadable),))
        else:
            said = await self.patient.reply(case, past, action.content[0])
            replied = said.as_told(neutralise(said.text))
        return replied if left > 1 else with_line(replied, wording.conclude)

    def _limit(self, wording: QuestioningWording) -> str:
        return wording.limit.format(self.max_turns - 1)


def open(source: Source, settings: Settings) -> Questioning:
    """The questioning environment over the cases of `source`, with the embedded patient.

    Raises UserError for a persona that does not exist.
    """
    return Questioning(
        Consultation(
            source.items,
            source.diagnoses,
            settings.max_turns,
            trouble=Trouble.of(source, settings),
            matcher=settings.matcher(source.items),
        ),
        max_turns=settings.max_turns,
        personas=settings.personas,
        share=settings.share,
    )


def gold(case: Case) -> str:
    """A* in the form that `[answer: X]` needs.

    It is the letters of the right options, or the answer itself. Of options with one text it is the
    first one's.
    """
    first = {option: letter for letter, option in reversed([*by_letter(case.options)])}
    letters = sorted(first[option] for option in {*right(case)})
    return ", ".join(letters) or case.truth.diagnosis


def _wording(case: Case) -> QuestioningWording:
    """The phrases in the case's language.

    Where the presentation and the question are empty, that of its facts: Chinese facts get Chinese
    phrases.
    """
    told = (case.presentation, case.question) if case.presentation or case.question else ()
    return CHINESE if any(map(chinese, told or (f.text for f in case.all_facts))) else ENGLISH


@lru_cache(maxsize=1 << 12)  # a policy of few words says the same again and again
def _read(text: str) -> Action:
    thought, closed, rest = text.partition(f"</{THINK}>")
    said, _, after = (rest if closed else thought).partition(END)
    errors = blocks(text, ()).errors + bool(after.strip())
    headings = list(_HEADING.finditer(said))
    brackets = [found for found in _BRACKET.finditer(said) if _says(found[1])]
    if not headings and brackets:
        return _concluded(said, brackets[0], errors + 1)
    ends = [*map(_start, headings[1:]), len(said)]
    # one end too many where there is no heading
    for number, (heading, end) in enumerate(zip(headings, ends, strict=False)):
        following = bisect_left(brackets, heading.end(), key=_start)
        if heading.lastgroup == DIAGNOSE and following < len(brackets):
            within = headings[
                number + 1 : bisect(headings, _start(brackets[following]), key=_start)
            ]
            return _concluded(
                said,
                brackets[following],
                errors + sum(other.lastgroup != "patient" for other in within),
            )
        bracket = _BRACKET.search(said, heading.end(), end)
        content = said[heading.end() : bracket.start() if bracket else end]
        if heading.lastgroup != "patient" and _says(content):
            # An answer that lacks its bracket, or a question that holds an answer as well.
            errors += (heading.lastgroup == DIAGNOSE) + (
                heading.lastgroup == ASK and bracket is not None
            )
            return _action(str(heading.lastgroup), content, errors + len(headings) - number - 1)
        errors += 1
    return Action(MALFORMED, (), max(errors, 1))


def _action(kind: str, content: str, errors: int) -> Action:
    content = " ".join(content.split()).strip(_MARKS)
    return Action(kind, (content[:_LONGEST],), errors + (len(content) > _LONGEST))


def _concluded(said: str, bracket: re.Match[str], errors: int) -> Action:
    return _action(DIAGNOSE, bracket[1], errors + bool(said[bracket.end() :].strip(_MARKS)))


def _start(found: re.Match[str]) -> int:
    return found.start()


def _says(text: str) -> bool:
    return any(map(str.isalnum, text))
