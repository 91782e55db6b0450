"""Names of examinations, and what a result says: read from the words alone.

One examination has many names: "CK 7", "CK7", "cytokeratin 7 (CK7) immunostain". They are compared
by their `key`. The pathology wing's synonyms hold everywhere; a base adds its own. Orders and their
judge read by the same rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from workup.cases.catalogue import built_in
from workup.cases.clinic.pathology import Marker
from workup.core.case import Case, Item
from workup.core.text import abbreviates, normalise

LONGEST = 300
"""Characters of a request that are read."""

MOST = 20
"""Examinations that one request may name; the rest is not read."""

# Words that say how an antigen is stained, or that it is wanted. What is examined in another way
# (FISH, PCR, a mutation) is another examination, so those words stay part of the name.
_METHOD_WORDS = (
    "antibodies antibody assessment by expression eg for further gs ihc immunohistochemical "
    "immunohistochemistry immunoperoxidase immunoreactivity immunostain immunostaining "
    "immunostains immunohistochemically marker markers of on other panel panels stain staining "
    "stains status test testing tests the with"
)
_METHODS = frozenset(_METHOD_WORDS.split())
# Words that name no examination where a judge finds nothing else: an order of a method alone.
_BROAD_WORDS = (
    "additional an analysis any assay at count fish form from gene genes genetic histochemical "
    "histochemistry hybridization immunostaining in index ish kind labeling labelling molecular "
    "more ngs or pcr proliferation rate score situ some special studies study to type various "
    "workup"
)
_BROAD = _METHODS | frozenset(_BROAD_WORDS.split())
# Methods that show a gene or its product, but not as a stain does.
_MOLECULAR = frozenset(("fish", "hybridization", "ish", "ngs", "pcr", "situ"))
_KIND_WORDS = "a fusion fusions mutation mutations rearrangement rearrangements sequencing"
_KINDS = frozenset(_KIND_WORDS.split())
_HAN_METHODS = re.compile("免疫组织化学|免疫组化|染色|检测|检查|抗体|标记物|标记|等|的")
_GREEK = {
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "κ": "kappa", "λ": "lambda", "μ": "mu"
}  # fmt: skip
_LETTERS = re.compile("|".join(_GREEK))
_PARTS = re.compile(r"([(（][^()（）]*[)）])")
_SEPARATORS = re.compile(r"[,;，；、:：+]|\band\b|\bor\b|\be\.g\.|[和与及或]")
# A method or a specimen that holds for all that is listed: "FISH: BCL2, MYC", "flow cytometry (CD3,
# CD20)", "CD3 and CD20 by flow cytometry", "serum AFP and PSA".
_OTHER_METHOD = (
    r"(?:[fscd]?ish|pcr|ngs|flow cytometry|sequencing|mutations?|serum|plasma|blood|csf|urine|elisa"
    r"|western blot)"
)
_LED = re.compile(
    rf"^\s*((?:[^,;:：()（）]{{0,60}}\b)?{_OTHER_METHOD}\b[^,;:：()（）]{{0,60}})[:：(（]",
    re.IGNORECASE,
)
_BY = re.compile(rf"\bby ({_OTHER_METHOD})\W*$", re.IGNORECASE)
_SPECIMEN = re.compile(r"^\s*(serum|plasma|csf|urine)\s", re.IGNORECASE)
_JOINT = re.compile(r"[\s.+-]+")

_NEGATIVE = re.compile(
    r"\b(?:negative|neg|absent|non-?reactive|unremarkable|undetected|retained|intact|wild[ -]?type"
    r"|(?:not|no|without) (?:\w+ ){0,2}(?:detected|demonstrated|seen|identified|found|expressed"
    r"|staining|expression|signal|amplification|rearrangement|mutation|loss|positive|present"
    r"|reactive|amplified|mutated|rearranged|lost)"
    r"|(?:non|un)-?(?:amplified|mutated|rearranged)"
    r"|(?:detected|present|reactive|amplified|mutated|rearranged|expression|lost|loss)\W{1,3}no)\b"
    r"|阴性|未见|未检出|缺如|[(（][-−–][)）]|(?:^|(?<=[\w\s:：]))[-−–]\W*$",
    re.IGNORECASE,
)
_POSITIVE = re.compile(
    r"\b(?:positive|pos|present|reactive|detected|expressed|amplified|mutated|rearranged|lost"
    r"|loss of (?:nuclear )?expression)\b"
    r"|阳性|检出|[(（]\d?\+{1,4}[)）]|\d?\+{1,4}\W*$",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Named:
    """An examination that a request names: its name in its own words, and whether it is known."""

    name: str
    known: bool


@lru_cache(maxsize=1 << 14)
def key(name: str) -> str:
    """The form in which names of examinations are compared; empty for a name of a method alone.

    `workup.core.text.normalise`, without words of staining, without blanks, points and signs, and
    with Greek letters spelled out. Linear in the length of the name.

    >>> key("CD-20 immunostain"), key("TTF 1"), key("β-catenin"), key("HER2 FISH")
    ('cd20', 'ttf1', 'betacatenin', 'her2fish')
    """
    form = _HAN_METHODS.sub(" ", _LETTERS.sub(lambda letter: _GREEK[letter[0]], normalise(name)))
    return _JOINT.sub("", "".join(word for word in form.split() if word not in _METHODS))


@cache
def _groups() -> Mapping[str, tuple[str, ...]]:
    """The key of a marker's name → those of all its names, its own first."""
    found: dict[str, tuple[str, ...]] = {}
    for marker in built_in().examinations:
        group = tuple(dict.fromkeys(key(name) for name in (marker.name, *marker.synonyms)))
        found.update((each, group) for each in group if each not in found)
    return found


