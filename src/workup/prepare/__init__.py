"""Offline preparation of cases: JSON lines in, JSON lines out.

A preparation can be resumed, and every case that it writes has its provenance. A step is one module
of this package that defines `step`; its name, with hyphens, is what one types. There is no
registry.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from workup.core.errors import unknown
from workup.prepare.steps import PrepareStep


def names() -> list[str]:
    """The names of the steps, sorted."""
    return sorted(name for name in _modules() if _step(name) is not None)


def load(name: str) -> PrepareStep:
    """The step of this name. Raises UserError if there is none."""
    step = _step(name) if name in _modules() else None
    if step is None:
        raise unknown("step", name, names(), more="`workup prepare` lists all")
    return step


def _modules() -> list[str]:
    return [module.name.replace("_", "-") for module in iter_modules(__path__)]


def _step(name: str) -> PrepareStep | None:
    step = getattr(import_module(f"{__name__}.{name.replace('-', '_')}"), "step", None)
    return step if isinstance(step, PrepareStep) else None
