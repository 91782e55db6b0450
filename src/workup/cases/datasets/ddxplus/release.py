"""The two files that come with the DDXPlus patients: conditions and evidences.

Both released code styles are read: `douleurxx_@_front` and `E_55_@_V_89`. Names and questions are
the English ones.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, Field

from workup.cases.datasets.ddxplus import wording
from workup.cases.datasets.ddxplus.names import everyday
from workup.cases.files import checked, read_object
from workup.core.case import Fact, Item
from workup.core.errors import CaseError

M = TypeVar("M", bound=BaseModel)
SEPARATOR = "_@_"  # between an evidence's code and its value
# the release's own age groups: the first year of each, and its wording in the presentation
AGE_GROUPS = (
    (0, "under 1 year"),
    (1, "1 to 4"),
    (5, "5 to 14"),
    (15, "15 to 29"),
    (30, "30 to 44"),
    (45, "45 to 59"),
    (60, "60 to 74"),
    (75, "75 or over"),
)
_ADULT = 3  # index of the first age group that is no child's
# 0–10 scales have four levels: a tiny policy need not distinguish a 6 from a 7
_BUCKETS = (
    (0, "none", "none (0 of 10)"),
    (3, "low", "low (1 to 3 of 10)"),
    (6, "moderate", "moderate (4 to 6 of 10)"),
    (10, "high", "high (7 to 10 of 10)"),
)


SEVERE = 2  # a condition of at most this severity must not be missed


class _RawEvidence(BaseModel):
    code_question: str
    question_en: str = Field(min_length=1)
    default_value: int | str
    value_meaning: dict[str, dict[str, str]]
    possible: list[int | str] = Field(alias="possible-values")
    data_type: Literal["B", "C", "M"]


class _RawCondition(BaseModel):
    english: str = Field(alias="cond-name-eng", min_length=1)
    french: str = Field(alias="cond-name-fr", min_length=1)
    icd10: str = Field(alias="icd10-id")
    symptoms: dict[str, Any]
    antecedents: dict[str, Any]
    severity: int | None = Field(None, ge=1, le=5)


@dataclass(frozen=True, slots=True)
class Evidence:
    """One evidence: what is asked, and what each answer says.

    `answers` maps a released value ("" for a yes) to the fact that it states, or to None where it
    is the normal answer.
    """

    item: Item
    answers: Mapping[str, Fact | None]
    multiple: bool

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The distinct facts that asking can reveal, in order."""
        return tuple(dict.fromkeys(fact for fact in self.answers.values() if fact is not None))


@dataclass(frozen=True, slots=True)
class DdxplusCondition:
    """One condition: English name, other names, ICD-10 codes, and its evidences' codes.

    ICD-10 codes are in upper case. The evidences are those listed for it. `severity` runs from 1,
    the most severe, to 5.
    """

    name: str
    aliases: tuple[str, ...]
    codes: tuple[str, ...]
    symptoms: tuple[str, ...]
    antecedents: tuple[str, ...]
    severity: int | None = None


@dataclass(frozen=True, slots=True)
class Release:
    """What can be asked and what can be diagnosed.

    `evidences` is keyed by code, `by_item` by item name, `answers` by evidence string ("fievre",
    "E_55_@_V_89"); `names` finds a condition by any of its names.
    """

    evidences: Mapping[str, Evidence]
    conditions: tuple[DdxplusCondition, ...]
    names: Mapping[str, int]
    by_item: Mapping[str, Evidence]
    answers: Mapping[str, tuple[Evidence, Fact | None]]

    @property
    def diagnoses(self) -> tuple[str, ...]:
        return tuple(condition.name for condition in self.conditions)

    @property
    def must_not_miss(self) -> tuple[str, ...]:
        """The conditions of severity 1 and 2."""
        return tuple(each.name for each in self.conditions if (each.severity or 5) <= SEVERE)

    @property
    def items(self) -> tuple[Item, ...]:
        return tuple(evidence.item for evidence in self.evidences.values())

    @property
    def phrases(self) -> tuple[str, ...]:
        """Every fixed phrase: persons, questions, normal answers, findings and diagnoses."""
        people = [person(age, sex) for sex in "FM" for age in range(len(AGE_GROUPS))]
        questions = [item.name for item in self.items]
        normal = [item.normal for item in self.items]
        findings = [fact.text for evidence in self.evidences.values() for fact in evidence.facts]
        return tuple(dict.fromkeys([*people, *questions, *normal, *findings, *self.diagnoses]))

    def find(self, code: str) -> tuple[Evidence, Fact | None]:
        """The evidence and the fact that an evidence string states (None for a normal answer).

        Raises KeyError.
        """
        return self.answers[code]


def age_group(age: int) -> int:
    """The index of an age (years, ≥ 0) in AGE_GROUPS."""
    return sum(age >= first for first, _ in AGE_GROUPS) - 1