def synonyms(of: str) -> tuple[str, ...]:
    """The keys of all names that the examination with the key `of` goes by, its own among them."""
    return _groups().get(of, (of,))


def common(of: str) -> str:
    """The name that the pathology wing has for the examination with the key `of`; "" if none."""
    group = _groups().get(of)
    named = (each.name for each in built_in().examinations if group and key(each.name) == group[0])
    return next(named, "")


def read(request: str, known: Callable[[str], bool]) -> list[Named]:
    """The examinations that a request names, each once, at most MOST of them.

    `known` says whether a key is a known examination's. The whole request is tried first, so that
    a known name may hold a comma. What stands in brackets behind a known name explains it, and is
    left out where it is unknown itself. A method or specimen before a list belongs to each of it:
    "FISH: BCL2, BCL6" names no stain. Linear in the length of the request.
    """
    request = request[:LONGEST]
    if (whole := key(request)) and known(whole):
        return [Named(" ".join(request.split()), True)]
    method, request = _for_all(request, known)
    found: dict[str, Named] = {}
    named, before = False, ""  # the last piece outside brackets, and whether it names a known one
    for place, piece in enumerate(_PARTS.split(request)):
        inside = place % 2 == 1
        parts = [
            Named(" ".join(part.split()), known(form))
            for whole in _SEPARATORS.split(piece[1:-1] if inside else piece)
            for part in _members(whole, known)
            if (form := key(part))
        ]
        if inside and (named or abbreviates(piece[1:-1], before)):
            parts = [part for part in parts if part.known and named]
        elif not inside:
            named, before = bool(parts) and parts[-1].known, piece
        for part in parts:
            marker = _markers().get(key(part.name)) if method else None
            if marker is not None and not marker.molecular:
                name = f"{part.name} {method}"
                part = Named(name, known(key(name)))
            found.setdefault(synonyms(key(part.name))[0], part)
    return list(found.values())[:MOST]


def _for_all(request: str, known: Callable[[str], bool]) -> tuple[str, str]:
    """The method or specimen that holds for all that a request lists, "" if none, and the rest."""
    if (led := _LED.match(request)) and not known(key(led[1])):
        return " ".join(led[1].split()), request[led.end() :].rstrip(" )）")
    if by := _BY.search(request):
        return by[1], request[: by.start()]
    specimen = _SPECIMEN.match(request)
    return (specimen[1], request) if specimen else ("", request)


def _members(name: str, known: Callable[[str], bool]) -> list[str]:
    """What "CK7/CK20" names: both, where both are known and there is nothing of the whole name."""
    members = name.split("/")
    several = not known(key(name)) and all(known(key(each)) for each in members)
    return members if several else [name]


@cache
def _markers() -> Mapping[str, Marker]:
    """The wing's markers by the keys of their names and questions."""
    return {
        key(name): marker
        for marker in reversed(built_in().examinations)
        for name in (marker.name, *marker.synonyms, marker.item.question)
    }


def stains(order: str) -> tuple[Marker, ...] | None:
    """The stains and molecular tests of the pathology wing that an order names, each once.

    None if it names anything else; empty if it names only a method. It is read as `read` does;
    beside the name of a marker further words of a method may stand: "MYC rearrangement by FISH" is
    that marker. A stain by FISH, in situ hybridization, NGS or PCR is something else: "HER2 FISH".
    """
    markers = _markers()
    found: dict[str, Marker] = {}
    for named in read(order, markers.__contains__):
        form = key(named.name)
        if not named.known:
            said = normalise(named.name).split()
            rest = [word for word in said if word not in _BROAD]
            form = "" if _KINDS.issuperset(rest) else key(" ".join(rest))
            if form in markers and not (markers[form].molecular or _MOLECULAR.isdisjoint(said)):
                return None
        if form and form not in markers:
            return None
        if form:
            found.setdefault(markers[form].name, markers[form])
    return tuple(found.values())


def states_normal(case: Case, item: Item) -> bool:
    """Whether the record's text says that the item is normal.

    Its normal answer has to name it, there or in the record: "Negative." may be another test's.
    """
    said, record = item.normal, case.truth.record
    if not said or said not in record:
        return False
    own = normalise(item.name) in normalise(said)
    return own or f"{item.name}: {said}".lower() in record.lower()


def positive(result: str) -> bool | None:
    """Whether a result is positive; None where its words do not say, or say both.

    "Retained" and "intact" are negative, "lost" is positive: what a marker of loss looks for is the
    loss. English and Chinese words are known. Linear in the length of the result.

    >>> [positive(text) for text in ("positive, diffuse", "no staining", "CD20（+）", "about 70 %")]
    [True, False, True, None]
    """
    negative = _NEGATIVE.search(result) is not None
    rest = _NEGATIVE.sub(" ", result) if negative else result
    return None if (_POSITIVE.search(rest) is not None) == negative else not negative


def without_name(text: str, names: Sequence[str]) -> str:
    """A result without the examination's name at its beginning."""
    for name in sorted(names, key=len, reverse=True):
        if name and text.lower().startswith(name.lower()):
            return text[len(name) :].lstrip(" :：")
    return text
