"""The sequential encounter of CRAFT's Algorithm 1 (CR-1, CR-2): one action per turn.

The answers are phrases of the hidden record. Nothing here remembers or calls a model: without
`trouble` the same request in the same case always gets the same answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import lru_cache
from typing import Self

from workup.core.case import Case, Fact, Item, Kind
from workup.core.channel import Channel
from workup.core.episode import DIAGNOSE, MALFORMED, Action, Message, Observation, Turn
from workup.core.leaks import WITHHELD
from workup.core.text import blocks, neutralise, tagged
from workup.environments.base.asked import of_patient
from workup.environments.base.encounter import TURNS, Encounter
from workup.environments.base.interpreter import Interpreter
from workup.environments.base.matcher import MODEL, NAME, Match, Matcher
from workup.environments.base.trouble import DENIED, UNSURE, Trouble, unsure
from workup.environments.base.withheld import Withholding

TAGS = (*(kind.value for kind in Kind), DIAGNOSE)
STOP = tuple(f"</{tag}>" for tag in TAGS)

INSTRUCTIONS = (
    "You are the doctor in a simulated consultation; this is a test bench and no medical device. "
    "Gather evidence, then name the diagnosis. Every message holds exactly one action and "
    "nothing after it: <ask>…</ask> for the history, <examine>…</examine> for a physical sign, "
    "<test>…</test> for a laboratory value, <image>…</image> for imaging, "
    "<procedure>…</procedure> for a procedure, each naming one thing, or <diagnose>…</diagnose> "
    "with one diagnosis, which ends the consultation. You may think first, inside "
    "<think>…</think>."
)
UNREADABLE = "Please write exactly one action."
UNKNOWN = "Not understood, or not on record: it stays unknown. Please ask for one thing."
NOTHING = "Nothing on record: take it as not done or within normal limits."
CLOSED_RULE = "Whatever the record does not mention was not done or is within normal limits."
CONCLUDE = "Give your diagnosis now."
_WHICH = "That can mean several things: {}. Name one of them."
_UNREAD = " Not understood: {}."
_OTHER_SEX = "This does not apply: the patient is {}."

_SEX = re.compile(r"\b(?:fe)?male\b", re.IGNORECASE)

# A request longer than this names no single thing: it is cut and counts as an error, which also
# bounds the search for what it means.
_LONGEST = 300


class RecordedConsultation(Encounter):
    """An `Environment`: the doctor asks for one thing per turn until it names a diagnosis.

    What a request means, whatever its tag, says `matcher`, by default one of `items` without an
    encoder. Where it means several items equally well it is asked back. A fact that belongs to none
    of `items` is free text, found by `FactMatcher`. Of what names two free facts none is told: to
    ask back which one is meant would tell what is on record. With an `interpreter`, a model reads
    what is not understood: as items, or as free facts.

    There are three kinds of answers: the record's text, an item's normal answer, and that a request
    was not understood or is not on record, which is never "normal". Of what a request joins to an
    item ("potassium and phosphate") the answer names the things that were not understood. In a
    `closed` world what is not on record is taken as normal; the rules say so, and it still counts
    as not understood.

    `diagnoses` is the closed list of names, if there is one. `max_turns` ≥ 1 is the paper's T: the
    diagnosis has to be among the first T actions. `trouble` is what becomes of true answers. No
    other model has a role here: `consultation.Consultation` adds them.
    """

    interpreter: Interpreter | None = None

    def __init__(
        self,
        items: Sequence[Item],
        diagnoses: Sequence[str] = (),
        max_turns: int = TURNS,
        share: float | None = None,
        trouble: Trouble | None = None,
        *,
        matcher: Matcher | None = None,
        closed: bool = False,
    ) -> None:
        super().__init__(max_turns, share)
        self.trouble, self.closed = trouble, closed
        self.diagnoses = tuple(diagnoses)
        self.matcher: Matcher = matcher or Matcher(items)
        self.items = self.matcher.names
        self.tell = Withholding(items, self.diagnoses)

    @property
    def stop(self) -> tuple[str, ...]:
        return STOP

    @property
    def phrases(self) -> tuple[str, ...]:
        """The environment's own phrases, for a tiny policy's vocabulary.

        `_WHICH`, which holds names of items, is none of them: a policy reads it as sub-words.
        """
        own = (INSTRUCTIONS, self._limit, UNREADABLE, self.unknown, WITHHELD, CONCLUDE)
        return own if self.trouble is None else (*own, UNSURE, DENIED)

    @property
    def channel(self) -> Channel | None:
        return None if self.trouble is None else self.trouble.channel

    @property
    def asks(self) -> bool:
        return True

    @property
    def _limit(self) -> str:
        limit = f"You have at most {self.max_turns} actions, the diagnosis included."
        return f"{limit} {CLOSED_RULE}" if self.closed else limit

    @property
    def unknown(self) -> str:
        """The answer to what is not understood, or not on record."""
        return NOTHING if self.closed else UNKNOWN

    def open(self, case: Case) -> tuple[Message, ...]:
        """The rules, then the presentation with the case's question and options, one per line."""
        lines = (case.presentation, case.question, *case.options)
        shown = neutralise("\n".join(line for line in lines if line))
        return Message("system", f"{INSTRUCTIONS} {self._limit}"), Message("user", shown)

    def read(self, text: str) -> Action:
        """The first complete action that names something; "malformed" if there is none.

        The rest counts as errors.

        One error each: a tag or control token that is part of no block, an action that names
        nothing, a request of more than 300 characters, and anything at all after the action. Prose
        before the action is a thought, and no error.
        """
        return _read(text)

    def write(self, kind: str, content: str) -> str:
        return tagged(kind, content)

    def conclude(self, case: Case) -> str:
        return CONCLUDE

    async def answer(self, case: Case, past: Sequence[Turn], action: Action) -> Observation:
        return self.hear(case, past, action, await self.interpreted(case, action))

    async def interpreted(self, case: Case, action: Action) -> Observation:
        """`reply`; what it does not understand, a model reads where one has the role.

        Raises RolloutError when that model gives no usable answer.
        """
        seen = self.reply(case, action)
        if self.interpreter is None or seen.understood:
            return seen
        items, facts = list(self.items.values()), self._free(case)
        named = [f"{each.name}: {each.question}" for each in items]
        things = [*named, *(fact.text for fact in facts)]
        chosen = await self.interpreter.chosen(action.content[0], things)
        meant = tuple(items[place] for place in chosen if place < len(items))
        told = [facts[place - len(items)] for place in chosen if place >= len(items)]
        if (meant and told) or not chosen:  # an item and a fact beside it: two things at once
            return seen
        if meant:
            return self._consult(case, Match(meant, MODEL))
        return self._report(case, told, by=MODEL)

    def with_interpreter(self, interpreter: Interpreter) -> Self:
        """This environment, in which a model reads what the words do not say."""
        other = copy(self)
        other.interpreter = interpreter
        return other

    def hear(
        self, case: Case, past: Sequence[Turn], action: Action, seen: Observation
    ) -> Observation:
        """What the doctor hears after the turns `past` in place of `seen`, the true answer.

        Under trouble a sub-question is denied in its own words, so that the denial does not tell
        whether its parent is negative.
        """
        said = self.trouble.hear(case, past, seen) if self.trouble else None
        if said is None:
            return seen
        item = self.items.get(said.topic)
        if said.true and (seen.evidence or item is None or not item.parent):
            return replace(seen, item=said.topic)
        if said.facts is None:
            return replace(_unanswered(unsure(action.content[0])), item=said.topic)
        if said.facts:
            return self._report(case, said.facts, said.topic, seen.understood_by)
        denied = self._absent(case, replace(item, parent=None)) if item else DENIED
        return _message(denied, item=said.topic, by=seen.understood_by)

    def reply(self, case: Case, action: Action) -> Observation:
        """The true answer, whatever the patient makes of it (`hear`), without a coroutine.

        A positive item is answered with the texts of all its facts, `case.given` included. A
        sub-question whose parent is negative is answered with the parent's normal answer. What only
        the other sex can have does not apply. Diagnosis names are withheld from what the record
        says (`Withholding`).
        """
        if action.kind == DIAGNOSE:
            return Observation(done=True)
        if action.kind not in TAGS:
            return _message(UNREADABLE)
        request = action.content[0]
        if (named := self.items.get(request)) is not None:
            return self._consult(case, Match((named,), NAME))
        request = of_patient(request, case.presentation)
        meant = self.matcher.match(request)
        return self._consult(case, meant) if meant.items else self._consult_record(case, request)

    def record(self, case: Case) -> Observation:
        """All of the record in one answer.

        The oracle context of CR-11, never part of an encounter.
        """
        return self._report(case, case.all_facts)

    def _consult(self, case: Case, meant: Match) -> Observation:
        unread = _UNREAD.format(", ".join(meant.unread)) if meant.unread else ""
        if len(meant.items) > 1:
            names = ", ".join(item.name for item in meant.items)
            return _unanswered(_WHICH.format(names) + unread)
        (item,) = meant.items
        facts = _about(case, item.name)
        if facts:
            return self._report(case, facts, item.name, meant.step, unread)
        return _message(self._absent(case, item) + unread, item=item.name, by=meant.step)

    def _absent(self, case: Case, item: Item) -> str:
        """What is answered of an item that the record has no fact of."""
        if item.sex:
            sex = _SEX.search(" ".join([fact.text for fact in _about(case, "sex")]))
            if sex and sex[0].lower() != item.sex:
                return _OTHER_SEX.format(sex[0].lower())
        parent = self.items.get(item.parent) if item.parent else None
        negative = parent is not None and not _about(case, parent.name)
        return parent.normal if parent is not None and negative else item.normal

    def _consult_record(self, case: Case, request: str) -> Observation:
        free = self._free(case)
        groups, step = self.matcher.facts(free).match(request)
        if len(groups) != 1:  # which ones is not told: the names alone would say what is on record
            return _unanswered(UNKNOWN if groups else self.unknown)
        (facts,) = groups
        item = facts[0].item
        whole = {fact for fact in free if fact.item == item} == set(facts)
        return self._report(case, facts, item if whole else "", step)

    def _free(self, case: Case) -> tuple[Fact, ...]:
        """The facts of the case that belong to no listed item, as they are told.

        A guess finds no fact by the name that is withheld from it.
        """
        facts = [fact for fact in case.all_facts if fact.item not in self.items]
        return tuple([replace(fact, text=self.tell(case, fact)) for fact in facts])

    def _report(
        self, case: Case, facts: Sequence[Fact], item: str = "", by: str = "", also: str = ""
    ) -> Observation:
        text = " ".join([self.tell(case, fact) for fact in facts])
        return _message(text + also, tuple([fact.id for fact in facts]), item, by)


@lru_cache(maxsize=1 << 12)  # a policy of few words says the same again and again
def _read(text: str) -> Action:
    seen = blocks(text, TAGS)
    errors = seen.errors
    for block in seen.found:
        content = " ".join(block.content.split())
        if any(map(str.isalnum, content)):
            errors += bool(text[block.end :].strip()) + (len(content) > _LONGEST)
            return Action(block.tag, (content[:_LONGEST],), errors)
        errors += 1
    return Action(MALFORMED, (), max(errors, 1))


def _message(
    text: str, evidence: tuple[str, ...] = (), item: str = "", by: str = ""
) -> Observation:
    return Observation((Message("user", neutralise(text)),), evidence, item, understood_by=by)


def _unanswered(text: str) -> Observation:
    return Observation((Message("user", neutralise(text)),), understood=False)


def _about(case: Case, item: str) -> list[Fact]:
    return [fact for fact in case.all_facts if fact.item == item]
