"""From the name of a disease to its ICD-10 code, in steps (C-MIG CM-16).

The steps, in order:
- a code that is written in the text;
- the name in a dictionary: the cases' own names, then the release's and everyday names, then
  those of a file of the user's;
- the code with the most similar name (`workup.metrics.icd_names`);
- a language model, if one is given, for every name that the dictionaries do not hold as it stands.

A name that no step maps has no code. docs/metrics.md says how often each step is right.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from pydantic import BaseModel, ConfigDict

from workup.core.case import Case
from workup.core.ports import Model
from workup.core.text import asserts, normalise, same_name
from workup.metrics.icd_distance import IcdTree
from workup.metrics.icd_names import IcdNames, key, readings
from workup.roles.fence import clean, numbered
from workup.roles.judges.assessor import Rubric, consult

LONGEST = 200  # characters of a name that are looked at
NEAR = 0.6
"""The least likeness, within [0, 1], of a name that counts as similar.

Below it less than half of the categories found are right."""

_SUBCATEGORY = len("J45.9")  # what is not found by its name is known no better than that
_OFFERED = 10  # codes that a model is offered; it may give another
_COMMON = 1 << 16  # names that are remembered

# Within a text: a code with its point ("J45.9"), behind "ICD-10", in brackets, or at the very
# beginning before a dash or colon. "Parvovirus B19" is none of these, nor is the change of a gene,
# as in "(V30M)" and "(V617F)".
_CODE = r"[A-Z][0-9][0-9A-Z](?:\.?[0-9A-Z]{1,4})?"
_WITHIN = re.compile(
    r"(?<![\w.-])([A-Z][0-9][0-9A-Z]\.[0-9A-Z]{1,4})(?!\w)"
    rf"|\bICD(?:-?10)?(?:-?CM)?(?: codes?)?[ :=]{{1,3}}({_CODE})(?!\w)"
    r"|[(\[] ?([A-Z][0-9][0-9A-Z](?:\.[0-9A-Z]{1,4}|[0-9]{0,3})?) ?[)\]]"
    rf"|^ ?({_CODE})(?= ?[:–—-] )"
)


class CodingStep(StrEnum):
    """The step that found the code."""

    CODE = "code"
    DICTIONARY = "dictionary"
    INDEX = "index"
    MODEL = "model"
    UNMAPPED = "unmapped"


@dataclass(frozen=True, slots=True)
class Coded:
    """A name's code ("" if there is none), the step that found it, and the likeness in [0, 1]."""

    code: str
    stage: CodingStep
    likeness: float = 1.0

    @property
    def doubtful(self) -> bool:
        """Whether no dictionary holds the name as it stands.

        A model is then asked, if there is one.
        """
        return self.stage in (CodingStep.INDEX, CodingStep.UNMAPPED)


UNMAPPED = Coded("", CodingStep.UNMAPPED, 0.0)


class Coder:
    """Maps names to codes and remembers every name.

    A name takes milliseconds; the first one of a process takes seconds. `known` are names with
    their codes that are looked up before the release's own, `more` names that are looked up after
    them. `model` is asked about every doubtful name.
    """

    def __init__(
        self,
        tree: IcdTree,
        known: Mapping[str, str] | None = None,
        model: Model | None = None,
        more: Mapping[str, str] | None = None,
    ) -> None:
        self.tree, self._model = tree, model
        self._names = known_names(tree)
        self._known, self._more = _listed(known or {}), _listed(more or {})
        self._found: dict[str, Coded] = {}
        self._told: dict[str, Coded] = {}
        self._asked: dict[str, asyncio.Task[Coded]] = {}  # what a model is being asked

    def look_up(self, name: str) -> Coded:
        """The steps without the model.

        Linear in the length of the name, of which the first 200 characters count.
        """
        name = name[:LONGEST]
        if name not in self._found:
            if len(self._found) >= _COMMON:
                self._found.clear()
            self._found[name] = self._look_up(name)
        return self._found[name]

    def _look_up(self, name: str) -> Coded:
        if code := written(name, self.tree):
            return Coded(code, CodingStep.CODE)
        if (
            code := self._in(self._known, name)
            or self._names.exact(name)
            or self._in(self._more, name)
        ):
            return Coded(code, CodingStep.DICTIONARY)
        found = next(iter(self._names.near(name)), None)
        if found is None or found.likeness < NEAR:
            return UNMAPPED
        return Coded(self.tree.nearest(found.code[:_SUBCATEGORY]), CodingStep.INDEX, found.likeness)

    def _in(self, codes: Mapping[str, str], name: str) -> str:
        """The code in `codes` for the name or one of its readings.

        "" if the release has none of them.
        """
        forms = (normalise(name), *map(key, readings(name)))
        return next(filter(None, (self.tree.nearest(codes.get(form, "")) for form in forms)), "")

    async def code(self, name: str) -> Coded:
        """All steps; the model is asked at most once about a name.

        Raises RolloutError when it gives no usable answer.
        """
        found = self.look_up(name)
        if not found.doubtful or self._model is None or not normalise(name):
            return found
        name = name[:LONGEST]
        if name not in self._told:
            if name not in self._asked:
                self._asked[name] = asyncio.ensure_future(self._ask(self._model, name))
                self._asked[name].add_done_callback(lambda _: self._asked.pop(name, None))
            # Shielded: a caller that is cancelled must not cancel the call of the others.
            self._told[name] = await asyncio.shield(self._asked[name])
        return self._told[name]

    async def _ask(self, model: Model, name: str) -> Coded:
        offered = [
            f"{near.code}: {self.tree.name(near.code)}"
            for near in self._names.near(name)[:_OFFERED]
        ]
        sections = [("name", clean(name, LONGEST))]
        sections += [("codes of similar names", numbered(offered, LONGEST))] if offered else []
        answer = await consult(model, RUBRIC, sections, _CodeAnswer, self._check)
        return Coded(self.tree.find(answer.code), CodingStep.MODEL) if answer.code else UNMAPPED

    def _check(self, answer: _CodeAnswer) -> str | None:
        if not answer.code or self.tree.find(answer.code):
            return None
        return (
            f"the code {answer.code[:20]!r} does not exist; give an existing one, or an empty text"
        )


