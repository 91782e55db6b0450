"""A run's settings: pydantic models filled from defaults, a YAML file and `key=value` words, with nearest-name hints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from workup.engines.trl_settings import EngineSettings
from workup.errors import UserError, unknown
from workup.models.config import Config, refuse_secrets
from workup.models.endpoint import ENDPOINT, EndpointSettings
from workup.models.tiny import TinySettings

T = TypeVar("T", bound=BaseModel)


class EvaluationSettings(BaseModel):
    """How doctors are evaluated."""

    model_config = ConfigDict(extra="forbid")

    cases: int = Field(400, ge=1, description="test cases, the first of the source's test split")
    samples: int = Field(1, ge=1, description="episodes per case; intervals are clustered by case")
    temperature: float = Field(1.0, ge=0, description="0 is greedy, which misreports tiny policies")
    avoid_repeats: bool = Field(False, description="draw again when an action repeats an earlier one")
    measures: list[str] = Field(
        default_factory=list, description="further measures: kg, doc_hit, bleu, rouge, actions, emb:MODEL"
    )
    anchors: bool = Field(True, description="play the random, greedy and full-information doctors where the source has a model")


class SupportSettings(BaseModel):
    """The language models in supporting roles."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    roles: dict[str, str] = Field(
        default_factory=dict, description="judge, simulator, patient, checker: exact, endpoint:NAME, a model folder or a hub id"
    )
    endpoints: dict[str, EndpointSettings] = Field(default_factory=dict, description="by name; usually from workup.yaml")
    budget: float | None = Field(None, ge=0, description="money for all calls of this run, in the currency of the prices")
    replay: bool = Field(False, description="answer from the cache alone; a call that is not in it fails")
    max_failed: float = Field(0.2, ge=0, le=1, description="share of failed episodes that stops the run")


class PolicySettings(SupportSettings):
    """What `workup evaluate` may be told."""

    policy: str
    cases: str
    seed: int = 0
    dtype: str = Field("float32", description="weights of a loaded policy: float32, bfloat16 or float16")
    environment: str | None = Field(None, description="consultation, questioning or library; as trained, or consultation")
    share: float | None = Field(None, ge=0, le=1, description="questioning: share of the facts told at the outset (PM-17)")
    persona: str | None = Field(None, description="questioning: how a patient model speaks, such as INTJ, or 'any' (PM-2)")
    index: str | None = Field(None, description="library: an index folder, a server or clinic:SUBSET; a clinic's own by default")
    max_turns: int | None = Field(None, ge=1, description="actions per episode, the diagnosis included; as trained, or 10")
    max_tokens: int | None = Field(None, ge=1, description="tokens per completion; as trained, or 256")
    concurrency: int = Field(256, ge=1, description="episodes in flight; bounds the local policy's KV cache")
    threads: int = Field(1, ge=1, description="torch threads")
    evaluation: EvaluationSettings = EvaluationSettings()
    strategy: str | None = Field(None, description="how the policy is prompted: direct, cot, mediq … (`workup methods`)")
    plan: dict[str, Any] = Field(default_factory=dict, description="the strategy's own settings")
    conclude: str | None = Field(
        None,
        description="also let another policy, or 'bayes', diagnose from the transcripts (hybrid) and from whole records (oracle)",
    )


class Settings(EngineSettings, SupportSettings):
    """Everything that decides a training run; the resolved values stand in the run folder's config.yaml."""

    method: str
    cases: str = Field("clinic:s", description="clinic:SUBSET, ddxplus:PATH[#simulated], mediq:FILE or jsonl:FILE")
    policy: str = Field("tiny", description="'tiny', a model folder, a run folder or a hub id")
    dtype: str = Field("float32", description="weights of a loaded policy: float32, bfloat16 or float16")
    warm_start: bool | None = Field(None, description="imitate demonstrations first; by default the tiny policy only")
    steps: int = Field(500, ge=0, description="updates of each reinforcement stage")
    batch: int = Field(16, ge=1, description="cases per update, over all processes")
    group: int = Field(8, ge=1, description="episodes per case (GRPO's group size)")
    max_tokens: int = Field(256, ge=1, description="tokens per completion")
    concurrency: int = Field(256, ge=1, description="episodes in flight; bounds the local policy's KV cache")
    balance: float = Field(0.0, ge=0, le=1, description="0 keeps the classes' frequencies, 1 makes them equal")
    threads: int = Field(1, ge=1, description="torch threads per process; more pays on free cores only")
    tiny: TinySettings = TinySettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    reward: dict[str, Any] = Field(default_factory=dict, description="the method's own settings")


