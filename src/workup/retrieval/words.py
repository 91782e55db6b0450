"""Texts for a search: unreadable characters are removed, and long texts are cut at a word.

Letters with marks, and Hangul, are composed (Unicode's NFC)."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import cache

LONGEST_QUERY = 10_000
"""Characters of a query that are read; policies write megabytes when they get stuck."""

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
# A token: a Chinese or Japanese character, at most 32 letters of a word, or a sign. A bounded word
# bounds a passage.
_TOKEN = re.compile(rf"[{_CJK}]|[^\W{_CJK}]{{1,32}}|[^\w\s]")
_UNREADABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
# Unicode's own normalisation takes quadratic time for a letter with many marks; here it gets few.
_DECOMPOSED = re.compile(
    r"\w[\u0300-\u036f\u3099\u309a]{1,8}|[\u1100-\u1112][\u1161-\u1175][\u11a8-\u11c2]?"
)
# Where a text may be cut, the best place first: behind a paragraph, a line, a sentence, a clause, a
# word. Each begins with the signs themselves: a search that begins with what stands before a place
# takes five times as long.
_BOUNDARIES = tuple(
    map(
        re.compile,
        (
            r"\n[^\S\n]*\n\s*",
            r"\n\s*",
            r"[.!?。！？](?:(?<=[.!?])\s+|(?<=[。！？]))",
            r"[;,:；，：、](?:(?<=[;,:])\s+|(?<=[；，：、]))",
            r"\s+",
        ),
    )
)


def plain(text: str) -> str:
    """`text` with control characters and lone surrogates as spaces; line breaks and tabs stay.

    Letters and their marks are composed, as in a query typed elsewhere.
    """
    readable = _UNREADABLE.sub(" ", text)
    if readable.isascii():
        return readable
    return _DECOMPOSED.sub(lambda found: unicodedata.normalize("NFC", found[0]), readable)


def query(text: str) -> str:
    """What is searched for when somebody asks for `text`."""
    return plain(text[:LONGEST_QUERY])


def count(text: str) -> int:
    """Tokens as we count them: words, signs, and single characters of Chinese and Japanese.

    English medical prose has about 1.2 times as many of a language model's tokens.
    """
    return sum(1 for _ in _TOKEN.finditer(text))


def passages(text: str, limit: int) -> list[str]:
    """`text` in pieces of at most `limit` tokens; together they are the text.

    A piece but the last is at least half full, and ends at the best boundary that lies in its
    second half: the highest in rank, of these the last. Linear in the length of the text.
    """
    if len(text) <= limit or len(_TOKEN.findall(text)) <= limit:  # faster than with places
        return [text]
    starts = [found.start() for found in _TOKEN.finditer(text)]
    # Most texts are cut at the first kinds of boundary: the others are looked for when needed.
    cuts = [
        cache(lambda boundary=boundary: [found.end() for found in boundary.finditer(text)])
        for boundary in _BOUNDARIES
    ]
    pieces, begin, token = [], 0, 0
    while len(starts) - token > limit:
        end = _end(cuts, starts[token + limit // 2], starts[token + limit])
        pieces.append(text[begin:end])
        begin, token = end, bisect_left(starts, end)
    return [*pieces, text[begin:]]


def _end(cuts: Sequence[Callable[[], Sequence[int]]], low: int, high: int) -> int:
    """The best place to cut in (low, high]."""
    for places_of in cuts:
        places = places_of()
        last = bisect_right(places, high) - 1
        if last >= 0 and places[last] > low:
            return places[last]
    return high


def first(text: str, tokens: int) -> str:
    """`text` up to and with its first so many tokens."""
    end = 0
    for _, found in zip(range(tokens), _TOKEN.finditer(text), strict=False):
        end = found.end()
    return text[:end]
