"""Med-R³: reinforcement in three stages, of reasoning, then retrieval, then both (MR-8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from workup.methods.medr3.progressive import STAGES, Component
from workup.methods.medr3.shared import PRINTED, GraphSettings, ReasoningMethod


def stages_of(recipe: str) -> tuple[tuple[int, ...], ...]:
    """The stages that a recipe names, in order; merged ones stand together.

    "1>2>3" is ((1,), (2,), (3,)), "1&2&3" is ((1, 2, 3),), "2>3" is ((2,), (3,)). Raises ValueError
    for anything else, and for a stage that stands twice.
    """
    found = tuple(
        tuple(int(each) if each in {"1", "2", "3"} else 0 for each in part.split("&"))
        for part in recipe.replace(" ", "").split(">")
    )
    named = [number for part in found for number in part]
    if 0 in named or len(set(named)) < len(named):
        raise ValueError(
            f"'{recipe}' is no recipe: write the stages 1, 2 and 3 in order, as in 1>2>3; 1&2>3 "
            "merges two, 2>3 leaves one out"
        )
    return found


def _known(recipe: str) -> str:
    stages_of(recipe)
    return recipe


def _typed(recipe: object) -> object:
    """The recipe as text: reward.recipe=3, a single stage, is read as a number."""
    return str(recipe) if type(recipe) is int else recipe


class Settings(GraphSettings):
    """What can be set; the README beside this file says why the defaults are what they are."""

    recipe: Annotated[str, BeforeValidator(_typed), AfterValidator(_known)] = Field(
        "1>2>3", description="stages in order; 1&2&3 merges them, 2>3 leaves one out, 2>1>3 swaps"
    )
    without: tuple[Component, ...] = Field(
        (), description="components of the reward that are left out, as [breadth,searches]"
    )


class MedR3(ReasoningMethod):
    """Each stage is paid the sum of its components, all in [0, 1]."""

    paper = (
        "Med-R3: Enhancing Medical Retrieval-Augmented Reasoning of LLMs via Progressive "
        "Reinforcement Learning (2025)"
    )
    summary = "one thought with searches; three stages: paid for reasoning, for retrieval, for both"
    settings: type[Settings] = Settings
    printed: Mapping[str, Any] = {
        **PRINTED,
        "reward": {**PRINTED["reward"], "recipe": "1>2>3", "longest": "shorter"},
    }

    def rewards(self, settings: Settings) -> Mapping[str, Sequence[Component]]:
        return {
            "stage " + "&".join(map(str, merged)): [
                name
                for name in dict.fromkeys(name for number in merged for name in STAGES[number])
                if name not in settings.without
            ]
            for merged in stages_of(settings.recipe)
        }


method = MedR3()
