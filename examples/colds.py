"""Two diseases and two questions: the smallest source that can be trained on."""

from __future__ import annotations

import numpy as np

from workup.cases.rows import RowErrors
from workup.core.case import Case, Fact, Item, Kind, Source, Truth
from workup.core.errors import UserError
from workup.core.lazy import Lazy

EXAMPLE = "colds:1000"
ITEMS = (
    Item("fever", "Have you had a fever?", "No fever."),
    Item("throat swab", "What does the throat swab show?", "A clean swab.", Kind.LABORATORY),
)
FEVER = Fact("fever:yes", "fever", "There is fever.", weight=1)
SWAB = Fact(
    "throat swab:positive", "throat swab", "The swab is positive.", Kind.LABORATORY, weight=3
)
DISEASES = ("common cold", "strep throat")
COMPLAINT = "A patient with a sore throat."


def open(rest: str, split: int, errors: RowErrors) -> Source:
    """`colds:N` has N cases to train on and a fifth of that to test on."""
    size = int(rest or 1000) if not rest or rest.isdecimal() else 0
    if size < 5:
        raise UserError(f"colds:{rest}: write a number from 5, as in colds:1000")
    return Source(
        name=f"colds:{rest}",
        train=Lazy(size, lambda i: _case("train", i, split)),
        test=Lazy(size // 5, lambda i: _case("test", i, split)),
        items=ITEMS,
        diagnoses=DISEASES,
        phrases=(
            COMPLAINT,
            *DISEASES,
            *(p for i in ITEMS for p in (i.name, i.normal)),
            FEVER.text,
            SWAB.text,
        ),
        notes=("Invented.",),
    )


def _case(side: str, index: int, split: int) -> Case:
    rng = np.random.default_rng([split, side == "test", index])
    strep = bool(rng.random() < 0.4)
    facts = (*([FEVER] if rng.random() < 0.5 else []), *([SWAB] if strep else []))
    return Case(f"colds:{split}:{side}:{index}", COMPLAINT, Truth(DISEASES[strep], facts=facts))
