"""A run's settings: pydantic models, filled from defaults, a YAML file and `key=value` words.

An unknown name is refused with the nearest one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from workup import environments, methods
from workup.core.case import Source
from workup.core.disk import there
from workup.core.errors import UserError, unknown
from workup.core.mapping import load, refuse_filled
from workup.core.ports import Environment
from workup.core.shapes import (
    MOST,
    MOST_HELD,
    ClosedModel,
    FrozenModel,
    checked,
    part_at,
    siblings,
)
from workup.core.stages import Method
from workup.core.text import several
from workup.engines.settings import EngineSettings
from workup.methods import EXACT_GAIN
from workup.metrics import extra
from workup.models import samplers, smollm2
from workup.models.samplers import How
from workup.models.tiny import TinySettings
from workup.roles.config import Config, refuse_secrets
from workup.roles.endpoint import ENDPOINT, EndpointSettings

T = TypeVar("T", bound=BaseModel)
S = TypeVar("S", bound="SupportSettings")
# Settings that hold a name and its own.
ENVIRONMENT, STRATEGY, REWARD = "environment", "strategy", "reward"
BUILT_IN = ("exact", smollm2.NAME)  # what a role may be called beside endpoints and weights
PAPER = "paper"
Precision = Literal["float32", "bfloat16", "float16"]


Strict = Annotated[
    bool, Field(description="a row of a file that is no case is an error, not left out")
]


def in_full(given: Any) -> Any:
    """The setting `environment` or `strategy` as a mapping; a bare text is the name of one."""
    if isinstance(given, str):
        return {"name": given}
    return {} if given is None else given


FEWEST_FOLDS = 2


def _split(value: Any) -> Any:
    """Raises ValueError for what is neither a number nor a fold, as in "2/5"."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("a split is a number, or a fold, as in 2/5")
    if isinstance(value, int) and value < 0:
        raise ValueError("a split is a number from 0 on")
    if not isinstance(value, str) or value.isdecimal():
        return int(value) if isinstance(value, str) else value
    number, _, of = value.partition("/")
    if not (number.isdecimal() and of.isdecimal()):
        raise ValueError("a split is a number, or a fold, as in 2/5")
    if int(of) < FEWEST_FOLDS:
        raise ValueError(f"there are {FEWEST_FOLDS} folds or more")
    if not 1 <= int(number) <= int(of):
        raise ValueError(f"there is no fold {number} of {of}")
    return f"{int(number)}/{int(of)}"


SplitWords = Annotated[Annotated[int, Field(ge=0)] | str, BeforeValidator(_split)]
Folds = Annotated[int, Field(ge=FEWEST_FOLDS, le=100)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]  # as numpy and torch take it
NamedWords = Annotated[dict[str, Any], BeforeValidator(in_full)]
ENCOUNTER = "the encounter: a name, or settings of its own (`workup settings NAME`)"


class EvaluationSettings(ClosedModel):
    """How doctors are evaluated."""

    cases: int = Field(400, ge=1, le=MOST, description="at most so many cases, evenly spaced")
    samples: int = Field(
        1, ge=1, le=MOST_HELD, description="episodes per case; intervals are clustered by case"
    )
    temperature: float = Field(
        1.0, ge=0, description="0 is greedy decoding; a tiny policy does better when it is sampled"
    )
    avoid_repeats: bool = Field(
        False, description="draw again when an action repeats an earlier one"
    )
    measures: list[str] = Field(
        default_factory=list, description="further measures: kg, bleu, rouge, actions, emb:MODEL"
    )
    probabilities: Literal["scored", "drawn", "stated"] | None = Field(
        None,
        description=(
            "measure how sure doctors are: policies by log-probabilities over the closed list "
            "(scored), by repeated conclusions (drawn), or as they say (stated); anchors exactly"
        ),
    )
    prices: str | None = Field(
        None, description="a table `item,price` of what requests cost; else the items' own costs"
    )
    draws: int = Field(10, ge=1, le=1_000, description="conclusions of probabilities=drawn")
    anchors: bool = Field(
        True,
        description=(
            "play the random, greedy and full-information doctors where the source has a model"
        ),
    )
    untrained: bool = Field(
        True, description="play the base model as well, where a warm start comes first"
    )
    seen: bool = Field(False, description="also play cases that the policy was trained on")

    @model_validator(mode="after")
    def _draws_anew(self) -> Self:
        if self.avoid_repeats and not self.temperature:
            raise ValueError(
                "avoid_repeats=true draws again, which brings nothing new at temperature=0: raise "
                "it, or leave avoid_repeats out"
            )
        return self


