"""A step of preparation: one case in, the case changed or dropped out, with the model's help."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import Field, JsonValue

from workup.core.case import Case, Source
from workup.core.errors import UserError
from workup.core.ports import Model, Reply, Request
from workup.core.shapes import FrozenModel

EXACT = "exact"


class StepSettings(FrozenModel):
    """The settings of every step; a step with settings of its own extends this class."""

    max_tokens: int = Field(
        4096, ge=1, description="tokens of one reply; models that think aloud need more"
    )
    max_failed: float = Field(
        0.2, ge=0, le=1, description="share of failed cases that stops the work"
    )
    patience: int = Field(
        20, ge=1, description="cases to finish before the share of failed ones may stop the work"
    )

    @property
    def recipe(self) -> dict[str, Any]:
        """The settings that decide the result: a file is made with one recipe."""
        return self.model_dump(mode="json", exclude={"max_failed", "patience"})


class GradedSettings(StepSettings):
    """The settings of the steps that draw answers from one model and let another grade them."""

    judge: str = Field(
        "",
        description=(
            "the model that grades, endpoint:NAME, a folder or a hub id; by default the same one"
        ),
    )


@dataclass(frozen=True, slots=True)
class Kept:
    """The changed case. `detail` goes into its provenance."""

    case: Case
    detail: JsonValue = None


@dataclass(frozen=True, slots=True)
class Drop:
    """The case goes no further.

    `reason` is one of few, for counting; `detail` belongs to this case alone.
    """

    reason: str
    detail: str = ""


Outcome = Kept | Drop


@dataclass(frozen=True)
class Aids:
    """What a step works with; models are opened when they are first needed.

    `spec` is the step's model as typed.
    """

    spec: str
    settings: Any
    source: Source
    open: Callable[[str], Model]

    @cached_property
    def model(self) -> Model:
        return self.open(self.spec) if self.spec else _Nobody("none")

    @cached_property
    def judge(self) -> Model:
        """The model that grades, by default the step's own; with "exact" one that refuses."""
        spec = getattr(self.settings, "judge", "")
        if spec == EXACT:
            return _Nobody(EXACT)
        return self.open(spec) if spec else self.model

    @property
    def names(self) -> str:
        """Who took part, for the provenance."""
        if self.spec == EXACT:
            return EXACT
        judged = "" if self.judge is self.model else f", judged by {self.judge.name}"
        return self.model.name + judged


class _Nobody:
    """Stands in for a model that is not named: a step may not need it. Asking it raises."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def complete(self, request: Request) -> Reply:
        raise UserError(
            "this step asks a model: add --model endpoint:NAME, a model folder or a hub id"
        )


@dataclass(frozen=True)
class PrepareStep:
    """One way to prepare a case.

    `version` names its prompts: whoever edits one gives it a new version. `apply` raises
    RolloutError when the model fails. `exact` does the same without a model, raising UserError
    where it cannot. `keeps_items` says that the source's list of items and diagnoses holds for the
    result too. `from_reports` says that it reads raw reports, of which only `truth.record` is
    known.
    """

    summary: str
    version: str
    apply: Callable[[Case, Aids], Coroutine[Any, Any, Outcome]]
    settings: type[StepSettings] = StepSettings
    exact: Callable[[Case, Source], Outcome] | None = None
    keeps_items: bool = True
    from_reports: bool = False
