r"""The grammar of evidence-seeking diagnosis: ranked lists, orders and a diagnosis (ES-1, ES-3).

The doctor writes `\DiffList{…}`, `\ExamList{…}` and `\boxed{…}` inside `<answer>…</answer>`, behind
`<think>…</think>`. Everything here is linear in the length of the text: models reach it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache

from workup.core.episode import DIAGNOSE, MALFORMED, Action, Part
from workup.core.text import THINK, normalise, tagged

ANSWER = "answer"
ORDER = "order"
"""The kind of an action that ranks candidates and orders examinations."""

RANKED, TAGS = "candidates", "tags"  # names of the parts of an action

CANDIDATES, EXAMINATIONS, DIAGNOSIS = "\\DiffList{", "\\ExamList{", "\\boxed{"
EXAMINED = "; "
"""Stands between the items that a turn brought results of, in its observation's `item`."""

MOST_ITEMS = 1_000  # items of one list that are read
LONGEST_NAME = 300  # characters of an item; the rest is cut off

_TAG = re.compile(rf"<(/?)({THINK}|{ANSWER})>", re.IGNORECASE)
_WELL_FORMED = ([THINK, f"/{THINK}", ANSWER, f"/{ANSWER}"], [f"/{THINK}", ANSWER, f"/{ANSWER}"])
_MACRO = re.compile(r"(?<![A-Za-z])\\{0,2}(difflist|examlist|boxed)[ \t*]{0,4}[{｛]", re.IGNORECASE)
_FAMILIES = {"(": "（）()", "[": "【】［］[]", "{": "｛｝{}"}
_FAMILY = {sign: family for family, signs in _FAMILIES.items() for sign in signs}
_OPENING = frozenset("(（[【［{｛")
# A comma between two digits is part of a name: "1,25-dihydroxyvitamin D".
_MARK = re.compile(r"\\.|[()（）\[\]【】［］{}｛｝，、;；\n]|,(?!(?<=\d,)\d)", re.DOTALL)
_SEPARATORS = frozenset(",，、;；\n")
# A command of LaTeX, with the brace of its argument; an escaped sign; what marks but says nothing.
_TEX = re.compile(r"\\([A-Za-z]+)(?:[ \t]{0,2}([{｛]))?|\\(.?)|[{}｛｝$`]|\*{2,3}", re.DOTALL)
_SIGNS = frozenset("{}_&%#$")  # signs that LaTeX writes behind a backslash
_PLACE = re.compile(r"(?:[(（]\d{1,2}[)）]|\d{1,2}[.)）](?!\d)|[-•·▪–](?=\s))\s*")
_AROUND = " \t\n*_`.。:：\"'“”‘’"
_NONE = re.compile(
    r"n a|(?:none|nothing|no need|not)"
    r"(?: (?:needed|required|necessary|indicated|else|more|further))*"
    r"|no (?:(?:further|more|other|additional) )?"
    r"(?:tests?|testing|examinations?|investigations?|studies|stains?)"
    r"(?: (?:is|are))?(?: (?:needed|required|necessary|indicated))?"
    r"|无|无需|不需要|无需检查|不需要检查"
)


@lru_cache(maxsize=1 << 12)  # a policy of few words says the same again and again
def read(text: str, ranked: bool = False) -> Action:
    r"""The one parse of a completion; never raises.

    The action is a diagnosis if `\boxed` comes last, or, with `ranked`, if there is a list of
    candidates and none of examinations; it is an order, with the examinations as they were written,
    if there is a list. Of two lists the last counts. A list of candidates that says "none" and
    nothing else is empty. Its errors are 0 to 2: 1 where there is not one thought and one answer
    behind it, and 1 where a list is missing or nothing could be read. A chat template may have
    written the opening tag `<think>`.

    Its parts are the RANKED candidates, or the diagnosis as a list of one, and its TAGS if they are
    paired.
    """
    wrong, answer = _answer(text)
    pair = () if wrong else (Part(TAGS, (THINK, ANSWER)),)
    closing = _closings(answer)
    found: dict[str, tuple[int, int]] = {}
    last = ""
    for name, start, end in _macros(answer, closing):
        if name != "boxed" or _clean(answer[start:end]):
            found[name], last = (start, end), name
    if last == "boxed":
        diagnosis = (_clean(answer[slice(*found["boxed"])]),)
        return Action(DIAGNOSE, diagnosis, wrong, (Part(RANKED, diagnosis), *pair))
    lists = {name: tuple(_items(answer, place, closing)) for name, place in found.items()}
    if not lists or last not in lists:
        return Action(MALFORMED, (), wrong + 1, pair)
    named = lists.get("difflist", ())
    listed = not all(map(_none, named))
    parts = (Part(RANKED, named), *pair) if listed else pair
    if ranked and listed and "examlist" not in lists:
        return Action(DIAGNOSE, named, wrong, parts)
    orders = tuple(item for item in lists.get("examlist", ()) if not _none(item))
    missing = not {"difflist", "examlist"} <= lists.keys()
    return Action(ORDER, orders, wrong + missing, parts)


def candidates(action: Action) -> tuple[str, ...]:
    """The ranked list of an action, or its diagnosis as a list of one; empty without either."""
    return action.part(RANKED)


