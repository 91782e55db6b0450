"""Whether verl is here, in a version that this engine knows, with libraries that it takes."""

from __future__ import annotations

from importlib import metadata

from workup.core.errors import UserError

VERL = "0.9."  # another version may have another trainer
NEWEST_TRANSFORMERS = (5, 11)  # verl 0.9 takes those below
ENVIRONMENT = "make .venv-verl/.done (docs/cluster.md)"


def check_libraries() -> None:
    """Raises UserError where verl cannot run here; it says what to type instead."""
    found = _version("verl")
    if found is None:
        raise UserError(
            f"verl is not installed; it needs an environment of its own, type: {ENVIRONMENT}"
        )
    if not found.startswith(VERL):
        raise UserError(
            f"verl {found} is installed, and engine=verl knows {VERL}x; type: {ENVIRONMENT}"
        )
    transformers = _version("transformers") or "0"
    if _numbers(transformers) >= NEWEST_TRANSFORMERS:
        raise UserError(
            f"transformers {transformers} is installed, and verl {found} takes those below "
            f"{'.'.join(map(str, NEWEST_TRANSFORMERS))}; verl needs an environment of its own, "
            f"type: {ENVIRONMENT}"
        )


def _version(library: str) -> str | None:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    major, _, rest = version.partition(".")
    minor = rest.partition(".")[0]
    return (int(major), int(minor) if minor.isdigit() else 0)