class StoppingSettings(FrozenModel):
    """A row in which the policy stops by a calibrated rule."""

    alpha: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="stop so that the named set holds the truth with probability 1 − alpha, by "
        "the probabilities of evaluation.probabilities (scored, if that is not set)",
    )
    calibration: int = Field(
        500, ge=1, le=MOST, description="cases that the rule is calibrated on; none is tested on"
    )
    most: int = Field(
        1, ge=1, le=MOST, description="stop when the set has at most so many diseases"
    )


class SupportSettings(FrozenModel):
    """The language models in supporting roles."""

    roles: dict[str, str] = Field(
        default_factory=dict,
        description=(
            "judge, simulator, patient, checker: exact, smollm2, endpoint:NAME, a model folder or "
            "a hub id"
        ),
    )
    endpoints: dict[str, EndpointSettings] = Field(
        default_factory=dict, description="by name; usually from workup.yaml"
    )
    budget: float | None = Field(
        None, ge=0, description="money for all calls of this run, in the currency of the prices"
    )
    replay: bool = Field(
        False, description="answer from the cache alone; a call that is not in it fails"
    )
    max_failed: float = Field(
        0.2, ge=0, le=1, description="share of failed episodes that stops the run"
    )
    _standing: frozenset[str] = PrivateAttr(frozenset())

    @property
    def standing(self) -> frozenset[str]:
        """The roles that workup.yaml alone names: taken where they have a place, else left out."""
        return self._standing


def _refuse_no_sampler(name: str) -> None:
    """Raises UserError for a name that is no sampler's: an endpoint would not ask for it."""
    if ":" not in name and name not in samplers.names():
        raise unknown("sampler", name, samplers.names(), more="or package.module:attribute")


class SamplerSettings(FrozenModel):
    """Who draws completions from weights, and how."""

    sampler: Annotated[str, checked(_refuse_no_sampler)] = Field(
        "local",
        description="who draws completions from weights: local, vllm, server, or "
        "package.module:attribute",
    )
    sampler_memory: float = Field(
        0.3, gt=0, lt=1, description="share of the device's memory that vllm takes"
    )
    sampler_context: int | None = Field(
        None,
        ge=1,
        le=MOST,
        description="longest transcript of vllm in tokens; the model's own limit",
    )
    sampler_address: str | None = Field(
        None, description="where sampler=server finds a running vLLM, http://HOST:PORT"
    )
    dtype: Precision = Field("float32", description="weights of a loaded policy")
    concurrency: int = Field(
        256, ge=1, le=MOST_HELD, description="episodes in flight; bounds the sampler's KV cache"
    )
    threads: int = Field(
        1,
        ge=1,
        le=4096,
        description="torch threads per process; more than one helps only where cores are free",
    )

    @property
    def how(self) -> How:
        own = (self.sampler_memory, self.sampler_context, self.sampler_address)
        return How(self.concurrency, self.dtype, self.threads, *own)


class PolicySettings(SamplerSettings, SupportSettings):
    """The settings of `workup evaluate`."""

    policy: str = Field(
        description=(
            "smollm2, a run or model folder, a hub id, endpoint:NAME or the name of an anchor"
        )
    )
    cases: str = Field(description="where the cases come from (`workup sources`)")
    strict: Strict = False
    seed: Seed = Field(0, description="everything drawn follows from it")
    split: SplitWords | None = Field(
        None,
        description="which fifth of a file is held out; as trained, or a file is played whole",
    )
    folds: Folds | None = Field(
        None, description="of a cross-validation's policies, each on its own fold: how many"
    )
    environment: NamedWords = Field(default_factory=dict, description=ENCOUNTER)
    max_tokens: int | None = Field(
        None, ge=1, le=MOST, description="tokens per completion; as trained, or 256"
    )
    evaluation: EvaluationSettings = Field(EvaluationSettings(), description="how it is evaluated")
    stopping: StoppingSettings = Field(
        StoppingSettings(), description="also play a row that stops with a guarantee"
    )
    strategy: NamedWords = Field(
        default_factory=dict,
        description="how the policy is prompted: direct, cot, mediq … (`workup methods`), or "
        "settings of its own (`workup settings NAME`)",
    )
    conclude: str | None = Field(
        None,
        description=(
            "also let another policy, or 'bayes', diagnose from the transcripts (hybrid) and "
            "from whole records (oracle)"
        ),
    )


