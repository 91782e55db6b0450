"""How often names are mapped to the code that a curator gave them: the cascade of `workup.signals.naming`, step by step."""

from __future__ import annotations

import asyncio
import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from workup.errors import CaseError, RolloutError, UserError
from workup.runs.words import plus_minus
from workup.signals.icd_distance import Tree, kg
from workup.signals.naming import Coded, Coder, Stage
from workup.statistics import interval

SCALES = ("code", "category", "kg")


@dataclass(frozen=True, slots=True)
class Mapped:
    """One name, what the cascade made of it, and the codes that are right."""

    name: str
    found: Coded
    right: tuple[str, ...]

    def values(self, tree: Tree) -> dict[str, float]:
        """Whether the code, or its category of three characters, is a right one; and KG, nearest right code."""
        code = self.found.code
        near = max((kg(tree.path(code), tree.path(right)) for right in self.right), default=0.0) if code else 0.0
        categories = {right[:3] for right in self.right}
        return {"code": float(code in self.right), "category": float(code[:3] in categories), "kg": near}


def pairs(path: Path, tree: Tree, columns: Sequence[str] = ()) -> tuple[dict[str, tuple[str, ...]], int]:
    """(name → its right codes, how many rows hold no code of the release), from a table with tabs or commas.

    `columns` are the headings of names and codes; without them the first two columns, from the first row on. Lines that begin
    with "#" are comments. A code may have a prefix ("ICD10CM:J45"). Raises CaseError (file, line), UserError.
    """
    found: dict[str, dict[str, None]] = defaultdict(dict)
    left_out = 0
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    kept = [(number, line) for number, line in enumerate(lines, start=1) if line.strip() and not line.startswith("#")]
    tabs = any("\t" in line for _, line in kept)
    texts = [line for _, line in kept]
    rows = csv.reader(texts, delimiter="\t", quoting=csv.QUOTE_NONE) if tabs else csv.reader(texts)
    if not kept:
        raise UserError(f"{path}: is empty; a line holds a name and its ICD-10 code")
    heading = next(rows, []) if columns else []
    places = _places(path, columns, heading)
    for (number, _), row in zip(kept[bool(columns) :], rows, strict=False):
        if len(row) <= max(places):
            raise CaseError(f"it has {len(row)} columns, {max(places) + 1} are needed", file=path, line=number)
        name, code = (row[place].strip() for place in places)
        if right := tree.find(code.rpartition(":")[2]):
            found[name][right] = None
        else:
            left_out += 1
    return {name: tuple(codes) for name, codes in found.items() if name}, left_out


def _places(path: Path, columns: Sequence[str], heading: Sequence[str]) -> tuple[int, int]:
    if not columns:
        return 0, 1
    if len(columns) != 2 or not set(columns) <= set(heading):
        raise UserError(f"{path}: columns must name two of {', '.join(heading)}")
    return heading.index(columns[0]), heading.index(columns[1])


async def audit(coder: Coder, right: Mapping[str, tuple[str, ...]]) -> tuple[list[Mapped], int]:
    """Every name that is mapped or not, and how many a model gave up."""
    found = await asyncio.gather(*(coder.code(name) for name in right), return_exceptions=True)
    mapped = [
        Mapped(name, code, codes) for (name, codes), code in zip(right.items(), found, strict=True) if isinstance(code, Coded)
    ]
    failed = [error for error in found if isinstance(error, BaseException)]
    if wrong := next((error for error in failed if not isinstance(error, RolloutError)), None):
        raise wrong
    return mapped, len(failed)


def table(mapped: Sequence[Mapped], tree: Tree) -> Table:
    """A row per step of the cascade and one for all: how many names it decided, and how well, with 95 % intervals."""
    shown = Table(box=SIMPLE_HEAD)
    for heading in ("decided by", "names", *SCALES):
        shown.add_column(heading, justify="right" if heading != "decided by" else "left")
    groups = {stage.value: [one for one in mapped if one.found.stage is stage] for stage in Stage}
    for name, group in {**groups, "all": list(mapped)}.items():
        values = [one.values(tree) for one in group]
        cells = [plus_minus(scale, interval([value[scale] for value in values], [one.name for one in group])) for scale in SCALES]
        if group:
            shown.add_row(name, f"{len(group):,}", *cells)
    return shown
