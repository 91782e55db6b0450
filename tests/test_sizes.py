"""Every list that a model is asked for has an end.

It has at most as many entries as the request needs, so that a weak model that is held to the schema
does not go on until its tokens are spent.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any

import jsonschema
import pytest
from preparing import CHINESE, ENGLISH
from pydantic import BaseModel, Field
from test_grammar import SHAPES

from workup.core.case import Case, Fact, Item, Source, Truth
from workup.core.errors import RolloutError
from workup.core.ports import Model, Reply, Request
from workup.doctors.strategies import uot
from workup.environments.base.interpreter import Interpreter
from workup.environments.base.patients import ModelPatient, check
from workup.environments.consultation import Consultation
from workup.environments.questioning import Questioning
from workup.models.structured import schema_of, sized
from workup.prepare import criticality, extract_case, facts, partial, rewrite
from workup.prepare.steps import Aids
from workup.roles.judges.entailment import EntailmentJudge
from workup.roles.judges.examinations import ExaminationJudge
from workup.roles.judges.questions import Ordered, RankingQuestion, Stated
from workup.roles.judges.ranking import RankingJudge
from workup.roles.judges.statements import ModelStatements

TELLING = tuple(
    Fact(f"f{n}", name, f"There is {name}.")
    for n, name in enumerate(("fever", "cough", "rust in the sputum", "chest pain", "crackles"))
)
CASE = Case(
    "1",
    "A man of 40 coughs.",
    Truth("pneumonia", facts=TELLING[1:], record="A man of 40 coughs. " * 4),
    question="What is it?",
    given=TELLING[:1],
)
COUNT = len(TELLING)
SOURCE = Source("mine", [CASE], [CASE], items=(), diagnoses=())
RECORD = Consultation((Item("fever", "Fever?", "No."),), (), 5)
WORLD = Questioning(RECORD, max_turns=5)


class Recording:
    """A model that keeps what it is asked, and gives up."""

    name = "recording"

    def __init__(self) -> None:
        self.asked: list[Request] = []

    async def complete(self, request: Request) -> Reply:
        self.asked.append(request)
        raise RolloutError("nobody is here")


Ask = Callable[[Model], Coroutine[Any, Any, object]]


def step(module: Any, case: Case, tokens: int = 0) -> Ask:
    def ask(model: Model) -> Coroutine[Any, Any, object]:
        own = module.step.settings(**({"max_tokens": tokens} if tokens else {}))
        done: Coroutine[Any, Any, object] = module.apply(
            case, Aids("m", own, SOURCE, lambda _: model)
        )
        return done

    return ask


def doctor(model: Model) -> uot.Uncertain:
    return uot.Uncertain(model, WORLD, uot.Settings(candidates=3, questions=2))


RANKED = RankingQuestion(("pneumonia", "asthma", "flu"), CASE)
ASKERS: dict[str, tuple[Ask, Mapping[str, tuple[int, int]]]] = {
    "ranking": (lambda m: RankingJudge(m).judge(RANKED), {"candidates": (3, 3)}),
    "entailment": (
        lambda m: EntailmentJudge(m).judge(Stated(TELLING, "He has a fever.")),
        {"facts": (COUNT, COUNT)},
    ),
    "examinations": (
        lambda m: ExaminationJudge(m).judge(Ordered(("CD20", "CD3"), ("a", "b"))),
        {"examinations": (2, 2)},
    ),
    "statements": (
        lambda m: ModelStatements(m, most=7).read("Fever suggests flu.", ["one", "two"]),
        {"statements": (0, 7)},
    ),
    "patient": (
        lambda m: ModelPatient(RECORD, m).reply(CASE, (), "Any fever?"),
        {"facts": (0, COUNT)},
    ),
    "checker": (
        lambda m: check(m, [fact.text for fact in TELLING], "Any fever?", "Yes."),
        {"stated": (0, COUNT)},
    ),
    "interpreter": (
        lambda m: Interpreter(m).chosen("Any fever?", ["fever", "cough"]),
        {"numbers": (0, 2)},
    ),
    "criticality": (step(criticality, CASE), {"weights": (COUNT - 1, COUNT - 1)}),
    "partial": (step(partial, CASE), {"complaint": (1, COUNT - 1)}),
    "facts": (step(facts, ENGLISH), {"findings": (0, 9)}),
    "facts with few tokens": (step(facts, ENGLISH, 100), {"findings": (0, 4)}),
    "extract": (
        step(extract_case, CASE, 200),
        {"differential": (0, 2), "tests": (0, 10)},
    ),
    "rewrite": (step(rewrite, CASE), {"answers": (0, 1), "findings": (0, COUNT)}),
    "rewrite without findings": (step(rewrite, CHINESE), {"answers": (0, 1), "findings": (0, 0)}),
    "weigh": (lambda m: doctor(m).weigh(CASE, []), {"candidates": (1, 3)}),
    "propose": (
        lambda m: doctor(m).propose(("a", "b", "c"), [], set()),
        {"questions": (1, 2), "yes": (3, 3)},
    ),
}


def request_of(ask: Ask) -> Request:
    model = Recording()
    with pytest.raises(RolloutError):
        asyncio.run(ask(model))  # type: ignore[arg-type]
    (request,) = model.asked
    return request


def fields(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    """Every field's name and schema, and whether it is part of a list's entry."""
    entries = {
        field["items"].get("$ref", "")
        for part in (schema, *schema.get("$defs", {}).values())
        for field in part.get("properties", {}).values()
        if field.get("type") == "array"
    }
    for name, field in schema["properties"].items():
        yield name, field, False
    for key, part in schema.get("$defs", {}).items():
        for name, field in part.get("properties", {}).items():
            yield name, field, f"#/$defs/{key}" in entries


@pytest.mark.parametrize("name", ASKERS)
def test_lists_and_what_is_in_them_have_an_end(name: str) -> None:
    ask, expected = ASKERS[name]
    request = request_of(ask)
    schema = json.loads(request.schema)
    jsonschema.Draft202012Validator.check_schema(schema)
    found = {}
    for field, told, within in fields(schema):
        if told.get("type") == "array":
            found[field] = (told.get("minItems", 0), told["maxItems"])
            told, within = told["items"], True
        if within and told.get("type") == "string" and "enum" not in told:
            assert told["maxLength"] <= 1_000, field
        if within and told.get("type") in ("integer", "number") and "enum" not in told:
            assert told["maximum"] - told["minimum"] <= 100, field
    assert found == expected


def test_every_shape_with_a_list_is_among_them() -> None:
    """A new one has to be sized by its request."""
    asked = {json.loads(request_of(ask).schema)["title"] for ask, _ in ASKERS.values()}
    fields_asked = {
        frozenset(json.loads(request_of(ask).schema)["properties"]) for ask, _ in ASKERS.values()
    }
    # Lines of files, which no model answers.
    files = {"_Entity", "_Synonyms", "Item", "StatisticLine", "_Marker", "_Rates", "_Tumour"}
    for shape in SHAPES:
        whole = json.loads(schema_of(shape))
        listed = any(field.get("type") == "array" for _, field, _ in fields(whole))
        title = whole["title"]
        if listed and title not in files:
            known = title in asked and frozenset(whole["properties"]) in fields_asked
            part = any(
                title in json.loads(request_of(ask).schema).get("$defs", {})
                for ask, _ in ASKERS.values()
            )
            assert known or part, shape


class _Entry(BaseModel):
    number: int
    text: str


class _Shape(BaseModel):
    entries: list[_Entry]
    codes: list[str] = Field(max_length=9)
    share: float


def test_sizes_are_put_where_they_belong() -> None:
    sizes = {
        "entries": (2, 2), "number": (1, 2), "text": (0, 5), "codes": (0, 1), "codes[]": (3, 4),
        "share": (0, 1),
    }  # fmt: skip
    made = json.loads(sized(_Shape, tuple(sizes.items())))
    entry = {"number": 1, "text": "abc"}
    fits = {"entries": [entry, {**entry, "number": 2}], "codes": ["icd"], "share": 0.5}
    jsonschema.validate(fits, made)
    for off in (
        {"entries": [entry]},
        {"entries": [entry] * 3},
        {"entries": [entry, {**entry, "number": 3}]},
        {"entries": [entry, {**entry, "text": "abcdef"}]},
        {"codes": ["icd", "icd"]},
        {"codes": ["ic"]},
        {"share": 2},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**fits, **off}, made)
    assert sized(_Shape, ()) == schema_of(_Shape)
    with pytest.raises(KeyError):
        sized(_Shape, (("nothing", (0, 1)),))
