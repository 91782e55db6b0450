r"""Evidence-seeking diagnosis (ES-1, ES-2): rank candidates, order examinations, then diagnose.

The doctor reads a history and a microscopy. Until its last turn it writes a ranked list of
candidates and a list of examinations; their results come back. In its last turn it writes the
diagnosis. Actions are of the kinds "order" and "diagnose"; the content of an order are its
examinations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import Annotated, Literal

from pydantic import Field, field_validator

from workup.core.case import Case, Evidence, Item, Knowledge, Source, evidence_of
from workup.core.episode import DIAGNOSE, MALFORMED, Action, Episode, Message, Observation, Turn
from workup.core.errors import UserError
from workup.core.ports import Demonstration, Doctor, Environment, Model, Teaching
from workup.core.text import THINK, neutralise, normalise
from workup.environments.base.asked import AskedText
from workup.environments.base.encounter import Encounter, MatchSettings, fitting, with_line
from workup.environments.base.interpreter import INTERPRETER, Interpreter
from workup.environments.base.lexical import chinese
from workup.environments.base.lists import (
    ANSWER,
    CANDIDATES,
    DIAGNOSIS,
    EXAMINATIONS,
    EXAMINED,
    boxed,
    lists,
    written,
)
from workup.environments.base.lists import read as read_lists
from workup.environments.base.matcher import Matcher
from workup.environments.base.ranked_doctor import RankedDoctor
from workup.environments.base.ranked_teacher import MOST_CANDIDATES, RankedTeaching
from workup.environments.base.rankers import rankers
from workup.environments.base.withheld import Withholding
from workup.environments.exams.rages import (
    NO_RESULT,
    ExamSimulator,
    RagesSettings,
    examinations_of,
    refusal,
)
from workup.retrieval.hpo.rankings import Rankings
from workup.roles.judges.assessor import Assessor
from workup.roles.judges.exact import ExactExaminations, ExactRanking
from workup.roles.judges.examinations import ExaminationJudge
from workup.roles.judges.questions import Appraised, Ordered, RankingQuestion, RankingVerdict
from workup.roles.judges.ranking import RankingJudge

RANKING, EXAMINING, SIMULATOR = "ranking", "examinations", "simulator"
ROLES = (RANKING, EXAMINING, SIMULATOR, INTERPRETER)
"""The roles of models.

They judge lists and orders for a reward (ES-7, ES-8), write results, and read orders."""


Told = Literal["presentation", "record"]
Final = Literal["boxed", "list"]
Department = Literal["pathology", "any"]


@dataclass(frozen=True, slots=True)
class EvidenceWording:
    """The environment's own phrases in one language."""

    bench: str
    order: str
    boxed: str
    ranked: str
    limit: str  # the sentence that limits turns and examinations
    stage: str  # stands before the name of what can be ordered now
    results: str
    nothing: str  # the reply if nothing was ordered
    later: str  # stands behind the name of an examination that this stage does not have
    most: str
    again: str
    unreadable: str
    conclude: str