def person(age: int, sex: str) -> str:
    """How the presentation introduces a patient of an age group and a sex ("F" or "M")."""
    noun = {"F": ("girl", "woman"), "M": ("boy", "man")}[sex][age >= _ADULT]
    words = AGE_GROUPS[age][1]
    return (
        f"A {noun} {words} of age reports:"
        if words.startswith("under")
        else f"A {noun} aged {words} reports:"
    )


def age_fact(age: int) -> Fact:
    return Fact(
        id=f"age{SEPARATOR}{AGE_GROUPS[age][0]}", item="age", text=f"Age {AGE_GROUPS[age][1]}."
    )


def sex_fact(sex: str) -> Fact:
    return Fact(id=f"sex{SEPARATOR}{sex}", item="sex", text={"F": "Female.", "M": "Male."}[sex])


def read_release(folder: Path) -> Release:
    """Reads `release_evidences.json` and `release_conditions.json` in `folder`.

    Raises CaseError.
    """
    evidences = _read_evidences(folder / "release_evidences.json")
    path = folder / "release_conditions.json"
    conditions: list[DdxplusCondition] = []
    names: dict[str, int] = {}
    for key, raw in _entries(path, _RawCondition).items():
        for code in (*raw.symptoms, *raw.antecedents):
            if code not in evidences:
                raise CaseError(
                    f"lists the evidence '{code}', which release_evidences.json lacks.",
                    file=path,
                    field=key,
                )
        names |= dict.fromkeys((key, raw.french, raw.english), len(conditions))
        conditions.append(_condition(key, raw))
    repeated = [name for name, n in Counter(c.name for c in conditions).items() if n > 1]
    if repeated:
        raise CaseError(
            f"two conditions are named '{repeated[0]}'.", file=path, field="cond-name-eng"
        )
    by_item = {evidence.item.name: evidence for evidence in evidences.values()}
    answers = {
        code + (SEPARATOR + value if value else ""): (evidence, fact)
        for code, evidence in evidences.items()
        for value, fact in evidence.answers.items()
    }
    return Release(evidences, tuple(conditions), names, by_item, answers)


def _entries(path: Path, model: type[M]) -> dict[str, M]:
    if not path.is_file():
        raise CaseError("not found; DDXPlus ships it beside the patients.", file=path)
    return {
        key: checked(model, value, file=path, within=key)
        for key, value in read_object(path).items()
    }


def _condition(key: str, raw: _RawCondition) -> DdxplusCondition:
    aliases = tuple(dict.fromkeys(name for name in (raw.french, key) if name != raw.english))
    codes = tuple(code.upper() for code in re.split(r"[\s,]+", raw.icd10.strip()) if code)
    return DdxplusCondition(
        raw.english, aliases, codes, tuple(raw.symptoms), tuple(raw.antecedents), raw.severity
    )


def _read_evidences(path: Path) -> dict[str, Evidence]:
    raw = _entries(path, _RawEvidence)
    counts = Counter(entry.question_en.strip() for entry in raw.values())
    names = {
        code: entry.question_en.strip()
        + (f" ({code})" if counts[entry.question_en.strip()] > 1 else "")
        for code, entry in raw.items()
    }
    for code, entry in raw.items():
        above = raw.get(entry.code_question)
        if (
            above is not None
            and above.code_question not in {entry.code_question, code}
            and above.code_question in raw
        ):
            raise CaseError(
                "is a sub-question of a sub-question.", file=path, field=f"{code}.code_question"
            )
    return {code: _evidence(code, entry, names, path) for code, entry in raw.items()}


def _evidence(code: str, raw: _RawEvidence, names: Mapping[str, str], path: Path) -> Evidence:
    # a few binary evidences name a group of codes here: a group is no evidence, so no parent
    parent = names.get(raw.code_question) if raw.code_question != code else None
    question, synonyms = names[code], everyday(raw.question_en.strip())
    if raw.data_type == "B":
        item = Item(question, question, wording.no(question), parent=parent, synonyms=synonyms)
        return Evidence(item, {"": Fact(code, question, wording.yes(question))}, multiple=False)
    if str(raw.default_value) not in map(str, raw.possible):
        raise CaseError(
            f"the default {raw.default_value!r} of '{code}' is no possible value.",
            file=path,
            field=code,
        )
    scale = all(isinstance(value, int) and 0 <= value <= 10 for value in raw.possible)
    if scale:  # released value → (bucket's name, its words)
        words = {
            str(v): next((name, told) for top, name, told in _BUCKETS if int(v) <= top)
            for v in raw.possible
        }
    else:  # released value → (itself, its English meaning)
        words = {
            str(v): (str(v), raw.value_meaning.get(str(v), {}).get("en", str(v)).strip())
            for v in raw.possible
        }
    default = words[str(raw.default_value)]
    normal = wording.nothing(question, default[1])
    item = Item(question, question, normal, parent=parent, synonyms=synonyms)
    answers = {
        value: None
        if named == default
        else Fact(code + SEPARATOR + named[0], question, wording.value(question, named[1]))
        for value, named in words.items()
    }
    return Evidence(item, answers, multiple=raw.data_type == "M")
