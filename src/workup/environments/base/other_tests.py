"""Whether a request names another test than an item: by a word beside the item's name.

"Fetal hemoglobin" and "platelet antibodies" hold the names of items, hemoglobin and platelets, and
are other tests. A word directly beside the name makes another test of it, unless it says how the
test is ordered, when, or how it turned out. Words behind a comma or a word such as "for" do not
count: "hemoglobin, for the anemia".
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
# What may stand beside the name of a test: words of ordering on either side, what one does before
# it and when behind it; how a test is measured, pictured or stained.
_ORDERED = (
    "additional again also another any basic bedside both can check checked complete consider "
    "could current detailed did do doctor dr draw drawn emergency first follow following formal "
    "full further get hello her hi his i immediate immediately initial investigation "
    "investigations just kindly lab laboratory labs last latest let lets like may me must my need "
    "new next no now obtain ok okay only order ordered ordering our patient patients perform "
    "performed please possible previous prior quick quickly really recent recently recheck "
    "recommend repeat repeated repeating report request requesting result results review routine "
    "routinely run screen screening see send sent should show simply some someone standard stat "
    "suggest test tested testing tests thank thanks their today todays treated up urgent urgently "
    "us want we will workup would yes you your "
)
_BEFORE = (
    "add advise arrange ask asking assess begin book brief careful checking collect confirm "
    "consider determine doing drawn drew early evaluate examine fetch find found getting give got "
    "gotten had having help include inspect known knows look make maybe measure measured now "
    "ordering organise organize perhaps prepare prescribe proceed prompt propose provide ran "
    "received record remeasure repeat repeated reviewed running schedule seen start take taken "
    "taking think timely took try use verify well "
)
_BEHIND = (
    "afternoon again already asap away back before came collected come comes daily days done "
    "drawn early evening first friday go goes help helps here hourly hours immediately indicate "
    "indicates later look looks minutes monday morning now obtained once quickly recorded "
    "repeated reveal revealed reveals right saturday say says sent show shown shows soon straight "
    "suggest suggests sunday taken tell tells that there these this thursday today tomorrow "
    "tonight too tuesday turn turns twice wednesday weekly weeks went work yet "
)
_MEASURED = (
    "abnormal analysis assay assays blood concentration concentrations count counts decreased "
    "elevated elevation exam examination high increased level levels low lowered measure measured "
    "measurement measurements normal number numbers panel panels plasma profile quantitative "
    "raised rate reading readings sample samples serum specimen studies study trend value values "
)
_PICTURED = (
    "ap contrast doppler enhanced exam examination expression film films finding findings ihc "
    "image images imaging immunohistochemistry ish lateral mutation mutations ngs noncontrast pa "
    "pcr picture pictures plain portable radiograph ray resolution scan scans sequencing series "
    "situ stain stained staining status studies study thin view views x xray "
)
_STAINED = (
    "antibodies antibody antigen by clone cytokeratin cytoplasmic expression for ihc "
    "immunohistochemical immunohistochemistry immunoperoxidase immunoreactivity immunostain "
    "immunostaining immunostains index labeling labelling marker markers membranous mib negative "
    "nuclear panel percent percentage positive positivity proliferation protein proteins "
    "quantification score slide special stain stained staining stains status tissue tumor tumour "
)
_ASKING = STOPWORDS - {"s"}  # "hemoglobin S" is another one
_TESTED = frozenset(f"{_ORDERED}{_MEASURED}{_PICTURED}".split())
_ON_A_SLIDE = frozenset(f"{_ORDERED}{_STAINED}".split())
_DOING, _WHEN = frozenset(_BEFORE.split()), frozenset(_BEHIND.split())
_BRACKETED = re.compile(r"([^,;:()\[\]]{1,80})[(\[]([^(),;/\[\]]{1,20})[)\]]")


@lru_cache(maxsize=1 << 14)
def _phrases(text: str) -> tuple[tuple[tuple[str, ...], ...], frozenset[tuple[str, ...]]]:
    """The words of each phrase of a request, in normal form and without words of asking.

    Apart from these the stems of abbreviations in brackets, which belong to what stands before
    them: in "triglycerides (TG)" TG is no thyroglobulin.
    """
    short = [found for found in _BRACKETED.finditer(text) if abbreviates(found[2], found[1])]
    for found in short:
        text = text.replace(found[0], found[1])
    phrases = tuple(filter(None, map(_words, _ENDS.split(text))))
    return phrases, frozenset(_form(found[2]) for found in short)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in normalise(text).split() if word not in _ASKING)


@lru_cache(maxsize=1 << 16)
def _form(wording: str) -> tuple[str, ...]:
    return tuple(stemmed(_words(wording)))


def another(asked: str, wordings: Iterable[str], *, stain: bool = False) -> bool:
    """Whether every place where the request has one of an item's wordings is another test's name.

    False where it has none of them in one piece, or with one word in it. Beside the name of a
    `stain` other words may stand than beside that of another test: "PSA level" is no stain. Linear
    in the request for a given item.
    """
    usual = _ON_A_SLIDE if stain else _TESTED
    forms = frozenset(filter(None, map(_form, wordings)))
    phrases, abbreviations = _phrases(asked)
    found = not forms.isdisjoint(abbreviations)
    for words in phrases:
        stems = stemmed(words)
        for form in forms:
            for start, end in _places(stems, form):
                inside = [words[place] for place in range(start, end) if stems[place] not in form]
                if (
                    usual.issuperset(inside)
                    and (usual | _DOING).issuperset(words[max(start - 1, 0) : start])
                    and (usual | _WHEN).issuperset(words[end : end + 1])
                ):
                    return False
                found = True
    return found


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