# What a policy of 0.1 M parameters needs beyond the defaults, which suit pretrained ones:
# demonstrations to learn the language from, and larger steps that end small. A rate that is higher,
# or stays high, makes it forget what it has asked.
TINY: Mapping[str, Any] = {
    "steps": 1000,
    "batch": 8,
    "lr": 1e-3,
    "lr_schedule": "linear",
    "entropy": 0.003,
    "sft": {"steps": 1500, "lr": 4e-3},
    "evaluation": {"cases": 1000},
}


def _reward(given: Any) -> Any:
    """The setting `reward` as a mapping. Raises UserError for a name that is no reward's."""
    given = in_full(given)
    name = given.get("name", EXACT_GAIN) if isinstance(given, Mapping) else EXACT_GAIN
    if name == PAPER:
        raise UserError(f"reward={PAPER}: type preset={PAPER} for all that the paper prints")
    if name != EXACT_GAIN:
        raise unknown("reward", str(name), (EXACT_GAIN,), more="the method's own has no name")
    return given


def _printed(values: Mapping[str, Any]) -> dict[str, Any]:
    """What the paper of the method in `values` prints.

    Without the environment's settings where `values` name another one. Raises UserError for a
    method without printed settings.
    """
    method = methods.load(str(values["method"]))
    found = methods.printed(method)
    if found is None:
        raise UserError(f"'{values['method']}' declares no printed settings: leave out preset")
    usual = method.environment["name"]
    given = in_full(values.get(ENVIRONMENT))
    # `environment=[1]` is refused later, by the same line as without a preset.
    same = not isinstance(given, Mapping) or given.get("name", usual) == usual
    return {key: value for key, value in found.items() if key != ENVIRONMENT or same}


