"""What the four inference modes of Med-R³ share (MR-2): one answer, with or without documents.

A mode puts the case to the policy under rules of its own: what to do, and the form of an answer in
the environment's grammar. Nothing is asked and nothing is searched by the policy. A mode that
retrieves searches the environment's library once, before the policy says anything. The passages are
the environment's reply to that search, so they are masked and measured like those of any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pydantic import Field

from workup.core.case import Case, Truth, by_letter
from workup.core.episode import DIAGNOSE, Action, Completion, Episode, Message, Observation, Turn
from workup.core.errors import UserError
from workup.core.ports import Act, Doctor, Environment, Policy, Sampling
from workup.core.text import THINK, neutralise
from workup.doctors.strategies import Driven, Strategy
from workup.doctors.strategies.framing import (
    Begun,
    Framable,
    around,
    framable,
    given,
)
from workup.doctors.strategies.prompting import Instruction
from workup.environments.base.encounter import Encounter
from workup.environments.base.searched import one_search
from workup.environments.base.searching import LONGEST, SEARCH
from workup.rl.rollout import Play, TokenDoctor, ToPlay, rollout

DOTS = "…"  # where the answer stands in its form

TASK = Instruction(
    "You are the doctor; this is a test bench and no medical device. A case or a question is put "
    "to you. You can ask nothing and look nothing up: answer it.",
    "你是医生。这是一个测试平台，不是医疗器械。下面给出一个病例或一个问题。你不能提问，也不能查阅资料：请直接作答。",
)
READ = Instruction(
    "A medical library was searched for it once, and what was found is shown to you. Use what "
    "helps; a passage may be beside the point, or wrong.",
    "已为此检索过一次医学文献库，检索结果会给出。请采用有帮助的内容；其中的段落可能无关，也可能有误。",
)
THOUGHT = Instruction(
    f"First think step by step, inside <{THINK}>…</{THINK}>: what is established, which answers "
    "are possible, and what speaks for and against each. Behind the thought write the answer, in "
    "this form and with nothing after it:",
    f"请先在<{THINK}>…</{THINK}>内逐步思考：哪些信息已经明确，有哪些可能的答案，各自有何支持与反对的理由。"
    "思考之后按以下格式写出答案，其后不要再写任何内容：",
)
AT_ONCE = Instruction(
    "Write the answer alone, in this form and with nothing before or after it:",
    "请只按以下格式写出答案，前后不要写任何其他内容：",
)
LISTED = Instruction(
    "In place of … stands the letter of the right option, or the letters of all right ones "
    "separated by commas.",
    "…处写正确选项的字母，多选时列出全部字母并用逗号隔开。",
)
OPEN = Instruction(
    "In place of … stands the answer itself: the name of one diagnosis, unless something "
    "else is asked for.",
    "…处写答案本身：除非另有所问，写一个诊断的名称。",
)


class RetrievalSettings(Framable):
    """The settings of a mode that retrieves."""

    passages: int = Field(5, ge=1, description="top-k of the one search")


def opened(
    driven: Driven, environment: Environment, settings: Framable, *, thinks: bool = False
) -> Mode:
    """A mode for a policy; it retrieves if `settings` are `RetrievalSettings`.

    A policy that reads no rules (the tiny one) keeps those of the environment, and its answer is
    begun for it: it cannot be told to think. Raises UserError where an endpoint's answer is to be
    framed.
    """
    passages = settings.passages if isinstance(settings, RetrievalSettings) else 0
    world = one_search(environment, passages) if environment.about.searches else environment
    told = driven.model is not None
    doctor, to_frame = driven.doctor, framable(driven, settings)
    policy = doctor.policy if isinstance(doctor, TokenDoctor) else None
    if policy is not None and not told:
        doctor = Begun(policy, around(environment)[0])
    elif to_frame is not None:
        begins, ends = around(environment)
        begins = bare(begins) if thinks else begins
        doctor = Begun(to_frame, f"{begins}\n", ends, thinks, settings.letters)
    if passages:
        doctor = Retrieving(doctor, environment, policy)
    how = Instructed(told, passages > 0, thinks)
    return Mode(OneAnswer(world, environment, how), doctor)


@dataclass(frozen=True, slots=True)
class Instructed:
    """What a mode does; `told` says whether the policy can be instructed."""

    told: bool
    retrieves: bool
    thinks: bool


@dataclass(frozen=True)
class Mode:
    """A `Searcher` that plays whole episodes: one search if it retrieves, then one answer."""

    world: OneAnswer
    doctor: Doctor

    async def play(self, job: ToPlay, play: Play) -> Episode:
        """The episode; it is out of turns if what should have been the answer was none."""
        return await rollout(job, self.world, self.doctor, play)


class OneAnswer(Encounter):
    """`world` for one answer, under a mode's own rules if the policy can be told them.

    Otherwise the rules are those of `usual`, the encounter that such a policy was trained in.
    """

    def __init__(self, world: Environment, usual: Environment, how: Instructed) -> None:
        super().__init__(1 + how.retrieves)
        self.world, self.usual, self.how = world, usual, how

    @property
    def stop(self) -> tuple[str, ...]:
        return self.world.stop

    def read(self, text: str) -> Action:
        return self.world.read(text)

    def write(self, kind: str, content: str) -> str:
        return self.world.write(kind, content)

    def conclude(self, case: Case) -> str:
        return self.world.conclude(case)

    def open(self, case: Case) -> tuple[Message, ...]:
        """The mode's instructions, then the environment's question with lettered options."""
        opening = self.usual.open(case)
        if not self.how.told:
            return opening
        task = [TASK, READ] if self.how.retrieves else [TASK]
        rules = " ".join(part.spoken(opening) for part in task)
        last = replace(opening[-1], content=lettered(opening[-1].content, case.options))
        return Message("system", f"{rules}\n{self._wanted(case, opening)}"), last

    async def answer(self, case: Case, past: Sequence[Turn], action: Action) -> Observation:
        """The reply of `world` to the one search, then again what is asked and in which form.

        Any other action stands where the answer should: it is not carried out and gets no reply.
        """
        if action.kind == DIAGNOSE or len(past) + 1 < self.max_turns:
            reply = await self.world.answer(case, past, action)
        else:
            return Observation((Message("user", self.world.conclude(case)),))
        if action.kind == DIAGNOSE or not self.how.told:
            return reply
        *before, last = reply.messages
        opening = self.usual.open(case)
        # Behind the passages, what is asked stands once more: they may be long.
        once_more = [query(opening[-1].content, case), *letters(case.options)]
        lines = (last.content, neutralise("\n".join(once_more)), self._wanted(case, opening))
        return replace(reply, messages=(*before, replace(last, content="\n".join(lines))))

    def _wanted(self, case: Case, opening: Sequence[Message]) -> str:
        """What is to be written and in which form, in the language of the case."""
        how = (THOUGHT if self.how.thinks else AT_ONCE).spoken(opening)
        # Made without the truth: it shows only the form of an answer to this case.
        form = bare("".join(self.world.lessons.conclusion(replace(case, truth=Truth(DOTS)))))
        return f"{how}\n{form}\n{(LISTED if case.options else OPEN).spoken(opening)}"


@dataclass(frozen=True)
class Retrieving:
    """Searches for the case before `doctor` says anything.

    The search stands in the transcript as the environment writes one. A token policy did not sample
    it.
    """

    doctor: Doctor
    environment: Environment
    policy: Policy | None

    async def act(
        self, case: Case, opening: Sequence[Message], past: Sequence[Turn], sampling: Sampling
    ) -> Act:
        if past:
            return await self.doctor.act(case, opening, past, sampling)
        shown = self.environment.open(case)[-1].content
        text = self.environment.write(SEARCH, query(shown, case))
        if self.policy is None:
            return Act((), Completion(text))
        return Act(self.policy.render(opening), given(self.policy, text))


def query(shown: str, case: Case) -> str:
    """The query for a case: the question as it is `shown`, without its options.

    What is longer than a query may be (500 characters) is cut in words: the question stays, and of
    the description before it the beginning.
    """
    told = " ".join(shown.removesuffix(_listed(case.options)).split())
    if len(told) <= LONGEST:
        return told
    question = " ".join(neutralise(case.question).split())
    if not told.endswith(question) or len(question) >= LONGEST:
        question = ""
    described = told.removesuffix(question)[: LONGEST - len(question)]
    return f"{described.rpartition(' ')[0] or described} {question}".strip()


def lettered(shown: str, options: Sequence[str]) -> str:
    """`shown` with a letter before each of the options that end it, if they have none."""
    listed = _listed(options)
    if not listed or not shown.endswith(f"\n{listed}"):
        return shown
    return shown.removesuffix(listed) + neutralise("\n".join(letters(options)))


def letters(options: Sequence[str]) -> list[str]:
    """The options, each behind its letter."""
    return [f"{letter}. {option}" for letter, option in by_letter(options)]


def _listed(options: Sequence[str]) -> str:
    return neutralise("\n".join(options))


def bare(answer: str) -> str:
    """An answer, or its beginning, without the end of a thought before it."""
    return answer.removeprefix(f"<{THINK}>").removeprefix(f"</{THINK}>")


def _strategy(
    name: str, called: str, summary: str, *, retrieves: bool = False, thinks: bool = False
) -> Strategy:
    """The mode `name`, which the paper's Table 6 lists as `called`."""

    def fits(environment: Environment) -> None:
        if retrieves and not environment.about.searches:
            raise UserError(
                f"strategy '{name}' searches a library, and this encounter has none: type "
                "environment=library, and environment.index=FOLDER where the cases bring no "
                "library of their own"
            )

    def open(driven: Driven, environment: Environment, settings: Framable) -> Mode:
        fits(environment)
        return opened(driven, environment, settings, thinks=thinks)

    paper = f"Med-R³, appendix Baselines and Table 6 ({called})"
    return Strategy(summary, paper, RetrievalSettings if retrieves else Framable, open, fits)


strategies = {
    "naive": _strategy(
        "naive", "Naive", "answers the question at once: no questions, no searches, no thought"
    ),
    "pure-cot": _strategy(
        "pure-cot", "CoT", "thinks once, then answers: no questions, no searches", thinks=True
    ),
    "rag": _strategy(
        "rag",
        "RAG",
        "reads what one search with the question brings, then answers",
        retrieves=True,
    ),
    "cot-rag": _strategy(
        "cot-rag",
        "CoT-RAG",
        "reads what one search with the question brings, thinks, then answers",
        retrieves=True,
        thinks=True,
    ),
}
