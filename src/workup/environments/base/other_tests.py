"""Detects a word beside an item's name that makes another test of it.

"Fetal hemoglobin" and "platelet antibodies" hold the names of two items, hemoglobin and platelets,
and are other tests. Any word directly beside a name does so, unless it says how the test is
ordered, when, or what it shows. Words behind a comma or a word such as "for" are not beside it:
"hemoglobin, for the anemia".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from workup.core.text import abbreviates, normalise
from workup.environments.base.lexical import STOPWORDS, stemmed

# Where a phrase ends.
_ENDS = re.compile(
    r"[,;:.?!()\[\]&+•·，；：。？！（）、\n\"“”]|(?<=\s)[-–—*](?=\s)|/(?!\d)|\b(?:and|or|nor|but|not|then|if"
    r"|whether|because|since|when|while|after|before|during|until|that|which|who|how|what|why"
    r"|for|to|of|in|on|at|by|with|without|via|from|between|is|are|was|were|be|been|do|does"
    r"|did|has|have|had|as|so|due|per|versus|vs|e\.?g)\b",
    re.IGNORECASE,
)
# Words that leave a test the same beside its name. On either side: how it is ordered ("repeat"),
# and words of measurement ("level"), of imaging and molecular methods, or of immunohistochemistry.
_ORDER = (
    "additional again also another basic bedside both checked complete consider current detailed "
    "doctor dr draw drawn emergency first follow following formal full further hello hi immediate "
    "immediately initial investigation investigations just kindly lab laboratory labs last latest "
    "let lets like may must need new next no now obtain ok okay only ordered ordering our "
    "performed possible previous prior quick quickly really recent recently recheck recommend "
    "repeat repeated repeating report request requesting result results review routine routinely "
    "run screen screening see send sent serial should simply some someone standard stat suggest "
    "test tested testing tests thank thanks today todays treated up urgent urgently us want we "
    "will workup yes "
)
_MEASUREMENT = (
    "abnormal analysis assay assays blood concentration concentrations count counts decreased "
    "elevated elevation exam examination high increased level levels low lowered measure measured "
    "measurement measurements normal number numbers panel panels plasma profile quantitative "
    "raised rate reading readings sample samples serum specimen studies study trend value values "
)
_METHOD = (
    "ap contrast doppler enhanced expression film films finding findings ihc image images imaging "
    "immunohistochemistry ish lateral mutation mutations ngs noncontrast pa pcr picture pictures "
    "plain portable radiograph ray resolution scan scans sequencing series situ stain stained "
    "staining status supine thin upright view views x xray "
)
_STAINING = (
    "antibodies antibody antigen clone cytokeratin cytoplasmic expression ihc immunohistochemical "
    "immunohistochemistry immunoperoxidase immunoreactivity immunostain immunostaining "
    "immunostains index labeling labelling marker markers membranous mib negative nuclear panel "
    "percent percentage positive positivity proliferation protein proteins quantification score "
    "slide special stain stained staining stains status tissue tumor tumour "
)
# On the left alone: verbs ("obtain"). On the right alone: when, and what it shows ("tomorrow").
_LEFT = (
    "add advise arrange ask asking assess begin book brief careful checking collect confirm "
    "determine doing drew early evaluate examine fetch find found getting got gotten help include "
    "inspect known knows look make maybe measure measured organise organize perhaps prepare "
    "prescribe proceed prompt propose provide ran received record remeasure reviewed running "
    "schedule seen start take taken taking think timely took try use verify well "
)
_RIGHT = (
    "afternoon already asap away back came collected come comes daily days done early evening "
    "friday go goes help helps here hourly hours indicate indicates later look looks minutes "
    "monday morning obtained once recorded reveal revealed reveals right saturday say says shown "
    "shows soon straight suggests sunday taken tells these thursday tomorrow tonight too tuesday "
    "turn turns twice wednesday weekly weeks went work x2 x3 yet positive negative "
)
_TEST = frozenset(f"{_ORDER}{_MEASUREMENT}{_METHOD}".split())
_STAIN = frozenset(f"{_ORDER}{_STAINING}".split())
# Stain or other test → what may stand within its name, to the left of it and to the right.
_ALLOWED = {
    stain: (usual, usual.union(_LEFT.split()), usual.union(_RIGHT.split()))
    for stain, usual in ((False, _TEST), (True, _STAIN))
}
_DROPPED = STOPWORDS - {"s"}  # hemoglobin S is another test than hemoglobin
_BRACKETED = re.compile(r"([^,;:()\[\]]{1,80})[(\[]([^(),;/\[\]]{1,20})[)\]]")


@lru_cache(maxsize=1 << 14)
def _phrases(text: str) -> tuple[tuple[tuple[str, ...], ...], frozenset[tuple[str, ...]]]:
    """The words of each phrase of a request, in normal form and without stopwords.

    The second value holds the stems of those brackets that abbreviate the term before them. They
    are no phrases: in "triglycerides (TG)" TG means triglycerides and not thyroglobulin.
    """
    short = [found for found in _BRACKETED.finditer(text) if abbreviates(found[2], found[1])]
    for found in short:
        text = text.replace(found[0], found[1])
    phrases = tuple(filter(None, map(_words, _ENDS.split(text))))
    return phrases, frozenset(_form(found[2]) for found in short)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in normalise(text).split() if word not in _DROPPED)


@lru_cache(maxsize=1 << 16)
def _form(wording: str) -> tuple[str, ...]:
    return tuple(stemmed(_words(wording)))


def names_other_test(asked: str, wordings: Iterable[str], *, stain: bool = False) -> bool:
    """Whether a request names an item only within the names of other tests.

    An item is named where one of its wordings stands in a phrase, in order and with at most one
    further word in it: "EGFR T790M mutation" for "EGFR mutation". False where it is not named at
    all. Of a `stain` other words leave it the same: "PSA level" is no stain. Linear in the request
    for a given item.
    """
    within, left, right = _ALLOWED[stain]
    forms = frozenset(filter(None, map(_form, wordings)))
    phrases, abbreviations = _phrases(asked)
    named = not forms.isdisjoint(abbreviations)
    for words in phrases:
        stems = stemmed(words)
        for form in forms:
            for start, end in _places(stems, form):
                inside = [words[place] for place in range(start, end) if stems[place] not in form]
                if (
                    within.issuperset(inside)
                    and left.issuperset(words[max(start - 1, 0) : start])
                    and right.issuperset(words[end : end + 1])
                ):
                    return False
                named = True
    return named


def _places(stems: Sequence[str], form: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Where the words of `form` stand in this order, with at most one other word among them."""
    for start in range(len(stems) - len(form) + 1):
        at, skipped = start, 0
        for word in form:
            if at < len(stems) and stems[at] != word and at > start:
                at, skipped = at + 1, skipped + 1
            if skipped > 1 or at >= len(stems) or stems[at] != word:
                break
            at += 1
        else:
            yield start, at
