"""Adapters (LoRA) by themselves: a folder of them names the base model whose weights they change.

Beside peft's two files (`adapter_config.json`, `adapter_model.safetensors`) lies our `base.json`,
which also says which weights the base model had. Adapters on any others would be another policy.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workup.core.disk import there
from workup.core.errors import UserError
from workup.models import hub, smollm2
from workup.models.hub import BASE

if TYPE_CHECKING:
    from peft import PeftModel

ADAPTERS = "adapter_config.json"
HELD = ("adapter_model.safetensors", "adapter_model.bin")  # their weights, as peft names them
MISSING = "missing adapter keys while loading the checkpoint"  # peft's words for it
# peft 0.21 asks transformers 5.23 by an attribute's old name, which a user can do nothing about.
warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
NAMED = "base_model_name_or_path"  # peft's key for the base model


@dataclass(frozen=True)
class Base:
    """The model that adapters were trained on.

    `name` is smollm2, an absolute path or a hub id. `weights` is the digest of its files or the
    hub's commit, and `dtype` the precision that it was loaded in; both are empty for adapters from
    elsewhere, which do not say.
    """

    name: str
    weights: str = ""
    dtype: str = ""

    @classmethod
    def of(cls, place: str, dtype: str) -> Base:
        """The model of a folder or a hub id with its present weights; reads every file of it."""
        folder = Path(place).expanduser()
        here = place != smollm2.NAME and folder.is_dir()
        weights = hub.identity(place).rpartition("@")[2]
        return cls(str(folder.resolve()) if here else place, weights, dtype)

    def note(self, folder: Path) -> None:
        """Names this model in a folder of adapters, for us and for peft."""
        (folder / BASE).write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")
        file = folder / ADAPTERS
        config = json.loads(file.read_text(encoding="utf-8"))
        config[NAMED] = str(smollm2.folder()) if self.name == smollm2.NAME else self.name
        file.write_text(json.dumps(config, indent=2), encoding="utf-8")


def base_of(folder: str | Path) -> Base | None:
    """The base model that a folder's adapters name; None where it holds none.

    Raises UserError for adapters that name no model, and for a file that cannot be read.
    """
    place = Path(folder)
    if not (place / ADAPTERS).is_file():
        return None
    file = place / (BASE if (place / BASE).exists() else ADAPTERS)
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
        if file.name == BASE:
            return Base(*(str(told[key]) for key in ("name", "weights", "dtype")))
        named = told.get(NAMED)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{file} cannot be read: {' '.join(str(error).split())[:120]}") from error
    if not named:
        raise UserError(
            f"{place} holds adapters alone, and {file.name} does not name the model that they "
            f"change ({NAMED})"
        )
    return Base(str(named))


def refuse_circle(folder: str | Path) -> None:
    """Raises UserError for adapters whose base model is, in the end, these adapters themselves."""
    seen: set[Path] = set()
    place = Path(folder).expanduser().resolve()
    while (base := base_of(place)) is not None:
        seen.add(place)
        place = (there(base.name) or Path(base.name)).resolve()
        if place in seen:
            raise UserError(
                f"{folder} holds adapters of adapters without a whole model beneath them: "
                f"{place} comes twice; write the whole model's folder into {place / BASE}"
            )


def place_of(base: Base, folder: str | Path) -> str:
    """Where the base model of a folder's adapters is: a folder, or what `hub.weights` takes.

    Raises UserError that says what is missing where it is not there, and where its weights are
    others than those that the adapters were trained on.
    """
    who, file = f"{folder} holds adapters of {base.name}", Path(folder) / BASE
    if hub.is_path(base.name) and not there(base.name):
        raise UserError(
            f"{who}, which is not there: bring it back, or write its present folder into {file}"
        )
    folder_there = there(base.name)
    local = base.name == smollm2.NAME or (folder_there is not None and folder_there.is_dir())
    if not local and base.weights and base.weights != hub.UNKNOWN:
        if kept := hub.cached(base.name, base.weights):
            return kept
        raise UserError(
            f"{who} at commit {base.weights}, which is not in the hub's cache: type "
            f"`hf download {base.name} --revision {base.weights}`"
        )
    try:
        hub.weights(base.name)
    except UserError as error:
        raise UserError(f"{who}: {error}") from error
    if local and base.weights and (now := Base.of(base.name, "").weights) != base.weights:
        raise UserError(
            f"{who} with the weights {base.weights}, and it has others now ({now}): bring those "
            f"back, or write their folder into {file}"
        )
    return base.name


def whole_of(folder: str) -> str:
    """The folder or hub id of the whole model beneath adapters, which may be those of several runs.

    A folder without adapters is its own. Raises what `base_of` and `place_of` raise.
    """
    refuse_circle(folder)
    while (base := base_of(folder)) is not None:
        folder = hub.weights(place_of(base, folder))
    return folder


def refuse_other(checkpoint: Path, base: Base) -> None:
    """Raises UserError where a checkpoint's adapters are of another model than `base`."""
    kept = base_of(checkpoint)
    if kept is not None and kept.weights and kept.weights != base.weights:
        raise UserError(
            f"{checkpoint} holds adapters of {kept.name} with the weights {kept.weights}, and "
            f"{base.name} has {base.weights}: bring those back, or begin a new run"
        )


def write(model: PeftModel, base: Base, folder: Path) -> None:
    """Writes the adapters of `model`, without the model, into an existing folder."""
    model.save_pretrained(str(folder), selected_adapters=["default"])
    (folder / "README.md").unlink(missing_ok=True)  # peft's model card, an empty template
    base.note(folder)


def merged(model: Any, folder: str) -> Any:
    """The base model with a folder's adapters merged into its weights, all of them trainable.

    Raises UserError for a folder that holds no adapters, not all of them, or those of a model of
    another shape.
    """
    from peft import PeftModel

    if Path(folder).is_dir() and not any((Path(folder) / name).is_file() for name in HELD):
        raise UserError(f"{folder} describes adapters and holds none: {HELD[0]} is missing")
    try:
        with warnings.catch_warnings():
            # peft adds what is missing as if it were untrained, and says so in this warning.
            warnings.filterwarnings("error", f".*{MISSING}", UserWarning)
            whole: Any = PeftModel.from_pretrained(model, folder)
    except UserWarning as warning:
        named = str(warning).partition(MISSING)[2].strip(" :")
        raise UserError(f"{folder} does not hold all of its adapters: {named[:120]}") from warning
    except RuntimeError as error:
        if "size mismatch" not in str(error):
            raise
        why = " ".join(str(error).partition("size mismatch")[2].splitlines()[0].split())
        raise UserError(
            f"{folder} holds adapters of another shape than its settings and its base model have: "
            f"{why[:240]}"
        ) from error
    return whole.merge_and_unload().requires_grad_(True)
