"""Detects a qualifier that makes another thing of what an item is about.

"Back pain during the period" holds the words of painful periods, and "cold feet" those of somebody
who is always cold. Each rule says which words of a request an item has to name as well.
"""

from __future__ import annotations

import re
from functools import lru_cache

from workup.environments.base.body_parts import parts

# A pain of which the circumstance is known and not the place: "pain after meals". Where a request
# names a place, it is another pain, unless people call the item by that place too.
_PAIN_AT = re.compile(
    r"^(?=.*\bpain)(?=.*\b(?:meals?|eating|periods?|menstrua|intercourse))",
    re.IGNORECASE,
)
# Places that `parts` does not know, since they are named in the words of many other things.
_FURTHER_PLACE = re.compile(
    r"\b(joint|bone|muscle|jaw|tooth|teeth|rib|testic|scrot|perine|kidney|pelvi|gum)", re.IGNORECASE
)
# How people make that pain better is another question: "does eating help the pain".
_EATEN = r"(?:eat\w*|food|meals?)\b"
_EASES = r"(?:help|eas(?:e|es|ed)\b|sooth|reliev|better|improv)"
_RELIEF = re.compile(
    rf"\b(?:{_EATEN}.{{0,20}}\b{_EASES}"
    rf"|{_EASES}\w* (?:by|after|when|with|on)\b.{{0,12}}\b{_EATEN})",
    re.IGNORECASE,
)
# "Back pain that goes to the leg" is none that goes to the back.
_TO_THE_BACK = (
    re.compile(r"\b(?:radiating|goes|spreads) (?:\w{1,8} )?to the back\b", re.IGNORECASE),
    re.compile(
        r"\b(?:to|into|through|towards?)\b(?: (?:the|your|his|her|my|upper|lower|mid))* back\b",
        re.IGNORECASE,
    ),
)


def _any(words: str) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{words})", re.IGNORECASE)


_HOT_OR_COLD = r"(?:cold|hot|warm)\b(?! (?:weather|water|air))"
_LIMBS = (
    r"(?:hands?|fingers?)\b",
    r"(?:foot|feet|toes?)\b",
    r"(?:legs?|arms?|limbs?|extremit(?:y|ies))\b",
    r"(?:noses?|ears?|lips?)\b",
)
_HEAVY = (
    r"(?:periods?|menstrua\w*|flow|bleed\w*)\b.{0,20}\b(?:heav|lighter)"
    r"|(?:heavy|heavier|light|lighter) (?:menstrua\w* )?(?:periods?|flow|bleed)"
    r"|(?:your|the|his|her) (?!patient)\w+(?: \w+)? heavier"
)
_STIFF = r"(?:back|spine)\b(?: \w+){0,2} stiff|stiff\w*(?: \w+){0,3} (?:back|spine)\b"
_STANDING = (
    r"orthosta|postural (?:blood|vital)|(?:lying|sitting|supine) (?:and|to|vs?) standing"
    r"|standing (?:and|to|vs?) (?:lying|sitting|supine)"
    r"|(?:standing|lying|sitting|supine) (?:blood pressure|bp|vital|pulse)"
    r"|(?:blood pressure|bp|vital signs|vitals|pulse) (?:standing|lying|sitting|supine)"
)
# What a test is for, and no reason for it: "throat swab for gonorrhea".
_GERMS = tuple(
    map(
        _any,
        (
            r"gonorr|gonococ",
            r"chlamyd",
            r"covid|sars|coronavirus",
            r"pertussis|whooping",
            r"diphther",
            r"herpes|hsv",
            r"(?:clostrid\w+|c\.?) ?diff",
            r"ova\b|parasit",
        ),
    )
)
# (asked, told): who asks about one of these is answered only by an item that names it too.
_NAMED_TOO = (
    *(
        (
            _any(rf"{limb}(?: \w+){{0,3}}? {_HOT_OR_COLD}|{_HOT_OR_COLD} {limb}"),
            _any(limb),
        )
        for limb in _LIMBS
    ),
    (_any(_HEAVY), _any("period|menstrua|flow|bleed")),
    (_any(_STIFF), _any("back|spine")),
    (_any(_STANDING), _any("orthosta|postural|standing|lying")),
)
# "Examine for high blood pressure" asks for no high blood pressure of the past.
_OF_PAST = re.compile(r"\bin the past\b", re.IGNORECASE)
_EXAMINED = re.compile(r"\b(?:examin|palpat|inspect|auscult|measur)", re.IGNORECASE)


@lru_cache(maxsize=1 << 12)
def _also_named(asked: str) -> tuple[re.Pattern[str], ...]:
    """What an item has to name, too, to be what a request is about."""
    return tuple(told for one, told in _NAMED_TOO if one.search(asked))


def another_thing(asked: str, own: str, said: str) -> bool:
    """Whether a request is about another thing than an item.

    `own` are the item's name and question, `said` these and all its synonyms. Example: "cold feet"
    is no intolerance of cold.
    """
    if any(not told.search(said) for told in _also_named(asked)):
        return True
    onto, back = _TO_THE_BACK
    if onto.search(own) and not back.search(asked):
        return True
    if _OF_PAST.search(own) and _EXAMINED.search(asked):
        return True
    if not _PAIN_AT.search(own) or parts(own):
        return False
    if _RELIEF.search(asked):
        return True
    wanted = parts(asked)
    further = {place.lower() for place in _FURTHER_PLACE.findall(asked)}
    known = {place.lower() for place in _FURTHER_PLACE.findall(said)}
    return bool((wanted and wanted.isdisjoint(parts(said))) or further - known)


def other_germ(asked: str, said: str) -> bool:
    """Whether a request names a germ that the wordings of a test do not have."""
    return any(germ.search(asked) and not germ.search(said) for germ in _GERMS)
