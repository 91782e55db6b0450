"""Which policy a name stands for, and what the run that trained it says about it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from workup import methods
from workup.core.errors import UserError
from workup.doctors import strategies
from workup.models import hub, smollm2
from workup.roles.config import Config
from workup.roles.endpoint import ENDPOINT
from workup.runs import Run
from workup.runs.folder import is_run
from workup.runs.settings import SupportSettings

FORMS = "smollm2, a run or model folder, a hub id, endpoint:NAME or the name of an anchor"
TINY = "tiny"  # the policy that starts from nothing, made from the cases
TRAINABLE = "tiny, smollm2, a model folder, a run folder or a hub id"
OURS = (TINY, smollm2.NAME)  # a folder of such a name is written ./tiny


def path(name: str, forms: str = FORMS) -> str:
    """The folder of the weights; for a run folder, the policy that it trained.

    Raises UserError for a name that cannot be a policy, and for a hub id that neither the cache nor
    the hub knows (`hub.weights`). `forms` says what could have been named.
    """
    folder = Path(name).expanduser()
    if name == smollm2.NAME:
        smollm2.check()  # its weights are unpacked, for most of a minute, when they are loaded
        return name
    if name in OURS or not folder.exists():
        hub.weights(name, forms=forms)
        return name
    if folder.is_file():
        raise UserError(f"'{name}' is a file; name the folder that holds it ({forms})")
    if is_run(folder):
        trained(name)
        if not (folder / "policy").exists():
            raise UserError(f"{name} has trained no policy yet; type `workup resume {name}` first")
        return str(folder / "policy")
    if not any((folder / each).is_file() for each in hub.FILES):
        raise UserError(
            f"'{name}' is neither a model folder (no config.json) nor a run folder (no config.yaml)"
        )
    return str(folder)


def is_run_folder(name: str) -> bool:
    """Whether what a policy is called is a run folder."""
    return name not in OURS and is_run(Path(name).expanduser())


def fold_folders(name: str | Path) -> tuple[str, ...]:
    """The run folders of the policies that a cross-validation trained; none of anything else."""
    if str(name) in OURS or not is_run(Path(name).expanduser()):
        return ()
    with Run.open(Path(name).expanduser()) as run:
        if "method" not in run.config:
            return ()
        return tuple(str(Path(name) / folder) for folder in run.parts.values())


def trained(run: str) -> Mapping[str, Any]:
    """The settings of the run that trained a policy.

    Raises UserError for an evaluation, which trains none.
    """
    config = Run.open(Path(run).expanduser()).config
    if parts := fold_folders(run):
        raise UserError(
            f"{run} is a cross-validation with {len(parts)} policies: name one, as in {parts[0]}"
        )
    if "method" not in config:
        raise UserError(
            f"{run} is an evaluation and holds no policy; name what it evaluated: "
            f"'{config.get('policy')}'"
        )
    return config


def check(
    name: str,
    anchors: Collection[str] | None = None,
    forms: str = FORMS,
    why: Sequence[str] = (),
) -> None:
    """Raises UserError, with what to type instead, for a name that is no policy.

    `anchors`, where some could play, are names that need no weights; nor does the tiny policy.
    `why` says which of them are missing. An endpoint is checked when it is opened.
    """
    if name in (*(anchors or ()), TINY) or name.startswith(ENDPOINT):
        return
    if name not in OURS and not Path(name).expanduser().exists():
        _refuse_other_names(name, anchors, why)
    path(name, forms)


def identities(names: Mapping[str, str]) -> dict[str, str]:
    """Which local weights these names mean now (`hub.identity`), by role.

    `names` are policies and models by the role they play; several of one role have commas between
    them. What has no weights here (endpoints, anchors, the tiny policy) is left out.
    """
    found = {
        role: [_weights(name.strip()) for name in spec.split(",")] for role, spec in names.items()
    }
    return {role: ", ".join(filter(None, each)) for role, each in found.items() if any(each)}


def _weights(name: str) -> str:
    here = name == smollm2.NAME or (name != TINY and Path(name).expanduser().is_dir())
    if here or (hub.ID.fullmatch(name) and name != TINY and hub.cached(name)):
        return hub.identity(path(name))
    return ""


def own_judges(names: Sequence[str], settings: SupportSettings) -> list[str]:
    """A warning for each of these policies that is also its own judge.

    Two models are the same if they have the same name at the same address, or the same weights on
    this machine or the hub. A model tends to find its own answers right.
    """
    specs = settings.roles.get("judge", "").split(",")
    judges = {_identity(spec.strip(), settings): spec.strip() for spec in specs if spec.strip()}
    return [
        f"The judge {judges[_identity(name, settings)]} is the policy {name} itself: "
        "a model tends to find its own answers right. Let another model judge, or the exact judge."
        for name in names
        if _identity(name, settings) in judges
    ]


def _identity(name: str, settings: SupportSettings) -> tuple[str, str]:
    """The key that all names of one model share."""
    end = settings.endpoints.get(name.removeprefix(ENDPOINT)) if name.startswith(ENDPOINT) else None
    if end is not None:
        return end.base_url, end.model
    folder = Path(name).expanduser()
    if name in OURS or not folder.exists():
        return "", name
    return "", str((folder / "policy" if is_run(folder) else folder).resolve())


def _refuse_other_names(name: str, anchors: Collection[str] | None, why: Sequence[str]) -> None:
    if name in Config.find(None).endpoints:
        raise UserError(f"no policy '{name}'. Did you mean '{ENDPOINT}{name}'?")
    if name in methods.names():
        raise UserError(
            f"'{name}' is a method: type `workup train {name}`, then evaluate its run folder"
        )
    if name in strategies.names():
        raise UserError(f"'{name}' is a strategy: type workup evaluate POLICY strategy={name}")
    if anchors is None or "/" in name:
        return
    begun = [anchor for anchor in anchors if anchor.startswith(name)]
    # Anchors share words: "told information" is no misspelt "full information".
    near = begun or get_close_matches(name, [*anchors], n=1, cutoff=0.9 if " " in name else 0.6)
    if near:
        raise UserError(f"no policy '{name}'. Did you mean '{near[0]}'?")
    if " " in name:  # only anchors have names with spaces
        others = f"here play {', '.join(anchors)}" if anchors else "these cases have no model"
        raise UserError("; ".join((f"'{name}' does not play here", others, *why)))
