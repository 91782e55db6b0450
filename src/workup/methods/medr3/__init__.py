"""Med-R³: reinforcement in three stages, of reasoning, then retrieval, then both (MR-8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from workup.core.errors import UserError
from workup.core.ports import Environment, Teaching
from workup.core.shapes import FrozenModel, checked
from workup.core.stages import GrpoStage, Method, SftStage, Stage
from workup.environments.reasoning import reasoning_of
from workup.methods.base.encoders import AUTO, Embed, EncoderName, embedder, encoder_notes, trigrams
from workup.methods.base.outcome import Marking, Partly
from workup.methods.base.printed import with_reward
from workup.methods.medr3.graphs import Identity, LongestOf
from workup.methods.medr3.progressive import STAGES, Component, Reads, check, progressive
from workup.rl.credit import Normalise, zscore

SIX_TURNS: Mapping[str, Any] = {"name": "reasoning", "max_turns": 6}
PRINTED: Mapping[str, Any] = {
    "batch": 256,
    "group": 16,
    "lr": 1e-6,
    "steps": 41,
    "concurrency": 1024,
    "environment": {"passages": 5},
    "reward": {"least": 3, "partly": 0.5, "marking": "printed", "normalise": "group_std"},
}
"""What Med-R³ prints for its training (Eqs. 3 and 8, experimental setup).

`steps` are those of one stage: an epoch of 10,521 questions in batches of 256. A rollout batch is
64 questions with 16 rollouts each.
"""


class ReasoningSettings(FrozenModel):
    """The settings of Med-R³ and its baselines; the README gives the reasons for the defaults."""

    least: int = Field(
        3,
        ge=1,
        description="θ: searches from which their number pays (Eq. 8), in stages that pay for it",
    )
    partly: float = Field(
        0.5, ge=0, le=1, description="what a partly right answer pays; 0 makes it a wrong one"
    )
    marking: Marking = Field(
        "strict",
        description=(
            "which partly right answers pay: strict, those that assert what they name and name no "
            "more than 1 / partly diseases; printed, all"
        ),
    )
    normalise: Normalise = Field(
        "group_std", description="how returns become advantages; group_std is GRPO as printed"
    )


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


class Settings(ReasoningSettings):
    """What can be set; the README beside this file says why the defaults are what they are."""

    longest: LongestOf = Field(
        "shorter",
        description="K: the shorter of the two longest paths (as printed), or the reference's",
    )
    identity: Identity = Field(
        "entities",
        description="by what a path is known: its entities alone, or its relations too (relations)",
    )
    encoder: EncoderName = Field(
        AUTO,
        validate_default=True,
        description="semantic likeness: a sentence-transformers model, trigrams or auto",
    )
    # `reward.recipe=3`, a single stage, is read as a number.
    recipe: Annotated[
        str,
        BeforeValidator(lambda typed: str(typed) if type(typed) is int else typed),
        checked(stages_of),
    ] = Field(
        "1>2>3", description="stages in order; 1&2&3 merges them, 2>3 leaves one out, 2>1>3 swaps"
    )
    without: tuple[Component, ...] = Field(
        (), description="components of the reward that are left out, as [breadth,searches]"
    )


def components_of(settings: Settings) -> dict[str, list[Component]]:
    """Each stage of the recipe with the components of its reward: all in [0, 1], they add up.

    Raises UserError for a stage that is left without any, and for a name in `without` that no stage
    of the recipe has.
    """
    printed = {
        "stage " + "&".join(map(str, merged)): [name for n in merged for name in STAGES[n]]
        for merged in stages_of(settings.recipe)
    }
    had = {name for names in printed.values() for name in names}
    if unknown := [name for name in settings.without if name not in had]:
        raise UserError(
            f"reward.without: no stage of reward.recipe={settings.recipe} has {', '.join(unknown)}"
        )
    left = {
        stage: [name for name in dict.fromkeys(names) if name not in settings.without]
        for stage, names in printed.items()
    }
    if empty := [stage for stage, names in left.items() if not names]:
        raise UserError(
            f"{empty[0]} has no component left to pay: take one out of reward.without "
            f"({', '.join(dict.fromkeys(printed[empty[0]]))})"
        )
    return left


def stages(settings: Settings, environment: Environment) -> Sequence[Stage]:
    """The warm start, then the stages of the recipe."""
    embed = embedder(settings.encoder)
    return warm_then_grpo(
        settings,
        environment,
        components_of(settings),
        embed,
        settings.longest,
        settings.identity,
        left_out=settings.without,
    )


def warm_then_grpo(
    settings: ReasoningSettings,
    environment: Environment,
    rewards: Mapping[str, Sequence[Component]],
    embed: Embed = trigrams,
    longest: LongestOf = "shorter",
    identity: Identity = "entities",
    *,
    left_out: Sequence[Component] = (),
) -> Sequence[Stage]:
    """A warm start, then GRPO in stages: the name of each, and the components of its reward.

    `embed`, `longest` and `identity` decide how reasoning is compared with references, where it is.
    `left_out` are the components that `reward.without` names.
    """
    world = reasoning_of(environment)
    diagnoses, library = world.record.diagnoses, world.library
    partly = Partly(settings.partly, settings.marking, diagnoses, library)
    reads = Reads(embed, longest, settings.least, partly, identity)
    made: list[Stage] = [SftStage("warm start", Teaching().demonstrate)]
    for name, components in rewards.items():
        reward, settle = progressive(world, components, reads)
        credit, fits = zscore(settings.normalise), check(world, components, left_out)
        made.append(GrpoStage(name, reward, credit, fits=fits, settle=settle))
    return made


method = Method(
    paper=(
        "Med-R3: Enhancing Medical Retrieval-Augmented Reasoning of LLMs via Progressive "
        "Reinforcement Learning (2025)"
    ),
    summary=(
        "one thought with searches; three stages: paid for reasoning, for retrieval, for both"
    ),
    settings=Settings,
    environment=SIX_TURNS,
    stages=stages,
    printed=with_reward(PRINTED, recipe="1>2>3", longest="shorter"),
    notes=lambda s: (
        encoder_notes("likeness to references", s.encoder) if "semantic" not in s.without else ()
    ),
)