def errors_in(action: Action) -> int:
    """n_f ∈ {0, 1, 2} of a text (ES-4): the errors of the grammar, and a list without a candidate.

    Such a list is written (an anchor may order without ranking), but nothing can be read in it.
    """
    unpaired = int(not action.part(TAGS))
    return unpaired + max(action.errors - unpaired, int(not candidates(action)))


def _none(item: str) -> bool:
    """Whether an item says that there is none."""
    return _NONE.fullmatch(normalise(item)) is not None


def written(content: str) -> str:
    """A whole completion with an empty thought and `content` as its answer."""
    return f"{tagged(THINK, '')}{tagged(ANSWER, content)}"


def lists(candidates: Iterable[str], examinations: Iterable[str] | None = ()) -> str:
    """The two lists as text; the list of examinations is left out if it is None."""
    ranked = f"{CANDIDATES}{_joined(candidates)}}}"
    return ranked if examinations is None else f"{ranked}{EXAMINATIONS}{_joined(examinations)}}}"


def boxed(diagnosis: str) -> str:
    """The diagnosis as text."""
    return f"{DIAGNOSIS}{diagnosis}}}"


def _answer(text: str) -> tuple[int, str]:
    """1 if the pair of thought and answer is wrong, else 0; and the text to read as the answer."""
    tags = list(_TAG.finditer(text))
    if [(tag[1] + tag[2]).lower() for tag in tags] in _WELL_FORMED:
        return 0, text[tags[-2].end() : tags[-1].start()]
    thoughts = [tag for tag in tags if (tag[1] + tag[2]).lower() == f"/{THINK}"]
    return 1, text[thoughts[-1].end() :] if thoughts else text


def _closings(text: str) -> dict[int, int]:
    """The place of each opening bracket that is closed → the place of its closing bracket.

    A closing brace also ends the brackets that are still open inside of its braces. Any other
    closing bracket ends only what was opened within the same braces.
    """
    closing: dict[int, int] = {}
    levels: list[tuple[int, list[int], Counter[str]]] = [(-1, [], Counter())]
    for mark in _MARK.finditer(text):
        sign, place = mark[0], mark.start()
        family = _FAMILY.get(sign)
        if family is None:
            continue
        brace, opened, counts = levels[-1]
        if sign in _OPENING and family == "{":
            levels.append((place, [], Counter()))
        elif sign in _OPENING:
            opened.append(place)
            counts[family] += 1
        elif family == "{" and brace >= 0:
            levels.pop()
            closing[brace] = place
        elif family != "{" and counts[family]:
            while _FAMILY[text[opened[-1]]] != family:
                counts[_FAMILY[text[opened.pop()]]] -= 1
            closing[opened.pop()] = place
            counts[family] -= 1
    return closing


def _macros(text: str, closing: dict[int, int]) -> Iterator[tuple[str, int, int]]:
    """(name, start, end of the content) of the outermost macros that are closed, in order.

    Where a `boxed` surrounds a list, the list is read.
    """
    complete = [
        (macro[1].lower(), macro.start(), macro.end(), closing[macro.end() - 1])
        for macro in _MACRO.finditer(text)
        if macro.end() - 1 in closing
    ]
    starts = [start for name, start, _, _ in complete if name != "boxed"]
    after = 0
    for name, start, begin, end in complete:
        within = bisect_right(starts, start)
        surrounds = name == "boxed" and within < len(starts) and starts[within] < end
        if start >= after and not surrounds:
            after = end
            yield name, begin, end


def _items(text: str, place: tuple[int, int], closing: dict[int, int]) -> Iterator[str]:
    """The items of the list whose content is at `place`; separators in brackets do not count."""
    start, end = place
    at, count = start, 0
    cut = _MARK.search(text, at, end)
    while cut is not None and count < MOST_ITEMS:
        at = cut.end()
        if cut[0] in _SEPARATORS:
            if name := _clean(text[start : cut.start()]):
                yield name
                count += 1
            start = at
        elif cut.start() in closing:
            at = closing[cut.start()] + 1
        cut = _MARK.search(text, at, end)
    if count < MOST_ITEMS and (name := _clean(text[start:end])):
        yield name


def _clean(item: str) -> str:
    """An item without its number, marks of emphasis and LaTeX; "" if it says nothing."""
    text = " ".join(_TEX.sub(_plain, item[: 2 * LONGEST_NAME]).split()).strip(_AROUND)
    text = _PLACE.sub("", text, count=1).strip(_AROUND) if _PLACE.match(text) else text
    says = any(map(str.isalnum, text)) and not (text.isdigit() and len(text) < 3)
    return text[:LONGEST_NAME].rstrip() if says else ""


def _plain(found: re.Match[str]) -> str:
    if found[1]:
        return "" if found[2] else found[1]
    if found[0].startswith("\\"):
        return found[3] if found[3] in _SIGNS else " "
    return ""


def _joined(items: Iterable[str]) -> str:
    """The items with commas between them; one that holds a separator stands in braces."""
    return ", ".join(
        item if [*_items(item, (0, len(item)), _closings(item))] == [item] else f"{{{item}}}"
        for item in items
    )
