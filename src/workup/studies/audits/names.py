"""How often disease names get the ICD-10 code that a curator gave them, step by step.

The steps are those of `workup.metrics.naming`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from workup.cases.files import existing
from workup.core.errors import RolloutError, UserError
from workup.core.statistics import SHARE, Estimate, interval
from workup.core.text import several
from workup.metrics.icd_distance import IcdTree, kg, load_tree
from workup.metrics.name_files import CodedNames, read, synonyms
from workup.metrics.naming import Coded, Coder, CodingStep, known_names
from workup.rl.running import run_to_end
from workup.runs.words import plus_minus
from workup.studies.base.result import Result, Section, for_each, sheet
from workup.studies.base.task import Names, Study, StudySettings, StudyTask

SCALES = ("code", "category", "kg")


class Settings(StudySettings):
    """What the file holds, and who codes names."""

    columns: Names = Field((), description="headings of names and codes; else the first two")
    by: str = Field("", description="heading of a column by which a table's names are told apart")
    release: Literal["cm", "who"] = Field("cm", description="cm (ICD-10-CM) or who")
    names: str = Field(
        "", description="a file of further names that may be used: FILE or FILE#NAMES,CODES"
    )
    model: str = Field(
        "",
        description="who codes what is not found as it stands: endpoint:NAME, a folder, a hub id",
    )


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


def together(rows: Iterable[CodedNames]) -> tuple[dict[str, CodedNames], int]:
    """name → all codes that rows give it; and how many rows have no code of the release.

    Every name is counted once.
    """
    found: dict[str, CodedNames] = {}
    left_out = 0
    for row in rows:
        left_out += not row.codes
        for name in filter(None, row.names if row.codes else ()):
            before = found.get(name, CodedNames((name,), (), row.group))
            found[name] = CodedNames(
                (name,), tuple(dict.fromkeys((*before.codes, *row.codes))), before.group
            )
    return found, left_out


async def audit(
    coder: Coder, right: Mapping[str, CodedNames], tick: Callable[[], None]
) -> tuple[list[Mapped], list[BaseException]]:
    """Every name with what it was mapped to, and why a model gave up at others."""

    async def code(name: str) -> Coded:
        try:
            return await coder.code(name)
        finally:
            tick()

    found = await asyncio.gather(*map(code, right), return_exceptions=True)
    mapped = [
        Mapped(name, code, row.codes, row.group)
        for (name, row), code in zip(right.items(), found, strict=True)
        if isinstance(code, Coded)
    ]
    failed = [error for error in found if isinstance(error, BaseException)]
    if wrong := next((error for error in failed if not isinstance(error, RolloutError)), None):
        raise wrong
    return mapped, failed


@dataclass(frozen=True, slots=True)
class PartFigures:
    """Of some of the names: how many there are, and the mean of each of SCALES."""

    part: str
    names: int
    scales: Mapping[str, Estimate]


@dataclass(frozen=True)
class NamesAudit(Result):
    """All mapped names of a file.

    `doubtful` of them are not found as they stand. `left_out` rows have no code of the release,
    and at `failed` names a model gave up.
    """

    titled = "Names of {file}"

    file: str
    release: str
    mapped: tuple[Mapped, ...]
    parts: tuple[PartFigures, ...]
    doubtful: int
    left_out: int
    failed: int

    def sections(self) -> Sequence[Section]:
        columns = {
            "": lambda row: row.part,
            "names": lambda row: f"{row.names:,}",
            **for_each(SCALES, lambda name, row: plus_minus("kg", row.scales[name])),
        }
        return [Section("Codes of names", (sheet("", self.parts, columns),))]

    def notes(self) -> Sequence[str]:
        whole = self.parts[-1].scales["category"] if self.parts else None
        share = f" ({whole.mean:.3f})" if whole else ""
        right = whole.mean * len(self.mapped) if whole else 0
        return (
            f"{right:,.0f} of {len(self.mapped):,} names are in the right category{share}; "
            f"{self.doubtful:,} are not found as they stand: about these a model is asked, where "
            "one is named",
            f"{self.left_out:,} rows have no code of this release, {self.failed:,} names were "
            "given up by the model and are in no share",
        )


def parts(mapped: Sequence[Mapped], tree: IcdTree) -> tuple[PartFigures, ...]:
    """One for each step of the cascade, one for each group where there are groups, one for all."""
    some = {
        f"by {stage.value}" if stage is not CodingStep.UNMAPPED else stage.value: [
            one for one in mapped if one.found.stage is stage
        ]
        for stage in CodingStep
    }
    for group in dict.fromkeys(one.group for one in mapped if one.group):
        some[group] = [one for one in mapped if one.group == group]
    found = []
    for name, own in {**some, "all": list(mapped)}.items():
        values, names = [one.values(tree) for one in own], [one.name for one in own]
        scales = {
            scale: interval([value[scale] for value in values], names, bounds=SHARE)
            for scale in SCALES
            if own
        }
        found += [PartFigures(name, len(own), scales)] if own else []
    return tuple(found)


def run(task: StudyTask) -> NamesAudit:
    """Codes every name of the file. Raises UserError, and CaseError for a malformed file."""
    s, file = task.settings, task.one
    icd = load_tree(s.release)
    right, left_out = together(read(existing(file), icd, s.columns, s.by))
    if not right:
        raise UserError(
            f"{file}: none of {several(left_out, 'row')} has a name and a code of ICD-10 "
            f"({s.release}); name their columns with columns=NAME,CODE"
        )
    more = synonyms(s.names, icd, known_names(icd))
    model = task.run_models(restricted=False).open(s.model) if s.model else None
    coder = Coder(icd, model=model, more=more)
    mapped, failed = run_to_end(audit(coder, right, task.begin(len(right), "name")))
    doubtful = sum(coder.look_up(name).doubtful for name in right)
    if failed and len(failed) == doubtful:
        raise RolloutError(f"names asked about that failed: all {doubtful}: {failed[0]}")
    found = (tuple(mapped), parts(mapped, icd))
    return NamesAudit(Path(file).name, s.release, *found, doubtful, left_out, len(failed))


study = Study(
    "How often do disease names get the right ICD-10 code? Right is the code that a curator gave "
    "them.",
    run,
    Settings,
    of="file",
)
