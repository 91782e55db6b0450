"""Model folders from elsewhere: what asks to run code of its own is refused in one line."""

from __future__ import annotations

import ast
import json
import os
import pickle
import pty
import shutil
import subprocess
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from command_line import SCRIPT, environment
from test_local_policy import letters
from transformers import LlamaConfig, LlamaForCausalLM

from workup.core.errors import UserError
from workup.engines.trl.damage import refuse_damaged
from workup.models.remote import KnownModel
from workup.models.remote_model import RemoteModel
from workup.models.samplers import How
from workup.models.weights import load
from workup.retrieval.dense import loaded

SHAPE = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
HEADS = {"num_attention_heads": 2, "vocab_size": 80, "max_position_embeddings": 64}
LOADERS = {"from_pretrained", "from_config"}
EVIL = """
from pathlib import Path
Path({mark!r}).touch()
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
class Config(LlamaConfig): model_type = "evil"
class Model(LlamaForCausalLM): config_class = Config
class Tokenizer(PreTrainedTokenizerFast): pass
"""
CODED = {
    "its configuration": ("config.json", {"AutoConfig": "evil.Config"}, "evil"),
    "its model": ("config.json", {"AutoModelForCausalLM": "evil.Model"}, "vit"),
    "both": (
        "config.json",
        {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"},
        "evil",
    ),
    "its tokenizer": ("tokenizer_config.json", {"AutoTokenizer": ["evil.Tokenizer", None]}, "vit"),
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A model folder with code that leaves a file `ran` beside it when it runs."""
    folder = tmp_path / "model"
    LlamaForCausalLM(LlamaConfig(**SHAPE, **HEADS)).save_pretrained(folder)
    letters().save_pretrained(folder)
    (folder / "evil.py").write_text(EVIL.format(mark=str(tmp_path / "ran")))
    return folder


def amended(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def coded(place: Path, which: str) -> None:
    name, classes, kind = CODED[which]
    amended(place / name, auto_map=classes)
    amended(place / "config.json", model_type=kind)
    if which == "its tokenizer":
        amended(place / name, tokenizer_class="Tokenizer")


def elsewhere(place: str) -> None:
    """As a sampler in another process reads a model: without its weights."""
    made: Any = RemoteModel(place, How(), Mock(), KnownModel.of(place).config)
    _ = made.parameters


@pytest.mark.parametrize("which", CODED)
@pytest.mark.parametrize("read", [load, elsewhere])
def test_a_model_s_own_code_never_runs(
    which: str, read: Any, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coded(place, which)
    # Whoever is asked whether the code may run says yes.
    monkeypatch.setattr("builtins.input", lambda _: "y")
    with pytest.raises(UserError, match=r"code of its own.*never run") as caught:
        read(str(place))
    assert "\n" not in str(caught.value)
    assert str(place) in str(caught.value)
    assert not (tmp_path / "ran").exists()


@pytest.mark.long
def test_nobody_is_asked(place: Path, tmp_path: Path) -> None:
    """At a terminal the line comes at once, with `y` on its way."""
    coded(place, "both")
    ours, theirs = pty.openpty()
    os.write(ours, b"y\n" * 8)
    arguments = ("evaluate", str(place), "--cases", "clinic:xs", "--out", "run")
    done = subprocess.run(
        [SCRIPT, *arguments],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdin=theirs,
        capture_output=True,
        text=True,
        check=False,
    )
    os.close(ours)
    os.close(theirs)
    assert done.returncode == 2
    assert "code of its own" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "run").exists()


def test_a_kind_that_nobody_knows_is_one_line(place: Path) -> None:
    amended(place / "config.json", model_type="evil")
    with pytest.raises(UserError, match="model type `evil`") as caught:
        load(place)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["attn_implementation", "_attn_implementation"])
def test_attention_from_a_repository_is_not_fetched(name: str, place: Path) -> None:
    """Such a "kernel" is a compiled program that transformers would download and load."""
    amended(place / "config.json", **{name: "kernels-community/flash-attn2"})
    for read in (load, KnownModel.of):
        with pytest.raises(UserError, match=r"code of its own.*attn_implementation") as caught:
            read(str(place))
        assert "\n" not in str(caught.value)


def test_adapters_are_not_a_way_round(place: Path, tmp_path: Path) -> None:
    """Adapters name a base model, which is held to the same rule."""
    adapters = tmp_path / "adapters"
    adapters.mkdir()
    shutil.copy(place / "tokenizer.json", adapters)
    shutil.copy(place / "tokenizer_config.json", adapters)
    told = {"peft_type": "LORA", "r": 2, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
    named = told | {"base_model_name_or_path": str(place)}
    (adapters / "adapter_config.json").write_text(json.dumps(named))
    coded(place, "both")
    for read in (load, KnownModel.of):
        with pytest.raises(UserError, match="code of its own"):
            read(str(adapters))
    assert not (tmp_path / "ran").exists()


def test_an_encoder_s_own_code_never_runs(place: Path, tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    modules = [{"idx": 0, "name": "0", "path": "", "type": "evil.Model"}]
    (place / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(UserError, match=r"code of its own.*never run") as caught:
        loaded("SentenceTransformer", str(place))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "ran").exists()


class Bomb:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def test_a_checkpoint_from_elsewhere_runs_nothing(tmp_path: Path) -> None:
    checkpoint, mark = tmp_path / "checkpoint-1", tmp_path / "ran"
    checkpoint.mkdir()
    torch.save({"state": torch.zeros(2)}, checkpoint / "optimizer.pt")
    refuse_damaged(checkpoint)
    torch.save({"state": Bomb(mark)}, checkpoint / "scheduler.pt")
    with pytest.raises(UserError, match=r"scheduler\.pt: this checkpoint is damaged") as caught:
        refuse_damaged(checkpoint)
    assert "\n" not in str(caught.value)
    assert not mark.exists()
    pickle.loads(pickle.dumps(Bomb(mark)))
    assert mark.exists(), "the bomb is one"


@pytest.mark.long
def test_every_call_that_loads_a_model_refuses_its_code() -> None:
    found = []
    for path in sorted(Path("src/workup").resolve().rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr not in LOADERS or "Auto" not in ast.unparse(node.func):
                continue
            said = {each.arg: ast.unparse(each.value) for each in node.keywords}
            found.append((f"{path.name}:{node.lineno}", said.get("trust_remote_code")))
    assert len(found) > 6
    assert [place for place, said in found if said != "False"] == []
