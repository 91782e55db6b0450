"""Makes a case of five parts from a raw report (ES-11).

The parts are history, microscopy, differential, tests with results, and final diagnosis. History
and microscopy are the presentation; each test is a hidden finding. Tests and diagnoses that the
report does not name, and parts that name the diagnosis, are sent back. Reports without a diagnosis,
without history and microscopy, or with fewer than `tests` examinations are dropped. Whether history
and microscopy are the report's own words is not checked.
"""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field

from workup.core.case import Case, Fact, Kind
from workup.core.shapes import ClosedModel
from workup.core.text import normalise
from workup.models.structured import ask
from workup.prepare.answers import opened
from workup.prepare.prompts import ideographic, most_entries, named, request
from workup.prepare.steps import Aids, Drop, Kept, Outcome, PrepareStep, StepSettings

VERSION = "extract-case/1"
TASK = """\
You take a report of one patient apart into five parts. Copy the report's own words wherever they \
fit; add nothing, and leave empty what it does not tell.
- history: who the patient is, complaints, past history, imaging and operative or gross findings: \
all that was known before the microscope.
- microscopy: what sections stained in the ordinary way show, as description. Without any further \
stain or molecular result.
- differential: the diagnoses that the report weighs against the final one.
- tests: every further examination with its result (immunohistochemistry, special stains, \
molecular and other tests), one entry each: name, spelled as in the report; result, as in the \
report; kind: ask, examine, test, image or procedure.
- diagnosis: the final diagnosis alone; empty if the report reaches none.
History, microscopy and results are what a doctor reads before the diagnosis: none of them may \
name it."""


class ExtractSettings(StepSettings):
    """What a report must hold to become a case."""

    tests: int = Field(1, ge=0, description="a report with fewer further examinations is dropped")


class Examined(ClosedModel):
    name: str = Field(min_length=1)
    result: str = Field(min_length=1)
    kind: Kind


class ReportParts(ClosedModel):
    """The answer's shape."""

    history: str
    microscopy: str
    differential: list[str]
    tests: list[Examined]
    diagnosis: str


# What the schema allows, in characters: of the report for one entry, and of the entries' texts.
_LEAST, _LONGEST_NAME, _LONGEST_RESULT = 4, 150, 600
_TEST_TOKENS = 20  # of the shortest entry
_MOST_DIFFERENTIALS = 20
# Tokens of the answer for each differential: a weak model repeats one of them to the end of the
# list, and then half of its answer must be left for the tests and the diagnosis.
_DIFFERENTIAL_TOKENS = 80


async def apply(case: Case, aids: Aids) -> Outcome:
    report = case.truth.record
    if not report.strip():
        return Drop("there is no report")
    max_tokens = aids.settings.max_tokens
    asked = request("extract-case", VERSION, TASK, [("report", report)], max_tokens)
    sizes = {
        "differential": (0, min(_MOST_DIFFERENTIALS, max(1, max_tokens // _DIFFERENTIAL_TOKENS))),
        "differential[]": (1, _LONGEST_NAME),
        "tests": (0, most_entries(report, _LEAST, max_tokens, _TEST_TOKENS)),
        "name": (1, _LONGEST_NAME),
        "result": (1, _LONGEST_RESULT),
    }
    parts = await ask(aids.model, asked, ReportParts, lambda parts: _problem(parts, report), sizes)
    if not parts.diagnosis.strip():
        return Drop("no final diagnosis")
    if not parts.history.strip() and not parts.microscopy.strip():
        return Drop("neither history nor microscopy")
    if len(parts.tests) < aids.settings.tests:
        return Drop("too few further examinations", f"{len(parts.tests)} of {aids.settings.tests}")
    return Kept(_case(case, parts))


def _problem(parts: ReportParts, report: str) -> str | None:
    names = [test.name.strip() for test in parts.tests]
    if len({normalise(name) for name in names}) < len(names):
        return "a test stands twice; give one entry for each, with all its results"
    form = normalise(report).replace(" ", "")
    if invented := next(
        (name for name in names if normalise(name).replace(" ", "") not in form), None
    ):
        return f"the report names no test '{invented}'; spell names as the report does"
    if parts.diagnosis.strip() and not named([parts.diagnosis], report):
        return "the report names no such diagnosis; spell it as the report does, or leave it empty"
    shown = {"history": parts.history, "microscopy": parts.microscopy}
    shown |= {f"result of {test.name}": test.result for test in parts.tests}
    telling = [part for part, text in shown.items() if named([parts.diagnosis], text)]
    return f"the {telling[0]} names the diagnosis" if telling else None


def _case(report: Case, parts: ReportParts) -> Case:
    colon = "：" if ideographic(parts.history + parts.microscopy) else ": "
    tests = [
        Fact(
            f"t{number}",
            test.name.strip(),
            f"{test.name.strip()}{colon}{test.result.strip()}",
            test.kind,
        )
        for number, test in enumerate(parts.tests, start=1)
    ]
    own, name = report.truth, parts.diagnosis.strip()
    if own.diagnosis and normalise(name) not in map(normalise, (own.diagnosis, *own.aliases)):
        own = replace(own, codes=(), aliases=(), references=(), graphs=())  # of another disease
    truth = replace(
        opened(own, [name]),
        differentials=tuple(
            dict.fromkeys(name.strip() for name in parts.differential if name.strip())
        ),
        facts=tuple(tests),
    )
    presentation = "\n".join(
        part for text in (parts.history, parts.microscopy) if (part := text.strip())
    )
    return replace(
        report, presentation=presentation, truth=truth, question="", options=(), given=()
    )


step = PrepareStep(
    "a raw report into history, microscopy, differential, tests, diagnosis (ES-11)",
    VERSION,
    apply,
    ExtractSettings,
    keeps_items=False,
    from_reports=True,
)
