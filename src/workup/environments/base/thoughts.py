"""The grammar of one thought with searches in it (Med-R³, MR-1), read from what was said.

    <think> … <search>query</search><document> … </document> … </think><answer> … </answer>

An episode has it turn by turn. A `Process` has it as one text, as a strong model's reasoning stands
in a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from workup.core.episode import DIAGNOSE, MALFORMED, Action, Ending, Episode, Turn
from workup.core.text import THINK, control_tokens
from workup.environments.base.searching import LONGEST, NOTHING, NUMBERED, SEARCH, says

DOCUMENT, ANSWER = "document", "answer"

_TAG = re.compile(rf"<(/?)({THINK}|{SEARCH}|{DOCUMENT}|{ANSWER})>")


@dataclass(frozen=True, slots=True)
class Part:
    """One completion taken apart: its action, and what it says of the one thought.

    `opens` and `closes` say whether it holds `<think>` at its beginning and `</think>`. `thought`
    is the text up to `</think>`, or up to the end of the action, without tags.
    """

    action: Action
    thought: str
    opens: bool
    closes: bool


@lru_cache(maxsize=1 << 12)  # environment and rewards read the same completions
def take_apart(text: str) -> Part:
    """The one parse of a completion: see `Reasoning.read`."""
    errors = control_tokens(text)
    opens = closes = False
    thought_ends, after = len(text), 0
    begun: re.Match[str] | None = None
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
            thought = _plain(text[: min(thought_ends, tag.end())])
            return Part(Action(action.kind, action.content, errors), thought, opens, closes)
    errors += begun is not None
    return Part(Action(MALFORMED, (), max(errors, 1)), _plain(text[:thought_ends]), opens, closes)


def _action(name: str, content: str) -> Action | None:
    """The action of a block; None where it says nothing."""
    if not says(content):
        return None
    kind = SEARCH if name == SEARCH else DIAGNOSE
    return Action(kind, (content[:LONGEST],), int(len(content) > LONGEST))


def _plain(text: str) -> str:
    """`text` with a line end in place of every tag: what stands beside a tag is another clause."""
    return _TAG.sub("\n", text).strip()


def well_formed(episode: Episode) -> bool:
    """Whether the episode keeps the grammar of MR-1.

    It has one thought, which the first completion opens (or a chat template did) and the last one
    closes, one answer directly behind it, and no error in any turn.
    """
    said = [turn.completion.text for turn in episode.turns]
    return episode.ending is Ending.DIAGNOSED and _clean(list(map(take_apart, said)))


def _clean(parts: Sequence[Part]) -> bool:
    return (
        not any(part.action.errors for part in parts)
        and not any(part.opens for part in parts[1:])
        and not any(part.closes for part in parts[:-1])
    )


def thought(episode: Episode) -> str:
    """What the doctor thought, queries included, without documents; one line end between turns."""
    return _joined(turn.completion.text for turn in episode.turns)


def _joined(said: Iterable[str]) -> str:
    return "\n".join(take_apart(text).thought for text in said)


def documents(turn: Turn) -> list[str]:
    """The passages that the turn's search returned, one by one, without tags and numbers."""
    shown = _document(turn)
    return _passages(shown.removeprefix(f"<{DOCUMENT}>").removesuffix(f"</{DOCUMENT}>"))


def written(episode: Episode) -> str:
    """The episode as one text, which `Process.of` takes apart again."""
    blocks = (_document(turn) for turn in episode.turns)
    pairs = zip(episode.turns, blocks, strict=True)
    return "".join(turn.completion.text.strip() + block for turn, block in pairs)


def _document(turn: Turn) -> str:
    """The document block that answered the turn, tags included; "" if there was none."""
    end = f"</{DOCUMENT}>"
    for message in turn.observation.messages:
        if message.content.startswith(f"<{DOCUMENT}>"):
            return message.content.partition(end)[0] + end
    return ""


def _passages(shown: str) -> list[str]:
    """The numbered passages of one document block."""
    texts = [text.strip() for text in NUMBERED.split(shown)]
    return [text for text in texts if text and text != NOTHING]


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
        """As `thought` of an episode."""
        return _joined(self.said)

    @property
    def passages(self) -> tuple[str, ...]:
        """All passages that its searches returned, in order."""
        return tuple(text for shown in self.shown for text in _passages(shown))

    @property
    def objection(self) -> str:
        """The first thing that keeps the process from being an episode, in a few words; else ""."""
        parts = list(map(take_apart, self.said))
        kinds = [part.action.kind for part in parts]
        objections = (
            (kinds[-1] != DIAGNOSE, "it does not end with an answer"),
            (set(kinds[:-1]) - {SEARCH}, "a document stands where nothing was searched"),
            (not _clean(parts), "its tags are not one thought with searches and one answer"),
        )
        return next((words for holds, words in objections if holds), "")
