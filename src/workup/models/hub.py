"""Weights by name: `smollm2`, a folder on this machine, or a repository of the Hugging Face hub.

`smollm2` is a name of ours, as `tiny` is: a folder of that name is `./smollm2`, so that a run means
the same model in whatever folder it is resumed. A name that can only be a path never goes to the
hub. Files in the hub's local cache are used as they are. For anything else the hub is asked once,
with a short timeout, before a library that would try again many times may ask it.

A model's folder or repository can bring Python code, or name a compiled attention. Neither is run:
every call that loads one says `trust_remote_code=False`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TypeVar

from workup.core.disk import there
from workup.core.errors import UserError, WorkupError
from workup.models import smollm2

T = TypeVar("T")
FILES = ("config.json", "adapter_config.json")  # a whole model's, a LoRA adapter's
SUFFIXES = {
    *(".bin", ".ckpt", ".gguf", ".h5", ".onnx", ".pt", ".pth", ".safetensors"),
    *(".json", ".jsonl", ".yaml", ".yml", ".tar", ".gz", ".zip"),
}
ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
FORMS = "smollm2, a model folder, a hub id or endpoint:NAME"
WEIGHTS = (".safetensors", ".bin")
TEXTS = (".json", ".jinja", ".model", ".txt")
BASE = "base.json"  # beside adapters: names the model they change (`workup.models.lora`)
CODE = "trust_remote_code"  # what the libraries' refusals of a model's own code name
ATTENTION = ("attn_implementation", "_attn_implementation")  # with a "/": a repository's program
UNKNOWN = "unknown"  # the commit of what the hub's cache does not hold
PATIENCE = 3.0  # seconds for the hub's one answer; HF_HUB_ETAG_TIMEOUT changes it


def weights(name: str, *, forms: str = FORMS) -> str:
    """The folder of the weights of this name, or a hub id if they are still to be downloaded.

    Raises UserError for a folder that does not exist, for a hub id that is neither in the cache nor
    known to a hub that answers, and where smollm2 is not installed. `forms` says what else could
    have been named.
    """
    if name == smollm2.NAME:
        return str(smollm2.folder())
    if found := there(name):
        return str(found)
    if is_path(name):
        raise UserError(f"no weights '{name}': there is no such folder{_near(name)} ({forms})")
    if not is_id(name):
        raise UserError(f"no weights '{name}' ({forms})")
    if kept := cached(name):
        return kept
    _ask(name)
    return name


def is_id(name: str) -> bool:
    """Whether the hub takes this name for a repository's."""
    if not ID.fullmatch(name):  # asked of endpoints too, where the hub's library may be missing
        return False
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


def opened(name: str, make: Callable[[str], T], *, forms: str = FORMS) -> T:
    """The result of `make` for the weights of this name, given their folder or their hub id.

    If the cache holds only a part of them, `make` is called again with the hub's help. Raises
    UserError as `weights` does, and in place of what `make` raises for files that are missing, of
    another kind, or damaged, and for a model that would run code of its own.
    """
    place = weights(name, forms=forms)
    with readable(name, forms):
        try:
            _refuse_attention(place if there(place) else _settings(place))
            return make(place)
        except OSError:
            if name == smollm2.NAME or place in (name, str(there(name))):
                raise
            _ask(name)
            return make(name)


@contextmanager
def readable(name: str, forms: str = FORMS) -> Iterator[None]:
    """A context that says in one line why a model, or what is made of its files, cannot be had."""
    try:
        yield
    except (WorkupError, MemoryError):
        raise
    except Exception as error:  # whatever a library stumbles over in somebody's files
        if type(error).__name__ == "OutOfMemoryError":  # torch's, which is not loaded here
            raise
        if isinstance(error, ValueError) and CODE in str(error):
            raise _coded(name, "auto_map in its config.json, or a class of its modules") from error
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        if not isinstance(error, OSError | ValueError):
            reason = f"{type(error).__name__}: {reason}"
        raise UserError(
            f"'{name}' holds no weights that can be loaded: {reason} ({forms})"
        ) from error


