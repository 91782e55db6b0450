"""Reading and writing the tag grammar, and the one normal form of a name.

Everything here is linear in the length of the text: models and files reach it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

THINK = "think"
# Control tokens of chat templates: <|im_end|>, <|eot_id|>, and the full-width bars that some families use. Bounded: linear.
_CONTROL = re.compile(r"<[|｜][^<>\s]{1,64}>")
# What could be read as a tag or a control token by our grammar or by any chat template.
_OPENER = re.compile(r"<(?=[/!|｜A-Za-z])")
_BRACKET = re.compile(r"\[(?=/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS)\])")

_APOSTROPHES = re.compile(r"['’ʼ`´]")
_DASHES = re.compile(r"[‐‑‒–—−]")
# A hyphen is a sign after a word that it ends ("Rh-") or before a digit ("-3"); between or beside words it is punctuation.
_HYPHEN = re.compile(r"(?<=[^\W_])-(?=[^\W_])|(?<![^\W_])-(?!\d)")
_POINT = re.compile(r"(?<!\d)\.|\.(?!\d)")
_PUNCTUATION = re.compile(r"[^\w+\-<>%≤≥.]|_")
_ARTICLES = re.compile(r"^(?:(?:an?|the) )+(?=.)")


@dataclass(frozen=True, slots=True)
class Block:
    """One complete `<tag>content</tag>`; `text[start:end]` is the whole of it, tags included."""

    tag: str
    content: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Blocks:
    """The complete blocks of a text in order, and how many tags or control tokens stood where none belongs."""

    found: tuple[Block, ...]
    errors: int


@lru_cache(maxsize=64)
def _tags(names: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(rf"<(/?)({'|'.join(map(re.escape, (*names, THINK)))})>")


def blocks(text: str, tags: Sequence[str]) -> Blocks:
    """The blocks of `tags` (matched exactly, lower case as given) that follow an optional thought.

    A thought is everything up to the first `</think>`; its opening tag may be missing, since some chat templates write it.
    Tags inside it are not read, and are errors, as is each control token anywhere. No block
    contains a tag: another opening tag abandons the open block and takes over from it, a closing tag of another name
    abandons it too; each tag that is part of no block is one error. Linear in `len(text)`; never raises.
    """
    pattern = _tags(tuple(tags))
    thought, closed, rest = text.partition(f"</{THINK}>")
    errors = sum(1 for _ in _CONTROL.finditer(text))
    if closed:
        errors += sum(1 for _ in pattern.finditer(thought)) - thought.lstrip().startswith(f"<{THINK}>")
    else:
        thought, rest = "", text
    found, strays = _scan(rest, pattern, len(thought) + len(closed))
    return Blocks(found, errors + strays)


def _scan(text: str, pattern: re.Pattern[str], offset: int) -> tuple[tuple[Block, ...], int]:
    found: list[Block] = []
    opened: re.Match[str] | None = None
    errors = 0
    for tag in pattern.finditer(text):
        if not tag[1]:
            errors += opened is not None
            opened = tag
        elif opened is not None and opened[2] == tag[2] != THINK:
            content = text[opened.end() : tag.start()]
            found.append(Block(tag[2], content, offset + opened.start(), offset + tag.end()))
            opened = None
        else:
            errors += 1 + (opened is not None)
            opened = None
    return tuple(found), errors + (opened is not None)


def tagged(tag: str, content: str) -> str:
    """`<tag>content</tag>`: what `blocks` reads back."""
    return f"<{tag}>{content}</{tag}>"


def neutralise(text: str) -> str:
    """`text` with everything that could be read as a tag or a chat template's control token made harmless.

    For text that goes INTO a transcript: a record that contains `<diagnose>` or `<|im_end|>` must not act. Only the opening
    bracket changes (`<` to `‹`, `[` to `［`), and only where it could open such a token, so `WBC < 5` and `<5` stay.
    Idempotent.
    """
    if "<" in text:
        text = _OPENER.sub("‹", text)
    return _BRACKET.sub("［", text) if "[" in text else text


def _blank(found: re.Match[str]) -> str:
    """A space for punctuation; combining marks stay, since in many scripts they are letters."""
    return found[0] if unicodedata.category(found[0])[0] == "M" else " "


def normalise(name: str) -> str:
    """The normal form in which names are compared (C-MIG B.3, with the symbols and articles that carry meaning kept).

    Lower case, compatibility forms folded (NFKC), punctuation dropped, white space folded. Signs stay: `+ - < > % ≤ ≥`, so
    that "Rh-" is not "Rh+" and "stage <3" not "stage >3"; a hyphen within a word is punctuation, a decimal point is none.
    Only a leading article is dropped: "Hepatitis A" is not "Hepatitis". Idempotent; empty for a name without content.
    """
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).lower())
    text = _DASHES.sub("-", _APOSTROPHES.sub("", text))
    text = _PUNCTUATION.sub(_blank, _POINT.sub(" ", _HYPHEN.sub(" ", text)))
    return _ARTICLES.sub("", " ".join(text.split()))


def same_name(one: str, other: str) -> bool:
    """Whether two names have the same normal form; two empty ones are no match."""
    form = normalise(one)
    return bool(form) and form == normalise(other)
