"""How facts are told: without names of diagnoses, and with nothing that looks like a tag."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial

from workup.core.case import Case, Fact, Item
from workup.core.leaks import WITHHELD
from workup.core.text import neutralise
from workup.environments.base.lexical import HAN, chinese
from workup.roles.judges.options import right

# Names shorter than this are withheld only in their exact case: "MS" is a disease, "ms" a unit.
_SHORT = 4
_LETTER = rf"[^\W{HAN}]"


class Withholding:
    """Tells a fact of a case: called with both, it returns the fact's text.

    Withheld are the names of the case's diagnosis and, in every case alike, of all `diagnoses`, so
    that the gap itself tells nothing. A name stays that the wording of the fact's item uses ("have
    you had pneumonia before?"). An item that is not among `items` has its name alone.
    """

    def __init__(self, items: Iterable[Item] = (), diagnoses: Sequence[str] = ()) -> None:
        self._wordings = {item.name: f"{item.name} {item.question}" for item in items}
        self._say = lru_cache(maxsize=1 << 14)(self._withhold)
        # A cache of its own: the closed list is the same for all cases, other names are not.
        hide = partial(_hidden, _naming(tuple(diagnoses)))
        self._hide_listed = lru_cache(maxsize=1 << 14)(hide)

    def __call__(self, case: Case, fact: Fact) -> str:
        wording = self._wordings.get(fact.item, fact.item)
        truth = case.truth
        return self._say(fact.text, wording, (truth.diagnosis, *truth.aliases, *right(case)))

    def _withhold(self, text: str, wording: str, names: tuple[str, ...]) -> str:
        return neutralise(_hidden(_naming(names), self._hide_listed(text, wording), wording))


def _hidden(naming: re.Pattern[str], text: str, wording: str) -> str:
    """`text` without the names that `naming` matches, but for those that `wording` uses."""

    def hide(name: re.Match[str]) -> str:
        own = re.search(rf"(?<!{_LETTER}){re.escape(name[0])}(?!{_LETTER})", wording, re.IGNORECASE)
        return name[0] if own or (chinese(name[0]) and name[0] in wording) else WITHHELD

    return naming.sub(hide, text)


@lru_cache(maxsize=1024)
def _naming(names: tuple[str, ...]) -> re.Pattern[str]:
    """Matches any of `names` as whole words, the longest first; nothing where there are none."""
    ordered = sorted(filter(None, map(str.strip, names)), key=len, reverse=True)
    # Chinese has no spaces between words: there a name stands wherever its characters do.
    spaced = [_spelled(name) for name in ordered if not chinese(name)]
    found = [rf"(?<!{_LETTER})(?:{'|'.join(spaced)})(?!{_LETTER})"] if spaced else []
    found += [_spelled(name) for name in ordered if chinese(name)]
    return re.compile("|".join(found) if found else r"(?!)")


def _spelled(name: str) -> str:
    """A pattern of the name; blanks, hyphens and apostrophes may be written otherwise."""
    pattern = r"\s+".join(map(re.escape, name.split()))
    pattern = re.sub("['’]", "['’]", pattern.replace(r"\-", r"[-‐‑–\s]"))
    return pattern if len(name) < _SHORT else f"(?i:{pattern})"


withheld = Withholding()
"""`Withholding` where neither items nor diagnoses are listed."""
