"""Suites of benchmarks: a YAML file that names sources of cases, each with its domain (MR-16).

    about: "Two sets of questions"
    settings: {evaluation: {temperature: 0}}
    benchmarks:
      - name: MMLU-Med
        cases: "mmlu:{data}/mmlu.jsonl"
        domain: out-of-domain
        needs: "the medical subjects of MMLU"

`settings` are those of `workup evaluate`, for all benchmarks or, within one, for it alone. `{data}`
stands for the folder that the user names. The built-in suites are the YAML files beside this one.
`stations/exam.yaml` is the suite of `workup exam` (`workup.loops.evaluation.suites.stations`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from workup.core.disk import slug, there
from workup.core.errors import UserError
from workup.core.shapes import FrozenModel
from workup.runs.policies.trained import CLINIC
from workup.runs.settings import built_in, from_file, yaml_file

DATA = "{data}"
APART = ("policy", "cases", "strategy")  # named on the command line, or beside `settings`
HERE = Path(__file__).parent
Domain = Literal["in-domain", "out-of-domain"]


class Benchmark(FrozenModel):
    """One source of cases. `needs` says, for a reader who lacks its files, what to put there.

    `tests` says in a sentence what it tests. Where it has the patients of the benchmark `against`
    under another condition, that one's name is `gap`. With a `role` it is played where a model
    plays that role.
    """

    name: str = Field(min_length=1, max_length=60, pattern=r"^[^\W_][\w .()+-]*$")
    cases: str = Field(min_length=1)
    domain: Domain
    needs: str = ""
    settings: dict[str, Any] = Field(default_factory=dict)
    tests: str = ""
    against: str = ""
    gap: str = ""
    role: str = ""


class Suite(FrozenModel):
    """Benchmarks in their order, and the settings that all of them share.

    `sizes` are further settings of all, one of which is chosen by its name. `version` changes with
    what is played.
    """

    about: str = ""
    version: int = 0
    sizes: dict[str, dict[str, Any]] = Field(default_factory=dict)
    settings: dict[str, Any] = Field(default_factory=dict)
    benchmarks: list[Benchmark] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class Lack:
    """A benchmark whose files are not there: `place` is where they were looked for."""

    benchmark: Benchmark
    place: str

    def __str__(self) -> str:
        needs = f": put there {self.benchmark.needs}" if self.benchmark.needs else ""
        return f"{self.benchmark.name}: no {self.place}{needs}"


def names() -> list[str]:
    """The built-in suites, sorted."""
    return built_in(HERE)


def read(spec: str) -> Suite:
    """The built-in suite of this name, or that of a YAML file.

    Raises UserError, with the file and the field, for a name that does not exist and for a file
    that holds no suite.
    """
    file = yaml_file("suite", spec, HERE)
    suite = from_file(Suite, file)
    _check(suite, file)
    return suite


def _check(suite: Suite, file: Path) -> None:
    """Raises UserError for a name that stands twice, and for settings that have a place apart."""
    # Names are folders too, and some file systems do not tell upper and lower case apart.
    seen: dict[str, str] = {}
    for name in (benchmark.name for benchmark in suite.benchmarks):
        key = slug(name).casefold()
        if key in seen:
            told = " and ".join(f"'{each}'" for each in dict.fromkeys((seen[key], name)))
            raise UserError(f"{file}: two benchmarks are named {told}; rename one")
        seen[key] = name
    own = [(f"{each.name}: ", each.settings) for each in suite.benchmarks]
    for where, given in [("", suite.settings), *own]:
        if apart := next((key for key in APART if key in given), None):
            place = "beside them" if apart == "cases" else "on the command line"
            raise UserError(f"{file}: {where}settings hold '{apart}', which is named {place}")


def placed(suite: Suite, spec: str, data: str | None) -> tuple[dict[str, str], list[Lack]]:
    """The cases of each benchmark that is there, by name, and those that are not.

    `data` is the folder that `{data}` stands for. Raises UserError where the suite has it and no
    folder was named, or one that does not exist.
    """
    asks = [each for each in suite.benchmarks if DATA in each.cases]
    if asks and data is None:
        lines = [str(Lack(each, _place(each.cases.replace(DATA, "FOLDER")))) for each in asks]
        told = "\n  ".join(lines)
        raise UserError(f"suite {spec} needs --data FOLDER, in which it looks for\n  {told}")
    if data is not None and not ((folder := there(data)) and folder.is_dir()):
        raise UserError(f"--data {data} is no folder")
    found: dict[str, str] = {}
    lacks: list[Lack] = []
    for each in suite.benchmarks:
        cases = each.cases.replace(DATA, (data or "").rstrip("/"))
        place = _place(cases)
        if cases.partition(":")[0] == CLINIC or there(place):
            found[each.name] = cases
        else:
            lacks.append(Lack(each, place))
    return found, lacks


def filled(settings: Mapping[str, Any], data: str) -> dict[str, Any]:
    """The settings with the folder `data` in place of `{data}` in their texts."""
    return {
        key: filled(value, data)
        if isinstance(value, Mapping)
        else value.replace(DATA, data)
        if isinstance(value, str)
        else value
        for key, value in settings.items()
    }


def _place(cases: str) -> str:
    """The file or folder in "SCHEME:PLACE#VIEW"."""
    return cases.partition(":")[2].partition("#")[0]
