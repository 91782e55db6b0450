"""TRL and verl: the same losses and gradients on the same episodes, each in its environment."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import loss_world as world
import pytest
import torch

# A loss is a mean of terms of both signs, of about 1 each, and may be near 0 where they cancel. Its
# error goes by the terms: of 40 that are rounded to a thousandth it is some 1e-4, on any processor.
SMALL = 0.05
EVERY = [(name, dtype) for name in world.LOSSES for dtype in world.TOLERANCE]


def kept(name: str, dtype: torch.dtype) -> dict[str, float]:
    figures: dict[str, float] = json.loads(world.KEPT.read_text())[world.key(name, dtype)]
    return figures


def close(found: dict[str, float], name: str, dtype: torch.dtype) -> None:
    expected, relative = kept(name, dtype), world.TOLERANCE[dtype]
    assert found.keys() == expected.keys()
    sizes = {k.partition(":")[0]: v for k, v in expected.items() if k.endswith("size")}
    sizes["loss"] = max(abs(expected["loss"]), SMALL)
    for figure, value in expected.items():
        # What a gradient is along a direction may be near 0; its error goes by the gradient's size.
        scale = sizes.get(figure.partition(":")[0], abs(value))
        assert found[figure] == pytest.approx(value, abs=relative * scale), figure


def test_the_losses_differ_so_that_a_wrong_one_would_show() -> None:
    found = {name: kept(name, torch.float32)["loss"] for name in world.LOSSES}
    values = sorted(found.values())
    assert all(b - a > 1e-4 for a, b in pairwise(values)), found
    assert all(
        kept(name, torch.float32) != kept("grpo", torch.float32) for name in found if name != "grpo"
    )


@pytest.mark.parametrize(("name", "dtype"), EVERY)
def test_trl_gives_these_numbers(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="TRL's environment is the ordinary one: make test")
    close(world.by_trl(name, dtype, tmp_path), name, dtype)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("name", "dtype"), EVERY)
def test_verl_gives_the_same(name: str, dtype: torch.dtype, ranks: int) -> None:
    pytest.importorskip("verl", reason="verl has an environment of its own: make test-verl")
    close(by_verl(name, dtype, ranks), name, dtype)


def by_verl(name: str, dtype: torch.dtype, ranks: int) -> dict[str, float]:
    """The figures of a loss as verl computes it with our settings mapped.

    The rows are spread over `ranks` workers, the last of which gets an empty one where they do not
    divide; each worker has two micro-batches.
    """
    from verl.trainer.ppo.padding_utils import construct_minimal_padding_template
    from verl.utils import tensordict_utils
    from verl.utils.config import omega_conf_to_dataclass
    from verl_world import logprobs

    from workup.engines.verl import losses
    from workup.engines.verl.cluster import composed
    from workup.engines.verl.mapping import configuration
    from workup.engines.verl.rows import rows
    from workup.runs.settings import Settings, build

    given = {"method": "craft", "policy": "org/model", "epsilon": world.EPSILON}
    settings = build(Settings, {**given, **world.LOSSES[name]})
    keys = configuration(settings.model_dump(), "org/model", Path("kept"))
    actor = omega_conf_to_dataclass(composed(keys).actor_rollout_ref.actor)
    network, reference = world.model(0, dtype).train(), world.reference(dtype)
    real = rows(world.samples(), [f"u{k}" for k in range(7)], step=1)
    fields = [dict(row.fields) for row in real]
    while len(fields) % ranks:
        template, _ = construct_minimal_padding_template(fields[0], real[0].tag, 0)
        template.pop("attention_mask")
        fields.append(template)
    for row in fields:
        row["old_log_probs"], row["advantages"] = row["rollout_log_probs"], row["rm_scores"]
    share, total, told = len(fields) // ranks, 0.0, Counter[str]()
    for rank in range(ranks):
        mine = fields[rank * share : (rank + 1) * share]
        for part in filter(None, (mine[:2], mine[2:])):
            data = nested(part)
            tensordict_utils.assign_non_tensor(
                data,
                dp_size=ranks,
                batch_num_tokens=sum(int(row["loss_mask"].sum()) for row in fields),
                global_batch_size=len(real),
            )
            if actor.use_kl_loss:
                with torch.no_grad():
                    theirs = logprobs(reference, data, 1.0)[0]
                data["ref_log_prob"] = responses(theirs, data)
            spoken, entropy = logprobs(network, data, 1.0)
            output = {"log_probs": spoken} | ({"entropy": entropy} if settings.entropy else {})
            loss, metrics = losses.reinforced(output, data, config=actor)
            (loss / ranks).backward()  # what data-parallel workers do: gradients are averaged
            total += float(loss.detach()) / ranks
            for figure in {"entropy", "kl", "clip_ratio"} & metrics.keys():
                told[figure] += metrics[figure].aggregate() / ranks
    return world.figures(total, network) | told


LESSONS = [(name, dtype) for name in world.LESSONS for dtype in world.TOLERANCE]


@pytest.mark.parametrize(("name", "dtype"), LESSONS)
def test_trl_gives_these_numbers_where_nothing_is_sampled(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    pytest.importorskip("trl", reason="TRL's environment is the ordinary one: make test")
    close(world.lesson_by_trl(name, dtype, tmp_path), name, dtype)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("name", "dtype"), LESSONS)
def test_verl_gives_the_same_where_nothing_is_sampled(
    name: str, dtype: torch.dtype, ranks: int
) -> None:
    pytest.importorskip("verl", reason="verl has an environment of its own: make test-verl")
    close(lesson_by_verl(name, dtype, ranks), name, dtype)


def lesson_by_verl(name: str, dtype: torch.dtype, ranks: int) -> dict[str, float]:
    """The figures of a lesson by our losses in verl's form, each worker with two micro-batches.

    Empty rows fill what the workers lack.
    """
    from verl.trainer.ppo.padding_utils import construct_minimal_padding_template
    from verl.utils import tensordict_utils
    from verl_world import logprobs

    from workup.engines.verl import losses
    from workup.engines.verl.rows import lessons, plain

    network, reference = world.model(0, dtype).train(), world.reference(dtype)
    if name == "sft":
        given = [sample for tree in world.demonstrations() for sample in plain(tree)]
        loss: Any = losses.supervised
    else:
        given = [side for pair in world.pairs() for side in pair]
        loss = partial(losses.preference, beta=world.BETA)
    real = lessons(given, "u", step=1)
    fields = [dict(row.fields) for row in real]
    while len(fields) % (4 * ranks):
        template, _ = construct_minimal_padding_template(fields[0], real[0].tag, 0)
        template.pop("attention_mask")
        fields.append(template)
    share, total = len(fields) // ranks, 0.0
    for rank in range(ranks):
        mine = fields[rank * share : (rank + 1) * share]
        for part in (mine[: share // 2], mine[share // 2 :]):
            data = nested(part)
            tensordict_utils.assign_non_tensor(
                data,
                dp_size=ranks,
                batch_num_tokens=sum(int(row["loss_mask"].sum()) for row in fields),
                global_batch_size=len(real),
            )
            with torch.no_grad():
                data["ref_log_prob"] = responses(logprobs(reference, data, 1.0)[0], data)
            output = {"log_probs": logprobs(network, data, 1.0)[0]}
            found, _ = loss(model_output=output, data=data, dp_group=None)
            (found / ranks).backward()
            total += float(found.detach()) / ranks
    return world.figures(total, network)


def nested(part: list[dict[str, Any]]) -> Any:
    """Rows as TransferQueue returns them: of every field one nested tensor."""
    from tensordict import TensorDict

    names = [name for name, value in part[0].items() if torch.is_tensor(value)]
    tensors = {
        name: torch.nested.as_nested_tensor([row[name] for row in part], layout=torch.jagged)
        for name in names
    }
    return TensorDict(tensors, batch_size=len(part))


def responses(nested: Any, data: Any) -> Any:
    from verl.workers.utils.padding import response_from_nested

    return response_from_nested(nested, data["response_mask"])