def read(words: Sequence[str], file: Path | None = None) -> dict[str, Any]:
    """Nested settings from a YAML file and `a.b=c` words, the words winning.

    Raises UserError for a word that is no `key=value` and for a file that is missing or no YAML mapping.
    """
    for word in words:
        if "=" not in word or word.startswith("="):
            raise UserError(f"'{word}' is no setting: write key=value, for example steps=200")
    try:
        base = OmegaConf.load(file) if file is not None else OmegaConf.create({})
        merged = OmegaConf.merge(base, OmegaConf.from_dotlist(list(words)))
        plain = OmegaConf.to_container(merged, resolve=True)
    except FileNotFoundError:
        raise UserError(f"{file}: no such settings file") from None
    except (OmegaConfBaseException, ValueError, OSError) as error:
        raise UserError(f"{file or 'settings'}: {str(error).splitlines()[0]}") from error
    except Exception as error:  # YAML's own errors have no common public base here
        raise UserError(f"{file or 'settings'}: not readable as YAML: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(plain, dict):
        raise UserError(f"{file}: holds no mapping of settings")
    values = {str(key): value for key, value in plain.items()}
    refuse_secrets({"endpoints": values.get("endpoints", {})}, file or Path("settings"))
    return values


def furnished(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with what they leave open taken from the workup.yaml of the working directory or of the user.

    Only endpoints that a role, the policy or the diagnoser names are kept: a run folder tells what it used, and no more.
    Raises UserError for an endpoint that is not among those defined.
    """
    found = Config.find(None)
    roles = {**found.roles, **(values.get("roles") or {})}
    own = dict(values.get("endpoints") or {})
    named = (values.get("policy"), values.get("conclude"), *roles.values())
    specs = [spec.strip() for several in named for spec in str(several).split(",")]  # a role may be several models
    used = {spec.removeprefix(ENDPOINT) for spec in specs if spec.startswith(ENDPOINT)} - own.keys()
    known = {name: found.endpoint(name).model_dump(mode="json") for name in sorted(used) if found.endpoints}
    endpoints = known | own
    budget = {"budget": found.budget} if values.get("budget") is None and found.budget is not None else {}
    return {**values, **budget, "roles": roles, "endpoints": endpoints}


def build(model: type[T], values: Mapping[str, Any], *, prefix: str = "") -> T:
    """`values` as `model`; an unknown key gets its nearest neighbour, a bad value the reason, in one line (UserError)."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        where = tuple(str(part) for part in first["loc"])
        key = ".".join((*([prefix] if prefix else []), *where))
        if first["type"] == "extra_forbidden":
            raise unknown("setting", key, _neighbours(model, where, prefix)) from None
        # What stands under endpoints may be a key in the wrong place: it is not quoted.
        given = "" if where[:1] == ("endpoints",) else f", not {first['input']!r}"
        raise UserError(f"setting '{key}': {first['msg'].lower()}{given}") from None


def _neighbours(model: type[BaseModel], where: Sequence[str], prefix: str) -> list[str]:
    """The full names of every setting beside the one at `where`."""
    path = [prefix] if prefix else []
    inner: Any = model
    for part in where[:-1]:
        path.append(part)
        if part not in inner.model_fields:  # a name that the user chose, as in endpoints.NAME
            continue
        inner = _model_of(inner.model_fields[part].annotation)
    return [".".join((*path, name)) for name in inner.model_fields]


def _model_of(annotation: Any) -> Any:
    """The pydantic model in an annotation such as `Lora | None`."""
    options = getattr(annotation, "__args__", (annotation,))
    return next(option for option in options if isinstance(option, type) and issubclass(option, BaseModel))
