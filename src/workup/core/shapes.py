"""The base classes of what somebody types, a file holds or a model answers.

No field is unknown, and every number is finite: no JSON holds another, nor does config.yaml.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

MOST = 1_000_000_000
"""The largest number of anything that is counted one after the other; a larger one is a slip."""

MOST_HELD = 1_000_000
"""The largest number of things that a step or a case holds in memory at once."""


class ClosedModel(BaseModel):
    """A model that refuses fields it does not have, and numbers that are not finite."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class FrozenModel(ClosedModel):
    """A model that refuses unknown fields, and stays as it was made."""

    model_config = ConfigDict(frozen=True)


def checked(check: Callable[[Any], object]) -> AfterValidator:
    """A pydantic validator: a value for which `check` raises ValueError or UserError is refused.

    Example: `recipe: Annotated[str, checked(stages_of)]` refuses a recipe that `stages_of` cannot
    read, and leaves any other as it was typed.
    """

    def kept(value: Any) -> Any:
        check(value)
        return value

    return AfterValidator(kept)


def first_problem(error: ValidationError) -> tuple[str, str]:
    """The dotted name of the first field that does not fit, and what pydantic says of it.

    The name is empty where the whole does not fit.
    """
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return ".".join(map(str, first["loc"])), first["msg"]


def part_at(model: type[BaseModel], where: Sequence[str]) -> type[BaseModel] | None:
    """The model of the part `where`, or of the entries of a mapping there; None for a plain value.

    Example: of a run's settings and ("sft",) it is that of the warm start's, and None of ("lr",).
    """
    inner = model
    for name in where:
        # A part that is no field is a key of a mapping, as NAME in ("endpoints", "NAME").
        if name in inner.model_fields:
            annotation = inner.model_fields[name].annotation
            options = (annotation, *getattr(annotation, "__args__", ()))
            models = [each for each in options if isinstance(each, type)]
            found = next((each for each in models if issubclass(each, BaseModel)), None)
            if found is None:
                return None
            inner = found
    return inner


def siblings(model: type[BaseModel], where: Sequence[str]) -> list[str]:
    """The dotted names of all fields of the part in which the field `where` stands.

    Example: of a run's settings and ("sft", "lr") they are "sft.lr", "sft.steps" and so on.
    """
    inner = part_at(model, where[:-1])
    return [".".join((*where[:-1], name)) for name in (inner or model).model_fields]