class Settings(EngineSettings, SamplerSettings, SupportSettings):
    """Everything that decides a training run; the run folder's config.yaml keeps the values.

    With `policy=tiny` the defaults are those of `TINY`. With `preset=paper` they are what the
    method's paper prints, as far as it prints anything. What is given stays in either case.
    """

    method: str = Field(description="what is trained and how (`workup methods`)")
    preset: Literal["workup", "paper"] = Field(
        "workup",
        description="what is not set: workup's defaults, or as the method's paper prints it "
        "(`workup settings METHOD`)",
    )
    cases: str = Field("clinic:s", description="where the cases come from (`workup sources`)")
    strict: Strict = False
    seed: Seed = Field(0, description="everything drawn follows from it, adapters and dropout too")
    split: SplitWords = Field(
        0, description="which fifth of the cases is held out, for every seed; or a fold, as in 2/5"
    )
    folds: Folds | None = Field(
        None,
        description="for few cases: train once for each of so many folds, test every case once",
    )
    policy: str = Field(
        "tiny", description="tiny, smollm2, a model folder, a run folder or a hub id"
    )
    warm_start: bool | None = Field(
        None, description="imitate demonstrations first; by default the tiny policy only"
    )
    begin: str | None = Field(
        None, description="the method's stage to begin with; those before it are left out"
    )
    engine: str = Field(
        "trl", description="who updates the weights: trl, verl, or package.module:attribute"
    )
    steps: int = Field(500, ge=0, le=MOST, description="updates of each reinforcement stage")
    batch: int = Field(16, ge=1, le=MOST_HELD, description="cases per update, over all processes")
    group: int = Field(8, ge=1, le=MOST_HELD, description="episodes per case (GRPO's group size)")
    max_tokens: int = Field(256, ge=1, le=MOST, description="tokens per completion")
    balance: float = Field(
        0.0, ge=0, le=1, description="0 keeps the classes' frequencies, 1 makes them equal"
    )
    tiny: TinySettings = Field(TinySettings(), description="the size of the tiny policy")
    evaluation: EvaluationSettings = Field(EvaluationSettings(), description="how it is evaluated")
    environment: NamedWords = Field(default_factory=dict, description=ENCOUNTER)
    reward: Annotated[dict[str, Any], BeforeValidator(_reward)] = Field(
        default_factory=dict,
        description=f"the method's own settings; {EXACT_GAIN} pays each question what its answer "
        "told instead",
    )

    @property
    def own_reward(self) -> dict[str, Any]:
        """The method's own settings."""
        return {key: value for key, value in self.reward.items() if key != "name"}

    @property
    def exact_gain(self) -> bool:
        """Whether questions are paid what they told, in place of the method's own reward."""
        return "name" in self.reward

    @model_validator(mode="before")
    @classmethod
    def _suited(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        if values.get("preset") == PAPER and "method" in values:
            own = {key: in_full(values.get(key)) for key in (ENVIRONMENT, REWARD)}
            values = merge(_printed(values), {**values, **own})
        return merge(TINY, values) if values.get("policy", "tiny") == "tiny" else values


def read(words: Sequence[str], file: Path | None = None) -> dict[str, Any]:
    """Nested settings from a YAML file and `a.b=c` words; the words have priority.

    Raises UserError for a word that is no `key=value`, for a file that `mapping.load` refuses, and
    for a value that holds an API key or `${…}`, which nothing resolves.
    """
    for word in words:
        if "=" not in word or word.startswith("="):
            if ":" in word and word.partition(":")[0].isidentifier():
                raise UserError(f"'{word}' is no setting. Did you mean --cases {word}?")
            raise UserError(f"'{word}' is no setting: write key=value, for example steps=200")
        key, _, value = word.partition("=")
        if "" in key.split("."):
            raise UserError(f"'{word}' is no setting: a name is missing beside the dot")
        refuse_filled({key: value}, "settings")
    written = {} if file is None else load(file)
    named = (ENVIRONMENT, STRATEGY, REWARD)
    written |= {key: in_full(written[key]) for key in named if key in written}
    # Merged as a bare text, the name would be lost beside environment.max_turns=….
    bare = re.compile(rf"^({'|'.join(named)})=(?=[^{{\s])")
    typed = [bare.sub(r"\1.name=", word) for word in words]
    try:
        merged = OmegaConf.merge(OmegaConf.create(written), OmegaConf.from_dotlist(typed))
        plain = OmegaConf.to_container(merged, resolve=False)
    except (OmegaConfBaseException, ValueError) as error:
        raise UserError(f"settings: {str(error).splitlines()[0]}") from error
    except Exception as error:  # YAML's own errors have no common public base here
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"settings: not readable as YAML: {reason}") from error
    assert isinstance(plain, dict)  # both merged parts are mappings
    values = {str(key): value for key, value in plain.items()}
    refuse_secrets({"endpoints": values.get("endpoints", {})}, file or Path("settings"))
    return values


