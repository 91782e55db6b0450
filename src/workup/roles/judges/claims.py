"""What a text says of a disease that it names: does it deny it, or only ask about it?

Words are read, not sense, in English and some Chinese. A denial stands before a name ("it is not
X", "no evidence of X", "we ruled out flu, X") or behind it ("X was ruled out", "X, which does not
fit", "X? No."). A denial of something else in the same clause is none: "X, without fever", "X fits,
no cough", "X, not flu". In doubt a text is taken to deny: "it is not flu, X" and "there is no fever
and X" do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from workup.core.text import normalise, places, without_markup

_AUX = (
    r"is|are|was|were|be|been|do|does|did|has|have|had|can|could|should|would|will|may|might|must"
)
_CONTRACTED = r"(?:is|are|was|were|do|does|did|has|have|had|ca|could|should|would|wo|ai)nt"
_REJECTED = r"rejected|refuted|dismissed|disproved|disproven|denied|discarded|abandoned|withdrawn"
_UNLIKE = rf"unlikely|improbable|implausible|impossible|doubtful|{_REJECTED}|out of the question"

# Before a name, anywhere in its clause, in normal form. "Not only X" and "fever, not elsewhere
# classified" deny nothing.
_EARLIER = re.compile(
    r"\bnot (?!only\b|just\b|merely\b|elsewhere\b|otherwise\b)|\bnot$"
    rf"|\b(?:never|neither|nor|cannot|{_CONTRACTED}|none of|far from)\b"
    r"|\b(?:rul(?:e|es|ed|ing)(?: \w+){0,2} out|exclud(?:es?|ed|ing)|exclusion of)\b"
    r"|\b(?:den(?:y|ies|ied|ying)|reject(?:s|ed|ing)?|dismiss(?:es|ed|ing)?|refut(?:es?|ed|ing))\b"
    rf"|\b(?:{_UNLIKE}|less likely|least likely|argues against|speaks against|evidence against)\b"
    r"|\b(?:absence of|negative for|free of|opposed to|wrong|false|incorrect)\b"
    r"|不是|并非|绝非|而非|不像|不考虑|不支持|不符合|排除|否认|除外"
)
# Before a name, a few words away, with no comma between.
_LACKS = (
    r"(?:no|without|unlike|lacks?|except(?:ing)?|nothing|against"
    r"|(?:rather|other) than|instead of|(?:anything|everything|all) but)"
)
_CLOSE = re.compile(rf"\b{_LACKS}(?: (?!so\b|but\b)\w+){{0,5}} ?$|\bnon ?$|(?:无|没有|未见|非)$")
_LEADING = re.compile(rf"^{_LACKS}\b(?! doubt\b| question\b)")
# Behind a name, up to the next comma; the first pattern only a few words behind it.
_NOT = rf"(?:(?:{_AUX})(?: \w+){{0,2}} (?:not|no|never)|cannot|{_CONTRACTED})"
_OUT = (
    rf"\b(?:ruled|rules? (?:it|this|that|them)) out\b|\bexcluded\b|\b(?:{_UNLIKE})\b"
    r"|\b(?:less|least|not) (?:likely|probable|present|supported|it)\b"
    rf"|\b(?:{_AUX}|as|seems?|looks?|appears?|proves?|proved|turn(?:s|ed) out|c[ao]me back)"
    r"(?: \w+){0,2} (?:absent|negative|wrong|false|incorrect|missing)\b"
    r"|(?:^| )(?:no|not|nope|never|wrong|false|incorrect|absent|negative|neither|nothing|none)$"
    r"|排除|除外|否定|不成立|不支持|不符合|不考虑|不是|可能性(?:很小|较小|极小|小|低|不大)"
)
_BEHIND = re.compile(rf"^ ?(?:\w+ ){{0,4}}?{_NOT}\b|{_OUT}")
# A part of a clause that speaks of what was named before it.
_BACK = re.compile(
    r"^(?:and |but |so |though |although |however )*"
    r"(?:which|that|it|this|these|those|they|both|all|none|who|he|she|has|have)\b"
    r"|^(?:and |but |so |now |since |already |also |clearly |definitely |certainly )*"
    r"(?:(?:was|is|were|are|been|being|be) )?"
    rf"(?:ruled out|excluded|{_UNLIKE}|no|not|nope|never|wrong|false|incorrect|absent|negative)\b"
    r"|^(?:已|被|可|均|都)*(?:排除|除外|否定|不成立|不支持|不符合|不考虑|不是|可能性)"
)
_BACK_DENIES = re.compile(
    rf"\b{_NOT}(?: (?:it|so|likely|probable|possible|present|supported|right|correct|true|here|be"
    r"|the case|the diagnosis|the answer|the cause|fit\w*|explain\w*|match\w*|agree\w*)\b|$)"
    rf"|{_OUT}"
)
_NEAR = 200  # characters beside a name that are looked at
_ALONE = (
    3  # blanks within a part such as "no" or "definitely not it", that denies what is beside it
)

_QUESTION = re.compile(
    r"^(?:is|are|was|were|could|can|may|might|does|do|did|has|should|would) "
    r"(?:it|this|that|these|there|the|they|we|he|she|i|you)\b"
    r"|^(?:which|what|who|whether)\b|\b(?:whether|question|asked|asks|asking)\b|是否|是不是"
)
_SIGN = re.compile(r"[!！~∼～¬≠](?=\s{0,2}[^\W\d])|≠")
_ASKED = re.compile(r"[?？]")
_COMMA = re.compile(r"[,，、:：()（）]|\s[-–—]+\s")
_CUTS = re.compile(r"[,，、:：;；/|\n()（）。！]|\s[-–—]+\s|(?<=[.!])\s+")
# A number in brackets begins an entry of a list. "Anything but X" is one clause.
_CLAUSE = re.compile(
    r"(?<=[.!])\s+|(?<=[。！?？])|[;；]|(?<![:：])\n|(?=\[\d{1,3}\])"
    r"|(?<!anything)(?<!everything)(?<!all)\s(?=but\s)",
    re.IGNORECASE,
)


def denied(text: str, names: Iterable[str]) -> bool:
    """Whether a clause of `text` that holds one of `names` denies it or asks about it.

    False where no clause holds any. A clause that speaks of the one before it ("It was ruled out.",
    "No.") belongs to that one.
    """
    forms = [form for form in map(normalise, names) if form]
    return any(
        _against(clause, _COMMA.split(clause), form)
        for version in {text, without_markup(text)}
        for clause in _clauses(version)
        for form in forms
    )


def disowned(answer: str, names: Iterable[str]) -> bool:
    """Whether an answer of a few words denies or asks about what it names, all of it one clause.

    Where it holds none of `names` a denial of anything is one.
    """
    forms = [form for form in map(normalise, names) if form]
    parts = _CUTS.split(answer)
    if _SIGN.search(answer) or _ASKED.search(answer):
        return True
    pieces = [form for form in map(normalise, parts) if form]
    # "no", "ruled out", "definitely not it": a part that denies and says nothing else
    if any(_denies_back(piece) and piece.count(" ") < _ALONE for piece in pieces):
        return True
    whole = normalise(answer)
    if _held_any(forms, [whole]):
        holding = (place for place, piece in enumerate(pieces) if _held_any(forms, [piece]))
        earlier = pieces[: next(holding, 0)]
        return any(map(_LEADING.search, earlier)) or any(
            _against(answer, parts, form) for form in forms
        )
    return bool(
        _EARLIER.search(f"{whole} ")
        or _QUESTION.search(whole)
        or any(_BEHIND.search(piece) or _CLOSE.search(piece) for piece in pieces)
    )


def _clauses(text: str) -> list[str]:
    """The clauses of `text`; one that denies the one before it ("It was not.") is joined to it."""
    found: list[str] = []
    for clause in filter(str.strip, _CLAUSE.split(text.replace("_", " "))):
        if found and _denies_back(normalise(clause)):
            found[-1] += f", {clause}"
        else:
            found.append(clause)
    return found


def _denies_back(part: str) -> bool:
    """Whether a part denies what was named before it: "which was ruled out", "it is not"."""
    return bool(_BACK.search(part) and _BACK_DENIES.search(part))


def _held(name: str, pieces: Sequence[str]) -> bool:
    return any(True for piece in pieces for _ in places(name, piece))


def _held_any(names: Sequence[str], pieces: Sequence[str]) -> bool:
    return any(_held(name, pieces) for name in names)


def _against(clause: str, parts: Sequence[str], name: str) -> bool:
    """Whether a clause, cut into `parts`, denies or asks about `name`, which is in normal form."""
    pieces = [form for form in map(normalise, parts) if form]
    if not _held(name, pieces):
        pieces = [normalise(clause)]  # a name with a comma in it, or none
    if not _held(name, pieces):
        return False
    if _ASKED.search(clause) or _SIGN.search(clause):
        return True
    whole = " , ".join(_masked(piece, name) for piece in pieces)
    begins = [found.start() for each in (_EARLIER, _QUESTION) if (found := each.search(whole))]
    first = min(begins, default=len(whole))  # what stands behind it is denied, or asked about
    last = max((at for at, piece in enumerate(pieces) if _denies_back(piece)), default=-1)
    offset = 0
    for number, piece in enumerate(pieces):
        for at in places(name, piece):
            before, behind = piece[max(at - _NEAR, 0) : at], piece[at + len(name) :][:_NEAR]
            beside = _CLOSE.search(before) or _BEHIND.search(behind.lstrip())
            if offset + at > first or number < last or beside:
                return True
        offset += len(piece) + len(" , ")
    return False


def _masked(piece: str, name: str) -> str:
    """`piece` with the letters of `name` hidden, whose own words deny nothing."""
    for at in places(name, piece):
        piece = f"{piece[:at]}{'_' * len(name)}{piece[at + len(name) :]}"
    return piece
