"""Runs that train adapters keep adapters.

Tested are what opens them, the error where their model is gone, and that an interruption changes
nothing.
"""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import CLOCKED, SMALL, forked, told, without, workup
from disturbing import disturbed
from safetensors.torch import load_file, save_file

from workup.cli import api
from workup.core.errors import UserError
from workup.engines.settings import LoraSettings
from workup.engines.verl import mapping
from workup.models import hub, lora
from workup.models.remote import KnownModel
from workup.models.weights import load, write_merged
from workup.runs import Run
from workup.runs.settings import Settings

pytestmark = pytest.mark.usefixtures("shared_cache")
RUN: dict[str, Any] = {
    "cases": "clinic:xs",
    "tiny": {"width": 32},
    "sft": {"steps": 30, "lr": 0.01},
    "batch": 4,
    "group": 4,
    "max_tokens": 8,
    "evaluation": {"cases": 4, "anchors": False, "untrained": False},
    "quiet": True,
}
LORA = {"r": 4, "alpha": 12}
SCALE = LORA["alpha"] / LORA["r"]
ADAPTED: dict[str, Any] = {**RUN, "tiny": {}, "lora": LORA, "lr": 0.01, "steps": 2}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return api.train("craft", out=tmp_path_factory.mktemp("whole") / "run", steps=1, **RUN)


@pytest.fixture(scope="module")
def first(whole: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Adapters on the policy of `whole`."""
    out = tmp_path_factory.mktemp("first") / "run"
    return api.train("craft", out=out, policy=str(whole.path), save_every=1, **ADAPTED)


@pytest.fixture(scope="module")
def second(first: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Adapters on the policy of `first`."""
    out = tmp_path_factory.mktemp("second") / "run"
    return api.train("craft", out=out, policy=str(first.path), seed=1, **ADAPTED)


def state(folder: Path) -> dict[str, torch.Tensor]:
    """The weights that a reader of the folder gets."""
    return {name: weight.detach() for name, weight in load(folder)[0].state_dict().items()}


def by_hand(before: dict[str, torch.Tensor], folder: Path) -> dict[str, torch.Tensor]:
    """W + alpha / r · B A for every layer of the folder's adapters."""
    after, adapters = dict(before), load_file(folder / "adapter_model.safetensors")
    for name, a in adapters.items():
        if name.endswith("lora_A.weight"):
            layer = name.removeprefix("base_model.model.").replace("lora_A.", "")
            after[layer] = before[layer] + SCALE * adapters[name.replace("_A.", "_B.")] @ a
    return after


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()}


@pytest.mark.long
def test_a_run_keeps_adapters_and_no_model(whole: Run, first: Run) -> None:
    assert "model.safetensors" in files(whole.policy)
    assert "model.safetensors" not in files(first.path)
    kept = [*first.checkpoints.glob("*/checkpoint-*"), first.policy]
    assert len(kept) >= 2
    for folder in kept:
        assert {"adapter_model.safetensors", "base.json", "tokenizer.json"} <= files(folder)
        assert (folder / "adapter_model.safetensors").stat().st_size < 30_000
        named = json.loads((folder / "base.json").read_text())
        assert (named["name"], named["dtype"]) == (str(whole.policy.resolve()), "float32")


@pytest.mark.long
def test_readers_get_the_base_model_with_the_adapters_added(
    whole: Run, first: Run, second: Run
) -> None:
    """Also where the base model is itself adapters on another."""
    weights = state(whole.policy)
    for run in (first, second):
        expected, found = by_hand(weights, run.policy), state(run.policy)
        changed = {name for name in weights if not torch.equal(weights[name], expected[name])}
        assert changed
        assert found.keys() == weights.keys()
        for name in found:
            torch.testing.assert_close(found[name], expected[name], rtol=1e-6, atol=1e-7)
        weights = found
    model, _ = load(second.policy)
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not hasattr(model, "peft_config")


@pytest.mark.long
def test_a_checkpoint_is_a_policy_too(first: Run) -> None:
    newest = max(first.checkpoints.glob("*/checkpoint-*"))
    ours, theirs = state(newest), state(first.policy)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.long
