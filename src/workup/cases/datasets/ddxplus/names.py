"""Short names of evidences, as a doctor may say them. The release has one long question for each.

`names.csv` has everyday names by question. `everyday` adds shorter forms of the question itself.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import chain
from pathlib import Path

from workup.core.text import normalise

# Marks that a name in `names.csv` may hold, one kind in a name: "{place} ache" is one name for each
# place. The release has no evidence for knee pain: it asks where the pain or the swelling is.
_OPEN = {
    "{place}": (
        "abdomen, ankle, arm, back, belly, breast, buttock, calf, cheek, chest, ear, elbow, eye, "
        "face, feet, finger, flank, foot, forehead, groin, hand, head, heel, hip, knee, leg, neck, "
        "nose, pelvis, pelvic, penis, shoulder, stomach, teeth, temple, testicle, thigh, thumb, "
        "toe, tooth, tummy, wrist"
    ),
    "{limb}": (
        "ankle, arm, calf, cheek, elbow, eye, eyelid, face, facial, feet, finger, foot, hand, "
        "knee, leg, lip, thigh, toe, tongue, wrist"
    ),
    "{relative}": "family, relative, parents, mother, father, brother, sister, sibling",
}
_BRACKETS = re.compile(r"\s*\(+[^()]*\)+")
# A second question for the same thing: "… or do you take medications to treat it".
_SECOND = re.compile(r",? or (?:(?:do|did|are|were|have) you|(?:is|has) your)\b.*", re.DOTALL)
# What stands before it and is no question: "Are you currently taking or have you …", "Did you
# previously, or do you …". The second question completes it.
_HALF = re.compile(r"^\w+ you(?: \w+ly)?(?: being| been)?(?: \w+(?:ing|ed|en))?$", re.IGNORECASE)


def everyday(question: str) -> tuple[str, ...]:
    """Further names of the evidence that the release asks for with `question`.

    They are the question without what stands in brackets; that again without a second question,
    unless half a question is left; and its names in `names.csv`. None equals the question itself.
    """
    plain = _BRACKETS.sub("", question)
    first = _SECOND.sub("", plain)
    short = () if _HALF.match(first) else (f"{first.rstrip('?')}?",)
    names = chain((plain,), short, _table().get(normalise(plain), ()))
    return tuple(dict.fromkeys(name for name in names if normalise(name) != normalise(question)))


@cache
def _table() -> Mapping[str, tuple[str, ...]]:
    """Normal form of each question in `names.csv`, which has them without brackets → its names."""
    file = Path(__file__).with_name("names.csv")
    lines = file.read_text(encoding="utf-8").splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    return {
        normalise(row["question"]): tuple(
            chain.from_iterable(map(_filled, row["names"].split("|")))
        )
        for row in rows
    }


def _filled(name: str) -> Iterator[str]:
    """All that a name stands for: "{place} ache" for "abdomen ache", "ankle ache" and so on."""
    mark = next((mark for mark in _OPEN if mark in name), None)
    words = _OPEN[mark].split(", ") if mark else [""]
    return (name.replace(mark or "{}", word) for word in words)