ENGLISH = EvidenceWording(
    bench=(
        "You are the pathologist; this is a test bench and no medical device. A patient's history "
        "and what the microscope shows are put to you. Think inside <think>…</think>, then write "
        "one <answer>…</answer>, once each and nothing after it."
    ),
    order=(
        "As long as examinations can be ordered, the answer holds two lists. In "
        r"\DiffList{…} stand the specific diseases that the patient may have, at most ten, the "
        r"most probable first. In \ExamList{…} stand the examinations that would tell these "
        "diseases apart, each by the name of one antibody, stain or molecular test. Separate "
        "items by commas."
    ),
    boxed=r"At the end the answer holds one diagnosis: \boxed{…}.",
    ranked=(
        "At the end the answer holds only the list of diseases that are still possible, the most "
        r"probable first: \DiffList{…}."
    ),
    limit="Orders: at most {}, with at most {} examinations each.",
    stage="What can be ordered now:",
    results="Results:",
    nothing="No examination was ordered.",
    later="cannot be ordered now.",
    most="More were ordered than can be done at a time; the last ones were left out.",
    again="Rank the diseases anew and order what you still need.",
    unreadable=r"Please write one <answer>…</answer> with \DiffList{…} and \ExamList{…}.",
    conclude="No more examinations: give your diagnosis now.",
)
CHINESE = EvidenceWording(
    bench=(
        "你是病理医生。这是一个测试平台，不是医疗器械。下面给出患者的病史和镜下所见。先在<think>…</think>中思考，再写一个"
        "<answer>…</answer>，各写一次，其后不要再写任何内容。"
    ),
    order=(
        r"只要还能申请检查，answer中就要写两个列表：\DiffList{…}中写患者可能患的具体疾病，最多十个，可能性大的在前；"
        r"\ExamList{…}中写能把这些疾病区分开的检查，每项写明一个抗体、一种染色或一项分子检测。各项之间用逗号隔开。"
    ),
    boxed=r"最后在answer中写一个诊断：\boxed{…}。",
    ranked=r"最后在answer中只写仍然可能的疾病，可能性大的在前：\DiffList{…}。",
    limit="最多可以申请{}次检查，每次最多{}项。",
    stage="现在可以申请：",
    results="检查结果：",
    nothing="没有申请检查。",
    later="现在不能申请。",
    most="申请的项目超过了一次可做的数量，排在后面的没有做。",
    again="请重新排列可能的疾病，并申请还需要的检查。",
    unreadable=r"请写一个<answer>…</answer>，其中包含\DiffList{…}和\ExamList{…}。",
    conclude="不能再申请检查了，请现在给出诊断。",
)
# The same for a doctor of any department, whose cases have no microscopy.
ENGLISH_ANY = replace(
    ENGLISH,
    bench=(
        "You are the doctor; this is a test bench and no medical device. A patient's case is put "
        "to you. Think inside <think>…</think>, then write one <answer>…</answer>, once each and "
        "nothing after it."
    ),
    order=(
        "As long as examinations can be ordered, the answer holds two lists. In "
        r"\DiffList{…} stand the specific diseases that the patient may have, at most ten, the "
        r"most probable first. In \ExamList{…} stand the examinations, tests or questions to the "
        "patient that would tell these diseases apart, one thing each. Separate items by commas."
    ),
)
CHINESE_ANY = replace(
    CHINESE,
    bench=(
        "你是医生。这是一个测试平台，不是医疗器械。下面给出一位患者的病情。先在<think>…</think>中思考，再写一个"
        "<answer>…</answer>，各写一次，其后不要再写任何内容。"
    ),
    order=(
        r"只要还能申请检查，answer中就要写两个列表：\DiffList{…}中写患者可能患的具体疾病，最多十个，可能性大的在前；"
        r"\ExamList{…}中写能把这些疾病区分开的检查、化验或要问患者的问题，每项只写一件。各项之间用逗号隔开。"
    ),
)
_WORDINGS: Mapping[Department, tuple[EvidenceWording, EvidenceWording]] = {
    "pathology": (ENGLISH, CHINESE),
    "any": (ENGLISH_ANY, CHINESE_ANY),
}
EVERYTHING = ("malignant neoplasm", "disease")  # names for nearly everything, by cases
LENGTHS = (1, 2, 3, 5, 10)  # lengths of the lists that anchors write

summary = "a ranked list of candidates, examinations to order, then a diagnosis (evidence-seeking)"


class Settings(MatchSettings):
    """What can be set in evidence-seeking diagnosis."""

    department: Department = Field(
        "pathology",
        description="who the doctor is told to be: pathology, or any (of any department)",
    )
    told: Told = Field(
        "presentation",
        description="what is told at the outset: presentation, or record (with all findings)",
    )
    final: Final = Field(
        "boxed", description="how it ends: boxed (one diagnosis) or list (a ranked one)"
    )
    stages: tuple[str, ...] = Field(
        (),
        description=(
            "what can be ordered in the first turn, the second …: a part of the examinations' "
            "wording each; the last holds from there on, none is no limit"
        ),
    )
    orders: int = Field(20, ge=1, description="items of an order that are carried out per turn")
    index: str = Field(
        "",
        description="an index of rare diseases, whose exact rankers play; it is not searched",
    )
    vague: float = Field(
        0.0,
        ge=0,
        le=1,
        description=(
            "warm start: share of its lists, and of its diagnoses at the end, that begin with a "
            "name for nearly everything"
        ),
    )
    lengths: tuple[Annotated[int, Field(ge=1, le=MOST_CANDIDATES)], ...] = Field(
        (1, MOST_CANDIDATES),
        min_length=2,
        max_length=2,
        description=(
            "warm start: candidates of its lists, at least and at most; beyond the least, what is "
            "hardly possible is left out"
        ),
    )
    rages: RagesSettings = Field(RagesSettings(), description="where results come from (ES-9)")

    @field_validator("lengths")
    @classmethod
    def _ordered(cls, lengths: tuple[int, ...]) -> tuple[int, ...]:
        if lengths[0] > lengths[1]:
            raise ValueError("write the least length first, as in [5,10]")
        return lengths