@pytest.mark.parametrize("whose", ["whole", "first", "second"])
def test_every_policy_is_evaluated(
    whose: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    run: Run = request.getfixturevalue(whose)
    again = api.evaluate(
        run.path, cases="clinic:xs", out=tmp_path / "again", max_tokens=8, quiet=True,
        evaluation=RUN["evaluation"], seed=run.config["seed"],
    )  # fmt: skip
    (found,) = again.summary["doctors"].values()
    assert found["accuracy"] == run.summary["doctors"]["trained"]["accuracy"]
    assert found["endings"] == run.summary["doctors"]["trained"]["endings"]


@pytest.mark.long
def test_merged_on_demand_and_by_a_setting_are_the_same(
    whole: Run, first: Run, tmp_path: Path
) -> None:
    done = forked("merge", first.path, tmp_path / "merged" / "mine", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    words = {**ADAPTED, "lora": {**LORA, "merged": True}}
    other = api.train("craft", out=tmp_path / "run", policy=str(whole.path), **words)
    ours = load_file(tmp_path / "merged" / "mine" / "model.safetensors")
    theirs = load_file(other.policy / "model.safetensors")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert (other.policy / "config.json").exists()
    said = told("merge", whole.path, "new", cwd=tmp_path)
    assert "holds whole weights" in said
    said = told("merge", first.path, tmp_path / "merged", cwd=tmp_path)
    assert "exists already" in said


def test_half_precision_is_rounded_once(first: Run) -> None:
    exact, (half, _) = load(first.policy)[0], load(first.policy, dtype="bfloat16")
    pairs = zip(exact.parameters(), half.parameters(), strict=True)
    assert all(torch.equal(a.to(torch.bfloat16), b) for a, b in pairs)
    assert half.dtype == torch.bfloat16
    frequencies = {name: b.dtype for name, b in half.named_buffers() if "inv_freq" in name}
    assert set(frequencies.values()) == {torch.float32}


def test_a_sampler_elsewhere_knows_the_model(whole: Run, second: Run) -> None:
    ours, theirs = KnownModel.of(str(second.policy)), KnownModel.of(str(whole.policy))
    assert ours.folder == str(second.policy)
    assert (ours.config.to_dict(), ours.eos) == (theirs.config.to_dict(), theirs.eos)
    values = Settings(method="craft", policy=str(second.path), engine="verl").model_dump()
    with pytest.raises(UserError, match="verl takes whole weights: type `workup merge"):
        mapping.configuration(values, str(second.policy), Path("nowhere"))


@pytest.fixture
def moved(whole: Run, first: Run, tmp_path: Path) -> tuple[Path, Path]:
    """A copy of the base model, and adapters that name it."""
    base, adapters = tmp_path / "base", tmp_path / "adapters"
    shutil.copytree(whole.policy, base)
    shutil.copytree(first.policy, adapters)
    named = json.loads((adapters / "base.json").read_text())
    (adapters / "base.json").write_text(json.dumps({**named, "name": str(base)}))
    return base, adapters


def test_where_the_base_model_lies_does_not_matter(first: Run, moved: tuple[Path, Path]) -> None:
    base, adapters = moved
    assert hub.digest(adapters) == hub.digest(first.policy)
    ours, theirs = state(adapters), state(first.policy)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    base.rename(base.with_name("elsewhere"))
    with pytest.raises(UserError) as caught:
        load(adapters)
    assert str(caught.value) == (
        f"{adapters} holds adapters of {base}, which is not there: bring it back, or write its "
        f"present folder into {adapters / 'base.json'}"
    )


def test_another_base_model_is_refused(second: Run, moved: tuple[Path, Path]) -> None:
    base, adapters = moved
    before = hub.digest(adapters)
    shutil.copy(second.policy / "adapter_config.json", base / "config.json")
    with pytest.raises(UserError, match=r"with the weights .*, and it has others now") as caught:
        load(adapters)
    assert "\n" not in str(caught.value)
    named = json.loads((adapters / "base.json").read_text())
    (adapters / "base.json").write_text(json.dumps({**named, "weights": hub.digest(base)}))
    assert hub.digest(adapters) != before, "adapters on another model are another policy"


def broken(adapters: Path, how: str) -> None:
    match how:
        case "base.json is no JSON":
            (adapters / "base.json").write_text("{")
        case "base.json lacks a name":
            (adapters / "base.json").write_text("{}")
        case "nothing names the model":
            (adapters / "base.json").unlink()
            config = json.loads((adapters / "adapter_config.json").read_text())
            config["base_model_name_or_path"] = None
            (adapters / "adapter_config.json").write_text(json.dumps(config))
        case "base.json is deep":
            (adapters / "base.json").write_text("[" * 100_000 + "]" * 100_000)
        case "adapter_config.json is deep":
            (adapters / "adapter_config.json").write_text("[" * 100_000 + "]" * 100_000)
        case "the rank is another":
            config = json.loads((adapters / "adapter_config.json").read_text())
            (adapters / "adapter_config.json").write_text(json.dumps(config | {"r": 8}))
        case "the kind is another":
            config = json.loads((adapters / "adapter_config.json").read_text())
            (adapters / "adapter_config.json").write_text(json.dumps(config | {"peft_type": "X"}))
        case "the adapters are of something else":
            save_file({"a": torch.zeros(2)}, adapters / "adapter_model.safetensors")
        case "one of them is missing":
            held = load_file(adapters / "adapter_model.safetensors")
            held.pop(sorted(held)[0])
            save_file(held, adapters / "adapter_model.safetensors")
        case "the adapters are gone":
            (adapters / "adapter_model.safetensors").unlink()
        case "the adapters are cut off":
            file = adapters / "adapter_model.safetensors"
            file.write_bytes(file.read_bytes()[:1000])


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("base.json is no JSON", "base.json cannot be read"),
        ("base.json lacks a name", "base.json cannot be read"),
        ("nothing names the model", "does not name the model that they change"),
        ("base.json is deep", "base.json cannot be read: maximum recursion"),
        ("adapter_config.json is deep", "holds no weights that can be loaded"),
        ("the rank is another", "of another shape than its settings and its base model"),
        ("the kind is another", "holds no weights that can be loaded: KeyError"),
        ("the adapters are of something else", "does not hold all of its adapters"),
        ("one of them is missing", "does not hold all of its adapters"),
        ("the adapters are gone", r"holds none: adapter_model\.safetensors is missing"),
        ("the adapters are cut off", "holds no weights that can be loaded"),
    ],
)
def test_damaged_adapters_are_one_line(how: str, said: str, moved: tuple[Path, Path]) -> None:
    broken(moved[1], how)
    with pytest.raises(UserError, match=said) as caught:
        load(moved[1])
    assert "\n" not in str(caught.value)


