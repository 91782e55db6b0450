"""Other names for what a request names: each line of `other_words.csv` has those of one thing."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice, product
from pathlib import Path

from workup.environments.base.lexical import ONE_THING

MOST_TRIED = 24
"""Wordings of one request that are tried at most."""


def otherwise_called(text: str) -> Iterator[str]:
    """The text with other names for what it names, at most MOST_TRIED wordings.

    Example: "HR" becomes "heart rate", then "pulse rate", then "pulse".
    """
    taken = [found.span() for found in ONE_THING.finditer(text.casefold())]
    named = [(found, names) for pattern, names in _groups() if (found := pattern.search(text))]
    taken += [found.span() for found, _ in named]
    choices = [
        [(found.re, name) for name in names if name.casefold() != found[0].casefold()]
        for found, names in named
        if not any(
            start <= found.start() and found.end() <= end and (start, end) != found.span()
            for start, end in taken  # "high blood pressure" is no blood pressure
        )
    ]
    for chosen in islice(product(*choices), MOST_TRIED if choices else 0):
        other = text
        for pattern, name in chosen:
            other = pattern.sub(name, other)
        yield other


@cache
def _groups() -> tuple[tuple[re.Pattern[str], tuple[str, ...]], ...]:
    """What finds a name of a group, and the group's names."""
    file = Path(__file__).with_name("other_words.csv")
    lines = file.read_text(encoding="utf-8").splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    groups = [row["names"].split("|") for row in rows]
    return tuple((_any_of(names), tuple(name.strip("*") for name in names)) for names in groups)


def _any_of(names: Sequence[str]) -> re.Pattern[str]:
    """Finds the longest of the names that stands somewhere; short ones in their letter case."""
    longest = sorted((name for name in names if name[0] != "*"), key=len, reverse=True)
    wordings = (
        re.escape(name) if name.isupper() or len(name) <= 3 else f"(?i:{re.escape(name)})"
        for name in longest
    )
    return re.compile(rf"(?<![\w-])(?:{'|'.join(wordings)})(?![\w-])")
