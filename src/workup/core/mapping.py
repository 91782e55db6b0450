"""Mappings in YAML files, read as they are written: nothing in them is looked up, run or filled in.

OmegaConf would put a variable of the environment, a file or another value in the place of `${…}`. A
file can come from anywhere, and what it says is sent to endpoints, kept and shown; so `${…}` is
refused.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import KeyValidationError, OmegaConfBaseException

from workup.core.errors import UserError, printable

LARGEST = 1_000_000
"""The most bytes of a file."""

MOST = 4_999
"""The most values in a file; those of an alias (`*name`) count wherever it is used.

OmegaConf reads 10,000 names and values, and says in no line of ours that there are more."""

DEEPEST = 32
"""The most keys that lead to a value."""

# What PyYAML raises, with the value in it, for one that is not what its tag says: `!!int x`.
_UNREAD = (ValueError, LookupError, AttributeError, TypeError)


def load(file: Path) -> dict[str, Any]:
    """The mapping in a YAML file; {} for an empty one.

    Raises UserError, in one line that quotes nothing of the file, for one that is missing, too
    large, no YAML or no mapping, and for a value with `${…}` in it, which is named by its key.
    """
    try:
        with file.open("rb") as read:
            text = read.read(LARGEST + 1)
    except FileNotFoundError:
        raise UserError(f"{file}: no such file") from None
    except IsADirectoryError:
        raise UserError(f"{file} is a folder; name a YAML file in it") from None
    except OSError as error:
        raise UserError(f"{file}: {str(error)[:200]}") from None
    return parsed(text, file)


def parsed(text: bytes, place: object) -> dict[str, Any]:
    """The mapping in a text of YAML, and the errors of `load`, which begin with `place`."""
    if len(text) > LARGEST:
        raise UserError(f"{place}: larger than {LARGEST} bytes")
    try:
        _check(yaml.compose(text, Loader=yaml.SafeLoader), place)
        plain = OmegaConf.to_container(OmegaConf.load(io.StringIO(text.decode())), resolve=False)
    except KeyValidationError:
        raise UserError(f"{place}: null (~) stands in place of a name; put it in quotes") from None
    except (OmegaConfBaseException, UnicodeDecodeError) as error:
        raise UserError(f"{place}: {str(error).splitlines()[0][:200]}") from None
    except (yaml.YAMLError, RecursionError, *_UNREAD) as error:
        raise UserError(f"{place}: not readable as YAML ({_reason(error)})") from None
    assert isinstance(plain, dict)  # `_check` has refused anything else
    return {str(key): value for key, value in plain.items()}


def _reason(error: Exception) -> str:
    """Why a text is no YAML, and the line, without a word of the text: it may hold a key."""
    if isinstance(error, _UNREAD):
        return "a value is not what its tag says, or a number too long; put it in quotes, untagged"
    mark, problem = (getattr(error, f"problem{part}", None) for part in ("_mark", ""))
    known = {
        "found duplicate key": "a name stands twice",
        r"found character '\t'": "a tab stands before a name; indent with blanks",
        "found unhashable key": "a list or a mapping stands in place of a name",
    }
    told = (plain for begins, plain in known.items() if str(problem).startswith(begins))
    line = f" in line {mark.line + 1}" if mark else ""
    return f"{next(told, type(error).__name__)}{line}"


def _check(whole: yaml.Node | None, place: object) -> None:
    """Checks a file before OmegaConf reads it and so resolves `${…}` and expands aliases."""
    if not isinstance(whole, yaml.MappingNode | None):
        raise UserError(f"{place}: holds no mapping of settings")
    for count, (where, node) in enumerate(_nodes(whole, ())):
        if count > MOST:
            raise UserError(f"{place}: more than {MOST:,} values; its aliases multiply them")
        if len(where) > DEEPEST:
            raise UserError(f"{place}: nested deeper than {DEEPEST} levels")
        value = node.value if isinstance(node, yaml.ScalarNode) else ""
        if any(printable(text) != text for text in (where[-1], value)):
            raise UserError(f"{place}: a text in it holds half a character")
        if isinstance(node, yaml.ScalarNode):
            _refuse_filled(node.value, where, place)


def _nodes(
    node: yaml.Node | None, where: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], yaml.Node]]:
    """Every value in `node` with the keys that lead to it; an alias's value wherever it is used."""
    inner: list[tuple[str, yaml.Node]] = []
    if isinstance(node, yaml.MappingNode):
        inner = [(str(key.value), value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        inner = [(str(place), value) for place, value in enumerate(node.value)]
    for key, value in inner:
        yield (*where, key), value
        yield from _nodes(value, (*where, key))


def refuse_filled(values: Mapping[str, Any], place: object) -> None:
    """Raises UserError, with the key, for a value that OmegaConf would fill in."""
    for where, value in leaves(values):
        _refuse_filled(value, where, place)


def _refuse_filled(value: object, where: tuple[str, ...], place: object) -> None:
    if isinstance(value, str) and "${" in value:
        raise UserError(
            f"{place}, field '{'.'.join(where)}': ${{…}} is not filled in here; write the value, "
            "and for a key api_key_env: NAME"
        )


def leaves(values: Any, where: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value of a nested mapping or list with the keys that lead to it, inner mappings too."""
    if isinstance(values, Mapping):
        pairs = iter(values.items())
    else:
        pairs = enumerate(values) if isinstance(values, list | tuple) else iter(())
    for key, value in pairs:
        yield (*where, str(key)), value
        yield from leaves(value, (*where, str(key)))