def test_a_base_model_of_another_shape_is_one_line(
    moved: tuple[Path, Path], tmp_path: Path
) -> None:
    base, adapters = moved
    model, tokenizer = load(base)
    wider = type(model.config)(**{**model.config.to_dict(), "hidden_size": 64})
    type(model)(wider).save_pretrained(tmp_path / "wider")
    tokenizer.save_pretrained(tmp_path / "wider")
    renamed(adapters, tmp_path / "wider")
    with pytest.raises(UserError, match="of another shape than its settings and its base"):
        load(adapters)


def test_a_folder_that_lacks_weights_of_its_model_is_one_line(moved: tuple[Path, Path]) -> None:
    """Transformers draws what is missing, and only warns."""
    base, _ = moved
    held = load_file(base / "model.safetensors")
    name = next(each for each in sorted(held) if "layers" in each)
    save_file({key: held[key] for key in held if key != name}, base / "model.safetensors")
    with pytest.raises(UserError, match=f"lacks 1 weights of the model .* {name}") as caught:
        load(base)
    assert "\n" not in str(caught.value)
    save_file(held | {name: torch.zeros(2)}, base / "model.safetensors")
    with pytest.raises(
        UserError, match=rf"{name} has the shape \[2\], and by config.json"
    ) as caught:
        load(base)
    assert "\n" not in str(caught.value)


def renamed(adapters: Path, base: Path) -> None:
    """The adapters name another base model, of whatever weights."""
    (adapters / "base.json").write_text(json.dumps({"name": str(base), "weights": "", "dtype": ""}))


