"""How many test cases equal a training case in all but their id."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

from workup.cases.files import evenly_spaced
from workup.core.case import Case, Source

MOST_TESTED, MOST_TRAINED = 1_000, 100_000  # cases of each side that are looked at, evenly spaced


@dataclass(frozen=True, slots=True)
class Overlap:
    """Of `tested` test cases `equal` are one of `trained` training cases, but for the id."""

    equal: int
    tested: int
    trained: int

    def __str__(self) -> str:
        return (
            f"{self.equal:,} of {self.tested:,} test cases equal one of {self.trained:,} training "
            "cases in presentation, findings and diagnosis"
        )


def overlap(source: Source, tick: Callable[[], None] = lambda: None) -> Overlap:
    """The overlap of both sides; `tick` is called for every case that is read."""
    trained = evenly_spaced(source.train, MOST_TRAINED)
    tested = evenly_spaced(source.test, MOST_TESTED)
    known = {_content(trained[place], tick) for place in range(len(trained))}
    equal = sum(_content(tested[place], tick) in known for place in range(len(tested)))
    return Overlap(equal, len(tested), len(trained))


def _content(case: Case, tick: Callable[[], None]) -> bytes:
    """A digest of all that tells a patient from another one; the order of findings is no part."""
    tick()
    shown = (case.presentation, case.question, case.options, case.truth.diagnosis)
    facts = sorted((fact.item, fact.text) for fact in case.all_facts)
    told = repr((shown, facts)).encode("utf-8", "surrogatepass")
    return blake2b(told, digest_size=16).digest()
