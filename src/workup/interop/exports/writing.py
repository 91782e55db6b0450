"""One export: a folder with the files of a format and a data card, whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workup.core.disk import slug, whole_folder
from workup.core.errors import UserError
from workup.interop.exports import Format, Written
from workup.interop.exports.card import Origin, text
from workup.interop.exports.material import Chosen, Drawn
from workup.runs.files import clear_errors

FOLDER = Path("exports")


@dataclass(frozen=True)
class Exported:
    """The folder of an export, and what is in it."""

    folder: Path
    written: Written


def export(
    material: Chosen | Drawn,
    form: Format,
    out: Path | None = None,
    *,
    restricted: bool = False,
    command: str = "",
) -> Exported:
    """Writes `material` in this format into the new folder `out`, by default in exports/.

    Restricted material is refused unless `restricted`; then no other user may read the folder.
    `command` is what the data card says made it. Raises UserError for a folder that is not empty,
    for material that the format cannot show, and when the disk refuses.
    """
    episodes = isinstance(material, Chosen)
    origin = _of_run(material, command) if isinstance(material, Chosen) else _of(material, command)
    if origin.restricted and not restricted:
        raise UserError(
            f"{origin.name}: its cases are restricted, and their text may not be passed on; "
            "--restricted writes a folder for you alone"
        )
    out = out or FOLDER / f"{slug(origin.name)[-80:].strip('-.') or 'export'}-{form.name}"
    _free(out)
    with clear_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        with whole_folder(out, shared=True) as draft:
            if origin.restricted:
                draft.chmod(0o700)
            written = form.write("run" if episodes else "cases", material, draft)
            card = text(origin, form.summary, written)
            (draft / "README.md").write_text(card, encoding="utf-8")
    return Exported(out, written)


def _free(out: Path) -> None:
    with clear_errors(out):
        if out.is_symlink() or (out.exists() and not out.is_dir()):
            raise UserError(f"{out} is no folder; choose another with --out")
        if out.is_dir() and any(out.iterdir()):
            raise UserError(f"{out} exists already and is not empty; choose another with --out")


def _of_run(chosen: Chosen, command: str) -> Origin:
    run = chosen.run
    config: Mapping[str, Any] = run.config
    world = config.get("environment") or {}
    facts = {
        "run": run.name,
        "method": config.get("method"),
        "environment": world.get("name") if isinstance(world, Mapping) else None,
        "cases": config.get("cases"),
        "policy": config.get("policy"),
        "seed": config.get("seed"),
        "played with workup": run.versions.get("workup"),
        "command of the run": run.versions.get("command"),
        **{f"only {column}": value for column, value in chosen.where.items()},
    }
    shown = {label: str(value) for label, value in facts.items() if value not in (None, "")}
    return Origin(run.name, shown, (), run.restricted, command)


def _of(drawn: Drawn, command: str) -> Origin:
    source = drawn.source
    facts = {"cases": source.name, "side": drawn.side}
    return Origin(source.name, facts, tuple(source.notes), source.restricted, command)
