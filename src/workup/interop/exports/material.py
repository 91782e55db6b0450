"""What is exported: episodes of a run, by their columns, or cases of one side of a source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workup.cases import open_source
from workup.cases.files import evenly_spaced
from workup.core.case import Case, Source
from workup.core.episode import Ending
from workup.core.errors import UserError, unknown
from workup.report.suite import is_suite
from workup.runs import Record, Run
from workup.runs.folder import goes_on, is_run
from workup.runs.store import FILTERS, TYPED

_TRUTHS: Mapping[str, bool | None] = {"true": True, "false": False, "none": None}
_NUMBERS = ("step", "sample", "questions")
NAMED = 8  # doctors or phases that a message names


@dataclass(frozen=True)
class Chosen:
    """The episodes of `run` that fit `where` (column → value, as in `Run.episodes`)."""

    run: Run
    where: Mapping[str, Any]

    def records(self, **more: Any) -> Iterator[Record]:
        """The records in the order of their keys, one at a time; with `more` conditions."""
        return iter(self.run.episodes(**{**self.where, **more}))

    def finished(self, **more: Any) -> Iterator[Record]:
        """The records of episodes that did not fail: no endpoint and no judge gave up in them."""
        return (each for each in self.records(**more) if each.episode.ending is not Ending.FAILED)

    @property
    def lost(self) -> tuple[str, ...]:
        """A sentence on the episodes that `finished` leaves out; none where there are none."""
        where = {**self.where, "ending": Ending.FAILED}
        if self.where.get("ending", Ending.FAILED) != Ending.FAILED:
            return ()
        count = len(self.run.episodes(**where))
        return (f"{count:,} episodes that failed are left out.",) if count else ()

    def within(self, phase: str) -> Chosen:
        """The same episodes in this phase only, unless the user asked for a phase."""
        return replace(self, where={"phase": phase, **self.where})

    @property
    def phases(self) -> list[str]:
        """The phases of the chosen episodes."""
        found = self.run.store.select("DISTINCT phase", self.where, "ORDER BY phase")
        return [row["phase"] for row in found]

    def refuse_nothing(self) -> None:
        """Raises UserError if no episode fits, and says what there is."""
        if self.run.episodes(**self.where):
            return
        if not self.where or not self.run.episodes():
            raise UserError(f"{self.run.path} holds no episode yet; type {goes_on(self.run.path)}")
        asked = ", ".join(f"{name}={value}" for name, value in self.where.items())
        there = []
        for name in ("phase", "doctor"):
            found = self.run.store.select(f"DISTINCT {name}", {}, f"ORDER BY 1 LIMIT {NAMED}")
            there.append(f"{name}: {', '.join(row[0] for row in found)}")
        raise UserError(
            f"{self.run.path} holds no episode with {asked}. There are {'; '.join(there)}"
        )


@dataclass(frozen=True)
class Drawn:
    """Cases of one side of `source`; each is made when it is read."""

    source: Source
    side: str
    cases: Sequence[Case]


def chosen(path: Path, words: Sequence[str]) -> Chosen:
    """The episodes of the run in `path` that fit `words`, as in `phase=train doctor=policy`.

    Raises UserError where there is no run or no episode that fits, for a suite, and as `filters`
    does.
    """
    run = Run.open(path)
    if is_suite(run):
        begun = [folder for arm in run.config["arms"] if is_run(folder := path / arm["folder"])]
        inside = ", ".join(map(str, begun[:NAMED])) or "none has begun"
        raise UserError(f"{path} is a suite: export one of its evaluations ({inside})")
    found = Chosen(run, filters(words))
    found.refuse_nothing()
    return found


def drawn(spec: str, *, split: int = 0, side: str = "test", most: int | None = None) -> Drawn:
    """The cases of one side of a source, or at most `most` of them, evenly spaced.

    Raises UserError as `open_source` does, for another side, and for a side without cases.
    """
    source = open_source(spec, split=split)
    sides = {"test": source.test, "train": source.train}
    if side not in sides:
        raise unknown("side", side, sides)
    if not len(sides[side]):
        raise UserError(f"{source.name} holds no {side} case")
    cases = sides[side] if most is None else evenly_spaced(sides[side], most)
    return Drawn(source, side, cases)


def filters(words: Sequence[str]) -> dict[str, Any]:
    """`column=value` words as conditions on episodes; `case` means the case's id.

    Raises UserError for another word, an unknown column, one that is named twice, and a value that
    its column cannot have.
    """
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise UserError(f"'{word}' is no filter: write column=value, as in doctor=trained")
        if name not in FILTERS and name != "case":
            raise unknown("column", name, TYPED)
        if name in found:
            raise UserError(f"'{word}': {name} is named twice; give each column one value")
        found[name] = _value(name, value)
    return found


def _value(name: str, text: str) -> Any:
    if name == "correct":
        if text.lower() not in _TRUTHS:
            raise UserError(f"correct={text}: write true, false, or none for not judged")
        return _TRUTHS[text.lower()]
    if name not in _NUMBERS:
        return text
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise UserError(f"{name}={text}: write a whole number")
    return int(text)