class EvidenceSeeking(Encounter):
    """An `Environment`: lists and orders until the last turn, then a diagnosis.

    `max_turns` ≥ 1 counts the diagnosis: the paper's two turns are max_turns 2. With `told`
    "record" and max_turns 1 all evidence is there at once: the direct mode of App. A.3. A diagnosis
    in an earlier turn ends the encounter there. `rages` gives the results; `ranking` and
    `examining` judge for rewards. An order whose names record and base do not know is read by
    `matcher`, then by the `interpreter` if there is one. Raises
    UserError for a stage that no item of `source` belongs to, for an `index` that is none of rare
    diseases, and for an encoder that does not exist.
    """

    role_names = ROLES

    def __init__(self, source: Source, settings: Settings) -> None:
        super().__init__(settings.max_turns)
        self.matcher: Matcher = settings.matcher(source.items)
        self.interpreter: Interpreter | None = None
        self.settings, self.source = settings, source
        self.rages = ExamSimulator(source, settings.rages)
        exact = ExactRanking.of(source.diagnoses)
        self.catalogue = exact.catalogue
        self._group = _everything(exact, source.diagnoses) if settings.vague else ""
        self.ranking: Assessor[RankingQuestion, RankingVerdict] = exact
        self.examining: Assessor[Ordered, Appraised] = ExactExaminations()
        self._rankings = Rankings.over(settings.index)
        self._tell = Withholding(source.items, source.diagnoses)
        self._items = {self.rages.canonical(item.name): item for item in reversed(source.items)}
        self.named = lru_cache(maxsize=1 << 14)(self._read_order)
        for stage in settings.stages:
            if not any(_belongs(item, stage) for item in source.items):
                raise UserError(
                    f"environment.stages: '{stage}' is in the wording of no examination of "
                    f"{source.name}; one is '{source.items[0].question}'"
                    if source.items
                    else f"environment.stages: {source.name} does not list its examinations"
                )

    def anchors(self, source: Source, seed: int) -> dict[str, Doctor]:
        """With an index of rare diseases its exact rankers too, below the others."""
        exact = rankers(self._rankings, source, seed, self.known, self.write_lists)
        return {**exact, **super().anchors(source, seed)}

    @property
    def notes(self) -> Sequence[str]:
        return self._rankings.notes

    def further_anchors(
        self, source: Source, knowledge: Knowledge, seed: int
    ) -> Mapping[str, Doctor]:
        """A `RankedDoctor` for each of LENGTHS; none where there is only one turn."""
        if self.max_turns == 1:
            return {}
        return {
            f"list of {length}": RankedDoctor(knowledge, source.items, self, length)
            for length in LENGTHS
        }

    # --- the encounter ---

    @property
    def stop(self) -> tuple[str, ...]:
        return (f"</{ANSWER}>",)

    @property
    def phrases(self) -> tuple[str, ...]:
        own = [
            phrase
            for w in _WORDINGS[self.settings.department]
            for phrase in (
                *(self._rules(w), w.results, w.nothing, w.later, w.most, w.again),
                *(w.unreadable, w.conclude),
                *(f"{w.stage} {stage}." for stage in self.settings.stages),
            )
        ]
        tags = (f"<{slash}{tag}>" for tag in (THINK, ANSWER) for slash in ("", "/"))
        grammar = (*tags, CANDIDATES, EXAMINATIONS, DIAGNOSIS, ",", "}")
        return (*own, *grammar, *filter(None, [self._group]), *self.rages.phrases)

    def open(self, case: Case) -> tuple[Message, ...]:
        """The rules; then the presentation, with the record's findings where they are told."""
        wording = self._wording(case)
        lines = [neutralise(case.presentation)]
        if self.settings.told == "record":
            lines.append(" ".join(self._tell(case, fact) for fact in case.truth.facts))
        if self.max_turns == 1:
            lines.append(wording.conclude)
        elif self.settings.stages:
            lines.append(self._offer(wording, 0))
        shown = "\n".join(line for line in lines if line)
        return Message("system", self._rules(wording)), Message("user", shown)

    def read(self, text: str) -> Action:
        """`workup.environments.base.lists.read`. Linear, never raises."""
        return read_lists(text, self.settings.final == "list")

    def write(self, kind: str, content: str) -> str:
        """A diagnosis, or an order of one examination without any candidate."""
        return (
            self.write_lists((content,)) if kind == DIAGNOSE else self.write_lists((), (content,))
        )

    def write_lists(
        self, candidates: Sequence[str], examinations: Sequence[str] | None = None
    ) -> str:
        """A completion: an order, or without `examinations` the end (with the first candidate)."""
        if examinations is None and self.settings.final == "boxed":
            return written(boxed(candidates[0]))
        return written(lists(candidates, examinations))

    def conclude(self, case: Case) -> str:
        return self._wording(case).conclude

    async def answer(self, case: Case, past: Sequence[Turn], action: Action) -> Observation:
        """The results of what was ordered; nothing is carried out in the last turn."""
        if action.kind == DIAGNOSE:
            return Observation(done=True)
        wording, left = self._wording(case), self.max_turns - 1 - len(past)
        if left <= 0:
            return Observation((Message("user", wording.conclude),))
        if action.kind == MALFORMED:
            replied = Observation((Message("user", wording.unreadable),))
        else:
            replied = await self._results(case, wording, action.content, len(past))
        if left == 1:
            return with_line(replied, wording.conclude)
        return with_line(
            replied, f"{wording.again}\n{self._offer(wording, len(past) + 1)}".rstrip()
        )

    # --- what can be known of it ---

    @property
    def measures(self) -> Sequence[str]:
        return "differential", "length", "results"

    def known(self, case: Case) -> Evidence:
        """The findings that the opening states; of a whole record, what it leaves out is normal."""
        if self.settings.told == "presentation":
            return evidence_of(case.given)
        normal: Evidence = {item.name: () for item in self.source.items}
        return normal | evidence_of(case.all_facts)

    def offered(self, turn: int) -> tuple[str, ...]:
        """The names of the items that can be ordered in the turn, counted from 0."""
        stage = self._stage(turn)
        items = self.source.items
        return tuple(item.name for item in items if not stage or _belongs(item, stage))

    def examined(self, turn: Turn) -> tuple[str, ...]:
        """The names of the items that the turn brought a result of."""
        return tuple(filter(None, turn.observation.item.split(EXAMINED)))

    async def examinations(
        self, case: Case, orders: Sequence[str], turn: int
    ) -> dict[str, frozenset[str]]:
        """What each order of a turn, counted from 0, examines: one name per examination.

        Left out are examinations beyond `orders`, and known examinations that the turn's stage does
        not have. An order of which nothing is known stands for itself in any stage, so that made up
        ones are judged, and so does one that names a disease. Raises RolloutError when the
        interpreter gives up.
        """
        stage = self._stage(turn)
        found: dict[str, frozenset[str]] = {}
        done, _ = await self._allowed(case, orders)
        for order, all_meant in done.items():
            names: list[str] = []
            others: list[str] = []  # count where nothing of the order is known
            for meant in all_meant:
                items = self.named(meant)
                if items and (not stage or self._within(meant, stage)):
                    names += [item.name for item in items]
                elif not items:
                    others.append(self.rages.canonical(meant) or normalise(meant))
            if names or others:
                found[order] = frozenset(names or others)
        return found

    def informed(self, episode: Episode, place: int) -> bool:
        """Whether results were known when the turn at `place` was written (ES-5)."""
        return self.settings.told == "record" or any(
            set(turn.observation.sources) - NO_RESULT for turn in episode.turns[:place]
        )

    @property
    def ranks(self) -> bool:
        """Whether a judge knows the diseases: a model does, or the cases list them."""
        return not isinstance(self.ranking, ExactRanking) or bool(self.source.diagnoses)

    @property
    def examines(self) -> bool:
        """Whether a judge knows the examinations: a model, or the catalogue has all of them."""
        judge, items = self.examining, self.source.items
        if not isinstance(judge, ExactExaminations):
            return True
        return bool(items) and all(judge.knows(item.name) for item in items)

    # --- roles ---

    def with_models(self, models: Mapping[str, Model]) -> EvidenceSeeking:
        """This environment with models.

        Two judge for the reward, a "simulator" writes results, an "interpreter" reads orders.
        """
        other = copy(self)
        if SIMULATOR in models:
            other.rages = self.rages.with_model(models[SIMULATOR])
        if RANKING in models:
            other.ranking = RankingJudge(models[RANKING])
        if EXAMINING in models:
            other.examining = ExaminationJudge(models[EXAMINING])
        if INTERPRETER in models:
            other.interpreter = Interpreter(models[INTERPRETER])
        return other

    # --- training ---

    def demonstrate(
        self, source: Source, teaching: Teaching, seed: int, index: int
    ) -> Demonstration:
        """Ranked lists of the exact posterior, or a doctor's own (`RankedTeaching`)."""
        own = self.settings
        taught = RankedTeaching(
            self, teaching.focus, own.vague, self._group, own.lengths, teaching.doctor
        )
        return taught.demonstrate(source, self, seed, index)

    # --- wording ---

    def _wording(self, case: Case) -> EvidenceWording:
        english, own = _WORDINGS[self.settings.department]
        return own if chinese(case.presentation) else english

    def _rules(self, wording: EvidenceWording) -> str:
        final = wording.boxed if self.settings.final == "boxed" else wording.ranked
        if self.max_turns == 1:
            return f"{wording.bench} {final}"
        limit = wording.limit.format(self.max_turns - 1, self.settings.orders)
        return f"{wording.bench} {wording.order} {final} {limit}"

    def _offer(self, wording: EvidenceWording, turn: int) -> str:
        """What can be ordered in the turn, counted from 0; "" where all can."""
        stage = self._stage(turn)
        return f"{wording.stage} {stage}." if stage else ""

    def _stage(self, turn: int) -> str:
        stages = self.settings.stages
        return stages[min(turn, len(stages) - 1)] if stages else ""

    # --- what examinations bring ---

    async def _results(
        self, case: Case, wording: EvidenceWording, orders: Sequence[str], turn: int
    ) -> Observation:
        """What the orders bring; an examination that this stage does not have is not carried out.

        The observation's item are the names of all items that have a result.
        """
        if not orders:
            return Observation((Message("user", wording.nothing),))
        stage = self._stage(turn)
        allowed, beyond = await self._allowed(case, orders)
        done = list(dict.fromkeys(chain.from_iterable(allowed.values())))
        refused = {order for order in done if stage and not self._within(order, stage)}
        carried_out = [order for order in done if order not in refused]
        results = dict(zip(carried_out, await self.rages.results(case, carried_out), strict=True))
        lines = {
            self._later(case, order, wording) if order in refused else results[order].text: 0
            for order in done
        }
        most = (wording.most,) if beyond else ()
        found = [id for result in results.values() for id in result.evidence]
        single = list(chain.from_iterable(result.each for result in results.values()))
        told = [result.request for result in single if result.known]
        items = {item.name for examination in told for item in self.named(examination)}
        return Observation(
            (Message("user", "\n".join((wording.results, *lines, *most))),),
            tuple(dict.fromkeys(found)),
            EXAMINED.join(sorted(items)),
            sources=tuple(result.source for result in single),
        )

    async def _allowed(
        self, case: Case, orders: Sequence[str]
    ) -> tuple[dict[str, Sequence[str]], bool]:
        """What each order means, and whether more than `settings.orders` examinations were named.

        One order may name many examinations, as a panel does: each of them counts.
        """
        most = left = self.settings.orders
        allowed: dict[str, Sequence[str]] = {}
        beyond = len(orders) > most
        for order in dict.fromkeys(orders[:most]):
            if left == 0:
                return allowed, True
            meant = await self._meant(case, order)
            named = (each.name for one in meant for each in self.rages.named(case, one))
            single = list({self.rages.canonical(name) or name: name for name in named}.values())
            if len(single) > left:
                meant, beyond = single[:left], True
            allowed[order] = meant
            left -= min(left, max(1, len(single)))
        return allowed, beyond

    async def _meant(self, case: Case, order: str) -> Sequence[str]:
        """The items for an order in other words ("blood sugar" → "glucose"), else the order.

        Where the order joins several and is not one item as a whole, each is read by itself: "ECG
        and troponin", but not the reasons of "chest x-ray for cough and fever". An order that names
        a disease means an item only where it is the item's own name or synonym ("flu test").
        """
        named = self.rages.named(case, order)
        if self.rages.names_disease(case, order, named):
            called = self.matcher.whole(order).items
            return [called[0].name if len(called) == 1 else order]
        if AskedText(order).orders:  # a reason may join things as well
            return [await self._item(case, order)]
        if named and all(each.known for each in named):
            return [order]
        whole = await self._item(case, order)
        parts = [each.name if each.known else await self._item(case, each.name) for each in named]
        joined = whole not in (order, *parts)  # one item's name: "CT of chest and abdomen"
        unread = not any(each.known or each.name not in parts for each in named)
        return [whole] if len(named) < 2 or joined or unread else parts

    async def _item(self, case: Case, order: str) -> str:
        """The one item that an order means in other words, else the order.

        What the record holds beside the listed items is an item too, but not what was told at the
        outset.
        """
        names = [item.name for item in self.matcher.match(order).items]
        if not names:
            told = {fact.id for fact in case.given}
            facts = [
                fact
                for fact in case.all_facts
                if fact.item not in self.matcher.names and fact.id not in told
            ]
            groups, _ = self.matcher.facts(tuple(facts)).match(order)
            names = list({group[0].item: 0 for group in groups if group})  # its best fact's
        if not names and self.interpreter is not None:
            listed = self.source.items
            chosen = await self.interpreter.chosen(order, [item.name for item in listed])
            names = [listed[place].name for place in chosen]
        return (names[0] or order) if len(names) == 1 else order

    def _later(self, case: Case, order: str, wording: EvidenceWording) -> str:
        """The reply to an order that this stage does not have; no name of a disease is repeated."""
        if self.rages.refuses(case, order):
            return refusal(order).text
        return f"{neutralise(order)}: {wording.later}"

    def _within(self, order: str, stage: str) -> bool:
        """Whether every examination that the order names is known, and belongs to the stage."""
        items = self.named(order)
        return bool(items) and all(_belongs(item, stage) for item in items)

    def _read_order(self, order: str) -> tuple[Item, ...]:
        """The items that an order names, as `named` remembers them."""
        named = examinations_of(order, lambda form: self.rages.canonical(form) in self._items)
        names = dict.fromkeys(self.rages.canonical(each.name) for each in named)
        return tuple(self._items[name] for name in names if name in self._items)


