"""The command line's own mistakes in one line each: what is wrong, and what to type instead."""

from __future__ import annotations

import shlex
import sys
import sysconfig
import traceback
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from workup import methods
from workup.core.errors import unknown

PACKAGE = Path(__file__).parents[1]
GROUPS = ("environment", "evaluation", "roles")  # whose settings are known by their own names
ALIKE = 0.8  # how like one another names have to be (difflib) for one to be taken for the other
MISTAKEN = (TypeError, ValueError, AttributeError)  # of a constructor that got a wrong argument
FULL = 64 << 20  # a GPU with fewer bytes left is full


def line(error: Any) -> str:
    """One line for an error of typer's parser, which is recognised by its attributes.

    Typer may carry its own copy of click, and the errors of that copy have no public class.
    """
    context, said = getattr(error, "ctx", None), " ".join(error.format_message().split())
    more = f"see {context.command_path} --help" if context else ""
    parameter = getattr(error, "param", None)
    if context and hasattr(error, "possibilities") and hasattr(error, "option_name"):
        if typed := _as_setting(error.option_name, context):
            return f"no option '{error.option_name}', but a setting: type {typed} ({more})"
        return str(unknown("option", error.option_name, _options(context), more=more))
    if parameter is not None and said.startswith("Missing"):
        return f"{_called(parameter)} is missing: {parameter.help} ({more})"
    if said.startswith("No such command") and (name := said.split("'")[1]) in methods.names():
        return f"'{name}' is a method: type workup train {name}"
    return f"{said.removesuffix('.')} ({more})" if more else said


def in_own_code(error: Exception) -> str | None:
    """One line for an error that a module from outside raised; None where this program did.

    It is the user's if the innermost frame of the traceback that is neither a library's nor
    Python's is none of this program. A constructor of this program that was called with what it
    does not take does not count, nor does the import of a module that cannot be read.
    """
    told = traceback.extract_tb(error.__traceback__)
    frames = [(each.filename, each.lineno, each.name) for each in told]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append((error.filename, error.lineno, "import"))
    libraries = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib")]
    for name, line, function in reversed(frames):
        file = Path(name)
        if file.is_relative_to(PACKAGE):
            if function != "__init__" or not isinstance(error, MISTAKEN):
                return None
        elif file.is_file() and not any(map(file.is_relative_to, libraries)):
            said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            return f"{file.name}, line {line}, in {function}: {said} (your own module)"
    return None


def out_of_memory(error: Exception) -> str | None:
    """One line for an error that means too little memory; None for others."""
    said = str(error).strip().partition("\n")[0]
    known = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    told = "can't allocate memory" in said or (isinstance(error, RuntimeError) and _gpu_full())
    if not (known or told):
        return None
    return (
        f"out of memory ({said[:200] or type(error).__name__}). Lower concurrency (transcripts at "
        "once; `workup resume FOLDER concurrency=N` goes on with what is done), in training "
        "micro_batch, or say gradient_checkpointing=true (both at resume too); or begin anew with "
        "a lower max_tokens"
    )


def _gpu_full() -> bool:
    """Whether a GPU has hardly any memory left: then its libraries fail with errors of their own.

    cuDNN says CUDNN_STATUS_INTERNAL_ERROR, for example.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return False
    return bool(torch.cuda.mem_get_info()[0] < FULL)


def _options(context: Any) -> list[str]:
    several = [parameter.opts for parameter in context.command.get_params(context)]
    return [name for names in several for name in names if name.startswith("-")]


def _as_setting(option: str, context: Any) -> str:
    """ "budget=5" for `--budget 5`, where the command takes settings; "" if it is like none.

    An option that is more like it goes before.
    """
    words = [parameter.metavar for parameter in context.command.get_params(context)]
    if not any("[KEY=VALUE]..." in (word or "") for word in words) or get_close_matches(
        option, _options(context), 1, ALIKE
    ):
        return ""
    own = getattr(context.command, "settings", None)  # of a study or an audit
    model = getattr(context.command, "model", "PolicySettings")
    known = [*own.model_fields] if own else _settings(model)
    asked = option.lstrip("-").replace("-", "_")
    inner = [name for name in known if name in {f"{group}.{asked}" for group in GROUPS}]
    close = get_close_matches(asked, known, 1, ALIKE)
    name = asked if asked in known else next(iter([*inner, *close]), "")
    return f"{name}={_given(option)}" if name else ""


def _settings(model: str) -> list[str]:
    """The names of the settings in `model`, of the environments' and of roles."""
    from workup import environments
    from workup.cli.fields import settings_of
    from workup.runs import settings

    own = [each.name for each in settings_of(getattr(settings, model))]
    played = [f"environment.{name}" for name in sorted(environments.settings())]
    roles = [f"roles.{role}" for role in sorted(settings.known_roles())]
    return [name for name in (*own, *played, *roles) if "NAME" not in name.split(".")]


def _given(option: str) -> str:
    """What was typed behind an option, in quotes where a shell needs them; "…" for nothing."""
    words = iter(sys.argv[1:])
    for word in words:
        name, equals, value = word.partition("=")
        if name == option:
            behind = value if equals else next(words, "")
            return "…" if behind.startswith("--") or not behind else shlex.quote(behind)
    return "…"


def _called(parameter: Any) -> str:
    """The name in a message: "--out" for an option, "METHOD" for an argument."""
    long = next((name for name in parameter.opts if name.startswith("--")), "")
    shown = (parameter.metavar or parameter.name.upper()).split()[0]
    return long or shown.removesuffix("...")