class _CodeAnswer(BaseModel):
    model_config = ConfigDict(extra="forbid", title="_Answer")  # the prompt says it

    code: str


@cache
def known_names(tree: IcdTree) -> IcdNames:
    """The names of a release, read once per process."""
    return IcdNames(tree)


def _listed(codes: Mapping[str, str]) -> dict[str, str]:
    """Codes by the normal forms of their names, then by their words; the first entry counts."""
    listed: dict[str, str] = {}
    for form in (normalise, key):
        for name, code in codes.items():
            listed.setdefault(form(name), code)
    return {form: code for form, code in listed.items() if form}


CODER = "coder"
"""The role of the language model that codes doubtful names."""

RUBRIC = Rubric(
    "icd-code/1",
    "You give the ICD-10 code of a disease.\n"
    "The name may be in any language, abbreviated or misspelt. Choose the code that stands for "
    "exactly this disease; if the name says less than any code does, choose the category of three "
    "characters. Codes of similarly written names may be listed: they are suggestions by spelling "
    "alone and often all wrong.\n"
    "If the name is no disease, injury, symptom or reason for an encounter, the code is an empty "
    "text.\n"
    'Answer with one JSON object: {"code": "…"}.',
    max_tokens=100,
    role=CODER,
)


def written(text: str, tree: IcdTree) -> str:
    """The code in `text`, if it exists, or the narrowest existing group around it.

    "" for a text without a code.
    """
    stated = (next(filter(None, found.groups())) for found in _WITHIN.finditer(text))
    return next(filter(None, map(tree.nearest, (text, *stated))), "")


def names_of(cases: Iterable[Case]) -> dict[str, str]:
    """The cases' own names of their diagnoses → the first of their codes."""
    known: dict[str, str] = {}
    for case in cases:
        for name in (case.truth.diagnosis, *case.truth.aliases):
            if case.truth.codes:
                known.setdefault(name, case.truth.codes[0])
    return known


# An answer that names no disease at all: "normal", "healthy adult", "unknown", "n/a", "disease".
_NO_DISEASE = re.compile(
    r"\W*(?:(?:all|entirely|perfectly|completely|everything(?: is)?|within) )?"
    r"(?:normal|healthy|nothing|none|unknown|unclear|undetermined|uncertain|n/?a|well|sick|ill"
    r"|idiopathic|unremarkable"
    r"|(?:a |some |the )?(?:disease|disorder|syndrome|illness|condition|diagnosis))"
    r"(?: (?:findings?|results?|exam(?:ination)?|study|variant|person|patient|adult|child|limits"
    r"|diagnosis|disease|etiology|cause|condition|illness))?\W*",
    re.IGNORECASE,
)
_AND = re.compile(r"[,，、;；&+]|\band\b", re.IGNORECASE)


def claimed(answer: str, case: Case) -> bool:
    """Whether an answer can be rewarded for likeness.

    It must assert one disease, or be one of the truth's own names. "Normal" and "unknown" name no
    disease, though a code may have a similar name. A data set may call its diagnosis "Possible
    NSTEMI / STEMI": then these words are no hedge. A list is like one of its parts whatever the
    others are: what has two commas or "and" counts as a list, since names may have one.
    """
    names = (case.truth.diagnosis, *case.truth.aliases)
    listed = len(_AND.findall(answer)) > 1
    if any(same_name(answer, name) for name in names):
        return True
    return asserts(answer) and not listed and not _NO_DISEASE.fullmatch(answer)