def open(source: Source, settings: Settings) -> EvidenceSeeking:
    """Evidence-seeking diagnosis over the cases of `source`.

    Raises UserError for a stage that no examination of `source` belongs to, for a base of
    examinations that cannot be opened, and for an `index` that is none of rare diseases.
    """
    return EvidenceSeeking(source, settings)


def seeking(environment: Environment) -> EvidenceSeeking:
    """`environment` itself. Raises UserError where it is another one."""
    return fitting(environment, EvidenceSeeking, "ranked lists", "evidence")


def _everything(exact: ExactRanking, diagnoses: Sequence[str]) -> str:
    """The first of EVERYTHING that names all of `diagnoses`. Raises UserError where none does."""
    catalogue = exact.catalogue
    wanted = [entry for name in diagnoses for entry in catalogue.find(name)[:1]]
    for name in EVERYTHING:
        around = catalogue.around(name)
        if wanted and all(entry in around for entry in wanted):
            return name
    raise UserError(
        f"environment.vague: none of {', '.join(EVERYTHING)} names all diagnoses of these cases; "
        "it is for cases that list their diagnoses, as clinic:pathology does"
    )


def _belongs(item: Item, stage: str) -> bool:
    return normalise(stage) in normalise(f"{item.kind.value} {item.question}")
