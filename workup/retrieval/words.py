"""Texts as a search takes them: what no library can read is removed, and long ones are cut where a reader would."""

from __future__ import annotations

import re
from collections.abc import Iterator

LONGEST_QUERY = 10_000
"""Characters of a query that are read; policies write megabytes when they get stuck."""

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
# A token: a Chinese or Japanese character, at most 32 letters of a word, or a sign. A bounded word bounds a passage.
_TOKEN = re.compile(rf"[{_CJK}]|[^\W{_CJK}]{{1,32}}|[^\w\s]")
_UNREADABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
# Where a text may be cut, the best place first: behind a paragraph, a line, a sentence, a clause, a word.
_BOUNDARIES = tuple(
    map(re.compile, (r"\n[^\S\n]*\n\s*", r"\n\s*", r"(?<=[.!?])\s+|(?<=[。！？])", r"(?<=[;,:])\s+|(?<=[；，：、])", r"\s+"))
)


def plain(text: str) -> str:
    """`text` with control characters and lone surrogates as spaces; line breaks and tabs stay."""
    return _UNREADABLE.sub(" ", text)


def query(text: str) -> str:
    """What is searched for when somebody asks for `text`."""
    return plain(text[:LONGEST_QUERY])


def count(text: str) -> int:
    """Tokens as we count them: words, signs, and single characters of Chinese and Japanese.

    English medical prose has about 1.2 times as many of a language model's tokens.
    """
    return sum(1 for _ in _TOKEN.finditer(text))


def passages(text: str, limit: int) -> list[str]:
    """`text` in pieces of at most `limit` tokens, cut at the best boundary there is; together they are the text.

    Pieces are filled from the left. Linear in the length of the text.
    """
    return list(_pieces(text, limit, 0))


def _pieces(text: str, limit: int, level: int) -> Iterator[str]:
    if count(text) <= limit:
        yield text
    elif level == len(_BOUNDARIES):
        starts = [found.start() for found in _TOKEN.finditer(text)][limit::limit]
        yield from (text[start:end] for start, end in zip([0, *starts], [*starts, len(text)], strict=True))
    else:
        yield from _packed(_cut(text, level), limit, level)


def _cut(text: str, level: int) -> Iterator[str]:
    start = 0
    for found in _BOUNDARIES[level].finditer(text):
        if found.end() > start:
            yield text[start : found.end()]
            start = found.end()
    if start < len(text):
        yield text[start:]


def _packed(parts: Iterator[str], limit: int, level: int) -> Iterator[str]:
    """Neighbours joined while they fit; a part that fits nowhere is cut at the next lower boundary."""
    held: list[str] = []
    size = 0
    for part in parts:
        tokens = count(part)
        if held and size + tokens > limit:
            yield "".join(held)
            held, size = [], 0
        if tokens > limit:
            yield from _pieces(part, limit, level + 1)
        else:
            held.append(part)
            size += tokens
    if held:
        yield "".join(held)
