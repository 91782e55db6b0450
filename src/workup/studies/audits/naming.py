"""How often names are mapped to the code that a curator gave them, step by step.

The steps are those of `workup.metrics.naming`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table

from workup.core.errors import RolloutError
from workup.core.statistics import SHARE, interval
from workup.metrics.icd_distance import IcdTree, kg
from workup.metrics.name_files import Named
from workup.metrics.naming import Coded, Coder, Stage
from workup.runs.words import plus_minus

SCALES = ("code", "category", "kg")


@dataclass(frozen=True, slots=True)
class Mapped:
    """One name, the code found for it, the right codes, and the group it is counted in."""

    name: str
    found: Coded
    right: tuple[str, ...]
    group: str = ""

    def values(self, tree: IcdTree) -> dict[str, float]:
        """`code`, `category` and `kg` of the code that was found, each in [0, 1].

        `code` and `category` are 1 if the code, or its category of three characters, is right. `kg`
        is that of the nearest right code.
        """
        code = self.found.code
        near = (
            max((kg(tree.path(code), tree.path(right)) for right in self.right), default=0.0)
            if code
            else 0.0
        )
        categories = {right[:3] for right in self.right}
        return {
            "code": float(code in self.right),
            "category": float(code[:3] in categories),
            "kg": near,
        }


def together(rows: Iterable[Named]) -> tuple[dict[str, Named], int]:
    """name → all codes that rows give it; and how many rows have no code of the release.

    Every name is counted once.
    """
    found: dict[str, Named] = {}
    left_out = 0
    for row in rows:
        left_out += not row.codes
        for name in filter(None, row.names if row.codes else ()):
            before = found.get(name, Named((name,), (), row.group))
            found[name] = Named(
                (name,), tuple(dict.fromkeys((*before.codes, *row.codes))), before.group
            )
    return found, left_out


async def audit(coder: Coder, right: Mapping[str, Named]) -> tuple[list[Mapped], int]:
    """Every name with what it was mapped to, and the number of names at which a model gave up."""
    found = await asyncio.gather(*(coder.code(name) for name in right), return_exceptions=True)
    mapped = [
        Mapped(name, code, row.codes, row.group)
        for (name, row), code in zip(right.items(), found, strict=True)
        if isinstance(code, Coded)
    ]
    failed = [error for error in found if isinstance(error, BaseException)]
    if wrong := next((error for error in failed if not isinstance(error, RolloutError)), None):
        raise wrong
    return mapped, len(failed)


def table(mapped: Sequence[Mapped], tree: IcdTree) -> Table:
    """How many names, and how well they are mapped, with 95 % intervals.

    A row per step of the cascade, one per group where there are groups, and one for all.
    """
    shown = Table(box=SIMPLE_HEAD)
    for heading in ("", "names", *SCALES):
        shown.add_column(heading, justify="right" if heading else "left")
    rows = {
        f"by {stage.value}" if stage is not Stage.UNMAPPED else stage.value: stage
        for stage in Stage
    }
    parts = {
        name: [one for one in mapped if one.found.stage is stage] for name, stage in rows.items()
    }
    groups = Counter(one.group for one in mapped if one.group)
    parts |= {group: [one for one in mapped if one.group == group] for group in groups}
    for name, part in {**parts, "all": list(mapped)}.items():
        values = [one.values(tree) for one in part]
        names = [one.name for one in part]
        cells = [
            plus_minus("kg", interval([value[scale] for value in values], names, bounds=SHARE))
            for scale in SCALES
        ]
        if part:
            shown.add_row(name, f"{len(part):,}", *cells)
    return shown


def agreement(mapped: Sequence[Mapped], coder: Coder) -> str:
    """One line: how many names are in the right category, and how many need a model."""
    right = sum(one.values(coder.tree)["category"] for one in mapped)
    doubtful = sum(coder.look_up(one.name).doubtful for one in mapped)
    share = f" ({right / len(mapped):.3f})" if mapped else ""
    return (
        f"{right:,.0f} of {len(mapped):,} names are in the right category{share}; {doubtful:,} "
        "are not found as they stand: about these a model is asked, where one is named"
    )