def _settings(name: str) -> str:
    """The folder with the settings of a hub id, which are fetched before anything else is."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        return str(Path(hf_hub_download(name, FILES[0])).parent)
    except EntryNotFoundError:  # an adapter's repository has none
        return name


def _refuse_attention(place: str) -> None:
    """Raises UserError where a folder's config.json names a repository's compiled attention."""
    file = Path(place).expanduser() / FILES[0]
    if not file.is_file():
        return
    told = json.loads(file.read_text(encoding="utf-8"))
    for key in ATTENTION if isinstance(told, dict) else ():
        if "/" in str(told.get(key)):
            raise _coded(place, f"{key}={str(told[key])[:80]} in its {file.name}")


def _coded(name: str, where: str) -> UserError:
    return UserError(
        f"'{name}' asks for code of its own ({where}), and code that comes with a model is never "
        "run here: take a model of a kind that the installed transformers knows"
    )


def identity(name: str) -> str:
    """Which weights a name means now: NAME@DIGEST of a folder, NAME@COMMIT of a hub id."""
    folder = there(weights(name) if name == smollm2.NAME else name)
    if folder is not None and folder.is_dir():
        return f"{folder.resolve().name}@{digest(folder)}"
    return f"{name}@{Path(cached(name) or UNKNOWN).name}"  # the cache has a folder per commit


def digest(folder: Path) -> str:
    """A BLAKE2b digest (64 bits, hexadecimal) of a model folder's file names and contents.

    The files are weights, settings and tokenizer. Of adapters' base model only the digest counts,
    not its place.
    """
    whole = hashlib.blake2b(digest_size=8)
    for path in sorted(folder.iterdir()):
        if path.suffix in (*WEIGHTS, *TEXTS):
            whole.update(path.name.encode() + b"\0" + _digest(path))
    return whole.hexdigest()


def _digest(path: Path) -> bytes:
    if path.name == BASE:
        with readable(str(path.parent)):
            told = json.loads(path.read_text(encoding="utf-8"))
            return hashlib.blake2b(str(told["weights"]).encode(), digest_size=16).digest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).digest()


def is_path(name: str) -> bool:
    """Whether a name can only be a path, as in ./x, ~/x, /x, a/b/c, x.gguf and runs/x.

    `runs` is where training puts its folders.

    >>> names = ("./x", "a/b/c", "x.gguf", "runs/x", "Qwen/Qwen2.5-1.5B", "gpt2")
    >>> [is_path(name) for name in names]
    [True, True, True, True, False, False]
    """
    return (
        name.startswith((".", "~", "/"))
        or name.count("/") > 1
        or "\\" in name
        or Path(name).suffix.lower() in SUFFIXES
        or Path(name).parts[:1] == ("runs",)
    )


def cached(name: str, commit: str | None = None) -> str | None:
    """The folder of the hub's cache for a model of this name, complete or partial.

    It is that of the newest commit there, or of `commit`.
    """
    from huggingface_hub import try_to_load_from_cache

    found = (try_to_load_from_cache(name, file, revision=commit) for file in FILES)
    return next((str(Path(file).parent) for file in found if isinstance(file, str)), None)


def at_hand(name: str) -> bool:
    """Whether the hub's cache holds a model's weights, not only its settings.

    It asks no server.
    """
    folder = cached(name)
    return folder is not None and any(
        next(Path(folder).glob(file), None) is not None for file in ("*.safetensors", "*.bin")
    )


@cache
def _ask(name: str) -> None:
    """One request, without a second attempt. Raises UserError if the hub has no such model."""
    from huggingface_hub import constants, errors, get_hf_file_metadata, hf_hub_url

    try:
        patience = float(os.environ.get("HF_HUB_ETAG_TIMEOUT") or PATIENCE)
    except ValueError as error:
        raise UserError(f"HF_HUB_ETAG_TIMEOUT is no number of seconds: {error}") from error
    try:
        get_hf_file_metadata(hf_hub_url(name, FILES[0]), timeout=patience)
    except errors.EntryNotFoundError:
        return  # the repository is there, and its loader knows what else to look for
    except errors.GatedRepoError:
        problem = "its authors ask you to accept their terms on the hub; then type `hf auth login`"
    except errors.RepositoryNotFoundError:
        problem = f"not on {constants.ENDPOINT} (a private one needs `hf auth login`)"
    except errors.OfflineModeIsEnabled:
        problem = "and HF_HUB_OFFLINE is set, which keeps us from the hub"
    except (OSError, errors.HTTPError) as error:  # type: ignore[attr-defined]  # of its HTTP library
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        problem = f"and asking {constants.ENDPOINT} failed ({reason})"
    else:
        return
    raise UserError(f"no weights '{name}': no such folder, not in the hub's cache, {problem}")


def _near(name: str) -> str:
    """The folder beside it with the most similar name."""
    path = Path(name)
    with suppress(RuntimeError):  # ~ of nobody
        path = path.expanduser()
    beside: list[str] = []
    with suppress(OSError):
        beside = [each.name for each in path.parent.iterdir()]
    near = get_close_matches(path.name, beside, n=1, cutoff=0.6)
    return f". Did you mean '{path.parent / near[0]}'?" if near else ""
