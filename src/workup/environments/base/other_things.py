"""Rejects an item of a record that shares a request's words and means something else.

"Back pain during the period" holds the words of painful periods and does not ask for them; "cold
feet" holds those of an intolerance of cold. `matcher.Matcher` asks here before it takes an item.
There are four kinds of rules: what a request names the item has to name too (`_NAMED_TOO`, places,
germs); pain that the item says goes to the back has to go there in the request too; an examination
does not ask for the past; what eases a pain is no pain.
"""

from __future__ import annotations

import re
from functools import lru_cache

from workup.environments.base.body_parts import parts

# An item about pain that says when it comes and not where: "pain after meals". A request that names
# a place asks for another pain, unless one of the item's synonyms names that place.
_PAIN_WHEN = re.compile(
    r"^(?=.*\bpain)(?=.*\b(?:meals?|eating|periods?|menstrua|intercourse))",
    re.IGNORECASE,
)
# Places that `parts` does not know: "joint", say, is a word of many items that are about no place.
_FURTHER_PLACE = re.compile(
    r"\b(joint|bone|muscle|jaw|tooth|teeth|rib|testic|scrot|perine|kidney|pelvi|gum)", re.IGNORECASE
)
# "Does eating help the pain" does not ask for a pain after meals.
_EATEN = r"(?:eat\w*|food|meals?)\b"
_EASES = r"(?:help|eas(?:e|es|ed)\b|sooth|reliev|better|improv)"
_RELIEF = re.compile(
    rf"\b(?:{_EATEN}.{{0,20}}\b{_EASES}"
    rf"|{_EASES}\w* (?:by|after|when|with|on)\b.{{0,12}}\b{_EATEN})",
    re.IGNORECASE,
)
# "Back pain that goes to the leg" does not ask for a pain that goes to the back: of an item, and of
# a request that may mean it.
_GOES_TO_THE_BACK = re.compile(
    r"\b(?:radiating|goes|spreads) (?:\w{1,8} )?to the back\b", re.IGNORECASE
)
_TO_THE_BACK = re.compile(
    r"\b(?:to|into|through|towards?)\b(?: (?:the|your|his|her|my|upper|lower|mid))* back\b",
    re.IGNORECASE,
)


def _any(words: str) -> re.Pattern[str]:
    """Any of these words at its beginning; how it ends is open."""
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
# What a test looks for. "Throat swab for gonorrhea" names another test than a throat swab, where
# "throat swab for a fever" gives a reason.
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
# (of a request, of an item): who asks about the first is answered only by an item whose wordings
# have the second. "Cold feet" needs an item that names feet or toes.
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
# "Examine for high blood pressure" does not ask for "high blood pressure in the past".
_OF_PAST = re.compile(r"\bin the past\b", re.IGNORECASE)
_EXAMINED = re.compile(r"\b(?:examin|palpat|inspect|auscult|measur)", re.IGNORECASE)


@lru_cache(maxsize=1 << 12)
def _also_named(asked: str) -> tuple[re.Pattern[str], ...]:
    """The patterns that the wordings of an item must have, all of them, to be what is asked."""
    return tuple(needed for trigger, needed in _NAMED_TOO if trigger.search(asked))


def another_thing(asked: str, own: str, said: str) -> bool:
    """Whether a request is surely about another thing than an item; False says nothing.

    `own` are the item's name and question: they tell which rules concern it. `said` are these and
    all its synonyms: what people may call it. Example: "cold feet" is no intolerance of cold.
    """
    if any(not needed.search(said) for needed in _also_named(asked)):
        return True
    if _GOES_TO_THE_BACK.search(own) and not _TO_THE_BACK.search(asked):
        return True
    if _OF_PAST.search(own) and _EXAMINED.search(asked):
        return True
    if not _PAIN_WHEN.search(own) or parts(own):
        return False
    if _RELIEF.search(asked):
        return True
    wanted = parts(asked)
    further = {place.lower() for place in _FURTHER_PLACE.findall(asked)}
    known = {place.lower() for place in _FURTHER_PLACE.findall(said)}
    return bool((wanted and wanted.isdisjoint(parts(said))) or further - known)


def other_germ(asked: str, said: str) -> bool:
    """Whether a request names a germ that a test's wordings, `said`, do not have.

    Apart from `another_thing`, since it looks at what else counts as the reason of an order.
    """
    return any(germ.search(asked) and not germ.search(said) for germ in _GERMS)
