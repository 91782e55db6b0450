"""The grammar of one thought with searches in it (Med-R³, MR-1), read from what was said.

    <think> … <search>query</search><document> … </document> … </think><answer> … </answer>

An episode has it turn by turn, read once. A `Process` has it as one text, as a strong model's
reasoning stands in a file: no completion, so it is read here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from workup.core.case import Passage
from workup.core.episode import DIAGNOSE, MALFORMED, Action, Ending, Episode, Part
from workup.core.text import THINK, control_tokens, tagged
from workup.environments.base.searching import LONGEST, NOTHING, SEARCH, numbered, says

DOCUMENT, ANSWER = "document", "answer"
# Names of the parts of an action, and the items of TAGS.
THOUGHT, TAGS = "thought", "tags"
OPENED, CLOSED = f"<{THINK}>", f"</{THINK}>"

_TAG = re.compile(rf"<(/?)({THINK}|{SEARCH}|{DOCUMENT}|{ANSWER})>")
_NUMBERED = re.compile(r"^\[\d{1,4}\] ", re.MULTILINE)


@lru_cache(maxsize=1 << 12)  # a policy of few words says the same again and again
def read(text: str) -> Action:
    """The one parse of a completion: see `Reasoning.read`.

    Its parts are THOUGHT and TAGS. THOUGHT is the text up to `</think>`, or up to the end of the
    action, cut into pieces at tags. TAGS has `<think>` where the text begins with it, and
    `</think>` where the thought is closed.
    """
    errors = control_tokens(text)
    opens = closes = False
    thought_ends, after = len(text), 0
    begun: re.Match[str] | None = None
    action: Action | None = None
    for place, tag in enumerate(_TAG.finditer(text)):
        closing, name = tag[1], tag[2]
        if name == DOCUMENT:
            errors += 1
        elif name == THINK:
            errors += begun is not None
            if not closing:
                first = place == 0 and not text[: tag.start()].strip()
                opens, errors = opens or first, errors + (not first)
            else:
                errors += closes
                closes, thought_ends, after = True, min(thought_ends, tag.start()), tag.end()
        elif not closing:
            errors += begun is not None
            begun = tag
        elif begun is None or begun[2] != name:
            errors += 1 + (begun is not None)
            begun = None
        else:
            content = " ".join(text[begun.end() : tag.start()].split())
            start, begun, action = begun.start(), None, _action(name, content)
            if action is None:
                errors += 1
                continue
            if name == SEARCH:
                errors += closes
            else:
                errors += not closes or bool(text[after:start].strip())
            errors += action.errors + bool(text[tag.end() :].strip())
            thought_ends = min(thought_ends, tag.end())
            break
    errors += begun is not None
    tags = (*([OPENED] if opens else ()), *([CLOSED] if closes else ()))
    said = {THOUGHT: _pieces(text[:thought_ends]), TAGS: tags}
    parts = tuple(Part(name, items) for name, items in said.items() if items)
    if action is None:
        return Action(MALFORMED, (), max(errors, 1), parts)
    return replace(action, errors=errors, parts=parts)


def _action(name: str, content: str) -> Action | None:
    """The action of a block; None where it says nothing."""
    if not says(content):
        return None
    kind = SEARCH if name == SEARCH else DIAGNOSE
    return Action(kind, (content[:LONGEST],), int(len(content) > LONGEST))


def _pieces(text: str) -> tuple[str, ...]:
    """What stands between the tags of `text`, without space at its beginning and its end."""
    pieces = _TAG.split(text)[::3]  # the groups of the pattern stand between them
    said = [place for place, piece in enumerate(pieces) if piece.strip()]
    if not said:
        return ()
    first, last = said[0], said[-1]
    pieces[first] = pieces[first].lstrip()
    pieces[last] = pieces[last].rstrip()
    return tuple(pieces[first : last + 1])


def well_formed(episode: Episode) -> bool:
    """Whether the episode keeps the grammar of MR-1.

    It has one thought, which the first completion opens (or a chat template did) and the last one
    closes, one answer directly behind it, and no error in any turn.
    """
    return episode.ending is Ending.DIAGNOSED and _clean(episode.actions)


def _clean(actions: Sequence[Action]) -> bool:
    return (
        not any(action.errors for action in actions)
        and not any(OPENED in action.part(TAGS) for action in actions[1:])
        and not any(CLOSED in action.part(TAGS) for action in actions[:-1])
    )


def thought(actions: Iterable[Action]) -> str:
    """What the doctor thought, queries included, without documents.

    One line end stands between turns, and in place of every tag: what stands beside a tag is
    another clause.
    """
    return "\n".join("\n".join(action.part(THOUGHT)) for action in actions)


def document(found: Sequence[Passage]) -> str:
    """The passages as the doctor reads them, tags included."""
    return tagged(DOCUMENT, numbered(found))


def written(episode: Episode) -> str:
    """The episode as one text, which `Process.of` takes apart again."""
    found = [turn.observation.passages for turn in episode.turns]
    blocks = ("" if passages is None else document(passages) for passages in found)
    pairs = zip(episode.turns, blocks, strict=True)
    return "".join(turn.completion.text.strip() + block for turn, block in pairs)


@dataclass(frozen=True, slots=True)
class Process:
    """A reasoning process that stands in one text, taken apart.

    `said` is what the reasoner wrote, turn by turn; `shown[k]` is the content of the document
    behind `said[k]`, so there is one fewer of them. A document without an end goes on to the end of
    the text: nothing in it counts as said.
    """

    said: tuple[str, ...]
    shown: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: str) -> Process:
        """Linear in `len(text)`; never raises."""
        first, *rest = text.split(f"<{DOCUMENT}>")
        pieces = [piece.partition(f"</{DOCUMENT}>") for piece in rest]
        return cls(
            (first, *(after for _, _, after in pieces)), tuple(shown for shown, _, _ in pieces)
        )

    @property
    def plain(self) -> bool:
        """Whether the text has no tag of the grammar: it is a thought and nothing else."""
        return not self.shown and _TAG.search(self.said[0]) is None

    @property
    def thought(self) -> str:
        """As `thought` of an episode's actions."""
        return thought(map(read, self.said))

    @property
    def passages(self) -> tuple[str, ...]:
        """All passages that its searches returned, in order, without their numbers."""
        texts = (text.strip() for shown in self.shown for text in _NUMBERED.split(shown))
        return tuple(text for text in texts if text and text != NOTHING)

    @property
    def objection(self) -> str:
        """The first thing that keeps the process from being an episode, in a few words; else ""."""
        actions = list(map(read, self.said))
        kinds = [action.kind for action in actions]
        objections = (
            (kinds[-1] != DIAGNOSE, "it does not end with an answer"),
            (set(kinds[:-1]) - {SEARCH}, "a document stands where nothing was searched"),
            (not _clean(actions), "its tags are not one thought with searches and one answer"),
        )
        return next((words for holds, words in objections if holds), "")
