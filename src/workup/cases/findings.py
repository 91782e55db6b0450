"""Records in words: sentences of free text, what a presentation states, how a finding is obtained.

The loaders of clinical data sets share it. Everything is linear in the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from workup.core.case import Fact, Kind

# words without content; a presentation states a fact if it has all the fact's other words
_FILLERS = (
    "a an the of and or to in on at by for with from past as is are was were be been being has "
    "have had he she it they his her hers him their its who whom that this these those there one "
    "also ago patient symptom symptoms due because complain complains complaint complaints "
    "complaining complained present presents presented presenting presentation report reports "
    "reported state states stated come comes came brought experience experiences experienced "
    "experiencing notice noticed"
)
_EMPTY = frozenset(_FILLERS.split())
_WORD = re.compile(r"[a-z0-9]+(?:\.[0-9]+)?")
# A minus or plus before a number or word is a sign: "-2.8", "+JVD". Before a blank it marks a list,
# but in a text whose lists have both: there "+ cough" is present and "- fever" is not.
_PLAIN = r"[*•#]+|\d{1,2}[.)](?=\s)"
_UNSIGNED, _MARK = (re.compile(rf"(?:{_PLAIN}{more})\s*") for more in ("", r"|[-+*•#]+(?=\s|$)"))
_SIGNS = tuple(re.compile(rf"(?m)^[ \t]*+\{sign}[ \t]++\w") for sign in "+-")
# what begins a paragraph of its own: a heading, and a word with a sign, as in a list
_HEADING = re.compile(r"[A-Z][A-Za-z /&()-]{0,40}:|[-+]++(?!\.?\d)|\([-+]\)")
_END = re.compile(r"(?<=[.!?]) (?=[A-Z0-9\"“(\[_])")
# a full stop after an initial, one of these words or the number of a list does not end a sentence
_ABBREVIATED = re.compile(r"(?<!\w)(?:[A-Z]|Dr|Mr|Mrs|Ms|St|vs|Vs|No|approx|e\.g|i\.e|cf)\.$")
_NUMBERED = re.compile(r"\d{1,2}\.")

_IMAGING = re.compile(
    r"(?<![a-z])(?:x[- ]?rays?|radiogra\w+|radiolog\w+|imaging|cta?|mri?|mra|mrcp|mre|pet|"
    r"ultraso\w+|sonogra\w+|scan|doppler|echo(?:cardio\w+)?|\w{0,20}(?:angio|uro|tomo)gra\w+|"
    r"mammogra\w+|duplex|scintigra\w+|cystogra\w+|esophagra\w+|barium \w+|fluorosc\w+)(?![a-z])",
    re.I,
)
_PROCEDURE = re.compile(
    r"(?<![a-z])(?:biops\w+|histo\w{0,5}patholog\w+|histolog\w+|bronchoalveolar|arthrocentesis|"
    r"paracentesis|thoracentesis|"
    r"\w{0,20}(?:endo|colono|ano|arthro|hystero|laryngo|gastro|broncho|cysto|laparo|sigmoido|"
    r"thoraco)scop\w+|punctures?|(?:needle|marrow|joint|knee|fluid) aspirat\w+|ercp|"
    r"catheteri[sz]ation|electro(?:myo|encephalo|cardio|nystagmo)gra\w+|"
    r"e[ckem]g|nerve conduction|spirometr\w+|pulmonary function|polysomnogra\w+|manometr\w+|"
    r"audiometr\w+|urodynamic\w*)(?![a-z])",
    re.I,
)
_EXAMINATION = re.compile(
    r"(?<![a-z])(?:vital signs?|physical exam\w*|on examination|auscultat\w+|palpat\w+)(?![a-z])",
    re.I,
)
_LABORATORY = re.compile(
    r"(?<![a-z])(?:blood (?:count|test|smear|gas)s?|laborator\w+|serum|plasma|urinalysis|cultures?|"
    r"antibod\w+|antigen|concentration|levels?|circulating|h?a?emoglobin|leu[ck]ocyt\w+|enzyme|pcr|"
    r"staining|count)(?![a-z])",
    re.I,
)


def sentences(text: str) -> list[str]:
    """The sentences of a free text, without list marks.

    A line break alone does not end a sentence, since notes are wrapped.
    """
    return [
        part
        for paragraph in _paragraphs(text)
        for part in _split(paragraph)
        if any(map(str.isalnum, part))
    ]


def _paragraphs(text: str) -> Iterator[str]:
    """Text between blank lines, list marks and headings, on one line each."""
    held: list[str] = []
    signed = all(sign.search(text) for sign in _SIGNS)
    for line in map(str.strip, text.splitlines()):
        mark = (_UNSIGNED if signed else _MARK).match(line)
        if held and (not line or mark or _HEADING.match(line)):
            yield " ".join(held)
            held = []
        held += line[mark.end() if mark else 0 :].split()
    yield " ".join(held)


def _split(paragraph: str) -> Iterator[str]:
    start = 0
    for end in _END.finditer(paragraph):
        listed = _NUMBERED.fullmatch(paragraph, start, end.start())
        if not listed and not _ABBREVIATED.search(
            paragraph, max(start, end.start() - 8), end.start()
        ):
            yield paragraph[start : end.start()]
            start = end.end()
    yield paragraph[start:]


def content(text: str) -> frozenset[str]:
    """The words that matter, without their commonest endings."""
    words = (
        word
        for word in _WORD.findall(text.lower().replace("'s", "").replace("’s", ""))
        if word not in _EMPTY
    )
    return frozenset(re.sub(r"(?<=...)(?:ing|ed|es|s)$", "", word) for word in words)


def parted(facts: Sequence[Fact], presentation: str) -> tuple[tuple[Fact, ...], tuple[Fact, ...]]:
    """(given, hidden): a fact is given if the presentation has all its words of content.

    In doubt the rule hides a fact: one of fillers alone too, and one in letters that it cannot
    read. It does not understand negation.
    """
    said = content(presentation)
    given = tuple(fact for fact in facts if (own := content(fact.text)) and own <= said)
    return given, tuple(fact for fact in facts if fact not in given)


def kind_of(words: str, otherwise: Kind) -> Kind:
    """How a finding is obtained, by the words that name or state it.

    Imaging is looked for first, then procedures, then the rest.
    """
    patterns = {
        Kind.IMAGING: _IMAGING,
        Kind.PROCEDURE: _PROCEDURE,
        Kind.EXAMINATION: _EXAMINATION,
        Kind.LABORATORY: _LABORATORY,
    }
    return next((kind for kind, pattern in patterns.items() if pattern.search(words)), otherwise)