def test_adapters_of_themselves_are_refused(moved: tuple[Path, Path], tmp_path: Path) -> None:
    """Found by names alone: digests of such folders would have no end."""
    ours, other = moved[1], tmp_path / "other"
    renamed(ours, ours)
    for read in (load, lora.whole_of):
        with pytest.raises(UserError, match="without a whole model beneath them"):
            read(str(ours))
    shutil.copytree(ours, other)
    renamed(ours, other)
    renamed(other, ours)
    for read in (load, lora.whole_of):
        with pytest.raises(UserError, match="adapters comes twice; write the whole") as caught:
            read(str(ours))
        assert "\n" not in str(caught.value)


def test_adapters_from_elsewhere_name_their_model_in_pefts_own_file(
    whole: Run, first: Run, moved: tuple[Path, Path]
) -> None:
    _, adapters = moved
    (adapters / "base.json").unlink()
    config = json.loads((adapters / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(whole.policy.resolve())
    ours, theirs = state(adapters), state(first.policy)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_model_of_the_hub_is_taken_at_its_commit(
    moved: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, adapters = moved
    kept = tmp_path / "hub" / "models--some--model"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    old, new = "0" * 40, "1" * 40
    for commit in (old, new):
        shutil.copytree(base, kept / "snapshots" / commit)
    (kept / "snapshots" / new / "model.safetensors").write_bytes(b"other weights")
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text(new)
    (adapters / "base.json").write_text(
        json.dumps({"name": "some/model", "weights": old, "dtype": "float32"})
    )
    assert state(adapters).keys() == state(base).keys()
    shutil.rmtree(kept / "snapshots" / old)
    with pytest.raises(UserError, match=f"type `hf download some/model --revision {old}`"):
        load(adapters)


# --- interruptions ---


def words(policy: Path) -> tuple[object, ...]:
    small = [word for word in SMALL if not word.startswith(("tiny", "sft"))]
    return (
        "train", "craft", "--cases", "clinic:xs", "--policy", policy, *small, "steps=8",
        "lora.r=4", "lr=0.01", "--out", "run",
    )  # fmt: skip


def ended(home: Path) -> tuple[Any, ...]:
    run = Run.open(home / "run")
    metrics = [without(line, *CLOCKED) for line in run.metrics()]
    episodes = sorted(
        ((r.key, r.episode, r.advantages) for r in run.episodes()), key=lambda r: r[0]
    )
    summary = without(run.summary, "name", "seconds")
    return metrics, episodes, summary, (run.policy / "adapter_model.safetensors").read_bytes()


@pytest.mark.long
def test_killed_and_resumed_it_ends_as_one_that_nobody_disturbed(
    first: Run, tmp_path: Path
) -> None:
    calm, shaken = tmp_path / "calm", tmp_path / "shaken"
    calm.mkdir()
    shaken.mkdir()
    done = workup(*words(first.path), cwd=calm)
    assert done.returncode == 0, done.stderr
    status = disturbed(words(first.path), shaken, ("after", "grpo", 5), signal.SIGKILL)
    assert status == -signal.SIGKILL, (shaken / "output.txt").read_text()
    moments = [("there", "checkpoints/2-grpo/saving"), ("there", "policy.draft")]
    for moment in moments:
        status = disturbed(("resume", "run"), shaken, moment, signal.SIGKILL)
        assert status == -signal.SIGKILL, (shaken / "output.txt").read_text()
    done = forked("resume", "run", cwd=shaken)
    assert done.returncode == 0, done.stderr
    assert ended(shaken) == ended(calm)


@pytest.mark.long
def test_a_run_is_not_resumed_on_another_model(
    second: Run, moved: tuple[Path, Path], tmp_path: Path
) -> None:
    base, _ = moved
    status = disturbed(words(base), tmp_path, ("after", "grpo", 5), signal.SIGKILL)
    assert status == -signal.SIGKILL
    write_merged(str(second.policy), tmp_path / "other")
    shutil.copy(tmp_path / "other" / "model.safetensors", base)
    said = told("resume", "run", cwd=tmp_path)
    assert "holds adapters of" in said
    assert said.endswith("bring those back, or begin a new run")


@pytest.mark.long
def test_whole_weights_stay_the_default_of_a_model_without_a_name(tmp_path: Path) -> None:
    """The tiny policy is made from its cases: only the run holds what adapters change."""
    run = api.train("craft", out=tmp_path / "run", steps=1, lora=LORA, **RUN)
    assert "model.safetensors" in files(run.policy)
    assert not LoraSettings().merged