def mapping(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The part of that name. Raises UserError where it is a single value."""
    part = {} if (given := values.get(name)) is None else given
    if not isinstance(part, Mapping):
        raise UserError(f"setting '{name}': {part!r} is no mapping; write {name}.NAME=…")
    return dict(part)


def with_user_config(model: type[S], values: Mapping[str, Any]) -> S:
    """`values` as `model`; what they leave open is taken from workup.yaml.

    That file is the one of the working directory, else the user's. Only endpoints that a role, the
    policy or the diagnoser names are kept: a run folder lists what it used, and no more. An
    endpoint of `values` without an address is the file's with some settings changed. Raises
    UserError for an endpoint that is not defined, for a role with an endpoint's bare name, and as
    `build` does.
    """
    found = Config.find(None)
    given, own = (mapping(values, name) for name in ("roles", "endpoints"))
    roles = {**found.roles, **given}
    _refuse_bare(roles, {*found.endpoints, *own})
    named = (values.get("policy"), values.get("conclude"), *roles.values())
    # a role may be several models
    specs = [spec.strip() for several in named for spec in str(several).split(",")]
    used = {spec.removeprefix(ENDPOINT) for spec in specs if spec.startswith(ENDPOINT)} - own.keys()
    known = {
        name: found.endpoint(name).model_dump(mode="json")
        for name in sorted(used)
        if found.endpoints
    }
    endpoints = known | {name: _completed(name, given, found) for name, given in own.items()}
    budget = (
        {"budget": found.budget}
        if "budget" not in values and found.budget is not None  # null lifts it
        else {}
    )
    built = build(model, {**values, **budget, "roles": roles, "endpoints": endpoints})
    built._standing = frozenset(found.roles) - frozenset(given)
    return built


def _completed(name: str, given: Any, found: Config) -> Any:
    """What is given of an endpoint, with the rest from `found`.

    An address of its own makes it another endpoint, which the file's key must not be sent to.
    """
    if not isinstance(given, Mapping) or "base_url" in given or name not in found.endpoints:
        return given
    return merge(found.endpoint(name).model_dump(mode="json"), given)


def _refuse_bare(roles: Mapping[str, Any], endpoints: Set[str]) -> None:
    """Raises UserError for a role whose model is called as an endpoint is, without its prefix."""
    for role, spec in roles.items():
        names = [name.strip() for name in str(spec).split(",")]
        bare = [name for name in names if name in endpoints and name not in BUILT_IN]
        if bare and not there(bare[0]):
            whole = ",".join(ENDPOINT + name if name in bare else name for name in names)
            raise UserError(
                f"roles.{role}: '{bare[0]}' is an endpoint; did you mean roles.{role}={whole}?"
            )


# Settings that may change after a run has begun: its results do not depend on them, but for
# rounding.
CHANGEABLE = (
    *("budget", "concurrency", "max_failed", "threads", "save_every", "save_total_limit"),
    *("micro_batch", "gradient_checkpointing", "sampler_memory", "sampler_address"),
)
CHANGEABLE_ENDPOINT = (
    *("api_key_env", "concurrency", "requests_per_minute", "timeout", "deadline"),
    *("retries", "backoff", "price"),
)


def revised(model: type[T], values: Mapping[str, Any], changes: Mapping[str, Any]) -> T:
    """The settings `values` of a run that has begun, with `changes` (nested, as `read` gives them).

    Raises UserError for a change that the run's results depend on, and as `build` does.
    """
    known, endpoints = values.get("endpoints") or {}, mapping(changes, "endpoints")
    if known and (unnamed := [end for end in endpoints if end not in known]):
        dotted = next((end for end in known if "." in end), None)
        hint = f"a name with a dot is typed as in 'endpoints[{dotted}].concurrency=2'"
        raise unknown("endpoint of this run", unnamed[0], known, more=hint if dotted else "")
    merged = build(model, merge(values, changes))
    for name in changes:
        inner = endpoints.items() if name == "endpoints" else ()
        keys = ((end, key) for end, given in inner for key in given)
        refused = [f"{name}.{end}.{key}" for end, key in keys if key not in CHANGEABLE_ENDPOINT]
        if refused or (name not in CHANGEABLE and name != "endpoints"):
            raise UserError(
                f"'{(refused or [name])[0]}' cannot change: what the run has done follows from it. "
                f"These can: {', '.join(CHANGEABLE)}, and how an endpoint is reached "
                f"(endpoints.NAME.…: {', '.join(CHANGEABLE_ENDPOINT)})"
            )
    return merged


def merge(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with `changes`, mapping by mapping."""
    return {
        **values,
        **{
            key: merge(values[key], new)
            if isinstance(new, Mapping) and isinstance(values.get(key), Mapping)
            else new
            for key, new in changes.items()
        },
    }


def built_in(here: Path) -> list[str]:
    """The names of the YAML files in a folder of the package, sorted."""
    return sorted(file.stem for file in here.glob("*.yaml"))


def yaml_file(what: str, spec: str, here: Path) -> Path:
    """The YAML file in `here` of this name, or the user's own file at this path.

    Raises UserError for a name that is none, for a folder, and for a file that is not there.
    """
    names = built_in(here)
    file = here / f"{spec}.yaml" if spec in names else there(spec)
    if file is not None and file.is_file():
        return file
    known = f"a built-in {what} ({', '.join(names)})"
    if file is not None and file.is_dir():
        raise UserError(f"{spec} is a folder; name a YAML file in it, or {known}")
    if spec.endswith((".yaml", ".yml")) or len(Path(spec).parts) > 1:
        raise UserError(f"{spec}: no such file; name a YAML file, or {known}")
    raise unknown(what, spec, names, more="or a YAML file of your own")


def from_file(model: type[T], file: Path) -> T:
    """A YAML file as `model`.

    Raises UserError as `mapping.load` and `build` do, in one line that begins with the file.
    """
    try:
        return build(model, load(file))
    except UserError as error:
        told = str(error)
        raise UserError(told if told.startswith(str(file)) else f"{file}: {told}") from None


def build(model: type[T], values: Mapping[str, Any], *, prefix: str = "") -> T:
    """`values` as `model`.

    Raises UserError in one line: an unknown key with its nearest neighbour, a bad value with the
    reason.
    """
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        where = tuple(str(part) for part in first["loc"] if part != "[key]")
        key = ".".join((*([prefix] if prefix else []), *where))
        if first["type"] == "extra_forbidden":
            if len(where) == 1 and prefix != ENVIRONMENT and where[0] in environments.settings():
                raise UserError(
                    f"'{key}' is a setting of the environment: write {ENVIRONMENT}.{where[0]}=…"
                ) from None
            if key in known_roles() and "roles" in model.model_fields:
                given = first["input"] if isinstance(first["input"], str) else "…"
                raise UserError(f"'{key}' is a role: write roles.{key}={given}") from None
            whole = [f"{prefix}.{name}" if prefix else name for name in siblings(model, where)]
            raise unknown("setting", key, whole) from None
        # A value under `endpoints` may be a key in the wrong place, so it is not quoted.
        shown = where[:1] != ("endpoints",) and first["type"] != "missing"
        quoted = repr(first["input"])[:80] if shown else "a value"
        if first["type"] in ("model_type", "dict_type"):
            known = first["type"] == "model_type"
            inner = f"{prefix}." if known and prefix else ""
            inner += siblings(model, (*where, ""))[0] if known else f"{key}.NAME"
            raise UserError(
                f"setting '{key}' has settings of its own; in place of {quoted} write {inner}=…"
            ) from None
        raise UserError(_told(first, key, quoted if shown else "", part_at(model, where))) from None


def _told(first: Mapping[str, Any], key: str, quoted: str, whole: type[BaseModel] | None) -> str:
    """What pydantic's error says of the setting `key`, with its value `quoted` if there is one.

    `whole` is the model that stands there, if one does. What the model itself raises is about
    several of its fields, so that its content as a whole says nothing.
    """
    own = first["type"] == "value_error"  # in words of ours, which may hold names
    said = first["msg"].removeprefix("Value error, ")
    problem = said if own else said[:1].lower() + said[1:]
    if first["type"] == "too_short":
        problem, quoted = f"it needs at least {several(first['ctx']['min_length'], 'item')}", ""
    if own and whole is not None:
        quoted = ""
    given = f", not {quoted}" if quoted else ""
    return f"setting '{key}': {problem}{given}" if key else problem


def known_roles() -> set[str]:
    """Every supporting role that there is: the judge, those of environments and of measures."""
    return {"judge", *environments.roles(), *extra.roles(extra.names())}


def preset_note(method: Method, preset: str, config: Mapping[str, Any]) -> tuple[str, ...]:
    """What a run says of `preset=paper`: which of its settings differ from the paper's.

    `config` are all settings of the run, nested; nothing is said of another preset.
    """
    if preset != PAPER:
        return ()
    other = [
        f"{name}={value!r} (printed: {printed!r})"
        for name, printed in flat(methods.printed(method) or {})
        if (value := _at(config, name)) != printed
    ]
    return (f"preset=paper: as printed, but for {', '.join(other) or 'nothing'}",)


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested values by the names that one types: ("sft.lr", 0.004)."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _at(config: Any, name: str) -> Any:
    """The value at a dotted name; None where a mapping on the way is missing."""
    for part in name.split("."):
        config = config.get(part) if isinstance(config, Mapping) else None
    return config


class World(NamedTuple):
    """The name of an environment and its settings, an object of that environment's `Settings`."""

    name: str
    settings: Any

    def open(self, source: Source) -> Environment:
        """The environment over the cases of `source`. Raises UserError if it cannot play them."""
        return environments.load(self.name).open(source, self.settings)

    @property
    def config(self) -> dict[str, Any]:
        """The setting `environment` in full, defaults included."""
        return {"name": self.name, **self.settings.model_dump(mode="json")}


def world(given: Mapping[str, Any], usual: Mapping[str, Any]) -> World:
    """The environment that the setting `environment` stands for.

    `usual` is that setting where nobody sets it. It holds for what `given` leaves open, unless
    `given` names another environment. Raises UserError as `environments.load` and `build` do.
    """
    name = str(given.get("name") or usual["name"])
    whole = {**usual, **given} if name == usual.get("name") else given
    own = {key: value for key, value in whole.items() if key != "name"}
    return World(name, build(environments.load(name).Settings, own, prefix=ENVIRONMENT))
