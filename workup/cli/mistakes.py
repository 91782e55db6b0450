"""The command line's own mistakes in one line each: what is wrong, and what to type instead."""

from __future__ import annotations

from typing import Any

from workup import methods
from workup.errors import unknown


def line(error: Any) -> str:
    """One line for an error of typer's parser, which is recognised by its attributes.

    Typer may carry its own copy of click, and the errors of that copy have no public class.
    """
    context, said = getattr(error, "ctx", None), " ".join(error.format_message().split())
    more = f"see {context.command_path} --help" if context else ""
    parameter = getattr(error, "param", None)
    if context and hasattr(error, "possibilities") and hasattr(error, "option_name"):
        return str(unknown("option", error.option_name, _options(context), more=more))
    if parameter is not None and said.startswith("Missing"):
        return f"{_called(parameter)} is missing: {parameter.help} ({more})"
    if said.startswith("No such command") and (name := said.split("'")[1]) in methods.names():
        return f"'{name}' is a method: type workup train {name}"
    return f"{said.removesuffix('.')} ({more})" if more else said


def out_of_memory(error: Exception) -> str | None:
    """One line for an error that means too little memory; None for others."""
    said = str(error).strip().partition("\n")[0]
    known = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    if not (known or "can't allocate memory" in said):
        return None
    return (
        f"out of memory ({said[:200] or type(error).__name__}). Lower concurrency (transcripts at "
        "once; `workup resume FOLDER concurrency=N` goes on with what is done), in training "
        "micro_batch, or say gradient_checkpointing=true (both at resume too); or begin anew with "
        "a lower max_tokens"
    )


def _options(context: Any) -> list[str]:
    several = [parameter.opts for parameter in context.command.get_params(context)]
    return [name for names in several for name in names if name.startswith("-")]


def _called(parameter: Any) -> str:
    """An option as it is typed; an argument in capitals, as in the line of usage."""
    long = next((name for name in parameter.opts if name.startswith("--")), "")
    shown = (parameter.metavar or parameter.name.upper()).split()[0]
    return long or shown.removesuffix("...")
