"""The sequential encounter of CRAFT's Algorithm 1 (CR-1, CR-2): one action per turn.

The answers are phrases of the hidden record. Nothing here remembers or calls a model: without
`trouble` the same request in the same case always gets the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from workup.core.case import Case, Fact, Item, Kind
from workup.core.channel import Channel
from workup.core.episode import DIAGNOSE, MALFORMED, Action, Message, Observation, Turn
from workup.core.leaks import WITHHELD
from workup.core.text import blocks, neutralise, normalise, tagged
from workup.environments.base.encounter import TURNS, Encounter
from workup.environments.base.lexical import Lexicon
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
CONCLUDE = "Give your diagnosis now."
_WHICH = "That can mean several things: {}. Name one of them."

# A request longer than this names no single thing: it is cut and counts as an error, which also
# bounds the lexical search.
_LONGEST = 300
# A request means an item from this share of common words on, of all words of both, and is answered
# by a free-text fact that holds this share of the request's words, by weight.
_ITEM_OVERLAP = 0.6
_FACT_COVERAGE = 0.5
_FACTS_PER_ANSWER = 2


class RecordedConsultation(Encounter):
    """An `Environment`: the doctor asks for one thing per turn until it names a diagnosis.

    A request is matched, whatever its tag, by item name, then by question wording, then by shared
    words, then by an item name whose words all stand in it, in any order; of several such names the
    one with the most words counts. Example: "Since when has there been this pain in the chest?"
    means "chest pain", not "pain". Where a request means several items equally well it is asked
    back.

    A fact that belongs to none of `items` is free text. It is found by the name of its own item, by
    such a name within the request (all facts of that name are told), and then by shared words (at
    most two facts are told). What matches nothing is not understood, which is never "normal". So is
    what names two free facts: to ask back which one is meant would tell what is on record.

    `diagnoses` is the closed list of names, if there is one. `max_turns` ≥ 1 is the paper's T: the
    diagnosis has to be among the first T actions. `trouble` is what becomes of true answers. No
    model has a role here: `consultation.Consultation` adds them.
    """

    def __init__(
        self,
        items: Sequence[Item],
        diagnoses: Sequence[str] = (),
        max_turns: int = TURNS,
        share: float | None = None,
        trouble: Trouble | None = None,
    ) -> None:
        super().__init__(max_turns, share)
        self.trouble = trouble
        self.diagnoses = tuple(diagnoses)
        self.items = {item.name: item for item in items}
        wordings = [(item.name, item) for item in items] + [(item.question, item) for item in items]
        # Reversed, so that a name wins over a question and the earlier item over the later one.
        self._by_wording = {
            normalise(wording): item for wording, item in reversed(wordings) if normalise(wording)
        }
        self._by_index = [item for _, item in wordings]
        self._lexicon = Lexicon([wording for wording, _ in wordings])
        self._item_names = Lexicon([item.name for item in items])
        self._find = lru_cache(maxsize=1 << 14)(self._match)
        self.tell = Withholding(items, self.diagnoses)

    @property
    def stop(self) -> tuple[str, ...]:
        return STOP

    @property
    def phrases(self) -> tuple[str, ...]:
        """The environment's own phrases, for a tiny policy's vocabulary.

        `_WHICH`, which holds names of items, is none of them: a policy reads it as sub-words.
        """
        own = (INSTRUCTIONS, self._limit, UNREADABLE, UNKNOWN, WITHHELD, CONCLUDE)
        return own if self.trouble is None else (*own, UNSURE, DENIED)

    @property
    def channel(self) -> Channel | None:
        return None if self.trouble is None else self.trouble.channel

    @property
    def asks(self) -> bool:
        return True

    @property
    def _limit(self) -> str:
        return f"You have at most {self.max_turns} actions, the diagnosis included."

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
        return self.hear(case, past, action, self.reply(case, action))

    def hear(
        self, case: Case, past: Sequence[Turn], action: Action, seen: Observation
    ) -> Observation:
        """What the doctor hears after the turns `past` in place of `seen`, the true answer.

        A sub-question is then denied in its own words, so that it does not tell whether its parent
        is negative.
        """
        said = self.trouble.hear(case, past, seen) if self.trouble else None
        if said is None:
            return seen
        item = self.items.get(said.topic)
        if said.true and (seen.evidence or item is None or not item.parent):
            return replace(seen, item=said.topic)
        if said.facts is None:
            return replace(_unanswered(unsure(action.content[0])), item=said.topic)
        denied = item.normal if item else DENIED
        told = replace(self._report(case, said.facts), item=said.topic)
        return told if said.facts else _message(denied, item=said.topic)

    def reply(self, case: Case, action: Action) -> Observation:
        """The true answer, whatever the patient makes of it (`hear`), without a coroutine.

        A positive item is answered with the texts of all its facts, `case.given` included. A
        sub-question whose parent is negative is answered with the parent's normal answer. Diagnosis
        names are withheld from what the record says (`Withholding`).
        """
        if action.kind == DIAGNOSE:
            return Observation(done=True)
        if action.kind not in TAGS:
            return _message(UNREADABLE)
        request = action.content[0]
        named = self.items.get(request)
        meant = (named,) if named is not None else self._find(request)
        if len(meant) > 1:
            return _unanswered(_WHICH.format(", ".join(item.name for item in meant)))
        return self._consult_item(case, meant[0]) if meant else self._consult_record(case, request)

    def record(self, case: Case) -> Observation:
        """All of the record in one answer.

        The oracle context of CR-11, never part of an encounter.
        """
        return self._report(case, case.given + case.truth.facts)

    def _consult_item(self, case: Case, item: Item) -> Observation:
        facts = _about(case, item.name)
        if facts:
            return self._report(case, facts, item.name)
        parent = self.items.get(item.parent) if item.parent else None
        negative = parent is not None and not _about(case, parent.name)
        return _message(
            parent.normal if parent is not None and negative else item.normal, item=item.name
        )

    def _consult_record(self, case: Case, request: str) -> Observation:
        facts = case.given + case.truth.facts
        free = _free(tuple([fact for fact in facts if fact.item not in self.items]))
        named = free.named(request)
        if len(named) > 1:  # which ones is not told: the names alone would say what is on record
            return _unanswered(UNKNOWN)
        if named:
            return self._report(case, named[0], named[0][0].item)
        chosen = free.about(request)
        return self._report(case, chosen) if chosen else _unanswered(UNKNOWN)

    def _report(self, case: Case, facts: Sequence[Fact], item: str = "") -> Observation:
        text = " ".join([self.tell(case, fact) for fact in facts])
        return _message(text, tuple([fact.id for fact in facts]), item)

    def _match(self, request: str) -> tuple[Item, ...]:
        """The items that the request may mean: none, one, or several that it means equally well."""
        item = self._by_wording.get(normalise(request))
        if item is not None:
            return (item,)
        ranked = self._lexicon.overlap(request, _ITEM_OVERLAP)
        best = [self._by_index[index].name for share, index in ranked if share == ranked[0][0]]
        names = best or [self._by_index[index].name for index in self._item_names.named(request)]
        return tuple([self.items[name] for name in dict.fromkeys(names)])


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


def _message(text: str, evidence: tuple[str, ...] = (), item: str = "") -> Observation:
    return Observation((Message("user", text),), evidence, item)


def _unanswered(text: str) -> Observation:
    return Observation((Message("user", text),), understood=False)


class _Free:
    """The facts of one case that belong to no listed item, indexed for requests."""

    def __init__(self, facts: tuple[Fact, ...]) -> None:
        self._facts = facts
        self._by_name: dict[str, list[Fact]] = {}  # the normal form of an item → its facts
        for fact in facts:
            if name := normalise(fact.item):
                self._by_name.setdefault(name, []).append(fact)
        self._item_names = Lexicon(list(self._by_name))
        self._words = Lexicon([f"{fact.item} {fact.text}" for fact in facts])

    def named(self, request: str) -> list[list[Fact]]:
        """The facts of each item that the request names: by its whole wording, or within it."""
        if own := self._by_name.get(normalise(request)):
            return [own]
        items = list(self._by_name.values())
        return [items[index] for index in self._item_names.named(request)]

    def about(self, request: str) -> list[Fact]:
        """The facts that share the request's words."""
        ranked = self._words.coverage(request, _FACT_COVERAGE)
        return [self._facts[index] for _, index in ranked[:_FACTS_PER_ANSWER]]


_free = lru_cache(maxsize=1 << 10)(_Free)  # a case is asked many questions


def _about(case: Case, item: str) -> list[Fact]:
    return [fact for fact in (*case.given, *case.truth.facts) if fact.item == item]
