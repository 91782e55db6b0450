"""AgentClinic: examination stations with an objective, a patient, findings and test results.

`agentclinic:FILE` reads both layouts of the release and tells them apart by their keys: stations
(`agentclinic_medqa*.jsonl`) and picture questions (`agentclinic_nejm*.jsonl`, without their
pictures). With `#all` every case is held out. A file with "mimic" in its name is restricted.

A station shows demographics, chief complaint and the examiner's objective. What the patient knows
is history; findings and results are hidden, with their path as the item. Values that say only that
nothing was recorded are left out and counted. A picture question shows the first sentence of its
vignette, with the options; the other sentences are hidden. The notes count the questions that came
with a picture.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from workup.cases.files import Split, checked
from workup.cases.findings import kind_of, parted, sentences
from workup.cases.lines import CaseLines
from workup.cases.rows import Filled, RowErrors, counted, sound
from workup.cases.tables import RESTRICTED
from workup.core.case import Case, Fact, Kind, Source, Truth
from workup.core.errors import CaseError, UserError
from workup.core.leaks import WITHHELD, Mask, other_names

EXAMPLE = "agentclinic:agentclinic_medqa.jsonl"
FIELDS = ("OSCE_Examination Objective_for_Doctor", "image_url patient_info answers")

_HISTORY = {"History": "History of present illness", "Secondary_Symptoms": "Other symptoms"}
# names of levels that are no part of a finding's name
_IDLE_WORDS = (
    "finding findings result results comment comments level value report description interpretation"
)
_IDLE = frozenset(_IDLE_WORDS.split())
# headings whose text can stand alone; other text needs the name of what was asked or examined
_TOLD = frozenset(
    {"History of present illness", "Other symptoms", "Review of systems", "Social history"}
)
# placeholders for a missing text
_NOTHING = re.compile(
    r"(?:n/?a|unknown|pending"
    r"|no (?:\w+ ){1,4}(?:available|documented|given|mentioned|provided|recorded|specified)|"
    r"(?:(?:no )?information |details? |data )?(?:was |were |is )?not "
    r"(?:applicable|available|documented|given|mentioned|performed|provided|recorded|specified|tested)\b[^.;]{0,40})\.?",
    re.I,
)
_TITLED = re.compile(r"[A-Z][a-z]{2,}")


class _Symptoms(BaseModel):
    primary: Filled = Field(alias="Primary_Symptom")
    secondary: Any = Field(None, alias="Secondary_Symptoms")


class _PatientActor(BaseModel, extra="allow"):
    demographics: Any = Field(alias="Demographics")
    symptoms: _Symptoms = Field(alias="Symptoms")


class _Station(BaseModel):
    objective: str = Field(alias="Objective_for_Doctor")
    patient: _PatientActor = Field(alias="Patient_Actor")
    examination: Any = Field(None, alias="Physical_Examination_Findings")
    tests: Any = Field(None, alias="Test_Results")
    diagnoses: Annotated[
        list[Filled],
        BeforeValidator(lambda value: value if isinstance(value, list) else [value]),
        Field(min_length=1),
    ] = Field(alias="Correct_Diagnosis")


class _AnswerOption(BaseModel):
    text: Filled
    correct: bool


class _Question(BaseModel):
    question: Filled
    answers: list[_AnswerOption]
    patient_info: str = ""
    physical_exams: str = ""
    image_url: str = ""

    @model_validator(mode="after")
    def _one_right(self) -> _Question:
        if sum(answer.correct for answer in self.answers) != 1:
            raise ValueError("exactly one of 'answers' must be correct")
        return self


@dataclass(frozen=True, slots=True)
class _Read:
    """A case, and what was changed in its row.

    Names withheld, findings left out because nobody wrote any, a picture left out, demographics
    that are blank.
    """

    case: Case
    withheld: int
    unwritten: int = 0
    pictured: bool = False
    unknown: bool = False


def open(rest: str, split: Split, errors: RowErrors) -> Source:
    """Opens `FILE` or `FILE#all`. Raises UserError and CaseError (file, line, field)."""
    file = CaseLines.named("agentclinic", rest, split, "agentclinic_medqa.jsonl")
    counts: Counter[str] = Counter()
    # The official number of a scenario, by its offset, counts every row, also one that is no case.
    numbers: dict[int, int] = {}

    def read(row: dict[str, Any], line: int) -> _Read:
        return _read(row, file.path, errors.rows - 1, line)

    for line, found in file.read(errors, read, unique=True):
        if found.case.truth.facts:
            file.keep(line, found.case.id)
            numbers[line.offset] = errors.rows - 1
            counts.update(cases=1, leaking=int(bool(found.withheld)), withheld=found.withheld)
        counts.update(empty=not found.case.truth.facts, unwritten=found.unwritten)
        counts.update(pictured=found.pictured, unknown=found.unknown)
    if not counts["cases"]:
        raise errors.nothing(UserError(f"{file.path} has no case with findings."))
    restricted = "mimic" in file.path.name.lower()
    train, test = file.cases(lambda row, at: _read(row, file.path, numbers[at], None).case)
    return Source(
        f"agentclinic:{rest}",
        train,
        test,
        notes=_notes(counts, restricted),
        restricted=restricted,
        undivided=True,
    )


def _notes(counts: Counter[str], restricted: bool) -> tuple[str, ...]:
    return (
        *([RESTRICTED] if restricted else []),
        f"{counts['leaking']} of {counts['cases']} cases name their diagnosis in the record: "
        f"{counts['withheld']} places read '{WITHHELD}'. Paraphrases are not recognised.",
        *counted(
            counts,
            {
                "empty": "{} rows without findings skipped.",
                "unwritten": "{} findings left out that say only that nothing was recorded.",
                "pictured": "{} questions came with a picture, which is not loaded.",
                "unknown": "{} stations do not say who the patient is: their demographics are "
                "blank.",
            },
        ),
        "AgentClinic, MIT; its stations were written by a language model from MedQA questions, "
        "its picture questions are the NEJM's."
        + (" These stations were made from MIMIC-IV." if restricted else ""),
    )


def _read(row: dict[str, Any], path: Path, number: int, line: int | None) -> _Read:
    id = f"{path.stem.removeprefix('agentclinic_')}:{number}"
    if "OSCE_Examination" in row:
        station = checked(
            _Station, row["OSCE_Examination"], file=path, line=line, within="OSCE_Examination"
        )
        read = _station(station, id)
    elif "question" in row:
        read = _question(checked(_Question, row, file=path, line=line), id)
    else:
        raise CaseError(
            "has neither 'OSCE_Examination' (a station) nor 'question' (a picture question).",
            file=path,
            line=line,
        )
    sound(read.case, file=path, line=line)
    return read


def _station(station: _Station, id: str) -> _Read:
    """The case of a station; demographics, chief complaint and objective open the encounter.

    The facts that these state are given.
    """
    name, *others = station.diagnoses
    aliases = tuple(dict.fromkeys([*others, *other_names(name)]))
    mask = Mask([name, *aliases])
    person = "; ".join(text for _, text in _leaves(station.patient.demographics, ()))
    complaint = f"Chief complaint: {station.patient.symptoms.primary.rstrip('.')}."
    presentation = mask(f"Patient: {person}. {complaint}" if person else complaint)
    question = mask(station.objective.strip())
    found = list(_findings(station))
    kept = [finding for finding in found if not _NOTHING.fullmatch(finding[2])]
    facts: list[Fact] = []
    for number, (kind, item, text) in enumerate(kept, start=1):
        named = _capital(item.removeprefix("Physical examination, "))
        told = text if item in _TOLD else f"{named}: {text}"
        sentence = told if told[-1] in ".!?" else f"{told}."
        facts.append(Fact(f"f{number}", mask(item), mask(sentence), kind))
    given, hidden = parted(facts, f"{presentation} {question}")
    truth = Truth(
        name,
        aliases=aliases,
        facts=hidden,
        record="\n".join([presentation, *(fact.text for fact in facts)]),
    )
    return _Read(
        Case(id, presentation, truth, question=question, given=given),
        mask.found,
        len(found) - len(kept),
        unknown=not person,
    )


def _findings(station: _Station) -> Iterator[tuple[Kind, str, str]]:
    """Kind, item and sentence of everything the station holds, in its order."""
    patient = station.patient
    history = {"Secondary_Symptoms": patient.symptoms.secondary, **(patient.model_extra or {})}
    parts = (
        (Kind.HISTORY, "", history),
        (Kind.EXAMINATION, "Physical examination", station.examination),
    )
    for kind, above, part in (*parts, (Kind.LABORATORY, "", station.tests)):
        for path, text in _leaves(part, (above,) if above else ()):
            item = _readable(path) or "Test results"
            way = kind_of(item, kind) if kind is Kind.LABORATORY else kind
            said = sentences(text)
            # `sentences` drops list marks. A single sentence has none: "-2.8", "+" and "1. Apr."
            # are values.
            told = said if len(said) > 1 else [" ".join(text.split())]
            yield from ((way, item, sentence) for sentence in told)


def _leaves(value: object, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every text or number in a nest of objects and lists that is not blank, with its keys."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, str(key)))
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner, path)
    elif value is not None and str(value).strip():
        yield (
            path,
            {True: "Yes", False: "No"}.get(value, str(value))
            if isinstance(value, bool)
            else str(value),
        )


def _readable(path: Sequence[str]) -> str:
    """`Vital_Signs/Heart_Rate` as "Vital signs, heart rate".

    Empty levels ("Findings") are left out.
    """
    levels = [_HISTORY.get(key, " ".join(key.replace("_", " ").split())) for key in path]
    telling = [level for level in levels if level and level.lower() not in _IDLE] or levels[:1]
    text = _TITLED.sub(lambda word: word[0].lower(), ", ".join(telling))
    return _capital(text)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _question(row: _Question, id: str) -> _Read:
    """The case of a picture question.

    The vignette's first sentence opens the encounter; the rest is hidden; its last question is
    asked.
    """
    name = next(answer.text for answer in row.answers if answer.correct)
    mask = Mask([name])
    texts = [mask(sentence) for sentence in sentences(row.question)] or [""]
    asked = [sentence for sentence in texts[1:] if sentence.endswith("?")]
    facts = tuple(
        Fact(f"f{number}", "", text, kind_of(text, Kind.HISTORY))
        for number, text in enumerate((text for text in texts[1:] if text not in asked), start=1)
    )
    record = mask("\n".join([row.patient_info, row.physical_exams]).strip())
    truth = Truth(name, aliases=other_names(name), facts=facts, record=record)
    options = tuple(answer.text for answer in row.answers)
    return _Read(
        Case(id, texts[0], truth, " ".join(asked), options),
        mask.found,
        pictured=bool(row.image_url),
    )
