"""What a user can set, read from the pydantic models: name, default, range and sense."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from workup.core.shapes import MOST, MOST_HELD

if TYPE_CHECKING:
    from workup.core.stages import Method

SLIPS = (MOST, MOST_HELD)  # bounds that no one comes near but by a slip: no list tells them
KINDS = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "array": "list",
    "object": "mapping",
    "null": "null",
}
Groups = dict[str, list["Setting"]]  # heading → what stands under it


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting; `default` is what one would type, such as "0.5", or None if it is required."""

    name: str
    default: str | None
    range: str
    sense: str

    @property
    def typed(self) -> str:
        """`name=default`, and `name=…` where a value has to be given."""
        return f"{self.name}={'…' if self.default is None else self.default}"


def settings_of(
    model: type[BaseModel], prefix: str = "", chosen: Mapping[str, Any] | None = None
) -> Iterator[Setting]:
    """Every setting of `model`, in the order of its JSON Schema; those of models inside it follow.

    `prefix` stands before every name; `chosen` are defaults in place of the model's own. What the
    user names, as in endpoints.NAME, is called NAME.

    >>> from workup.engines.settings import LoraSettings
    >>> next(settings_of(LoraSettings, "lora."))
    Setting(name='lora.r', default='8', range='whole number from 1', sense='rank of the adapters')
    """
    schema = model.model_json_schema()
    yield from _members(schema, schema.get("$defs", {}), prefix, chosen or {})


def _members(
    schema: Mapping[str, Any], models: Mapping[str, Any], prefix: str, given: Mapping[str, Any]
) -> Iterator[Setting]:
    """The settings of one model; `given` are the defaults that the model around it chooses."""
    for key, member in schema["properties"].items():
        inner, named = _inside(member, models)
        if inner is not None:
            inherited = given.get(key) or member.get("default") or {}
            yield from _members(
                inner, models, f"{prefix}{key}.{'NAME.' if named else ''}", inherited
            )
            continue
        free = key in schema.get("required", ()) or named
        shown = None if free else _plain(given.get(key, _default(member)))
        kind = member["additionalProperties"] if named else member
        name = f"{prefix}{key}{'.NAME' if named else ''}"
        yield Setting(name, shown, _range(kind), member.get("description", ""))


def _default(member: Mapping[str, Any]) -> Any:
    """The default of a setting; empty for one that a factory makes, which a JSON Schema omits."""
    if "default" in member:
        return member["default"]
    return {} if member["type"] == "object" else []


def _inside(
    member: Mapping[str, Any], models: Mapping[str, Any]
) -> tuple[Mapping[str, Any] | None, bool]:
    """The model that a setting holds, if any; and whether it is one of several the user names."""
    extra = member.get("additionalProperties")
    named = isinstance(extra, Mapping)
    options = [extra] if named else [member, *member.get("anyOf", ())]
    found = next((option["$ref"] for option in options if option and "$ref" in option), None)
    return (None if found is None else models[found.rpartition("/")[2]]), named


def _plain(value: Any) -> str:
    """A value as one types it: text without quotes, everything else as YAML reads it."""
    if isinstance(value, str):
        return value
    whole = isinstance(value, float) and value.is_integer()
    return json.dumps(int(value) if whole else value, ensure_ascii=False)


def _range(member: Mapping[str, Any]) -> str:
    if "anyOf" in member:
        return " or ".join(_range(option) for option in member["anyOf"])
    if "enum" in member or "const" in member:
        return " | ".join(map(_plain, member.get("enum", [member.get("const")])))
    if member.get("type") == "boolean":
        return "true | false"
    bounds = {
        "above": "exclusiveMinimum",
        "from": "minimum",
        "below": "exclusiveMaximum",
        "to": "maximum",
    }
    found = [(word, member[limit]) for word, limit in bounds.items() if limit in member]
    found = [(word, limit) for word, limit in found if limit not in SLIPS]
    limits = [f"{word} {limit:{'g' if limit < 1e6 else ','}}" for word, limit in found]
    return " ".join([KINDS[member.get("type", "object")], *limits])


