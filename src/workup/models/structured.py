"""Answers of a fixed shape from any model: a JSON Schema is sent, and the answer is checked."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, lru_cache
from itertools import count
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from workup.core.episode import Message
from workup.core.errors import RolloutError, UserError
from workup.core.ports import Model, Request
from workup.core.shapes import first_problem

Answer = TypeVar("Answer", bound=BaseModel)
Sizes = Mapping[str, tuple[int, int]]
"""Field of an answer → the least and the most that this request allows.

For a list it is the number of entries, for a text that of characters, for a number its value.
`name[]` stands for each entry of the list `name`.
"""

ATTEMPTS = 3
ANEW = 1_000_003  # between the samples of one request that is asked anew; more than runs draw
LONGEST = (
    200_000  # characters of an answer that are looked at: parsing stays bounded whatever comes back
)
SHOWN = 4_000  # characters of a wrong answer that are shown to the model that gave it
BEGUN = 200  # the same of one that was cut off: a weak model that repeats itself would copy it


async def ask(
    model: Model,
    request: Request,
    shape: type[Answer],
    check: Callable[[Answer], str | None] = lambda answer: None,
    sizes: Sizes | None = None,
) -> Answer:
    """The model's answer as `shape`.

    `sizes` narrow the schema that is sent, so that a weak model that is held to it cannot go on
    until its tokens are spent. They are no check of their own: what an answer must keep, `shape`
    and `check` say.

    `check` says in one sentence what is wrong with a well-formed answer, or None. A wrong answer is
    shown to the model with the reason and the schema (some endpoints accept a schema and never show
    it to their model), at most twice; of an answer that was cut off only the beginning is shown.
    Raises RolloutError when it stays wrong.

    Where a cache gave all of these answers, they failed once before. Then the model is asked anew,
    with the next `sample`: a run that is resumed may find it repaired. A replay, which may not ask
    it, fails as the run did.
    """
    request = replace(request, schema=sized(shape, tuple((sizes or {}).items())))
    problem = ""
    for again in count():
        drawn = replace(request, sample=request.sample + again * ANEW)
        try:
            answer, problem, fresh = await _attempts(model, drawn, shape, check)
        except UserError:
            if not again or not getattr(model, "replay", False):
                raise
            break  # a replay has no further answers
        if answer is not None:
            return answer
        if fresh:
            break
    raise RolloutError(
        f"{request.role}: no usable answer from {model.name} after {ATTEMPTS} attempts: {problem}"
    )


async def _attempts(
    model: Model, first: Request, shape: type[Answer], check: Callable[[Answer], str | None]
) -> tuple[Answer | None, str, bool]:
    """The answer or what is wrong with the last one, and whether any came from no cache."""
    request, problem, fresh = first, "", False
    for _ in range(ATTEMPTS):
        reply = await model.complete(request)
        fresh = fresh or not reply.cached
        answer, problem = parse(reply.text, shape)
        problem = problem or (check(answer) or "" if answer is not None else "")
        if answer is not None and not problem:
            return answer, "", fresh
        if reply.truncated:
            problem = "it was cut off before its end; be shorter"
        repair = (
            f"That is not usable: {problem}. Answer again with nothing but one JSON object of "
            f"this JSON Schema:\n{first.schema}"
        )
        request = replace(
            first,
            messages=(
                *first.messages,
                Message("assistant", reply.text[: BEGUN if reply.truncated else SHOWN]),
                Message("user", repair),
            ),
        )
    return None, problem, fresh


def in_words(schema: str) -> str:
    """The text for a prompt of a model that gets the schema nowhere else."""
    return f"\n\nYour whole answer is one JSON object of this JSON Schema:\n{schema}"


@cache  # building it takes longer than looking up a cached answer
def schema_of(shape: type[BaseModel]) -> str:
    """The JSON Schema of `shape` as JSON text, without what the docstrings of its classes say.

    A small model copies such a description into its answer: "The answer's shape." became the
    question of 23 exam questions of 24.

    Its fields stand as they are declared: a model that is held to the schema writes them in that
    order, and a reason has to come before what it is the reason of.
    """
    schema = shape.model_json_schema()
    for each in (schema, *schema.get("$defs", {}).values()):
        each.pop("description", None)
    return json.dumps(schema, ensure_ascii=False)


@lru_cache(maxsize=1024)
def sized(shape: type[BaseModel], sizes: tuple[tuple[str, tuple[int, int]], ...]) -> str:
    """`schema_of(shape)` with the bounds of `sizes`, the items of a `Sizes`.

    Raises KeyError for a name that is no field, or whose type has no size.
    """
    schema = json.loads(schema_of(shape))
    parts = (schema, *schema.get("$defs", {}).values())
    fields = {name: field for part in parts for name, field in part.get("properties", {}).items()}
    for name, (least, most) in sizes:
        found = fields[name.removesuffix("[]")]
        found = found["items"] if name.endswith("[]") else found
        lower, upper = KEYWORDS[found["type"]]
        found |= {lower: least, upper: most}
    return json.dumps(schema, ensure_ascii=False)


KEYWORDS: Mapping[str, tuple[str, str]] = {
    "array": ("minItems", "maxItems"),
    "string": ("minLength", "maxLength"),
    "integer": ("minimum", "maximum"),
    "number": ("minimum", "maximum"),
}
"""What JSON Schema calls the bounds of each type."""


def one_each(lists: str, count: int, number: str = "number") -> Sizes:
    """One entry for each of `count` numbered things, `number` from 1 to `count`."""
    return {lists: (count, count), number: (1, max(1, count))}


def some_of(lists: str, count: int, least: int = 0, most: int | None = None) -> Sizes:
    """A list of the numbers of some of `count` numbered things, at most `most` of them."""
    longest = count if most is None else min(most, count)
    return {lists: (least, longest), f"{lists}[]": (1, max(1, count))}


def parse(text: str, shape: type[Answer]) -> tuple[Answer | None, str]:
    """The JSON object in `text` as `shape`; or None and what is wrong, in one line.

    Prose and code fences around the object are accepted, and a thought before it. The object is
    from the first brace to the last; if that is none, from the first brace after `</think>`. A text
    that begins with a thought has no answer before the thought is over: it may hold a draft.
    """
    text = text[:LONGEST]
    _, over, rest = text.partition("</think>")
    if text.lstrip().startswith("<think>"):
        return _parse(rest, shape) if over else (None, "its thought is not over")
    answer, problem = _parse(text, shape)
    return _parse(rest, shape) if over and answer is None else (answer, problem)


def _parse(text: str, shape: type[Answer]) -> tuple[Answer | None, str]:
    start, end = text.find("{"), text.rfind("}")
    if start < 0 or end < start:
        return None, "it holds no JSON object"
    try:
        return shape.model_validate_json(text[start : end + 1]), ""
    except ValidationError as error:
        where, problem = first_problem(error)
        return None, f"{f'field {where[:200]}: ' if where else ''}{problem[:200]}"
