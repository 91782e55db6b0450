"""The grammar of search–refine–diagnose: how searches and their results are written and read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from workup.core.case import Case, Fact, Kind, Passage
from workup.core.episode import ASK, DIAGNOSE, MALFORMED, Action, Ending, Episode, Part, Turn
from workup.core.text import any_tag, control_tokens, scanned, tagged

SEARCH, REFINE, EVIDENCE, DIAGNOSIS = "search", "refine", "evidence", "diagnosis"
TAGS = (SEARCH, REFINE, EVIDENCE, DIAGNOSIS)
NOTHING = "Nothing was found."
SEPARATOR = ";"

Told = Literal["presentation", "history", "record"]

_SPLIT = re.compile("[;；]")
# Characters of a query, question or diagnosis; the rest is cut off and counts as an error.
LONGEST = 500


@dataclass(frozen=True, slots=True)
class SearchGrammar:
    """What may be set: how a search is written, and what the doctor gets to read.

    A search holds at most `subqueries` queries, separated by semicolons, each of which brings its
    best passage; or, where that is 0, one query that brings its best `passages`. A passage is cut
    after `passage_tokens` words and signs. Without `refine` the grammar has no refinements
    (Search-R1). `told` says what of the patient is described: the presentation, all positive
    findings of the history with it, or the whole record. `max_turns` ≥ 1 counts the diagnosis: the
    paper's T_max is one less. Passages that rest on the case's own publication alone are found
    only with `own_paper`. With `asks` the doctor may question the patient too, one question in
    an action (`<ask>`); without, that tag is ordinary text. `shuffled` passages stand in random
    order, so that their rank tells nothing.
    """

    subqueries: int = 3
    passages: int = 3
    passage_tokens: int = 256
    refine: bool = True
    told: Told = "history"
    max_turns: int = 4
    own_paper: bool = False
    asks: bool = False
    shuffled: bool = False

    def __post_init__(self) -> None:
        if (
            self.max_turns < 1
            or self.subqueries < 0
            or self.passages < 1
            or self.passage_tokens < 1
        ):
            raise ValueError(f"{self}: all numbers must be at least 1, subqueries at least 0")

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of the grammar, thoughts aside."""
        return (*TAGS, ASK) if self.asks else TAGS

    def facts(self, case: Case) -> tuple[Fact, ...]:
        """The findings that are told besides the presentation."""
        kinds = self.kinds
        return tuple(fact for fact in case.truth.facts if fact.kind in kinds)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of the findings that are told besides the presentation."""
        kinds: Mapping[Told, tuple[Kind, ...]] = {
            "presentation": (),
            "history": (Kind.HISTORY,),
            "record": tuple(Kind),
        }
        return kinds[self.told]

    def read(self, text: str) -> Action:
        """The one parse of a completion: see `Library.read`."""
        return _read(text, self.subqueries, self.refine, self.tags)

    def well_formed(self, episode: Episode) -> bool:
        """Whether every tag is well formed and in its order (CM-8).

        The order is search → evidence → refine, and a diagnosis at the end. Evidence that the
        doctor writes is an error, so there is never more evidence than searches. A refinement must
        follow evidence, and nothing else: what a patient answers is not refined. If the grammar has
        no refinements, one is an error anyway.
        """
        if episode.ending is not Ending.DIAGNOSED or any(
            turn.action.errors for turn in episode.turns
        ):
            return False
        informed = (False, *(turn.observation.passages is not None for turn in episode.turns))
        wanted = (before and self.refine for before in informed)
        return all(
            bool(refinement(turn)) == due for turn, due in zip(episode.turns, wanted, strict=False)
        )


def refinement(turn: Turn) -> str:
    """What the turn made of the evidence before it; "" where it made nothing."""
    return " ".join(turn.action.part(REFINE))


def evidence(turn: Turn) -> str:
    """The evidence that the turn's search returned, tags included; "" if there was none."""
    found = turn.observation.passages
    return "" if found is None else tagged(EVIDENCE, numbered(found))


def numbered(found: Sequence[Passage]) -> str:
    """The passages, each behind its number; "Nothing was found." if there are none."""
    return "\n".join(f"[{n}] {passage.whole}" for n, passage in enumerate(found, 1)) or NOTHING


@lru_cache(maxsize=1 << 12)  # a policy of few words says the same again and again
def _read(text: str, subqueries: int, refine: bool, tags: tuple[str, ...]) -> Action:
    # Unlike elsewhere thoughts may stand anywhere, refinements before them.
    found, strays = scanned(text, any_tag(tags), thoughts=True)
    errors = control_tokens(text) + strays
    errors += sum(block.tag == EVIDENCE or (block.tag == REFINE and not refine) for block in found)
    refined: list[str] = []
    action = None
    for block in found:
        content = " ".join(block.content.split())
        if block.tag == REFINE and refine:
            refined += [content] if says(content) else []
        elif block.tag in (SEARCH, DIAGNOSIS, ASK):
            action = _action(block.tag, content, subqueries)
            if action is not None:
                errors += action.errors + bool(text[block.end :].strip())
                break
            errors += 1
    parts = (Part(REFINE, tuple(refined)),) if refined else ()
    if action is None:
        return Action(MALFORMED, (), max(errors, 1), parts)
    return replace(action, errors=errors, parts=parts)


def _action(tag: str, content: str, subqueries: int) -> Action | None:
    """The action of a block; None where it says nothing."""
    parts = _SPLIT.split(content) if tag == SEARCH and subqueries else [content]
    said = list(dict.fromkeys(part.strip() for part in parts if says(part)))
    if not said:
        return None
    most = subqueries if tag == SEARCH and subqueries else 1
    errors = sum(len(part) > LONGEST for part in said) + max(len(said) - most, 0)
    return Action(
        DIAGNOSE if tag == DIAGNOSIS else tag,
        tuple(part[:LONGEST] for part in said[:most]),
        errors,
    )


def says(text: str) -> bool:
    """Whether `text` holds a letter or a digit."""
    return any(map(str.isalnum, text))
