"""Sixteen manners of speaking for a simulated patient, one per Myers–Briggs type (PM-2).

The types are a common vocabulary for ways of talking and nothing more; that they measure a person
is not claimed. Each manner is put together from what its four letters say, so that two types differ
exactly where their letters do.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from workup.core.case import Case
from workup.core.draws import seed_key
from workup.core.errors import unknown

_LETTERS = (
    {
        "E": "You talk readily, in two or three full sentences, and sound glad that someone asks.",
        "I": "You are reserved: one short sentence, nothing that was not asked for.",
    },
    {
        "S": "You describe plainly and concretely, as you would to a craftsman.",
        "N": "You like a comparison or an impression in place of a bare description.",
    },
    {
        "T": "Your tone is matter-of-fact; you keep your feelings out of it.",
        "F": "Your tone is warm, and one can hear that the whole thing worries you.",
    },
    {
        "J": "You sound certain and come straight to the point.",
        "P": "You sound hesitant: you start over, and say that it is only what you noticed.",
    },
)
PERSONAS = {
    "".join(code): " ".join(map(dict.__getitem__, _LETTERS, code)) for code in product(*_LETTERS)
}


@dataclass(frozen=True, slots=True)
class Personas:
    """Who speaks: the type `fixed`, or where it is "" one drawn for each case by `seed`.

    Raises UserError for a type that does not exist.
    """

    seed: int = 0
    fixed: str = ""

    def __post_init__(self) -> None:
        if self.fixed and self.fixed not in PERSONAS:
            raise unknown("persona", self.fixed, PERSONAS)

    def of(self, case: Case) -> str:
        """The type that speaks for `case`; it depends on the seed and the case's id alone."""
        return (
            self.fixed or tuple(PERSONAS)[seed_key("persona", self.seed, case.id) % len(PERSONAS)]
        )
