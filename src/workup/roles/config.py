"""workup.yaml: the endpoints by name, and who plays which supporting role; it holds no key."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from workup.core.errors import UserError, unknown
from workup.core.mapping import leaves, load
from workup.core.shapes import siblings
from workup.roles.endpoint import EndpointSettings

T = TypeVar("T", bound=BaseModel)
NAME = "workup.yaml"
# The prefixes that providers give their keys; a digit must follow, so that names such as
# hf-internal-testing pass.
_KEY = re.compile(
    r"(?<![\w-])(?:(?:sk|pk|rk|gsk|xai|hf|nvapi|pplx|ghp|r8|csk)[-_](?=[\w-]*\d)[\w-]{12,}"
    r"|AIza[\w-]{30,}|github_pat_\w{20,}|AKIA[0-9A-Z]{16}|eyJ[\w-]{10,}\.[\w-]{10,}|Bearer\s+\S{8,})"
)
_SECRETS = {
    "api_key",
    "apikey",
    "api-key",
    "key",
    "token",
    "secret",
    "password",
    "authorization",
    "bearer",
}
_ENDINGS = re.compile(r"[_-](?:key|token|secret|password)$")  # as in access_token and x-api-key
_OPEN = {"prompt_cache_key"}  # a parameter that is no secret


class Config(BaseModel):
    """The fields of workup.yaml."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True, allow_inf_nan=False)

    endpoints: dict[str, EndpointSettings] = Field(
        default_factory=dict, description="by name, for `endpoint:NAME`"
    )
    roles: dict[str, str] = Field(
        default_factory=dict,
        description="who plays a role: smollm2, endpoint:NAME, a model folder, a hub id",
    )
    budget: float | None = Field(
        None, ge=0, description="money for all calls of a run, in the currency of the prices"
    )
    _file: Path | None = PrivateAttr(None)

    @classmethod
    def find(cls, path: Path | None = None) -> Self:
        """The configuration at `path`; else ./workup.yaml; else the user's; else an empty one.

        Only the first file found is read; the user's is in the user's config folder. Raises
        UserError for a file that is missing, unreadable, or holds a secret, and for a folder.
        """
        found_at = (place for place in places() if place.is_file() or place.is_dir())
        file = path or next(found_at, None)
        if file is None:
            return cls()
        found = checked(cls, read(file), file)
        found._file = file
        return found

    def endpoint(self, name: str) -> EndpointSettings:
        """The endpoint of this name. Raises UserError, with the nearest name, if there is none."""
        if name in self.endpoints:
            return self.endpoints[name]
        if not self.endpoints:
            raise UserError(
                f"no endpoint '{name}': none is defined; name it under `endpoints:` in "
                f"{self._file or NAME}"
            )
        raise unknown(
            "endpoint", name, self.endpoints, more=f"defined in {self._file or 'the settings'}"
        )


def places() -> tuple[Path, Path]:
    """Where workup.yaml is looked for: the working directory, then the user's config folder."""
    folder = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(NAME), Path(folder).expanduser() / "workup" / NAME


def read(file: Path) -> dict[str, Any]:
    """The mapping in a YAML file, exactly as written.

    Raises UserError, also if it holds a key.
    """
    values = load(file)
    refuse_secrets(values, file)
    return values


def refuse_secrets(values: Mapping[str, Any], file: Path) -> None:
    """Raises UserError where a key is written down; its text does not quote the key."""
    for where, value in leaves(values):
        named = _KEY.search(where[-1])
        place = f"{file}, field '{'.'.join(where[:-1] if named else where)}'"
        name = where[-1].lower()
        # A token of a template, such as eos_token, has angle brackets.
        long = isinstance(value, str) and len(value) >= 8 and "<" not in value
        ends = long and _ENDINGS.search(name) and name not in _OPEN
        if named or name in _SECRETS or ends or (isinstance(value, str) and _KEY.search(value)):
            raise UserError(
                f"{place}: keys are not written down; put api_key_env: NAME_OF_THE_VARIABLE that "
                "holds it"
            )


def checked(model: type[T], values: Mapping[str, Any], file: Path) -> T:
    """`values` as `model`.

    Raises UserError in one line: an unknown field with its nearest neighbour, a bad value with the
    reason.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        # A misspelt field is reported as missing too; the user has to mend the spelling.
        first = min(
            error.errors(include_url=False), key=lambda each: each["type"] != "extra_forbidden"
        )
        where = tuple(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise unknown(
                "field", ".".join(where), siblings(model, where), more=str(file)
            ) from None
        given = f", not {first['input']!r}" if isinstance(first["input"], int | float) else ""
        problem = first["msg"].removeprefix("Value error, ")
        raise UserError(
            f"{file}, field '{'.'.join(where)}': {problem[:1].lower()}{problem[1:]}{given}"
        ) from None