def trained() -> Groups:
    """The settings of `workup train`: by the class that defines them, then by what is before a dot.

    The heading is the first sentence of that class's docstring.
    """
    from workup.runs.settings import TINY, Settings, flat

    every = {each.name: each for each in settings_of(Settings)}
    for name, value in flat(TINY):
        told = f"{every[name].sense} (tiny policy: {_plain(value)})"
        every[name] = replace(every[name], sense=told)
    found: Groups = {}
    for model in Settings.__mro__:
        if issubclass(model, BaseModel) and model is not BaseModel:
            bases = [base.model_fields for base in model.__bases__ if issubclass(base, BaseModel)]
            own = [name for name in model.model_fields if not any(name in base for base in bases)]
            names = [each for name in own for each in (name, f"{name}.NAME")]
            text = " ".join((model.__doc__ or "").split())
            found[text.partition(". ")[0].partition("; ")[0].rstrip(".")] = [
                every[name] for name in names if name in every
            ]
    for name, about in Settings.model_fields.items():
        plain = f"{name}.NAME"  # a value under a name of the user's stands above
        inner = [each for key, each in every.items() if key.startswith(f"{name}.") and key != plain]
        if inner:
            found[f"{name}: {about.description}"] = inner
    return {heading: settings for heading, settings in found.items() if settings}


def evaluated() -> Groups:
    """The settings of `workup evaluate` that `workup train` lacks, or has with another default."""
    from workup.runs.settings import PolicySettings

    known = {each.typed for settings in trained().values() for each in settings}
    found = [each for each in settings_of(PolicySettings) if each.typed not in known]
    return {"Only, or otherwise, for `workup evaluate`": found}


@dataclass(frozen=True, slots=True)
class Owner:
    """A method, a strategy or an environment: its title, paper and own settings.

    An environment has no paper. `printed` are the settings that a method's paper prints, with the
    printed values.
    """

    title: str
    paper: str
    settings: list[Setting]
    printed: list[Setting] = field(default_factory=list)


def owner(name: str) -> Owner:
    """The method, strategy or environment of this name; UserError if there is none.

    A method's settings are typed as `reward.…`, with the defaults of its `environment.…`; a
    strategy's as `strategy.…`; an environment's as `environment.…`.
    """
    from workup import environments, methods
    from workup.doctors import strategies

    if name in strategies.names():
        strategy = strategies.load(name)
        own = [*settings_of(strategy.settings, "strategy.")]
        return Owner(f"strategy={name}: {strategy.summary}", strategy.paper, own)
    if name in environments.names():
        found = environments.load(name)
        own = [*settings_of(found.Settings, "environment.")]
        return Owner(f"environment={name}: {found.summary}", "", own)
    method = methods.load(name)
    encounter = environments.load(method.environment["name"]).Settings
    own = [
        *settings_of(method.settings, "reward."),
        *settings_of(encounter, "environment.", method.environment),
    ]
    return Owner(f"{name}: {method.summary}", method.paper, own, _printed(method, own))


def _printed(method: Method, own: Sequence[Setting]) -> list[Setting]:
    """What `preset=paper` sets: each setting with its printed value; its sense tells the usual."""
    from workup import methods
    from workup.runs.settings import Settings, flat

    usual = {each.name: each for each in (*settings_of(Settings), *own)}
    found = ((usual[name], value) for name, value in flat(methods.printed(method) or {}))
    return [
        replace(each, default=_plain(value), sense=f"{each.sense} (else {each.default})")
        for each, value in found
    ]


def owned(names: Sequence[str]) -> Groups:
    """The own settings of all these methods, strategies and environments.

    Settings that several share are listed once.
    """
    owners: dict[Setting, list[str]] = {}
    for name in names:
        for each in owner(name).settings:
            owners.setdefault(each, []).append(name)
    found: Groups = {}
    for each, several in owners.items():
        found.setdefault(", ".join(several), []).append(each)
    return found
